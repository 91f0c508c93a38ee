//! What is left for the next poll: requests that are gathered, and acknowledges that go along with
//! what the application answers.
//!
//! A queue pair that has left something is in the list of its completion queues, whose next poll sends
//! it. The engine's thread comes by now and then for those that nobody polls.

use std::ptr;
use std::sync::Arc;

use super::left::{Found, RECV, SEND, Visit};
use super::{Core, QpInner};
use crate::cq::CqInner;

/// Requests gathered for one poll; those behind them do not wait for it.
const TOGETHER: u32 = 64;

/// The requests posted since the last poll.
#[derive(Debug, Default)]
pub(super) struct Burst {
    posted: u32,
    /// Those of them that have been left since something was sent. Not those under way, which the peer
    /// has yet to acknowledge: they may be many all the time.
    gathered: u32,
}

impl Burst {
    /// `posted` more requests, the `first` since a poll or not: whether they wait for the next one.
    /// `gathers` tells, of so many requests since the last poll, whether one is to be expected.
    pub(super) fn waits(
        &mut self,
        first: bool,
        posted: u32,
        gathers: impl FnOnce(u32) -> bool,
    ) -> bool {
        if first {
            *self = Self::default();
        }
        let gathers = !first && gathers(self.posted);
        self.posted = self.posted.saturating_add(posted);
        self.gathered = self.gathered.saturating_add(posted);
        if !gathers || self.gathered >= TOGETHER {
            self.gathered = 0;
            return false;
        }
        true
    }
}

impl QpInner {
    /// There is more to send, when others have had their turn.
    pub(crate) fn again(&self) {
        self.deferred.leave_requests();
        self.list(RECV);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.list(SEND);
        }
    }

    /// The application is about to see its messages: what acknowledges them waits for that.
    pub(crate) fn acknowledge_later(&self) {
        self.deferred.leave_acknowledges();
        self.list(RECV);
    }

    fn list(&self, which: usize) {
        if self.deferred.enlist(which) {
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
        if self.deferred.take()
            && let Some(roce) = core.roce()
        {
            roce.patience.end(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::left::Deferred;

    fn acknowledges() -> Deferred {
        let left = Deferred::new();
        left.leave_acknowledges();
        left
    }

    #[test]
    fn requests_leave_together_however_many_are_under_way() {
        let mut burst = Burst::default();
        for _ in 0..3 {
            assert!(!burst.waits(true, 1, |_| true), "the first leaves at once");
            for round in 0..4 {
                for behind in 1..TOGETHER {
                    let before = round * TOGETHER + behind;
                    assert!(burst.waits(false, 1, |count| {
                        assert_eq!(count, before);
                        true
                    }));
                }
                assert!(!burst.waits(false, 1, |_| true), "with all of them");
            }
            assert!(!burst.waits(false, 1, |_| false), "nobody polls");
        }
        assert!(!burst.waits(false, TOGETHER, |_| true), "a long list");
    }

    #[test]
    fn who_looks_once_says_nothing_of_the_application() {
        let late = Found::Acknowledges { late: true };
        let in_time = Found::Acknowledges { late: false };
        let left = acknowledges();
        // The queue pair may still be in the list of its send queue.
        assert_eq!(left.visit(Visit::Look, SEND), Found::Nothing);
        assert_eq!(left.visit(Visit::Look, RECV), Found::Waits);
        assert_eq!(left.visit(Visit::Look, SEND), Found::Nothing);
        assert_eq!(left.visit(Visit::Look, RECV), late);
        assert_eq!(left.visit(Visit::Look, RECV), Found::Nothing);
        assert_eq!(acknowledges().visit(Visit::InCharge, RECV), late);
        assert_eq!(acknowledges().visit(Visit::Poll, RECV), in_time);
        let old = acknowledges();
        assert_eq!(old.visit(Visit::Look, RECV), Found::Waits);
        assert_eq!(old.visit(Visit::Poll, RECV), in_time);
    }

    #[test]
    fn requests_wait_for_whoever_comes_first() {
        for visit in [Visit::Poll, Visit::Look, Visit::InCharge] {
            for which in [SEND, RECV] {
                let requests = Deferred::new();
                requests.leave_requests();
                assert_eq!(requests.visit(visit, which), Found::Requests);
                assert_eq!(requests.visit(visit, which), Found::Nothing);
            }
        }
    }
}
