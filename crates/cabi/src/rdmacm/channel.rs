//! Event channels.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use softverbs::cm::{CmEvent, EventChannel};

use crate::abi::*;
use crate::ffi::{self, Events, Result, c_object, object};

/// What is behind a channel of C's. A call that waits holds one, too: a channel may be destroyed
/// meanwhile, and whoever waits goes on waiting then, as in the kernel.
pub(crate) struct Channel {
    events: EventChannel,
    /// Events are given to C one after another: of a connect request and the next event of the same
    /// connection, the first makes the identifier that the second is for.
    delivering: Mutex<()>,
}

c_object!(rdma_event_channel, rdma_event_channel => Arc<Channel>);

impl Events for Channel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }
}

impl Channel {
    pub(super) fn events(&self) -> &EventChannel {
        &self.events
    }

    /// Gives the event whose announcement was read to `deliver`. `None`: it is not there any more.
    pub(super) fn take<T>(&self, deliver: impl FnOnce(CmEvent) -> Result<T>) -> Result<Option<T>> {
        let _one = self
            .delivering
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.events.event_after_read().map(deliver).transpose()
    }
}

/// What is behind a channel.
///
/// # Safety
/// `channel` is null, or a channel that is not destroyed during this call.
pub(super) unsafe fn channel(channel: *mut rdma_event_channel) -> Result<Arc<Channel>> {
    // SAFETY: the caller's promise.
    unsafe { object(channel) }.cloned()
}

pub(super) fn create() -> Result<*mut rdma_event_channel> {
    let channel = Arc::new(Channel {
        events: EventChannel::new()?,
        delivering: Mutex::new(()),
    });
    let fd = channel.events.fd().as_raw_fd();
    ffi::create(|_| Ok((rdma_event_channel { fd }, channel)))
}

pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    ffi::null(create)
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    ffi::or((), || {
        if !channel.is_null() {
            // SAFETY: C gives up a channel.
            drop(unsafe { ffi::destroy(channel) });
        }
        Ok(())
    });
}
