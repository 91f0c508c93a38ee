//! Event channels.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use softverbs::cm::{CmEvent, EventChannel};

use crate::abi::*;
use crate::ffi::{self, Fault, Result, c_object, object};

/// What is behind a channel of C's. A call that waits holds one, too: a channel may be destroyed
/// meanwhile, and whoever waits goes on waiting then, as in the kernel.
pub(crate) struct Channel {
    events: EventChannel,
    /// Events are given to C one after another: of a connect request and the next event of the same
    /// connection, the first makes the identifier that the second is for.
    delivering: Mutex<()>,
}

c_object!(rdma_event_channel, rdma_event_channel => Arc<Channel>);

impl Channel {
    pub(super) fn events(&self) -> &EventChannel {
        &self.events
    }

    /// Waits for an event and gives it to `deliver`. EAGAIN if there is none and the application has
    /// set O_NONBLOCK.
    pub(super) fn next<T>(&self, deliver: impl Fn(CmEvent) -> Result<T>) -> Result<T> {
        loop {
            {
                let _one = self
                    .delivering
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                if let Some(event) = self.events.get_event(Some(Duration::ZERO))? {
                    return deliver(event);
                }
            }
            self.wait()?;
        }
    }

    /// Waits until there may be an event.
    fn wait(&self) -> Result<()> {
        let fd = self.events.fd().as_raw_fd();
        // SAFETY: a descriptor that `events` keeps open.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if flags >= 0 && flags & libc::O_NONBLOCK != 0 {
            return Err(Fault::new(libc::EAGAIN));
        }
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // A signal is no reason to return: most handlers are installed so that calls go on.
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut poll, 1, -1) };
        Ok(())
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
