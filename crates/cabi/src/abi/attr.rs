//! Attributes that objects are created, changed and queried with.

use std::ffi::{c_int, c_uint, c_void};

use super::{
    c_enum, c_struct, ibv_ah_attr, ibv_comp_channel, ibv_cq, ibv_dmah, ibv_pd, ibv_rwq_ind_table,
    ibv_srq, ibv_td, ibv_xrcd,
};

c_enum! {
    IBV_QPT_RC = 2,
    IBV_QPT_UC = 3,
    IBV_QPT_UD = 4,
    IBV_QPT_RAW_PACKET = 8,
    IBV_QPT_XRC_SEND = 9,
    IBV_QPT_XRC_RECV = 10,
    IBV_QPT_DRIVER = 0xff,
    IBV_QP_STATE = 1,
    IBV_QP_CAP = 1 << 19,
    IBV_QP_INIT_ATTR_PD = 1,
    IBV_QP_INIT_ATTR_XRCD = 1 << 1,
    IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,
    IBV_QP_OPEN_ATTR_NUM = 1,
    IBV_QP_OPEN_ATTR_XRCD = 1 << 1,
    IBV_QP_OPEN_ATTR_CONTEXT = 1 << 2,
    IBV_QP_OPEN_ATTR_TYPE = 1 << 3,
    IBV_SRQ_MAX_WR = 1,
    IBV_SRQ_LIMIT = 1 << 1,
    IBV_SRQT_BASIC = 0,
    IBV_SRQT_XRC = 1,
    IBV_SRQT_TM = 2,
    IBV_SRQ_INIT_ATTR_TYPE = 1,
    IBV_SRQ_INIT_ATTR_PD = 1 << 1,
    IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
    IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
    IBV_SRQ_INIT_ATTR_TM = 1 << 4,
    IBV_CQ_INIT_ATTR_MASK_FLAGS = 1,
    IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1,
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
    IBV_CQ_ATTR_MODERATE = 1,
    IBV_XRCD_INIT_ATTR_FD = 1,
    IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1,
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
    IBV_REG_MR_MASK_IOVA = 1,
    IBV_REG_MR_MASK_ADDR = 1 << 1,
    IBV_REG_MR_MASK_FD = 1 << 2,
    IBV_REG_MR_MASK_FD_OFFSET = 1 << 3,
    IBV_REG_MR_MASK_DMAH = 1 << 4,
}

c_struct! {
    ibv_qp_cap = 20 {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
}

c_struct! {
    ibv_qp_init_attr = 64 {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: u32,
        sq_sig_all: c_int,
    }
}

c_struct! {
    ibv_rx_hash_conf = 24 {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }
}

c_struct! {
    ibv_qp_init_attr_ex = 136 {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: u32,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut ibv_rwq_ind_table,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }
}

c_struct! {
    ibv_qp_open_attr = 32 {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut ibv_xrcd,
        qp_context: *mut c_void,
        qp_type: u32,
    }
}

c_struct! {
    ibv_qp_attr = 144 {
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
}

c_struct! {
    ibv_qp_rate_limit_attr = 16 {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }
}

c_struct! { ibv_srq_attr = 12 { max_wr: u32, max_sge: u32, srq_limit: u32, } }

c_struct! { ibv_srq_init_attr = 24 { srq_context: *mut c_void, attr: ibv_srq_attr, } }

c_struct! { ibv_tm_cap = 8 { max_num_tags: u32, max_ops: u32, } }

c_struct! {
    ibv_srq_init_attr_ex = 64 {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }
}

c_struct! {
    ibv_cq_init_attr_ex = 56 {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }
}

c_struct! { ibv_moderate_cq = 4 { cq_count: u16, cq_period: u16, } }

c_struct! { ibv_modify_cq_attr = 8 { attr_mask: u32, moderate: ibv_moderate_cq, } }

c_struct! { ibv_xrcd_init_attr = 12 { comp_mask: u32, fd: c_int, oflags: c_int, } }

c_struct! { ibv_td_init_attr = 4 { comp_mask: u32, } }

c_struct! {
    ibv_parent_domain_init_attr = 48 {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: *mut c_void,
        free: *mut c_void,
        pd_context: *mut c_void,
    }
}

c_struct! { ibv_ece = 12 { vendor_id: u32, options: u32, comp_mask: u32, } }

c_struct! { ibv_alloc_dm_attr = 16 { length: usize, log_align_req: u32, comp_mask: u32, } }

c_struct! {
    ibv_mr_init_attr = 64 {
        length: usize,
        access: c_int,
        comp_mask: u64,
        iova: u64,
        addr: *mut c_void,
        fd: c_int,
        fd_offset: u64,
        dmah: *mut ibv_dmah,
    }
}

c_struct! {
    ibv_dmah_init_attr = 12 {
        comp_mask: u32,
        cpu_id: u32,
        ph: u8,
        tph_mem_type: u8,
    }
}
