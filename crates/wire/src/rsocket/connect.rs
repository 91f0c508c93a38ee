//! The private data of a connection.

use std::fmt;

use super::memory::{ByteOrder, RemoteBuffer};
use crate::codec::{self, Malformed, Reader, Writer};

const FLAG_NETWORK_ORDER: u8 = 1 << 0;
const FLAG_IOMAP: u8 = 1 << 1;

/// What both ends tell each other when a stream is set up: in the request and in the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// Version of the protocol: 1.
    pub version: u8,
    /// Flags; see [`order`](Self::order) and [`has_iomap`](Self::has_iomap).
    pub flags: u8,
    /// Messages that the sender of this can take before it gives more credits.
    pub credits: u16,
    /// Not used.
    pub reserved: [u8; 3],
    /// How many regions may be mapped for the sender of this.
    pub iomap_size: IomapSize,
    /// Where it wants to be told of new receive windows: `length` counts entries. Behind them is
    /// its table of mapped regions.
    pub target_list: RemoteBuffer,
    /// The first window of its receive buffer.
    pub window: RemoteBuffer,
}

impl ConnectData {
    /// Length of the data.
    pub const LEN: usize = 8 + 2 * RemoteBuffer::LEN;
    /// The version described here.
    pub const VERSION: u8 = 1;

    /// Version 1 of an end that keeps numbers in `order`, and has a table of mapped regions
    /// behind its target list.
    pub const fn new(order: ByteOrder) -> Self {
        const NONE: RemoteBuffer = RemoteBuffer {
            addr: 0,
            rkey: crate::num::Rkey::new(0),
            length: 0,
        };
        Self {
            version: Self::VERSION,
            flags: match order {
                ByteOrder::Little => FLAG_IOMAP,
                ByteOrder::Big => FLAG_IOMAP | FLAG_NETWORK_ORDER,
            },
            credits: 0,
            reserved: [0; 3],
            iomap_size: IomapSize::new(0),
            target_list: NONE,
            window: NONE,
        }
    }

    /// The order of numbers in the memory of the sender of this, and in its messages.
    pub const fn order(&self) -> ByteOrder {
        if self.flags & FLAG_NETWORK_ORDER == 0 {
            ByteOrder::Little
        } else {
            ByteOrder::Big
        }
    }

    /// Whether it has a table of mapped regions.
    pub const fn has_iomap(&self) -> bool {
        self.flags & FLAG_IOMAP != 0
    }

    /// Reads the data.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut data = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            version: data.u8()?,
            flags: data.u8()?,
            credits: data.u16()?,
            reserved: data.array()?,
            iomap_size: IomapSize::new(data.u8()?),
            target_list: RemoteBuffer::parse(&mut data, ByteOrder::Big)?,
            window: RemoteBuffer::parse(&mut data, ByteOrder::Big)?,
        })
    }

    /// Writes the data.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u8(self.version);
        writer.u8(self.flags);
        writer.u16(self.credits);
        writer.bytes(&self.reserved);
        writer.u8(self.iomap_size.get());
        self.target_list.emit(writer, ByteOrder::Big);
        self.window.emit(writer, ByteOrder::Big);
    }

    /// The octets of the data.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for ConnectData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rsockets version {} flags {:#04x} credits {} iomaps {} target list {} window {}",
            self.version,
            self.flags,
            self.credits,
            self.iomap_size.entries(),
            self.target_list,
            self.window
        )
    }
}

/// A number of mapped regions in eight bits: exact up to 128, in steps of 256 above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IomapSize(u8);

impl IomapSize {
    const EXACT: u16 = 1 << 7;

    /// From the octet.
    pub const fn new(octet: u8) -> Self {
        Self(octet)
    }

    /// The octet.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The most entries, up to `entries`, that can be expressed.
    pub const fn at_most(entries: u16) -> Self {
        if entries <= Self::EXACT {
            return Self(entries.to_le_bytes()[0]);
        }
        let steps = entries >> 8;
        if steps == 0 {
            return Self(Self::EXACT.to_le_bytes()[0]);
        }
        let steps = if steps > 0x7f { 0x7f } else { steps };
        Self((Self::EXACT | steps).to_le_bytes()[0])
    }

    /// The number of entries.
    pub const fn entries(self) -> u16 {
        if self.0 <= 1 << 7 {
            self.0 as u16
        } else {
            ((self.0 & 0x7f) as u16) << 8
        }
    }
}
