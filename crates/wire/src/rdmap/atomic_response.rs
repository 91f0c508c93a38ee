//! The header of an Atomic Response (RFC 7306 §5.2, Figure 6).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};

/// Returns what the memory held before an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// Identifier of the request that this answers.
    pub request_id: u32,
    /// The value before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Length of the header.
    pub const LEN: usize = 12;

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            request_id: header.u32()?,
            original: header.u64()?,
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.request_id);
        writer.u64(self.original);
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for AtomicResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "answer to atomic {}: {:#x}",
            self.request_id, self.original
        )
    }
}
