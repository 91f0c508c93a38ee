//! Asynchronous events. C acknowledges an event by what it happened to: that object keeps the events that
//! were fetched of it until then.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use softverbs::{AsyncElement, AsyncEvent};

use super::context::{ContextState, Element, shared};
use crate::abi::*;
use crate::ffi::{self, Events, Result, in_ref, object, out_mut};

/// The events of an object that C has fetched and not acknowledged.
#[derive(Default)]
pub(crate) struct Fetched(Mutex<Vec<AsyncEvent>>);

impl Fetched {
    fn keep(&self, event: AsyncEvent) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(event);
    }

    fn acknowledge(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).pop());
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
    let known = match next.element() {
        AsyncElement::Port(port) => {
            event.element.port_num = port.into();
            return Ok(true);
        }
        AsyncElement::Device => {
            event.element.port_num = 1;
            return Ok(true);
        }
        element => opened.find(element),
    };
    let fetched = match known {
        Some(Element::Cq(cq)) => {
            event.element.cq = cq;
            // SAFETY: not destroyed before the event is acknowledged.
            &unsafe { object(cq) }?.fetched
        }
        Some(Element::Qp(qp)) => {
            event.element.qp = qp;
            // SAFETY: as above.
            &unsafe { object(qp) }?.fetched
        }
        Some(Element::Srq(srq)) => {
            event.element.srq = srq;
            // SAFETY: as above.
            &unsafe { object(srq) }?.fetched
        }
        None => return Ok(false),
    };
    fetched.keep(next);
    Ok(true)
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
