//! Devices, ports and their tables.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{c_enum, c_struct};

/// `IBV_SYSFS_NAME_MAX`.
pub const IBV_SYSFS_NAME_MAX: usize = 64;
/// `IBV_SYSFS_PATH_MAX`.
pub const IBV_SYSFS_PATH_MAX: usize = 256;

c_enum! {
    IBV_NODE_CA = 1,
    IBV_NODE_RNIC = 4,
    IBV_TRANSPORT_IB = 0,
    IBV_TRANSPORT_IWARP = 1,
    IBV_GID_TYPE_IB = 0,
    IBV_GID_TYPE_ROCE_V1 = 1,
    IBV_GID_TYPE_ROCE_V2 = 2,
    IBV_FORK_UNNEEDED = 2,
    IBV_PORT_CM_SUP = 1 << 16,
    IBV_VALUES_MASK_RAW_CLOCK = 1,
}

/// In `flags` of a port: every address vector needs a GRH.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;

c_struct! {
    ibv_device = 664 {
        _ops: [*mut c_void; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; IBV_SYSFS_NAME_MAX],
        dev_name: [c_char; IBV_SYSFS_NAME_MAX],
        dev_path: [c_char; IBV_SYSFS_PATH_MAX],
        ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
    }
}

/// A GID, in network order.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(
    missing_docs,
    missing_debug_implementations,
    reason = "rdma-core's manual pages have it"
)]
pub union ibv_gid {
    pub raw: [u8; 16],
    pub global: ibv_gid_global,
}

c_struct! {
    /// The two halves of a GID, each in network order.
    ibv_gid_global = 16 {
        subnet_prefix: u64,
        interface_id: u64,
    }
}

c_struct! {
    ibv_gid_entry = 32 {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }
}

c_struct! {
    ibv_device_attr = 232 {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: u32,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
}

c_struct! { ibv_query_device_ex_input = 4 { comp_mask: u32, } }

c_struct! {
    ibv_odp_caps = 24 {
        general_caps: u64,
        per_transport_caps: [u32; 3],
    }
}

c_struct! { ibv_tso_caps = 8 { max_tso: u32, supported_qpts: u32, } }

c_struct! {
    ibv_rss_caps = 32 {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }
}

c_struct! {
    ibv_packet_pacing_caps = 12 {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }
}

c_struct! {
    ibv_tm_caps = 20 {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }
}

c_struct! { ibv_cq_moderation_caps = 4 { max_cq_count: u16, max_cq_period: u16, } }

c_struct! { ibv_pci_atomic_caps = 6 { fetch_add: u16, swap: u16, compare_swap: u16, } }

c_struct! {
    ibv_device_attr_ex = 400 {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        odp_caps: ibv_odp_caps,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: ibv_tso_caps,
        rss_caps: ibv_rss_caps,
        max_wq_type_rq: u32,
        packet_pacing_caps: ibv_packet_pacing_caps,
        raw_packet_caps: u32,
        tm_caps: ibv_tm_caps,
        cq_mod_caps: ibv_cq_moderation_caps,
        max_dm_size: u64,
        pci_atomic_caps: ibv_pci_atomic_caps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }
}

c_struct! {
    ibv_port_attr = 56 {
        state: u32,
        max_mtu: u32,
        active_mtu: u32,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
        active_speed_ex: u32,
    }
}

/// Octets of `ibv_port_attr` that the exported `ibv_query_port` may write: those before `port_cap_flags2`.
pub const COMPAT_PORT_ATTR: usize = 48;

c_struct! {
    ibv_values_ex = 24 {
        comp_mask: u32,
        raw_clock: libc::timespec,
    }
}
