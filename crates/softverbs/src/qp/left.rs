//! What a queue pair has left for the next poll, the lists of those that have left something, and the
//! bell that tells the engine's thread that some list is not empty: posting threads, polling threads
//! and that one, without a lock in common.
//!
//! `crates/models` takes this file through every interleaving and every order of memory.

use std::sync::PoisonError;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};

/// Who comes by to send what was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// An application thread, with a poll.
    Poll,
    /// The engine's thread, while application threads poll.
    Look,
    /// The engine's thread, since none does.
    InCharge,
}

/// What such a visit means for a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// There is nothing left for it.
    Nothing,
    /// It waits until the engine's thread looks again.
    Waits,
    /// Everything is to be sent.
    Requests,
    /// The same, and it is acknowledges only. `late` if the application came neither with an answer
    /// nor with a poll.
    Acknowledges { late: bool },
}

const NOTHING: u8 = 0;
const REQUESTS: u8 = 1;
const ACKNOWLEDGES: u8 = 2;
/// Acknowledges that had been left when the engine's thread last looked.
const OLD_ACKNOWLEDGES: u8 = 3;

/// The list of the send queue, that of the receive queue.
pub(super) const SEND: usize = 0;
pub(super) const RECV: usize = 1;

/// What a queue pair has left for a poll.
#[derive(Debug)]
pub(super) struct Deferred {
    what: AtomicU8,
    /// It is in the list of its send queue, of its receive queue. If both are one, that is the latter.
    listed: [AtomicBool; 2],
}

impl Deferred {
    pub(super) fn new() -> Self {
        Self {
            what: AtomicU8::new(NOTHING),
            listed: [AtomicBool::new(false), AtomicBool::new(false)],
        }
    }

    pub(super) fn is_any(&self) -> bool {
        self.what.load(Ordering::Relaxed) != NOTHING
    }

    /// There is more to send.
    pub(super) fn leave_requests(&self) {
        self.what.store(REQUESTS, Ordering::Release);
    }

    /// There are acknowledges, and maybe requests.
    pub(super) fn leave_acknowledges(&self) {
        self.exchange(NOTHING, ACKNOWLEDGES);
    }

    /// After something was left: whether it has to be put into the list `which`.
    pub(super) fn enlist(&self, which: usize) -> bool {
        !self.listed[which].swap(true, Ordering::AcqRel)
    }

    /// Whether there was something, which goes along with something else.
    pub(super) fn take(&self) -> bool {
        self.is_any() && self.what.swap(NOTHING, Ordering::AcqRel) != NOTHING
    }

    /// Somebody comes by the list `which`, from which it was taken.
    pub(super) fn visit(&self, visit: Visit, which: usize) -> Found {
        // Before it looks: who leaves something later lists it again; what was left by who found it
        // listed is seen.
        self.listed[which].swap(false, Ordering::AcqRel);
        if visit == Visit::Look && which == RECV {
            // They were left a moment ago only, perhaps.
            let older = self.exchange(ACKNOWLEDGES, OLD_ACKNOWLEDGES);
            if older {
                return Found::Waits;
            }
        }
        if visit == Visit::Look && which == SEND {
            // Acknowledges are in the other list.
            return if self.exchange(REQUESTS, NOTHING) {
                Found::Requests
            } else {
                Found::Nothing
            };
        }
        match self.what.swap(NOTHING, Ordering::AcqRel) {
            NOTHING => Found::Nothing,
            REQUESTS => Found::Requests,
            _ => Found::Acknowledges {
                late: visit != Visit::Poll,
            },
        }
    }

    fn exchange(&self, from: u8, to: u8) -> bool {
        self.what
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// Those of a completion queue that have left something for its next poll.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    list: Mutex<Vec<T>>,
    any: AtomicBool,
}

impl<T> Waiting<T> {
    pub(crate) fn new() -> Self {
        Self {
            list: Mutex::new(Vec::new()),
            any: AtomicBool::new(false),
        }
    }

    /// One more. Then the [`Bell`] is to be rung.
    pub(crate) fn push(&self, who: T) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(who);
        drop(list);
        self.any.store(true, Ordering::Release);
    }

    /// Hands over all of them.
    pub(crate) fn take(&self, to: &mut impl Extend<T>) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        // What comes behind this is in the list by then, or sets it again.
        self.any.store(false, Ordering::Relaxed);
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        to.extend(list.drain(..));
    }
}

/// Whether somebody may be in one of the lists, for whoever comes by all of them.
#[derive(Debug)]
pub(crate) struct Bell(AtomicBool);

impl Bell {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// After a list got one more. What is read behind this, of whether the other side sleeps, is
    /// as new as its look at the bell. Written seldom: all threads read it.
    pub(crate) fn ring(&self) {
        // Whoever silences it behind this sees the list as it is now.
        fence(Ordering::SeqCst);
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    pub(crate) fn rings(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Whether it rings; not any more then, and all lists are to be looked at. What was written
    /// before this, that the other side need not be woken, is seen by whoever rings behind it.
    pub(crate) fn silence(&self) -> bool {
        fence(Ordering::SeqCst);
        if !self.0.load(Ordering::Relaxed) {
            return false;
        }
        self.0.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        true
    }
}
