//! The control word: DDP's octet and RDMAP's octet (RFC 5041 §4.1, RFC 5040 §4.1).
//!
//! ```text
//!   15  14  13 12 11 10   9 8   7 6   5 4   3 2 1 0
//! | T | L |  reserved   | DV  | RV  | rsv | opcode  |
//! ```

use std::fmt;

use crate::codec::{Malformed, Reader, Writer};
use crate::rdmap::Opcode;

const TAGGED: u16 = 0x8000;
const LAST: u16 = 0x4000;
const DDP_VERSION_SHIFT: u32 = 8;
const RDMAP_VERSION_SHIFT: u32 = 6;
const VERSION: u16 = 0b11;
const OPCODE: u16 = 0x000f;
const RESERVED: u16 = 0x3c30;

/// The first two octets of a DDP segment, with every bit as received.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Control(u16);

impl Control {
    /// Length of the word.
    pub const LEN: usize = 2;

    /// The DDP version of RFC 5041.
    pub const DDP_VERSION: u8 = 1;

    /// The RDMAP version of RFC 5040.
    pub const RDMAP_VERSION: u8 = 1;

    /// The word of a tagged segment.
    pub const fn tagged(opcode: Opcode, last: bool) -> Self {
        Self::current(TAGGED, opcode, last)
    }

    /// The word of an untagged segment.
    pub const fn untagged(opcode: Opcode, last: bool) -> Self {
        Self::current(0, opcode, last)
    }

    const fn current(model: u16, opcode: Opcode, last: bool) -> Self {
        let versions = (Self::DDP_VERSION as u16) << DDP_VERSION_SHIFT
            | (Self::RDMAP_VERSION as u16) << RDMAP_VERSION_SHIFT;
        let last = if last { LAST } else { 0 };
        Self(model | last | versions | (opcode.get() as u16 & OPCODE))
    }

    /// From the bits on the wire.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The bits on the wire.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Reads the word. Any 16 bits are one.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.u16().map(Self)
    }

    /// Writes the word.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u16(self.0);
    }

    /// T: whether the segment is tagged.
    pub const fn is_tagged(self) -> bool {
        self.0 & TAGGED != 0
    }

    /// L: whether the segment is the last of its message.
    pub const fn is_last(self) -> bool {
        self.0 & LAST != 0
    }

    /// The same word with another L.
    #[must_use]
    pub const fn with_last(self, last: bool) -> Self {
        Self(self.0 & !LAST | if last { LAST } else { 0 })
    }

    /// DV: the DDP version.
    pub const fn ddp_version(self) -> u8 {
        (self.0 >> DDP_VERSION_SHIFT & VERSION) as u8
    }

    /// RV: the RDMAP version.
    pub const fn rdmap_version(self) -> u8 {
        (self.0 >> RDMAP_VERSION_SHIFT & VERSION) as u8
    }

    /// The RDMAP operation.
    pub const fn opcode(self) -> Opcode {
        Opcode::new((self.0 & OPCODE) as u8)
    }

    /// The reserved bits, in their places.
    pub const fn reserved(self) -> u16 {
        self.0 & RESERVED
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.opcode())?;
        if self.is_last() {
            f.write_str(" last")?;
        }
        if self.ddp_version() != Self::DDP_VERSION {
            write!(f, " DV {}", self.ddp_version())?;
        }
        if self.rdmap_version() != Self::RDMAP_VERSION {
            write!(f, " RV {}", self.rdmap_version())?;
        }
        if self.reserved() != 0 {
            write!(f, " reserved {:#06x}", self.reserved())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Control({:#06x})", self.0)
    }
}
