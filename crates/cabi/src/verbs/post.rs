//! Posting: lists of work requests as C links them.

use std::ffi::c_int;
use std::{ptr, slice as rust_slice};

use smallvec::SmallVec;
use softverbs::{QpType, Qpn, RecvWr, Rkey, SendData, SendFlags, SendOp, SendWr, Sge, UdAddress};

use super::mw::bind_op;
use super::qp::QpState;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, in_ref, object, slice};

// A scatter/gather list of C's is read as one of ours.
const _: () = {
    assert!(size_of::<ibv_sge>() == size_of::<Sge>() && align_of::<ibv_sge>() == align_of::<Sge>());
    assert!(std::mem::offset_of!(ibv_sge, addr) == std::mem::offset_of!(Sge, addr));
    assert!(std::mem::offset_of!(ibv_sge, length) == std::mem::offset_of!(Sge, length));
    assert!(std::mem::offset_of!(ibv_sge, lkey) == std::mem::offset_of!(Sge, lkey));
};

/// Send requests that are posted together.
const BATCH: usize = 16;
/// Octets of inline data that can be gathered from several entries: what any queue pair can have at most.
const INLINE: usize = 1024;

/// The entries of a request.
///
/// # Safety
/// `list` points to `count` entries, which stay as they are meanwhile.
pub(super) unsafe fn sges<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge]> {
    let count = usize::try_from(count).map_err(|_| Fault::INVALID)?;
    // SAFETY: the caller's promise; the layouts are equal, see above.
    unsafe { slice(list.cast::<Sge>(), count) }
}

/// A receive request.
///
/// # Safety
/// Its list is as it says, and stays so meanwhile.
pub(super) unsafe fn recv_wr(wr: &ibv_recv_wr) -> Result<RecvWr<'_>> {
    Ok(RecvWr {
        wr_id: wr.wr_id,
        // SAFETY: the caller's promise.
        sges: unsafe { sges(wr.sg_list, wr.num_sge) }?,
    })
}

/// Posts a list of receives, and says which one was refused.
///
/// # Safety
/// `wr` is a list of C's; `bad_wr` is to be filled in on an error.
pub(super) unsafe fn post_list(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(&ibv_recv_wr) -> Result<()>,
) -> c_int {
    let mut next = wr;
    let errno = ffi::errno(|| {
        // SAFETY: the caller's promise: each points to the next, or to nothing.
        while let Some(wr) = unsafe { next.as_ref() } {
            post(wr)?;
            next = wr.next;
        }
        Ok(())
    });
    if errno != 0 && !bad_wr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bad_wr.write(next) };
    }
    errno
}

/// `ibv_post_recv`, through the context.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: C's queue pair and list.
    unsafe {
        post_list(wr, bad_wr, |wr| {
            object(qp)?.qp().post_recv(&recv_wr(wr)?)?;
            Ok(())
        })
    }
}

/// What a request asks for.
///
/// # Safety
/// The window and the region of a request to bind are C's.
unsafe fn op(wr: &ibv_send_wr) -> Result<SendOp> {
    let imm = || u32::from_be(wr.imm_data);
    // SAFETY: the operation says which part of the union C has filled in; all are plain numbers.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let remote_addr = rdma.remote_addr;
    Ok(match wr.opcode {
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_SEND_WITH_IMM => SendOp::SendWithImm(imm()),
        IBV_WR_SEND_WITH_INV => SendOp::SendWithInvalidate(Rkey::new(wr.imm_data)),
        IBV_WR_RDMA_WRITE => SendOp::Write {
            remote_addr,
            rkey: Rkey::new(rdma.rkey),
        },
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteWithImm {
            remote_addr,
            rkey: Rkey::new(rdma.rkey),
            imm: imm(),
        },
        IBV_WR_RDMA_READ => SendOp::Read {
            remote_addr,
            rkey: Rkey::new(rdma.rkey),
        },
        IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
            remote_addr,
            rkey: Rkey::new(atomic.rkey),
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
            remote_addr,
            rkey: Rkey::new(atomic.rkey),
            add: atomic.compare_add,
        },
        IBV_WR_LOCAL_INV => SendOp::LocalInvalidate(Rkey::new(wr.imm_data)),
        // SAFETY: the caller's promise.
        IBV_WR_BIND_MW => {
            let bind = &wr.bind_mw;
            // SAFETY: the caller's promise.
            unsafe { bind_op(bind.mw, bind.rkey, &bind.bind_info) }?
        }
        _ => return Err(Fault::NOT_SUPPORTED),
    })
}

