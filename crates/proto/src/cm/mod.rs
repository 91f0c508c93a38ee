//! InfiniBand connection management (IBA vol 1 ch 12) with the conventions of the RDMA CM (annex
//! A11), sans-IO.
//!
//! [`endpoint::Endpoint`] is one device's connection manager: management datagrams, what happened
//! on queue pairs, commands and the time go in; datagrams to transmit, events and actions on queue
//! pairs come out. Its module has the contract.
//!
//! | module | what it is |
//! |---|---|
//! | [`endpoint`] | the border: commands, inputs, polls |
//! | [`params`] | what commands take |
//! | [`event`] | what comes out |
//! | [`config`] | timers, retries, limits |
//! | [`state`] | the states and the one transition table |
//! | [`ids`] | communication IDs: how they are chosen |
//! | `timeout` | codes to durations, as Linux does it |
//! | `connection` | one connection, or one resolution of a service ID |
//! | `registry` | all of them, by every name they have; timers; limits |
//! | `listeners` | who listens for which service ID |
//! | `messages` | the messages that we send |
//! | `inbound` | what arrives: to whom it belongs, what is unknown, what is stale |
//! | `request` | a REQ: duplicates, checks, to whom it goes |
//! | `perform` | the actions of the transition table |
//! | `sidr` | service ID resolution for datagrams |

pub mod config;
mod connection;
pub mod endpoint;
pub mod event;
pub mod ids;
mod inbound;
mod listeners;
mod messages;
pub mod params;
mod perform;
mod registry;
mod request;
mod sidr;
pub mod state;
mod timeout;
