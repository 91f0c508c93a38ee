//! The header of an Atomic Request (RFC 7306 §5.2).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::num::{Stag, TaggedOffset};

/// Which atomic operation. Codes without a name here are kept as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicOp(u8);

impl AtomicOp {
    /// Fetch and add.
    pub const FETCH_ADD: Self = Self(0);
    /// Compare and swap.
    pub const CMP_SWAP: Self = Self(2);

    /// From the low four bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x0f)
    }

    /// The code.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for AtomicOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FETCH_ADD => f.write_str("FetchAdd"),
            Self::CMP_SWAP => f.write_str("CmpSwap"),
            Self(code) => write!(f, "atomic operation {code:#x}"),
        }
    }
}

/// Asks the peer to change 64 bits of its memory atomically and to return what they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicRequest {
    /// The operation.
    pub operation: AtomicOp,
    /// The 28 bits before the operation, in their places above the low four.
    pub reserved: u32,
    /// Returned in the response.
    pub request_id: u32,
    /// The responder's buffer.
    pub stag: Stag,
    /// Where in it the 64 bits are; a multiple of 8.
    pub to: TaggedOffset,
    /// What FetchAdd adds, or what CmpSwap stores.
    pub add_or_swap: u64,
    /// FetchAdd: bits whose carry is dropped, so that zero is a plain addition. CmpSwap: bits to
    /// store.
    pub add_or_swap_mask: u64,
    /// What CmpSwap compares with.
    pub compare: u64,
    /// Bits that CmpSwap compares.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// Length of the header.
    pub const LEN: usize = 52;

    /// An addition to all 64 bits as one number.
    pub const fn fetch_add(request_id: u32, stag: Stag, to: TaggedOffset, add: u64) -> Self {
        Self {
            operation: AtomicOp::FETCH_ADD,
            reserved: 0,
            request_id,
            stag,
            to,
            add_or_swap: add,
            add_or_swap_mask: 0,
            // Prescribed for FetchAdd, though it compares nothing (RFC 7306 §5.2).
            compare: 0,
            compare_mask: u64::MAX,
        }
    }

    /// A comparison and exchange of all 64 bits.
    pub const fn cmp_swap(
        request_id: u32,
        stag: Stag,
        to: TaggedOffset,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self {
            operation: AtomicOp::CMP_SWAP,
            reserved: 0,
            request_id,
            stag,
            to,
            add_or_swap: swap,
            add_or_swap_mask: u64::MAX,
            compare,
            compare_mask: u64::MAX,
        }
    }

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        let [first, second, third, last] = header.array()?;
        Ok(Self {
            operation: AtomicOp::new(last),
            reserved: u32::from_be_bytes([first, second, third, last & 0xf0]),
            request_id: header.u32()?,
            stag: Stag::new(header.u32()?),
            to: TaggedOffset::new(header.u64()?),
            add_or_swap: header.u64()?,
            add_or_swap_mask: header.u64()?,
            compare: header.u64()?,
            compare_mask: header.u64()?,
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.reserved & !0x0f | u32::from(self.operation.get()));
        writer.u32(self.request_id);
        writer.u32(self.stag.get());
        writer.u64(self.to.get());
        writer.u64(self.add_or_swap);
        writer.u64(self.add_or_swap_mask);
        writer.u64(self.compare);
        writer.u64(self.compare_mask);
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for AtomicRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} at STag {} TO {}",
            self.operation, self.request_id, self.stag, self.to
        )?;
        write!(
            f,
            ", data {:#x} mask {:#x}",
            self.add_or_swap, self.add_or_swap_mask
        )?;
        if self.operation == AtomicOp::CMP_SWAP {
            write!(
                f,
                ", compare {:#x} mask {:#x}",
                self.compare, self.compare_mask
            )?;
        }
        Ok(())
    }
}
