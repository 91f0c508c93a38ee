//! What one end writes into the memory of the other.

use std::fmt;

use crate::codec::{Malformed, Reader, Writer};
use crate::num::Rkey;

/// The order of octets in numbers that do not travel in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant octet first.
    #[default]
    Little,
    /// Network order.
    Big,
}

impl ByteOrder {
    /// Four octets as a number.
    pub const fn u32(self, octets: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(octets),
            Self::Big => u32::from_be_bytes(octets),
        }
    }

    /// A number as four octets.
    pub const fn u32_bytes(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    const fn u64(self, octets: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(octets),
            Self::Big => u64::from_be_bytes(octets),
        }
    }

    const fn u64_bytes(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// A piece of the peer's memory (`struct rs_sge` of librdmacm).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// Its first address.
    pub addr: u64,
    /// The key to it.
    pub rkey: Rkey,
    /// Octets; of a list of entries the number of entries.
    pub length: u32,
}

impl RemoteBuffer {
    /// Length of an entry.
    pub const LEN: usize = 16;

    /// Reads an entry.
    pub fn parse(reader: &mut Reader<'_>, order: ByteOrder) -> Result<Self, Malformed> {
        let mut entry = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            addr: order.u64(entry.array()?),
            rkey: Rkey::new(order.u32(entry.array()?)),
            length: order.u32(entry.array()?),
        })
    }

    /// Writes an entry.
    pub fn emit(&self, writer: &mut Writer<'_>, order: ByteOrder) {
        writer.bytes(&order.u64_bytes(self.addr));
        writer.bytes(&order.u32_bytes(self.rkey.get()));
        writer.bytes(&order.u32_bytes(self.length));
    }

    /// The octets of an entry.
    pub fn to_bytes(&self, order: ByteOrder) -> [u8; Self::LEN] {
        crate::codec::emitted(|writer| self.emit(writer, order))
    }
}

impl fmt::Display for RemoteBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x} key {}", self.length, self.addr, self.rkey)
    }
}

/// A region that one end has mapped for the other to write into (`struct rs_iomap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IomapEntry {
    /// The offset that names its first octet.
    pub offset: u64,
    /// Where it is.
    pub buffer: RemoteBuffer,
}

impl IomapEntry {
    /// Length of an entry.
    pub const LEN: usize = 8 + RemoteBuffer::LEN;

    /// Reads an entry.
    pub fn parse(reader: &mut Reader<'_>, order: ByteOrder) -> Result<Self, Malformed> {
        let mut entry = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            offset: order.u64(entry.array()?),
            buffer: RemoteBuffer::parse(&mut entry, order)?,
        })
    }

    /// Writes an entry.
    pub fn emit(&self, writer: &mut Writer<'_>, order: ByteOrder) {
        writer.bytes(&order.u64_bytes(self.offset));
        self.buffer.emit(writer, order);
    }

    /// The octets of an entry.
    pub fn to_bytes(&self, order: ByteOrder) -> [u8; Self::LEN] {
        crate::codec::emitted(|writer| self.emit(writer, order))
    }
}

impl fmt::Display for IomapEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {:#x}: {}", self.offset, self.buffer)
    }
}
