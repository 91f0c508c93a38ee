//! What comes out of an [`Endpoint`](super::endpoint::Endpoint).

use softverbs_wire::ib::cm::{Path, RejReason, SidrStatus};
use softverbs_wire::ib::mad::MAD_LEN;
use softverbs_wire::ib::rdma_cm::CmaHeader;
use softverbs_wire::num::{
    CommId, FlowLabel, Gid, Guid, PathMtu, Pkey, Psn, Qkey, Qpn, RetryCount, RnrTimer, ServiceId,
    TimeoutCode,
};

use super::params::{ListenToken, PathAddress};
use crate::qp_state::QpType;
use crate::send_gate::Opener;

/// A management datagram to send to the peer's QP1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transmit {
    /// From where to where.
    pub address: PathAddress,
    /// The datagram.
    pub octets: Box<[u8; MAD_LEN]>,
}

/// What happened on a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// A valid packet of the peer arrived (`IBV_EVENT_COMM_EST`).
    CommEst,
    /// The queue pair migrated to its alternate path (`IBV_EVENT_PATH_MIG`).
    PathMig,
}

/// How something ended that waited for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmStatus {
    /// With the peer's answer.
    Success,
    /// Without one.
    TimedOut,
}

impl CmStatus {
    /// The status of the RDMA CM's event: 0, or the negated `ETIMEDOUT` of Linux.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Success => 0,
            Self::TimedOut => -110,
        }
    }
}

/// What the owner of a connection has to know or do.
///
/// A connection ends with exactly one of [`Rejected`](Self::Rejected),
/// [`Unreachable`](Self::Unreachable) and [`Disconnected`](Self::Disconnected), unless its owner
/// ended it first by rejecting, dropping or destroying it; a resolution ends with
/// [`SidrReply`](Self::SidrReply) or [`Unreachable`](Self::Unreachable).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CmEvent {
    /// Passive side, first event of a new connection: somebody wants to connect. Accept it, reject
    /// it or drop it.
    Request(Box<Request>),
    /// Active side: the peer accepts. The queue pair's actions come before this event; confirm
    /// with `establish`, or reject.
    Reply(Box<Reply>),
    /// Both sides are connected. At most once.
    Established,
    /// The peer gave the connection up. It can come after [`Established`](Self::Established).
    Rejected(Box<Rejected>),
    /// The peer did not answer.
    Unreachable(CmStatus),
    /// The connection is over. With [`CmStatus::Success`] on the side that did not begin it:
    /// confirm with `disconnect`, `disconnect_reply` or `destroy`, for the peer waits.
    Disconnected(CmStatus),
    /// Packets of the connection can no longer be under way: its queue pair may be used again. The
    /// connection's name is forgotten.
    TimewaitExit,
    /// Somebody asks which queue pair serves a service; first event of its name. Answer it or drop
    /// it.
    SidrRequest(Box<SidrRequest>),
    /// The answer to our own such question. The name is forgotten.
    SidrReply(Box<SidrReply>),
    /// Do this to the connection's queue pair, before what comes after it.
    Qp(QpAction),
}

impl CmEvent {
    /// Whether it is the one that ends a connection or resolution.
    pub const fn is_terminal(&self) -> bool {
        matches!(
            self,
            Self::Rejected(_) | Self::Unreachable(_) | Self::Disconnected(_) | Self::SidrReply(_)
        )
    }
}

/// What has to be done to the queue pair of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpAction {
    /// INIT to RTR.
    ToRtr(RtrAttributes),
    /// RTR to RTS, the send gate as it is.
    ToRts(RtsAttributes),
    /// Open the send gate.
    OpenGate(Opener),
    /// To ERR, from whatever state: flush both queues. An application that rejects or destroys a
    /// connection does so itself.
    ToErr,
}

/// Attributes of the transition from INIT to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RtrAttributes {
    /// RC or UC.
    pub qp_type: QpType,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// PSN of the first packet that we receive.
    pub rq_psn: Psn,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Reads and atomics that the peer may have outstanding. More than none also means that peers
    /// may read and do atomics; they may always write.
    pub max_dest_rd_atomic: u8,
    /// How long a peer waits when we have no receive.
    pub min_rnr_timer: RnrTimer,
    /// Address vector.
    pub path: QpPath,
}

/// Where packets of a queue pair go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpPath {
    /// Our GID.
    pub local_gid: Gid,
    /// The peer's GID.
    pub remote_gid: Gid,
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// The partition.
    pub pkey: Pkey,
}

