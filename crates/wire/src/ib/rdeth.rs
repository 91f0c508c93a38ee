//! The header of reliable datagrams (IBA vol 1 ch 9, RDETH), so that the table of opcodes is
//! complete.

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::num::Eecn;

/// Reliable datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rdeth {
    /// The octet before the number.
    pub reserved: u8,
    /// The end-to-end context that the packet is for.
    pub eec: Eecn,
}

impl Rdeth {
    /// Length of the header.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            reserved: header.u8()?,
            eec: Eecn::new(header.u24()?),
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u8(self.reserved);
        writer.u24(self.eec.get());
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Rdeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EE context {}", self.eec)
    }
}
