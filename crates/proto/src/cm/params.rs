//! What the commands of an [`Endpoint`](super::endpoint::Endpoint) take.

use core::net::IpAddr;

use softverbs_wire::ib::cm::{RejReason, Req, SidrStatus};
use softverbs_wire::ib::rdma_cm::{CmaHeader, ServicePort};
use softverbs_wire::num::{
    CommId, FlowLabel, Gid, Guid, PathMtu, Pkey, Psn, Qkey, Qpn, RetryCount, ServiceId, TimeoutCode,
};

use crate::qp_state::QpType;

/// Both ends of what carries management datagrams, from our side's view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathAddress {
    /// Our address: destination of what arrived, source of what is sent.
    pub local: Gid,
    /// The peer's.
    pub remote: Gid,
}

impl PathAddress {
    /// From two IP addresses.
    pub fn from_ips(local: IpAddr, remote: IpAddr) -> Self {
        Self {
            local: local.into(),
            remote: remote.into(),
        }
    }

    /// The same path from the other side's view.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
        }
    }
}

/// A peer's adapter. The address is in it so that nobody can pretend to be the adapter of somebody
/// else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adapter {
    /// Where it is.
    pub address: Gid,
    /// What it says that it is.
    pub guid: Guid,
}

/// Our name for a connection, or for one resolution of a service ID. It is not used again before
/// all others have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(super) u32);

impl ConnectionId {
    /// The communication ID (or request ID) by which the peer calls it.
    pub const fn comm_id(self) -> CommId {
        CommId::new(self.0)
    }
}

impl core::fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.comm_id().fmt(f)
    }
}

/// The caller's name for a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenToken(pub u64);

/// What a listener listens for. Both kinds of requests come to it: REQ and SIDR_REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listen {
    /// The service.
    pub service_id: ServiceId,
    /// Which bits of the service ID count; all of them for one service.
    pub mask: u64,
    /// The address that the requester must have named in the RDMA CM's header; `None` for any. A
    /// listener with an address takes precedence over one without.
    pub address: Option<IpAddr>,
}

impl Listen {
    /// One service, on any address.
    pub const fn service(service_id: ServiceId) -> Self {
        Self {
            service_id,
            mask: u64::MAX,
            address: None,
        }
    }

    /// One port of the RDMA CM, on one address or any.
    pub const fn port(port: ServicePort, address: Option<IpAddr>) -> Self {
        Self {
            service_id: port.service_id(),
            mask: u64::MAX,
            address,
        }
    }
}

/// The addresses that the RDMA CM puts in front of the private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmaAddresses {
    /// Ours.
    pub source: IpAddr,
    /// Our port.
    pub source_port: u16,
    /// The address that we want to reach; of the same family.
    pub destination: IpAddr,
}

/// How packets get to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where management datagrams go, and what the GIDs of the path are.
    pub address: PathAddress,
    /// Flow label of the connection's packets.
    pub flow_label: FlowLabel,
    /// Traffic class of the connection's packets.
    pub traffic_class: u8,
    /// Hop limit of the connection's packets.
    pub hop_limit: u8,
    /// Service level; four bits.
    pub sl: u8,
    /// The partition.
    pub pkey: Pkey,
    /// How long a packet lives on the path: 4.096 µs × 2^code.
    pub packet_lifetime: TimeoutCode,
}

impl Route {
    /// The packet lifetime that Linux assumes for RoCE (`CMA_IBOE_PACKET_LIFETIME`).
    pub const PACKET_LIFETIME: TimeoutCode = TimeoutCode::new(16);

    /// A route between two addresses with Linux' values for everything else.
    pub const fn new(address: PathAddress) -> Self {
        Self {
            address,
            flow_label: FlowLabel::new(0),
            traffic_class: 0,
            hop_limit: 64,
            sl: 0,
            pkey: Pkey::DEFAULT,
            packet_lifetime: Self::PACKET_LIFETIME,
        }
    }
}

