//! Time as an input: the caller reads a monotonic clock, proto only compares.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A moment on the caller's monotonic clock, counted from an epoch that the caller chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Duration);

impl Time {
    /// The caller's epoch.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// The moment `since_epoch` after the epoch.
    pub const fn new(since_epoch: Duration) -> Self {
        Self(since_epoch)
    }

    /// How long after the epoch this is.
    pub const fn since_epoch(self) -> Duration {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(after))
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_saturate_at_both_ends() {
        let second = Duration::from_secs(1);
        let (early, late) = (Time::new(second), Time::new(3 * second));
        assert_eq!(late - early, 2 * second);
        assert_eq!(early - late, Duration::ZERO);
        assert_eq!(early + 2 * second, late);
        assert_eq!(early + Duration::MAX, Time::new(Duration::MAX));
        assert_eq!(Time::ZERO.since_epoch(), Duration::ZERO);
        assert!(early < late);
    }
}
