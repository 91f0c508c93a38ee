//! MPA start-up (RFC 5044 §7.1, RFC 6581): one state machine for each role.
//!
//! What real peers need is in here as rules of ours: exactly one RTR kind in a reply, the
//! enhanced words in every reply to an enhanced peer (a reject included), never more private data
//! than Linux takes, revision 1 for a responder that hangs up on revision 2.

mod initiator;
mod responder;
#[cfg(test)]
mod tests;

use core::time::Duration;

use softverbs_wire::mpa::negotiation::{
    Enhanced, IRD_ORD_MAX, IRD_ORD_NOT_NEGOTIATED, MAX_PRIVATE_DATA_LINUX,
};

use crate::mutation::Mutations;

pub use initiator::{Initiator, InitiatorOutcome};
pub use responder::{Responder, ResponderOutcome};

/// Most reads that we agree to serve beyond what the application asked for: the limit of Linux
/// siw, whose peers ask for no more.
pub const RELAXED_IRD: u16 = 128;

/// Depth of a peer that named none: an unenhanced one, or one that leaves depths to the
/// application (RFC 6581 §9). Larger than every real depth, so `min` with one's own limit is
/// right.
pub const DEPTH_UNKNOWN: u16 = IRD_ORD_NOT_NEGOTIATED;

/// Reserved flag bit by which our request offers RFC 7306. Others send zero or echo the
/// request's flags, so a reply that still has it does not agree.
const OFFERS_RFC7306: u8 = 0x04;

/// Reserved flag bit by which our reply agrees.
const AGREES_RFC7306: u8 = 0x02;

/// Most private data of a request or reply of this MPA revision, enhanced or not.
///
/// RFC 5044 allows 512 octets. Linux refuses more than 256, enhanced words included, and its
/// interface counts the application's part in an octet.
pub const fn max_private_data(revision: u8) -> usize {
    let words = if revision >= 2 { Enhanced::LEN } else { 0 };
    MAX_PRIVATE_DATA_LINUX - 1 - words
}

/// RTR frame kinds (RFC 6581 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RtrKind {
    /// Zero-length Send.
    Send,
    /// Zero-length RDMA Write.
    Write,
    /// Zero-length RDMA Read.
    Read,
}

/// What both ends agreed on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Negotiated {
    /// FPDUs carry a checked CRC, both ways.
    pub crc: bool,
    /// We insert markers, since the peer asked for them.
    pub markers_out: bool,
    /// The peer inserts markers, since we asked for them.
    pub markers_in: bool,
    /// Reads and atomics that the peer may have outstanding towards us.
    pub ird: u16,
    /// Reads and atomics that we may have outstanding towards the peer.
    pub ord: u16,
    /// Peer-to-peer mode (A=1): the RTR kind that the initiator sends.
    pub rtr: Option<RtrKind>,
    /// Both ends offered RFC 7306 (atomics, immediate data).
    pub rfc7306: bool,
}

/// What our side wants. The same for both roles.
#[derive(Clone, Debug, Hash)]
pub struct Wishes {
    /// Ask for CRC. It is used if either end asks.
    pub crc: bool,
    /// Ask the peer for markers in what we receive.
    pub markers: bool,
    /// Reads that we are willing to serve (`responder_resources`).
    pub ird: u16,
    /// Reads that we want to issue (`initiator_depth`).
    pub ord: u16,
    /// Initiator: ask for peer-to-peer mode, offering Write and Read.
    pub peer_to_peer: bool,
    /// Offer RFC 7306.
    pub rfc7306: bool,
    /// MPA revision to open with: 2, or 1 after a peer refused it.
    pub revision: u8,
    /// How long the peer may take for its frame.
    pub timeout: Duration,
    /// Defects on demand; none in a release.
    pub mutations: Mutations,
}

/// A depth as it can be sent: the value that means "not negotiated" is none.
const fn sendable(depth: u16) -> u16 {
    if depth > IRD_ORD_MAX {
        IRD_ORD_MAX
    } else {
        depth
    }
}
