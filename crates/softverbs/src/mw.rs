//! Memory windows.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use softverbs_proto::memory::Access;
use softverbs_proto::wr::{BindMw, SendFlags, SendOp};
use softverbs_wire::num::Rkey;

use crate::context::Pd;
use crate::error::{Error, Result};
use crate::mr::Mr;
use crate::mr_table::{MrTable, MwType};
use crate::qp::Qp;
use crate::wr::{SendData, SendWr};

/// A memory window: shows peers a part of a memory region, under a key that is quickly given and
/// taken (`struct ibv_mw`). Cloning makes another handle; it goes, and what is bound is unbound,
/// when the last handle is dropped.
#[derive(Clone)]
pub struct Mw {
    inner: Arc<Inner>,
}

struct Inner {
    table: Arc<MrTable>,
    mw_type: MwType,
    pd_id: u32,
    /// The key that it has when all binds that were posted are done (type 1); one of its keys
    /// (type 2).
    rkey: AtomicU32,
    /// The protection domain, and with it all that must not go away before.
    _parent: Arc<dyn Any + Send + Sync>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.table.dealloc_window(self.rkey.load(Ordering::Relaxed));
    }
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key: whoever knows it can reach the memory.
        f.debug_struct("Mw")
            .field("mw_type", &self.inner.mw_type)
            .field("pd", &self.inner.pd_id)
            .finish_non_exhaustive()
    }
}

/// What a memory window shows (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug)]
pub struct MwBindInfo<'a> {
    /// A region with the right [`Access::MW_BIND`], and without `ZERO_BASED`.
    pub mr: &'a Mr,
    /// First address, as the region has it.
    pub addr: u64,
    /// Octets.
    pub length: u64,
    /// `REMOTE_WRITE` and `REMOTE_ATOMIC` (for which the region needs `LOCAL_WRITE`),
    /// `REMOTE_READ`, `ZERO_BASED`.
    pub access: Access,
}

impl Pd {
    /// A new memory window, bound to nothing. ENOMEM if there are `max_mw`.
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw> {
        let table = self.context().inner().regions.clone();
        let key = table.alloc_window(self.id(), mw_type)?;
        Ok(Mw {
            inner: Arc::new(Inner {
                table,
                mw_type,
                pd_id: self.id(),
                rkey: AtomicU32::new(key),
                _parent: self.parent(),
            }),
        })
    }
}

impl Mw {
    /// Its type.
    pub fn mw_type(&self) -> MwType {
        self.inner.mw_type
    }

    /// Its key. Type 1: that of the last bind that was posted. Type 2: that of the last bind that
    /// was carried out; the next one has to differ in the lowest octet, and only there (see
    /// [`inc_rkey`]).
    pub fn rkey(&self) -> Rkey {
        let known = self.inner.rkey.load(Ordering::Relaxed);
        let key = match self.inner.mw_type {
            MwType::Type1 => known,
            MwType::Type2 => self.inner.table.window_key(known).unwrap_or(known),
        };
        Rkey::new(key)
    }

    /// The request that binds a window of type 2, to be posted on the queue pair that it is for
    /// (`IBV_WR_BIND_MW`). It completes with
    /// [`MwBindErr`](crate::WcStatus::MwBindErr) if the window is bound already or of type 1, the
    /// key is not one for it, or the region does not allow it; so does one of no octets.
    pub fn bind(&self, rkey: Rkey, info: &MwBindInfo<'_>) -> SendOp {
        self.op(rkey, Some(info))
    }

    fn op(&self, rkey: Rkey, info: Option<&MwBindInfo<'_>>) -> SendOp {
        SendOp::BindMw(BindMw {
            window: Rkey::new(self.inner.rkey.load(Ordering::Relaxed)),
            rkey,
            region: info.map(|info| info.mr.lkey()),
            addr: info.map_or(0, |info| info.addr),
            length: info.map_or(0, |info| info.length),
            access: info.map_or(Access::empty(), |info| info.access),
        })
    }
}

/// The next key of a window or region: the lowest octet counted up (`ibv_inc_rkey`).
pub const fn inc_rkey(rkey: Rkey) -> Rkey {
    let key = rkey.get();
    Rkey::new(key & !0xff | key.wrapping_add(1) & 0xff)
}

impl Qp {
    /// Posts the bind of a window of type 1 (`ibv_bind_mw`), and returns the key that it then has.
    /// `None`, or no octets, unbinds. Errors as of [`Qp::post_send`]; EINVAL for a window of type
    /// 2, EPERM for a region of another protection domain.
    pub fn bind_mw(
        &self,
        mw: &Mw,
        wr_id: u64,
        flags: SendFlags,
        info: Option<&MwBindInfo<'_>>,
    ) -> Result<Rkey> {
        if mw.mw_type() != MwType::Type1 {
            return Err(Error::invalid("mw", "of type 2: post SendOp::BindMw"));
        }
        if info.is_some_and(|info| info.mr.pd_id() != mw.inner.pd_id) {
            return Err(Error::os("bind_mw", libc::EPERM));
        }
        let rkey = inc_rkey(mw.rkey());
        let op = mw.op(rkey, info);
        self.post_send(&SendWr::new(wr_id, op, SendData::Sges(&[])).with_flags(flags))?;
        mw.inner.rkey.store(rkey.get(), Ordering::Relaxed);
        Ok(rkey)
    }
}
