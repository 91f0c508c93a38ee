//! Positions in a ring of octets.

use std::ops::Range;

/// Up to two pieces of a ring, in order; the second starts at 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// Octets up to the end of the ring, at most.
    pub first: Range<usize>,
    /// What continues at its start.
    pub second: Range<usize>,
}

impl Pieces {
    /// `len` octets from `start`, in a ring of `size`, which must be more than `start` and at
    /// least `len`.
    pub(super) fn new(start: usize, len: usize, size: usize) -> Self {
        let first = len.min(size - start);
        Self {
            first: start..start + first,
            second: 0..len - first,
        }
    }

    /// Octets.
    pub fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What is in use of a ring: added at one end, released at the other.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    size: usize,
    start: usize,
    used: usize,
}

impl Ring {
    pub(super) const fn new(size: usize) -> Self {
        Self {
            size,
            start: 0,
            used: 0,
        }
    }

    pub(super) const fn size(&self) -> usize {
        self.size
    }

    pub(super) const fn used(&self) -> usize {
        self.used
    }

    pub(super) const fn free(&self) -> usize {
        self.size - self.used
    }

    /// The next `len` free octets.
    pub(super) fn next(&self, len: usize) -> Pieces {
        Pieces::new((self.start + self.used) % self.size, len, self.size)
    }

    /// Puts them to use.
    pub(super) fn add(&mut self, len: usize) {
        debug_assert!(len <= self.free());
        self.used += len;
    }

    /// The oldest `len` octets in use, `skip` octets from the first.
    pub(super) fn oldest(&self, skip: usize, len: usize) -> Pieces {
        Pieces::new((self.start + skip) % self.size, len, self.size)
    }

    /// Releases the oldest `len` octets.
    pub(super) fn release(&mut self, len: usize) {
        debug_assert!(len <= self.used);
        self.start = (self.start + len) % self.size;
        self.used -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_around() {
        let mut ring = Ring::new(10);
        assert_eq!(
            ring.next(7),
            Pieces {
                first: 0..7,
                second: 0..0
            }
        );
        ring.add(7);
        assert_eq!((ring.used(), ring.free()), (7, 3));
        assert_eq!(
            ring.oldest(2, 3),
            Pieces {
                first: 2..5,
                second: 0..0
            }
        );
        ring.release(6);
        let next = ring.next(9);
        assert_eq!(
            next,
            Pieces {
                first: 7..10,
                second: 0..6
            }
        );
        assert_eq!((next.len(), next.is_empty()), (9, false));
        ring.add(9);
        assert_eq!(
            ring.oldest(4, 6),
            Pieces {
                first: 0..6,
                second: 0..0
            }
        );
        ring.release(10);
        assert_eq!((ring.used(), ring.free()), (0, 10));
    }
}
