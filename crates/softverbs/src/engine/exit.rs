//! The end of the process: what was left for a poll that does not come any more leaves before it, as it
//! would have left a device by now.
//!
//! The engine's thread does it, which still runs while `exit` calls the handlers: the variables of the
//! thread that exits are gone by then.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{Engine, IS_OWN, sys};
use crate::qp::Visit;

/// The process ends no later than this, whoever holds a lock.
const PATIENCE: Duration = Duration::from_millis(200);
/// Turns of queue pairs that have much to send.
const TURNS: usize = 128;

/// The question whether the process may end.
#[derive(Debug, Default)]
pub(super) struct LastCall {
    asked: AtomicBool,
    answered: Mutex<bool>,
    answer: Condvar,
}

/// Once in a process; its children have it from there.
pub(super) fn expect() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| sys::at_exit(on_exit));
}

extern "C" fn on_exit() {
    // Nothing may unwind into C; and nothing can be done about it here.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if let Some(engine) = Engine::existing()
            && !IS_OWN.get()
        {
            engine.last_call();
        }
    }));
}

impl Engine {
    fn last_call(&self) {
        let of = &self.last_call;
        let answered = of.answered.lock().unwrap_or_else(PoisonError::into_inner);
        of.asked.store(true, Ordering::SeqCst);
        self.wake();
        let _ = of
            .answer
            .wait_timeout_while(answered, PATIENCE, |answered| !*answered);
    }

    /// On the engine's thread.
    pub(super) fn answer_last_call(&self) {
        let of = &self.last_call;
        if !of.asked.load(Ordering::SeqCst) || !of.asked.swap(false, Ordering::SeqCst) {
            return;
        }
        for _ in 0..TURNS {
            self.flush(Visit::InCharge);
            if !self.deferred.rings() {
                break;
            }
        }
        *of.answered.lock().unwrap_or_else(PoisonError::into_inner) = true;
        of.answer.notify_all();
    }
}
