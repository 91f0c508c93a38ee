//! One connection, or one resolution of a service ID.

use core::time::Duration;

use softverbs_wire::ib::cm::{Rep, Req};
use softverbs_wire::ib::mad::MAD_LEN;
use softverbs_wire::num::{
    CommId, Guid, PathMtu, Psn, Qpn, RetryCount, RnrTimer, ServiceId, TimeoutCode, TransactionId,
};

use super::event::{QpPath, RtrAttributes, RtsAttributes};
use super::params::{AcceptParams, ConnectRequest, PathAddress};
use super::state::State;
use super::timeout;
use crate::qp_state::QpType;
use crate::time::Time;

/// What the two sides of a connection, and those of a resolution, keep for later.
#[derive(Clone, Debug, Hash)]
pub(super) enum Role {
    /// We sent the REQ.
    Active(Box<Active>),
    /// The peer did.
    Passive(Box<Passive>),
    /// We sent the SIDR_REQ.
    Asking,
    /// The peer did, for this service.
    Asked(ServiceId),
}

/// What the active side's queue pair needs, besides what the REP says.
#[derive(Clone, Debug, Hash)]
pub(super) struct Active {
    pub(super) qp_type: QpType,
    pub(super) path_mtu: PathMtu,
    pub(super) starting_psn: Psn,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    pub(super) retry_count: RetryCount,
    pub(super) packet_lifetime: TimeoutCode,
    pub(super) path: QpPath,
}

impl Active {
    pub(super) fn new(request: &ConnectRequest) -> Self {
        let route = &request.route;
        Self {
            qp_type: request.qp_type,
            path_mtu: request.path_mtu,
            starting_psn: request.starting_psn,
            initiator_depth: request.initiator_depth,
            responder_resources: request.responder_resources,
            retry_count: request.retry_count,
            packet_lifetime: route.packet_lifetime,
            path: QpPath {
                local_gid: route.address.local,
                remote_gid: route.address.remote,
                flow_label: route.flow_label,
                traffic_class: route.traffic_class,
                hop_limit: route.hop_limit,
                sl: route.sl,
                pkey: route.pkey,
            },
        }
    }

    /// The queue pair that a REP names.
    pub(super) fn peer_of(&self, rep: &Rep) -> Qpn {
        match self.qp_type {
            QpType::XrcSend => Qpn::new(rep.local_eecn.get()),
            _ => rep.local_qpn,
        }
    }

    /// The queue pair's attributes. What the REP serves and reads is bounded by what we asked
    /// for: the rest would be of no use, or more than the queue pair was made for.
    pub(super) fn attributes(&self, rep: &Rep) -> (RtrAttributes, RtsAttributes) {
        let rtr = RtrAttributes {
            qp_type: self.qp_type,
            dest_qpn: self.peer_of(rep),
            rq_psn: self.starting_psn,
            path_mtu: self.path_mtu,
            max_dest_rd_atomic: rep.initiator_depth.min(self.responder_resources),
            min_rnr_timer: RnrTimer::new(0),
            path: self.path,
        };
        let rts = RtsAttributes {
            sq_psn: rep.starting_psn,
            timeout: timeout::ack_timeout(rep.target_ack_delay, self.packet_lifetime),
            retry_count: self.retry_count,
            // The one value that the two sides exchange crosswise: how patient we have to be with
            // the peer's receives is the peer's to say.
            rnr_retry_count: rep.rnr_retry_count,
            max_rd_atomic: rep.responder_resources.min(self.initiator_depth),
        };
        (rtr, rts)
    }
}

/// What the passive side keeps of the REQ.
#[derive(Clone, Debug, Hash)]
pub(super) struct Passive {
    pub(super) service_id: ServiceId,
    pub(super) qp_type: QpType,
    pub(super) path_mtu: PathMtu,
    pub(super) starting_psn: Psn,
    pub(super) retry_count: RetryCount,
    pub(super) rnr_retry_count: RetryCount,
    pub(super) ack_timeout: TimeoutCode,
    pub(super) wants_alternate: bool,
    pub(super) path: QpPath,
}

