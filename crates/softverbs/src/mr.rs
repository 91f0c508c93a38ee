//! Memory regions.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use softverbs_proto::memory::{Access, MemoryFault};
use softverbs_proto::wr::Sge;
use softverbs_wire::num::{Lkey, Rkey};

use crate::context::Pd;
use crate::error::{Error, Result};
use crate::mr_table::{MrTable, Region};

/// A registered memory region. Cloning makes another handle; it is deregistered when the last
/// handle is dropped, or by [`dereg`](Self::dereg).
#[derive(Clone)]
pub struct Mr {
    inner: Arc<Inner>,
}

struct Inner {
    table: Arc<MrTable>,
    key: u32,
    /// Whether it is deregistered. Held by who deregisters or changes it.
    ended: Mutex<bool>,
    now: RwLock<Now>,
}

/// What a region is now. Released after `Inner::drop` has deregistered it.
struct Now {
    region: Region,
    /// The memory, if it is our own.
    memory: Option<Allocation>,
    /// The protection domain, and with it all that must not go away before.
    parent: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointers are only handed out, compared or released; the memory behind them is reached
// through the table, which any thread may do.
unsafe impl Send for Now {}
// SAFETY: as above; nothing behind `&Now` changes.
unsafe impl Sync for Now {}

/// What [`Mr::rereg`] changes (`ibv_rereg_mr`); what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rereg<'a> {
    /// Other memory: first octet and length (`IBV_REREG_MR_CHANGE_TRANSLATION`).
    pub translation: Option<(*mut u8, usize)>,
    /// Another protection domain of the same device (`IBV_REREG_MR_CHANGE_PD`).
    pub pd: Option<&'a Pd>,
    /// Other rights (`IBV_REREG_MR_CHANGE_ACCESS`).
    pub access: Option<Access>,
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key: whoever knows it can reach the memory.
        let Region {
            base,
            len,
            access,
            pd,
            ..
        } = &self.region();
        f.debug_struct("Mr")
            .field("addr", base)
            .field("len", len)
            .field("access", access)
            .field("pd", pd)
            .finish_non_exhaustive()
    }
}

impl Mr {
    /// Registers `len` octets of zeroed memory that belong to the region, in the protection domain
    /// `pd_id`, which `parent` keeps alive.
    pub(crate) fn register_owned(
        table: &Arc<MrTable>,
        pd_id: u32,
        parent: Arc<dyn Any + Send + Sync>,
        len: usize,
        access: Access,
    ) -> Result<Self> {
        let memory = Allocation::new(len)?;
        let base = memory.start;
        let region = Region {
            base,
            len,
            iova: iova(base, access),
            access,
            pd: pd_id,
        };
        // SAFETY: the allocation is valid for reads and writes, moves into the region below, and
        // is released after the deregistration. Nobody has references into it: `as_ptr` hands out
        // raw pointers only.
        let key = unsafe { table.register(&region) }?;
        Ok(Self::new(table, key, region, Some(memory), parent))
    }

    /// Registers memory of the caller's, as [`register_owned`](Self::register_owned) does its own.
    ///
    /// # Safety
    /// As for [`MrTable::register`]: the memory stays valid, for reads and, if `access` has a right
    /// to write, for writes, until the region is deregistered; meanwhile the application has no
    /// references to it.
    pub(crate) unsafe fn register_raw(
        table: &Arc<MrTable>,
        pd_id: u32,
        parent: Arc<dyn Any + Send + Sync>,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: the caller's promise is the same.
        unsafe {
            Self::register_raw_iova(table, pd_id, parent, addr, len, iova(addr, access), access)
        }
    }

    /// As [`register_raw`](Self::register_raw), with an address of the caller's choice that stands
    /// for `addr` in work requests (`ibv_reg_mr_iova`).
    ///
    /// # Safety
    /// As for `register_raw`.
    pub(crate) unsafe fn register_raw_iova(
        table: &Arc<MrTable>,
        pd_id: u32,
        parent: Arc<dyn Any + Send + Sync>,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        let region = Region {
            base: addr,
            len,
            iova,
            access,
            pd: pd_id,
        };
        // SAFETY: the caller's promise is the same.
        let key = unsafe { table.register(&region) }?;
        Ok(Self::new(table, key, region, None, parent))
    }

