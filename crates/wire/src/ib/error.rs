//! Why a packet is dropped.

use thiserror::Error;

use crate::Malformed;

/// Why octets are not the RoCEv2 packet or the management datagram that they should be.
///
/// A transport over datagrams has nobody to tell (IBA vol 1 ch 9, packets with such errors are
/// dropped silently), so these are counters. A variant is a reason, not a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum PacketError {
    /// The octets do not hold what their headers promise.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The BTH has another transport version than 0.
    #[error("unknown transport version")]
    TransportVersion,
    /// The opcode is none that the table has.
    #[error("unknown opcode")]
    UnknownOpcode,
    /// The packet's length is not a multiple of 4, or its pad count exceeds its payload.
    #[error("pad count and packet length disagree")]
    Pad,
    /// The invariant CRC does not match the octets.
    #[error("ICRC mismatch")]
    Icrc,
    /// A management datagram of another class or version than the connection manager's.
    #[error("management datagram is not of the communication management class")]
    MadClass,
    /// A datagram of the connection manager with an attribute that names no message.
    #[error("unknown connection management message")]
    UnknownAttribute,
}

impl PacketError {
    /// All reasons, for tables of counters.
    pub const ALL: [Self; 8] = [
        Self::Malformed(Malformed::Truncated),
        Self::Malformed(Malformed::TrailingOctets),
        Self::TransportVersion,
        Self::UnknownOpcode,
        Self::Pad,
        Self::Icrc,
        Self::MadClass,
        Self::UnknownAttribute,
    ];
}
