//! How often something is tried again.

use std::fmt;

/// A retry count of 3 bits, 0 to 7 (IBA vol 1 ch 11).
///
/// What 7 means depends on the field: of an RNR retry count it means without end; of a retry count
/// it means seven times, and to Linux' rxe without end too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RetryCount(u8);

impl RetryCount {
    /// The highest count, which means without end where the field allows that.
    pub const MAX: Self = Self(7);

    /// This many; more than 7 become 7.
    pub const fn new(count: u8) -> Self {
        if count > Self::MAX.0 {
            Self::MAX
        } else {
            Self(count)
        }
    }

    /// The plain number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for RetryCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_stays_within_its_bits() {
        for count in 0..=u8::MAX {
            assert_eq!(RetryCount::new(count).get(), count.min(7));
        }
        assert_eq!(RetryCount::MAX.to_string(), "7");
    }
}
