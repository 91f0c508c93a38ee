//! RoCEv2: the InfiniBand transport (RC, UC, UD), without the UDP.
//!
//! | file | role |
//! |---|---|
//! | [`queue_pair`] | the queue pair: commands, states, gate, time, results |
//! | [`interface`] | what it is created with, events, completions |
//! | [`attributes`] | what `modify_qp` sets, and which values it takes |
//! | [`batch`] | packets to transmit, as gather lists |
//! | `send_queue` | requests in their order, from posting to completion |
//! | `requester` | RC and UC: turns requests into packets, again from the requests after a loss |
//! | `completer` | RC: takes acknowledges, READ responses, results of atomics |
//! | `recovery` | RC: timers, going back, retry limits |
//! | `congestion` | how much may be in flight; round-trip times; congestion notification |
//! | `responder` | RC: the pipeline of checks behind each request of the peer |
//! | `inbound` | the message in the middle of reception: lengths, order, placement |
//! | `read_atomic` | READ responses, saved results of atomics, their replay |
//! | `nak` | what can be wrong with a request, and what each side is told |
//! | `uc`, `ud` | what the unreliable services do differently |
//! | `packets` | headers, payload and pad to frames |
//! | [`train`] | several packets of one message as one |

pub mod attributes;
pub mod batch;
mod completer;
mod congestion;
mod inbound;
pub mod interface;
mod nak;
mod packets;
pub mod queue_pair;
mod read_atomic;
mod recovery;
mod requester;
mod responder;
mod send_queue;
pub mod train;
mod uc;
mod ud;
