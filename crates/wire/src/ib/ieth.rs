//! The header of SENDs that invalidate (IBA vol 1 ch 9, IETH).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::num::Rkey;

/// Invalidate extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// The key that the receiver invalidates, one of its own.
    pub rkey: Rkey,
}

impl Ieth {
    /// Length of the header.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            rkey: Rkey::new(reader.u32()?),
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.rkey.get());
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Ieth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalidates R_Key {}", self.rkey)
    }
}
