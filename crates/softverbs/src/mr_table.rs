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
//! Memory windows have slots and keys, too; how those are found is told in `window`.
//!
//! How a region stays while it is being used, and goes when it is not, is told in `slot`.

mod key;
mod last_pin;
mod slot;
mod window;
mod word;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use softverbs_proto::memory::{Access, MemoryFault};
use softverbs_wire::num::{Lkey, Rkey};

use self::key::Cipher;
pub(crate) use self::last_pin::LastPin;
pub(crate) use self::slot::Pin;
use self::slot::Slot;
pub use self::window::MwType;
use self::window::Windows;
use crate::device::limits::MAX_MR;
use crate::error::{Error, Result};
use crate::same_host::grants::{end_grants, end_grants_to};

/// Bits of a key that are the nonce; the others are the slot index.
const NONCE_BITS: u32 = 12;
const NONCE_MASK: u32 = (1 << NONCE_BITS) - 1;

/// So many freed slots rest before the one that was freed first is used again.
const REST: usize = 1024;

/// Slots in the first bucket, and in the second. Each further one has twice those of the bucket
/// before it.
const FIRST_BUCKET: u32 = 64;
const BUCKETS: usize = 1 + (MAX_MR / FIRST_BUCKET).ilog2() as usize;

/// So long a process of this host is waited for that is stopped while it writes to a region.
const STOPPED: Duration = Duration::from_secs(2);

/// So many keys are found without deciphering them, more or less.
const HINTS: usize = 1024;

const _: () = assert!(
    MAX_MR == 1 << (u32::BITS - NONCE_BITS),
    "every index fits into a key"
);

/// Access flags that a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`), such as relaxed ordering.
const OPTIONAL_ACCESS: u32 = ((1 << 30) - 1) & !((1 << 20) - 1);

/// On whose behalf memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    /// Number of the protection domain.
    pub(crate) pd: u32,
    /// Number of the queue pair, 0 if it is none: windows of type 2 are for one of them.
    pub(crate) qp: u32,
}

impl From<u32> for Domain {
    fn from(pd: u32) -> Self {
        Self { pd, qp: 0 }
    }
}

