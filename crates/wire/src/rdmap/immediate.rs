//! The payload of an Immediate Data message (RFC 7306 §6).

use std::fmt;

use crate::codec::{Malformed, Reader, Writer};

/// Eight octets that reach the receiver's completion. RDMAP does not interpret them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImmediateData(pub [u8; Self::LEN]);

impl ImmediateData {
    /// Length of the data.
    pub const LEN: usize = 8;

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

impl fmt::Display for ImmediateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", u64::from_be_bytes(self.0))
    }
}