impl Passive {
    pub(super) fn new(req: &Req, qp_type: QpType, path_mtu: PathMtu) -> Self {
        let path = &req.primary_path;
        Self {
            service_id: req.service_id,
            qp_type,
            path_mtu,
            starting_psn: req.starting_psn,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            ack_timeout: path.local_ack_timeout,
            wants_alternate: req.has_alternate_path(),
            path: QpPath {
                local_gid: path.remote_gid,
                remote_gid: path.local_gid,
                flow_label: path.flow_label,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                sl: path.sl,
                pkey: req.pkey,
            },
        }
    }

    pub(super) fn attributes(
        &self,
        remote_qpn: Qpn,
        accept: &AcceptParams,
    ) -> (RtrAttributes, RtsAttributes) {
        let rtr = RtrAttributes {
            qp_type: self.qp_type,
            dest_qpn: remote_qpn,
            rq_psn: accept.starting_psn,
            path_mtu: self.path_mtu,
            max_dest_rd_atomic: accept.responder_resources,
            min_rnr_timer: RnrTimer::new(0),
            path: self.path,
        };
        let rts = RtsAttributes {
            sq_psn: self.starting_psn,
            timeout: self.ack_timeout,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            max_rd_atomic: accept.initiator_depth,
        };
        (rtr, rts)
    }
}

impl Role {
    /// The queue pair that a REP names.
    pub(super) fn peer_of(&self, rep: &Rep) -> Qpn {
        match self {
            Self::Active(active) => active.peer_of(rep),
            Self::Passive(_) | Self::Asking | Self::Asked(_) => rep.local_qpn,
        }
    }
}

/// A connection. Its state changes in the registry only, which files it by state.
#[derive(Clone, Debug, Hash)]
pub(super) struct Connection {
    pub(super) state: State,
    pub(super) role: Role,
    pub(super) address: PathAddress,
    /// Of the REQ or SIDR_REQ; what belongs to the establishment repeats it.
    pub(super) transaction_id: TransactionId,
    /// [`CommId::NONE`] until the peer has told it.
    pub(super) remote_comm_id: CommId,
    pub(super) remote_ca_guid: Guid,
    pub(super) remote_qpn: Qpn,
    pub(super) local_qpn: Qpn,
    /// How long the connection stays in TimeWait.
    pub(super) timewait: Duration,
    /// How long the peer may take to answer.
    pub(super) response_time: Duration,
    /// The same at present, an MRA included.
    pub(super) interval: Duration,
    pub(super) max_retries: u8,
    pub(super) retries_left: u8,
    pub(super) stale_retries_left: u8,
    /// The last message: to be sent again when nobody answers it, or when the peer's own message
    /// comes again.
    pub(super) saved: Option<Box<[u8; MAD_LEN]>>,
    pub(super) deadline: Option<Time>,
    /// The application has no name for it any more.
    pub(super) orphaned: bool,
}

impl Connection {
    pub(super) fn new(
        state: State,
        role: Role,
        address: PathAddress,
        transaction_id: TransactionId,
    ) -> Self {
        Self {
            state,
            role,
            address,
            transaction_id,
            remote_comm_id: CommId::NONE,
            remote_ca_guid: Guid::default(),
            remote_qpn: Qpn::default(),
            local_qpn: Qpn::default(),
            timewait: Duration::ZERO,
            response_time: Duration::ZERO,
            interval: Duration::ZERO,
            max_retries: 0,
            retries_left: 0,
            stale_retries_left: 0,
            saved: None,
            deadline: None,
            orphaned: false,
        }
    }

    /// Whether the peer's REQ is the one that made this connection, and not one of a newer
    /// process that happens to use the same communication ID.
    pub(super) fn is_from(&self, req: &Req) -> bool {
        matches!(&self.role, Role::Passive(passive)
            if self.remote_qpn == req.local_qpn
                && passive.starting_psn == req.starting_psn
                && passive.service_id == req.service_id)
    }
}
