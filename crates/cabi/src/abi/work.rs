//! Work requests, completions and events.

use std::ffi::{c_int, c_uint, c_void};

use super::{c_enum, c_struct, ibv_ah, ibv_cq, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_srq, ibv_wq};

c_enum! {
    IBV_WR_RDMA_WRITE = 0,
    IBV_WR_RDMA_WRITE_WITH_IMM = 1,
    IBV_WR_SEND = 2,
    IBV_WR_SEND_WITH_IMM = 3,
    IBV_WR_RDMA_READ = 4,
    IBV_WR_ATOMIC_CMP_AND_SWP = 5,
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
    IBV_WR_LOCAL_INV = 7,
    IBV_WR_BIND_MW = 8,
    IBV_WR_SEND_WITH_INV = 9,
    IBV_SEND_FENCE = 1,
    IBV_SEND_SIGNALED = 1 << 1,
    IBV_SEND_SOLICITED = 1 << 2,
    IBV_SEND_INLINE = 1 << 3,
    IBV_SEND_IP_CSUM = 1 << 4,
    IBV_WC_GRH = 1,
    IBV_WC_WITH_IMM = 1 << 1,
    IBV_WC_WITH_INV = 1 << 3,
}

c_struct! { ibv_sge = 16 { addr: u64, length: u32, lkey: u32, } }

c_struct! { ibv_data_buf = 16 { addr: *mut c_void, length: usize, } }

c_struct! {
    ibv_wc = 48 {
        wr_id: u64,
        status: u32,
        opcode: u32,
        vendor_err: u32,
        byte_len: u32,
        /// Immediate data in network order, or the key that was invalidated.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
}

c_struct! { ibv_wr_rdma = 16 { remote_addr: u64, rkey: u32, } }

c_struct! { ibv_wr_atomic = 32 { remote_addr: u64, compare_add: u64, swap: u64, rkey: u32, } }

c_struct! { ibv_wr_ud = 16 { ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32, } }

/// The part of a send request that depends on its operation.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(
    missing_docs,
    missing_debug_implementations,
    reason = "rdma-core's manual pages have it"
)]
pub union ibv_send_wr_op {
    pub rdma: ibv_wr_rdma,
    pub atomic: ibv_wr_atomic,
    pub ud: ibv_wr_ud,
}

c_struct! {
    ibv_wr_bind_mw = 48 {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }
}

c_struct! {
    ibv_send_wr = 128 {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: u32,
        send_flags: c_uint,
        /// Immediate data in network order, or the key to invalidate.
        imm_data: u32,
        wr: ibv_send_wr_op,
        /// `remote_srqn` of XRC.
        qp_type: [u32; 2],
        bind_mw: ibv_wr_bind_mw,
    }
}

c_struct! {
    ibv_recv_wr = 32 {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
}

c_struct! {
    ibv_ops_wr = 72 {
        wr_id: u64,
        next: *mut ibv_ops_wr,
        opcode: u32,
        flags: c_int,
        tm: [u64; 6],
    }
}

/// What an asynchronous event happened to.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(
    missing_docs,
    missing_debug_implementations,
    reason = "rdma-core's manual pages have it"
)]
pub union ibv_async_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut ibv_wq,
    pub port_num: c_int,
}

c_struct! { ibv_async_event = 16 { element: ibv_async_element, event_type: u32, } }
