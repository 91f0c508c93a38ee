//! One thread at a time does what there is to do; what others bring meanwhile it does as well.
//!
//! `crates/models` takes this file through every interleaving and every order of memory.

use std::sync::{PoisonError, TryLockError};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering, fence};

pub(super) struct Pump {
    /// Held by the thread that pumps.
    turn: Mutex<()>,
    /// There may be something to pump.
    dirty: AtomicBool,
}

impl Pump {
    pub(super) fn new() -> Self {
        Self {
            turn: Mutex::new(()),
            dirty: AtomicBool::new(false),
        }
    }

    /// Does what there is to do, unless another thread is at it, which does it then. `drain` takes
    /// what was brought before the call, under a lock that it was brought under.
    pub(super) fn run(&self, drain: impl Fn()) {
        self.dirty.store(true, Ordering::Release);
        // Either the other thread has still to look at `dirty`, or its turn is over and ours comes.
        fence(Ordering::SeqCst);
        while self.dirty.load(Ordering::Acquire) {
            let turn = match self.turn.try_lock() {
                Ok(turn) => turn,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.dirty.store(false, Ordering::Release);
            drain();
            drop(turn);
            fence(Ordering::SeqCst);
        }
    }

    /// The same, and what was brought before the call has been done when this returns. Not to be
    /// called from within `drain`.
    pub(super) fn run_and_wait(&self, drain: impl Fn()) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        drain();
        drop(turn);
        self.run(drain);
    }
}
