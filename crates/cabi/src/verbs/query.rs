//! What a device, its port and its tables say.

use std::ffi::{c_int, c_uint};
use std::ptr;

use softverbs::{DeviceAttr, PortAttr, Transport};

use super::context::state;
use crate::abi::*;
use crate::ffi::{self, Fault, Result, c_string_into, in_ref, out_mut};

/// What `int` fields can say of a limit.
fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn device_attr(attr: &DeviceAttr) -> ibv_device_attr {
    let mut c = ibv_device_attr {
        fw_ver: [0; 64],
        node_guid: attr.node_guid.to_be(),
        sys_image_guid: attr.sys_image_guid.to_be(),
        max_mr_size: attr.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: int(attr.max_qp),
        max_qp_wr: int(attr.max_qp_wr),
        device_cap_flags: attr.device_cap_flags.bits(),
        max_sge: int(attr.max_sge),
        max_sge_rd: int(attr.max_sge_rd),
        max_cq: int(attr.max_cq),
        max_cqe: int(attr.max_cqe),
        max_mr: int(attr.max_mr),
        max_pd: int(attr.max_pd),
        max_qp_rd_atom: int(attr.max_qp_rd_atom),
        max_ee_rd_atom: int(attr.max_ee_rd_atom),
        max_res_rd_atom: int(attr.max_res_rd_atom),
        max_qp_init_rd_atom: int(attr.max_qp_init_rd_atom),
        max_ee_init_rd_atom: int(attr.max_ee_init_rd_atom),
        atomic_cap: attr.atomic_cap as u32,
        max_ee: int(attr.max_ee),
        max_rdd: int(attr.max_rdd),
        max_mw: int(attr.max_mw),
        max_raw_ipv6_qp: int(attr.max_raw_ipv6_qp),
        max_raw_ethy_qp: int(attr.max_raw_ethy_qp),
        max_mcast_grp: int(attr.max_mcast_grp),
        max_mcast_qp_attach: int(attr.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(attr.max_total_mcast_qp_attach),
        max_ah: int(attr.max_ah),
        max_fmr: int(attr.max_fmr),
        max_map_per_fmr: int(attr.max_map_per_fmr),
        max_srq: int(attr.max_srq),
        max_srq_wr: int(attr.max_srq_wr),
        max_srq_sge: int(attr.max_srq_sge),
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
    };
    c_string_into(attr.fw_ver, &mut c.fw_ver);
    c
}

fn device_attr_ex(attr: &DeviceAttr) -> ibv_device_attr_ex {
    ibv_device_attr_ex {
        orig_attr: device_attr(attr),
        comp_mask: 0,
        odp_caps: ibv_odp_caps {
            general_caps: 0,
            per_transport_caps: [0; 3],
        },
        // Nanoseconds of the monotonic clock.
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: 1_000_000,
        device_cap_flags_ex: attr.device_cap_flags.bits().into(),
        tso_caps: ibv_tso_caps {
            max_tso: 0,
            supported_qpts: 0,
        },
        rss_caps: ibv_rss_caps {
            supported_qpts: 0,
            max_rwq_indirection_tables: 0,
            max_rwq_indirection_table_size: 0,
            rx_hash_fields_mask: 0,
            rx_hash_function: 0,
        },
        max_wq_type_rq: 0,
        packet_pacing_caps: ibv_packet_pacing_caps {
            qp_rate_limit_min: 0,
            qp_rate_limit_max: 0,
            supported_qpts: 0,
        },
        raw_packet_caps: 0,
        tm_caps: ibv_tm_caps {
            max_rndv_hdr_size: 0,
            max_num_tags: 0,
            flags: 0,
            max_ops: 0,
            max_sge: 0,
        },
        cq_mod_caps: ibv_cq_moderation_caps {
            max_cq_count: 0,
            max_cq_period: 0,
        },
        max_dm_size: 0,
        pci_atomic_caps: ibv_pci_atomic_caps {
            fetch_add: 0,
            swap: 0,
            compare_swap: 0,
        },
        xrc_odp_caps: 0,
        phys_port_cnt_ex: attr.phys_port_cnt.into(),
    }
}

fn port_attr(attr: &PortAttr, transport: Transport) -> ibv_port_attr {
    ibv_port_attr {
        state: attr.state as u32,
        max_mtu: attr.max_mtu as u32,
        active_mtu: attr.active_mtu as u32,
        gid_tbl_len: int(attr.gid_tbl_len),
        port_cap_flags: attr.port_cap_flags,
        max_msg_sz: attr.max_msg_sz,
        bad_pkey_cntr: attr.bad_pkey_cntr,
        qkey_viol_cntr: attr.qkey_viol_cntr,
        pkey_tbl_len: attr.pkey_tbl_len,
        lid: attr.lid,
        sm_lid: attr.sm_lid,
        lmc: attr.lmc,
        max_vl_num: attr.max_vl_num,
        sm_sl: attr.sm_sl,
        subnet_timeout: attr.subnet_timeout,
        init_type_reply: attr.init_type_reply,
        active_width: attr.active_width,
        active_speed: u8::try_from(attr.active_speed).unwrap_or(0),
        phys_state: attr.phys_state,
        link_layer: attr.link_layer as u8,
        flags: match transport {
            Transport::Roce => IBV_QPF_GRH_REQUIRED,
            Transport::Iwarp => 0,
        },
        port_cap_flags2: attr.port_cap_flags2,
        active_speed_ex: attr.active_speed.into(),
    }
}

/// Hands out the first `len` octets of a struct that has grown since the program was built, and zeroes
/// what it has more than we know.
///
/// # Safety
/// `to` is null or has room for `len` octets.
unsafe fn give<T: Copy>(value: &T, to: *mut T, len: usize) -> Result<()> {
    // SAFETY: the caller's promise; only to see whether it is null.
    if to.is_null() {
        return Err(Fault::INVALID);
    }
    let known = len.min(size_of::<T>());
    let to = to.cast::<u8>();
    // SAFETY: the caller's promise for `len` octets, and no more than there are in `value`.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to, known);
        to.add(known).write_bytes(0, len - known);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's opened device, and a struct to be filled in.
        let (state, attr) = unsafe { (state(context)?, out_mut(attr)?) };
        *attr = device_attr(&state.context().query_device());
        Ok(())
    })
}

