//! The network header that a datagram's receive buffer starts with (IBA vol 1 ch 8, GRH; annex
//! A17 for IPv4).
//!
//! A receiver of datagrams finds 40 octets before the payload. Over IPv6 they are the packet's
//! header; over IPv4 its header takes the last 20.

use std::fmt;
use std::net::Ipv4Addr;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::num::{FlowLabel, Gid};

/// The protocol number of UDP.
const PROTOCOL_UDP: u8 = 17;

/// Global route header, which is an IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// IPVer: 6. Four bits.
    pub ip_version: u8,
    /// TClass.
    pub traffic_class: u8,
    /// FlowLabel.
    pub flow_label: FlowLabel,
    /// PayLen: octets that follow this header; with RoCEv2, the UDP header is among them.
    pub payload_len: u16,
    /// NxtHdr: 17 (UDP) with RoCEv2.
    pub next_header: u8,
    /// HopLmt.
    pub hop_limit: u8,
    /// SGID: who sent the packet.
    pub sgid: Gid,
    /// DGID: whom it is for.
    pub dgid: Gid,
}

impl Grh {
    /// Length of the header.
    pub const LEN: usize = 40;

    /// The header of a RoCEv2 packet without traffic class and flow label.
    pub const fn new(sgid: Gid, dgid: Gid, payload_len: u16, hop_limit: u8) -> Self {
        Self {
            ip_version: 6,
            traffic_class: 0,
            flow_label: FlowLabel::new(0),
            payload_len,
            next_header: PROTOCOL_UDP,
            hop_limit,
            sgid,
            dgid,
        }
    }

    /// Reads the header. Any 40 octets are one.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        let first = header.u32()?;
        Ok(Self {
            ip_version: (first >> 28) as u8,
            traffic_class: (first >> 20 & 0xff) as u8,
            flow_label: FlowLabel::new(first),
            payload_len: header.u16()?,
            next_header: header.u8()?,
            hop_limit: header.u8()?,
            sgid: Gid::new(header.array()?),
            dgid: Gid::new(header.array()?),
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(
            u32::from(self.ip_version) << 28
                | u32::from(self.traffic_class) << 20
                | self.flow_label.get(),
        );
        writer.u16(self.payload_len);
        writer.u8(self.next_header);
        writer.u8(self.hop_limit);
        writer.bytes(&self.sgid.get());
        writer.bytes(&self.dgid.get());
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Grh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.sgid, self.dgid)
    }
}

/// An IPv4 header without options. Its checksum is computed, and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Type of service, which is the GRH's traffic class.
    pub tos: u8,
    /// Octets of the packet, this header included.
    pub total_len: u16,
    /// Identification.
    pub id: u16,
    /// Flags and fragment offset.
    pub fragment: u16,
    /// Time to live, which is the GRH's hop limit.
    pub ttl: u8,
    /// Protocol of what follows: 17 (UDP) with RoCEv2.
    pub protocol: u8,
    /// Who sent the packet.
    pub source: Ipv4Addr,
    /// Whom it is for.
    pub destination: Ipv4Addr,
}

impl Ipv4Header {
    /// Length of the header.
    pub const LEN: usize = 20;

    /// Version 4, five words of header.
    const VERSION_AND_LENGTH: u8 = 0x45;

    /// The header of a RoCEv2 packet as this workspace sends it: identification 0, do not
    /// fragment.
    pub const fn new(source: Ipv4Addr, destination: Ipv4Addr, total_len: u16, ttl: u8) -> Self {
        Self {
            tos: 0,
            total_len,
            id: 0,
            fragment: 0x4000,
            ttl,
            protocol: PROTOCOL_UDP,
            source,
            destination,
        }
    }

    /// Reads the header, if its checksum is right and it has no options.
    pub fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        let octets: [u8; Self::LEN] = reader.clone().array().ok()?;
        let mut fields = Reader::new(&octets);
        let version_and_length = fields.u8().ok()?;
        let header = Self {
            tos: fields.u8().ok()?,
            total_len: fields.u16().ok()?,
            id: fields.u16().ok()?,
            fragment: fields.u16().ok()?,
            ttl: fields.u8().ok()?,
            protocol: fields.u8().ok()?,
            source: {
                fields.u16().ok()?;
                fields.u32().ok()?.into()
            },
            destination: fields.u32().ok()?.into(),
        };
        if version_and_length != Self::VERSION_AND_LENGTH || header.to_bytes() != octets {
            return None;
        }
        reader.take(Self::LEN).ok()?;
        Some(header)
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.bytes(&self.to_bytes());
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut octets = codec::emitted(|writer| {
            writer.u8(Self::VERSION_AND_LENGTH);
            writer.u8(self.tos);
            writer.u16(self.total_len);
            writer.u16(self.id);
            writer.u16(self.fragment);
            writer.u8(self.ttl);
            writer.u8(self.protocol);
            writer.u16(0);
            writer.bytes(&self.source.octets());
            writer.bytes(&self.destination.octets());
        });
        let checksum = checksum(&octets);
        octets[10..12].copy_from_slice(&checksum.to_be_bytes());
        octets
    }
}

impl fmt::Display for Ipv4Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.source, self.destination)
    }
}

/// The Internet checksum (RFC 791 §3.1).
fn checksum(octets: &[u8; Ipv4Header::LEN]) -> u16 {
    let sum = octets
        .chunks_exact(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
        .fold(0, |sum: u32, word| sum + u32::from(word));
    // Ten words carry at most once more after the first fold.
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded + (folded >> 16)) & 0xffff) as u16)
}

/// The 40 octets before a datagram's payload in its receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrhArea {
    /// Twenty octets without meaning, then the packet's IPv4 header.
    V4(Ipv4Header),
    /// The packet's IPv6 header.
    V6(Grh),
}

impl GrhArea {
    /// Length of the area.
    pub const LEN: usize = Grh::LEN;

    /// Reads the area. It is told by the rule that the field's software uses: an IPv4 header with
    /// a right checksum in the second half is one.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let area = reader.take(Self::LEN)?;
        match Ipv4Header::parse(&mut Reader::new(&area[Self::LEN - Ipv4Header::LEN..])) {
            Some(header) => Ok(Self::V4(header)),
            None => Grh::parse(&mut Reader::new(area)).map(Self::V6),
        }
    }

    /// Writes the area; the octets without meaning are zeros.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        match self {
            Self::V4(header) => {
                writer.bytes(&[0; Self::LEN - Ipv4Header::LEN]);
                header.emit(writer);
            }
            Self::V6(header) => header.emit(writer),
        }
    }

    /// The octets of the area.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }

    /// Whether a packet that came was one of IPv4; any 40 octets are one of either.
    pub fn is_v4(octets: &[u8; Self::LEN]) -> bool {
        matches!(Self::parse(&mut Reader::new(octets)), Ok(Self::V4(_)))
    }

    /// The packet's source and destination.
    pub fn gids(&self) -> (Gid, Gid) {
        match self {
            Self::V4(header) => (header.source.into(), header.destination.into()),
            Self::V6(header) => (header.sgid, header.dgid),
        }
    }
}

impl fmt::Display for GrhArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(header) => header.fmt(f),
            Self::V6(header) => header.fmt(f),
        }
    }
}
