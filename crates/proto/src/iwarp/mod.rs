//! iWARP: RDMAP over DDP over MPA over TCP, without the TCP.
//!
//! | file | role |
//! |---|---|
//! | [`negotiate`] | MPA start-up, both roles |
//! | `nudge` | an initiator that hears nothing reminds its peer |
//! | [`stream`] | the queue pair's stream: commands, phases, time, results |
//! | `send_queue` | requests in their order, from posting to completion |
//! | `requester` | turns requests into messages, takes the answers to reads and atomics |
//! | `responder` | serves the peer's reads and atomics |
//! | `framer` | messages to FPDUs: length, header, payload, CRC, markers |
//! | `deframer` | octets to FPDUs, in any split |
//! | `inbound` | what an FPDU has to satisfy; where its payload goes |
//! | `tagged` | RDMA Write, Read Response |
//! | `untagged` | Send, Immediate Data, requests of the peer |
//! | `terminate` | the last message of a broken stream |

mod deframer;
mod framer;
mod inbound;
pub mod negotiate;
mod nudge;
mod requester;
mod responder;
mod send_queue;
pub mod stream;
mod tagged;
mod terminate;
mod untagged;
