//! Opened devices.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use softverbs::{AsyncElement, Context, Qpn};

use super::cq::{modify_cq, poll_cq, req_notify_cq};
use super::cq_ex::create_cq_ex;
use super::mw::{alloc_mw, bind_mw, dealloc_mw};
use super::pd::{alloc_parent_domain, alloc_td, dealloc_td, query_rt_values};
use super::post::{post_recv, post_send};
use super::qp::create_qp_ex;
use super::qp_attr::publish_state;
use super::query::{query_device_ex, query_port};
use super::srq::{create_srq_ex, post_srq_recv};
use super::xrc::{close_xrcd, get_srq_num, open_qp, open_xrcd};
use crate::abi::*;
use crate::ffi::{self, Result, c_object, object};

/// Completion vectors: `comp_vector` of a queue is below.
pub(super) const COMP_VECTORS: u32 = 1;

/// What we keep of an opened device.
pub(crate) struct ContextState {
    context: Context,
    /// What C knows the objects by that events may name. A receiving end of XRC has a handle for
    /// each time it is open; the oldest is told.
    elements: Mutex<HashMap<AsyncElement, SmallVec<[Element; 1]>>>,
}

/// What an asynchronous event can happen to, as C knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Cq(*mut ibv_cq),
    Qp(*mut ibv_qp),
    Srq(*mut ibv_srq),
}

// SAFETY: the pointers are handed out, and used only for objects that are known not to be destroyed.
unsafe impl Send for Element {}

// A call that waits for an event has it, too: C may close the device meanwhile.
c_object!(verbs_context, verbs_context => Arc<ContextState>);

impl ContextState {
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    fn elements(&self) -> MutexGuard<'_, HashMap<AsyncElement, SmallVec<[Element; 1]>>> {
        self.elements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the object that an event is about, before which nobody can
    /// [forget](Self::forget) it. `None`: C does not know it.
    pub(super) fn with<T>(
        &self,
        element: AsyncElement,
        act: impl FnOnce(Element) -> T,
    ) -> Option<T> {
        let elements = self.elements();
        elements.get(&element)?.first().copied().map(act)
    }

    /// C knows an object, and is told of its events.
    pub(super) fn remember(&self, element: AsyncElement, known: Element) {
        self.elements().entry(element).or_default().push(known);
    }

    /// C gives an object up. No event of it is fetched any more.
    pub(super) fn forget(&self, element: AsyncElement, known: Element) {
        let mut elements = self.elements();
        if let Some(handles) = elements.get_mut(&element) {
            handles.retain(|handle| *handle != known);
            if handles.is_empty() {
                elements.remove(&element);
            }
        }
    }

    /// Puts the state of a queue pair where C looks for it, if C has that queue pair.
    pub(crate) fn publish_qp_state(&self, number: Qpn) {
        self.with(AsyncElement::Qp(number), |known| {
            if let Element::Qp(qp) = known {
                // SAFETY: known here, and so alive before this returns.
                let _ = unsafe { publish_state(qp) };
            }
        });
    }
}

/// Programs know the end of `verbs_context` only.
const fn whole(context: *mut ibv_context) -> *mut verbs_context {
    context
        .wrapping_byte_sub(mem::offset_of!(verbs_context, context))
        .cast()
}

/// What is behind a context.
///
/// # Safety
/// `context` is null, or from [`c_context`] and not closed before the reference is gone.
pub(crate) unsafe fn state<'a>(context: *mut ibv_context) -> Result<&'a ContextState> {
    // SAFETY: the caller's promise.
    unsafe { behind(context) }.map(|state| &**state)
}

/// The same, to be kept.
///
/// # Safety
/// As for [`state`], for the time of the call.
pub(super) unsafe fn shared(context: *mut ibv_context) -> Result<Arc<ContextState>> {
    // SAFETY: the caller's promise.
    unsafe { behind(context) }.cloned()
}

/// # Safety
/// As for [`state`].
unsafe fn behind<'a>(context: *mut ibv_context) -> Result<&'a Arc<ContextState>> {
    let whole = if context.is_null() {
        ptr::null_mut()
    } else {
        whole(context)
    };
    // SAFETY: the caller's promise.
    unsafe { object(whole) }
}

