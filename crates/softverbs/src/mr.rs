//! Memory regions.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Once};

use softverbs_proto::memory::{Access, MemoryFault};
use softverbs_proto::wr::Sge;
use softverbs_wire::num::{Lkey, Rkey};

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
    region: Region,
    deregistered: Once,
    /// The memory, if it is our own. Released after `Inner::drop` has deregistered it.
    memory: Option<Allocation>,
    /// The protection domain, and with it all that must not go away before.
    _parent: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointer in `region` is only handed out or compared; the memory behind it is reached
// through the table, which any thread may do.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing behind `&Inner` changes but by atomic operations and `Once`.
unsafe impl Sync for Inner {}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key: whoever knows it can reach the memory.
        let Region {
            base,
            len,
            access,
            pd,
            ..
        } = &self.inner.region;
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
        let table = table.clone();
        let deregistered = Once::new();
        let inner = Inner {
            table,
            key,
            region,
            deregistered,
            memory,
            _parent: parent,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Its first address, as work requests and peers name it.
    pub fn addr(&self) -> u64 {
        self.inner.region.iova
    }

    /// Octets.
    pub fn len(&self) -> usize {
        self.inner.region.len
    }

    /// Whether it has no octets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where its memory is. Peers and completions of work requests may change it at any time, so
    /// references to it are not allowed while they may.
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.region.base
    }

    /// What it may be used for.
    pub fn access(&self) -> Access {
        self.inner.region.access
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
        let need = match self.inner.memory {
            Some(_) => Access::empty(),
            None => Access::LOCAL_WRITE,
        };
        let addr = self.address_of(offset, data.len())?;
        let pin = self
            .inner
            .table
            .pin(self.inner.key)
            .ok_or(MemoryFault::InvalidKey)?;
        Ok(pin.copy_in(addr, data, need, self.inner.region.pd)?)
    }

    /// Fills `out` from the region, from `offset` on.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let addr = self.address_of(offset, out.len())?;
        let pin = self
            .inner
            .table
            .pin(self.inner.key)
            .ok_or(MemoryFault::InvalidKey)?;
        Ok(pin.copy_out(addr, out, self.inner.region.pd)?)
    }

    /// Deregisters the region, whatever other handles there are: its key is then invalid, and
    /// nothing uses its memory any more. Waits for accesses in progress. Doing it again is no
    /// error.
    pub fn dereg(&self) -> Result<()> {
        self.inner.dereg();
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
    fn dereg(&self) {
        // Not a flag: a second caller too may return only when the region is gone.
        self.deregistered.call_once(|| {
            let result = self.table.dereg(self.key);
            debug_assert!(result.is_ok(), "deregistered behind our back");
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.dereg();
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
