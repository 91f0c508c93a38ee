//! Address vectors and address handles: the ways to peers.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use softverbs_wire::codec::Reader;
use softverbs_wire::ib::{Grh, GrhArea, Ipv4Header};
use softverbs_wire::num::{Gid, Qpn};

use super::port::{PacketMeta, ReceivedFrom, SendPath};
use crate::context::{Context, Pd};
use crate::device::{Device, Transport, is_link_local};
use crate::error::{Error, Result};
use crate::wr::Wc;

/// The network's part of an address vector (`struct ibv_global_route`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's address, or a multicast group.
    pub dgid: Gid,
    /// Flow label: 20 bits.
    pub flow_label: u32,
    /// Index of the own address in the GID table of the port.
    pub sgid_index: u8,
    /// Hop limit or time to live; 0 is the default, 64.
    pub hop_limit: u8,
    /// Traffic class or type of service.
    pub traffic_class: u8,
}

/// An address vector (`struct ibv_ah_attr`). RoCE is routed: `is_global` must be set, and what
/// only means something in an InfiniBand subnet is kept and returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// Where to.
    pub grh: GlobalRoute,
    /// Local identifier of the peer: none here.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Source path bits: none here.
    pub src_path_bits: u8,
    /// Limit of the rate: none here.
    pub static_rate: u8,
    /// Whether `grh` counts: it must.
    pub is_global: bool,
    /// Port: 1.
    pub port_num: u8,
}

impl AhAttr {
    /// The way to `dgid` from entry `sgid_index` of the GID table.
    pub fn new(dgid: Gid, sgid_index: u8) -> Self {
        Self {
            grh: GlobalRoute {
                dgid,
                sgid_index,
                hop_limit: 64,
                ..GlobalRoute::default()
            },
            is_global: true,
            port_num: 1,
            ..Self::default()
        }
    }
}

/// The way that packets take, of a checked address vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    interface: u32,
    traffic_class: u8,
    hop_limit: u8,
}

impl Way {
    /// Checks an address vector.
    pub(crate) fn of(device: &Device, attr: &AhAttr) -> Result<Self> {
        if !attr.is_global {
            return Err(Error::invalid("ah_attr", "RoCE needs is_global and grh"));
        }
        if attr.port_num != 1 {
            return Err(Error::invalid("port_num", "the device has one port: 1"));
        }
        let local = device.gid(1, attr.grh.sgid_index.into())?.to_ip();
        let remote = attr.grh.dgid.to_ip();
        if remote.is_unspecified() {
            return Err(Error::invalid("dgid", "is no address"));
        }
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(Error::invalid(
                "sgid_index",
                "not of the same address family as dgid",
            ));
        }
        Ok(Self::new(device, local, remote, &attr.grh))
    }

    pub(crate) fn new(device: &Device, local: IpAddr, remote: IpAddr, grh: &GlobalRoute) -> Self {
        let on_link = is_link_local(local) || is_link_local(remote) || remote.is_multicast();
        Self {
            local,
            remote,
            interface: if on_link { device.interface_index() } else { 0 },
            traffic_class: grh.traffic_class,
            hop_limit: grh.hop_limit,
        }
    }

    /// The way to a queue pair there.
    pub(crate) const fn to(&self, qpn: Qpn) -> SendPath {
        let mut path = SendPath::new(self.local, self.remote, qpn);
        path.interface = self.interface;
        path.traffic_class = self.traffic_class;
        path.hop_limit = self.hop_limit;
        path
    }
}

/// A destination of datagrams (`struct ibv_ah`). Cloning makes another handle of the same;
/// requests that were posted with it outlive it.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    id: u64,
    pd: u32,
    attr: AhAttr,
    way: Way,
}

impl AddressHandle {
    pub(crate) fn way(&self) -> &Way {
        &self.inner.way
    }

    /// A number that no other handle of this process has; 40 bits.
    pub(crate) fn id(&self) -> u64 {
        self.inner.id
    }

    pub(crate) fn pd_id(&self) -> u32 {
        self.inner.pd
    }

    /// What it was made from.
    pub fn attr(&self) -> AhAttr {
        self.inner.attr
    }
}

impl Context {
    /// The address vector that leads back to who sent a datagram (`ibv_init_ah_from_wc`). `area`:
    /// the 40 octets that its receive buffer starts with. EINVAL unless the completion says that
    /// they are there, and if they are no network header.
    pub fn init_ah_from_wc(&self, wc: &Wc, area: &[u8; GrhArea::LEN]) -> Result<AhAttr> {
        if !wc.grh {
            return Err(Error::invalid("wc", "without a network header"));
        }
        let area = GrhArea::parse(&mut Reader::new(area))
            .map_err(|_| Error::invalid("grh", "is no network header"))?;
        let (from, to) = area.gids();
        let addresses = self.device().addresses();
        // To a group it may have come to any address of the family.
        let local = addresses
            .iter()
            .position(|own| Gid::from(*own) == to)
            .or_else(|| {
                let v4 = from.to_ip().is_ipv4();
                addresses.iter().position(|own| own.is_ipv4() == v4)
            })
            .and_then(|index| u8::try_from(index).ok())
            .ok_or_else(|| Error::invalid("grh", "not to an address of this device"))?;
        let mut attr = AhAttr::new(from, local);
        match area {
            GrhArea::V4(header) => {
                attr.grh.traffic_class = header.tos;
                attr.grh.hop_limit = header.ttl;
            }
            GrhArea::V6(header) => {
                attr.grh.traffic_class = header.traffic_class;
                attr.grh.flow_label = header.flow_label.get();
                attr.grh.hop_limit = header.hop_limit;
            }
        }
        Ok(attr)
    }
}

impl Pd {
    /// A destination for answers to a datagram (`ibv_create_ah_from_wc`): see
    /// [`Context::init_ah_from_wc`].
    pub fn create_ah_from_wc(&self, wc: &Wc, area: &[u8; GrhArea::LEN]) -> Result<AddressHandle> {
        self.create_ah(&self.context().init_ah_from_wc(wc, area)?)
    }

    /// A destination of datagrams (RoCE): for requests to UD queue pairs. EINVAL for an address
    /// vector that leads nowhere.
    pub fn create_ah(&self, attr: &AhAttr) -> Result<AddressHandle> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let device = self.context().device();
        if device.transport() != Transport::Roce {
            return Err(Error::not_supported("ah", "iWARP has no datagrams"));
        }
        Ok(AddressHandle {
            inner: Arc::new(Inner {
                id: NEXT.fetch_add(1, Ordering::Relaxed) & ((1 << 40) - 1),
                pd: self.id(),
                attr: *attr,
                way: Way::of(device, attr)?,
            }),
        })
    }
}

/// The network header as a datagram's receive buffer shows it. What the port does not know has
/// its usual value.
pub(super) fn grh_area(meta: &PacketMeta, from: &ReceivedFrom) -> [u8; GrhArea::LEN] {
    const UDP: usize = 8;
    let len = u16::try_from(meta.len + UDP).unwrap_or(u16::MAX);
    let area = match (from.remote, from.local) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = len.saturating_add(20);
            let mut header = Ipv4Header::new(source, destination, total, 64);
            header.tos = meta.traffic_class;
            GrhArea::V4(header)
        }
        (source, destination) => {
            let mut header = Grh::new(source.into(), destination.into(), len, 64);
            header.traffic_class = meta.traffic_class;
            GrhArea::V6(header)
        }
    };
    area.to_bytes()
}