/// `ibv_query_device_ex`, through the context.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's opened device.
        let state = unsafe { state(context) }?;
        // SAFETY: C's struct, if there is one.
        if !input.is_null() && unsafe { in_ref(input) }?.comp_mask != 0 {
            return Err(Fault::INVALID);
        }
        if attr_size < size_of::<ibv_device_attr>() {
            return Err(Fault::INVALID);
        }
        let value = device_attr_ex(&state.context().query_device());
        // SAFETY: C says how large its struct is.
        unsafe { give(&value, attr, attr_size) }
    })
}

/// `ibv_query_port`, through the context.
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's opened device.
        let context = unsafe { state(context) }?.context();
        let value = port_attr(&context.query_port(port_num)?, context.device().transport());
        // SAFETY: C says how large its struct is.
        unsafe { give(&value, attr, attr_len) }
    })
}

/// For programs from before the call went through the context: their struct was shorter.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: C's promises are the same, for a struct of this length.
    unsafe { query_port(context, port_num, attr, COMPAT_PORT_ATTR) }
}

/// In units of 100 Mbit/s.
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port_num: u32,
    port_speed: *mut u64,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's opened device, and a number to be filled in.
        let (state, port_speed) = unsafe { (state(context)?, out_mut(port_speed)?) };
        let port_num = u8::try_from(port_num).map_err(|_| Fault::INVALID)?;
        let attr = state.context().query_port(port_num)?;
        *port_speed = (attr.lanes() * attr.lane_speed().0).into();
        Ok(())
    })
}

/// An entry of the GID table, as C's newest calls see it.
fn gid_entry(
    state: &super::context::ContextState,
    port_num: u32,
    index: u32,
) -> Result<ibv_gid_entry> {
    let port = u8::try_from(port_num).map_err(|_| Fault::INVALID)?;
    let context = state.context();
    let gid = context.query_gid(port, index)?;
    Ok(ibv_gid_entry {
        gid: ibv_gid { raw: gid.get() },
        gid_index: index,
        port_num,
        gid_type: match context.device().transport() {
            Transport::Roce => IBV_GID_TYPE_ROCE_V2,
            Transport::Iwarp => IBV_GID_TYPE_IB,
        },
        ndev_ifindex: context.device().interface_index(),
    })
}

pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's opened device, and a struct to be filled in.
        let (state, gid) = unsafe { (state(context)?, out_mut(gid)?) };
        let index = u32::try_from(index).map_err(|_| Fault::INVALID)?;
        *gid = gid_entry(state, port_num.into(), index)?.gid;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    ffi::errno(|| {
        // SAFETY: C's opened device.
        let state = unsafe { state(context) }?;
        if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
            return Err(Fault::INVALID);
        }
        let value = gid_entry(state, port_num, gid_index)?;
        // SAFETY: C says how large its struct is.
        unsafe { give(&value, entry, entry_size) }
    })
}

/// All entries; how many, or a negative `errno` value.
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let mut count = 0;
    let errno = ffi::errno(|| {
        // SAFETY: C's opened device.
        let state = unsafe { state(context) }?;
        if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
            return Err(Fault::INVALID);
        }
        let length = state.context().query_port(1)?.gid_tbl_len;
        if max_entries < length as usize {
            return Err(Fault::INVALID);
        }
        for index in 0..length {
            let value = gid_entry(state, 1, index)?;
            let place = entries.wrapping_byte_add(entry_size * count);
            // SAFETY: C has room for `max_entries` of `entry_size` octets each, and this is one of them.
            unsafe { give(&value, place, entry_size) }?;
            count += 1;
        }
        Ok(())
    });
    match errno {
        0 => isize::try_from(count).unwrap_or(isize::MAX),
        errno => -(errno as isize),
    }
}

/// Whether an entry is of RoCE version 2 (1) or anything else (0), as rdma-core's own programs ask.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's opened device, and a number to be filled in.
        let (state, gid_type) = unsafe { (state(context)?, out_mut(gid_type)?) };
        let entry = gid_entry(state, port_num.into(), index)?;
        *gid_type = c_uint::from(entry.gid_type == IBV_GID_TYPE_ROCE_V2);
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's opened device, and a number to be filled in.
        let (state, pkey) = unsafe { (state(context)?, out_mut(pkey)?) };
        let index = u32::try_from(index).map_err(|_| Fault::INVALID)?;
        *pkey = state.context().query_pkey(port_num, index)?.to_be();
        Ok(0)
    })
}

/// Where a key is in the table, in network order.
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port_num: u8,
    pkey: u16,
) -> c_int {
    ffi::minus_one(|| {
        // SAFETY: C's opened device.
        let context = unsafe { state(context) }?.context();
        let length = context.query_port(port_num)?.pkey_tbl_len;
        let mut keys = (0..u32::from(length)).map(|index| context.query_pkey(port_num, index));
        let found = keys.position(|known| known.is_ok_and(|known| known.to_be() == pkey));
        found
            .and_then(|index| c_int::try_from(index).ok())
            .ok_or(Fault::INVALID)
    })
}
