//! Connections: connect, accept, reject, disconnect, and what goes with them.

use std::ffi::{c_int, c_void};

use softverbs::cm::ConnParam;
use softverbs::{AsyncEventKind, Qpn};

use super::{event, qp};
use crate::abi::*;
use crate::ffi::{self, Fault, Result, in_ref, object, out_mut};

/// The parameters of a call: what `param` says, or the most, with the identifier's own octets before
/// the application's private data.
///
/// # Safety
/// `param` is null or valid, and so is its private data.
unsafe fn conn_param(connect: &[u8], param: *const rdma_conn_param) -> Result<ConnParam> {
    let mut private_data = connect.to_vec();
    // SAFETY: the caller's promise.
    let Some(param) = (unsafe { param.as_ref() }) else {
        return Ok(ConnParam::with_private_data(private_data));
    };
    if !param.private_data.is_null() {
        let data = param.private_data.cast::<u8>();
        // SAFETY: the caller's promise.
        private_data.extend_from_slice(unsafe { ffi::slice(data, param.private_data_len.into()) }?);
    }
    Ok(ConnParam {
        private_data,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control != 0,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq != 0,
        qp_num: Qpn::new(param.qp_num),
        ..ConnParam::default()
    })
}

pub(crate) unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and parameters.
        unsafe {
            let state = object(id)?;
            qp::adopt(id)?;
            let connect = state.own().connect.clone();
            state.id.connect(&conn_param(&connect, param)?)?;
            state.own().connect.clear();
            event::complete(id)?;
        }
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and parameters.
        unsafe {
            let state = object(id)?;
            qp::adopt(id)?;
            state.id.accept(&conn_param(&[], param)?)?;
            qp::refresh_state(id);
            if (*id).qp_type == IBV_QPT_UD {
                // The answer is all there is: no event follows.
                if state.is_sync() {
                    event::release(id);
                }
            } else {
                event::complete(id)?;
            }
        }
        Ok(0)
    })
}

/// # Safety
/// `id` is one of C's, `data` valid for `len` octets or null.
unsafe fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8, ece: bool) -> Result<()> {
    let len = if data.is_null() { 0 } else { len };
    // SAFETY: the caller's promise.
    let (state, data) = unsafe { (object(id)?, ffi::slice(data.cast::<u8>(), len.into())?) };
    if ece {
        state.id.reject_ece(data)?;
    } else {
        state.id.reject(data)?;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and data.
        unsafe { reject(id, private_data, private_data_len, false) }?;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and data.
        unsafe { reject(id, private_data, private_data_len, true) }?;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier.
        unsafe {
            let state = object(id)?;
            if !(*id).qp.is_null() {
                return Err(Fault::INVALID);
            }
            state.id.establish()?;
        }
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier.
        unsafe {
            let state = object(id)?;
            state.id.disconnect()?;
            qp::refresh_state(id);
            // No event comes to those who have had it.
            let heard = state.own().disconnected;
            if !heard {
                event::complete(id)?;
            }
        }
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: u32) -> c_int {
    ffi::minus_one(|| {
        let kind = AsyncEventKind::ALL
            .into_iter()
            .find(|kind| *kind as u32 == event)
            .ok_or(Fault::INVALID)?;
        // SAFETY: C's identifier.
        unsafe { object(id) }?.id.notify(kind)?;
        Ok(0)
    })
}

/// Enhanced connection establishment is between devices of one maker: what the application wants to
/// tell is kept, and no peer tells anything.
pub(crate) unsafe extern "C" fn rdma_set_local_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and struct.
        let (state, c, ece) = unsafe { (object(id)?, in_ref(id)?, in_ref(ece)?) };
        if !c.qp.is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(Fault::INVALID);
        }
        state.own().local_ece = (ece.vendor_id, ece.options);
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_get_remote_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier, and a struct to be filled in.
        let (c, ece) = unsafe { (in_ref(id)?, out_mut(ece)?) };
        if !c.qp.is_null() {
            return Err(Fault::INVALID);
        }
        *ece = ibv_ece {
            vendor_id: 0,
            options: 0,
            comp_mask: 0,
        };
        Ok(0)
    })
}
