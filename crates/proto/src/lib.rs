//! Protocol state machines of Softverbs, sans-IO.
//!
//! Bytes and the time go in; frames to transmit, completions, events and the next deadline come
//! out. There are no sockets, threads, clocks, random numbers or `unsafe` here.

#![forbid(unsafe_code)]

pub mod cm;
pub mod fault;
pub mod iwarp;
pub mod memory;
pub mod mutation;
pub mod qp_state;
pub mod roce;
pub mod rsocket;
pub mod send_gate;
pub mod time;
pub mod transmit;
pub mod wr;
