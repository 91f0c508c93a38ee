//! Addresses and routes: bind, resolve, listen.

use std::ffi::c_int;
use std::time::Duration;

use super::{address, event, id};
use crate::abi::*;
use crate::ffi::{self, Result, object};

fn milliseconds(timeout: c_int) -> Duration {
    Duration::from_millis(u64::try_from(timeout).unwrap_or(0))
}

/// # Safety
/// `id` is one of C's, `address` null or an address.
pub(super) unsafe fn bind(id: *mut rdma_cm_id, address: *const libc::sockaddr) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        object(id)?.id.bind_addr(address::from_c(address)?)?;
        id::refresh(id)
    }
}

pub(crate) unsafe extern "C" fn rdma_bind_addr(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and address.
        unsafe { bind(id, address) }?;
        Ok(0)
    })
}

/// # Safety
/// `id` is one of C's, the addresses null or addresses.
pub(super) unsafe fn resolve_addr(
    id: *mut rdma_cm_id,
    src: *const libc::sockaddr,
    dst: *const libc::sockaddr,
    timeout_ms: c_int,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let state = object(id)?;
        let dst = address::from_c(dst)?;
        let src = if src.is_null() {
            None
        } else {
            Some(address::from_c(src)?)
        };
        (*id).route.addr.dst_storage = ffi::c_socket_addr(&dst).0;
        state.id.resolve_addr(src, dst, milliseconds(timeout_ms))?;
        event::complete(id)
    }
}

pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    timeout_ms: c_int,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and addresses.
        unsafe { resolve_addr(id, src, dst, timeout_ms) }?;
        Ok(0)
    })
}

/// # Safety
/// `id` is one of C's.
pub(super) unsafe fn resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        object(id)?.id.resolve_route(milliseconds(timeout_ms))?;
        event::complete(id)
    }
}

pub(crate) unsafe extern "C" fn rdma_resolve_route(
    id: *mut rdma_cm_id,
    timeout_ms: c_int,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier.
        unsafe { resolve_route(id, timeout_ms) }?;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier.
        unsafe {
            object(id)?.id.listen(backlog)?;
            id::refresh(id)?;
        }
        Ok(0)
    })
}

/// The port of an address in network order, 0 if there is none.
fn port(storage: &libc::sockaddr_storage) -> u16 {
    // SAFETY: a storage of C's holds the address that its family says.
    let address = unsafe { address::from_c(std::ptr::from_ref(storage).cast()) };
    address.map_or(0, |address| address.port()).to_be()
}

pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    ffi::or(0, || {
        // SAFETY: C's identifier.
        Ok(port(&unsafe { ffi::in_ref(id) }?.route.addr.src_storage))
    })
}

pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    ffi::or(0, || {
        // SAFETY: C's identifier.
        Ok(port(&unsafe { ffi::in_ref(id) }?.route.addr.dst_storage))
    })
}
