//! Extended reliable connections: their domains, receive queues and receiving ends.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use softverbs::{Qpn, SrqInitAttr, Xrcd};

use super::context::{ContextState, state};
use super::qp::{adopt, unconnected};
use super::srq;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, Users, c_object, in_ref, object};

/// What we keep of a domain.
pub(crate) struct XrcdState {
    xrcd: Xrcd,
    users: Users,
}

c_object!(ibv_xrcd, ibv_xrcd => XrcdState);

/// `ibv_open_xrcd`, through the context.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    const NEEDED: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    ffi::null(|| {
        // SAFETY: C's opened device and attributes.
        let (opened, attr) = unsafe { (state(context)?, in_ref(attr)?) };
        if attr.comp_mask & NEEDED != NEEDED {
            return Err(Fault::INVALID);
        }
        if attr.comp_mask & !NEEDED != 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        let file = match attr.fd {
            -1 => None,
            fd if fd < 0 => return Err(Fault::new(libc::EBADF)),
            // SAFETY: not negative, and C's open file for the time of this call; what is not is EBADF there.
            fd => Some(unsafe { BorrowedFd::borrow_raw(fd) }),
        };
        let (create, exclusive) = (
            attr.oflags & libc::O_CREAT != 0,
            attr.oflags & libc::O_EXCL != 0,
        );
        let xrcd = opened.context().open_xrcd(file, create, exclusive)?;
        ffi::create(|_| {
            let users = Users::default();
            Ok((ibv_xrcd { context }, XrcdState { xrcd, users }))
        })
    })
}

/// `ibv_close_xrcd`, through the context.
pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's domain, or null.
        unsafe { object(xrcd) }?.users.none()?;
        // SAFETY: C gives it up, and nothing is in it.
        drop(unsafe { ffi::destroy(xrcd) });
        Ok(())
    })
}

/// Makes a shared receive queue of a domain.
///
/// # Safety
/// The objects in `init` are C's, or null.
pub(super) unsafe fn create_srq(init: &mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq> {
    const NEEDED: u32 = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ;
    if init.comp_mask != NEEDED {
        return Err(Fault::INVALID);
    }
    // SAFETY: the caller's promise.
    let (domain, xrcd, cq) = unsafe { (object(init.pd)?, object(init.xrcd)?, object(init.cq)?) };
    let srq = domain.pd().create_xrc_srq(
        &SrqInitAttr {
            srq_context: 0,
            max_wr: init.attr.max_wr,
            max_sge: init.attr.max_sge,
            srq_limit: 0,
        },
        &xrcd.xrcd,
        cq.cq(),
    )?;
    let uses = vec![domain.users.add(), xrcd.users.add(), cq.users.add()];
    // SAFETY: the caller's promise.
    unsafe { srq::adopt(init.pd, init.srq_context, &mut init.attr, srq, uses) }
}

/// `ibv_get_srq_num`, through the context.
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue, and a number to be filled in.
        let (state, number) = unsafe { (object(srq)?, ffi::out_mut(number)?) };
        // What is not of XRC has none.
        *number = state.srq().srq_num().ok_or(Fault::NOT_SUPPORTED)?.get();
        Ok(())
    })
}

/// Makes a receiving end.
///
/// # Safety
/// `context` is C's, and `opened` what is behind it; the domain in `attr` is C's, or null.
pub(super) unsafe fn create_receiving_end(
    opened: &ContextState,
    context: *mut ibv_context,
    attr: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp> {
    if attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        return Err(Fault::INVALID);
    }
    if attr.comp_mask & !(IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_PD) != 0 {
        return Err(Fault::NOT_SUPPORTED);
    }
    // SAFETY: the caller's promise.
    let xrcd = unsafe { object(attr.xrcd) }?;
    let qp = xrcd.xrcd.create_qp(0)?;
    let base = unconnected(context, attr.qp_context, &qp);
    adopt(opened, base, qp, vec![xrcd.users.add()], false)
}

/// `ibv_open_qp`, through the context.
pub(super) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    ffi::null(|| {
        // SAFETY: C's opened device and attributes.
        let (opened, attr) = unsafe { (state(context)?, in_ref(attr)?) };
        if attr.comp_mask & NEEDED != NEEDED || attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(Fault::INVALID);
        }
        if attr.comp_mask & !(NEEDED | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        // SAFETY: C's domain, or null.
        let xrcd = unsafe { object(attr.xrcd) }?;
        let qp = xrcd.xrcd.open_qp(Qpn::new(attr.qp_num))?;
        let base = unconnected(context, attr.qp_context, &qp);
        adopt(opened, base, qp, vec![xrcd.users.add()], false)
    })
}
