//! The end of the process: what was left for a poll that does not come any more leaves before it, as it
//! would have left a device by now, and peers hear of it, as the kernel would tell them.
//!
//! Handlers of `atexit` and destructors of the application may still use their connections: what is
//! left leaves at the first moment, so that they wait for nothing; peers hear at the last.
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
/// So long others may take to make room for what is left: less than [`PATIENCE`].
const ROOM_PATIENCE: Duration = Duration::from_millis(100);
const NAP: Duration = Duration::from_micros(50);

/// What the thread that exits asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// What is left is to leave.
    Flush,
    /// The same, and nothing comes after it.
    Farewell,
}

/// The question whether the process may end.
#[derive(Debug, Default)]
pub(super) struct LastCall {
    asked: AtomicBool,
    open: Mutex<Option<Call>>,
    answer: Condvar,
}

/// Once in a process; its children have it from there.
pub(super) fn expect() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| sys::at_exit(on_exit));
}

extern "C" fn on_exit() {
    call(Call::Flush);
}

/// Behind every handler of `atexit`.
pub(super) extern "C" fn on_end() {
    call(Call::Farewell);
}

fn call(call: Call) {
    // Nothing may unwind into C; and nothing can be done about it here.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if let Some(engine) = Engine::existing()
            && !IS_OWN.get()
        {
            engine.last_call(call);
        }
    }));
}

impl Engine {
    fn last_call(&self, call: Call) {
        let of = &self.last_call;
        let mut open = of.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open = Some(call);
        of.asked.store(true, Ordering::SeqCst);
        self.wake();
        let _ = of
            .answer
            .wait_timeout_while(open, PATIENCE, |open| open.is_some());
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
        // Memory that is shared with others holds less than the kernel, which would keep the rest.
        let end = self.now() + ROOM_PATIENCE;
        let waits = || self.lookouts().into_iter().any(|of| of.waits());
        while waits() && self.now() < end {
            self.poll_data();
            std::thread::sleep(NAP);
        }
        let call = *of.open.lock().unwrap_or_else(PoisonError::into_inner);
        if call == Some(Call::Farewell) {
            for source in self.sources.all() {
                source.farewell();
            }
        }
        *of.open.lock().unwrap_or_else(PoisonError::into_inner) = None;
        of.answer.notify_all();
    }
}
