//! Times in five bits.

use std::fmt;
use std::time::Duration;

/// The largest value of five bits.
const MAX_5: u8 = 0x1f;

/// A time of 4.096 µs · 2ᶜᵒᵈᵉ, in five bits: acknowledge timeouts and delays, response timeouts
/// of connection management (IBA vol 1 ch 9, 11, 12).
///
/// Of a local ACK timeout, 0 means that there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeoutCode(u8);

impl TimeoutCode {
    /// The longest time: 2.4 hours.
    pub const MAX: Self = Self(MAX_5);

    /// The unit, in nanoseconds.
    const UNIT: u64 = 4096;

    /// From the low five bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & MAX_5)
    }

    /// The code.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The time that it stands for, 0 being 4.096 µs.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(Self::UNIT << self.0)
    }

    /// The least code whose time is at least `duration`, or [`MAX`](Self::MAX).
    pub fn at_least(duration: Duration) -> Self {
        (0..MAX_5)
            .map(Self)
            .find(|code| code.duration() >= duration)
            .unwrap_or(Self::MAX)
    }
}

impl fmt::Display for TimeoutCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.0, self.duration())
    }
}

/// How long a requester leaves a responder that was not ready alone, in five bits that index a
/// table (IBA vol 1 ch 9, RNR NAK timer field).
///
/// Code 0 is the longest time, not the shortest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The times in units of 10 µs, by code.
    const TABLE: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// The unit of the table, in microseconds.
    const UNIT: u64 = 10;

    /// From the low five bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & MAX_5)
    }

    /// The code.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The time that it stands for.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(Self::UNIT * Self::TABLE[self.0 as usize] as u64)
    }

    /// The code of the shortest time that is at least `duration`, or of the longest time.
    pub fn at_least(duration: Duration) -> Self {
        (1..=MAX_5)
            .map(Self)
            .find(|code| code.duration() >= duration)
            .unwrap_or(Self(0))
    }
}

impl fmt::Display for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.0, self.duration())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_double() {
        assert_eq!(TimeoutCode::new(0).duration(), Duration::from_nanos(4096));
        assert_eq!(
            TimeoutCode::new(20).duration(),
            Duration::from_nanos(4_294_967_296)
        );
        assert_eq!(
            TimeoutCode::MAX.duration(),
            Duration::from_nanos(4096 << 31)
        );
        assert_eq!(TimeoutCode::new(0xf4).get(), 20);
        assert_eq!(TimeoutCode::new(17).to_string(), "17 (536.870912ms)");
    }

    #[test]
    fn the_least_timeout_that_is_long_enough() {
        for code in 0..32 {
            let code = TimeoutCode::new(code);
            assert_eq!(TimeoutCode::at_least(code.duration()), code);
            let more = code.duration() + Duration::from_nanos(1);
            let next = TimeoutCode::new((code.get() + 1).min(31));
            assert_eq!(TimeoutCode::at_least(more), next);
        }
        assert_eq!(TimeoutCode::at_least(Duration::ZERO), TimeoutCode::new(0));
        assert_eq!(TimeoutCode::at_least(Duration::MAX), TimeoutCode::MAX);
    }

    /// The times in milliseconds as the tables of the field give them.
    #[test]
    fn rnr_table() {
        let milliseconds = [
            655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96,
            1.28, 1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92,
            122.88, 163.84, 245.76, 327.68, 491.52,
        ];
        for (code, expected) in (0..).zip(milliseconds) {
            let actual = RnrTimer::new(code).duration().as_secs_f64() * 1000.0;
            assert!((actual - expected).abs() < 1e-9, "code {code}: {actual}");
        }
        assert_eq!(RnrTimer::new(0xe1).get(), 1);
        assert_eq!(RnrTimer::new(0).to_string(), "0 (655.36ms)");
    }

    #[test]
    fn the_shortest_rnr_time_that_is_long_enough() {
        for code in 0..32 {
            let code = RnrTimer::new(code);
            assert_eq!(RnrTimer::at_least(code.duration()), code);
        }
        assert_eq!(RnrTimer::at_least(Duration::ZERO).get(), 1);
        assert_eq!(RnrTimer::at_least(Duration::from_micros(11)).get(), 2);
        assert_eq!(RnrTimer::at_least(Duration::from_millis(492)).get(), 0);
        assert_eq!(RnrTimer::at_least(Duration::MAX).get(), 0);
    }
}
