//! The header of atomic requests (IBA vol 1 ch 9, AtomicETH).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::num::{Rkey, VirtualAddress};

/// Atomic extended transport header: which 64 bits of remote memory to change, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Where the 64 bits are; a multiple of 8.
    pub va: VirtualAddress,
    /// The key of their region.
    pub rkey: Rkey,
    /// What CmpSwap stores, or what FetchAdd adds.
    pub swap_or_add: u64,
    /// What CmpSwap compares with; FetchAdd ignores it.
    pub compare: u64,
}

impl AtomicEth {
    /// Length of the header.
    pub const LEN: usize = 28;

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            va: VirtualAddress::new(header.u64()?),
            rkey: Rkey::new(header.u32()?),
            swap_or_add: header.u64()?,
            compare: header.u64()?,
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u64(self.va.get());
        writer.u32(self.rkey.get());
        writer.u64(self.swap_or_add);
        writer.u64(self.compare);
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for AtomicEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "VA {} R_Key {} swap or add {:#x} compare {:#x}",
            self.va, self.rkey, self.swap_or_add, self.compare
        )
    }
}
