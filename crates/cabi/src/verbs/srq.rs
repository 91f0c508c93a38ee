//! Shared receive queues.

use std::ffi::{c_int, c_void};

use softverbs::{AsyncElement, Srq, SrqInitAttr};

use super::async_event::Fetched;
use super::context::{Element, state};
use super::pd::next_handle;
use super::post::{post_list, recv_wr};
use super::xrc;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, Use, Users, c_object, in_ref, object, out_mut};

/// What we keep of a shared receive queue.
pub(crate) struct SrqState {
    srq: Srq,
    pub(super) users: Users,
    pub(super) fetched: Fetched,
    _uses: Vec<Use>,
}

c_object!(ibv_srq, ibv_srq => SrqState);

impl SrqState {
    pub(crate) fn srq(&self) -> &Srq {
        &self.srq
    }
}

/// Makes a queue and says in `attr` what it has.
///
/// # Safety
/// `pd` is C's, or null.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq> {
    // SAFETY: the caller's promise.
    let domain = unsafe { object(pd) }?;
    // The limit is armed by `ibv_modify_srq` only.
    let srq = domain.pd().create_srq(&SrqInitAttr {
        srq_context: 0,
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        srq_limit: 0,
    })?;
    // SAFETY: the caller's promise.
    unsafe { adopt(pd, srq_context, attr, srq, vec![domain.users.add()]) }
}

/// Makes the object by which C knows a queue, and says in `attr` what it has.
///
/// # Safety
/// `pd` is C's.
pub(super) unsafe fn adopt(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    srq: Srq,
    uses: Vec<Use>,
) -> Result<*mut ibv_srq> {
    // SAFETY: the caller's promise; a domain's context is not closed before it.
    let (context, opened) = unsafe {
        let context = in_ref(pd)?.context;
        (context, state(context)?)
    };
    let (id, has) = (srq.id(), srq.query());
    let pointer = ffi::create(|_| {
        let c = ibv_srq {
            context,
            srq_context,
            pd,
            handle: next_handle(),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        let state = SrqState {
            srq,
            users: Users::default(),
            fetched: Fetched::default(),
            _uses: uses,
        };
        Ok((c, state))
    })?;
    opened.remember(AsyncElement::Srq(id), Element::Srq(pointer));
    (attr.max_wr, attr.max_sge) = (has.max_wr, has.max_sge);
    Ok(pointer)
}

pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    ffi::null(|| {
        // SAFETY: C's domain and attributes.
        unsafe {
            let init = out_mut(init)?;
            create(pd, init.srq_context, &mut init.attr)
        }
    })
}

/// `ibv_create_srq_ex`, through the context; the plain kind goes to `ibv_create_srq`.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    ffi::null(|| {
        // SAFETY: C's opened device and attributes.
        let (_, init) = unsafe { (state(context)?, out_mut(init)?) };
        if init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && init.srq_type == IBV_SRQT_XRC {
            // SAFETY: C's objects.
            return unsafe { xrc::create_srq(init) };
        }
        let basic = init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || init.srq_type == IBV_SRQT_BASIC;
        if !basic || init.comp_mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
            return Err(Fault::INVALID);
        }
        // SAFETY: C's domain.
        unsafe { create(init.pd, init.srq_context, &mut init.attr) }
    })
}

pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    attr_mask: c_int,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue and attributes.
        let (state, attr) = unsafe { (object(srq)?, in_ref(attr)?) };
        let mask = attr_mask.cast_unsigned();
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Fault::INVALID);
        }
        if mask & IBV_SRQ_MAX_WR != 0 {
            state.srq.resize(attr.max_wr)?;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            state.srq.modify(attr.srq_limit)?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue, and a struct to be filled in.
        let (state, attr) = unsafe { (object(srq)?, out_mut(attr)?) };
        let has = state.srq.query();
        *attr = ibv_srq_attr {
            max_wr: has.max_wr,
            max_sge: has.max_sge,
            srq_limit: has.srq_limit,
        };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue, or null.
        let queue = unsafe { object(srq) }?;
        queue.users.none()?;
        queue.srq.settle_events();
        // SAFETY: a queue's context is not closed before it.
        let opened = unsafe { state((*srq).context) }?;
        opened.forget(AsyncElement::Srq(queue.srq.id()), Element::Srq(srq));
        // SAFETY: C gives it up; no queue pair uses it, and no event names it.
        drop(unsafe { ffi::destroy(srq) });
        Ok(())
    })
}

/// `ibv_post_srq_recv`, through the context.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: C's queue and list.
    unsafe {
        post_list(wr, bad_wr, |wr| {
            object(srq)?.srq.post_recv(&recv_wr(wr)?)?;
            Ok(())
        })
    }
}
