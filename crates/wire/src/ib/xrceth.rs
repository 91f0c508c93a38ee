//! The header of extended reliable connections (IBA annex A14, XRCETH), so that the table of
//! opcodes is complete.

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::num::Qpn;

/// XRC extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xrceth {
    /// The octet before the number.
    pub reserved: u8,
    /// The shared receive queue that the message is for.
    pub srq: Qpn,
}

impl Xrceth {
    /// Length of the header.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            reserved: header.u8()?,
            srq: Qpn::new(header.u24()?),
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u8(self.reserved);
        writer.u24(self.srq.get());
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Xrceth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XRC SRQ {}", self.srq)
    }
}
