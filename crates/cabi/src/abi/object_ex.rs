//! The extended completion queue and queue pair, whose calls are in tables of their own.

use std::ffi::{c_int, c_uint, c_void};

use super::{
    c_enum, c_struct, ibv_ah, ibv_comp_channel, ibv_context, ibv_data_buf, ibv_mw,
    ibv_mw_bind_info, ibv_qp, ibv_sge,
};

c_struct! { ibv_poll_cq_attr = 4 { comp_mask: u32, } }

c_struct! { ibv_wc_tm_info = 16 { tag: u64, r#priv: u32, } }

c_enum! {
    IBV_WC_EX_WITH_BYTE_LEN = 1,
    IBV_WC_EX_WITH_IMM = 1 << 1,
    IBV_WC_EX_WITH_QP_NUM = 1 << 2,
    IBV_WC_EX_WITH_SRC_QP = 1 << 3,
    IBV_WC_EX_WITH_SLID = 1 << 4,
    IBV_WC_EX_WITH_SL = 1 << 5,
    IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
    IBV_WC_EX_WITH_CVLAN = 1 << 8,
    IBV_WC_EX_WITH_FLOW_TAG = 1 << 9,
    IBV_WC_EX_WITH_TM_INFO = 1 << 10,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
    IBV_WC_STANDARD_FLAGS = 0x7f,
    IBV_QP_EX_WITH_RDMA_WRITE = 1,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,
    IBV_QP_EX_WITH_SEND = 1 << 2,
    IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3,
    IBV_QP_EX_WITH_RDMA_READ = 1 << 4,
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5,
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6,
    IBV_QP_EX_WITH_LOCAL_INV = 1 << 7,
    IBV_QP_EX_WITH_BIND_MW = 1 << 8,
    IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9,
}

/// A call of [`ibv_cq_ex`] that reads a field of the completion that the queue is at.
pub type read_wc<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

c_struct! {
    ibv_cq_ex = 288 {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: u32,
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
        next_poll: read_wc<c_int>,
        end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
        read_opcode: read_wc<u32>,
        read_vendor_err: read_wc<u32>,
        read_byte_len: read_wc<u32>,
        read_imm_data: read_wc<u32>,
        read_qp_num: read_wc<u32>,
        read_src_qp: read_wc<u32>,
        read_wc_flags: read_wc<c_uint>,
        read_slid: read_wc<u32>,
        read_sl: read_wc<u8>,
        read_dlid_path_bits: read_wc<u8>,
        read_completion_ts: read_wc<u64>,
        read_cvlan: read_wc<u16>,
        read_flow_tag: read_wc<u32>,
        read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)>,
        read_completion_wallclock_ns: read_wc<u64>,
    }
}

type Qp = *mut ibv_qp_ex;

c_struct! {
    ibv_qp_ex = 360 {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(Qp, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(Qp, u32, u64, u64)>,
        wr_bind_mw: Option<unsafe extern "C" fn(Qp, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
        wr_local_inv: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(Qp, u32, u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(Qp, u32, u64)>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(Qp, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(Qp)>,
        wr_send_imm: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_send_tso: Option<unsafe extern "C" fn(Qp, *mut c_void, u16, u16)>,
        wr_set_ud_addr: Option<unsafe extern "C" fn(Qp, *mut ibv_ah, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(Qp, *mut c_void, usize)>,
        wr_set_inline_data_list: Option<unsafe extern "C" fn(Qp, usize, *const ibv_data_buf)>,
        wr_set_sge: Option<unsafe extern "C" fn(Qp, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(Qp, usize, *const ibv_sge)>,
        wr_start: Option<unsafe extern "C" fn(Qp)>,
        wr_complete: Option<unsafe extern "C" fn(Qp) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(Qp)>,
        wr_atomic_write: Option<unsafe extern "C" fn(Qp, u32, u64, *const c_void)>,
        wr_flush: Option<unsafe extern "C" fn(Qp, u32, u64, usize, u8, u8)>,
    }
}
