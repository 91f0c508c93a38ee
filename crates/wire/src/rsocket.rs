//! The octets of rsockets: byte streams and datagrams over RDMA, as rdma-core's librdmacm speaks
//! them.
//!
//! There is no written specification. The layout is what [`ConnectData`] and [`Message`] show in
//! captures of rdma-core's own programs, and what its public header and source say.
//!
//! Numbers in connection data and datagram headers are in network order. What one end writes into
//! the other's memory ([`RemoteBuffer`], [`IomapEntry`]) is in the order of the end that reads it,
//! and a [`Message`] that is sent as a message of its own in that of the end that sends it;
//! [`ConnectData::order`] tells which that is.

mod connect;
mod datagram;
mod memory;
mod message;

pub use connect::{ConnectData, IomapSize};
pub use datagram::{DatagramHeader, DatagramOp, ProbeHeader};
pub use memory::{ByteOrder, IomapEntry, RemoteBuffer};
pub use message::{Control, Message};

#[cfg(test)]
mod tests;
