//! The header of RDMA requests (IBA vol 1 ch 9, RETH).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::num::{Rkey, VirtualAddress};

/// RDMA extended transport header: which remote memory a message reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Where the memory starts.
    pub va: VirtualAddress,
    /// The key of its region. Not checked when the length is zero.
    pub rkey: Rkey,
    /// The octets of the whole message, not of the packet. At most 2³¹.
    pub dma_len: u32,
}

impl Reth {
    /// Length of the header.
    pub const LEN: usize = 16;

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            va: VirtualAddress::new(header.u64()?),
            rkey: Rkey::new(header.u32()?),
            dma_len: header.u32()?,
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u64(self.va.get());
        writer.u32(self.rkey.get());
        writer.u32(self.dma_len);
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} octets at VA {} R_Key {}",
            self.dma_len, self.va, self.rkey
        )
    }
}
