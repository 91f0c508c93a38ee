//! The atomic word that decides about a region: key, two validity bits, and the number of pins.
//!
//! * [`Word::enter`] adds one pin and looks at the word *as it was at that very moment*. If it had
//!   another key or was invalid, the pin is taken back and nothing was touched.
//! * [`Word::disable`] clears the validity bits; [`Word::drain`] waits until there are no pins.
//!
//! All of these are read-modify-write operations on the same word, which have one order. A pin
//! that comes before the clearing in that order is seen by the wait; one that comes after it sees
//! that the region is invalid. Taking a pin away is a release operation, and the wait acquires:
//! read-modify-writes do not break release sequences, so all that was done under any of the pins
//! happens before `drain` returns. Likewise [`Word::publish`] releases what was written before,
//! and a pin acquires it.
//! A late pin with an older key may come and go at any time; it changes the number and nothing
//! else, hence no operation overwrites the word blindly.
//!
//! `crates/models` takes this file through every interleaving and every order of memory.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::wait;

/// The key is above, then come these.
const KEY_SHIFT: u32 = 32;
/// The key may be used by peers. Never set without [`VALID`].
const REMOTE: u64 = 1 << 31;
/// The key may be used.
const VALID: u64 = 1 << 30;
/// The number of pins.
const PINS: u64 = VALID - 1;

/// Whether a word is that of a valid region with this key.
fn is_valid(word: u64, key: u32) -> bool {
    word >> KEY_SHIFT == u64::from(key) && word & VALID != 0
}

pub(super) struct Word(AtomicU64);

impl Word {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether this is its key, valid or not.
    pub(super) fn has_key(&self, key: u32) -> bool {
        self.0.load(Ordering::Relaxed) >> KEY_SHIFT == u64::from(key)
    }

    /// A glance, without a pin: what it says may be over already.
    pub(super) fn looks_valid(&self, key: u32) -> bool {
        is_valid(self.0.load(Ordering::Relaxed), key)
    }

    /// Lets pins with this key in, which see all that was written before.
    pub(super) fn publish(&self, key: u32) {
        let word = u64::from(key) << KEY_SHIFT | REMOTE | VALID;
        self.update(Ordering::Release, |before| Some(word | before & PINS));
    }

    /// Nothing with this key comes in any more. `true` to exactly one caller.
    pub(super) fn disable(&self, key: u32) -> bool {
        self.update(Ordering::AcqRel, |word| {
            is_valid(word, key).then_some(word & !(VALID | REMOTE))
        })
    }

    /// Waits until those inside have left.
    pub(super) fn drain(&self) {
        let mut patience = 0;
        while self.0.load(Ordering::Acquire) & PINS != 0 {
            wait(&mut patience);
        }
    }

    /// One more pin, which has to [`leave`](Self::leave) again. Whether it may use the region.
    pub(super) fn enter(&self, key: u32) -> bool {
        let before = self.0.fetch_add(1, Ordering::Acquire);
        assert!(before & PINS < PINS / 2, "pins leak");
        is_valid(before, key)
    }

    pub(super) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// The key is none for peers any more. To be called with a pin, which keeps the word that of
    /// its region.
    pub(super) fn invalidate(&self) {
        self.0.fetch_and(!REMOTE, Ordering::AcqRel);
    }

    /// Whether peers may use the key.
    pub(super) fn is_remote(&self) -> bool {
        self.0.load(Ordering::Acquire) & REMOTE != 0
    }

    /// Applies `next` until that sticks or `next` says no; whether it stuck.
    fn update(&self, order: Ordering, next: impl FnMut(u64) -> Option<u64>) -> bool {
        self.0.fetch_update(order, Ordering::Relaxed, next).is_ok()
    }
}
