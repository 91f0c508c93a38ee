//! The memory regions of a context, found by their keys.
//!
//! This is one of the few files with `unsafe`: the memory of applications is reached from here,
//! through raw pointers only. Its promise to everybody else: no octet outside of a registered
//! region is touched, none of a region after [`MrTable::dereg`] returned, and none without the
//! right to.
//!
//! # Slots and keys
//! A region has a slot, and slots never move. Its key is `cipher(slot index | nonce)`: the inverse
//! leads to the slot, which knows its present key. Each new region in a slot gets the next of its
//! 4096 nonces, and freed slots rest in a queue of at least [`REST`] before they are used again, so
//! that a key comes back after millions of registrations at the earliest.
//!
//! # Pins
//! Finding a region and pinning it takes no lock. All that decides is in one atomic word of the
//! slot: key, two validity bits, and the number of pins.
//!
//! * [`MrTable::pin`] adds one pin and looks at the word *as it was at that very moment*. If it had
//!   another key or was invalid, the pin is taken back and nothing was touched.
//! * [`MrTable::dereg`] clears the validity bits, then waits until there are no pins.
//!
//! All of these are read-modify-write operations on the same word, which have one order. A pin
//! that comes before the clearing in that order is seen by the wait; one that comes after it sees
//! that the region is invalid. Taking a pin away is a release operation, and the wait acquires:
//! read-modify-writes do not break release sequences, so all that was done under any of the pins
//! happens before `dereg` returns. Likewise the registration writes the other fields of the slot,
//! then releases the word, and a pin acquires it. They stay as they are while there is a pin
//! on a valid region, because the slot is not reused before `dereg` has seen the last one go.
//!
//! Pins are short: a copy, or one non-blocking system call. Holding one while waiting for anything
//! would make `dereg` wait too.

#![allow(unsafe_code, reason = "reaches registered memory; see above")]

mod key;

use std::collections::VecDeque;
use std::fmt;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use softverbs_proto::memory::{Access, MemoryFault};
use softverbs_wire::crc32c::Crc32c;
use softverbs_wire::num::{Lkey, Rkey};

use self::key::Cipher;
use crate::device::limits::MAX_MR;
use crate::error::{Error, Result};

/// Bits of a key that are the nonce; the others are the slot index.
const NONCE_BITS: u32 = 12;
const NONCE_MASK: u32 = (1 << NONCE_BITS) - 1;

/// So many freed slots rest before the one that was freed first is used again.
const REST: usize = 1024;

/// Slots in the first bucket, and in the second. Each further one has twice those of the bucket
/// before it.
const FIRST_BUCKET: u32 = 64;
const BUCKETS: usize = 1 + (MAX_MR / FIRST_BUCKET).ilog2() as usize;

const _: () = assert!(MAX_MR == 1 << (u32::BITS - NONCE_BITS), "every index fits into a key");

/// The state word of a slot: the key above, then these.
const KEY_SHIFT: u32 = 32;
/// The key may be used by peers. Never set without [`VALID`].
const REMOTE: u64 = 1 << 31;
/// The key may be used.
const VALID: u64 = 1 << 30;
/// The number of pins.
const PINS: u64 = VALID - 1;

