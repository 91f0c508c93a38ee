//! The opened devices that identifiers share, each with a protection domain for those who bring none.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use softverbs::Context;

use crate::abi::*;
use crate::ffi::{self, Fault, Result};
use crate::verbs::{c_context, ibv_alloc_pd, present, state, xrc::open_xrcd};

/// An opened device and its protection domain. They stay: programs compare their addresses, and
/// make objects that they never destroy.
struct Opened {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    /// Of XRC, once somebody needed it.
    xrcd: *mut ibv_xrcd,
}

// SAFETY: pointers to objects that live for ever and that any thread may use.
unsafe impl Send for Opened {}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// The objects by which C knows the context of an identifier.
pub(super) fn opened(context: &Context) -> Result<(*mut ibv_context, *mut ibv_pd)> {
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    for opened in all.iter() {
        // SAFETY: made below, and never closed.
        let known = unsafe { state(opened.context) }?;
        if known.context().same_as(context) {
            return Ok((opened.context, opened.pd));
        }
    }
    let c = c_context(context.clone())?;
    // SAFETY: just opened.
    let pd = unsafe { ibv_alloc_pd(c) };
    if pd.is_null() {
        return Err(Fault::new(libc::ENOMEM));
    }
    let xrcd = ptr::null_mut();
    all.push(Opened {
        context: c,
        pd,
        xrcd,
    });
    Ok((c, pd))
}

/// The domain of XRC for those who bring none.
pub(super) fn xrcd(context: *mut ibv_context) -> Result<*mut ibv_xrcd> {
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = all.iter_mut().find(|opened| opened.context == context);
    let opened = opened.ok_or(Fault::INVALID)?;
    if opened.xrcd.is_null() {
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: -1,
            oflags: libc::O_CREAT,
        };
        // SAFETY: an opened device of ours.
        opened.xrcd = unsafe { open_xrcd(context, &raw mut attr) };
    }
    if opened.xrcd.is_null() {
        return Err(Fault::new(nix::errno::Errno::last_raw()));
    }
    Ok(opened.xrcd)
}

pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    ffi::null(|| {
        let contexts = present()?
            .into_iter()
            .map(|device| {
                // SAFETY: one of those that stay.
                let device = unsafe { ffi::object(device) }?.device();
                Ok(opened(&Context::shared(&device)?)?.0)
            })
            .collect::<Result<Vec<_>>>()?;
        // SAFETY: zeroed, so that the last entry is a null pointer.
        let list = unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) };
        let list = list.cast::<*mut ibv_context>();
        if list.is_null() {
            return Err(Fault::new(libc::ENOMEM));
        }
        // SAFETY: room for one more than there are.
        unsafe { ptr::copy_nonoverlapping(contexts.as_ptr(), list, contexts.len()) };
        if !num_devices.is_null() {
            // SAFETY: not null, so C's to be filled in.
            unsafe { num_devices.write(c_int::try_from(contexts.len()).unwrap_or(c_int::MAX)) };
        }
        Ok(list)
    })
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: from `rdma_get_devices`, or null.
    unsafe { libc::free(list.cast()) };
}
