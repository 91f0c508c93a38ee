//! Either header, as the control word says.

use std::fmt;

use crate::codec::{Malformed, Reader, Writer};
use crate::ddp::{Control, TaggedHeader, UntaggedHeader};

/// The header of a DDP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DdpHeader {
    /// Of a tagged segment.
    Tagged(TaggedHeader),
    /// Of an untagged segment.
    Untagged(UntaggedHeader),
}

impl DdpHeader {
    /// Length of the longer of the two.
    pub const MAX_LEN: usize = UntaggedHeader::LEN;

    /// Length of the header that starts with this control word, which included.
    pub const fn len_of(control: Control) -> usize {
        if control.is_tagged() {
            TaggedHeader::LEN
        } else {
            UntaggedHeader::LEN
        }
    }

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let control = Control::parse(&mut reader.clone())?;
        if control.is_tagged() {
            TaggedHeader::parse(reader).map(Self::Tagged)
        } else {
            UntaggedHeader::parse(reader).map(Self::Untagged)
        }
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Tagged(header) => header.emit(writer),
            Self::Untagged(header) => header.emit(writer),
        }
    }

    /// The control word.
    pub const fn control(&self) -> Control {
        match self {
            Self::Tagged(header) => header.control,
            Self::Untagged(header) => header.control,
        }
    }

    /// Length of this header on the wire.
    pub const fn header_len(&self) -> usize {
        match self {
            Self::Tagged(_) => TaggedHeader::LEN,
            Self::Untagged(_) => UntaggedHeader::LEN,
        }
    }
}

impl From<TaggedHeader> for DdpHeader {
    fn from(header: TaggedHeader) -> Self {
        Self::Tagged(header)
    }
}

impl From<UntaggedHeader> for DdpHeader {
    fn from(header: UntaggedHeader) -> Self {
        Self::Untagged(header)
    }
}

impl fmt::Display for DdpHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tagged(header) => header.fmt(f),
            Self::Untagged(header) => header.fmt(f),
        }
    }
}
