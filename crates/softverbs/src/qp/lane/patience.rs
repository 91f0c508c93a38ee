//! How long a sender waits for a peer that takes nothing, because it is stopped, say: as long as TCP would,
//! which knows nothing of it.

use std::time::Duration;

use softverbs_proto::time::Time;

/// Looks in that time.
const LOOKS: u32 = 4;

/// The wait for room.
#[derive(Debug)]
pub(super) struct Patience {
    /// Between two looks. For ever, if there is none.
    every: Option<Duration>,
    /// The next one.
    look: Option<Time>,
    /// Octets that had been taken at the last one, and how many have found no more.
    taken: u64,
    vain: u32,
}

impl Patience {
    pub(super) fn new(whole: Option<Duration>) -> Self {
        Self {
            every: whole.map(|whole| whole / LOOKS),
            look: None,
            taken: 0,
            vain: 0,
        }
    }

    /// There is no room, after `taken` octets.
    pub(super) fn begin(&mut self, now: impl FnOnce() -> Time, taken: u64) {
        if self.look.is_none()
            && let Some(every) = self.every
        {
            (self.look, self.taken, self.vain) = (Some(now() + every), taken, 0);
        }
    }

    /// When to look. It stays when there is room, since there is none so often.
    pub(super) const fn next(&self) -> Option<Time> {
        self.look
    }

    /// Whether it has been too long.
    pub(super) fn look(&mut self, now: Time, waits: bool, taken: u64) -> bool {
        if self.look.is_none_or(|look| now < look) {
            return false;
        }
        self.vain = if waits && taken == self.taken {
            self.vain + 1
        } else {
            0
        };
        self.taken = taken;
        self.look = self.every.filter(|_| waits).map(|every| now + every);
        self.vain >= LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::new(Duration::from_secs(seconds))
    }

    #[test]
    fn who_takes_nothing_is_given_up() {
        let mut patience = Patience::new(Some(Duration::from_secs(40)));
        assert_eq!(patience.next(), None);
        patience.begin(|| at(100), 7);
        patience.begin(|| at(105), 7);
        assert_eq!(patience.next(), Some(at(110)));
        assert!(!patience.look(at(109), true, 7), "too early");
        for now in [110, 120, 130] {
            assert!(!patience.look(at(now), true, 7));
            assert_eq!(patience.next(), Some(at(now + 10)));
        }
        assert!(patience.look(at(140), true, 7));
    }

    #[test]
    fn who_takes_something_now_and_then_is_not() {
        let mut patience = Patience::new(Some(Duration::from_secs(40)));
        patience.begin(|| at(0), 0);
        for look in 1..100 {
            assert!(!patience.look(at(10 * look), true, look / 3));
        }
        assert!(!patience.look(at(1000), false, 33), "there is room");
        assert_eq!(patience.next(), None);
        let mut for_ever = Patience::new(None);
        for_ever.begin(|| at(0), 0);
        assert!(!for_ever.look(at(10_000), true, 0) && for_ever.next().is_none());
    }
}
