//! How much payload a packet may carry.

use std::fmt;

/// Path MTU: the most payload that one packet of a path carries, headers not counted (IBA vol 1
/// ch 9). Each is twice the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMtu {
    /// 256 octets.
    Mtu256,
    /// 512 octets.
    Mtu512,
    /// 1024 octets.
    Mtu1024,
    /// 2048 octets.
    Mtu2048,
    /// 4096 octets.
    Mtu4096,
}

impl PathMtu {
    /// All of them, from the least.
    pub const ALL: [Self; 5] = [
        Self::Mtu256,
        Self::Mtu512,
        Self::Mtu1024,
        Self::Mtu2048,
        Self::Mtu4096,
    ];

    /// The octets.
    pub const fn octets(self) -> usize {
        match self {
            Self::Mtu256 => 256,
            Self::Mtu512 => 512,
            Self::Mtu1024 => 1024,
            Self::Mtu2048 => 2048,
            Self::Mtu4096 => 4096,
        }
    }

    /// The largest that is not more than `octets`, if 256 fit.
    pub const fn largest_within(octets: usize) -> Option<Self> {
        Some(match octets {
            0..=255 => return None,
            256..=511 => Self::Mtu256,
            512..=1023 => Self::Mtu512,
            1024..=2047 => Self::Mtu1024,
            2048..=4095 => Self::Mtu2048,
            _ => Self::Mtu4096,
        })
    }

    /// The number that stands for it on the wire and in the verbs.
    pub const fn code(self) -> MtuCode {
        MtuCode(match self {
            Self::Mtu256 => 1,
            Self::Mtu512 => 2,
            Self::Mtu1024 => 3,
            Self::Mtu2048 => 4,
            Self::Mtu4096 => 5,
        })
    }

    /// How many packets a message of `octets` takes: at least one.
    pub const fn packets(self, octets: u32) -> u32 {
        match octets {
            0 => 1,
            _ => octets.div_ceil(match self {
                Self::Mtu256 => 256,
                Self::Mtu512 => 512,
                Self::Mtu1024 => 1024,
                Self::Mtu2048 => 2048,
                Self::Mtu4096 => 4096,
            }),
        }
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.octets().fmt(f)
    }
}

/// The 4 bits that stand for a [`PathMtu`] in a connection request. Codes without a meaning are
/// kept as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MtuCode(u8);

impl MtuCode {
    /// From the low four bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x0f)
    }

    /// The code.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// What it stands for, if anything.
    pub const fn path_mtu(self) -> Option<PathMtu> {
        Some(match self.0 {
            1 => PathMtu::Mtu256,
            2 => PathMtu::Mtu512,
            3 => PathMtu::Mtu1024,
            4 => PathMtu::Mtu2048,
            5 => PathMtu::Mtu4096,
            _ => return None,
        })
    }
}

impl From<PathMtu> for MtuCode {
    fn from(mtu: PathMtu) -> Self {
        mtu.code()
    }
}

impl fmt::Display for MtuCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path_mtu() {
            Some(mtu) => mtu.fmt(f),
            None => write!(f, "MTU code {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_octets() {
        for (code, mtu) in (1..).zip(PathMtu::ALL) {
            assert_eq!(mtu.code().get(), code);
            assert_eq!(MtuCode::new(code).path_mtu(), Some(mtu));
            assert_eq!(mtu.octets(), 128 << code);
            assert_eq!(MtuCode::from(mtu).to_string(), mtu.octets().to_string());
        }
        for code in [0, 6, 15] {
            assert_eq!(MtuCode::new(code).path_mtu(), None);
        }
        assert_eq!(MtuCode::new(0xf9).to_string(), "MTU code 9");
    }

    #[test]
    fn the_largest_that_fits() {
        assert_eq!(PathMtu::largest_within(0), None);
        assert_eq!(PathMtu::largest_within(255), None);
        assert_eq!(PathMtu::largest_within(usize::MAX), Some(PathMtu::Mtu4096));
        for octets in 256..5000 {
            let expected = PathMtu::ALL.into_iter().rfind(|mtu| mtu.octets() <= octets);
            assert_eq!(PathMtu::largest_within(octets), expected);
        }
    }

    #[test]
    fn packets_of_a_message() {
        for (octets, packets) in [(0, 1), (1, 1), (1024, 1), (1025, 2), (4000, 4)] {
            assert_eq!(PathMtu::Mtu1024.packets(octets), packets);
        }
        for mtu in PathMtu::ALL {
            let octets = u32::try_from(mtu.octets()).unwrap();
            assert_eq!(mtu.packets(octets), 1);
            assert_eq!(mtu.packets(octets * 3 - 1), 3);
            assert_eq!(mtu.packets(u32::MAX), 1 << (32 - octets.ilog2()));
        }
    }
}
