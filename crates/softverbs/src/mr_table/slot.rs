//! Slots, pins, and access to the memory of the region in a slot.
//!
//! Finding a region and pinning it takes no lock. All that decides is in one atomic word of the
//! slot: key, two validity bits, and the number of pins.
//!
//! * [`Pin::new`] adds one pin and looks at the word *as it was at that very moment*. If it had
//!   another key or was invalid, the pin is taken back and nothing was touched.
//! * [`Slot::revoke`] clears the validity bits, then waits until there are no pins.
//!
//! All of these are read-modify-write operations on the same word, which have one order. A pin
//! that comes before the clearing in that order is seen by the wait; one that comes after it sees
//! that the region is invalid. Taking a pin away is a release operation, and the wait acquires:
//! read-modify-writes do not break release sequences, so all that was done under any of the pins
//! happens before `revoke` returns. Likewise [`Slot::publish`] writes the other fields of the
//! slot, then releases the word, and a pin acquires it. They stay as they are while there is a pin
//! on a valid region, because the slot is not reused before `revoke` has seen the last one go.
//! A late pin with an older key may come and go at any time; it changes the number and nothing
//! else, hence no operation overwrites the word blindly.

use std::fmt;
use std::hint;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use softverbs_proto::memory::{Access, MemoryFault};

use super::{Domain, Region};

/// The state word of a slot: the key above, then these.
const KEY_SHIFT: u32 = 32;
/// The key may be used by peers. Never set without [`VALID`].
const REMOTE: u64 = 1 << 31;
/// The key may be used.
const VALID: u64 = 1 << 30;
/// The number of pins.
const PINS: u64 = VALID - 1;

/// Whether a state word is that of a valid region with this key.
fn is_valid(state: u64, key: u32) -> bool {
    state >> KEY_SHIFT == u64::from(key) && state & VALID != 0
}

/// The rights that only peers need.
const REMOTE_RIGHTS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// A place for one region. On a cache line of its own, since pins write it.
#[repr(align(64))]
pub(super) struct Slot {
    state: AtomicU64,
    base: AtomicPtr<u8>,
    iova: AtomicU64,
    len: AtomicUsize,
    access: AtomicU32,
    pd: AtomicU32,
    /// The queue pair that alone may use it, 0 for none in particular.
    owner: AtomicU32,
    /// Of a memory window: its key is none for local use.
    window: AtomicBool,
    nonce: AtomicU32,
}

impl Slot {
    /// An empty slot.
    pub(super) const fn new(nonce: u32) -> Self {
        Self {
            state: AtomicU64::new(0),
            base: AtomicPtr::new(ptr::null_mut()),
            iova: AtomicU64::new(0),
            len: AtomicUsize::new(0),
            access: AtomicU32::new(0),
            pd: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            window: AtomicBool::new(false),
            nonce: AtomicU32::new(nonce),
        }
    }

    /// A number that differs from call to call. Called under the table's lock only.
    pub(super) fn next_nonce(&self) -> u32 {
        let nonce = self.nonce.load(Ordering::Relaxed);
        self.nonce.store(nonce.wrapping_add(1), Ordering::Relaxed);
        nonce
    }

    /// Whether this is its key, valid or not.
    pub(super) fn has_key(&self, key: u32) -> bool {
        self.state.load(Ordering::Relaxed) >> KEY_SHIFT == u64::from(key)
    }

    /// Lets a region into the empty slot. Called under the table's lock only.
    pub(super) fn publish(&self, key: u32, region: &Region) {
        self.publish_as(key, region, None);
    }

    /// The same, as a window for the queue pair `owner`, 0 for all of the protection domain.
    /// Called under the lock of the windows only.
    pub(super) fn publish_as(&self, key: u32, region: &Region, window: Option<u32>) {
        self.owner.store(window.unwrap_or(0), Ordering::Relaxed);
        self.window.store(window.is_some(), Ordering::Relaxed);
        self.base.store(region.base, Ordering::Relaxed);
        self.iova.store(region.iova, Ordering::Relaxed);
        self.len.store(region.len, Ordering::Relaxed);
        self.access.store(region.access.bits(), Ordering::Relaxed);
        self.pd.store(region.pd, Ordering::Relaxed);
        let word = u64::from(key) << KEY_SHIFT | REMOTE | VALID;
        self.update(Ordering::Release, |state| Some(word | state & PINS));
    }

