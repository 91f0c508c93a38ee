//! Endpoints: identifiers that are made, resolved and equipped in one call. They are synchronous.

use std::ffi::c_int;
use std::mem;

use super::channel::{self, Channel};
use super::{event, id, option, qp, resolve};
use crate::abi::*;
use crate::ffi::{self, Fault, Result, in_ref, object, out_mut};

/// How long resolving may take.
const TIMEOUT_MS: c_int = 2000;

pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's structs.
        let (out, res) = unsafe { (out_mut(id)?, in_ref(res)?) };
        let (ps, qp_type) = (
            res.ai_port_space.cast_unsigned(),
            res.ai_qp_type.cast_unsigned(),
        );
        // SAFETY: no channel, and no context.
        let new = unsafe { id::create(std::ptr::null_mut(), std::ptr::null_mut(), ps, qp_type) }?;
        // SAFETY: the new identifier, and C's domain and attributes.
        match unsafe { equip(new, res, pd, qp_init_attr) } {
            Ok(()) => *out = new,
            Err(fault) => {
                // SAFETY: just made, and nobody knows it.
                unsafe { rdma_destroy_ep(new) };
                return Err(fault);
            }
        }
        Ok(0)
    })
}

/// # Safety
/// `id` is new; the others are C's, or null.
unsafe fn equip(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let qp_type = res.ai_qp_type.cast_unsigned();
        if res.ai_flags.cast_unsigned() & RAI_PASSIVE != 0 {
            resolve::bind(id, res.ai_src_addr)?;
            if !pd.is_null() {
                (*id).pd = pd;
            }
            if let Some(attr) = qp_init_attr.as_ref() {
                let attr = ibv_qp_init_attr { qp_type, ..*attr };
                object(id)?.own().qp_init_attr = Some(attr);
            }
            return Ok(());
        }
        resolve::resolve_addr(id, res.ai_src_addr, res.ai_dst_addr, TIMEOUT_MS)?;
        if res.ai_route_len == 0 {
            resolve::resolve_route(id, TIMEOUT_MS)?;
        } else {
            let path = ffi::slice(res.ai_route.cast::<u8>(), res.ai_route_len)?;
            option::set_path(id, path)?;
        }
        if let Some(attr) = qp_init_attr.as_mut() {
            attr.qp_type = qp_type;
            qp::create_plain(id, pd, attr)?;
        }
        let connect = ffi::slice(res.ai_connect.cast::<u8>(), res.ai_connect_len)?;
        object(id)?.own().connect = connect.to_vec();
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    ffi::or((), || {
        // SAFETY: C gives up an endpoint.
        unsafe {
            if !in_ref(id)?.qp.is_null() {
                qp::rdma_destroy_qp(id);
            }
            if !in_ref(id)?.srq.is_null() {
                qp::rdma_destroy_srq(id);
            }
            id::destroy(id)
        }
    });
}

pub(crate) unsafe extern "C-unwind" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    ffi::event(
        || {
            // SAFETY: C's identifier, and a pointer to be filled in.
            let (state, _) = unsafe { (object(listen)?, out_mut(id)?) };
            if !state.is_sync() {
                return Err(Fault::INVALID);
            }
            // SAFETY: C's identifier, whose channel is its own.
            unsafe {
                event::release(listen);
                channel::channel((*listen).channel)
            }
        },
        |channel: &Channel| {
            // SAFETY: C's identifier, whose channel is its own.
            let Some(event) = event::take(unsafe { (*listen).channel }, channel)? else {
                return Ok(false);
            };
            // SAFETY: the event is new, and its identifier lives as long as it; C's to be filled in.
            unsafe {
                match accept_request(listen, event) {
                    Ok(new) => id.write(new),
                    Err(fault) => {
                        // The next call lets go of it.
                        (*listen).event = event;
                        return Err(fault);
                    }
                }
            }
            Ok(true)
        },
    )
}

/// # Safety
/// `listen` is one of C's, `event` one of its channel's.
unsafe fn accept_request(
    listen: *mut rdma_cm_id,
    event: *mut rdma_cm_event,
) -> Result<*mut rdma_cm_id> {
    // SAFETY: the caller's promise.
    unsafe {
        let event_of = *in_ref(event)?;
        if event_of.status != 0 {
            return Err(Fault::new(event_of.status.saturating_abs()));
        }
        if event_of.event != RDMA_CM_EVENT_CONNECT_REQUEST {
            return Err(Fault::INVALID);
        }
        let attr = object(listen)?.own().qp_init_attr;
        if let Some(mut attr) = attr {
            // The listener's domain, if it is one of the same device.
            let mut pd = (*listen).pd;
            if !pd.is_null() && (*pd).context != (*event_of.id).verbs {
                pd = std::ptr::null_mut();
            }
            qp::create_plain(event_of.id, pd, &mut attr)?;
        }
        let _ = mem::replace(&mut (*event_of.id).event, event);
        Ok(event_of.id)
    }
}