/// All memory regions of one context.
pub(crate) struct MrTable {
    cipher: Cipher,
    /// Where the nonces of each slot begin.
    nonce_seed: u64,
    buckets: [OnceLock<Box<[Slot]>>; BUCKETS],
    /// Slot indices of recently used keys, to save deciphering; whether a hint is right shows in
    /// the slot.
    hints: [AtomicU32; HINTS],
    slots: Mutex<Slots>,
    windows: Windows,
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
        f.debug_struct("MrTable")
            .field("regions", &self.len())
            .finish_non_exhaustive()
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
            hints: [const { AtomicU32::new(0) }; HINTS],
            slots: Mutex::new(Slots {
                fresh: 0,
                free: VecDeque::new(),
            }),
            windows: Windows::default(),
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
        let index = self.take_index(&mut slots)?;
        let slot = self.slot_or_new(index);
        let key = loop {
            match self
                .cipher
                .encrypt(index << NONCE_BITS | slot.next_nonce() & NONCE_MASK)
            {
                // Zero is no key, so that it can mean "none".
                0 => (),
                key if self.windows.have(key) => (),
                key => break key,
            }
        };
        slot.publish(key, region);
        self.hint(key).store(index, Ordering::Relaxed);
        Ok(key)
    }

    /// A slot to be used.
    fn take_index(&self, slots: &mut Slots) -> Result<u32> {
        let rested = slots.free.len() > REST || slots.fresh == MAX_MR;
        let index = if rested {
            slots.free.pop_front()
        } else {
            Some(slots.fresh)
        };
        let Some(index) = index else {
            return Err(Error::Limit {
                what: "max_mr",
                limit: MAX_MR.into(),
            });
        };
        if index == slots.fresh {
            slots.fresh += 1;
        }
        Ok(index)
    }

    /// Lets the key of a region stand for other memory, or gives it other rights; returns when
    /// nothing uses the memory of before any more. Until then the key is invalid, and who comes with
    /// it is refused. Nothing is changed on an error; EBUSY if a window is bound to the region.
    ///
    /// # Safety
    /// As for `register`, from now on for the new memory; for that of before until this returns.
    pub(crate) unsafe fn rereg(&self, key: u32, region: &Region) -> Result<()> {
        check_region(region)?;
        let slot = self.end(key)?;
        slot.drain();
        slot.publish(key, region);
        Ok(())
    }

    /// Makes the key of a region invalid, so that nothing begins to use it, and other processes of this
    /// host do not go on to. EBUSY, and nothing is changed, if a window is bound to the region, or if one
    /// of those processes is stopped while it writes.
    fn end(&self, key: u32) -> Result<&Slot> {
        if !end_grants_to(key, STOPPED) {
            return Err(Error::Busy {
                what: "memory region: a process that is stopped is writing to it",
            });
        }
        // Nobody binds a window to it meanwhile.
        let windows = self.windows.write();
        if windows.values().any(|window| window.shows(key)) {
            return Err(Error::Busy {
                what: "memory region: a window is bound to it",
            });
        }
        let slot = self
            .find_region(key)
            .map(|(_, slot)| slot)
            .filter(|slot| slot.disable(key))
            .ok_or(Error::Memory(MemoryFault::InvalidKey))?;
        drop(windows);
        // What was granted a moment ago only, by a write that came before.
        while !end_grants_to(key, STOPPED) {}
        Ok(slot)
    }

    /// Ends a registration. Returns when nothing uses the memory any more and nothing will. EBUSY
    /// if a window is bound to it.
    pub(crate) fn try_dereg(&self, key: u32) -> Result<()> {
        self.end(key)?.drain();
        if let Some((index, _)) = self.find_region(key) {
            self.lock().free.push_back(index);
        }
        Ok(())
    }

    /// The same; windows that are bound to it are unbound.
    pub(crate) fn dereg(&self, key: u32) -> std::result::Result<(), MemoryFault> {
        loop {
            self.unbind_windows(|window| window.shows(key));
            match self.try_dereg(key) {
                Ok(()) => return Ok(()),
                Err(Error::Busy { .. }) => {}
                Err(_) => return Err(MemoryFault::InvalidKey),
            }
        }
    }

    /// Makes a key invalid for peers, at once for accesses that are checked from now on. The
    /// region stays registered, and its owner may go on using it.
    ///
    /// A window of type 2 is unbound, when nothing uses it any more; one of type 1 cannot be
    /// invalidated.
    pub(crate) fn invalidate(
        &self,
        key: Rkey,
        domain: impl Into<Domain>,
    ) -> std::result::Result<(), MemoryFault> {
        let domain = domain.into();
        if self.windows.have(key.get()) {
            return self.invalidate_window(key.get(), domain);
        }
        let pin = self.pin(key.get()).ok_or(MemoryFault::InvalidKey)?;
        if pin.pd() != domain.pd {
            return Err(MemoryFault::WrongPd);
        }
        // That it already was invalid for peers is no error.
        pin.invalidate();
        end_grants();
        Ok(())
    }

    /// Finds a region and keeps it from being deregistered until the pin is dropped.
    pub(crate) fn pin(&self, key: u32) -> Option<Pin<'_>> {
        Pin::new(self.find(key)?.1, key)
    }

    /// Checks an access; see [`Pin::check`].
    #[cfg(test)]
    pub(crate) fn check(
        &self,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
        domain: impl Into<Domain>,
    ) -> std::result::Result<(), MemoryFault> {
        self.pin(key)
            .ok_or(MemoryFault::InvalidKey)?
            .check(addr, len, need, domain)
    }

    /// Copies out of a region. Nothing is checked if there is nothing to copy.
    pub(crate) fn read(
        &self,
        key: Lkey,
        addr: u64,
        out: &mut [u8],
        domain: impl Into<Domain>,
    ) -> std::result::Result<(), MemoryFault> {
        if out.is_empty() {
            return Ok(());
        }
        self.pin(key.get())
            .ok_or(MemoryFault::InvalidKey)?
            .copy_out(addr, out, domain)
    }

    /// Copies out of a region, behind what is in `out`; nothing is appended on an error. Spares the
    /// zeroing that a slice to read into would need.
    #[cfg(test)]
    pub(crate) fn append(
        &self,
        key: Lkey,
        addr: u64,
        len: usize,
        out: &mut Vec<u8>,
        domain: impl Into<Domain>,
    ) -> std::result::Result<(), MemoryFault> {
        if len == 0 {
            return Ok(());
        }
        self.pin(key.get())
            .ok_or(MemoryFault::InvalidKey)?
            .append_to(addr, len, out, domain)
    }

    /// Copies into a region. Nothing is checked if there is nothing to copy.
    #[cfg(test)]
    pub(crate) fn write(
        &self,
        key: Lkey,
        addr: u64,
        data: &[u8],
        domain: impl Into<Domain>,
    ) -> std::result::Result<(), MemoryFault> {
        if data.is_empty() {
            return Ok(());
        }
        let pin = self.pin(key.get()).ok_or(MemoryFault::InvalidKey)?;
        pin.copy_in(addr, data, Access::LOCAL_WRITE, domain)
    }

    /// Replaces the aligned 64-bit word at `addr` by what `next` makes of it, and returns what was
    /// there. Atomic with respect to every other atomic access to that word, the application's
    /// too. `next` may be called more than once.
    pub(crate) fn atomic(
        &self,
        key: Rkey,
        addr: u64,
        domain: impl Into<Domain>,
        next: impl FnMut(u64) -> u64,
    ) -> std::result::Result<u64, MemoryFault> {
        self.pin(key.get())
            .ok_or(MemoryFault::InvalidKey)?
            .atomic(addr, domain, next)
    }

    /// Pins a region and returns, besides the pin, a pointer to `len` octets of it that are valid
    /// as long as the pin.
    pub(crate) fn iovec(
        &self,
        key: Lkey,
        addr: u64,
        len: usize,
        need: Access,
        domain: impl Into<Domain>,
    ) -> std::result::Result<(Pin<'_>, *mut u8), MemoryFault> {
        let pin = self.pin(key.get()).ok_or(MemoryFault::InvalidKey)?;
        let start = pin.range(addr, len, need, domain)?;
        Ok((pin, start))
    }

    /// The slot with this key, of a region or of a window.
    fn find(&self, key: u32) -> Option<(u32, &Slot)> {
        self.find_region(key).or_else(|| {
            let index = self.windows.index_of(key)?;
            let slot = self.slot(index).filter(|slot| slot.has_key(key))?;
            self.hint(key).store(index, Ordering::Relaxed);
            Some((index, slot))
        })
    }

    /// The slot with this key, without looking for windows.
    fn find_region(&self, key: u32) -> Option<(u32, &Slot)> {
        let hint = self.hint(key);
        let index = hint.load(Ordering::Relaxed);
        if let Some(slot) = self.slot(index).filter(|slot| slot.has_key(key)) {
            return Some((index, slot));
        }
        let index = self.cipher.decrypt(key) >> NONCE_BITS;
        let slot = self.slot(index).filter(|slot| slot.has_key(key))?;
        hint.store(index, Ordering::Relaxed);
        Some((index, slot))
    }

    /// Where the slot of a key is noted.
    fn hint(&self, key: u32) -> &AtomicU32 {
        &self.hints[key as usize % HINTS]
    }

    /// The slot of an index, if it was ever used.
    fn slot(&self, index: u32) -> Option<&Slot> {
        let (bucket, place) = locate(index);
        let slots: &[Slot] = self.buckets[bucket].get()?;
        slots.get(place)
    }

    /// The slot of an index, made if it is the first of its bucket. Called under the lock.
    fn slot_or_new(&self, index: u32) -> &Slot {
        let (bucket, place) = locate(index);
        let slots = self.buckets[bucket].get_or_init(|| {
            let first = index;
            let len = if bucket == 0 { FIRST_BUCKET } else { first };
            (first..first + len)
                .map(|index| Slot::new(self.first_nonce(index)))
                .collect()
        });
        &slots[place]
    }

    /// Where the nonces of a slot begin (SplitMix64).
    fn first_nonce(&self, index: u32) -> u32 {
        let word = self
            .nonce_seed
            .wrapping_add(u64::from(index))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
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
        (
            (power - FIRST_BUCKET.ilog2() + 1) as usize,
            (index - (1 << power)) as usize,
        )
    }
}

fn check_region(region: &Region) -> Result<()> {
    let Region {
        base,
        len,
        iova,
        access,
        ..
    } = *region;
    let unknown = access.bits() & !Access::all().bits() & !OPTIONAL_ACCESS;
    if unknown != 0 {
        return Err(Error::invalid(
            "access",
            format!("unknown flags {unknown:#x}"),
        ));
    }
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        && !access.contains(Access::LOCAL_WRITE)
    {
        return Err(Error::invalid(
            "access",
            "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE",
        ));
    }
    if isize::try_from(len).is_err() {
        return Err(Error::invalid(
            "length",
            format!("{len} octets are more than max_mr_size"),
        ));
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

#[cfg(test)]
mod tests;
