//! rsockets: the protocol by which librdmacm makes byte streams of RDMA connections.
//!
//! Each end has a receive buffer, of which it lends the peer one half after the other as a
//! *window*. The peer writes data to where the window continues, and a message with it says how
//! many octets; messages use up *credits*, which come back with the windows as the application
//! reads. Where there is no RDMA Write with immediate data (iWARP), the message is a Send behind
//! the Write.
//!
//! [`Stream`] is one end. It owns no memory: it says which octets of the send and of the receive
//! buffer are meant, and what is to be posted ([`Post`]); whoever drives it does that, in order,
//! and reports messages and completions, in order. `sender.rs` and `receiver.rs` are the two
//! directions, `iomap.rs` the regions that peers map for each other.

mod iomap;
mod receiver;
mod ring;
mod sender;
mod stream;

use smallvec::SmallVec;
use softverbs_wire::num::Rkey;
use softverbs_wire::rsocket::Message;

pub use self::iomap::{Iomap, TableFull};
pub use self::ring::Pieces;
pub use self::sender::Reserved;
pub use self::stream::{Config, Failure, LocalMemory, Refusal, Shutdown, Stream};

/// Entries of a target list: one for each half of the receive buffer.
pub const TARGETS: u32 = 2;

/// Messages about windows and the connection that may be on their way at once.
pub const CONTROLS: u16 = 4;

/// How a message reaches the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Messaging {
    /// As immediate data of an RDMA Write.
    Immediate,
    /// As a Send of four octets behind the RDMA Write (iWARP).
    Sends,
}

/// What is to be posted: an RDMA Write, with or without payload, with or without a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// What is written.
    pub payload: Payload,
    /// Where to. Without a payload the place does not matter.
    pub remote: Target,
    /// What the peer is told behind it.
    pub message: Option<Message>,
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Its first address.
    pub addr: u64,
    /// The key to it.
    pub rkey: Rkey,
}

/// What a [`Post`] writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    None,
    /// Octets of the send buffer.
    Buffer(Pieces),
    /// So many octets of the application's, to be sent inline.
    Caller(u32),
    /// These octets.
    Octets(SmallVec<[u8; 24]>),
}

/// The part of registered memory that the peer writes to tell of windows and regions.
pub trait TargetList {
    /// The octets of entry `index` of the target list.
    fn target(&mut self, index: u32) -> [u8; 16];
    /// Zeroes that entry.
    fn clear_target(&mut self, index: u32);
    /// The octets of entry `index` of the table of mapped regions.
    fn region(&mut self, index: u32) -> [u8; 24];
}
