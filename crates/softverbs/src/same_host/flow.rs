//! How a sender and a receiver agree on what is in a ring of octets that two processes share.
//!
//! Two counts, of octets put in and of octets taken out; each has one writer. `crates/models` takes this
//! file through every interleaving and every order of memory.

use super::line::Line;
use super::wake::Wish;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Who waits for room waits for this part of the ring.
const PART: u64 = 4;

/// What the two tell each other. All zeros: an empty ring.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Flow {
    /// Octets put in.
    tail: Line<AtomicU64>,
    /// Octets taken out.
    head: Line<AtomicU64>,
    /// One more than the octets that are in their places. 0: the receiver has not come to the ring yet.
    done: Line<AtomicU64>,
    /// The receiver sleeps: what is put in next is to wake it.
    asleep: Line<Wish>,
    /// The sender waits until there is room.
    wants_room: Line<Wish>,
    /// One more than the octets that go another way, before those of the ring. 0: all of them, so far.
    before: Line<AtomicU64>,
}

impl Flow {
    #[cfg(test)]
    #[allow(dead_code, reason = "for the models")]
    pub(crate) fn new() -> Self {
        Self {
            tail: Line(AtomicU64::new(0)),
            head: Line(AtomicU64::new(0)),
            done: Line(AtomicU64::new(0)),
            asleep: Line(Wish::new()),
            wants_room: Line(Wish::new()),
            before: Line(AtomicU64::new(0)),
        }
    }

    /// What has been put in may be read up to here.
    pub(crate) fn tail(&self) -> u64 {
        self.tail.0.load(Ordering::Acquire)
    }

    /// What has been taken out may be overwritten up to here.
    pub(crate) fn head(&self) -> u64 {
        self.head.0.load(Ordering::Acquire)
    }
}

/// The sender's side.
impl Flow {
    /// From here on everything goes by the ring, behind so many octets that went another way.
    pub(crate) fn begin(&self, before: u64) {
        self.before.0.store(before + 1, Ordering::Release);
    }

    /// Octets have been put in up to `tail`. Whether the receiver is to be woken.
    pub(crate) fn pass_on(&self, tail: u64) -> bool {
        self.tail.0.store(tail, Ordering::Release);
        self.asleep.0.take()
    }

    /// Whether everything that has been put in, and what went another way before, is in its place.
    pub(crate) fn is_done(&self) -> bool {
        let done = self.done.0.load(Ordering::Acquire);
        done == self.tail.0.load(Ordering::Relaxed) + 1
    }

    /// Whether there is room for who waits for it, in a ring of `size` octets.
    pub(crate) fn has_room(&self, size: u64) -> bool {
        has_room(self.tail.0.load(Ordering::Relaxed), self.head(), size)
    }

    /// The sender waits until it is woken. Whether it may: otherwise there is room.
    pub(crate) fn want_room(&self, size: u64) -> bool {
        self.wants_room.0.make();
        !self.has_room(size)
    }
}

/// The receiver's side.
impl Flow {
    /// How many octets go another way, before those of the ring, if the sender has gone over.
    pub(crate) fn sent_before(&self) -> Option<u64> {
        self.before.0.load(Ordering::Acquire).checked_sub(1)
    }

    /// Whether there is something to take out.
    pub(crate) fn is_ready(&self) -> bool {
        self.tail() != self.head.0.load(Ordering::Relaxed)
    }

    /// The receiver is about to sleep until it is woken. Whether it may: otherwise there is something.
    pub(crate) fn sleep(&self) -> bool {
        self.asleep.0.make();
        !self.is_ready()
    }

    /// What has been taken out up to `head` is in its place.
    pub(crate) fn finish(&self, head: u64) {
        self.done.0.store(head + 1, Ordering::Release);
    }

    /// Octets have been taken out up to `head`. Whether the sender is to be woken: not for every octet, or it
    /// would be woken again and again.
    pub(crate) fn give_back(&self, head: u64, size: u64) -> bool {
        self.head.0.store(head, Ordering::Release);
        // The tail of a sender that waits does not move.
        has_room(self.tail.0.load(Ordering::Relaxed), head, size) && self.wants_room.0.take()
    }
}

const fn has_room(tail: u64, head: u64, size: u64) -> bool {
    tail.wrapping_sub(head) <= size - size / PART
}
