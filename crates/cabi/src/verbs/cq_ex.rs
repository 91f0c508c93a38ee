//! Extended completion queues: completions are read field by field, between `ibv_start_poll` and
//! `ibv_end_poll`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::cq::{self, CqInit, c_wc};
use crate::abi::*;
use crate::ffi::{self, Fault, Result, in_ref, object};

/// The completion that a queue is at. C has one thread at a time between start and end.
#[derive(Default)]
pub(crate) struct Position(UnsafeCell<Option<ibv_wc>>);

// SAFETY: `ibv_start_poll` to `ibv_end_poll` is one thread's at a time; that is C's promise, and rdma-core's
// own drivers rely on it for what is read in between.
unsafe impl Sync for Position {}

/// The fields that can be asked for. Nothing is known of a VLAN, a flow tag, or tags of messages.
const OFFERED: u64 = (IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

/// The calls of an extended queue; the rest of it is to be filled in.
pub(super) fn calls() -> ibv_cq_ex {
    ibv_cq_ex {
        context: ptr::null_mut(),
        channel: ptr::null_mut(),
        cq_context: ptr::null_mut(),
        handle: 0,
        cqe: 0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        read_completion_ts: Some(read_completion_ts),
        read_cvlan: None,
        read_flow_tag: None,
        read_tm_info: None,
        read_completion_wallclock_ns: Some(read_completion_wallclock_ns),
    }
}

/// `ibv_create_cq_ex`, through the context.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    const MASKS: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    ffi::null(|| {
        // SAFETY: C's attributes.
        let attr = unsafe { in_ref(attr) }?;
        if attr.wc_flags & !OFFERED != 0 || attr.comp_mask & !MASKS != 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 && attr.flags & !FLAGS != 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        let init = CqInit {
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
        };
        // SAFETY: C's opened device and channel.
        Ok(unsafe { cq::create(context, &init) }?.cast())
    })
}

/// Goes to the next completion. ENOENT if there is none.
///
/// # Safety
/// `cq` is an extended queue of C's, or null.
unsafe fn advance(cq: *mut ibv_cq_ex) -> Result<()> {
    // SAFETY: the caller's promise; an extended queue begins with a plain one.
    let state = unsafe { object(cq.cast::<ibv_cq>()) }?;
    let mut wc = None;
    state.cq().poll_each(1, |found| wc = Some(c_wc(&found)))?;
    let wc = wc.ok_or(Fault::new(libc::ENOENT))?;
    // SAFETY: one thread at a time, see `Position`; and C reads these two fields, in this thread.
    unsafe {
        *state.position.0.get() = Some(wc);
        (*cq).status = wc.status;
        (*cq).wr_id = wc.wr_id;
    }
    Ok(())
}

/// The completion that the queue is at.
///
/// # Safety
/// As for [`advance`].
unsafe fn current(cq: *mut ibv_cq_ex) -> Result<ibv_wc> {
    // SAFETY: as there.
    unsafe { *object(cq.cast::<ibv_cq>())?.position.0.get() }.ok_or(Fault::INVALID)
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    ffi::quietly(|| {
        // SAFETY: C's attributes.
        if !attr.is_null() && unsafe { in_ref(attr) }?.comp_mask != 0 {
            return Err(Fault::INVALID);
        }
        // SAFETY: C's queue.
        unsafe { advance(cq) }
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: C's queue.
    ffi::quietly(|| unsafe { advance(cq) })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    ffi::or((), || {
        // SAFETY: C's queue.
        let state = unsafe { object(cq.cast::<ibv_cq>()) }?;
        // SAFETY: one thread at a time, see `Position`.
        unsafe { *state.position.0.get() = None };
        Ok(())
    });
}

macro_rules! read {
    ($($name:ident: $type:ty = $field:ident;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: C's queue, between start and end.
            ffi::or(0, || Ok(unsafe { current(cq) }?.$field.into()))
        })*
    };
}

read! {
    read_opcode: u32 = opcode;
    read_vendor_err: u32 = vendor_err;
    read_byte_len: u32 = byte_len;
    read_imm_data: u32 = imm_data;
    read_qp_num: u32 = qp_num;
    read_src_qp: u32 = src_qp;
    read_wc_flags: c_uint = wc_flags;
    read_slid: u32 = slid;
    read_sl: u8 = sl;
    read_dlid_path_bits: u8 = dlid_path_bits;
}

/// When the completion was taken: in nanoseconds of a clock.
fn now(clock: ClockId) -> u64 {
    let now = clock_gettime(clock).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

unsafe extern "C" fn read_completion_ts(_cq: *mut ibv_cq_ex) -> u64 {
    now(ClockId::CLOCK_MONOTONIC)
}

unsafe extern "C" fn read_completion_wallclock_ns(_cq: *mut ibv_cq_ex) -> u64 {
    now(ClockId::CLOCK_REALTIME)
}
