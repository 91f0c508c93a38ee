//! The calls of `ibv_qp_ex`: between `ibv_wr_start` and `ibv_wr_complete` requests are put together
//! piece by piece, and posted all at once.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use softverbs::{
    Lkey, QpType, Qpn, Rkey, SendData, SendFlags, SendOp, SendWr, Sge, Transport, UdAddress,
};

use super::mw::bind_op;
use super::post::{flags, sends};
use super::qp::QpState;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, in_ref, object, slice};

/// The operations that a queue pair of a type can be made for.
pub(super) const fn offered(qp_type: QpType, transport: Transport) -> u64 {
    const SENDS: u32 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const WRITES: u32 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    const REST: u32 = IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW
        | IBV_QP_EX_WITH_SEND_WITH_INV;
    let operations = match qp_type {
        QpType::Ud => SENDS,
        QpType::Uc => SENDS | WRITES,
        _ => SENDS | WRITES | REST,
    };
    // Immediate data of a Send are nothing that iWARP has.
    let lacks = match transport {
        Transport::Iwarp => IBV_QP_EX_WITH_SEND_WITH_IMM,
        Transport::Roce => 0,
    };
    (operations & !lacks) as u64
}

/// A queue pair with its calls.
pub(super) fn with_calls(qp_base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_bind_mw),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_send_tso: None,
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: Some(wr_set_xrc_srqn),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: None,
        wr_flush: None,
    }
}

/// The requests between start and complete. Their room is kept from one time to the next.
#[derive(Default)]
pub(super) struct Requests {
    /// Someone is between start and complete; others wait.
    taken: AtomicBool,
    pieces: UnsafeCell<Pieces>,
}

// SAFETY: the pieces belong to whoever has set `taken`, until it is cleared.
unsafe impl Sync for Requests {}
// SAFETY: the address handles in them are used by whoever has them only.
unsafe impl Send for Requests {}

#[derive(Default)]
struct Pieces {
    requests: Vec<Request>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    fault: Option<Fault>,
}

struct Request {
    wr_id: u64,
    flags: SendFlags,
    op: SendOp,
    data: Data,
    ud: Option<(*const ibv_ah, u32, u32)>,
    /// The peer's shared receive queue.
    srqn: Option<Qpn>,
}

enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Pieces {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.fault = None;
    }

    /// The request that the setters are about.
    fn last(&mut self) -> Result<&mut Request> {
        self.requests.last_mut().ok_or(Fault::INVALID)
    }

    fn set_sges(&mut self, sges: &[Sge]) -> Result<()> {
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        let range = start..self.sges.len();
        self.last()?.data = Data::Sges(range);
        Ok(())
    }

    /// Appends inline data to those of the request.
    fn add_inline(&mut self, data: &[u8]) -> Result<()> {
        if !sends(&self.last()?.op) {
            return Err(Fault::INVALID);
        }
        let start = match self.last()?.data {
            Data::Inline(ref range) => range.start,
            Data::Sges(_) => self.inline.len(),
        };
        self.inline.extend_from_slice(data);
        let range = start..self.inline.len();
        self.last()?.data = Data::Inline(range);
        Ok(())
    }
}

/// Does something to the requests. What is wrong is told by complete.
///
/// # Safety
/// `qp` is C's, between start and complete.
unsafe fn edit(qp: *mut ibv_qp_ex, change: impl FnOnce(&mut Pieces) -> Result<()>) {
    ffi::or((), || {
        // SAFETY: the caller's promise; an extended queue pair begins with a plain one.
        let state = unsafe { object(qp.cast::<ibv_qp>()) }?;
        // SAFETY: the caller is the one between start and complete.
        let pieces = unsafe { &mut *state.requests.pieces.get() };
        if let Err(fault) = change(pieces) {
            pieces.fault.get_or_insert(fault);
        }
        Ok(())
    });
}

/// Begins a request.
///
/// # Safety
/// As for [`edit`].
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: the caller's promise. C writes these two in the same thread.
    unsafe {
        let (wr_id, wr_flags) = ((*qp).wr_id, (*qp).wr_flags);
        edit(qp, |pieces| {
            let start = pieces.sges.len();
            pieces.requests.push(Request {
                wr_id,
                flags: flags(wr_flags)?,
                op,
                data: Data::Sges(start..start),
                ud: None,
                srqn: None,
            });
            Ok(())
        });
    }
}

macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),*) = $op:expr;)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($argument: $type),*) {
            // SAFETY: C's queue pair, between start and complete.
            unsafe { begin(qp, $op) };
        })*
    };
}