    /// Takes the region with this key out of the slot, if it is there. Returns when nothing uses
    /// its memory any more; to exactly one caller with `true`.
    pub(super) fn revoke(&self, key: u32) -> bool {
        let revoked = self.disable(key);
        if revoked {
            self.drain();
        }
        revoked
    }

    /// The first half of `revoke`: nothing begins to use the memory any more.
    pub(super) fn disable(&self, key: u32) -> bool {
        self.update(Ordering::AcqRel, |state| {
            is_valid(state, key).then_some(state & !(VALID | REMOTE))
        })
    }

    /// The second half: waits for those that use it.
    pub(super) fn drain(&self) {
        let mut patience = 0_u64;
        while self.state.load(Ordering::Acquire) & PINS != 0 {
            patience += 1;
            match patience {
                0..64 => hint::spin_loop(),
                64..128 => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(patience.min(1000))),
            }
        }
    }

    /// Applies `next` to the state word until that sticks or `next` says no; whether it stuck.
    fn update(&self, order: Ordering, next: impl FnMut(u64) -> Option<u64>) -> bool {
        self.state
            .fetch_update(order, Ordering::Relaxed, next)
            .is_ok()
    }
}

/// A region that cannot be deregistered as long as this exists. Not to be held while waiting for
/// anything, nor while the same thread deregisters.
pub(crate) struct Pin<'a> {
    slot: &'a Slot,
}

impl fmt::Debug for Pin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin")
            .field("addr", &self.addr())
            .field("len", &self.len())
            .field("access", &self.access())
            .field("pd", &self.pd())
            .finish()
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.slot.state.fetch_sub(1, Ordering::Release);
    }
}

impl<'a> Pin<'a> {
    /// Pins the region in `slot` if it is valid and has this key.
    pub(super) fn new(slot: &'a Slot, key: u32) -> Option<Self> {
        // Look before writing: keys that lead nowhere must not disturb the slot's region.
        if is_valid(slot.state.load(Ordering::Relaxed), key) {
            Self::enter(slot, key)
        } else {
            None
        }
    }

    /// The part of `new` that decides.
    pub(super) fn enter(slot: &'a Slot, key: u32) -> Option<Self> {
        let before = slot.state.fetch_add(1, Ordering::Acquire);
        let pin = Self { slot };
        assert!(before & PINS < PINS / 2, "pins leak");
        is_valid(before, key).then_some(pin)
    }

    /// Makes the key invalid for peers.
    pub(super) fn invalidate(&self) {
        // The pin keeps the word that of this region.
        self.slot.state.fetch_and(!REMOTE, Ordering::AcqRel);
    }

    /// The first address of the region, as work requests name it.
    pub(crate) fn addr(&self) -> u64 {
        self.slot.iova.load(Ordering::Relaxed)
    }

    /// Octets in the region.
    pub(crate) fn len(&self) -> usize {
        self.slot.len.load(Ordering::Relaxed)
    }

    /// What the region may be used for.
    pub(crate) fn access(&self) -> Access {
        Access::from_bits_retain(self.slot.access.load(Ordering::Relaxed))
    }

    /// The protection domain that it belongs to.
    pub(crate) fn pd(&self) -> u32 {
        self.slot.pd.load(Ordering::Relaxed)
    }

    /// The queue pair that alone may use it, 0 for none in particular.
    fn owner(&self) -> u32 {
        self.slot.owner.load(Ordering::Relaxed)
    }

    /// Whether the key is that of a memory window.
    pub(super) fn is_window(&self) -> bool {
        self.slot.window.load(Ordering::Relaxed)
    }

    /// Whether an access to `len` octets at `addr` is allowed that needs the rights `need` and
    /// comes from `domain`. With any of the remote rights it is a peer's access,
    /// for which the key must not have been invalidated. Nothing lies outside of a region for an
    /// access of no octets.
    pub(crate) fn check(
        &self,
        addr: u64,
        len: u64,
        need: Access,
        domain: impl Into<Domain>,
    ) -> Result<(), MemoryFault> {
        self.offset(addr, len, need, domain).map(drop)
    }

    /// Checks an access and returns the pointer to its first octet: valid for `len` octets as
    /// long as the pin, for reads, and for writes if `need` has a right to write.
    pub(crate) fn range(
        &self,
        addr: u64,
        len: usize,
        need: Access,
        domain: impl Into<Domain>,
    ) -> Result<*mut u8, MemoryFault> {
        let offset = self.offset(addr, len as u64, need, domain)?;
        Ok(self.slot.base.load(Ordering::Relaxed).wrapping_add(offset))
    }

