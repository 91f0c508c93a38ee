//! The header of an RDMA Read Request (RFC 5040 §4.4).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::num::{Stag, TaggedOffset};

/// Asks the peer to send memory of its own (the source) into a buffer of the requester (the sink).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadRequest {
    /// The requester's buffer.
    pub sink_stag: Stag,
    /// Where in it the data goes.
    pub sink_to: TaggedOffset,
    /// Octets to read.
    pub size: u32,
    /// The responder's buffer.
    pub source_stag: Stag,
    /// Where in it the data comes from.
    pub source_to: TaggedOffset,
}

impl ReadRequest {
    /// Length of the header.
    pub const LEN: usize = 28;

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            sink_stag: Stag::new(header.u32()?),
            sink_to: TaggedOffset::new(header.u64()?),
            size: header.u32()?,
            source_stag: Stag::new(header.u32()?),
            source_to: TaggedOffset::new(header.u64()?),
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.sink_stag.get());
        writer.u64(self.sink_to.get());
        writer.u32(self.size);
        writer.u32(self.source_stag.get());
        writer.u64(self.source_to.get());
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for ReadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} octets from STag {} TO {} to STag {} TO {}",
            self.size, self.source_stag, self.source_to, self.sink_stag, self.sink_to
        )
    }
}
