//! Headers of datagrams.
//!
//! A datagram socket has a UDP socket, whose address it has, and a UD queue pair for each local
//! address that it sends from. The first datagram to an address goes over UDP, behind a
//! [`ProbeHeader`] that says where the sender's queue pair is; the receiver answers with one of
//! its own, and from then on datagrams go to the queue pair, behind a [`DatagramHeader`].

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::codec::{Malformed, Reader, Writer};
use crate::num::Qpn;

const VERSION_4: u8 = 4;
const VERSION_6: u8 = 6;

/// In front of every datagram between queue pairs: the address of the socket that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// Who sent it; the scope of an IPv6 address does not travel.
    pub source: SocketAddr,
}

impl DatagramHeader {
    const LEN_V4: usize = 8;
    const LEN_V6: usize = 24;
    /// The longest header.
    pub const MAX_LEN: usize = Self::LEN_V6;

    /// Octets of this header.
    pub const fn len(&self) -> usize {
        match self.source {
            SocketAddr::V4(_) => Self::LEN_V4,
            SocketAddr::V6(_) => Self::LEN_V6,
        }
    }

    /// Never.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Reads the header. `Ok(None)`: its version or its length is none that there is.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Option<Self>, Malformed> {
        let (version, length, port) = (reader.u8()?, reader.u8()?, reader.u16()?);
        let source = match (version, usize::from(length)) {
            (VERSION_4, Self::LEN_V4) => {
                SocketAddr::from((Ipv4Addr::from(reader.array::<4>()?), port))
            }
            (VERSION_6, Self::LEN_V6) => {
                let flowinfo = reader.u32()?;
                let address = Ipv6Addr::from(reader.array::<16>()?);
                SocketAddrV6::new(address, port, flowinfo, 0).into()
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { source }))
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        let (version, length) = match self.source {
            SocketAddr::V4(_) => (VERSION_4, Self::LEN_V4),
            SocketAddr::V6(_) => (VERSION_6, Self::LEN_V6),
        };
        writer.u8(version);
        writer.u8(length.to_le_bytes()[0]);
        writer.u16(self.source.port());
        match self.source {
            SocketAddr::V4(source) => writer.bytes(&source.ip().octets()),
            SocketAddr::V6(source) => {
                writer.u32(source.flowinfo());
                writer.bytes(&source.ip().octets());
            }
        }
    }
}

impl fmt::Display for DatagramHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "datagram from {}", self.source)
    }
}

/// What a [`ProbeHeader`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramOp {
    /// A datagram is behind it; an answer is wanted.
    Data,
    /// An answer.
    Control,
    /// A value that nobody sends.
    Other(u8),
}

/// In front of a datagram that travels over UDP: where the sender's queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeHeader {
    /// What it is for.
    pub op: DatagramOp,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The address of the sender's queue pair.
    pub address: IpAddr,
}

impl ProbeHeader {
    const TAG: u32 = 0x5555_5555;
    const OP_DATA: u8 = 0;
    const OP_CONTROL: u8 = 7;
    const LEN_V4: usize = 16;
    const LEN_V6: usize = 28;
    /// The longest header.
    pub const MAX_LEN: usize = Self::LEN_V6;

    /// Octets of this header.
    pub const fn len(&self) -> usize {
        match self.address {
            IpAddr::V4(_) => Self::LEN_V4,
            IpAddr::V6(_) => Self::LEN_V6,
        }
    }

    /// Never.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Reads the header. `Ok(None)`: its tag, version or length is none that there is, so it is
    /// something else that came to the port.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Option<Self>, Malformed> {
        let tag = reader.u32()?;
        let (version, op, length, _reserved) =
            (reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?);
        let qpn = Qpn::new(reader.u32()? & 0x00ff_ffff);
        if tag != Self::TAG {
            return Ok(None);
        }
        let address = match (version, usize::from(length)) {
            (VERSION_4, Self::LEN_V4) => Ipv4Addr::from(reader.array::<4>()?).into(),
            (VERSION_6, Self::LEN_V6) => Ipv6Addr::from(reader.array::<16>()?).into(),
            _ => return Ok(None),
        };
        let op = match op {
            Self::OP_DATA => DatagramOp::Data,
            Self::OP_CONTROL => DatagramOp::Control,
            other => DatagramOp::Other(other),
        };
        Ok(Some(Self { op, qpn, address }))
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(Self::TAG);
        writer.u8(match self.address {
            IpAddr::V4(_) => VERSION_4,
            IpAddr::V6(_) => VERSION_6,
        });
        writer.u8(match self.op {
            DatagramOp::Data => Self::OP_DATA,
            DatagramOp::Control => Self::OP_CONTROL,
            DatagramOp::Other(other) => other,
        });
        writer.u8(self.len().to_le_bytes()[0]);
        writer.u8(0);
        writer.u32(self.qpn.get());
        match self.address {
            IpAddr::V4(address) => writer.bytes(&address.octets()),
            IpAddr::V6(address) => writer.bytes(&address.octets()),
        }
    }
}

impl fmt::Display for ProbeHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.op {
            DatagramOp::Data => "data".to_owned(),
            DatagramOp::Control => "answer".to_owned(),
            DatagramOp::Other(other) => format!("op {other}"),
        };
        write!(f, "{what} from QP {} at {}", self.qpn, self.address)
    }
}
