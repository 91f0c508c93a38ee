//! The attributes of devices and ports, under the names of rdma-core.

use bitflags::bitflags;

use super::{Device, Identity, Transport, check_port, sysfs};
use crate::error::Result;

/// The limits of every device. Each can be reached.
pub(crate) mod limits {
    /// Queue pairs.
    pub(crate) const MAX_QP: u32 = 1 << 20;
    /// Work requests outstanding in one queue.
    pub(crate) const MAX_QP_WR: u32 = 32_768;
    /// Scatter/gather entries of one work request.
    pub(crate) const MAX_SGE: u32 = 32;
    /// Completion queues.
    pub(crate) const MAX_CQ: u32 = 1 << 20;
    /// Entries of one completion queue.
    pub(crate) const MAX_CQE: u32 = 1 << 22;
    /// Memory regions: as many as their keys tell apart.
    pub(crate) const MAX_MR: u32 = 1 << 20;
    /// Octets in one memory region: what one object can have.
    pub(crate) const MAX_MR_SIZE: u64 = isize::MAX as u64;
    /// Memory windows.
    pub(crate) const MAX_MW: u32 = 1 << 16;
    /// Protection domains.
    pub(crate) const MAX_PD: u32 = 1 << 20;
    /// Reads and Atomics outstanding on one queue pair, as their target.
    pub(crate) const MAX_QP_RD_ATOM: u8 = 128;
    /// Reads and Atomics outstanding on one queue pair, as their initiator.
    pub(crate) const MAX_QP_INIT_RD_ATOM: u8 = 128;
    /// Shared receive queues.
    pub(crate) const MAX_SRQ: u32 = 1 << 20;
    /// Receives in one shared receive queue.
    pub(crate) const MAX_SRQ_WR: u32 = 32_768;
    /// Scatter/gather entries of one receive in a shared receive queue.
    pub(crate) const MAX_SRQ_SGE: u32 = 32;
    /// Octets of one message.
    pub(crate) const MAX_INLINE_DATA: u32 = 1024;
    /// Octets of one message.
    pub(crate) const MAX_MSG_SZ: u32 = 1 << 31;
}

/// How far atomic operations are atomic (`enum ibv_atomic_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AtomicCap {
    /// There are none.
    None = 0,
    /// Among operations of this device.
    Hca = 1,
    /// Among all accesses to the memory.
    Glob = 2,
}

bitflags! {
    /// What a device can do (`enum ibv_device_cap_flags`); those that are reported here.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DeviceCapFlags: u32 {
        /// `sys_image_guid` is set.
        const SYS_IMAGE_GUID = 1 << 11;
        /// Memory windows of type 1.
        const MEM_WINDOW = 1 << 17;
        /// Extended reliable connections (RoCE).
        const XRC = 1 << 20;
        /// Local Invalidate and Send with Invalidate.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Memory windows of type 2B: for one queue pair.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
    }
}

/// What a device is and can do (`struct ibv_device_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of rdma-core")]
#[non_exhaustive]
pub struct DeviceAttr {
    pub fw_ver: &'static str,
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub device_cap_flags: DeviceCapFlags,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_ee_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_ee_init_rd_atom: u32,
    pub atomic_cap: AtomicCap,
    pub max_ee: u32,
    pub max_rdd: u32,
    pub max_mw: u32,
    pub max_raw_ipv6_qp: u32,
    pub max_raw_ethy_qp: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_fmr: u32,
    pub max_map_per_fmr: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// State of a port (`enum ibv_port_state`); those that occur here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PortState {
    /// It carries no traffic.
    Down = 1,
    /// It carries traffic.
    Active = 4,
}

/// Sizes of an InfiniBand payload (`enum ibv_mtu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names of rdma-core")]
pub enum IbMtu {
    Mtu256 = 1,
    Mtu512 = 2,
    Mtu1024 = 3,
    Mtu2048 = 4,
    Mtu4096 = 5,
}

impl IbMtu {
    /// In octets.
    pub const fn octets(self) -> u32 {
        128 << self as u32
    }

