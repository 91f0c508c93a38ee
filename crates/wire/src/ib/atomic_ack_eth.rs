//! The header of answers to atomic requests (IBA vol 1 ch 9, AtomicAckETH).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};

/// Atomic ACK extended transport header: the result of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// What the 64 bits were before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Length of the header.
    pub const LEN: usize = 8;

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            original: reader.u64()?,
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u64(self.original);
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for AtomicAckEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "was {:#x}", self.original)
    }
}