operations! {
    wr_send() = SendOp::Send;
    wr_send_imm(imm: u32) = SendOp::SendWithImm(u32::from_be(imm));
    wr_send_inv(rkey: u32) = SendOp::SendWithInvalidate(Rkey::new(rkey));
    wr_local_inv(rkey: u32) = SendOp::LocalInvalidate(Rkey::new(rkey));
    wr_rdma_read(rkey: u32, remote_addr: u64) = SendOp::Read { remote_addr, rkey: Rkey::new(rkey) };
    wr_rdma_write(rkey: u32, remote_addr: u64) = SendOp::Write { remote_addr, rkey: Rkey::new(rkey) };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32) =
        SendOp::WriteWithImm { remote_addr, rkey: Rkey::new(rkey), imm: u32::from_be(imm) };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =
        SendOp::CompareSwap { remote_addr, rkey: Rkey::new(rkey), compare, swap };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) =
        SendOp::FetchAdd { remote_addr, rkey: Rkey::new(rkey), add };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: C's objects, and its queue pair between start and complete.
    unsafe {
        let op = ffi::or(Err(Fault::INVALID), || {
            Ok(in_ref(info).and_then(|info| bind_op(mw, rkey, info)))
        });
        match op {
            Ok(op) => begin(qp, op),
            Err(fault) => edit(qp, |_| Err(fault)),
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: C's queue pair, between start and complete.
    unsafe {
        edit(qp, |pieces| {
            pieces.last()?.ud = Some((ah, remote_qpn, remote_qkey));
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: C's queue pair, between start and complete.
    unsafe {
        edit(qp, |pieces| {
            pieces.last()?.srqn = Some(Qpn::new(remote_srqn));
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = Sge {
        addr,
        length,
        lkey: Lkey::new(lkey),
    };
    // SAFETY: C's queue pair, between start and complete.
    unsafe { edit(qp, |pieces| pieces.set_sges(&[sge])) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: C's queue pair, between start and complete, and its list, whose layout is that of ours.
    unsafe {
        edit(qp, |pieces| {
            pieces.set_sges(slice(list.cast::<Sge>(), count)?)
        })
    };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: C's queue pair, between start and complete, and its memory.
    unsafe {
        edit(qp, |pieces| {
            pieces.add_inline(slice(addr.cast::<u8>(), length)?)
        })
    };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: C's queue pair, between start and complete, and its memory.
    unsafe {
        edit(qp, |pieces| {
            for part in slice(list, count)? {
                pieces.add_inline(slice(part.addr.cast::<u8>(), part.length)?)?;
            }
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    ffi::or((), || {
        // SAFETY: C's queue pair, or null.
        let requests = &unsafe { object(qp.cast::<ibv_qp>()) }?.requests;
        while requests.taken.swap(true, Ordering::Acquire) {
            // Between start and complete there is nothing to wait for.
            std::thread::yield_now();
        }
        // SAFETY: `taken` was set by us.
        unsafe { (*requests.pieces.get()).clear() };
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue pair, or null.
        let state = unsafe { object(qp.cast::<ibv_qp>()) }?;
        let _over = Over(&state.requests);
        // SAFETY: the caller is the one between start and complete.
        post(state, unsafe { &*state.requests.pieces.get() })
    })
}

/// Lets the next one start, even after a panic.
struct Over<'a>(&'a Requests);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    ffi::or((), || {
        // SAFETY: C's queue pair, or null.
        let state = unsafe { object(qp.cast::<ibv_qp>()) }?;
        state.requests.taken.store(false, Ordering::Release);
        Ok(())
    });
}

fn post(state: &QpState, pieces: &Pieces) -> Result<()> {
    if let Some(fault) = pieces.fault {
        return Err(fault);
    }
    let datagrams = state.qp().qp_type() == QpType::Ud;
    let xrc = state.qp().qp_type() == QpType::XrcSend;
    let mut list: SmallVec<[SendWr<'_>; 16]> = SmallVec::new();
    for request in &pieces.requests {
        let ud = match request.ud {
            Some((ah, remote_qpn, remote_qkey)) if datagrams => Some(UdAddress {
                // SAFETY: C's handle, which it may destroy after complete.
                ah: unsafe { object(ah) }?.ah(),
                remote_qpn: Qpn::new(remote_qpn),
                remote_qkey,
            }),
            _ => None,
        };
        list.push(SendWr {
            wr_id: request.wr_id,
            op: request.op,
            flags: request.flags,
            data: match &request.data {
                Data::Sges(range) => SendData::Sges(&pieces.sges[range.clone()]),
                Data::Inline(range) => SendData::Inline(&pieces.inline[range.clone()]),
            },
            ud,
            remote_srqn: request.srqn.filter(|_| xrc),
        });
    }
    state
        .qp()
        .post_send_list(&list)
        .map_err(|(_, error)| error.into())
}
