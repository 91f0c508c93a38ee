//! Identifiers, and their public fields.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use softverbs::cm::{CmId, PortSpace};

use super::channel::{self, Channel};
use super::multicast::Group;
use super::{address, devices, event};
use crate::abi::*;
use crate::ffi::{self, Fault, Result, c_object, object, out_mut};

/// What is behind an identifier of C's.
pub(crate) struct IdState {
    pub(super) id: CmId,
    /// It has a channel of its own, and its calls wait.
    pub(super) sync: AtomicBool,
    own: Mutex<Own>,
}

/// What only this side knows.
#[derive(Default)]
pub(super) struct Own {
    /// What the route's `path_rec` points to.
    path: Option<Box<ibv_sa_path_rec>>,
    /// Goes before the application's private data (`ai_connect`).
    pub(super) connect: Vec<u8>,
    /// Queue pairs of the requests of a listening endpoint.
    pub(super) qp_init_attr: Option<ibv_qp_init_attr>,
    pub(super) groups: Vec<Group>,
    pub(super) local_ece: (u32, u32),
    /// The application has heard of the end of the connection.
    pub(super) disconnected: bool,
}

c_object!(rdma_cm_id, rdma_cm_id => IdState);

impl IdState {
    pub(super) fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Relaxed)
    }
}

/// The identifier of C's that one of ours belongs to.
pub(super) fn c_id(id: &CmId) -> *mut rdma_cm_id {
    let pointer = usize::try_from(id.context()).unwrap_or(0);
    ptr::with_exposed_provenance_mut(pointer)
}

fn port_space(ps: u32) -> Result<PortSpace> {
    match ps {
        RDMA_PS_TCP => Ok(PortSpace::Tcp),
        RDMA_PS_UDP => Ok(PortSpace::Udp),
        RDMA_PS_IB => Ok(PortSpace::Ib),
        RDMA_PS_IPOIB => Ok(PortSpace::Ipoib),
        _ => Err(Fault::INVALID),
    }
}

/// The type of queue pair that goes with a port space.
fn usual_qp_type(ps: u32) -> u32 {
    match ps {
        RDMA_PS_UDP | RDMA_PS_IPOIB => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    }
}

/// Makes C's object for an identifier of ours.
pub(super) fn wrap(
    id: CmId,
    channel: *mut rdma_event_channel,
    sync: bool,
    context: *mut c_void,
    ps: u32,
    qp_type: u32,
) -> Result<*mut rdma_cm_id> {
    ffi::create::<rdma_cm_id>(|me| {
        id.set_context(me.expose_provenance() as u64);
        // SAFETY: pointers, which are null then, and integers.
        let mut c: rdma_cm_id = unsafe { mem::zeroed() };
        c.channel = channel;
        c.context = context;
        c.ps = ps;
        c.qp_type = qp_type;
        let state = IdState {
            id,
            sync: AtomicBool::new(sync),
            own: Mutex::default(),
        };
        Ok((c, state))
    })
}

/// A new identifier; without a channel a synchronous one.
///
/// # Safety
/// `channel` is null or a channel that stays.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: u32,
    qp_type: u32,
) -> Result<*mut rdma_cm_id> {
    let space = port_space(ps)?;
    let sync = channel.is_null();
    let channel = if sync { channel::create()? } else { channel };
    let made = (|| {
        // SAFETY: the caller's, or just made.
        let state = unsafe { channel::channel(channel) }?;
        let id = CmId::new(state.events(), space, 0)?;
        wrap(id, channel, sync, context, ps, qp_type)
    })();
    if made.is_err() && sync {
        // SAFETY: made above, and nobody knows it.
        drop(unsafe { ffi::destroy(channel) });
    }
    made
}

pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: u32,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's to be filled in.
        let out = unsafe { out_mut(id) }?;
        // SAFETY: C keeps a channel as long as its identifiers.
        *out = unsafe { create(channel, context, ps, usual_qp_type(ps)) }?;
        Ok(0)
    })
}

