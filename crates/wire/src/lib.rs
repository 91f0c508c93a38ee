//! The bytes of iWARP and of RoCEv2: what is on the wire, as typed values.
//!
//! The layers of iWARP, from the TCP stream upwards, with one folder each and inside it one
//! file per header or frame:
//!
//! | module | layer | specified in |
//! |---|---|---|
//! | [`mpa`] | connection set-up, framing (FPDU), markers | RFC 5044, RFC 6581 |
//! | [`ddp`] | tagged and untagged segments | RFC 5041 |
//! | [`rdmap`] | operations: read requests, atomics, immediate data | RFC 5040, RFC 7306 |
//! | [`terminate`] | the message that ends a stream, and its error codes | RFC 5040 §4.8 |
//!
//! RoCEv2 is [`ib`]: packets of the InfiniBand transport in UDP datagrams (IBA vol 1 ch 9, annex
//! A17), and connection management (IBA vol 1 ch 12, annex A11). [`rsocket`] is what librdmacm's
//! sockets say over either.
//!
//! Below them are [`num`] (numbers with types), [`codec`] (reading and writing octets) and
//! [`mod@crc32c`].
//!
//! Every header has the same face: `LEN`, `parse`, `emit`, [`Display`](std::fmt::Display). Parsing
//! keeps what it does not understand (reserved bits, unknown opcodes, other protocol versions),
//! so that a parsed frame is emitted as the same octets; whether a value is *allowed* at this
//! moment is a question for the protocol state machines, not for this crate. There is no state,
//! no clock and no socket here.
#![forbid(unsafe_code)]

pub mod codec;
pub mod crc32c;
pub mod ddp;
pub mod ib;
pub mod mpa;
pub mod num;
pub mod rdmap;
pub mod rsocket;
pub mod terminate;

pub use codec::{Malformed, Parsed, Reader, Writer};
