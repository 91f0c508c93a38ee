//! Nobody uses the memory of a region that is gone, nor that of another one in its slot.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::word::Word;

/// A slot whose only field says which region is in it, and the memory of the two regions that come
/// one after the other: loom finds two threads at one cell of which one writes.
struct Slot {
    word: Word,
    field: AtomicU32,
    memory: [UnsafeCell<u32>; 2],
}

const KEYS: [u32; 2] = [0x100, 0x101];

impl Slot {
    fn new() -> Self {
        Self {
            word: Word::new(),
            field: AtomicU32::new(0),
            memory: [UnsafeCell::new(0), UnsafeCell::new(0)],
        }
    }

    fn publish(&self, nth: u32) {
        self.field.store(nth, Ordering::Relaxed);
        self.word.publish(KEYS[nth as usize]);
    }

    /// What its owner does when the region is gone: the memory is for other uses.
    fn free(&self, nth: usize) {
        self.memory[nth].with_mut(|_| ());
    }

    /// As `Pin`: look, enter, use, leave. Which region was used.
    fn read(&self, key: u32) -> Option<u32> {
        if !self.word.looks_valid(key) {
            return None;
        }
        let used = self.word.enter(key).then(|| {
            let field = self.field.load(Ordering::Relaxed);
            self.memory[field as usize].with(|_| ());
            field
        });
        self.word.leave();
        used
    }
}

#[test]
fn a_region_goes_and_another_comes_while_a_peer_reads() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        slot.publish(0);
        let reader = thread::spawn({
            let slot = slot.clone();
            move || {
                for (nth, key) in KEYS.into_iter().enumerate() {
                    let used = slot.read(key);
                    assert!(used.is_none_or(|used| used as usize == nth), "{used:?}");
                }
            }
        });
        assert!(slot.word.disable(KEYS[0]));
        slot.word.drain();
        slot.free(0);
        slot.publish(1);
        reader.join().unwrap();
        assert_eq!(slot.read(KEYS[1]), Some(1));
        assert_eq!(slot.read(KEYS[0]), None);
    });
}

/// Up to three preemptions, unless `LOOM_MAX_PREEMPTIONS` sets another bound: all of them take long.
#[test]
fn two_readers_and_an_owner() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(|| {
        let slot = Arc::new(Slot::new());
        slot.publish(0);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let slot = slot.clone();
                thread::spawn(move || slot.read(KEYS[0]))
            })
            .collect();
        assert!(slot.word.disable(KEYS[0]));
        slot.word.drain();
        slot.free(0);
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(slot.read(KEYS[0]), None);
    });
}

#[test]
fn one_of_two_that_revoke_has_done_it() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        slot.publish(0);
        let other = thread::spawn({
            let slot = slot.clone();
            move || slot.word.disable(KEYS[0])
        });
        let mine = slot.word.disable(KEYS[0]);
        assert!(mine != other.join().unwrap());
    });
}

/// A peer invalidates its key while the region goes: the next one's key stays valid for peers.
#[test]
fn an_invalidation_does_not_meet_the_next_region() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        slot.publish(0);
        let peer = thread::spawn({
            let slot = slot.clone();
            move || {
                if slot.word.enter(KEYS[0]) {
                    slot.word.invalidate();
                    assert!(!slot.word.is_remote());
                }
                slot.word.leave();
            }
        });
        assert!(slot.word.disable(KEYS[0]));
        slot.word.drain();
        slot.publish(1);
        peer.join().unwrap();
        assert!(slot.word.looks_valid(KEYS[1]) && slot.word.is_remote());
    });
}