    /// The largest one that is not above `octets`; the smallest one at least.
    pub fn at_most(octets: u32) -> Self {
        [Self::Mtu4096, Self::Mtu2048, Self::Mtu1024, Self::Mtu512]
            .into_iter()
            .find(|mtu| mtu.octets() <= octets)
            .unwrap_or(Self::Mtu256)
    }
}

/// What is below the RDMA protocol (`IBV_LINK_LAYER_*`); the one that occurs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkLayer {
    /// Ethernet, or what stands for it.
    Ethernet = 2,
}

/// What a port is and does (`struct ibv_port_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of rdma-core")]
#[non_exhaustive]
pub struct PortAttr {
    pub state: PortState,
    pub max_mtu: IbMtu,
    pub active_mtu: IbMtu,
    pub gid_tbl_len: u32,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u16,
    pub phys_state: u8,
    pub link_layer: LinkLayer,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `IBV_PORT_CM_SUP`.
const PORT_CM_SUP: u32 = 1 << 16;
/// `IBV_PORT_IP_BASED_GIDS`.
const PORT_IP_BASED_GIDS: u32 = 1 << 26;
/// Values of `phys_state`.
const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;

impl Device {
    /// What this device is and can do.
    pub(crate) fn attr(&self) -> DeviceAttr {
        let guid = self.node_guid();
        let identity = Identity::of_process();
        DeviceAttr {
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: guid,
            sys_image_guid: guid,
            max_mr_size: limits::MAX_MR_SIZE,
            // Every page size from 4 KiB; regions have no alignment to keep anyway.
            page_size_cap: !0xfff,
            vendor_id: identity.vendor_id(),
            vendor_part_id: identity.vendor_part_id(),
            hw_ver: 0,
            max_qp: limits::MAX_QP,
            max_qp_wr: limits::MAX_QP_WR,
            device_cap_flags: match self.transport() {
                Transport::Iwarp => DeviceCapFlags::all() - DeviceCapFlags::XRC,
                Transport::Roce => DeviceCapFlags::all(),
            },
            max_sge: limits::MAX_SGE,
            max_sge_rd: limits::MAX_SGE,
            max_cq: limits::MAX_CQ,
            max_cqe: limits::MAX_CQE,
            max_mr: limits::MAX_MR,
            max_pd: limits::MAX_PD,
            max_qp_rd_atom: limits::MAX_QP_RD_ATOM.into(),
            max_ee_rd_atom: 0,
            max_res_rd_atom: limits::MAX_QP.saturating_mul(limits::MAX_QP_RD_ATOM.into()),
            max_qp_init_rd_atom: limits::MAX_QP_INIT_RD_ATOM.into(),
            max_ee_init_rd_atom: 0,
            atomic_cap: AtomicCap::Hca,
            max_ee: 0,
            max_rdd: 0,
            max_mw: limits::MAX_MW,
            max_raw_ipv6_qp: 0,
            max_raw_ethy_qp: 0,
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            max_total_mcast_qp_attach: 0,
            max_ah: 0,
            max_fmr: 0,
            max_map_per_fmr: 0,
            max_srq: limits::MAX_SRQ,
            max_srq_wr: limits::MAX_SRQ_WR,
            max_srq_sge: limits::MAX_SRQ_SGE,
            max_pkeys: 1,
            local_ca_ack_delay: 0,
            phys_port_cnt: 1,
        }
    }

    /// The largest payload of a packet that the interface carries.
    pub(crate) fn active_mtu(&self) -> IbMtu {
        /// IPv6 and UDP headers, and the most that InfiniBand puts around a payload.
        const AROUND: u32 = 40 + 8 + 12 + 28 + 4;
        match self.transport {
            Transport::Iwarp => IbMtu::at_most(self.inner.mtu),
            Transport::Roce => IbMtu::at_most(self.inner.mtu.saturating_sub(AROUND)),
        }
    }