/// Attributes of the transition from RTR to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RtsAttributes {
    /// PSN of the first packet that we send.
    pub sq_psn: Psn,
    /// Local ACK timeout: 4.096 µs × 2^code.
    pub timeout: TimeoutCode,
    /// How often to retransmit.
    pub retry_count: RetryCount,
    /// How often to try again when the peer has no receive.
    pub rnr_retry_count: RetryCount,
    /// Reads and atomics that we may have outstanding.
    pub max_rd_atomic: u8,
}

/// A request for a connection. Depths are already from our side's view, as in the RDMA CM's
/// `CONNECT_REQUEST`: what the peer serves is what we may have outstanding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Who listens for it.
    pub listener: ListenToken,
    /// For which service.
    pub service_id: ServiceId,
    /// From where to where the request came.
    pub address: PathAddress,
    /// The RDMA CM's header: addresses and port. `None` for services that are not ports.
    pub cma: Option<CmaHeader>,
    /// The whole field of the application's data, in octets: 56 behind an RDMA CM header, 92
    /// without one. It does not tell how much of it was meant.
    pub private_data: Vec<u8>,
    /// RC or UC.
    pub qp_type: QpType,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The peer's name for the connection.
    pub remote_comm_id: CommId,
    /// The peer's adapter.
    pub remote_ca_guid: Guid,
    /// PSN of the first packet that we send.
    pub starting_psn: Psn,
    /// Reads and atomics that the peer will have outstanding.
    pub responder_resources: u8,
    /// Reads and atomics that the peer serves.
    pub initiator_depth: u8,
    /// Whether the peer sends and expects credits.
    pub flow_control: bool,
    /// How often our queue pair is to retransmit.
    pub retry_count: RetryCount,
    /// How often our queue pair is to try again when the peer's has no receive.
    pub rnr_retry_count: RetryCount,
    /// Whether the peer has a shared receive queue.
    pub srq: bool,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// The partition.
    pub pkey: Pkey,
    /// The path, in the peer's view.
    pub primary_path: Path,
    /// How soon the peer expects our answer: 4.096 µs × 2^code.
    pub remote_cm_response_timeout: TimeoutCode,
    /// How soon the peer answers: 4.096 µs × 2^code.
    pub local_cm_response_timeout: TimeoutCode,
    /// How often we are to repeat a message.
    pub max_cm_retries: u8,
}

/// The acceptance of a request of ours. Depths are from our side's view, as in [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reply {
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The peer's name for the connection.
    pub remote_comm_id: CommId,
    /// The peer's adapter.
    pub remote_ca_guid: Guid,
    /// PSN of the first packet that we send.
    pub starting_psn: Psn,
    /// Reads and atomics that the peer will have outstanding.
    pub responder_resources: u8,
    /// Reads and atomics that the peer serves.
    pub initiator_depth: u8,
    /// Whether the peer sends and expects credits.
    pub flow_control: bool,
    /// How often our queue pair is to try again when the peer's has no receive.
    pub rnr_retry_count: RetryCount,
    /// Whether the peer has a shared receive queue.
    pub srq: bool,
    /// How long the peer's adapter takes to acknowledge: 4.096 µs × 2^code.
    pub target_ack_delay: TimeoutCode,
    /// The whole field of the application's data: 196 octets.
    pub private_data: Vec<u8>,
}

/// Why the peer gave a connection up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rejected {
    /// Why.
    pub reason: RejReason,
    /// ARI, as far as the peer says that it means something; at most 72 octets.
    pub info: Vec<u8>,
    /// The whole field of the application's data: 148 octets.
    pub private_data: Vec<u8>,
}

/// A question for the queue pair that serves a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SidrRequest {
    /// Who listens for it.
    pub listener: ListenToken,
    /// Which service.
    pub service_id: ServiceId,
    /// From where to where the request came.
    pub address: PathAddress,
    /// The RDMA CM's header; `None` for services that are not ports.
    pub cma: Option<CmaHeader>,
    /// The whole field of the application's data, in octets: 180 behind an RDMA CM header, 216
    /// without one.
    pub private_data: Vec<u8>,
    /// The partition.
    pub pkey: Pkey,
}

/// The answer to a question of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SidrReply {
    /// Whether the rest means something. Only [`SidrStatus::VALID`] is a success; the RDMA CM
    /// reports others as an unreachable peer with this status.
    pub status: SidrStatus,
    /// The queue pair to send to.
    pub qpn: Qpn,
    /// The key that it wants to see.
    pub qkey: Qkey,
    /// What it serves.
    pub service_id: ServiceId,
    /// What the status needs to be understood; at most 72 octets.
    pub info: Vec<u8>,
    /// The whole field of the application's data: 136 octets.
    pub private_data: Vec<u8>,
}
