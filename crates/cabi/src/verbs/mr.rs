//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};

use softverbs::{Access, Mr};

use super::pd::next_handle;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, Use, c_object, in_ref, object};

/// What we keep of a region.
pub(crate) struct MrState {
    mr: Mr,
    _pd: Use,
}

c_object!(ibv_mr, ibv_mr => MrState);

impl MrState {
    #[allow(dead_code, reason = "memory windows will")]
    pub(crate) fn mr(&self) -> &Mr {
        &self.mr
    }
}

/// Access rights. A device may ignore flags of the optional range, and huge pages are a hint.
pub(super) fn access(flags: u32) -> Result<Access> {
    let flags = flags & !(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB);
    Access::from_bits(flags).ok_or(Fault::NOT_SUPPORTED)
}

/// Registers memory of the program's.
///
/// # Safety
/// `pd` is null or a domain of C's; the memory stays valid until the region is deregistered, as C promises.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: Option<u64>,
    flags: u32,
) -> Result<*mut ibv_mr> {
    // SAFETY: the caller's promise.
    let (state, context) = unsafe { (object(pd)?, in_ref(pd)?.context) };
    let access = access(flags)?;
    let own = if access.contains(Access::ZERO_BASED) {
        0
    } else {
        addr.addr() as u64
    };
    if iova.is_some_and(|iova| iova != own) {
        return Err(Fault::NOT_SUPPORTED);
    }
    // SAFETY: C's promise about registered memory is this one.
    let mr = unsafe { state.pd().reg_mr(addr.cast(), length, access) }?;
    ffi::create(|_| {
        let c = ibv_mr {
            context,
            pd,
            addr,
            length,
            handle: next_handle(),
            lkey: mr.lkey().get(),
            rkey: mr.rkey().get(),
        };
        Ok((
            c,
            MrState {
                mr,
                _pd: state.users.add(),
            },
        ))
    })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: C's promises.
    ffi::null(|| unsafe { register(pd, addr, length, None, access.cast_unsigned()) })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: C's promises.
    ffi::null(|| unsafe { register(pd, addr, length, Some(iova), access.cast_unsigned()) })
}

/// What the headers make of `ibv_reg_mr` too, when the access flags are not constant.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let zero_based = access & IBV_ACCESS_ZERO_BASED != 0;
    let iova = (!zero_based || iova != addr.addr() as u64).then_some(iova);
    // SAFETY: C's promises.
    ffi::null(|| unsafe { register(pd, addr, length, iova, access) })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    ffi::null(|| {
        // SAFETY: C's attributes.
        let attr = unsafe { in_ref(attr) }?;
        let known = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA;
        if attr.comp_mask & !u64::from(known) != 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        if attr.comp_mask & u64::from(IBV_REG_MR_MASK_ADDR) == 0 {
            return Err(Fault::INVALID);
        }
        let iova = (attr.comp_mask & u64::from(IBV_REG_MR_MASK_IOVA) != 0).then_some(attr.iova);
        // SAFETY: C's promises.
        unsafe {
            register(
                pd,
                attr.addr,
                attr.length,
                iova,
                attr.access.cast_unsigned(),
            )
        }
    })
}

pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's region, or null.
        unsafe { object(mr) }?.mr.dereg()?;
        // SAFETY: C gives it up.
        drop(unsafe { ffi::destroy(mr) });
        Ok(())
    })
}