/// Makes the object by which C knows an opened device.
pub(crate) fn c_context(context: Context) -> Result<*mut ibv_context> {
    let device = super::device::c_device(context.device())?;
    let whole = ffi::create::<verbs_context>(|_| {
        let c = verbs_context {
            context: ibv_context {
                device,
                ops: context_ops(),
                // Programs duplicate it to share the device, which is then refused.
                cmd_fd: context.async_fd().as_raw_fd(),
                async_fd: context.async_fd().as_raw_fd(),
                num_comp_vectors: COMP_VECTORS.cast_signed(),
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                // __VERBS_ABI_IS_EXTENDED
                abi_compat: ptr::without_provenance_mut(usize::MAX),
            },
            ..extended_ops()
        };
        let elements = Mutex::default();
        Ok((c, Arc::new(ContextState { context, elements })))
    })?;
    Ok(whole
        .wrapping_byte_add(mem::offset_of!(verbs_context, context))
        .cast())
}

pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    ffi::null(|| {
        // SAFETY: one of ours, which stays, or null.
        let device = unsafe { object(device) }?.device();
        c_context(device.open()?)
    })
}

pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    ffi::errno(|| {
        // SAFETY: C gives up an opened device, or passes null.
        unsafe { state(context) }?;
        // SAFETY: as above.
        drop(unsafe { ffi::destroy(whole(context)) });
        Ok(())
    })
}

/// The calls that go through the context.
const fn context_ops() -> ibv_context_ops {
    let unused: *mut c_void = ptr::null_mut();
    ibv_context_ops {
        _compat_query_device: unused,
        _compat_query_port: unused,
        _compat_alloc_pd: unused,
        _compat_dealloc_pd: unused,
        _compat_reg_mr: unused,
        _compat_rereg_mr: unused,
        _compat_dereg_mr: unused,
        alloc_mw: Some(alloc_mw),
        bind_mw: Some(bind_mw),
        dealloc_mw: Some(dealloc_mw),
        _compat_create_cq: unused,
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        _compat_cq_event: unused,
        _compat_resize_cq: unused,
        _compat_destroy_cq: unused,
        _compat_create_srq: unused,
        _compat_modify_srq: unused,
        _compat_query_srq: unused,
        _compat_destroy_srq: unused,
        post_srq_recv: Some(post_srq_recv),
        _compat_create_qp: unused,
        _compat_query_qp: unused,
        _compat_modify_qp: unused,
        _compat_destroy_qp: unused,
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        _compat_create_ah: unused,
        _compat_destroy_ah: unused,
        _compat_attach_mcast: unused,
        _compat_detach_mcast: unused,
        _compat_async_event: unused,
    }
}

/// The calls that go through the extension. What is not there is not supported: the headers' inline
/// functions say so themselves.
fn extended_ops() -> verbs_context {
    let unused: *mut c_void = ptr::null_mut();
    verbs_context {
        _newest: [unused; 2],
        dm_export_dmabuf_fd: None,
        reg_mr_ex: None,
        dealloc_dmah: None,
        alloc_dmah: None,
        query_port: Some(query_port),
        advise_mr: None,
        alloc_null_mr: None,
        read_counters: None,
        attach_counters_point_flow: None,
        create_counters: None,
        destroy_counters: None,
        reg_dm_mr: None,
        alloc_dm: None,
        free_dm: None,
        modify_flow_action_esp: None,
        destroy_flow_action: None,
        create_flow_action_esp: None,
        modify_qp_rate_limit: None,
        alloc_parent_domain: Some(alloc_parent_domain),
        dealloc_td: Some(dealloc_td),
        alloc_td: Some(alloc_td),
        modify_cq: Some(modify_cq),
        post_srq_ops: None,
        destroy_rwq_ind_table: None,
        create_rwq_ind_table: None,
        destroy_wq: None,
        modify_wq: None,
        create_wq: None,
        query_rt_values: Some(query_rt_values),
        create_cq_ex: Some(create_cq_ex),
        r#priv: unused,
        query_device_ex: Some(query_device_ex),
        ibv_destroy_flow: None,
        ABI_placeholder2: unused,
        ibv_create_flow: None,
        ABI_placeholder1: unused,
        open_qp: Some(open_qp),
        create_qp_ex: Some(create_qp_ex),
        get_srq_num: Some(get_srq_num),
        create_srq_ex: Some(create_srq_ex),
        open_xrcd: Some(open_xrcd),
        close_xrcd: Some(close_xrcd),
        _ABI_placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device: ptr::null_mut(),
            ops: context_ops(),
            cmd_fd: -1,
            async_fd: -1,
            num_comp_vectors: 0,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: unused,
        },
    }
}
