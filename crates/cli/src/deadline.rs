//! Points in time until which something is waited for.

use std::time::{Duration, Instant};

use crate::interrupt::SLICE;

/// Until when to wait; possibly for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// Never passes.
    pub(crate) const NEVER: Self = Self(None);

    /// Passes `time` from now.
    pub(crate) fn after(time: Duration) -> Self {
        Self(Instant::now().checked_add(time))
    }

    /// Passes `time` from now, if there is one.
    pub(crate) fn maybe_after(time: Option<Duration>) -> Self {
        time.map_or(Self::NEVER, Self::after)
    }

    /// Whether it has passed.
    pub(crate) fn passed(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }

    /// How long to sleep now: not beyond the deadline, and never so long that Ctrl-C goes
    /// unnoticed.
    pub(crate) fn slice(self) -> Duration {
        self.0.map_or(SLICE, |end| {
            end.saturating_duration_since(Instant::now()).min(SLICE)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing() {
        assert!(!Deadline::NEVER.passed());
        assert_eq!(Deadline::NEVER.slice(), SLICE);
        assert!(Deadline::after(Duration::ZERO).passed());
        assert_eq!(Deadline::after(Duration::ZERO).slice(), Duration::ZERO);
        let later = Deadline::after(Duration::from_secs(3600));
        assert!(!later.passed());
        assert_eq!(later.slice(), SLICE);
        assert!(!Deadline::maybe_after(None).passed());
        assert!(Deadline::maybe_after(Some(Duration::ZERO)).passed());
    }
}
