//! Queue pairs and shared receive queues of identifiers, with the completion queues and channels that
//! they are given if the application brings none.

use std::ffi::c_int;
use std::mem;
use std::ptr;

use softverbs::QpState;

use super::devices;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, in_ref, object, out_mut};
use crate::verbs::qp::{QpInit, create};
use crate::verbs::state as opened;
use crate::verbs::{
    c_qp_attr, create_qp_ex, ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel,
    ibv_destroy_cq, ibv_destroy_qp, ibv_destroy_srq, publish_state, srq,
};

/// Puts the state of an identifier's queue pair where C looks for it. The field of the identifier says
/// nothing: the application may have destroyed the queue pair, or do so at this moment.
///
/// # Safety
/// `id` is one of C's, alive.
pub(super) unsafe fn refresh_state(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; the device of an identifier stays open as long as that.
    let found = unsafe { (object(id), opened((*id).verbs)) };
    if let (Ok(state), Ok(opened)) = found
        && let Some(qp) = state.id.qp()
    {
        opened.publish_qp_state(qp.qp_num());
    }
}

/// Tells the identifier of a queue pair that the application has put into its field by itself.
///
/// # Safety
/// `id` is one of C's.
pub(super) unsafe fn adopt(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let (state, qp) = (object(id)?, (*id).qp);
        if !qp.is_null() && state.id.qp().is_none() {
            state.id.attach_qp(object(qp)?.qp())?;
            publish_state(qp)?;
        }
    }
    Ok(())
}

/// The last `errno`, of a call that has just failed.
fn failed() -> Fault {
    Fault::new(nix::errno::Errno::last_raw())
}

/// A completion queue with a channel.
///
/// # Safety
/// `id` is one of C's with an opened device.
unsafe fn create_cq(
    id: *mut rdma_cm_id,
    size: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
    let size = c_int::try_from(size).map_err(|_| Fault::INVALID)?;
    // SAFETY: the caller's promise.
    unsafe {
        let channel = ibv_create_comp_channel((*id).verbs);
        if channel.is_null() {
            return Err(failed());
        }
        let cq = ibv_create_cq((*id).verbs, size, id.cast(), channel, 0);
        if cq.is_null() {
            let fault = failed();
            ibv_destroy_comp_channel(channel);
            return Err(fault);
        }
        Ok((channel, cq))
    }
}

/// The queues that the identifier is to have of its own: those with a size.
///
/// # Safety
/// As [`create_cq`].
unsafe fn create_cqs(id: *mut rdma_cm_id, send: u32, recv: u32) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        if recv != 0 {
            ((*id).recv_cq_channel, (*id).recv_cq) = create_cq(id, recv)?;
        }
        if send != 0 {
            ((*id).send_cq_channel, (*id).send_cq) =
                create_cq(id, send).inspect_err(|_| destroy_cqs(id))?;
        }
    }
    Ok(())
}

/// Ends the queues and channels in the identifier's fields.
///
/// # Safety
/// `id` is one of C's.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; what is in the fields is the identifier's.
    unsafe {
        if (*id).qp_type == IBV_QPT_XRC_RECV && !(*id).srq.is_null() {
            // The shared receive queue completes there.
            return;
        }
        let null = ptr::null_mut;
        let send = mem::replace(&mut (*id).send_cq, null());
        let recv = mem::replace(&mut (*id).recv_cq, null());
        for cq in [recv, if send == recv { null() } else { send }] {
            if !cq.is_null() {
                ibv_destroy_cq(cq);
            }
        }
        let send = mem::replace(&mut (*id).send_cq_channel, ptr::null_mut());
        let recv = mem::replace(&mut (*id).recv_cq_channel, ptr::null_mut());
        for channel in [recv, if send == recv { ptr::null_mut() } else { send }] {
            if !channel.is_null() {
                ibv_destroy_comp_channel(channel);
            }
        }
    }
}

/// Makes the queue pair: in INIT, one for datagrams in RTS.
///
/// # Safety
/// `id` and what is in `attr` is C's.
unsafe fn create_qp(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    // SAFETY: the caller's promise.
    let (state, c) = unsafe { (object(id)?, *in_ref(id)?) };
    if !c.qp.is_null() || c.verbs.is_null() {
        return Err(Fault::INVALID);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = c.pd;
    }
    // SAFETY: C's domain.
    if unsafe { in_ref(attr.pd) }?.context != c.verbs {
        return Err(Fault::INVALID);
    }
    if c.qp_type == IBV_QPT_XRC_RECV {
        // SAFETY: the caller's promise.
        return unsafe { create_receiving_end(id, attr) };
    }
    let differs = |mine: *mut ibv_cq, given: *mut ibv_cq| {
        !mine.is_null() && !given.is_null() && mine != given
    };
    if differs(c.recv_cq, attr.recv_cq) || differs(c.send_cq, attr.send_cq) {
        return Err(Fault::INVALID);
    }
    let missing = |mine: *mut ibv_cq, given: *mut ibv_cq, size: u32| {
        if mine.is_null() && given.is_null() {
            size
        } else {
            0
        }
    };
    let send = missing(c.send_cq, attr.send_cq, attr.cap.max_send_wr);
    let recv = missing(c.recv_cq, attr.recv_cq, attr.cap.max_recv_wr);
    // SAFETY: the caller's promise.
    unsafe { create_cqs(id, send, recv) }?;
    let made = (|| {
        // SAFETY: the caller's promise.
        unsafe {
            if attr.send_cq.is_null() {
                attr.send_cq = (*id).send_cq;
            }
            if attr.recv_cq.is_null() {
                attr.recv_cq = (*id).recv_cq;
            }
            // A queue that has no requests completes nothing, and yet there has to be one.
            if attr.recv_cq.is_null() {
                attr.recv_cq = attr.send_cq;
            }
            if attr.send_cq.is_null() {
                attr.send_cq = attr.recv_cq;
            }
            if attr.srq.is_null() {
                attr.srq = (*id).srq;
            }
            let (pd, qp_type) = (attr.pd, attr.qp_type);
            let make =
                |pd: &softverbs::Pd, attr: &softverbs::QpInitAttr<'_>| state.id.create_qp(pd, attr);
            let qp = create(pd, QpInit::extended(attr)?, make).inspect_err(|_| {
                // In case it was made, and only C's part was not.
                state.id.destroy_qp();
            })?;
            (*id).pd = pd;
            (*id).qp = qp;
            (*id).qp_type = qp_type;
            publish_state(qp)
        }
    })();
    // SAFETY: the caller's promise.
    made.inspect_err(|_| unsafe { destroy_cqs(id) })
}

