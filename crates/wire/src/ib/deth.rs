//! The header of datagrams (IBA vol 1 ch 9, DETH).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::num::{Qkey, Qpn};

/// Datagram extended transport header: who sent it, and the key that lets it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The key, which must be that of the destination's queue pair.
    pub qkey: Qkey,
    /// The octet before the source queue pair.
    pub reserved: u8,
    /// The queue pair that sent the datagram, where an answer goes.
    pub src_qp: Qpn,
}

impl Deth {
    /// Length of the header.
    pub const LEN: usize = 8;

    /// A header without reserved bits.
    pub const fn new(qkey: Qkey, src_qp: Qpn) -> Self {
        Self {
            qkey,
            reserved: 0,
            src_qp,
        }
    }

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            qkey: Qkey::new(header.u32()?),
            reserved: header.u8()?,
            src_qp: Qpn::new(header.u24()?),
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.qkey.get());
        writer.u8(self.reserved);
        writer.u24(self.src_qp.get());
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Deth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from QP {} Q_Key {}", self.src_qp, self.qkey)
    }
}
