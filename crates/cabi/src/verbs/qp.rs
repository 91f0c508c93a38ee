//! Queue pairs: creating and destroying them.

use std::ffi::{c_int, c_void};
use std::{ptr, result};

use softverbs::{AsyncElement, Pd, Qp, QpCap, QpInitAttr, QpType};

use super::ah::gid_of;
use super::async_event::Fetched;
use super::context::{ContextState, Element, state};
use super::pd::next_handle;
use super::qp_ex::{self, Requests};
use super::xrc::create_receiving_end;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, Use, c_object, in_ref, object, out_mut};

/// The smallest send queue: a device grants what it can count in, and programs with one of a single
/// request post the next one when the answer has come, before its acknowledge has.
const LEAST_SENDS: u32 = 16;

/// Inline data that every queue pair takes: some programs ask for none and yet send a few octets so, as
/// the kernel's drivers let them.
const LEAST_INLINE: u32 = 64;

/// What we keep of a queue pair.
pub(crate) struct QpState {
    qp: Qp,
    pub(super) fetched: Fetched,
    pub(super) requests: Requests,
    /// Made for the calls of `ibv_qp_ex`.
    extended: bool,
    _uses: Vec<Use>,
}

c_object!(ibv_qp, ibv_qp_ex => QpState);

impl QpState {
    pub(crate) fn qp(&self) -> &Qp {
        &self.qp
    }
}

/// What C's structs for creating a queue pair have in common.
pub(crate) struct QpInit<'a> {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: &'a mut ibv_qp_cap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: c_int,
    /// `send_ops_flags` of an extended queue pair.
    pub(crate) send_ops: Option<u64>,
}

impl<'a> QpInit<'a> {
    pub(crate) fn plain(attr: &'a mut ibv_qp_init_attr) -> Self {
        Self {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: &mut attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
            send_ops: None,
        }
    }

    /// Of an extended struct, with what its mask says. EOPNOTSUPP for what there is not.
    pub(crate) fn extended(attr: &'a mut ibv_qp_init_attr_ex) -> Result<Self> {
        const KNOWN: u32 =
            IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        if attr.comp_mask & !KNOWN != 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        if attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && attr.create_flags != 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        let send_ops = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        Ok(Self {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: &mut attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
            send_ops: send_ops.then_some(attr.send_ops_flags),
        })
    }
}

/// Types of C that there are, but for receiving ends of XRC, which are made in another way.
fn qp_type(value: u32) -> Result<QpType> {
    let known = QpType::ALL
        .into_iter()
        .find(|known| *known as u32 == value && *known != QpType::XrcRecv);
    known.ok_or(Fault::NOT_SUPPORTED)
}

/// Makes a queue pair, by `make`, and says in `init` what it has.
///
/// # Safety
/// `pd` and the objects in `init` are C's, or null.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    init: QpInit<'_>,
    make: impl FnOnce(&Pd, &QpInitAttr<'_>) -> result::Result<Qp, softverbs::Error>,
) -> Result<*mut ibv_qp> {
    // SAFETY: the caller's promise.
    let (domain, context) = unsafe { (object(pd)?, in_ref(pd)?.context) };
    // SAFETY: a domain's context is not closed before it.
    let opened = unsafe { state(context) }?;
    // A sending end of XRC receives nothing.
    let c_recv_cq = match init.qp_type {
        IBV_QPT_XRC_SEND if init.recv_cq.is_null() => init.send_cq,
        _ => init.recv_cq,
    };
    // SAFETY: the caller's promise.
    let (send_cq, recv_cq) = unsafe { (object(init.send_cq)?, object(c_recv_cq)?) };
    // SAFETY: as above.
    let contexts = unsafe { [(*init.send_cq).context, (*c_recv_cq).context] };
    if contexts != [context, context] {
        return Err(Fault::INVALID);
    }
    let srq = if init.srq.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(unsafe { object(init.srq) }?)
    };
    let qp_type = qp_type(init.qp_type)?;
    let transport = domain.pd().context().device().transport();
    if init
        .send_ops
        .is_some_and(|ops| ops & !qp_ex::offered(qp_type, transport) != 0)
    {
        return Err(Fault::NOT_SUPPORTED);
    }
    let qp = make(
        domain.pd(),
        &QpInitAttr {
            qp_context: 0,
            send_cq: send_cq.cq(),
            recv_cq: recv_cq.cq(),
            srq: srq.map(|srq| srq.srq()),
            cap: QpCap {
                max_send_wr: match init.cap.max_send_wr {
                    0 => 0,
                    asked => asked.max(LEAST_SENDS),
                },
                max_recv_wr: init.cap.max_recv_wr,
                max_send_sge: init.cap.max_send_sge,
                max_recv_sge: init.cap.max_recv_sge,
                max_inline_data: init.cap.max_inline_data.max(LEAST_INLINE),
            },
            qp_type,
            sq_sig_all: init.sq_sig_all != 0,
        },
    )?;
    *init.cap = c_cap(&qp.cap());
    let mut uses = vec![domain.users.add(), send_cq.users.add(), recv_cq.users.add()];
    uses.extend(srq.map(|srq| srq.users.add()));
    let base = ibv_qp {
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        ..unconnected(context, init.qp_context, &qp)
    };
    adopt(opened, base, qp, uses, init.send_ops.is_some())
}

