//! Which numbers have been seen: each is to come once, mostly in order.

use std::collections::BTreeSet;

/// A set of numbers that grows from 0 on.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// All numbers below have been seen, or are given up.
    below: u64,
    /// Those that have been seen beyond.
    beyond: BTreeSet<u64>,
    /// How many numbers beyond a missing one are remembered, if some may be missing for ever.
    limit: Option<usize>,
}

impl Seen {
    /// Where numbers may be missing: one is given up when `limit` later ones have been seen.
    pub(crate) fn with_gaps(limit: usize) -> Self {
        Self {
            limit: Some(limit),
            ..Self::default()
        }
    }

    /// Adds a number; `false` if it had been seen, or was given up.
    pub(crate) fn add(&mut self, number: u64) -> bool {
        if number < self.below || !self.beyond.insert(number) {
            return false;
        }
        self.advance();
        while self.limit.is_some_and(|limit| self.beyond.len() > limit) {
            if let Some(first) = self.beyond.first() {
                self.below = *first;
            }
            self.advance();
        }
        true
    }

    /// Numbers that were seen beyond one that is missing.
    pub(crate) fn beyond_gaps(&self) -> usize {
        self.beyond.len()
    }

    fn advance(&mut self) {
        while self.beyond.first() == Some(&self.below) {
            self.beyond.pop_first();
            self.below += 1;
        }
    }
}

/// The low 32 bits of a number, which travel as immediate data.
pub(crate) fn narrow(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0)
}

/// The number closest to `near` whose low 32 bits are `low`.
pub(crate) fn widen(low: u32, near: u64) -> u64 {
    let number = near & !u64::from(u32::MAX) | u64::from(low);
    const HALF: u64 = 1 << 31;
    if number > near + HALF && number >= 1 << 32 {
        number - (1 << 32)
    } else if number + HALF < near {
        number + (1 << 32)
    } else {
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_once() {
        let mut seen = Seen::default();
        for number in [0, 1, 4, 2, 3, 5] {
            assert!(seen.add(number));
            assert!(!seen.add(number));
        }
        assert_eq!((seen.below, seen.beyond_gaps()), (6, 0));
        assert!(!seen.add(3));
        assert!(seen.add(7));
        assert_eq!(seen.beyond_gaps(), 1);
    }

    #[test]
    fn gaps_are_given_up() {
        let mut seen = Seen::with_gaps(3);
        for number in [1, 2, 3] {
            assert!(seen.add(number));
        }
        assert_eq!(seen.below, 0);
        assert!(seen.add(0), "not too late");
        for number in [6, 8, 9, 10] {
            assert!(seen.add(number));
        }
        assert_eq!((seen.below, seen.beyond_gaps()), (7, 3));
        assert!(!seen.add(5), "given up");
        assert!(seen.add(7));
    }

    #[test]
    fn numbers_get_their_high_bits_back() {
        for (low, near, number) in [
            (5, 3, 5),
            (u32::MAX, 3, u64::from(u32::MAX)),
            (2, u64::from(u32::MAX), (1 << 32) + 2),
            (u32::MAX, (1 << 32) + 2, u64::from(u32::MAX)),
            (7, (5 << 32) + 9, (5 << 32) + 7),
        ] {
            assert_eq!(widen(low, near), number, "{low} near {near}");
            assert_eq!(narrow(number), low);
        }
    }
}
