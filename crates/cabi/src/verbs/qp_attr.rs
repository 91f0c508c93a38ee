//! Attributes of queue pairs.

use std::ffi::c_int;

use softverbs::{Access, QpAttr, QpAttrMask, QpState as State, Qpn};

use super::ah::{ah_attr_of, c_ah_attr};
use super::qp::c_cap;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, in_ref, object, out_mut};

/// The attributes that `mask` names; C has not filled in the others.
fn attr_of(c: &ibv_qp_attr, mask: QpAttrMask) -> Result<QpAttr> {
    let state = |bit: QpAttrMask, value: u32| {
        if mask.contains(bit) {
            State::from_value(value).ok_or(Fault::INVALID)
        } else {
            Ok(State::Reset)
        }
    };
    let access = c.qp_access_flags & !IBV_ACCESS_OPTIONAL_RANGE;
    Ok(QpAttr {
        qp_state: state(QpAttrMask::STATE, c.qp_state)?,
        cur_qp_state: state(QpAttrMask::CUR_STATE, c.cur_qp_state)?,
        path_mtu: c.path_mtu,
        qkey: c.qkey,
        rq_psn: c.rq_psn,
        sq_psn: c.sq_psn,
        dest_qp_num: Qpn::new(c.dest_qp_num),
        ah_attr: ah_attr_of(&c.ah_attr),
        en_sqd_async_notify: c.en_sqd_async_notify != 0,
        sq_draining: false,
        qp_access_flags: if mask.contains(QpAttrMask::ACCESS_FLAGS) {
            Access::from_bits(access).ok_or(Fault::INVALID)?
        } else {
            Access::empty()
        },
        pkey_index: c.pkey_index,
        port_num: c.port_num,
        max_rd_atomic: c.max_rd_atomic,
        max_dest_rd_atomic: c.max_dest_rd_atomic,
        min_rnr_timer: c.min_rnr_timer,
        timeout: c.timeout,
        retry_cnt: c.retry_cnt,
        rnr_retry: c.rnr_retry,
    })
}

/// The attributes for C.
pub(crate) fn c_qp_attr(attr: &QpAttr, cap: ibv_qp_cap) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.qp_state as u32,
        cur_qp_state: attr.cur_qp_state as u32,
        path_mtu: attr.path_mtu,
        // IBV_MIG_MIGRATED: there is one path.
        path_mig_state: 0,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num.get(),
        qp_access_flags: attr.qp_access_flags.bits(),
        cap,
        ah_attr: c_ah_attr(&attr.ah_attr),
        alt_ah_attr: c_ah_attr(&softverbs::AhAttr::default()),
        pkey_index: attr.pkey_index,
        alt_pkey_index: 0,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: 0,
    }
}

/// Puts the state where C looks for it.
///
/// # Safety
/// `qp` is C's.
pub(crate) unsafe fn publish_state(qp: *mut ibv_qp) -> Result<()> {
    // SAFETY: the caller's promise; rdma-core writes there at the same moments.
    unsafe { (*qp).state = object(qp)?.qp().state() as u32 };
    Ok(())
}

pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue pair and attributes.
        let (state, attr) = unsafe { (object(qp)?, in_ref(attr)?) };
        let mask = QpAttrMask::from_bits(attr_mask.cast_unsigned()).ok_or(Fault::INVALID)?;
        state.qp().modify(&attr_of(attr, mask)?, mask)?;
        // SAFETY: C's queue pair.
        unsafe { publish_state(qp) }
    })
}

pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's queue pair, and two structs to be filled in.
        let (state, c, attr, init) = unsafe {
            (
                object(qp)?,
                in_ref(qp)?,
                out_mut(attr)?,
                out_mut(init_attr)?,
            )
        };
        let cap = c_cap(&state.qp().cap());
        *attr = c_qp_attr(&state.qp().query(), cap);
        *init = ibv_qp_init_attr {
            qp_context: c.qp_context,
            send_cq: c.send_cq,
            recv_cq: c.recv_cq,
            srq: c.srq,
            cap,
            qp_type: c.qp_type,
            sq_sig_all: state.qp().sq_sig_all().into(),
        };
        // SAFETY: C's queue pair.
        unsafe { publish_state(qp) }
    })
}