/// Ends an identifier: acknowledges the event that a synchronous one holds, and waits until the
/// application has acknowledged its others.
///
/// # Safety
/// `id` is one that C gives up.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: not ended yet.
    let state = unsafe { object(id) }?;
    // SAFETY: as above.
    unsafe { event::release(id) };
    state.id.destroy()?;
    // SAFETY: as above.
    let channel = unsafe { (*id).channel };
    let sync = state.is_sync();
    // SAFETY: nothing of ours refers to it any more.
    drop(unsafe { ffi::destroy(id) });
    if sync {
        // SAFETY: its own, made by `channel::create`.
        drop(unsafe { ffi::destroy(channel) });
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C gives it up.
        unsafe { destroy(id) }?;
        Ok(0)
    })
}

/// Moves an identifier to another channel, or, without one, to one of its own.
///
/// # Safety
/// Both are null or alive.
pub(super) unsafe fn migrate(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<()> {
    // SAFETY: the caller's promise.
    let state = unsafe { object(id) }?;
    let (was_sync, sync) = (state.is_sync(), to.is_null());
    if was_sync && sync {
        return Err(Fault::INVALID);
    }
    let to = if sync { channel::create()? } else { to };
    // SAFETY: the caller's, or just made.
    let events: Arc<Channel> = unsafe { channel::channel(to) }?;
    // SAFETY: the caller's promise.
    let from = unsafe {
        if was_sync {
            event::release(id);
        }
        let from = (*id).channel;
        (*id).channel = to;
        from
    };
    state.sync.store(sync, Ordering::Relaxed);
    state.id.migrate_id(events.events())?;
    if was_sync {
        // SAFETY: its own, and it has left it.
        drop(unsafe { ffi::destroy(from) });
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's objects, which it keeps meanwhile.
        unsafe { migrate(id, channel) }?;
        Ok(0)
    })
}

/// Brings the public fields up to date: addresses, device, protection domain.
///
/// # Safety
/// `id` is one of C's, alive.
pub(super) unsafe fn refresh(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: the caller's promise.
    let state = unsafe { object(id) }?;
    let (local, peer) = (state.id.local_addr(), state.id.peer_addr());
    let opened = match state.id.verbs() {
        Some(verbs) => Some(devices::opened(&verbs)?),
        None => None,
    };
    // SAFETY: the caller's promise; C knows that calls and events write here.
    unsafe {
        let addr = &raw mut (*id).route.addr;
        if let Some(local) = local {
            (*addr).src_storage = ffi::c_socket_addr(&local).0;
        }
        if let Some(peer) = peer {
            (*addr).dst_storage = ffi::c_socket_addr(&peer).0;
        }
        (*addr).addr = address::ib_addr(local, peer);
        if let Some((context, pd)) = opened {
            (*id).verbs = context;
            (*id).port_num = 1;
            if (*id).pd.is_null() {
                (*id).pd = pd;
            }
        }
    }
    Ok(())
}

/// The same of the route.
///
/// # Safety
/// `id` is one of C's, alive.
pub(super) unsafe fn refresh_path(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: the caller's promise.
    let state = unsafe { object(id) }?;
    let (Some(verbs), Some(local), Some(peer)) = (
        state.id.verbs(),
        state.id.local_addr(),
        state.id.peer_addr(),
    ) else {
        return Ok(());
    };
    let mut path = address::path(&verbs, local, peer).map(Box::new);
    let pointer = path
        .as_deref_mut()
        .map_or(ptr::null_mut(), ptr::from_mut::<ibv_sa_path_rec>);
    let count = path.is_some().into();
    // SAFETY: the caller's promise. The box is kept, and its content stays where it is.
    unsafe {
        (*id).route.path_rec = pointer;
        (*id).route.num_paths = count;
    }
    state.own().path = path;
    Ok(())
}