/// Whether the data of an operation go to the peer, so that they may be inline.
pub(super) const fn sends(op: &SendOp) -> bool {
    !matches!(
        op,
        SendOp::Read { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::LocalInvalidate(_)
            | SendOp::BindMw(_)
    )
}

/// Flags of a request. Checksums of raw packets are nothing that we do.
pub(super) fn flags(flags: u32) -> Result<SendFlags> {
    SendFlags::from_bits(flags & !IBV_SEND_INLINE).ok_or(Fault::INVALID)
}

/// A send request.
///
/// # Safety
/// Its list, address handle, window and region are as it says, inline data too, and stay so meanwhile.
unsafe fn send_wr<'a>(
    qp: &QpState,
    wr: &'a ibv_send_wr,
    gathered: &'a mut Gathered,
) -> Result<SendWr<'a>> {
    // SAFETY: the caller's promise.
    let op = unsafe { op(wr) }?;
    let data = if matches!(op, SendOp::LocalInvalidate(_) | SendOp::BindMw(_)) {
        SendData::Sges(&[])
    } else {
        // SAFETY: the caller's promise.
        let sges = unsafe { sges(wr.sg_list, wr.num_sge) }?;
        if wr.send_flags & IBV_SEND_INLINE != 0 && sends(&op) {
            // SAFETY: the caller's promise.
            SendData::Inline(unsafe { gathered.inline(sges) }?)
        } else {
            SendData::Sges(sges)
        }
    };
    let ud = if qp.qp().qp_type() == QpType::Ud {
        // SAFETY: of datagrams C fills in this part.
        let ud = unsafe { wr.wr.ud };
        Some(UdAddress {
            // SAFETY: the caller's promise.
            ah: unsafe { object(ud.ah) }?.ah(),
            remote_qpn: Qpn::new(ud.remote_qpn),
            remote_qkey: ud.remote_qkey,
        })
    } else {
        None
    };
    Ok(SendWr {
        wr_id: wr.wr_id,
        op,
        flags: flags(wr.send_flags)?,
        data,
        ud,
        remote_srqn: (qp.qp().qp_type() == QpType::XrcSend).then(|| Qpn::new(wr.qp_type[0])),
    })
}

/// Where inline data of several entries come together.
#[derive(Default)]
struct Gathered(SmallVec<[u8; 0]>);

impl Gathered {
    /// Inline data: of one entry, where they are; of several, copied.
    ///
    /// # Safety
    /// The entries point to memory that can be read, and stays as it is while the result is used.
    unsafe fn inline<'a>(&'a mut self, sges: &'a [Sge]) -> Result<&'a [u8]> {
        // SAFETY: the caller's promise.
        let piece = |sge: &Sge| unsafe { inline_piece(sge) };
        if let [one] = sges {
            return piece(one);
        }
        for sge in sges {
            let piece = piece(sge)?;
            if self.0.len() + piece.len() > INLINE {
                return Err(Fault::INVALID);
            }
            self.0.extend_from_slice(piece);
        }
        Ok(&self.0)
    }
}

/// The memory of an entry, whose key does not count.
///
/// # Safety
/// As for [`Gathered::inline`].
unsafe fn inline_piece<'a>(sge: &Sge) -> Result<&'a [u8]> {
    let start =
        ptr::with_exposed_provenance::<u8>(usize::try_from(sge.addr).map_err(|_| Fault::INVALID)?);
    match sge.length as usize {
        0 => Ok(&[]),
        _ if start.is_null() => Err(Fault::new(libc::EFAULT)),
        // SAFETY: the caller's promise.
        length => Ok(unsafe { rust_slice::from_raw_parts(start, length) }),
    }
}

/// `ibv_post_send`, through the context.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut bad = wr;
    let errno = ffi::errno(|| {
        // SAFETY: C's queue pair and list.
        let (qp, first) = unsafe { (object(qp)?, in_ref(wr)?) };
        if first.next.is_null() {
            let mut gathered = Gathered::default();
            // SAFETY: C's request.
            let request = unsafe { send_wr(qp, first, &mut gathered) }?;
            return Ok(qp.qp().post_send(&request)?);
        }
        // SAFETY: as above.
        unsafe { post_batches(qp, &mut bad) }
    });
    if errno != 0 && !bad_wr.is_null() {
        // SAFETY: C's to be filled in.
        unsafe { bad_wr.write(bad) };
    }
    errno
}

/// Posts a list, some requests at a time, which may leave together. `next` is left at the one that is refused.
///
/// # Safety
/// `next` is a list of C's.
unsafe fn post_batches(qp: &QpState, next: &mut *mut ibv_send_wr) -> Result<()> {
    while !next.is_null() {
        let mut gathered: [Gathered; BATCH] = std::array::from_fn(|_| Gathered::default());
        let mut batch: SmallVec<[SendWr<'_>; BATCH]> = SmallVec::new();
        let mut behind = *next;
        let mut fault = None;
        for gathered in &mut gathered {
            // SAFETY: each points to the next, or to nothing.
            let Some(wr) = (unsafe { behind.as_ref() }) else {
                break;
            };
            // SAFETY: C's request.
            match unsafe { send_wr(qp, wr, gathered) } {
                Ok(request) => batch.push(request),
                Err(wrong) => {
                    fault = Some(wrong);
                    break;
                }
            }
            behind = wr.next;
        }
        if let Err((index, error)) = qp.qp().post_send_list(&batch) {
            for _ in 0..index {
                // SAFETY: it was in the list above.
                *next = unsafe { (**next).next };
            }
            return Err(error.into());
        }
        *next = behind;
        if let Some(fault) = fault {
            return Err(fault);
        }
    }
    Ok(())
}
