//! iWARP: the MPA start-up and the RDMAP streams of both ends, with TCP between them.
//!
//! What the library does between proto and its sockets is done here by `host` (start-up and the
//! application's calls) and `conn` (the queue pair and its socket), in the same order. Where the
//! library lets go of its locks between two things, they are two steps here.

mod conn;
mod end;
mod host;
mod outgoing;
mod tcp;
mod world;

pub use world::{IwarpScenario, IwarpSetup, IwarpStep, IwarpWorld};