/// Makes the receiving end of an XRC connection.
///
/// # Safety
/// As [`create_qp`].
unsafe fn create_receiving_end(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        if attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
            attr.xrcd = devices::xrcd((*id).verbs)?;
            attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        }
        attr.qp_type = IBV_QPT_XRC_RECV;
        let qp = create_qp_ex((*id).verbs, attr);
        if qp.is_null() {
            return Err(failed());
        }
        if let Err(error) = object(id)?.id.attach_qp(object(qp)?.qp()) {
            ibv_destroy_qp(qp);
            return Err(error.into());
        }
        (*id).qp = qp;
        publish_state(qp)
    }
}

/// What both structs have in common.
macro_rules! copy_common {
    ($from:expr, $to:expr) => {
        $to.qp_context = $from.qp_context;
        $to.send_cq = $from.send_cq;
        $to.recv_cq = $from.recv_cq;
        $to.srq = $from.srq;
        $to.cap = $from.cap;
        $to.qp_type = $from.qp_type;
        $to.sq_sig_all = $from.sq_sig_all;
    };
}

/// The same from the plain struct.
///
/// # Safety
/// As [`create_qp`].
pub(super) unsafe fn create_plain(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: null pointers and integers.
    let mut extended: ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
    copy_common!(attr, extended);
    extended.pd = pd;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    // SAFETY: the caller's promise.
    let made = unsafe { create_qp(id, &mut extended) };
    copy_common!(extended, attr);
    made
}

pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier, domain and attributes.
        unsafe { create_plain(id, pd, out_mut(attr)?) }?;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and attributes.
        unsafe { create_qp(id, out_mut(attr)?) }?;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    ffi::or((), || {
        // SAFETY: C's identifier.
        unsafe {
            let state = object(id)?;
            let qp = mem::replace(&mut (*id).qp, ptr::null_mut());
            state.id.destroy_qp();
            if !qp.is_null() {
                ibv_destroy_qp(qp);
            }
            destroy_cqs(id);
        }
        Ok(())
    });
}

/// Makes the shared receive queue.
///
/// # Safety
/// `id` and what is in `attr` is C's.
unsafe fn create_srq(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    // SAFETY: the caller's promise.
    let c = unsafe { *in_ref(id)? };
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || c.verbs.is_null() {
        return Err(Fault::INVALID);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = c.pd;
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    if attr.srq_type == IBV_SRQT_XRC {
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
            attr.xrcd = devices::xrcd(c.verbs)?;
        }
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
            // SAFETY: the caller's promise.
            unsafe {
                create_cqs(id, 0, attr.attr.max_wr)?;
                attr.cq = (*id).recv_cq;
            }
        }
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    }
    // SAFETY: the caller's promise.
    let srq = unsafe { srq::create_srq_ex(c.verbs, attr) };
    if srq.is_null() {
        let fault = failed();
        // SAFETY: as above.
        unsafe { destroy_cqs(id) };
        return Err(fault);
    }
    // SAFETY: as above.
    unsafe {
        if c.pd.is_null() {
            (*id).pd = attr.pd;
        }
        (*id).srq = srq;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and attributes.
        unsafe { create_srq(id, out_mut(attr)?) }?;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier, domain and attributes.
        let (c, attr) = unsafe { (*in_ref(id)?, out_mut(attr)?) };
        // SAFETY: null pointers and integers.
        let mut extended: ibv_srq_init_attr_ex = unsafe { mem::zeroed() };
        extended.srq_context = attr.srq_context;
        extended.attr = attr.attr;
        extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        extended.srq_type = if c.qp_type == IBV_QPT_XRC_RECV {
            IBV_SRQT_XRC
        } else {
            IBV_SRQT_BASIC
        };
        extended.pd = pd;
        // SAFETY: as above.
        let made = unsafe { create_srq(id, &mut extended) };
        attr.attr = extended.attr;
        made?;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    ffi::or((), || {
        // SAFETY: C's identifier.
        unsafe {
            object(id)?;
            let srq = mem::replace(&mut (*id).srq, ptr::null_mut());
            if !srq.is_null() {
                ibv_destroy_srq(srq);
            }
            destroy_cqs(id);
        }
        Ok(())
    });
}

pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier, and two structs to be filled in.
        let (state, attr, mask) = unsafe { (object(id)?, out_mut(attr)?, out_mut(mask)?) };
        let to = QpState::from_value(attr.qp_state).ok_or(Fault::INVALID)?;
        let (found, bits) = state.id.init_qp_attr(to)?;
        *attr = c_qp_attr(&found, attr.cap);
        *mask = bits.bits().cast_signed();
        Ok(0)
    })
}