    /// Checks an access and returns where in the region it begins.
    fn offset(
        &self,
        addr: u64,
        len: u64,
        need: Access,
        domain: impl Into<Domain>,
    ) -> Result<usize, MemoryFault> {
        let remote = need.intersects(REMOTE_RIGHTS);
        if remote && self.slot.state.load(Ordering::Acquire) & REMOTE == 0 {
            return Err(MemoryFault::InvalidKey);
        }
        let domain = domain.into();
        if self.pd() != domain.pd || ![0, domain.qp].contains(&self.owner()) {
            return Err(MemoryFault::WrongPd);
        }
        if !self.access().contains(need) {
            return Err(MemoryFault::Access);
        }
        let Some(to_last) = len.checked_sub(1) else {
            return Ok(0);
        };
        if addr.checked_add(to_last).is_none() {
            return Err(MemoryFault::Wrap);
        }
        let offset = addr.checked_sub(self.addr()).ok_or(MemoryFault::Bounds)?;
        let behind = (self.len() as u64)
            .checked_sub(offset)
            .ok_or(MemoryFault::Bounds)?;
        if len > behind {
            return Err(MemoryFault::Bounds);
        }
        usize::try_from(offset).map_err(|_| MemoryFault::Bounds)
    }

    /// Copies out of the region.
    pub(crate) fn copy_out(
        &self,
        addr: u64,
        out: &mut [u8],
        domain: impl Into<Domain>,
    ) -> Result<(), MemoryFault> {
        let from = self.range(addr, out.len(), Access::empty(), domain)?;
        // SAFETY: `range` has checked that these octets lie in the region, which whoever
        // registered it keeps valid for reads until `dereg` returns, and that waits for this pin.
        // `out` is a slice of the same length; should it overlap the region, `copy` allows that.
        // Others (the application, peers through other threads) may write these octets at the same
        // time: as with an adapter's DMA, it is then open which values are copied. That much is
        // relied on and no more: a copy of octets has no invalid values, and nothing is decided by
        // what they are.
        unsafe { ptr::copy(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// See [`MrTable::append`].
    pub(crate) fn append_to(
        &self,
        addr: u64,
        len: usize,
        out: &mut Vec<u8>,
        domain: impl Into<Domain>,
    ) -> Result<(), MemoryFault> {
        let from = self.range(addr, len, Access::empty(), domain)?;
        out.reserve(len);
        let room = out.spare_capacity_mut();
        // SAFETY: as in `copy_out`: `range` has checked these octets, and the pin keeps them valid.
        // `room` is at least as long, and octets of a `MaybeUninit` may be written through a cast.
        unsafe { ptr::copy(from, room.as_mut_ptr().cast(), len) };
        let filled = out.len() + len;
        // SAFETY: the capacity was reserved, and the octets up to `filled` have just been written.
        unsafe { out.set_len(filled) };
        Ok(())
    }

    /// Copies into the region, for whoever has the rights `need`.
    pub(crate) fn copy_in(
        &self,
        addr: u64,
        data: &[u8],
        need: Access,
        domain: impl Into<Domain>,
    ) -> Result<(), MemoryFault> {
        let to = self.range(addr, data.len(), need, domain)?;
        // SAFETY: as in `copy_out`. The region is valid for writes too: either `need` has a right
        // to write, which `range` has found among those that it was registered with, or the caller
        // is `Mr::copy_in` with memory that the region itself allocated.
        unsafe { ptr::copy(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// See [`MrTable::atomic`].
    pub(crate) fn atomic(
        &self,
        addr: u64,
        domain: impl Into<Domain>,
        mut next: impl FnMut(u64) -> u64,
    ) -> Result<u64, MemoryFault> {
        let word = self
            .range(addr, size_of::<u64>(), Access::REMOTE_ATOMIC, domain)?
            .cast::<u64>();
        // The address may be aligned and the memory not, if the region has an address of its own
        // choice. No processor is atomic then.
        if !word.is_aligned() {
            return Err(MemoryFault::Access);
        }
        // SAFETY: aligned; valid for reads and writes while the pin lasts, since registration
        // grants REMOTE_ATOMIC only together with LOCAL_WRITE. Concurrent accesses that are not
        // atomic race with it as those in `copy_out` do.
        let word = unsafe { AtomicU64::from_ptr(word) };
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            match word.compare_exchange_weak(seen, next(seen), Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(before) => return Ok(before),
                Err(now) => seen = now,
            }
        }
    }
}
