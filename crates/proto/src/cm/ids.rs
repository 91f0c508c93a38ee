//! How communication IDs are chosen.

/// Which communication IDs are ours, and in which order they are used.
///
/// An ID is a prefix, which tells the processes of one host address apart, and below it a counter
/// that is mixed with a secret, so that peers cannot tell how many connections there were.
#[derive(Clone, Copy, Debug, Hash)]
pub struct IdSpace {
    /// The bits above the counter's. Zero if there are none.
    prefix: u32,
    /// The bits of the counter.
    mask: u32,
    secret: u32,
    next: u32,
}

impl IdSpace {
    /// The IDs whose bits above the lowest `bits` (1 to 32) are `prefix`. `start` and `secret` are
    /// the caller's random numbers.
    ///
    /// # Panics
    ///
    /// If `bits` is not in its range, or the prefix does not fit beside it.
    pub fn new(prefix: u32, bits: u32, start: u32, secret: u32) -> Self {
        assert!((1..=32).contains(&bits), "an ID has 1 to 32 bits");
        let mask = u32::MAX >> (32 - bits);
        let prefix = prefix.checked_shl(bits).unwrap_or(0);
        assert_eq!(prefix & mask, 0, "the prefix is above the counter");
        Self {
            prefix,
            mask,
            secret,
            next: start,
        }
    }

    /// All IDs.
    pub fn whole(start: u32, secret: u32) -> Self {
        Self::new(0, 32, start, secret)
    }

    /// The next ID that is not zero, which stands for none, and not `taken`; `None` if all are.
    pub(super) fn allocate(&mut self, live: usize, taken: impl Fn(u32) -> bool) -> Option<u32> {
        // Of more candidates than there are taken ones, and zero, one is free, unless the space
        // is smaller than that.
        for _ in 0..=live.saturating_add(1) {
            let id = self.prefix | (self.next ^ self.secret) & self.mask;
            self.next = self.next.wrapping_add(1);
            if id != 0 && !taken(id) {
                return Some(id);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_stay_behind_their_prefix_and_differ() {
        let mut space = IdSpace::new(0xabc, 20, 0xffff_fff0, 0x1234_5678);
        let mut seen = BTreeSet::new();
        for _ in 0..1000 {
            let id = space.allocate(seen.len(), |id| seen.contains(&id)).unwrap();
            assert_eq!(id >> 20, 0xabc);
            assert!(seen.insert(id));
        }
    }

    #[test]
    fn zero_is_no_id_and_an_exhausted_space_says_so() {
        let mut space = IdSpace::new(0, 2, 0, 0);
        let mut seen = BTreeSet::new();
        for _ in 0..3 {
            let id = space.allocate(seen.len(), |id| seen.contains(&id)).unwrap();
            assert_ne!(id, 0);
            seen.insert(id);
        }
        assert_eq!(space.allocate(seen.len(), |id| seen.contains(&id)), None);
        seen.remove(&2);
        assert_eq!(space.allocate(seen.len(), |id| seen.contains(&id)), Some(2));
    }
}