/// C's part of a queue pair that has nothing but itself.
pub(super) fn unconnected(context: *mut ibv_context, qp_context: *mut c_void, qp: &Qp) -> ibv_qp {
    ibv_qp {
        context,
        qp_context,
        pd: ptr::null_mut(),
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        handle: next_handle(),
        qp_num: qp.qp_num().get(),
        state: qp.state() as u32,
        qp_type: qp.qp_type() as u32,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    }
}

/// Makes the object by which C knows a queue pair.
pub(super) fn adopt(
    opened: &ContextState,
    base: ibv_qp,
    qp: Qp,
    uses: Vec<Use>,
    extended: bool,
) -> Result<*mut ibv_qp> {
    let element = AsyncElement::Qp(qp.qp_num());
    let pointer = ffi::create::<ibv_qp>(|_| {
        let state = QpState {
            qp,
            fetched: Fetched::default(),
            requests: Requests::default(),
            extended,
            _uses: uses,
        };
        Ok((qp_ex::with_calls(base), state))
    })?;
    opened.remember(element, Element::Qp(pointer));
    Ok(pointer)
}

/// The sizes for C.
pub(super) fn c_cap(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    ffi::null(|| {
        // SAFETY: C's domain, attributes and what is in them.
        unsafe { create(pd, QpInit::plain(out_mut(attr)?), Pd::create_qp) }
    })
}

/// `ibv_create_qp_ex`, through the context.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    ffi::null(|| {
        // SAFETY: C's opened device and attributes.
        let (opened, attr) = unsafe { (state(context)?, out_mut(attr)?) };
        if attr.qp_type == IBV_QPT_XRC_RECV {
            // SAFETY: C's opened device and domain.
            return unsafe { create_receiving_end(opened, context, attr) };
        }
        let has_pd = attr.comp_mask & IBV_QP_INIT_ATTR_PD != 0;
        let pd = if has_pd { attr.pd } else { ptr::null_mut() };
        let init = QpInit::extended(attr)?;
        // SAFETY: C's domain and what is in the attributes.
        unsafe { create(pd, init, Pd::create_qp) }
    })
}

/// Ends a queue pair: waits until the events that C has fetched are acknowledged.
///
/// # Safety
/// `qp` is C's, or null, and C gives it up.
pub(crate) unsafe fn destroy(qp: *mut ibv_qp) -> Result<()> {
    // SAFETY: the caller's promise.
    let queue_pair = unsafe { object(qp) }?;
    // SAFETY: a queue pair's context is not closed before it.
    let opened = unsafe { state((*qp).context) }?;
    let element = AsyncElement::Qp(queue_pair.qp.qp_num());
    opened.forget(element, Element::Qp(qp));
    if queue_pair.qp.qp_type() == QpType::XrcRecv {
        // It may be open more than once, and goes with its last handle; this one with its own events.
        queue_pair.fetched.wait_acknowledged();
    } else {
        queue_pair.qp.destroy();
    }
    // SAFETY: the caller gives it up, and no event names it.
    drop(unsafe { ffi::destroy(qp) });
    Ok(())
}

pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: C gives up a queue pair, or passes null.
    ffi::errno(|| unsafe { destroy(qp) })
}

pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    ffi::null(|| {
        // SAFETY: C's queue pair, or null.
        if unsafe { object(qp) }?.extended {
            Ok(qp.cast())
        } else {
            Err(Fault::NOT_SUPPORTED)
        }
    })
}

/// Whether data are placed in the order of their addresses: nothing is promised.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: u32,
    _flags: u32,
) -> c_int {
    0
}

pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue pair and address.
        let (state, gid) = unsafe { (object(qp)?, in_ref(gid)?) };
        Ok(state.qp.attach_mcast(gid_of(gid))?)
    })
}

pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue pair and address.
        let (state, gid) = unsafe { (object(qp)?, in_ref(gid)?) };
        Ok(state.qp.detach_mcast(gid_of(gid))?)
    })
}