/// The rights that only peers need.
const REMOTE_RIGHTS: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Access flags that a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`), such as relaxed ordering.
const OPTIONAL_ACCESS: u32 = ((1 << 30) - 1) & !((1 << 20) - 1);

/// A place for one region. On a cache line of its own, since pins write it.
#[repr(align(64))]
struct Slot {
    state: AtomicU64,
    /// Where the memory is.
    base: AtomicPtr<u8>,
    /// The address that stands for `base` in work requests.
    iova: AtomicU64,
    len: AtomicUsize,
    access: AtomicU32,
    pd: AtomicU32,
    /// For the next key; used under the lock only.
    nonce: AtomicU32,
}

impl Slot {
    const fn new(nonce: u32) -> Self {
        Self {
            state: AtomicU64::new(0),
            base: AtomicPtr::new(ptr::null_mut()),
            iova: AtomicU64::new(0),
            len: AtomicUsize::new(0),
            access: AtomicU32::new(0),
            pd: AtomicU32::new(0),
            nonce: AtomicU32::new(nonce),
        }
    }
}

/// Whether a state word is that of a valid region with this key.
const fn is_valid(state: u64, key: u32) -> bool {
    state >> KEY_SHIFT == key as u64 && state & VALID != 0
}

/// All memory regions of one context.
pub(crate) struct MrTable {
    cipher: Cipher,
    /// Where the nonces of each slot begin.
    nonce_seed: u64,
    buckets: [OnceLock<Box<[Slot]>>; BUCKETS],
    slots: Mutex<Slots>,
}

/// Which slots are in use.
struct Slots {
    /// The first one that was never used.
    fresh: u32,
    /// Those that were freed, the first first.
    free: VecDeque<u32>,
}

impl fmt::Debug for MrTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MrTable").field("regions", &self.len()).finish_non_exhaustive()
    }
}

/// What is to be registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// Start of the memory.
    pub(crate) base: *mut u8,
    /// Octets.
    pub(crate) len: usize,
    /// The address that stands for `base` in work requests; mostly that of `base`.
    pub(crate) iova: u64,
    /// What it may be used for.
    pub(crate) access: Access,
    /// Number of the protection domain.
    pub(crate) pd: u32,
}

impl MrTable {
    /// An empty table with a secret of its own.
    pub(crate) fn new() -> Result<Self> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret)
            .map_err(|error| Error::os("getrandom", error.raw_os_error().unwrap_or(libc::EIO)))?;
        let [a, b, c, d, e, f, g, h, seed @ ..] = secret;
        let words = [[a, b], [c, d], [e, f], [g, h]].map(u16::from_ne_bytes);
        Ok(Self {
            cipher: Cipher::new(words),
            nonce_seed: u64::from_ne_bytes(seed),
            buckets: [const { OnceLock::new() }; BUCKETS],
            slots: Mutex::new(Slots { fresh: 0, free: VecDeque::new() }),
        })
    }

    /// How many regions are registered.
    pub(crate) fn len(&self) -> usize {
        let slots = self.lock();
        slots.fresh as usize - slots.free.len()
    }

    /// Registers memory and returns its key.
    ///
    /// # Safety
    /// Until `dereg` has returned for this key, the memory must be valid for reads, and for writes
    /// if `access` has any right to write. While work requests or peers may use it, the
    /// application must not hold references to it, only raw pointers, and must expect that it
    /// changes at any time.
    pub(crate) unsafe fn register(&self, region: &Region) -> Result<u32> {
        check_region(region)?;
        let mut slots = self.lock();
        let rested = slots.free.len() > REST || slots.fresh == MAX_MR;
        let index = if rested { slots.free.pop_front() } else { Some(slots.fresh) };
        let Some(index) = index else {
            return Err(Error::Limit { what: "max_mr", limit: MAX_MR.into() });
        };
        if index == slots.fresh {
            slots.fresh += 1;
        }
        let slot = self.slot_or_new(index);
        let key = loop {
            let nonce = slot.nonce.load(Ordering::Relaxed);
            slot.nonce.store(nonce.wrapping_add(1) & NONCE_MASK, Ordering::Relaxed);
            match self.cipher.encrypt(index << NONCE_BITS | nonce) {
                // Zero is no key, so that it can mean "none".
                0 => (),
                key => break key,
            }
        };
        slot.base.store(region.base, Ordering::Relaxed);
        slot.iova.store(region.iova, Ordering::Relaxed);
        slot.len.store(region.len, Ordering::Relaxed);
        slot.access.store(region.access.bits(), Ordering::Relaxed);
        slot.pd.store(region.pd, Ordering::Relaxed);
        // Not a plain store: a late pin for an older key may just be coming and going.
        let word = u64::from(key) << KEY_SHIFT | REMOTE | VALID;
        update(&slot.state, Ordering::Release, |state| Some(word | state & PINS));
        Ok(key)
    }

    /// Ends a registration. Returns when nothing uses the memory any more and nothing will.
    pub(crate) fn dereg(&self, key: u32) -> std::result::Result<(), MemoryFault> {
        let (index, slot) = self.find(key).ok_or(MemoryFault::InvalidKey)?;
        let cleared = update(&slot.state, Ordering::AcqRel, |state| {
            is_valid(state, key).then_some(state & !(VALID | REMOTE))
        });
        if !cleared {
            return Err(MemoryFault::InvalidKey);
        }
        let mut patience = 0_u32;
        while slot.state.load(Ordering::Acquire) & PINS != 0 {
            patience += 1;
            match patience {
                0..64 => std::hint::spin_loop(),
                64..128 => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(u64::from(patience.min(1000)))),
            }
        }
        self.lock().free.push_back(index);
        Ok(())
    }

    /// Makes a key invalid for peers, at once for accesses that are checked from now on. The
    /// region stays registered, and its owner may go on using it.
    pub(crate) fn invalidate(&self, key: Rkey, pd: u32) -> std::result::Result<(), MemoryFault> {
        let pin = self.pin(key.get()).ok_or(MemoryFault::InvalidKey)?;
        if pin.pd() != pd {
            return Err(MemoryFault::WrongPd);
        }
        // The pin keeps the word that of this region. That the key already was invalid for peers
        // is no error.
        pin.slot.state.fetch_and(!REMOTE, Ordering::AcqRel);
        Ok(())
    }

    /// Finds a region and keeps it from being deregistered until the pin is dropped.
    pub(crate) fn pin(&self, key: u32) -> Option<Pin<'_>> {
        let (_, slot) = self.find(key)?;
        // Look before writing: keys that lead nowhere must not disturb the slot's region.
        if !is_valid(slot.state.load(Ordering::Relaxed), key) {
            return None;
        }
        let before = slot.state.fetch_add(1, Ordering::Acquire);
        let pin = Pin { slot };
        assert!(before & PINS < PINS / 2, "pins leak");
        is_valid(before, key).then_some(pin)
    }

    /// Checks an access; see [`Pin::check`].
    pub(crate) fn check(
        &self,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
        pd: u32,
    ) -> std::result::Result<(), MemoryFault> {
        self.pin(key).ok_or(MemoryFault::InvalidKey)?.check(addr, len, need, pd)
    }

    /// Copies out of a region. Nothing is checked if there is nothing to copy.
    pub(crate) fn read(
        &self,
        key: Lkey,
        addr: u64,
        out: &mut [u8],
        pd: u32,
    ) -> std::result::Result<(), MemoryFault> {
        if out.is_empty() {
            return Ok(());
        }
        self.pin(key.get()).ok_or(MemoryFault::InvalidKey)?.copy_out(addr, out, pd)
    }

    /// Copies into a region. Nothing is checked if there is nothing to copy.
    pub(crate) fn write(
        &self,
        key: Lkey,
        addr: u64,
        data: &[u8],
        pd: u32,
    ) -> std::result::Result<(), MemoryFault> {
        if data.is_empty() {
            return Ok(());
        }
        let pin = self.pin(key.get()).ok_or(MemoryFault::InvalidKey)?;
        pin.copy_in(addr, data, Access::LOCAL_WRITE, pd)
    }

    /// Continues a CRC32C over a piece of a region.
    pub(crate) fn crc32c(
        &self,
        crc: Crc32c,
        key: Lkey,
        addr: u64,
        len: usize,
        pd: u32,
    ) -> std::result::Result<Crc32c, MemoryFault> {
        if len == 0 {
            return Ok(crc);
        }
        self.pin(key.get()).ok_or(MemoryFault::InvalidKey)?.crc32c(crc, addr, len, pd)
    }

    /// Replaces the aligned 64-bit word at `addr` by what `next` makes of it, and returns what was
    /// there. Atomic with respect to every other atomic access to that word, the application's
    /// too. `next` may be called more than once.
    pub(crate) fn atomic(
        &self,
        key: Rkey,
        addr: u64,
        pd: u32,
        next: impl FnMut(u64) -> u64,
    ) -> std::result::Result<u64, MemoryFault> {
        self.pin(key.get()).ok_or(MemoryFault::InvalidKey)?.atomic(addr, pd, next)
    }

    /// Pins a region and returns, besides the pin, a pointer to `len` octets of it that are valid
    /// as long as the pin.
    pub(crate) fn iovec(
        &self,
        key: Lkey,
        addr: u64,
        len: usize,
        need: Access,
        pd: u32,
    ) -> std::result::Result<(Pin<'_>, *mut u8), MemoryFault> {
        let pin = self.pin(key.get()).ok_or(MemoryFault::InvalidKey)?;
        let start = pin.range(addr, len, need, pd)?;
        Ok((pin, start))
    }

    /// The slot that a key leads to, whether it is the slot's key or not.
    fn find(&self, key: u32) -> Option<(u32, &Slot)> {
        let index = self.cipher.decrypt(key) >> NONCE_BITS;
        let (bucket, place) = locate(index);
        let slots: &[Slot] = self.buckets[bucket].get()?;
        Some((index, slots.get(place)?))
    }

    /// The slot of an index, made if it is the first of its bucket. Called under the lock.
    fn slot_or_new(&self, index: u32) -> &Slot {
        let (bucket, place) = locate(index);
        let slots = self.buckets[bucket].get_or_init(|| {
            let first = index;
            let len = if bucket == 0 { FIRST_BUCKET } else { first };
            (first..first + len).map(|index| Slot::new(self.first_nonce(index))).collect()
        });
        &slots[place]
    }

    /// Where the nonces of a slot begin (SplitMix64).
    fn first_nonce(&self, index: u32) -> u32 {
        let word =
            self.nonce_seed.wrapping_add(u64::from(index)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word >> (u64::BITS - NONCE_BITS)) as u32
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bucket and place in it of a slot index below [`MAX_MR`].
const fn locate(index: u32) -> (usize, usize) {
    if index < FIRST_BUCKET {
        (0, index as usize)
    } else {
        let power = index.ilog2();
        ((power - FIRST_BUCKET.ilog2() + 1) as usize, (index - (1 << power)) as usize)
    }
}

/// Applies `next` to an atomic word until it sticks or says no; whether it stuck.
fn update(word: &AtomicU64, order: Ordering, next: impl FnMut(u64) -> Option<u64>) -> bool {
    word.fetch_update(order, Ordering::Relaxed, next).is_ok()
}

fn check_region(region: &Region) -> Result<()> {
    let Region { base, len, iova, access, .. } = *region;
    let unknown = access.bits() & !Access::all().bits() & !OPTIONAL_ACCESS;
    if unknown != 0 {
        return Err(Error::invalid("access", format!("unknown flags {unknown:#x}")));
    }
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        && !access.contains(Access::LOCAL_WRITE)
    {
        return Err(Error::invalid("access", "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE"));
    }
    if isize::try_from(len).is_err() {
        return Err(Error::invalid("length", format!("{len} octets are more than max_mr_size")));
    }
    let wraps = base.addr().checked_add(len).is_none() || iova.checked_add(len as u64).is_none();
    if wraps {
        return Err(Error::invalid(
            "length",
            format!("{len} octets reach beyond the address space"),
        ));
    }
    if base.is_null() && len > 0 {
        return Err(Error::invalid("addr", "the null pointer"));
    }
    Ok(())
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

impl Pin<'_> {
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

    /// Whether an access to `len` octets at `addr` is allowed that needs the rights `need` and
    /// comes from the protection domain `pd`. With any of the remote rights it is a peer's access,
    /// for which the key must not have been invalidated. Nothing lies outside of a region for an
    /// access of no octets.
    pub(crate) fn check(
        &self,
        addr: u64,
        len: u64,
        need: Access,
        pd: u32,
    ) -> std::result::Result<(), MemoryFault> {
        self.offset(addr, len, need, pd).map(drop)
    }

    /// Checks an access and returns the pointer to its first octet: valid for `len` octets as
    /// long as the pin, for reads, and for writes if `need` has a right to write.
    pub(crate) fn range(
        &self,
        addr: u64,
        len: usize,
        need: Access,
        pd: u32,
    ) -> std::result::Result<*mut u8, MemoryFault> {
        let offset = self.offset(addr, len as u64, need, pd)?;
        Ok(self.slot.base.load(Ordering::Relaxed).wrapping_add(offset))
    }

    /// Checks an access and returns where in the region it begins.
    fn offset(
        &self,
        addr: u64,
        len: u64,
        need: Access,
        pd: u32,
    ) -> std::result::Result<usize, MemoryFault> {
        let remote = need.intersects(REMOTE_RIGHTS);
        if remote && self.slot.state.load(Ordering::Acquire) & REMOTE == 0 {
            return Err(MemoryFault::InvalidKey);
        }
        if self.pd() != pd {
            return Err(MemoryFault::WrongPd);
        }
        if !self.access().contains(need) {
            return Err(MemoryFault::Access);
        }
        let Some(to_last) = len.checked_sub(1) else { return Ok(0) };
        if addr.checked_add(to_last).is_none() {
            return Err(MemoryFault::Wrap);
        }
        let offset = addr.checked_sub(self.addr()).ok_or(MemoryFault::Bounds)?;
        let behind = (self.len() as u64).checked_sub(offset).ok_or(MemoryFault::Bounds)?;
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
        pd: u32,
    ) -> std::result::Result<(), MemoryFault> {
        let from = self.range(addr, out.len(), Access::empty(), pd)?;
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

    /// Copies into the region, for whoever has the rights `need`.
    pub(crate) fn copy_in(
        &self,
        addr: u64,
        data: &[u8],
        need: Access,
        pd: u32,
    ) -> std::result::Result<(), MemoryFault> {
        let to = self.range(addr, data.len(), need, pd)?;
        // SAFETY: as in `copy_out`. The region is valid for writes too: either `need` has a right
        // to write, which `range` has found among those that it was registered with, or the caller
        // is `Mr::copy_in` with memory that the region itself allocated.
        unsafe { ptr::copy(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Continues a CRC32C over a piece of the region.
    pub(crate) fn crc32c(
        &self,
        crc: Crc32c,
        addr: u64,
        len: usize,
        pd: u32,
    ) -> std::result::Result<Crc32c, MemoryFault> {
        let from = self.range(addr, len, Access::empty(), pd)?;
        // SAFETY: valid for reads of `len` octets while the pin lasts, as in `copy_out`; `range`
        // has bounded `len` by the region's length, which is at most `isize::MAX`. The slice lives
        // for the one call, which loads each octet and decides nothing by it: if others write at
        // the same time, the result is a wrong CRC, which is what the peer is then to find.
        let octets = unsafe { slice::from_raw_parts(from, len) };
        Ok(crc.update(octets))
    }

    /// See [`MrTable::atomic`].
    pub(crate) fn atomic(
        &self,
        addr: u64,
        pd: u32,
        mut next: impl FnMut(u64) -> u64,
    ) -> std::result::Result<u64, MemoryFault> {
        let word = self.range(addr, size_of::<u64>(), Access::REMOTE_ATOMIC, pd)?.cast::<u64>();
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

#[cfg(test)]
mod tests;