    /// What its port is and does.
    pub(crate) fn port_attr(&self, port: u8) -> Result<PortAttr> {
        check_port(port)?;
        let interface = &self.inner;
        let speed = sysfs::speed(&interface.interface, interface.index, interface.mac);
        let (active_width, active_speed) = width_and_speed(speed.unwrap_or(10_000));
        Ok(PortAttr {
            state: if interface.running {
                PortState::Active
            } else {
                PortState::Down
            },
            max_mtu: IbMtu::Mtu4096,
            active_mtu: self.active_mtu(),
            gid_tbl_len: u32::try_from(interface.addresses.len()).unwrap_or(u32::MAX),
            port_cap_flags: PORT_CM_SUP | PORT_IP_BASED_GIDS,
            max_msg_sz: limits::MAX_MSG_SZ,
            bad_pkey_cntr: 0,
            qkey_viol_cntr: 0,
            pkey_tbl_len: 1,
            lid: 0,
            sm_lid: 0,
            lmc: 0,
            max_vl_num: 1,
            sm_sl: 0,
            subnet_timeout: 0,
            init_type_reply: 0,
            active_width,
            active_speed,
            phys_state: if interface.running {
                PHYS_LINK_UP
            } else {
                PHYS_DISABLED
            },
            link_layer: LinkLayer::Ethernet,
            flags: 0,
            port_cap_flags2: 0,
        })
    }
}

impl PortAttr {
    /// What `active_width` stands for: how many lanes.
    pub const fn lanes(&self) -> u32 {
        lanes(self.active_width)
    }

    /// What `active_speed` stands for: the speed of a lane in units of 100 Mbit/s, and its name.
    pub const fn lane_speed(&self) -> (u32, &'static str) {
        lane_speed(self.active_speed)
    }
}

const fn lanes(width: u8) -> u32 {
    match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    }
}

const fn lane_speed(speed: u16) -> (u32, &'static str) {
    match speed {
        2 => (50, "DDR"),
        4 => (100, "QDR"),
        8 => (100, "FDR10"),
        16 => (140, "FDR"),
        32 => (250, "EDR"),
        64 => (500, "HDR"),
        128 => (1000, "NDR"),
        256 => (2000, "XDR"),
        _ => (25, "SDR"),
    }
}

/// InfiniBand's words for a speed in Mbit/s, as the kernel translates Ethernet's:
/// `active_width` and `active_speed`.
const fn width_and_speed(mbit: u32) -> (u8, u16) {
    const X1: u8 = 1;
    const X4: u8 = 2;
    const X2: u8 = 16;
    const SDR: u16 = 1;
    const DDR: u16 = 2;
    const FDR10: u16 = 8;
    const EDR: u16 = 32;
    const HDR: u16 = 64;
    const NDR: u16 = 128;
    const XDR: u16 = 256;
    match mbit {
        0..=1000 => (X1, SDR),
        1001..=10_000 => (X1, FDR10),
        10_001..=20_000 => (X4, DDR),
        20_001..=25_000 => (X1, EDR),
        25_001..=40_000 => (X4, FDR10),
        40_001..=50_000 => (X2, EDR),
        50_001..=100_000 => (X4, EDR),
        100_001..=200_000 => (X4, HDR),
        200_001..=400_000 => (X4, NDR),
        _ => (X4, XDR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus() {
        assert_eq!(IbMtu::Mtu256.octets(), 256);
        assert_eq!(IbMtu::Mtu4096.octets(), 4096);
        for (octets, mtu) in [
            (0, IbMtu::Mtu256),
            (511, IbMtu::Mtu256),
            (512, IbMtu::Mtu512),
            (1500, IbMtu::Mtu1024),
            (4095, IbMtu::Mtu2048),
            (9000, IbMtu::Mtu4096),
            (u32::MAX, IbMtu::Mtu4096),
        ] {
            assert_eq!(IbMtu::at_most(octets), mtu, "{octets}");
        }
    }

    #[test]
    fn speeds() {
        assert_eq!(width_and_speed(1000), (1, 1));
        assert_eq!(width_and_speed(10_000), (1, 8));
        assert_eq!(width_and_speed(100_000), (2, 32));
        assert_eq!(width_and_speed(1_000_000), (2, 256));
        for (mbit, told) in [(10_000, 100), (25_000, 250), (50_000, 500), (400_000, 4000)] {
            let (width, speed) = width_and_speed(mbit);
            assert_eq!(lanes(width) * lane_speed(speed).0, told);
        }
        assert_eq!(lane_speed(1), (25, "SDR"));
    }
}
