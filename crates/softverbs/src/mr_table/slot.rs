//! Slots, pins, and access to the memory of the region in a slot.
//!
//! Finding a region and pinning it takes no lock. All that decides is in one atomic [`Word`] of the
//! slot. The other fields are written before the word is published, and stay as they are while
//! there is a pin on a valid region, because the slot is not reused before [`Slot::revoke`] has
//! seen the last one go.

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use softverbs_proto::memory::{Access, MemoryFault};

use super::word::Word;
use super::{Domain, Region};

/// The rights that only peers need.
const REMOTE_RIGHTS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// A place for one region. On a cache line of its own, since pins write it.
#[repr(align(64))]
pub(super) struct Slot {
    word: Word,
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
    pub(super) fn new(nonce: u32) -> Self {
        Self {
            word: Word::new(),
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
        self.word.has_key(key)
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
        self.word.publish(key);
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
        self.word.disable(key)
    }

    /// The second half: waits for those that use it.
    pub(super) fn drain(&self) {
        self.word.drain();
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
        self.slot.word.leave();
    }
}

impl<'a> Pin<'a> {
    /// Pins the region in `slot` if it is valid and has this key.
    pub(super) fn new(slot: &'a Slot, key: u32) -> Option<Self> {
        // Look before writing: keys that lead nowhere must not disturb the slot's region.
        slot.word.looks_valid(key).then(|| Self::enter(slot, key))?
    }

    /// The part of `new` that decides.
    pub(super) fn enter(slot: &'a Slot, key: u32) -> Option<Self> {
        let may_use = slot.word.enter(key);
        let pin = Self { slot };
        may_use.then_some(pin)
    }

    /// Makes the key invalid for peers.
    pub(super) fn invalidate(&self) {
        self.slot.word.invalidate();
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
    pub(crate) fn is_window(&self) -> bool {
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

    /// Checks an access of our own work requests: a window is not for those.
    pub(crate) fn check_local(
        &self,
        addr: u64,
        len: u64,
        need: Access,
        domain: impl Into<Domain>,
    ) -> Result<(), MemoryFault> {
        if self.is_window() {
            return Err(MemoryFault::InvalidKey);
        }
        self.check(addr, len, need, domain)
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
        if remote && !self.slot.word.is_remote() {
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
        // Others (the application, peers through other threads) may write these octets at the same
        // time: as with an adapter's DMA, it is then open which values are copied. That much is
        // relied on and no more: a copy of octets has no invalid values, and nothing is decided by
        // what they are.
        // SAFETY: `range` has checked that these octets lie in the region, which whoever
        // registered it keeps valid for reads until `dereg` returns, and that waits for this pin.
        // `out` is a slice of the same length; should it overlap the region, `copy` allows that.
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
