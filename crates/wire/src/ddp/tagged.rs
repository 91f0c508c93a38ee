//! The header of a tagged segment (RFC 5041 §4.2).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ddp::Control;
use crate::num::{Stag, TaggedOffset};
use crate::rdmap::Opcode;

/// Header of a segment that goes to a buffer named by the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaggedHeader {
    /// The control word; its T is set.
    pub control: Control,
    /// The buffer.
    pub stag: Stag,
    /// Where in it this segment's payload starts.
    pub to: TaggedOffset,
}

impl TaggedHeader {
    /// Length of the header, control word included.
    pub const LEN: usize = Control::LEN + 12;

    /// A header of the current versions.
    pub const fn new(opcode: Opcode, last: bool, stag: Stag, to: TaggedOffset) -> Self {
        Self {
            control: Control::tagged(opcode, last),
            stag,
            to,
        }
    }

    /// Reads the header; one with T clear is refused.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        let control = Control::parse(&mut header)?;
        if !control.is_tagged() {
            return Err(Malformed::DdpModel);
        }
        Ok(Self {
            control,
            stag: Stag::new(header.u32()?),
            to: TaggedOffset::new(header.u64()?),
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        debug_assert!(self.control.is_tagged());
        self.control.emit(writer);
        writer.u32(self.stag.get());
        writer.u64(self.to.get());
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for TaggedHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, STag {} TO {}", self.control, self.stag, self.to)
    }
}
