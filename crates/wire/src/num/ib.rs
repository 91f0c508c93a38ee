//! The numbers of the InfiniBand transport and of its connection management.

use std::fmt;

use super::{MASK_24, number};

/// Declares a number of fewer bits than the integer that holds it.
macro_rules! narrow_number {
    ($(#[$doc:meta])* $name:ident($inner:ty, $mask:expr), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name($inner);

        impl $name {
            /// From the low bits of `value`; the higher ones are dropped.
            pub const fn new(value: $inner) -> Self {
                Self(value & $mask)
            }

            /// The plain number.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $format, ")"), self.0)
            }
        }
    };
}

number! {
    /// Virtual address of a remote access: where in a memory region it starts (IBA vol 1 ch 9,
    /// RETH and AtomicETH).
    #[derive(PartialOrd, Ord)]
    VirtualAddress(u64), "{:#018x}"
}

impl VirtualAddress {
    /// The address `octets` further on, unless the 64-bit space wraps.
    #[must_use]
    pub const fn checked_add(self, octets: u64) -> Option<Self> {
        match self.0.checked_add(octets) {
            Some(address) => Some(Self(address)),
            None => None,
        }
    }
}

narrow_number! {
    /// Message sequence number of an acknowledge: how many messages a responder has completed,
    /// 24 bits that wrap, starting at 0 (IBA vol 1 ch 9, AETH).
    ///
    /// Not the [`Msn`](super::Msn) of DDP, which has 32 bits and starts at 1.
    Msn24(u32, MASK_24), "{}"
}

impl Msn24 {
    /// The number before any message was completed.
    pub const ZERO: Self = Self(0);

    /// The number after one more message; 0 follows 2²⁴ − 1.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }

    /// How many messages this number lies after `other`: −2²³ to 2²³ − 1.
    #[must_use]
    pub const fn distance_from(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

number! {
    /// Queue key: what a datagram must carry to be let into a queue pair (IBA vol 1 ch 10).
    Qkey(u32), "{:#010x}"
}

impl Qkey {
    /// The key of QP1, where management datagrams go (IBA vol 1 ch 9, QP1 rules).
    pub const GSI: Self = Self(0x8001_0000);

    /// The key of the queue pairs that the RDMA CM connects by datagrams (`RDMA_UDP_QKEY`).
    pub const RDMA_UDP: Self = Self(0x0123_4567);

    /// Whether only privileged consumers may send with this key (IBA vol 1 ch 10).
    pub const fn is_controlled(self) -> bool {
        self.0 >> 31 != 0
    }
}

number! {
    /// Partition key: which partition a packet belongs to (IBA vol 1 ch 10).
    Pkey(u16), "{:#06x}"
}

impl Pkey {
    /// Full membership in the default partition, the only key of RoCE ports without partitions.
    pub const DEFAULT: Self = Self(0xffff);

    /// The bit of full members.
    const FULL_MEMBER: u16 = 0x8000;

    /// Whether a holder of this key may talk to the partition's limited members too.
    pub const fn is_full_member(self) -> bool {
        self.0 & Self::FULL_MEMBER != 0
    }

    /// Whether holders of the two keys may talk to each other: the same partition, and not both
    /// limited members (IBA vol 1 ch 10, partition key matching).
    pub const fn matches(self, other: Self) -> bool {
        (self.0 ^ other.0) & !Self::FULL_MEMBER == 0
            && (self.is_full_member() || other.is_full_member())
    }
}

number! {
    /// Communication ID: one side's name for a connection, chosen by that side and echoed by the
    /// other (IBA vol 1 ch 12). Also the request ID of a service ID resolution.
    CommId(u32), "{:#010x}"
}

impl CommId {
    /// Stands where a side has no ID yet, as in the answer to a request that nobody listens for.
    pub const NONE: Self = Self(0);
}

number! {
    /// Service ID: what a connection request asks for, as a port does in TCP (IBA vol 1 ch 12).
    #[derive(PartialOrd, Ord)]
    ServiceId(u64), "{:#018x}"
}

number! {
    /// Transaction ID of a management datagram (IBA vol 1 ch 13); opaque to whoever echoes it.
    TransactionId(u64), "{:#018x}"
}

number! {
    /// Local identifier: the address of a port in an InfiniBand subnet. RoCE has none.
    Lid(u16), "{:#06x}"
}

impl Lid {
    /// The permissive LID, which stands where there is none, as in requests over RoCE.
    pub const PERMISSIVE: Self = Self(0xffff);
}

narrow_number! {
    /// End-to-end context number, of the reliable datagram service that nobody built.
    Eecn(u32, MASK_24), "{:#08x}"
}

narrow_number! {
    /// IPv6 flow label: 20 bits that name a flow to the network (IBA vol 1 ch 8, GRH).
    FlowLabel(u32, 0x000f_ffff), "{:#07x}"
}

/// Globally unique identifier (EUI-64) of a channel adapter.
///
/// The peers of a connection manager tell by it whether two connections are of the same adapter.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(u64);

impl Guid {
    /// From the plain number.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The plain number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Four groups of 16 bits, as the tools of rdma-core print it.
impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, octet) in self.0.to_be_bytes().into_iter().enumerate() {
            if index != 0 && index % 2 == 0 {
                f.write_str(":")?;
            }
            write!(f, "{octet:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

#[cfg(test)]
mod tests;
