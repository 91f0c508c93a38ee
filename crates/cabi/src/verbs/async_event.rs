//! Asynchronous events. C acknowledges an event by what it happened to: that object keeps the events that
//! were fetched of it until then.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use softverbs::{AsyncElement, AsyncEvent};

use super::context::{ContextState, Element, shared};
use crate::abi::*;
use crate::ffi::{self, Events, Result, in_ref, object, out_mut};

/// The events of an object that C has fetched and not acknowledged.
#[derive(Default)]
pub(crate) struct Fetched {
    events: Mutex<Vec<AsyncEvent>>,
    acknowledged: Condvar,
}

impl Fetched {
    fn lock(&self) -> MutexGuard<'_, Vec<AsyncEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, event: AsyncEvent) {
        self.lock().push(event);
    }

    fn acknowledge(&self) {
        let mut events = self.lock();
        drop(events.pop());
        if events.is_empty() {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until there is none.
    pub(super) fn wait_acknowledged(&self) {
        let none = self
            .acknowledged
            .wait_while(self.lock(), |events| !events.is_empty());
        drop(none.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Events for ContextState {
    fn fd(&self) -> BorrowedFd<'_> {
        self.context().async_fd()
    }
}

pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    ffi::event(
        || {
            // SAFETY: C's opened device, and a struct to be filled in.
            unsafe {
                out_mut(event)?;
                shared(context)
            }
        },
        |opened: &ContextState| {
            let Some(next) = opened.context().async_event_after_read() else {
                return Ok(false);
            };
            // SAFETY: C's struct to be filled in.
            tell(opened, next, unsafe { out_mut(event) }?)
        },
    )
}

/// Puts an event into C's form. `false`: C does not know its object, and has no use for it.
fn tell(opened: &ContextState, next: AsyncEvent, event: &mut ibv_async_event) -> Result<bool> {
    event.event_type = next.kind() as u32;
    match next.element() {
        AsyncElement::Port(port) => {
            event.element.port_num = port.into();
            return Ok(true);
        }
        AsyncElement::Device => {
            event.element.port_num = 1;
            return Ok(true);
        }
        _ => (),
    }
    let told = opened.with(next.element(), |known| -> Result<()> {
        let fetched = match known {
            Element::Cq(cq) => {
                event.element.cq = cq;
                // SAFETY: known to the context, and so not destroyed before this returns.
                &unsafe { object(cq) }?.fetched
            }
            Element::Qp(qp) => {
                event.element.qp = qp;
                // SAFETY: as above.
                &unsafe { object(qp) }?.fetched
            }
            Element::Srq(srq) => {
                event.element.srq = srq;
                // SAFETY: as above.
                &unsafe { object(srq) }?.fetched
            }
        };
        fetched.keep(next);
        Ok(())
    });
    Ok(told.transpose()?.is_some())
}

/// What an event happened to, by the numbers of `enum ibv_event_type`.
fn acknowledge(event: &ibv_async_event) -> Result<()> {
    match event.event_type {
        // SAFETY: `IBV_EVENT_CQ_ERR` names a queue, which is there until this.
        0 => unsafe { object(event.element.cq) }?.fetched.acknowledge(),
        // SAFETY: the same for queue pairs: QP_FATAL to PATH_MIG_ERR, and QP_LAST_WQE_REACHED.
        1..=7 | 16 => unsafe { object(event.element.qp) }?.fetched.acknowledge(),
        // SAFETY: the same for shared receive queues: SRQ_ERR, SRQ_LIMIT_REACHED.
        14 | 15 => unsafe { object(event.element.srq) }?.fetched.acknowledge(),
        _ => (),
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    ffi::or((), || {
        // SAFETY: C's event, which was fetched.
        acknowledge(unsafe { in_ref(event) }?)
    });
}
