//! Memory windows.

use std::ffi::c_int;

use softverbs::{Access, Mw, MwBindInfo, MwType, Rkey, SendOp};

use super::mr::access;
use super::pd::next_handle;
use super::post::flags;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, Use, c_object, in_ref, object, out_mut};

/// What we keep of a window.
pub(crate) struct MwState {
    mw: Mw,
    _pd: Use,
}

c_object!(ibv_mw, ibv_mw => MwState);

/// What C says a window is to show. Without a region, nothing.
///
/// # Safety
/// The region is C's, or null.
unsafe fn shown(info: &ibv_mw_bind_info) -> Result<Option<MwBindInfo<'_>>> {
    if info.mr.is_null() {
        return Ok(None);
    }
    Ok(Some(MwBindInfo {
        // SAFETY: the caller's promise.
        mr: unsafe { object(info.mr) }?.mr(),
        addr: info.addr,
        length: info.length,
        // What programs say of local rights means nothing in a window.
        access: access(info.mw_access_flags)? - Access::LOCAL_WRITE,
    }))
}

/// The operation that binds a window of type 2.
///
/// # Safety
/// The window and the region are C's.
pub(super) unsafe fn bind_op(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp> {
    // SAFETY: the caller's promise.
    let (state, shown) = unsafe { (object(mw)?, shown(info)?) };
    let shown = shown.ok_or(Fault::INVALID)?;
    Ok(state.mw.bind(Rkey::new(rkey), &shown))
}

/// `ibv_alloc_mw`, through the context.
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> *mut ibv_mw {
    ffi::null(|| {
        // SAFETY: C's domain, or null.
        let (domain, context) = unsafe { (object(pd)?, in_ref(pd)?.context) };
        let mw = domain.pd().alloc_mw(match mw_type {
            IBV_MW_TYPE_1 => MwType::Type1,
            IBV_MW_TYPE_2 => MwType::Type2,
            _ => return Err(Fault::INVALID),
        })?;
        ffi::create(|_| {
            let c = ibv_mw {
                context,
                pd,
                rkey: mw.rkey().get(),
                handle: next_handle(),
                r#type: mw_type,
            };
            let _pd = domain.users.add();
            Ok((c, MwState { mw, _pd }))
        })
    })
}

/// `ibv_dealloc_mw`, through the context.
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's window, or null.
        unsafe { object(mw) }?;
        // SAFETY: C gives it up.
        drop(unsafe { ffi::destroy(mw) });
        Ok(())
    })
}

/// `ibv_bind_mw`, through the context, which has checked the type and the domain.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's objects.
        let (qp, state, c, bind) =
            unsafe { (object(qp)?, object(mw)?, out_mut(mw)?, in_ref(bind)?) };
        // SAFETY: as above.
        let shown = unsafe { shown(&bind.bind_info) }?;
        let flags = flags(bind.send_flags)?;
        let rkey = qp
            .qp()
            .bind_mw(&state.mw, bind.wr_id, flags, shown.as_ref())?;
        c.rkey = rkey.get();
        Ok(())
    })
}
