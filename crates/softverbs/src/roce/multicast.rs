//! Multicast groups of datagram queue pairs.

use std::net::{IpAddr, SocketAddr};

use softverbs_proto::qp_state::QpType;
use softverbs_wire::num::{Gid, Qkey, Qpn};

use super::address::AhAttr;
use crate::cm::{CmId, PortSpace, UdParam};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::qp::{Qp, QpInner};

impl Qp {
    /// Datagrams to a multicast group come to this queue pair too (`ibv_attach_mcast`). The group
    /// is an IP address as a GID. EINVAL for what is no group and for other types than UD.
    pub fn attach_mcast(&self, group: Gid) -> Result<()> {
        self.inner().attach_mcast(group.to_ip())
    }

    /// Ends [`attach_mcast`](Self::attach_mcast). EINVAL if the queue pair was not attached.
    pub fn detach_mcast(&self, group: Gid) -> Result<()> {
        self.inner().detach_mcast(group.to_ip())
    }
}

impl QpInner {
    fn attach_mcast(&self, group: IpAddr) -> Result<()> {
        if self.qp_type != QpType::Ud {
            return Err(Error::invalid("qp_type", "groups are for UD"));
        }
        if !group.is_multicast() {
            return Err(Error::invalid("gid", "is no multicast group"));
        }
        let interface = self.pd.context().device().interface_index();
        let mut core = self.lock();
        let Some(roce) = core.roce() else {
            return Err(Error::not_supported("qp", "iWARP has no datagrams"));
        };
        if !roce.queue_pair.is_attached(group.into()) {
            roce.port.join(group, interface, self.qp_num)?;
            roce.queue_pair.attach_mcast(group.into())?;
            roce.groups.push((group, interface));
        }
        Ok(())
    }

    fn detach_mcast(&self, group: IpAddr) -> Result<()> {
        let mut core = self.lock();
        let Some(roce) = core.roce() else {
            return Err(Error::not_supported("qp", "iWARP has no datagrams"));
        };
        if !roce.queue_pair.detach_mcast(group.into()) {
            return Err(Error::invalid(
                "gid",
                "the queue pair is not attached to it",
            ));
        }
        let left = roce.groups.extract_if(.., |(joined, _)| *joined == group);
        for (group, interface) in left.collect::<Vec<_>>() {
            roce.port.leave(group, interface, self.qp_num);
        }
        Ok(())
    }
}

impl CmId {
    /// Joins a multicast group with the queue pair of this datagram identifier. Ends with
    /// [`MulticastJoin`](crate::cm::EventKind::MulticastJoin), which says where to send to the
    /// group. EINVAL without a queue pair of type UD.
    pub fn join_multicast(&self, group: SocketAddr) -> Result<()> {
        let Some(qp) = self.qp() else {
            return Err(Error::invalid("id", "has no queue pair"));
        };
        qp.inner().attach_mcast(group.ip().to_canonical())?;
        self.join_to_send(group)
    }

    /// The same to send only: nothing of the group comes to the queue pair, and there need be none.
    pub fn join_to_send(&self, group: SocketAddr) -> Result<()> {
        let Some(verbs) = self.verbs() else {
            return Err(Error::invalid("id", "has no device yet: resolve or bind"));
        };
        if self.port_space() != PortSpace::Udp {
            return Err(Error::invalid("id", "groups are for datagrams"));
        }
        let group = group.ip().to_canonical();
        if !group.is_multicast() {
            return Err(Error::invalid("addr", "is no multicast group"));
        }
        let ud = UdParam {
            ah_attr: AhAttr::new(group.into(), own_index(verbs.device(), self, group)),
            qp_num: Qpn::MULTICAST,
            qkey: Qkey::RDMA_UDP.get(),
        };
        self.report_join(ud);
        Ok(())
    }

    /// Leaves a group. EINVAL if it was not joined.
    pub fn leave_multicast(&self, group: SocketAddr) -> Result<()> {
        let Some(qp) = self.qp() else {
            return Err(Error::invalid("id", "has no queue pair"));
        };
        qp.inner().detach_mcast(group.ip().to_canonical())
    }
}

/// The own address to send from, of the group's family.
fn own_index(device: &Device, id: &CmId, group: IpAddr) -> u8 {
    let bound = id.local_addr().map(|local| local.ip());
    let addresses = device.addresses();
    let index = addresses
        .iter()
        .position(|address| Some(*address) == bound && address.is_ipv4() == group.is_ipv4())
        .or_else(|| {
            let same = |address: &IpAddr| address.is_ipv4() == group.is_ipv4();
            addresses.iter().position(same)
        });
    index
        .and_then(|index| u8::try_from(index).ok())
        .unwrap_or(0)
}
