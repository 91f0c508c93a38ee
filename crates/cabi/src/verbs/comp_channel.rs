//! Completion channels and their events.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use softverbs::CompChannel;

use super::context::state;
use crate::abi::*;
use crate::ffi::{self, Events, Users, c_object, object, out_mut};

/// What we keep of a completion channel. A call that waits holds the channel, too: C may destroy it
/// meanwhile.
pub(crate) struct ChannelState {
    channel: Arc<CompChannel>,
    pub(super) users: Users,
}

c_object!(ibv_comp_channel, ibv_comp_channel => ChannelState);

impl ChannelState {
    pub(super) fn channel(&self) -> &CompChannel {
        &self.channel
    }
}

impl Events for CompChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    ffi::null(|| {
        // SAFETY: C's opened device, or null.
        let channel = unsafe { state(context) }?.context().create_comp_channel()?;
        ffi::create(|_| {
            let c = ibv_comp_channel {
                context,
                fd: channel.fd().as_raw_fd(),
                refcnt: 0,
            };
            let state = ChannelState {
                channel: Arc::new(channel),
                users: Users::default(),
            };
            Ok((c, state))
        })
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's channel, or null.
        unsafe { object(channel) }?.users.none()?;
        // SAFETY: C gives it up, and no queue uses it.
        drop(unsafe { ffi::destroy(channel) });
        Ok(())
    })
}

pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    ffi::event(
        || {
            // SAFETY: C's channel, and two pointers to be filled in.
            unsafe { (out_mut(cq)?, out_mut(cq_context)?) };
            // SAFETY: as above.
            Ok(unsafe { object(channel) }?.channel.clone())
        },
        |channel: &CompChannel| {
            let Some(notified) = channel.event_after_read() else {
                return Ok(false);
            };
            let notified = super::cq::c_cq(&notified);
            // SAFETY: looked at above; and the queue is not destroyed before its event is acknowledged.
            unsafe {
                cq.write(notified);
                cq_context.write((*notified).cq_context);
            }
            Ok(true)
        },
    )
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    ffi::or((), || {
        // SAFETY: C's queue, or null.
        unsafe { object(cq) }?.cq().ack_events(nevents);
        Ok(())
    });
}
