//! Event channels.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Channels that C has given up, of which some are kept, with nothing behind them but silence. A thread
/// that fetches events in a loop may ask for the next one when its channel has just gone, as rping's does
/// while its main thread is on its way out. It then waits as if it had asked in time; with the kernel's
/// library it reads what happens to be in that memory.
struct Gone(VecDeque<*mut rdma_event_channel>);

// SAFETY: nobody but `Gone` owns these objects.
unsafe impl Send for Gone {}

static GONE: Mutex<Gone> = Mutex::new(Gone(VecDeque::new()));
const MOST_GONE: usize = 64;

/// Also held while somebody looks behind a channel.
fn gone() -> MutexGuard<'static, Gone> {
    GONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is behind a channel.
///
/// # Safety
/// `channel` is null, or a channel; if it is being destroyed, one of the last few.
pub(super) unsafe fn channel(channel: *mut rdma_event_channel) -> Result<Arc<Channel>> {
    let _gone = gone();
    // SAFETY: the caller's promise.
    unsafe { object(channel) }.cloned()
}

fn new() -> Result<Arc<Channel>> {
    Ok(Arc::new(Channel {
        events: EventChannel::new()?,
        delivering: Mutex::new(()),
    }))
}

pub(super) fn create() -> Result<*mut rdma_event_channel> {
    let channel = new()?;
    let fd = channel.events.fd().as_raw_fd();
    ffi::create(|_| Ok((rdma_event_channel { fd }, channel)))
}

/// Ends a channel of C's.
///
/// # Safety
/// `channel` is a channel, which C gives up.
unsafe fn end(channel: *mut rdma_event_channel) {
    static SILENT: Mutex<Option<Arc<Channel>>> = Mutex::new(None);
    let silent = {
        let mut silent = SILENT.lock().unwrap_or_else(PoisonError::into_inner);
        if silent.is_none() {
            *silent = new().ok();
        }
        silent.clone()
    };
    let mut gone = gone();
    let ended = match silent {
        // SAFETY: C's, and whoever looks behind it holds the lock that we hold.
        Some(silent) => unsafe {
            (*channel).fd = -1;
            let ended = ffi::replace(channel, silent);
            gone.0.push_back(channel);
            ended
        },
        // SAFETY: C gives it up.
        None => unsafe { ffi::destroy(channel) },
    };
    if gone.0.len() > MOST_GONE
        && let Some(oldest) = gone.0.pop_front()
    {
        // SAFETY: C gave it up long ago.
        drop(unsafe { ffi::destroy(oldest) });
    }
    drop(gone);
    drop(ended);
}

pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    ffi::null(create)
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    ffi::or((), || {
        if !channel.is_null() {
            // SAFETY: C gives up a channel.
            unsafe { end(channel) };
        }
        Ok(())
    });
}
