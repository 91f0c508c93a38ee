//! The one upward trait: what proto asks of whoever holds registered memory.

use bitflags::bitflags;
use softverbs_wire::num::{Lkey, Qpn, Rkey};

use crate::wr::{BindMw, RecvRequest, SendRequest, Sge};

bitflags! {
    /// Access rights of a memory region; the values are those of `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Local work requests may write (receives, read sinks, atomic results).
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 2;
        /// Peers may read.
        const REMOTE_READ = 4;
        /// Peers may use atomics.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound.
        const MW_BIND = 16;
        /// Addresses are offsets from the start of the region.
        const ZERO_BASED = 32;
    }
}

/// Why memory may not be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MemoryFault {
    /// No region has this key (any more).
    #[error("no memory region has this key")]
    InvalidKey,
    /// The region belongs to another protection domain or stream.
    #[error("the memory region belongs to another protection domain")]
    WrongPd,
    /// Outside of the region.
    #[error("outside of the memory region")]
    Bounds,
    /// Address plus length exceeds 2^64 (a base/bounds error with a code of its own).
    #[error("address plus length wraps around")]
    Wrap,
    /// The region's access rights forbid it.
    #[error("the memory region's access flags forbid it")]
    Access,
    /// The key is valid but cannot be invalidated.
    #[error("the key cannot be invalidated")]
    CannotInvalidate,
}

/// Registered memory as one queue pair sees it: the implementation knows the queue pair's
/// protection domain and its receive queue (its own or a shared one).
///
/// `check_*` say whether an access is allowed now. `read`, `write` and `atomic` check
/// again and touch nothing on an error, since a region may have been deregistered in between;
/// they never reach memory outside of the region that the key names.
pub trait Memory {
    /// Checks a local scatter/gather entry. Zero-length entries are never checked.
    fn check_local(&self, sge: &Sge, need: Access) -> Result<(), MemoryFault>;

    /// Checks an access by the peer. Not to be called for zero-length operations
    /// (RFC 5040 §5.2.1: keys of zero-length tagged messages are not validated).
    fn check_remote(
        &self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault>;

    /// Makes a key invalid.
    fn invalidate(&mut self, rkey: Rkey) -> Result<(), MemoryFault>;

    /// Carries out an RDMA Write past the wire, in the peer's memory. False: nothing is done, or a part
    /// of it, and it is to be sent. Nobody has to be able to.
    fn place(&mut self, request: &SendRequest) -> bool {
        let _ = request;
        false
    }

    /// Binds a memory window. Not all have them.
    fn bind(&mut self, bind: &BindMw) -> Result<(), MemoryFault> {
        let _ = bind;
        Err(MemoryFault::InvalidKey)
    }

    /// Copies out of registered memory.
    fn read(&self, key: Lkey, addr: u64, out: &mut [u8]) -> Result<(), MemoryFault>;

    /// Copies out of registered memory, behind what is in `out`. Appends nothing on an error.
    fn append(
        &self,
        key: Lkey,
        addr: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), MemoryFault> {
        let start = out.len();
        out.resize(start + len, 0);
        let result = self.read(key, addr, &mut out[start..]);
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    /// Copies into registered memory.
    fn write(&mut self, key: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryFault>;

    /// Replaces the aligned 64-bit word at `addr` by what `update` makes of it, atomically with
    /// respect to other calls of this method, and returns what was there. Values are in the
    /// order of the host.
    fn atomic(
        &mut self,
        rkey: Rkey,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, MemoryFault>;

    /// XRC: what follows is for this shared receive queue, until another one is selected: receives
    /// come from it, and memory is that of its protection domain. `false` if there is none of that
    /// number for the queue pair.
    fn select_srq(&mut self, srq: Qpn) -> bool {
        let _ = srq;
        false
    }

    /// Takes the oldest posted receive, or `None`: then the peer sent without being allowed to.
    fn take_receive(&mut self) -> Option<RecvRequest>;
}
