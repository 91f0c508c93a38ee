//! The header of FLUSH requests (IBA vol 1 release 1.5 ch 9, FETH).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};

const GLOBAL_VISIBILITY: u32 = 0x01;
const PERSISTENCE: u32 = 0x02;
const SELECTIVITY_SHIFT: u32 = 4;
const SELECTIVITY: u32 = 0x03;

/// FLUSH extended transport header, with every bit as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth(u32);

impl Feth {
    /// Length of the header.
    pub const LEN: usize = 4;

    /// From the bits on the wire.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits on the wire.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// PLT: earlier writes become visible to all who can reach the memory.
    pub const fn global_visibility(self) -> bool {
        self.0 & GLOBAL_VISIBILITY != 0
    }

    /// PLT: earlier writes become persistent.
    pub const fn persistence(self) -> bool {
        self.0 & PERSISTENCE != 0
    }

    /// SEL: what is flushed: 0 a range, 1 the whole region. Two bits.
    pub const fn selectivity(self) -> u8 {
        (self.0 >> SELECTIVITY_SHIFT & SELECTIVITY) as u8
    }

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.u32().map(Self)
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.0);
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Feth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FLUSH type {:#010x}", self.0)
    }
}
