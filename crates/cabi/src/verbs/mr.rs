//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use softverbs::{Access, Mr, Rereg};

use super::pd::next_handle;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, Use, c_object, in_ref, object};

/// What we keep of a region.
pub(crate) struct MrState {
    mr: Mr,
    /// Of the protection domain, which may change.
    pd: Mutex<Use>,
}

c_object!(ibv_mr, ibv_mr => MrState);

impl MrState {
    pub(super) fn mr(&self) -> &Mr {
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
    let addr_u8 = addr.cast::<u8>();
    // SAFETY: C's promise about registered memory is this one.
    let mr = unsafe {
        match iova {
            Some(iova) if !access.contains(Access::ZERO_BASED) => {
                state.pd().reg_mr_iova(addr_u8, length, iova, access)
            }
            _ => state.pd().reg_mr(addr_u8, length, access),
        }
    }?;
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
                pd: Mutex::new(state.users.add()),
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
    // SAFETY: C's promises.
    ffi::null(|| unsafe { register(pd, addr, length, Some(iova), access) })
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

/// `IBV_REREG_MR_ERR_INPUT`: the region is as it was.
const REREG_MR_ERR_INPUT: c_int = -1;

pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access_flags: c_int,
) -> c_int {
    ffi::or(REREG_MR_ERR_INPUT, || {
        // SAFETY: C's region, domain and memory.
        unsafe {
            rereg(
                mr,
                flags.cast_unsigned(),
                pd,
                addr,
                length,
                access_flags.cast_unsigned(),
            )
        }?;
        Ok(0)
    })
}

/// Changes what `flags` name.
///
/// # Safety
/// As for [`register`].
unsafe fn rereg(
    mr: *mut ibv_mr,
    flags: u32,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access_flags: u32,
) -> Result<()> {
    const KNOWN: u32 =
        IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    let changes = |flag: u32| flags & flag != 0;
    // SAFETY: the caller's promise.
    let state = unsafe { object(mr) }?;
    if flags == 0 || flags & !KNOWN != 0 {
        return Err(Fault::INVALID);
    }
    let translation =
        changes(IBV_REREG_MR_CHANGE_TRANSLATION).then_some((addr.cast::<u8>(), length));
    if translation.is_some() && (addr.is_null() || length == 0) {
        return Err(Fault::INVALID);
    }
    let domain = if changes(IBV_REREG_MR_CHANGE_PD) {
        // SAFETY: the caller's promise.
        Some(unsafe { object(pd) }?)
    } else {
        None
    };
    let change = Rereg {
        translation,
        pd: domain.map(|domain| domain.pd()),
        access: if changes(IBV_REREG_MR_CHANGE_ACCESS) {
            Some(access(access_flags)?)
        } else {
            None
        },
    };
    // SAFETY: the caller's promise.
    unsafe { state.mr.rereg(&change) }?;
    if let Some(domain) = domain {
        *state.pd.lock().unwrap_or_else(PoisonError::into_inner) = domain.users.add();
    }
    // SAFETY: C's region; rdma-core writes there at the same moment.
    unsafe {
        if domain.is_some() {
            (*mr).pd = pd;
        }
        if translation.is_some() {
            ((*mr).addr, (*mr).length) = (addr, length);
        }
    }
    Ok(())
}
