//! The objects of verbs.

use std::ffi::{c_int, c_uint, c_void};

use super::{c_enum, c_struct, ibv_context, ibv_gid, ibv_recv_wr};

c_enum! {
    IBV_ACCESS_LOCAL_WRITE = 1,
    IBV_ACCESS_REMOTE_WRITE = 1 << 1,
    IBV_ACCESS_REMOTE_READ = 1 << 2,
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
    IBV_ACCESS_MW_BIND = 1 << 4,
    IBV_ACCESS_ZERO_BASED = 1 << 5,
    IBV_ACCESS_ON_DEMAND = 1 << 6,
    IBV_ACCESS_HUGETLB = 1 << 7,
    /// Flags that a device may ignore: bits 20 to 29.
    IBV_ACCESS_OPTIONAL_RANGE = 0x3ff0_0000,
    IBV_REREG_MR_CHANGE_TRANSLATION = 1,
    IBV_REREG_MR_CHANGE_PD = 1 << 1,
    IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
    IBV_MW_TYPE_1 = 1,
    IBV_MW_TYPE_2 = 2,
}

c_struct! { ibv_pd = 16 { context: *mut ibv_context, handle: u32, } }

c_struct! { ibv_td = 8 { context: *mut ibv_context, } }

c_struct! { ibv_xrcd = 8 { context: *mut ibv_context, } }

c_struct! {
    ibv_mr = 48 {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
}

c_struct! {
    ibv_mw = 32 {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        r#type: u32,
    }
}

c_struct! { ibv_ah = 24 { context: *mut ibv_context, pd: *mut ibv_pd, handle: u32, } }

c_struct! { ibv_comp_channel = 16 { context: *mut ibv_context, fd: c_int, refcnt: c_int, } }

c_struct! {
    ibv_cq = 128 {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }
}

c_struct! {
    ibv_srq = 128 {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }
}

c_struct! {
    ibv_qp = 160 {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: u32,
        qp_type: u32,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }
}

c_struct! {
    ibv_wq = 152 {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: u32,
        wq_type: u32,
        post_recv: Option<
            unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
        >,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }
}

c_struct! {
    ibv_rwq_ind_table = 24 {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }
}

c_struct! {
    ibv_dm = 32 {
        context: *mut ibv_context,
        memcpy_to_dm: Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>,
        memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>,
        comp_mask: u32,
        handle: u32,
    }
}

c_struct! { ibv_flow = 24 { comp_mask: u32, context: *mut ibv_context, handle: u32, } }

c_struct! { ibv_flow_action = 8 { context: *mut ibv_context, } }

c_struct! { ibv_counters = 8 { context: *mut ibv_context, } }

c_struct! { ibv_dmah = 8 { context: *mut ibv_context, } }

c_struct! {
    ibv_global_route = 24 {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
}

c_struct! {
    ibv_ah_attr = 32 {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
}

c_struct! {
    ibv_grh = 40 {
        version_tclass_flow: u32,
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }
}

c_struct! {
    ibv_mw_bind_info = 32 {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }
}

c_struct! {
    ibv_mw_bind = 48 {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }
}
