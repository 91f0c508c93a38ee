//! The structs of `rdma/rdma_cma.h`, and what it takes from `infiniband/sa.h`.

use std::ffi::{c_char, c_int, c_void};

use super::{
    c_enum, c_struct, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp,
    ibv_srq,
};

c_enum! {
    RDMA_CM_EVENT_ADDR_RESOLVED = 0,
    RDMA_CM_EVENT_ADDR_ERROR = 1,
    RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
    RDMA_CM_EVENT_ROUTE_ERROR = 3,
    RDMA_CM_EVENT_CONNECT_REQUEST = 4,
    RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
    RDMA_CM_EVENT_CONNECT_ERROR = 6,
    RDMA_CM_EVENT_UNREACHABLE = 7,
    RDMA_CM_EVENT_REJECTED = 8,
    RDMA_CM_EVENT_ESTABLISHED = 9,
    RDMA_CM_EVENT_DISCONNECTED = 10,
    RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
    RDMA_CM_EVENT_MULTICAST_JOIN = 12,
    RDMA_CM_EVENT_MULTICAST_ERROR = 13,
    RDMA_CM_EVENT_ADDR_CHANGE = 14,
    RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    RDMA_PS_IPOIB = 0x0002,
    RDMA_PS_TCP = 0x0106,
    RDMA_PS_UDP = 0x0111,
    RDMA_PS_IB = 0x013f,
    RAI_PASSIVE = 1,
    RAI_NUMERICHOST = 2,
    RAI_NOROUTE = 4,
    RAI_FAMILY = 8,
    RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1,
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
    RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
}

c_struct! {
    ibv_sa_path_rec = 64 {
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: u16,
        slid: u16,
        raw_traffic: c_int,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }
}

c_struct! { rdma_ib_addr = 40 { sgid: ibv_gid, dgid: ibv_gid, pkey: u16, } }

c_struct! {
    rdma_addr = 296 {
        src_storage: libc::sockaddr_storage,
        dst_storage: libc::sockaddr_storage,
        addr: rdma_ib_addr,
    }
}

c_struct! {
    rdma_route = 312 {
        addr: rdma_addr,
        path_rec: *mut ibv_sa_path_rec,
        num_paths: c_int,
    }
}

c_struct! { rdma_event_channel = 4 { fd: c_int, } }

c_struct! {
    rdma_cm_id = 416 {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: u32,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: u32,
    }
}

c_struct! {
    rdma_conn_param = 24 {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }
}

c_struct! {
    rdma_ud_param = 56 {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }
}

/// What an event tells of a connection, or of a datagram's destination.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(
    missing_docs,
    missing_debug_implementations,
    reason = "rdma-core's manual pages have it"
)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}

c_struct! {
    rdma_cm_event = 80 {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: u32,
        status: c_int,
        param: rdma_cm_event_param,
    }
}

c_struct! {
    rdma_addrinfo = 96 {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: libc::socklen_t,
        ai_dst_len: libc::socklen_t,
        ai_src_addr: *mut libc::sockaddr,
        ai_dst_addr: *mut libc::sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }
}

c_struct! {
    rdma_cm_join_mc_attr_ex = 16 {
        comp_mask: u32,
        join_flags: u32,
        addr: *mut libc::sockaddr,
    }
}

c_struct! {
    sockaddr_ib = 48 {
        sib_family: u16,
        sib_pkey: u16,
        sib_flowinfo: u32,
        sib_addr: [u8; 16],
        sib_sid: u64,
        sib_sid_mask: u64,
        sib_scope_id: u64,
    }
}

/// Octets of `struct ibv_path_data`.
pub(crate) const PATH_DATA: usize = 72;
