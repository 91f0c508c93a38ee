//! The wish to be woken, of one process that the other one fulfils.
//!
//! `crates/models` takes this file through every interleaving and every order of memory.

use crate::sync::atomic::{AtomicU32, Ordering, fence};

/// Whether somebody wishes to be woken. All zeros: nobody does.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Wish(AtomicU32);

impl Wish {
    #[cfg(test)]
    #[allow(dead_code, reason = "for the models")]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[cfg(test)]
    #[allow(dead_code, reason = "not for the models")]
    pub(crate) fn is_made(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }

    /// Who is about to sleep wishes to be woken. Then he looks once more.
    pub(crate) fn make(&self) {
        self.0.store(1, Ordering::SeqCst);
        // Either the other one sees the wish, or what he did before he looked for it is seen behind this.
        fence(Ordering::SeqCst);
    }

    /// Who has done something that a sleeper waits for: whether he is to wake him.
    pub(crate) fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::SeqCst) != 0
    }
}
