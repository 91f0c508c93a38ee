//! Completion queues.

use std::ffi::{c_int, c_void};
use std::ptr;

use softverbs::{AsyncElement, Cq, Wc};

use super::async_event::Fetched;
use super::comp_channel::ChannelState;
use super::context::{Element, state};
use super::cq_ex::{self, Position};
use super::pd::next_handle;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, Use, Users, c_object, object};

/// The smallest queue.
const LEAST: u32 = 64;

/// What we keep of a completion queue.
pub(crate) struct CqState {
    cq: Cq,
    pub(super) users: Users,
    pub(super) fetched: Fetched,
    pub(super) position: Position,
    _channel: Option<Use>,
}

c_object!(ibv_cq, ibv_cq_ex => CqState);

impl CqState {
    pub(crate) fn cq(&self) -> &Cq {
        &self.cq
    }
}

/// What C knows a queue by: queues that C did not make have nothing there.
pub(super) fn c_cq(cq: &Cq) -> *mut ibv_cq {
    ptr::with_exposed_provenance_mut(cq.cq_context().try_into().unwrap_or(0))
}

/// What a queue is made with.
pub(super) struct CqInit {
    pub(super) cqe: u32,
    pub(super) cq_context: *mut c_void,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) comp_vector: u32,
}

/// Makes a queue, with the calls of an extended one, which a program of the plain one never looks at.
///
/// # Safety
/// `context` and `channel` are C's, or null.
pub(super) unsafe fn create(context: *mut ibv_context, init: &CqInit) -> Result<*mut ibv_cq> {
    // SAFETY: the caller's promise.
    let opened = unsafe { state(context) }?;
    if init.comp_vector >= super::context::COMP_VECTORS {
        return Err(Fault::INVALID);
    }
    let channel: Option<&ChannelState> = if init.channel.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(unsafe { object(init.channel) }?)
    };
    // A device grants what it can count in, which is more than few. Programs rely on it: perftest's
    // send_lat does with a queue of one.
    let cqe = if init.cqe == 0 {
        0
    } else {
        init.cqe.max(LEAST)
    };
    let cq = ffi::create::<ibv_cq>(|pointer| {
        let name = pointer.expose_provenance() as u64;
        let cq = opened
            .context()
            .create_cq(cqe, channel.map(ChannelState::channel), name)?;
        let c = ibv_cq_ex {
            context,
            channel: init.channel,
            cq_context: init.cq_context,
            handle: next_handle(),
            cqe: c_int::try_from(cq.cqe()).unwrap_or(c_int::MAX),
            ..cq_ex::calls()
        };
        let state = CqState {
            cq,
            users: Users::default(),
            fetched: Fetched::default(),
            position: Position::default(),
            _channel: channel.map(|channel| channel.users.add()),
        };
        Ok((c, state))
    })?;
    // SAFETY: just made.
    let element = AsyncElement::Cq(unsafe { object(cq) }?.cq().id());
    opened.remember(element, Element::Cq(cq));
    Ok(cq)
}

pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    ffi::null(|| {
        let init = CqInit {
            cqe: u32::try_from(cqe).map_err(|_| Fault::INVALID)?,
            cq_context,
            channel,
            comp_vector: u32::try_from(comp_vector).map_err(|_| Fault::INVALID)?,
        };
        // SAFETY: C's opened device and channel.
        unsafe { create(context, &init) }
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue, or null.
        let state = unsafe { object(cq) }?;
        state.users.none()?;
        state.cq.settle_events();
        // SAFETY: a queue's context is not closed before it.
        let opened = unsafe { super::context::state((*cq).context) }?;
        opened.forget(AsyncElement::Cq(state.cq.id()), Element::Cq(cq));
        // SAFETY: C gives it up; no queue pair uses it, and no event names it.
        drop(unsafe { ffi::destroy(cq) });
        Ok(())
    })
}

/// A completion as C sees it.
pub(super) fn c_wc(wc: &Wc) -> ibv_wc {
    let mut flags = 0;
    let mut imm_data = 0;
    if let Some(imm) = wc.imm {
        flags |= IBV_WC_WITH_IMM;
        imm_data = imm.to_be();
    }
    if let Some(rkey) = wc.invalidated_rkey {
        flags |= IBV_WC_WITH_INV;
        imm_data = rkey.get();
    }
    if wc.grh {
        flags |= IBV_WC_GRH;
    }
    ibv_wc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: wc.opcode as u32,
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm_data,
        qp_num: wc.qp_num.get(),
        src_qp: wc.src_qp.map_or(0, |qpn| qpn.get()),
        wc_flags: flags,
        pkey_index: 0,
        slid: 0,
        sl: wc.sl,
        dlid_path_bits: 0,
    }
}

/// `ibv_poll_cq`, through the context.
pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's queue, or null.
        let cq = &unsafe { object(cq) }?.cq;
        let wanted = usize::try_from(num_entries).map_err(|_| Fault::INVALID)?;
        let mut place = wc;
        let found = cq.poll_each(wanted, |completion| {
            // SAFETY: C has room for `num_entries` of them at `wc`.
            unsafe {
                place.write(c_wc(&completion));
                place = place.add(1);
            }
        })?;
        // No more than `num_entries`.
        c_int::try_from(found).map_err(|_| Fault::INVALID)
    })
}

/// `ibv_req_notify_cq`, through the context.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue, or null.
        unsafe { object(cq) }?.cq.req_notify(solicited_only != 0)?;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue, or null.
        let state = unsafe { object(cq) }?;
        state
            .cq
            .resize(u32::try_from(cqe).map_err(|_| Fault::INVALID)?)?;
        // SAFETY: as above; rdma-core writes there at the same moment.
        unsafe { (*cq).cqe = cqe };
        Ok(())
    })
}

/// `ibv_modify_cq`, through the context: nothing is moderated, which a device without such timers may say.
pub(super) unsafe extern "C" fn modify_cq(
    cq: *mut ibv_cq,
    _attr: *mut ibv_modify_cq_attr,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue, or null.
        unsafe { object(cq) }?;
        Err(Fault::NOT_SUPPORTED)
    })
}
