//! Immediate data (IBA vol 1 ch 9, ImmDt).

use std::fmt;

use crate::codec::{Malformed, Reader, Writer};

/// Four octets that reach the receiver's completion. The transport does not interpret them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImmDt(pub [u8; Self::LEN]);

impl ImmDt {
    /// Length of the data.
    pub const LEN: usize = 4;

    /// Reads the data.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.array().map(Self)
    }

    /// Writes the data.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.bytes(&self.0);
    }

    /// The octets of the data.
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        self.0
    }
}

impl fmt::Display for ImmDt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "immediate {:#010x}", u32::from_be_bytes(self.0))
    }
}
