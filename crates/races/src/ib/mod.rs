//! RoCE: the IB connection manager and the reliable queue pairs of both ends, with a network of
//! datagrams between them.
//!
//! What the library does between proto and its sockets is done here by `host`, in the same order:
//! a queue pair moves when the connection manager says so, before the peer hears of it; what
//! happens on a queue pair is noted and told to the connection manager a moment later.

mod end;
mod host;
mod packets;
mod world;

pub use world::{IbScenario, IbStep, IbWorld};
