//! Completion channels and their events.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use softverbs::CompChannel;

use super::context::state;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, Users, c_object, object, out_mut};

/// What we keep of a completion channel.
pub(crate) struct ChannelState {
    channel: CompChannel,
    pub(super) users: Users,
}

c_object!(ibv_comp_channel, ibv_comp_channel => ChannelState);

impl ChannelState {
    pub(super) fn channel(&self) -> &CompChannel {
        &self.channel
    }
}

/// How long a call that fetches an event waits: programs say on the descriptor whether it does.
pub(crate) fn patience(fd: BorrowedFd<'_>) -> Result<Option<Duration>> {
    let flags = fcntl(fd, FcntlArg::F_GETFL).map_err(|errno| Fault::new(errno as c_int))?;
    let waits = !OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK);
    Ok(if waits { None } else { Some(Duration::ZERO) })
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
            let users = Users::default();
            Ok((c, ChannelState { channel, users }))
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

pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's channel, and two pointers to be filled in.
        let (state, cq, cq_context) =
            unsafe { (object(channel)?, out_mut(cq)?, out_mut(cq_context)?) };
        let channel = state.channel();
        let event = channel.get_event(patience(channel.fd())?)?;
        let notified = event.ok_or(Fault::new(libc::EAGAIN))?;
        *cq = super::cq::c_cq(&notified);
        // SAFETY: the queue is not destroyed before its event is acknowledged.
        *cq_context = unsafe { (**cq).cq_context };
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    ffi::or((), || {
        // SAFETY: C's queue, or null.
        unsafe { object(cq) }?.cq().ack_events(nevents);
        Ok(())
    });
}
