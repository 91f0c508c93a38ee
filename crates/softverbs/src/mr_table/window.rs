//! Memory windows: a part of a region under a key of its own, which comes and goes by work requests.
//!
//! A bound window is a slot like that of a region, for the same memory: what peers do through it
//! takes the same way. While it is bound its region cannot be deregistered, so what is said about
//! the memory of regions holds for it, too.
//!
//! Applications choose the lowest octet of a window's key, so a key does not tell the slot: it is
//! found by the other three octets, which no region's key shares, in a table. Once found it is
//! noted among the hints, so that the table is asked for keys that lead nowhere only.
//!
//! *Order of locks*: `order`, then the table's lock for slots, then that of `map`. Nobody waits
//! for pins with the lock of `map`, since whoever holds a pin may be looking for another key.

use std::collections::HashMap;
use std::result::Result;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use softverbs_proto::memory::{Access, MemoryFault};
use softverbs_proto::wr::BindMw;

use super::slot::{Pin, Slot};
use super::{Domain, MrTable, NONCE_BITS, NONCE_MASK, Region};
use crate::device::limits::MAX_MW;
use crate::error::{self, Error};

/// Types of memory windows; the values are those of `enum ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MwType {
    /// Bound by [`Qp::bind_mw`](crate::Qp::bind_mw), and then of use to all queue pairs of its
    /// protection domain.
    Type1 = 1,
    /// Bound by [`SendOp::BindMw`](crate::SendOp::BindMw), and then of use to that queue pair
    /// alone, until it is invalidated.
    Type2 = 2,
}

/// A window, bound or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    index: u32,
    mw_type: MwType,
    pd: u32,
    /// Its key, or the one that it had last.
    key: u32,
    bound: Option<Bound>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    /// Key of the region.
    region: u32,
    /// Queue pair of a window of type 2.
    qp: u32,
}

impl Window {
    /// Whether it is bound to this region.
    pub(super) fn shows(&self, region: u32) -> bool {
        self.bound.is_some_and(|bound| bound.region == region)
    }

    /// Whether it is bound for this queue pair alone.
    pub(super) fn is_of(&self, qp: u32) -> bool {
        self.mw_type == MwType::Type2 && self.bound.is_some_and(|bound| bound.qp == qp)
    }
}

type Map = HashMap<u32, Window>;

/// All windows of one context.
#[derive(Debug, Default)]
pub(super) struct Windows {
    /// By the part of their keys that stays.
    map: RwLock<Map>,
    /// How many there are: most programs have none, and need not ask.
    count: AtomicUsize,
    /// Held by who binds and unbinds.
    order: Mutex<()>,
}

/// The part of a window's key that stays.
const fn stem(key: u32) -> u32 {
    key >> 8
}

impl Windows {
    fn read(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: u32) -> Option<Window> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.read().get(&stem(key)).copied()
    }

    /// Whether a window may have this key.
    pub(super) fn have(&self, key: u32) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn index_of(&self, key: u32) -> Option<u32> {
        self.get(key).map(|window| window.index)
    }
}

impl MrTable {
    /// A new window; its key is of no use before it is bound.
    pub(crate) fn alloc_window(&self, pd: u32, mw_type: MwType) -> error::Result<u32> {
        let mut slots = self.lock();
        if self.windows.count.load(Ordering::Acquire) >= MAX_MW as usize {
            return Err(Error::Limit {
                what: "max_mw",
                limit: MAX_MW.into(),
            });
        }
        let index = self.take_index(&mut slots)?;
        let slot = self.slot_or_new(index);
        let mut map = self.windows.write();
        let key = loop {
            let key = self
                .cipher
                .encrypt(index << NONCE_BITS | slot.next_nonce() & NONCE_MASK);
            if stem(key) != 0 && !map.contains_key(&stem(key)) && !self.has_relatives(key) {
                break key;
            }
        };
        let window = Window {
            index,
            mw_type,
            pd,
            key,
            bound: None,
        };
        map.insert(stem(key), window);
        self.windows.count.fetch_add(1, Ordering::AcqRel);
        Ok(key)
    }

    /// Whether a region has a key that a window of this key may get, too. Called under the lock
    /// for slots, so that none gets one meanwhile.
    fn has_relatives(&self, key: u32) -> bool {
        (0..=u32::from(u8::MAX)).any(|octet| {
            let key = key & !0xff | octet;
            let slot = self.slot(self.cipher.decrypt(key) >> NONCE_BITS);
            slot.is_some_and(|slot| slot.has_key(key))
        })
    }

    /// The window goes, bound or not; returns when nothing uses it any more.
    pub(crate) fn dealloc_window(&self, key: u32) {
        let _order = self.windows.in_order();
        let Some(window) = self.windows.get(key) else {
            return;
        };
        self.revoke_window(&window);
        if self.windows.write().remove(&stem(key)).is_some() {
            self.windows.count.fetch_sub(1, Ordering::AcqRel);
            self.lock().free.push_back(window.index);
        }
    }

