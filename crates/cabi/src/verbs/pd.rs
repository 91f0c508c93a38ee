//! Protection domains, thread domains, and the parent domains made of both.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use softverbs::Pd;

use super::context::state;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, Use, Users, c_object, in_ref, object};

/// What we keep of a protection domain.
pub(crate) struct PdState {
    pd: Pd,
    pub(super) users: Users,
    /// Of a parent domain: those that it was made of.
    parents: Vec<Use>,
}

c_object!(ibv_pd, ibv_pd => PdState);

/// What we keep of a thread domain: it changes nothing, since no lock is shared between objects.
pub(crate) struct TdState {
    users: Users,
}

c_object!(ibv_td, ibv_td => TdState);

impl PdState {
    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }
}

/// A number for `handle`, which programs print and some compare.
pub(super) fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn c_pd(context: *mut ibv_context, pd: Pd, parents: Vec<Use>) -> Result<*mut ibv_pd> {
    ffi::create(|_| {
        let c = ibv_pd {
            context,
            handle: next_handle(),
        };
        Ok((
            c,
            PdState {
                pd,
                users: Users::default(),
                parents,
            },
        ))
    })
}

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    ffi::null(|| {
        // SAFETY: C's opened device, or null.
        let pd = unsafe { state(context) }?.context().alloc_pd()?;
        c_pd(context, pd, Vec::new())
    })
}

pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's domain, or null.
        unsafe { object(pd) }?.users.none()?;
        // SAFETY: C gives it up, and nothing was made with it that is still there.
        drop(unsafe { ffi::destroy(pd) }.parents);
        Ok(())
    })
}

/// `ibv_alloc_td`, through the context.
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    ffi::null(|| {
        // SAFETY: C's opened device and attributes.
        let (_, attr) = unsafe { (state(context)?, in_ref(attr)?) };
        if attr.comp_mask != 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        ffi::create(|_| {
            let users = Users::default();
            Ok((ibv_td { context }, TdState { users }))
        })
    })
}

/// `ibv_dealloc_td`, through the context.
pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's domain, or null.
        unsafe { object(td) }?.users.none()?;
        // SAFETY: C gives it up, and nothing was made with it that is still there.
        drop(unsafe { ffi::destroy(td) });
        Ok(())
    })
}

/// `ibv_alloc_parent_domain`, through the context. What belongs to the parent domain belongs to the
/// protection domain. The program's own allocators are not called: nothing that a device would
/// see is allocated.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    ffi::null(|| {
        // SAFETY: C's opened device and attributes.
        let (_, attr) = unsafe { (state(context)?, in_ref(attr)?) };
        if attr.comp_mask & !KNOWN != 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        // SAFETY: C's domain, or null.
        let pd = unsafe { object(attr.pd) }?;
        let mut parents = vec![pd.users.add()];
        if !attr.td.is_null() {
            // SAFETY: C's domain.
            parents.push(unsafe { object(attr.td) }?.users.add());
        }
        c_pd(context, pd.pd.clone(), parents)
    })
}

/// `ibv_query_rt_values_ex`, through the context: the clock of completion timestamps.
pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's opened device, and a struct to be filled in.
        let (_, values) = unsafe { (state(context)?, ffi::out_mut(values)?) };
        let wanted = values.comp_mask;
        values.comp_mask = 0;
        if wanted & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
                .map_err(|errno| Fault::new(errno as c_int))?;
            values.raw_clock = *now.as_ref();
            values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
        }
        Ok(())
    })
}
