//! Numbers with types, so that a queue number is never passed as a sequence number.
//!
//! The names are those of the RFCs and of the InfiniBand architecture. `new` and `get` convert
//! from and to the plain number; [`Display`](fmt::Display) uses the notation that tools of the
//! field print.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

mod ib;
mod mtu;
mod retry;
mod timeout;

pub use ib::{
    CommId, Eecn, FlowLabel, Guid, Lid, Msn24, Pkey, Qkey, ServiceId, TransactionId, VirtualAddress,
};
pub use mtu::{MtuCode, PathMtu};
pub use retry::RetryCount;
pub use timeout::{RnrTimer, TimeoutCode};

/// Declares a number type: what it is, the integer inside, how it prints.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name($inner);

        impl $name {
            /// From the plain number.
            pub const fn new(value: $inner) -> Self {
                Self(value)
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
use number;

number! {
    /// Message sequence number of an untagged DDP queue (RFC 5041 §4.3).
    ///
    /// It wraps, hence it has no order.
    Msn(u32), "{}"
}

impl Msn {
    /// The first message of every queue (RFC 5041 §4.3).
    pub const FIRST: Self = Self(1);

    /// The message after this one; 0 follows 2³² − 1.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

number! {
    /// Steering tag: names a tagged buffer (RFC 5041 §4.2). Opaque to everyone but its owner.
    Stag(u32), "{:#010x}"
}

number! {
    /// Remote key of a memory region, the verbs' name for a [`Stag`].
    Rkey(u32), "{:#010x}"
}

number! {
    /// Local key of a memory region.
    Lkey(u32), "{:#010x}"
}

impl From<Rkey> for Stag {
    fn from(key: Rkey) -> Self {
        Self(key.0)
    }
}

impl From<Stag> for Rkey {
    fn from(stag: Stag) -> Self {
        Self(stag.0)
    }
}

number! {
    /// Number of an untagged DDP queue (RFC 5041 §4.3).
    QueueNumber(u32), "{}"
}

impl QueueNumber {
    /// Sends of every kind, and immediate data (RFC 5040 §5.1, RFC 7306 §6).
    pub const SEND: Self = Self(0);
    /// Read requests and atomic requests.
    pub const READ_REQUEST: Self = Self(1);
    /// The terminate message.
    pub const TERMINATE: Self = Self(2);
    /// Atomic responses (RFC 7306 §5).
    pub const ATOMIC_RESPONSE: Self = Self(3);
}

number! {
    /// Tagged offset: an octet inside a tagged buffer (RFC 5041 §4.2).
    #[derive(PartialOrd, Ord)]
    TaggedOffset(u64), "{:#x}"
}

impl TaggedOffset {
    /// The offset `octets` further on, unless the 64-bit space wraps, which is an error (RFC 5041 §7).
    #[must_use]
    pub const fn checked_add(self, octets: u64) -> Option<Self> {
        match self.0.checked_add(octets) {
            Some(offset) => Some(Self(offset)),
            None => None,
        }
    }
}

number! {
    /// Octet offset of a segment inside its untagged message (RFC 5041 §4.3).
    #[derive(PartialOrd, Ord)]
    MessageOffset(u32), "{}"
}

impl MessageOffset {
    /// The start of a message.
    pub const ZERO: Self = Self(0);

    /// The offset `octets` further on, unless the message would pass 2³² − 1 octets.
    #[must_use]
    pub const fn checked_add(self, octets: u32) -> Option<Self> {
        match self.0.checked_add(octets) {
            Some(offset) => Some(Self(offset)),
            None => None,
        }
    }
}

/// The bits of a queue pair number or a packet sequence number.
const MASK_24: u32 = 0x00ff_ffff;

/// Queue pair number: 24 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The queue pair of general services: connection management and the like.
    pub const GSI: Self = Self(1);
    /// Stands for all members of a multicast group.
    pub const MULTICAST: Self = Self(MASK_24);

    /// From the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The plain number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({self})")
    }
}

/// Packet sequence number of an InfiniBand transport: 24 bits that wrap.
///
/// Half of the circle lies before a number and half after it, so there is no total order; compare
/// with [`distance_from`](Self::distance_from) or [`is_before`](Self::is_before).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// From the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The plain number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        self.advance(1)
    }

    /// The number `packets` after this one.
    #[must_use]
    pub const fn advance(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// How many packets this number lies after `other`: −2²³ to 2²³ − 1.
    #[must_use]
    pub const fn distance_from(self, other: Self) -> i32 {
        // The difference is moved to the top of the word for its sign, and back.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }

    /// Whether this number lies in the half circle before `other`.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({self})")
    }
}