    /// The key of a window, or the one that it had last.
    pub(crate) fn window_key(&self, key: u32) -> Option<u32> {
        self.windows.get(key).map(|window| window.key)
    }

    /// Carries out a bind of a queue pair.
    pub(crate) fn bind(&self, bind: &BindMw, domain: Domain) -> Result<(), MemoryFault> {
        let _order = self.windows.in_order();
        let key = bind.rkey.get();
        let window = self
            .windows
            .get(bind.window.get())
            .filter(|_| stem(key) == stem(bind.window.get()))
            .ok_or(MemoryFault::InvalidKey)?;
        if window.pd != domain.pd {
            return Err(MemoryFault::WrongPd);
        }
        let region = bind.region.filter(|_| bind.length > 0);
        if window.mw_type == MwType::Type2 {
            // It is invalidated first, by a request of its own, and gets a new key each time.
            if window.bound.is_some() || region.is_none() {
                return Err(MemoryFault::Access);
            }
            if key == window.key {
                return Err(MemoryFault::InvalidKey);
            }
        }
        if let Some(region) = region {
            self.window_on(region.get(), bind, domain)?;
        }
        // What was wrong is known; from here on the former binding is no more.
        self.revoke_window(&window);
        // Nobody ends the region meanwhile.
        let mut map = self.windows.write();
        let Some(entry) = map.get_mut(&stem(key)) else {
            return Err(MemoryFault::InvalidKey);
        };
        entry.bound = None;
        entry.key = key;
        let Some(region) = region else {
            return Ok(());
        };
        let (_pin, part) = self.window_on(region.get(), bind, domain)?;
        let owner = match window.mw_type {
            MwType::Type1 => 0,
            MwType::Type2 => domain.qp,
        };
        let slot = self.slot(window.index).ok_or(MemoryFault::InvalidKey)?;
        slot.publish_as(key, &part, Some(owner));
        entry.bound = Some(Bound {
            region: region.get(),
            qp: domain.qp,
        });
        drop(map);
        self.hint(key).store(window.index, Ordering::Relaxed);
        Ok(())
    }

    /// What a window shows of a region, if it may.
    fn window_on(
        &self,
        region: u32,
        bind: &BindMw,
        domain: Domain,
    ) -> Result<(Pin<'_>, Region), MemoryFault> {
        let (_, slot) = self.find_region(region).ok_or(MemoryFault::InvalidKey)?;
        let pin = Pin::new(slot, region)
            .filter(|pin| !pin.is_window())
            .ok_or(MemoryFault::InvalidKey)?;
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let mut need = Access::MW_BIND;
        if bind.access.intersects(writes) {
            need |= Access::LOCAL_WRITE;
        }
        let offered = writes | Access::REMOTE_READ | Access::ZERO_BASED;
        // IBA vol 1 ch 10: none to a region that counts from zero itself.
        if !offered.contains(bind.access) || pin.access().contains(Access::ZERO_BASED) {
            return Err(MemoryFault::Access);
        }
        let len = usize::try_from(bind.length).map_err(|_| MemoryFault::Bounds)?;
        let base = pin.range(bind.addr, len, need, domain)?;
        let part = Region {
            base,
            len,
            iova: match bind.access.contains(Access::ZERO_BASED) {
                true => 0,
                false => bind.addr,
            },
            access: bind.access | need & Access::LOCAL_WRITE,
            pd: domain.pd,
        };
        Ok((pin, part))
    }

    /// A request of the queue pair or its peer invalidates a window.
    pub(super) fn invalidate_window(&self, key: u32, domain: Domain) -> Result<(), MemoryFault> {
        let _order = self.windows.in_order();
        let window = self
            .windows
            .get(key)
            .filter(|window| window.key == key && window.bound.is_some())
            .ok_or(MemoryFault::InvalidKey)?;
        match window.mw_type {
            MwType::Type1 => Err(MemoryFault::CannotInvalidate),
            MwType::Type2 if window.pd == domain.pd && window.is_of(domain.qp) => {
                self.revoke_window(&window);
                Ok(())
            }
            MwType::Type2 => Err(MemoryFault::WrongPd),
        }
    }

    /// Unbinds the windows of a queue pair that is destroyed or reset.
    pub(crate) fn unbind_windows_of(&self, qp: u32) {
        self.unbind_windows(|window| window.is_of(qp));
    }

    pub(super) fn unbind_windows(&self, wanted: impl Fn(&Window) -> bool) {
        if self.windows.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let _order = self.windows.in_order();
        let these: Vec<Window> = {
            let map = self.windows.read();
            map.values()
                .filter(|window| wanted(window))
                .copied()
                .collect()
        };
        for window in &these {
            self.revoke_window(window);
        }
    }

    /// Unbinds a window; returns when nothing uses it any more. Called in order.
    fn revoke_window(&self, window: &Window) {
        if window.bound.is_none() {
            return;
        }
        self.slot(window.index)
            .map(|slot: &Slot| slot.revoke(window.key));
        if let Some(entry) = self.windows.write().get_mut(&stem(window.key)) {
            entry.bound = None;
        }
    }
}
