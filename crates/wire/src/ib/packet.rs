//! A whole packet: what is in a UDP datagram (IBA annex A17).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::{Headers, Icrc, PacketError};

/// How many pad octets follow a payload of this length: what [`Bth::pad_count`] has to say.
///
/// [`Bth::pad_count`]: crate::ib::Bth::pad_count
pub const fn pad_count(payload_len: usize) -> u8 {
    match payload_len % 4 {
        0 => 0,
        1 => 3,
        2 => 2,
        _ => 1,
    }
}

/// A received packet, split into its parts. Nothing is copied but the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// BTH and extension headers.
    pub headers: Headers,
    /// What lies between the headers and the pad. It starts [`Headers::header_len`] octets into
    /// the datagram.
    pub payload: &'a [u8],
    /// Pad and ICRC, as received.
    pub trailer: Trailer,
}

impl<'a> Packet<'a> {
    /// Length of the shortest packet.
    pub const MIN_LEN: usize = super::Bth::LEN + Icrc::LEN;

    /// Splits a UDP datagram's payload. The ICRC is not checked: that needs the IP header.
    ///
    /// Whether the payload is as long as the opcode and the path MTU want it is a question of the
    /// protocol: a responder answers it with a NAK.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, PacketError> {
        let mut reader = Reader::new(datagram);
        let headers = Headers::parse(&mut reader)?;
        let rest = reader.rest();
        let (padded, icrc) = rest
            .split_last_chunk::<{ Icrc::LEN }>()
            .ok_or(Malformed::Truncated)?;
        let (payload, pad) = padded
            .len()
            .checked_sub(usize::from(headers.bth.pad_count))
            .filter(|_| padded.len() % 4 == 0)
            .map(|payload_len| padded.split_at(payload_len))
            .ok_or(PacketError::Pad)?;
        Ok(Self {
            headers,
            payload,
            trailer: Trailer::from_wire(pad, *icrc),
        })
    }

    /// Writes the packet.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        self.headers.emit(writer);
        writer.bytes(self.payload);
        self.trailer.emit(writer);
    }

    /// Appends the packet to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        codec::append(out, self.packet_len(), |writer| self.emit(writer));
    }

    /// Length of this packet on the wire.
    pub const fn packet_len(&self) -> usize {
        self.headers.header_len() + self.payload.len() + self.trailer.trailer_len()
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.headers.fmt(f)?;
        if !self.payload.is_empty() {
            write!(f, ", {} octets of payload", self.payload.len())?;
        }
        Ok(())
    }
}

/// What follows the payload: pad and ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Pad octets; those from `pad_count` on are not part of the packet and zero.
    pad: [u8; 3],
    pad_count: u8,
    /// The ICRC as it is on the wire.
    pub icrc: [u8; Icrc::LEN],
}

impl Trailer {
    /// Length of the longest trailer.
    pub const MAX_LEN: usize = 3 + Icrc::LEN;

    /// The trailer of a payload of this length whose ICRC, pad zeros included, is `icrc`.
    pub const fn new(payload_len: usize, icrc: [u8; Icrc::LEN]) -> Self {
        Self {
            pad: [0; 3],
            pad_count: pad_count(payload_len),
            icrc,
        }
    }

    /// As found in a packet. Of a longer pad, only three octets are kept.
    fn from_wire(pad: &[u8], icrc: [u8; Icrc::LEN]) -> Self {
        let mut trailer = Self::new(0, icrc);
        for (kept, octet) in trailer.pad.iter_mut().zip(pad) {
            *kept = *octet;
            trailer.pad_count += 1;
        }
        trailer
    }

    /// The pad, as received.
    pub fn pad(&self) -> &[u8] {
        &self.pad[..usize::from(self.pad_count)]
    }

    /// Writes the trailer.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.bytes(self.pad());
        writer.bytes(&self.icrc);
    }

    /// Length of this trailer on the wire.
    pub const fn trailer_len(&self) -> usize {
        self.pad_count as usize + Icrc::LEN
    }
}

impl fmt::Display for Trailer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let icrc = u32::from_le_bytes(self.icrc);
        write!(f, "pad {}, ICRC {icrc:#010x}", self.pad_count)
    }
}
