//! What was left for a poll is found by somebody: by the poll, or by the engine's thread, which is
//! woken if it was in charge.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use super::left::{Bell, Deferred, Found, RECV, Visit, Waiting};

/// A queue pair, its completion queue and the engine, as `deferred.rs`, `cq.rs` and `engine` use them.
struct All {
    deferred: Deferred,
    waiting: Waiting<()>,
    bell: Bell,
    backed_off: AtomicBool,
    sent: AtomicUsize,
}

impl All {
    fn new(backed_off: bool) -> Arc<Self> {
        Arc::new(Self {
            deferred: Deferred::new(),
            waiting: Waiting::new(),
            bell: Bell::new(),
            backed_off: AtomicBool::new(backed_off),
            sent: AtomicUsize::new(0),
        })
    }

    /// Whether the engine's thread is to be woken.
    fn post(&self) -> bool {
        self.deferred.leave_requests();
        self.deferred.enlist(RECV) && self.list()
    }

    fn list(&self) -> bool {
        self.waiting.push(());
        self.bell.ring();
        !self.backed_off.load(Ordering::SeqCst)
    }

    /// A look at the completion queue.
    fn flush_queue(&self, visit: Visit) {
        let mut todo = Vec::new();
        self.waiting.take(&mut todo);
        for () in todo {
            match self.deferred.visit(visit, RECV) {
                Found::Nothing => {}
                Found::Waits => {
                    if self.deferred.enlist(RECV) {
                        self.list();
                    }
                }
                Found::Requests | Found::Acknowledges { .. } => {
                    self.sent.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
    }

    /// A look at all of them.
    fn flush(&self, visit: Visit) {
        if self.bell.silence() {
            self.flush_queue(visit);
        }
    }

    fn take_charge(&self) {
        self.backed_off.store(false, Ordering::SeqCst);
        self.flush(Visit::InCharge);
    }
}

#[test]
fn a_poll_or_a_look_behind_it_finds_what_was_posted() {
    loom::model(|| {
        let all = All::new(true);
        let polls = thread::spawn({
            let all = all.clone();
            move || all.flush_queue(Visit::Poll)
        });
        all.post();
        polls.join().unwrap();
        // The engine's thread looks now and then.
        all.flush(Visit::Look);
        assert!(!all.deferred.is_any());
        assert_eq!(all.sent.load(Ordering::Acquire), 1);
    });
}

#[test]
fn one_look_does_not_silence_what_another_has_not_seen() {
    loom::model(|| {
        let all = All::new(true);
        all.post();
        let looks = thread::spawn({
            let all = all.clone();
            move || all.flush(Visit::Look)
        });
        all.flush_queue(Visit::Poll);
        all.post();
        looks.join().unwrap();
        all.flush(Visit::Look);
        assert!(
            !all.deferred.is_any(),
            "posted twice, and a request is left"
        );
    });
}

#[test]
fn whoever_takes_charge_finds_it_or_is_woken() {
    loom::model(|| {
        let all = All::new(true);
        let engine = thread::spawn({
            let all = all.clone();
            move || all.take_charge()
        });
        let wake = all.post();
        engine.join().unwrap();
        if wake {
            all.flush(Visit::InCharge);
        }
        assert!(!all.deferred.is_any(), "it sleeps, and a request is left");
    });
}

#[test]
fn two_that_post_and_one_that_takes_charge() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(|| {
        let all = All::new(true);
        let engine = thread::spawn({
            let all = all.clone();
            move || all.take_charge()
        });
        let other = thread::spawn({
            let all = all.clone();
            move || all.post()
        });
        let wake = all.post();
        engine.join().unwrap();
        if other.join().unwrap() || wake {
            all.flush(Visit::InCharge);
        }
        assert!(!all.deferred.is_any());
    });
}
