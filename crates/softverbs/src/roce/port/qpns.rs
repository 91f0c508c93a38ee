//! Queue pair numbers of this process: slot and index.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use softverbs_proto::time::Time;
use softverbs_wire::num::Qpn;

use super::folder::Lock;

/// The low bits of a queue pair number: the index. The others are the slot.
pub(super) const INDEX_BITS: u32 = 12;
const PER_SLOT: u32 = 1 << INDEX_BITS;
/// So long a freed number rests, unless all others are in use and there are no more slots: what
/// the peer of its last queue pair still sends must not meet another one.
const REST: Duration = Duration::from_secs(15);

/// The slot of a queue pair number.
#[allow(clippy::cast_possible_truncation, reason = "12 of 24 bits")]
pub(super) const fn slot_of(qpn: Qpn) -> u16 {
    (qpn.get() >> INDEX_BITS) as u16
}

/// Which slots are this process's; read for each packet.
#[derive(Debug)]
pub(super) struct OwnSlots([AtomicU64; 64]);

impl OwnSlots {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 64])
    }

    pub(super) fn add(&self, slot: u16) {
        self.0[usize::from(slot / 64 % 64)].fetch_or(1 << (slot % 64), Ordering::Release);
    }

    pub(super) fn has(&self, slot: u16) -> bool {
        self.0[usize::from(slot / 64 % 64)].load(Ordering::Acquire) & 1 << (slot % 64) != 0
    }
}

/// Which numbers are in use.
#[derive(Debug, Default)]
pub(super) struct Qpns {
    /// Slots and their locks; the last one is where fresh numbers come from.
    slots: Vec<(u16, Lock)>,
    /// The next fresh index in the last slot.
    fresh: u32,
    /// Freed numbers, the first first.
    free: VecDeque<(Time, Qpn)>,
}

impl Qpns {
    /// Takes numbers from one more slot.
    pub(super) fn add_slot(&mut self, slot: u16, lock: Lock) {
        self.slots.push((slot, lock));
        self.fresh = 0;
    }

    /// A number that is fresh or has rested.
    pub(super) fn alloc(&mut self, now: Time) -> Option<Qpn> {
        if self.fresh < PER_SLOT
            && let Some(&(slot, _)) = self.slots.last()
        {
            let qpn = Qpn::new(u32::from(slot) << INDEX_BITS | self.fresh);
            self.fresh += 1;
            return Some(qpn);
        }
        let &(freed, _) = self.free.front()?;
        if now.saturating_since(freed) < REST {
            return None;
        }
        self.alloc_any()
    }

    /// The number that has rested longest, however short that was.
    pub(super) fn alloc_any(&mut self) -> Option<Qpn> {
        self.free.pop_front().map(|(_, qpn)| qpn)
    }

    /// The locks of the slots.
    pub(super) fn locks(&self) -> impl Iterator<Item = &Lock> {
        self.slots.iter().map(|(_, lock)| lock)
    }

    pub(super) fn free(&mut self, now: Time, qpn: Qpn) {
        self.free.push_back((now, qpn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::port::folder::Folder;
    use crate::roce::port::tests::TempFolder;

    #[test]
    fn numbers_rest() {
        let temp = TempFolder::new();
        let folder = Folder::open(temp.path()).unwrap();
        let at = |s| Time::new(Duration::from_secs(s));
        let mut qpns = Qpns::default();
        assert_eq!(qpns.alloc(at(0)), None);
        let (slot, lock) = folder.take_slot().unwrap();
        qpns.add_slot(slot, lock);
        let first = qpns.alloc(at(0)).unwrap();
        assert_eq!(slot_of(first), slot);
        qpns.free(at(0), first);
        for _ in 1..PER_SLOT {
            assert_ne!(qpns.alloc(at(100)).unwrap(), first);
        }
        assert_eq!(qpns.alloc(at(14)), None);
        assert_eq!(qpns.alloc(at(15)), Some(first));
        qpns.free(at(100), first);
        assert_eq!(qpns.alloc(at(101)), None);
        let (second, lock) = folder.take_slot().unwrap();
        qpns.add_slot(second, lock);
        assert_eq!(slot_of(qpns.alloc(at(101)).unwrap()), second);
        assert_eq!(qpns.alloc_any(), Some(first));
        assert_eq!(qpns.alloc_any(), None);
    }

    #[test]
    fn own_slots() {
        let slots = OwnSlots::new();
        for slot in [1, 63, 64, 0xffe] {
            assert!(!slots.has(slot));
            slots.add(slot);
            assert!(slots.has(slot));
        }
        assert!(!slots.has(0) && !slots.has(0xfff));
    }
}