    fn new(
        table: &Arc<MrTable>,
        key: u32,
        region: Region,
        memory: Option<Allocation>,
        parent: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let inner = Inner {
            table: table.clone(),
            key,
            ended: Mutex::new(false),
            now: RwLock::new(Now {
                region,
                memory,
                parent,
            }),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    fn region(&self) -> Region {
        self.inner.now().region
    }

    pub(crate) fn pd_id(&self) -> u32 {
        self.region().pd
    }

    /// Its first address, as work requests and peers name it.
    pub fn addr(&self) -> u64 {
        self.region().iova
    }

    /// Octets.
    pub fn len(&self) -> usize {
        self.region().len
    }

    /// Whether it has no octets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where its memory is. Peers and completions of work requests may change it at any time, so
    /// references to it are not allowed while they may.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region().base
    }

    /// What it may be used for.
    pub fn access(&self) -> Access {
        self.region().access
    }

    /// The key for one's own work requests.
    pub fn lkey(&self) -> Lkey {
        Lkey::new(self.inner.key)
    }

    /// The key for peers. Whoever knows it can use the region in the way its access rights allow.
    pub fn rkey(&self) -> Rkey {
        Rkey::new(self.inner.key)
    }

    /// Names `len` octets from `offset` in a work request.
    ///
    /// # Panics
    /// If they are not inside of the region, or more than a work request can name (2³² − 1).
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "{len} octets at offset {offset} are outside of the region of {}",
            self.len()
        );
        let Ok(length) = u32::try_from(len) else {
            panic!("{len} octets are too many for one scatter/gather entry");
        };
        Sge {
            addr: self.addr() + offset as u64,
            length,
            lkey: self.lkey(),
        }
    }

    /// Copies `data` into the region, from `offset` on. Memory of the caller's must have been
    /// registered for writing.
    pub fn copy_in(&self, offset: usize, data: &[u8]) -> Result<()> {
        let need = match self.inner.now().memory {
            Some(_) => Access::empty(),
            None => Access::LOCAL_WRITE,
        };
        let addr = self.address_of(offset, data.len())?;
        let pin = self
            .inner
            .table
            .pin(self.inner.key)
            .ok_or(MemoryFault::InvalidKey)?;
        Ok(pin.copy_in(addr, data, need, self.pd_id())?)
    }

    /// Fills `out` from the region, from `offset` on.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let addr = self.address_of(offset, out.len())?;
        let pin = self
            .inner
            .table
            .pin(self.inner.key)
            .ok_or(MemoryFault::InvalidKey)?;
        Ok(pin.copy_out(addr, out, self.pd_id())?)
    }

    /// Deregisters the region, whatever other handles there are: its key is then invalid, and
    /// nothing uses its memory any more. Waits for accesses in progress. Doing it again is no
    /// error. EBUSY if a memory window is bound to it; dropping the last handle unbinds those. EBUSY,
    /// after two seconds, if a process of this host is writing to it (over RoCE) and has been stopped
    /// in the middle of that; dropping the last handle waits for it.
    pub fn dereg(&self) -> Result<()> {
        let mut ended = self.inner.lock_end();
        if !*ended {
            self.inner.table.try_dereg(self.inner.key)?;
            *ended = true;
        }
        Ok(())
    }

    /// Changes what the region is; its keys stay. Returns when nothing uses the memory of before
    /// any more, which is the application's again then, or released if it was the region's own.
    /// Work requests and peers that use the region meanwhile may fail.
    ///
    /// EBUSY if a memory window is bound to it, or as for [`dereg`](Self::dereg); EINVAL as for
    /// registering, for a protection domain of another device, and if it was deregistered. Nothing is
    /// changed then.
    ///
    /// # Safety
    /// Memory of the application that is new has to satisfy the contract of
    /// [`Pd::reg_mr`](crate::Pd::reg_mr); so has memory of before that gets a right to write.
    pub unsafe fn rereg(&self, change: &Rereg<'_>) -> Result<()> {
        let ended = self.inner.lock_end();
        if *ended {
            return Err(Error::invalid("mr", "was deregistered"));
        }
        let mut region = self.region();
        if let Some(pd) = change.pd {
            if !Arc::ptr_eq(&pd.context().inner().regions, &self.inner.table) {
                return Err(Error::invalid("pd", "belongs to another device"));
            }
            region.pd = pd.id();
        }
        let before = region.access;
        region.access = change.access.unwrap_or(before);
        if let Some((base, len)) = change.translation {
            (region.base, region.len) = (base, len);
        }
        let zero_based = |access: Access| access.contains(Access::ZERO_BASED);
        if change.translation.is_some() || zero_based(before) != zero_based(region.access) {
            region.iova = iova(region.base, region.access);
        }
        // SAFETY: the memory is the same, or the caller's promise is the table's.
        unsafe { self.inner.table.rereg(self.inner.key, &region) }?;
        let mut now = self.inner.now_mut();
        now.region = region;
        if change.translation.is_some() {
            now.memory = None;
        }
        if let Some(pd) = change.pd {
            now.parent = pd.parent();
        }
        drop(now);
        drop(ended);
        Ok(())
    }

    /// Whether both handles are of the same region.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The address of `len` octets at `offset`, which must be inside of the region, even if there
    /// are none.
    fn address_of(&self, offset: usize, len: usize) -> std::result::Result<u64, MemoryFault> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(self.addr() + offset as u64),
            _ => Err(MemoryFault::Bounds),
        }
    }
}

impl Inner {
    fn now(&self) -> RwLockReadGuard<'_, Now> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_mut(&self) -> RwLockWriteGuard<'_, Now> {
        self.now.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A second caller too may return only when the region is gone.
    fn lock_end(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !*self.lock_end() {
            let result = self.table.dereg(self.key);
            debug_assert!(result.is_ok(), "deregistered behind our back");
        }
    }
}

/// The address that stands for the memory in work requests.
fn iova(base: *mut u8, access: Access) -> u64 {
    if access.contains(Access::ZERO_BASED) {
        0
    } else {
        base.addr() as u64
    }
}

/// Zeroed memory that starts on a page boundary.
struct Allocation {
    block: *mut u8,
    layout: Layout,
    start: *mut u8,
}

const PAGE: usize = 4096;

impl Allocation {
    fn new(len: usize) -> Result<Self> {
        // The system's allocator gets large zeroed blocks from the kernel untouched, but zeroes
        // them itself if they are to be aligned. Hence a block with room for aligning.
        let layout = len
            .checked_add(PAGE - 1)
            .and_then(|size| Layout::from_size_align(size, 1).ok())
            .ok_or_else(|| Error::invalid("length", format!("{len} octets are too many")))?;
        // SAFETY: the size is not zero: it is PAGE - 1 at least.
        let block = unsafe { alloc_zeroed(layout) };
        if block.is_null() {
            return Err(Error::NoMemory { len });
        }
        let start = block.wrapping_add(block.align_offset(PAGE));
        Ok(Self {
            block,
            layout,
            start,
        })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and released once.
        unsafe { dealloc(self.block, self.layout) };
    }
}

#[cfg(test)]
mod tests;
