//! RoCEv2: the InfiniBand transport inside UDP datagrams (IBA vol 1 ch 9, annex A17), and
//! connection management on top of it (IBA vol 1 ch 12 and 13).
//!
//! ```text
//! | IP | UDP | BTH | extension headers | payload | pad | ICRC |
//!             `------------------ Packet ------------------'
//! ```
//!
//! [`Packet`] is a received datagram's payload, split into its parts; what is sent is written as
//! [`Headers`], payload and [`Trailer`]. Which extension headers follow the BTH is one table, that
//! of [`Opcode`].

mod aeth;
mod atomic_ack_eth;
mod atomic_eth;
mod bth;
pub mod cm;
mod deth;
mod error;
mod feth;
mod grh;
mod headers;
mod icrc;
mod ieth;
mod immdt;
pub mod mad;
mod opcode;
mod packet;
mod rdeth;
pub mod rdma_cm;
mod reth;
mod udp;
mod xrceth;

pub use aeth::{Aeth, AethKind, CreditCode, NakCode, Syndrome};
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use error::PacketError;
pub use feth::Feth;
pub use grh::{Grh, GrhArea, Ipv4Header};
pub use headers::Headers;
pub use icrc::{Icrc, Ipv4Ident};
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use opcode::{
    ExtensionHeader, Extensions, Extra, Opcode, OpcodeInfo, Operation, Position, Service,
};
pub use packet::{Packet, Trailer, pad_count};
pub use rdeth::Rdeth;
pub use reth::Reth;
pub use udp::{ROCE_PORT, flow_label_of_ports, flow_label_of_qps, source_port};
pub use xrceth::Xrceth;

#[cfg(test)]
mod tests;