/// What the active side wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The service to connect to.
    pub service_id: ServiceId,
    /// Addresses for the RDMA CM's header; without them there is no header (`AF_IB`).
    pub addresses: Option<CmaAddresses>,
    /// The way to the peer.
    pub route: Route,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Our queue pair.
    pub qpn: Qpn,
    /// RC or UC.
    pub qp_type: QpType,
    /// PSN of the first packet that the peer sends us.
    pub starting_psn: Psn,
    /// Reads and atomics that we serve at a time.
    pub responder_resources: u8,
    /// Reads and atomics that we want to have outstanding.
    pub initiator_depth: u8,
    /// How often either queue pair retransmits.
    pub retry_count: RetryCount,
    /// How often the peer's queue pair tries again when ours has no receive.
    pub rnr_retry_count: RetryCount,
    /// Whether our queue pair sends and expects credits.
    pub flow_control: bool,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// The application's data: at most [`max_private_data`](Self::max_private_data) octets.
    pub private_data: Vec<u8>,
}

impl ConnectRequest {
    /// How much private data fits, in octets: 56 with the RDMA CM's header, 92 without.
    pub const fn max_private_data(&self) -> usize {
        match self.addresses {
            Some(_) => CmaHeader::REQ_PRIVATE_DATA_LEN,
            None => Req::PRIVATE_DATA_LEN,
        }
    }
}

/// With what the passive side accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptParams {
    /// Our queue pair.
    pub qpn: Qpn,
    /// PSN of the first packet that the peer sends us.
    pub starting_psn: Psn,
    /// Reads and atomics that we serve at a time; at most what the request event says.
    pub responder_resources: u8,
    /// Reads and atomics that we will have outstanding; at most what the request event says.
    pub initiator_depth: u8,
    /// How often the peer's queue pair tries again when ours has no receive.
    pub rnr_retry_count: RetryCount,
    /// Whether our queue pair sends and expects credits.
    pub flow_control: bool,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// The application's data: at most 196 octets ([`Rep::PRIVATE_DATA_LEN`]).
    ///
    /// [`Rep::PRIVATE_DATA_LEN`]: softverbs_wire::ib::cm::Rep::PRIVATE_DATA_LEN
    pub private_data: Vec<u8>,
}

/// Why a connection is rejected, and with what data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectParams {
    /// Why.
    pub reason: RejReason,
    /// ARI, what the reason needs to be understood: at most 72 octets.
    pub info: Vec<u8>,
    /// The application's data: at most 148 octets.
    pub private_data: Vec<u8>,
}

impl RejectParams {
    /// The application says no (reason 28).
    pub const fn consumer(private_data: Vec<u8>) -> Self {
        Self {
            reason: RejReason::CONSUMER,
            info: Vec::new(),
            private_data,
        }
    }

    /// Another reason, without data.
    pub const fn reason(reason: RejReason) -> Self {
        Self {
            reason,
            info: Vec::new(),
            private_data: Vec::new(),
        }
    }
}

/// Which queue pair of a peer serves a service ID?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveRequest {
    /// The service.
    pub service_id: ServiceId,
    /// Addresses for the RDMA CM's header; without them there is no header.
    pub addresses: Option<CmaAddresses>,
    /// The way to the peer.
    pub route: Route,
    /// The application's data: at most 180 octets with the RDMA CM's header, 216 without.
    pub private_data: Vec<u8>,
}

/// The answer to a [`ResolveRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrReplyParams {
    /// Whether the rest means something.
    pub status: SidrStatus,
    /// The queue pair to send to.
    pub qpn: Qpn,
    /// The key that it wants to see.
    pub qkey: Qkey,
    /// The application's data: at most 136 octets.
    pub private_data: Vec<u8>,
}

impl SidrReplyParams {
    /// The queue pair `qpn` serves it, and wants `qkey`.
    pub const fn valid(qpn: Qpn, qkey: Qkey, private_data: Vec<u8>) -> Self {
        Self {
            status: SidrStatus::VALID,
            qpn,
            qkey,
            private_data,
        }
    }

    /// There is none.
    pub const fn refused(status: SidrStatus, private_data: Vec<u8>) -> Self {
        Self {
            status,
            qpn: Qpn::new(0),
            qkey: Qkey::new(0),
            private_data,
        }
    }
}
