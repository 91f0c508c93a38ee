//! How events reach C.

use std::ffi::{c_char, c_int};
use std::mem;
use std::ptr;

use softverbs::cm::{CmEvent, ConnParam, EventKind};

use super::channel::{self, Channel};
use super::{id, multicast, qp};
use crate::abi::*;
use crate::ffi::{self, Fault, Result, c_object, object, out_mut};
use crate::verbs::c_ah_attr;

/// What is behind an event of C's; the event's private data points into it.
pub(crate) struct EventState {
    #[allow(dead_code, reason = "held for its destructor, which acknowledges it")]
    event: CmEvent,
}

c_object!(rdma_cm_event, rdma_cm_event => EventState);

pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    ffi::event(
        || {
            // SAFETY: C's to be filled in, and a channel, or null.
            unsafe {
                out_mut(event)?;
                channel::channel(channel)
            }
        },
        |state: &Channel| {
            let Some(next) = take(channel, state)? else {
                return Ok(false);
            };
            // SAFETY: C's to be filled in.
            unsafe { event.write(next) };
            Ok(true)
        },
    )
}

/// Fetches the event of a channel whose announcement was read.
pub(super) fn take(
    channel: *mut rdma_event_channel,
    state: &Channel,
) -> Result<Option<*mut rdma_cm_event>> {
    state.take(|event| deliver(channel, event))
}

/// Waits for the next event of a channel.
///
/// # Safety
/// `channel` is null, or a channel that is alive when this is called.
unsafe fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event> {
    // SAFETY: the caller's promise.
    let state = unsafe { channel::channel(channel) }?;
    ffi::next(&*state, |state| take(channel, state))
}

/// Makes C's object of an event, after the fields of its identifier.
fn deliver(channel: *mut rdma_event_channel, event: CmEvent) -> Result<*mut rdma_cm_event> {
    let listener = event.listen_id().map_or(ptr::null_mut(), id::c_id);
    let id = if event.kind() == EventKind::ConnectRequest {
        requested(channel, listener, &event)?
    } else {
        id::c_id(event.id())
    };
    // SAFETY: the event is not acknowledged yet, and whoever destroys its identifier waits for that.
    let status = unsafe { update(id, &event) };
    let (kind, status) = match status {
        Ok(()) => (event.kind() as u32, event.status()),
        // The application hears of it where it waits.
        Err(fault) => (RDMA_CM_EVENT_CONNECT_ERROR, -fault.errno()),
    };
    // SAFETY: as above.
    let qp_type = unsafe { (*id).qp_type };
    ffi::create::<rdma_cm_event>(|_| {
        let param = match event.kind() {
            EventKind::MulticastJoin | EventKind::MulticastError => {
                // SAFETY: as above.
                ud_param(&event, unsafe { multicast::context(id, &event) })
            }
            _ if qp_type == IBV_QPT_UD => ud_param(&event, ptr::null()),
            _ => rdma_cm_event_param {
                conn: conn_param(event.param()),
            },
        };
        let c = rdma_cm_event {
            id,
            listen_id: listener,
            event: kind,
            status,
            param,
        };
        Ok((c, EventState { event }))
    })
}

/// The identifier of a connect request.
fn requested(
    channel: *mut rdma_event_channel,
    listener: *mut rdma_cm_id,
    event: &CmEvent,
) -> Result<*mut rdma_cm_id> {
    // SAFETY: the request is one of the listener's events, so it stays until that is acknowledged.
    let (state, context, ps, qp_type) = unsafe {
        let state = object(listener)?;
        let c = listener;
        (state, (*c).context, (*c).ps, (*c).qp_type)
    };
    let new = id::wrap(event.id().clone(), channel, false, context, ps, qp_type)?;
    if state.is_sync() {
        // SAFETY: just made.
        unsafe { id::migrate(new, ptr::null_mut()) }?;
    }
    Ok(new)
}

/// Brings the fields of the event's identifier up to date.
///
/// # Safety
/// `id` is one of C's, alive.
unsafe fn update(id: *mut rdma_cm_id, event: &CmEvent) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        match event.kind() {
            EventKind::AddrResolved => id::refresh(id)?,
            EventKind::Established | EventKind::ConnectResponse => {
                id::refresh(id)?;
                qp::refresh_state(id);
            }
            EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError => {
                qp::refresh_state(id);
            }
            EventKind::RouteResolved => id::refresh_path(id)?,
            EventKind::ConnectRequest => {
                id::refresh(id)?;
                id::refresh_path(id)?;
            }
            EventKind::Disconnected => object(id)?.own().disconnected = true,
            _ => {}
        }
    }
    Ok(())
}

fn private_data(param: &ConnParam) -> (*const std::ffi::c_void, u8) {
    let data = &param.private_data;
    if data.is_empty() {
        return (ptr::null(), 0);
    }
    (
        data.as_ptr().cast(),
        u8::try_from(data.len()).unwrap_or(u8::MAX),
    )
}

fn conn_param(param: &ConnParam) -> rdma_conn_param {
    let (private_data, private_data_len) = private_data(param);
    rdma_conn_param {
        private_data,
        private_data_len,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control.into(),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq.into(),
        qp_num: param.qp_num.get(),
    }
}

/// `context`: of a multicast group, which stands where the private data would.
fn ud_param(event: &CmEvent, context: *const std::ffi::c_void) -> rdma_cm_event_param {
    let (data, private_data_len) = private_data(event.param());
    // SAFETY: a null pointer and integers.
    let mut ud: rdma_ud_param = unsafe { mem::zeroed() };
    ud.private_data = if private_data_len == 0 { context } else { data };
    ud.private_data_len = private_data_len;
    if let Some(to) = &event.param().ud {
        ud.ah_attr = c_ah_attr(&to.ah_attr);
        ud.qp_num = to.qp_num.get();
        ud.qkey = to.qkey;
    }
    rdma_cm_event_param { ud }
}

pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    ffi::minus_one(|| {
        if event.is_null() {
            return Err(Fault::INVALID);
        }
        // SAFETY: C gives it up.
        drop(unsafe { ffi::destroy(event) });
        Ok(0)
    })
}

/// Acknowledges the event that a synchronous identifier holds.
///
/// # Safety
/// `id` is one of C's, alive.
pub(super) unsafe fn release(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; the field is ours to fill in, with events of `next`.
    unsafe {
        let event = mem::replace(&mut (*id).event, ptr::null_mut());
        if !event.is_null() {
            drop(ffi::destroy(event));
        }
    }
}

/// Ends a call: that of a synchronous identifier waits for its event, and reports what it says.
///
/// # Safety
/// `id` is one of C's, alive.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: the caller's promise.
    if !unsafe { object(id) }?.is_sync() {
        return Ok(());
    }
    // SAFETY: as above; the channel is its own.
    let event = unsafe {
        release(id);
        let event = next((*id).channel)?;
        (*id).event = event;
        *event
    };
    match (event.status, event.event) {
        (0, _) => Ok(()),
        (_, RDMA_CM_EVENT_REJECTED) => Err(Fault::new(libc::ECONNREFUSED)),
        (status, _) => Err(Fault::new(status.saturating_abs())),
    }
}

pub(crate) unsafe extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    let known = usize::try_from(event)
        .ok()
        .and_then(|event| EventKind::ALL.get(event));
    known
        .map_or(c"UNKNOWN EVENT", |kind| kind.c_name())
        .as_ptr()
}