/// Global identifier: the 128-bit address of a port. Here always an IP address, IPv4 in its
/// mapped form `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid([u8; 16]);

impl Gid {
    /// From its octets in network order.
    pub const fn new(octets: [u8; 16]) -> Self {
        Self(octets)
    }

    /// Its octets in network order.
    pub const fn get(self) -> [u8; 16] {
        self.0
    }

    /// The IP address it stands for; a mapped one becomes IPv4 again.
    pub const fn to_ip(self) -> IpAddr {
        Ipv6Addr::from_octets(self.0).to_canonical()
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from_octets(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn msn_wraps() {
        assert_eq!(Msn::FIRST.get(), 1);
        assert_eq!(Msn::new(u32::MAX).next(), Msn::new(0));
    }

    #[test]
    fn offsets_do_not_wrap() {
        assert_eq!(TaggedOffset::new(u64::MAX).checked_add(1), None);
        assert_eq!(
            TaggedOffset::new(7).checked_add(1),
            Some(TaggedOffset::new(8))
        );
        assert_eq!(MessageOffset::new(u32::MAX).checked_add(1), None);
        assert_eq!(
            MessageOffset::ZERO.checked_add(3),
            Some(MessageOffset::new(3))
        );
    }

    #[test]
    fn psn_compares_around_the_wrap() {
        let last = Psn::new(0x00ff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert!(last.is_before(Psn::new(0)));
        assert!(!Psn::new(0).is_before(last));
        assert_eq!(Psn::new(2).distance_from(last), 3);
        assert_eq!(last.distance_from(Psn::new(2)), -3);
        assert_eq!(
            Psn::new(0x0080_0000).distance_from(Psn::new(0)),
            -0x0080_0000
        );
        assert_eq!(
            Psn::new(0x007f_ffff).distance_from(Psn::new(0)),
            0x007f_ffff
        );
        assert_eq!(Psn::new(0x0100_0005).get(), 5);
    }

    #[test]
    fn gid_is_an_ip_address() {
        let v4: IpAddr = "10.77.0.3".parse().unwrap();
        let gid = Gid::from(v4);
        assert_eq!(gid.get()[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(gid.to_string(), "::ffff:10.77.0.3");
        assert_eq!(gid.to_ip(), v4);
        let v6: IpAddr = "fd00::3".parse().unwrap();
        assert_eq!(Gid::from(v6).to_ip(), v6);
        assert_eq!(Gid::from(v6).to_string(), "fd00::3");
    }

    #[test]
    fn keys_convert() {
        assert_eq!(Stag::from(Rkey::new(0x1234)), Stag::new(0x1234));
        assert_eq!(Rkey::from(Stag::new(0x1234)), Rkey::new(0x1234));
    }

    #[test]
    fn they_print_as_the_field_does() {
        assert_eq!(Stag::new(0x1f00).to_string(), "0x00001f00");
        assert_eq!(format!("{:?}", Stag::new(0x1f00)), "Stag(0x00001f00)");
        assert_eq!(format!("{:?}", Msn::new(16)), "Msn(16)");
        assert_eq!(Qpn::new(0x11).to_string(), "0x000011");
        assert_eq!(format!("{:?}", Psn::new(0xabc)), "Psn(0x000abc)");
        assert_eq!(TaggedOffset::new(0x10).to_string(), "0x10");
    }
}
