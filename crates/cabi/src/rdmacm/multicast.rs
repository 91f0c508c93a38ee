//! Multicast groups of datagram identifiers.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr;

use softverbs::Gid;
use softverbs::cm::CmEvent;

use super::{address, event, qp};
use crate::abi::*;
use crate::ffi::{self, Fault, Result, in_ref, object};

/// A group that an identifier has joined.
pub(super) struct Group {
    address: SocketAddr,
    /// The application's value, which the group's events carry.
    context: *mut c_void,
    /// What is sent to it comes to the queue pair: that was there, and it was not joined to send only.
    attached: bool,
}

/// What the application said when it joined the group of an event.
///
/// # Safety
/// `id` is one of C's.
pub(super) unsafe fn context(id: *mut rdma_cm_id, event: &CmEvent) -> *const c_void {
    // SAFETY: the caller's promise.
    let Ok(state) = (unsafe { object(id) }) else {
        return ptr::null();
    };
    let Some(to) = &event.param().ud else {
        return ptr::null();
    };
    let is_it =
        |group: &&Group| Gid::from(group.address.ip().to_canonical()) == to.ah_attr.grh.dgid;
    let own = state.own();
    own.groups
        .iter()
        .rev()
        .find(is_it)
        .map_or(ptr::null(), |group| group.context.cast_const())
}

/// # Safety
/// `id` is one of C's, `group` null or an address.
unsafe fn join(
    id: *mut rdma_cm_id,
    group: *const libc::sockaddr,
    send_only: bool,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let (state, address) = (object(id)?, address::from_c(group)?);
        qp::adopt(id)?;
        let attached = !send_only && !(*id).qp.is_null();
        // Known before its event comes.
        state.own().groups.push(Group {
            address,
            context,
            attached,
        });
        let joined = if attached {
            state.id.join_multicast(address)
        } else {
            state.id.join_to_send(address)
        };
        if let Err(error) = joined {
            state.own().groups.pop();
            return Err(error.into());
        }
        event::complete(id)
    }
}

pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and address.
        unsafe { join(id, addr, false, context) }?;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    ffi::minus_one(|| {
        const ALL: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        // SAFETY: C's struct.
        let attr = unsafe { in_ref(attr) }?;
        if attr.comp_mask & !ALL != 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        let send_only = match attr.join_flags {
            _ if attr.comp_mask != ALL => return Err(Fault::INVALID),
            RDMA_MC_JOIN_FLAG_FULLMEMBER => false,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => true,
            _ => return Err(Fault::INVALID),
        };
        // SAFETY: C's identifier and address.
        unsafe { join(id, attr.addr, send_only, context) }?;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's identifier and address.
        let (state, address) = unsafe { (object(id)?, address::from_c(addr)?) };
        let group = {
            let mut own = state.own();
            let found = own
                .groups
                .iter()
                .position(|group| group.address.ip() == address.ip());
            match found {
                Some(index) => own.groups.remove(index),
                None => return Err(Fault::new(libc::EADDRNOTAVAIL)),
            }
        };
        if group.attached {
            // The queue pair may have gone, or be another one: it is not attached then.
            let _ = state.id.leave_multicast(address);
        }
        Ok(0)
    })
}
