//! What goes into a queue pair and what comes out of it, but for packets and attributes.

use core::hash::{Hash, Hasher};

use softverbs_wire::ib::GrhArea;
use softverbs_wire::num::{PathMtu, Qkey, Qpn};

use crate::mutation::Mutations;
use crate::qp_state::QpType;
use crate::wr::{Completion, WcStatus};

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug, Hash)]
pub struct QpConfig {
    /// The transport service.
    pub qp_type: QpType,
    /// Our queue pair number.
    pub qpn: Qpn,
    /// Most requests in the send queue.
    pub max_send_wr: u32,
    /// Every send request is signaled.
    pub sq_sig_all: bool,
    /// Payloads of up to this many octets are copied into the scratch buffer instead of gathered.
    pub copy_limit: u32,
    /// Largest payload of a datagram (UD): the port's MTU.
    pub port_mtu: PathMtu,
    /// Most packets in flight (RC), READ responses included; at least 1.
    pub max_window: u32,
    /// Most packets of one frame, a [`train`](super::train) if there are several; 1 to
    /// [`train::MOST`](super::train::MOST).
    pub max_train: u32,
    /// Defects on demand; none in a release.
    pub mutations: Mutations,
}

impl QpConfig {
    /// What most owners want.
    pub const fn new(qp_type: QpType, qpn: Qpn, max_send_wr: u32) -> Self {
        Self {
            qp_type,
            qpn,
            max_send_wr,
            sq_sig_all: false,
            copy_limit: 256,
            port_mtu: PathMtu::Mtu4096,
            max_window: 256,
            max_train: 1,
            mutations: Mutations::NONE,
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UdDestination {
    /// The owner's number for the address handle; comes back as [`Destination::Address`](super::batch::Destination::Address).
    pub address: u64,
    /// The queue pair there, [`Qpn::MULTICAST`] for a group.
    pub remote_qpn: Qpn,
    /// The key that lets the datagram in. With the highest bit set, our own key goes instead (IBA vol
    /// 1 ch 10, Q_Key).
    pub remote_qkey: Qkey,
}

/// What the network said about a packet.
#[derive(Clone, Copy, Debug)]
pub struct PacketMeta {
    /// How many packets it is: more than one if it is a [`train`](super::train).
    pub packets: u32,
    /// The IP header is marked "congestion experienced".
    pub ecn_ce: bool,
    /// The 40 octets that a datagram's receive buffer starts with (UD); see
    /// [`GrhArea`].
    pub grh: Option<[u8; GrhArea::LEN]>,
}

impl Default for PacketMeta {
    fn default() -> Self {
        Self {
            packets: 1,
            ecn_ce: false,
            grh: None,
        }
    }
}

/// What the octets before a datagram are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetworkHeader {
    /// Twenty octets without meaning, and the header of IPv4.
    Ipv4,
    /// The header of IPv6.
    Ipv6,
}

impl NetworkHeader {
    pub(super) fn of(area: &[u8; GrhArea::LEN]) -> Self {
        if GrhArea::is_v4(area) {
            Self::Ipv4
        } else {
            Self::Ipv6
        }
    }
}

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdSource {
    /// Its queue pair.
    pub qpn: Qpn,
    /// The first 40 octets of the receive hold the network header, of this protocol.
    pub grh: Option<NetworkHeader>,
}

/// The end of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecvCompletion {
    /// As of any work request. The length of a datagram counts the 40 octets before it.
    pub completion: Completion,
    /// Who sent it (UD).
    pub source: Option<UdSource>,
    /// Whose receive it was (XRC).
    pub srq: Option<Qpn>,
}

/// Why a queue pair went to the error state by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpFailure {
    /// A send request failed with this status; its completion says so too.
    SendQueue(WcStatus),
    /// The peer touched memory that it may not touch (`IBV_EVENT_QP_ACCESS_ERR`).
    RemoteAccess,
    /// The peer asked for something that cannot be (`IBV_EVENT_QP_REQ_ERR`).
    InvalidRequest,
    /// A receive or a READ of the peer met memory of ours that is not there
    /// (`IBV_EVENT_QP_FATAL`).
    Local,
}

/// What the owner of the queue pair has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// Communication established (`IBV_EVENT_COMM_EST`): the first valid packet came while the
    /// queue pair was in RTR or its gate was held. At most once from RTR on.
    CommEst,
    /// Every request that had begun has completed (SQD, if asked for).
    SqDrained,
    /// The queue pair went to the error state, not because it was told to. Once. (A failed request
    /// of UC or UD leads to SQE, and to no event.)
    Fatal {
        /// Why.
        cause: QpFailure,
    },
    /// The queue pair will take no more receives: it is in the error state. Of interest with a
    /// shared receive queue only. Once, however the error state was reached.
    LastWqeReached,
}

/// What happened on a queue pair, for diagnosis. Counters wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Request packets sent again.
    pub retransmitted: u64,
    /// Acknowledge timeouts that used up a retry.
    pub timeouts: u64,
    /// Packets sent to find out what was lost, before the acknowledge timeout.
    pub probes: u64,
    /// Times that requests were sent again because an answer told of a loss.
    pub losses: u64,
    /// Requests of the peer that came twice.
    pub duplicates: u64,
    /// Requests of the peer that came too early.
    pub out_of_sequence: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// RNR NAKs that made us wait.
    pub rnr_naks_received: u64,
    /// Congestion notifications sent.
    pub cnps_sent: u64,
    /// Congestion notifications received.
    pub cnps_received: u64,
    /// Packets dropped without an answer.
    pub dropped: u64,
}

/// What was counted changes nothing that a queue pair does: queue pairs that differ in it only are
/// one state to whoever explores states.
impl Hash for QpCounters {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
