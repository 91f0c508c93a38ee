//! What is left for the next poll: requests that are gathered, and acknowledges that go along with
//! what the application answers.
//!
//! A queue pair that has left something is in the list of its completion queues, whose next poll sends
//! it. The engine's thread comes by now and then for those that nobody polls.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::{Core, QpInner};
use crate::cq::CqInner;

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
enum Found {
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

const SEND: usize = 0;
const RECV: usize = 1;

/// What a queue pair has left for a poll.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    what: AtomicU8,
    /// It is in the list of its send queue, of its receive queue. If both are one, that is the latter.
    listed: [AtomicBool; 2],
}

impl Deferred {
    pub(super) fn is_any(&self) -> bool {
        self.what.load(Ordering::Relaxed) != NOTHING
    }

    /// Somebody comes by the list `which`.
    fn visit(&self, visit: Visit, which: usize) -> Found {
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
        match self.what.swap(NOTHING, Ordering::SeqCst) {
            NOTHING => Found::Nothing,
            REQUESTS => Found::Requests,
            _ => Found::Acknowledges {
                late: visit != Visit::Poll,
            },
        }
    }

    fn exchange(&self, from: u8, to: u8) -> bool {
        let order = Ordering::SeqCst;
        self.what.compare_exchange(from, to, order, order).is_ok()
    }
}

impl QpInner {
    /// There is more to send, when others have had their turn.
    pub(crate) fn again(&self) {
        self.deferred.what.store(REQUESTS, Ordering::SeqCst);
        self.list(RECV);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.list(SEND);
        }
    }

    /// The application is about to see its messages: what acknowledges them waits for that.
    pub(crate) fn acknowledge_later(&self) {
        self.deferred.exchange(NOTHING, ACKNOWLEDGES);
        self.list(RECV);
    }

    /// Whoever takes a queue pair from a list says so before it looks at what was left.
    fn list(&self, which: usize) {
        if !self.deferred.listed[which].swap(true, Ordering::SeqCst) {
            let cq = if which == RECV {
                &self.recv_cq
            } else {
                &self.send_cq
            };
            cq.defer(self.weak());
        }
    }

    /// Sends what was left. Called by `cq`, from whose list it was taken.
    pub(crate) fn flush_deferred(&self, cq: &CqInner, visit: Visit) {
        let which = if ptr::eq(cq, &raw const *self.recv_cq) {
            RECV
        } else {
            SEND
        };
        self.deferred.listed[which].store(false, Ordering::SeqCst);
        let found = self.deferred.visit(visit, which);
        match found {
            Found::Nothing => return,
            Found::Waits => return self.list(RECV),
            Found::Requests | Found::Acknowledges { .. } => {}
        }
        let send = || {
            let mut core = self.lock();
            if let Found::Acknowledges { late } = found
                && let Some(roce) = core.roce()
            {
                roce.patience.end(late);
            }
            self.transmit(&mut core);
        };
        if visit == Visit::Poll {
            self.at_work(send);
        } else {
            send();
        }
    }

    /// What is being sent takes along what was left for the next poll.
    pub(super) fn takes_along(&self, core: &mut Core) {
        if self.deferred.is_any()
            && self.deferred.what.swap(NOTHING, Ordering::SeqCst) != NOTHING
            && let Some(roce) = core.roce()
        {
            roce.patience.end(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(what: u8) -> Deferred {
        Deferred {
            what: AtomicU8::new(what),
            ..Deferred::default()
        }
    }

    #[test]
    fn who_looks_once_says_nothing_of_the_application() {
        let acknowledges = left(ACKNOWLEDGES);
        // The queue pair may still be in the list of its send queue.
        assert_eq!(acknowledges.visit(Visit::Look, SEND), Found::Nothing);
        assert_eq!(acknowledges.visit(Visit::Look, RECV), Found::Waits);
        assert_eq!(acknowledges.visit(Visit::Look, SEND), Found::Nothing);
        let late = Found::Acknowledges { late: true };
        assert_eq!(acknowledges.visit(Visit::Look, RECV), late);
        assert_eq!(acknowledges.visit(Visit::Look, RECV), Found::Nothing);
        assert_eq!(left(ACKNOWLEDGES).visit(Visit::InCharge, RECV), late);
        for what in [ACKNOWLEDGES, OLD_ACKNOWLEDGES] {
            let in_time = Found::Acknowledges { late: false };
            assert_eq!(left(what).visit(Visit::Poll, RECV), in_time);
        }
    }

    #[test]
    fn requests_wait_for_whoever_comes_first() {
        for visit in [Visit::Poll, Visit::Look, Visit::InCharge] {
            for which in [SEND, RECV] {
                let requests = left(REQUESTS);
                assert_eq!(requests.visit(visit, which), Found::Requests);
                assert_eq!(requests.visit(visit, which), Found::Nothing);
            }
        }
    }
}
