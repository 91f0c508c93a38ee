//! The messages that we send.

use softverbs_wire::ib::cm::{
    ApStatus, Apr, Drep, Dreq, Lap, Mad, Message, MessageKind, Mra, Path, PrivateData, Rej,
    RejReason, Rep, Req, Rtu, SidrRep, SidrReq, TransportService,
};
use softverbs_wire::ib::rdma_cm::CmaHeader;
use softverbs_wire::num::{
    CommId, Eecn, Guid, Lid, Qpn, RetryCount, ServiceId, TimeoutCode, TransactionId,
};

use super::config::Config;
use super::connection::{Connection, Role};
use super::params::{
    AcceptParams, CmaAddresses, ConnectRequest, RejectParams, ResolveRequest, Route,
    SidrReplyParams,
};
use super::state::State;
use super::timeout;
use crate::fault::Misuse;
use crate::qp_state::QpType;

/// REP, failover field: we do not support alternate paths (IBA vol 1 ch 12, REP).
const FAILOVER_NOT_SUPPORTED: u8 = 1;

/// REQ, extended transport field: XRC (IBA annex A14).
pub(super) const EXTENDED_XRC: u8 = 1;

/// A field with the application's data, if it has room.
pub(super) fn private<const N: usize>(octets: &[u8]) -> Result<PrivateData<N>, Misuse> {
    PrivateData::new(octets).ok_or(Misuse::PrivateDataTooLong)
}

/// The same behind the RDMA CM's header, if there are addresses to put into it.
fn with_header<const N: usize>(
    addresses: Option<&CmaAddresses>,
    octets: &[u8],
) -> Result<PrivateData<N>, Misuse> {
    let Some(addresses) = addresses else {
        return private(octets);
    };
    CmaHeader::new(
        addresses.source,
        addresses.source_port,
        addresses.destination,
    )
    .ok_or(Misuse::Invalid("addresses of two families"))?
    .join(octets)
    .ok_or(Misuse::PrivateDataTooLong)
}

/// The transaction of a message that starts one: unique as long as its connection is.
pub(super) const fn transaction(high: u32, id: u32) -> TransactionId {
    TransactionId::new((high as u64) << 32 | id as u64)
}

fn path(route: &Route, ack_delay: TimeoutCode) -> Path {
    Path {
        // There are no LIDs on RoCE, and the GRH is always there.
        local_lid: Lid::PERMISSIVE,
        remote_lid: Lid::PERMISSIVE,
        local_gid: route.address.local,
        remote_gid: route.address.remote,
        flow_label: route.flow_label,
        traffic_class: route.traffic_class,
        hop_limit: route.hop_limit,
        sl: route.sl,
        local_ack_timeout: timeout::ack_timeout(ack_delay, route.packet_lifetime),
        ..Path::default()
    }
}

pub(super) fn req(
    config: &Config,
    guid: Guid,
    id: u32,
    request: &ConnectRequest,
) -> Result<Req, Misuse> {
    let transport_service = match request.qp_type {
        QpType::Rc => TransportService::RC,
        QpType::Uc => TransportService::UC,
        QpType::Ud => return Err(Misuse::Invalid("datagrams are not connected")),
        QpType::XrcSend => TransportService::EXTENDED,
        QpType::XrcRecv => return Err(Misuse::Invalid("a receiving end does not connect")),
    };
    let is_xrc = request.qp_type == QpType::XrcSend;
    // A sending end serves nothing and receives nothing: the fields about that are reserved (IBA
    // annex A14).
    let unless_xrc = |count| if is_xrc { RetryCount::new(0) } else { count };
    Ok(Req {
        local_comm_id: CommId::new(id),
        service_id: request.service_id,
        local_ca_guid: guid,
        local_qpn: request.qpn,
        responder_resources: if is_xrc {
            0
        } else {
            request.responder_resources
        },
        initiator_depth: request.initiator_depth,
        extended_transport: if is_xrc { EXTENDED_XRC } else { 0 },
        remote_cm_response_timeout: config.response_timeout,
        transport_service,
        end_to_end_flow_control: request.flow_control,
        starting_psn: request.starting_psn,
        local_cm_response_timeout: config.response_timeout,
        retry_count: unless_xrc(request.retry_count),
        pkey: request.route.pkey,
        path_mtu: request.path_mtu.code(),
        rnr_retry_count: unless_xrc(request.rnr_retry_count),
        max_cm_retries: config.max_cm_retries.min(15),
        srq: request.srq && !is_xrc,
        primary_path: path(&request.route, config.ack_delay),
        private_data: with_header(request.addresses.as_ref(), &request.private_data)?,
        ..Req::default()
    })
}

pub(super) fn sidr_req(id: u32, request: &ResolveRequest) -> Result<SidrReq, Misuse> {
    Ok(SidrReq {
        request_id: CommId::new(id),
        pkey: request.route.pkey,
        service_id: request.service_id,
        private_data: with_header(request.addresses.as_ref(), &request.private_data)?,
        ..SidrReq::default()
    })
}

pub(super) fn sidr_rep(
    request_id: CommId,
    service_id: ServiceId,
    reply: &SidrReplyParams,
) -> Result<SidrRep, Misuse> {
    Ok(SidrRep {
        request_id,
        status: reply.status,
        qpn: reply.qpn,
        service_id,
        qkey: reply.qkey,
        private_data: private(&reply.private_data)?,
        ..SidrRep::default()
    })
}

/// A REJ for somebody who has no connection here.
pub(super) fn stranger_rej(
    local: CommId,
    remote: CommId,
    message: MessageKind,
    reason: RejReason,
) -> Rej {
    Rej {
        local_comm_id: local,
        remote_comm_id: remote,
        message,
        reason,
        ..Rej::default()
    }
}

pub(super) fn drep(local: CommId, remote: CommId) -> Drep {
    Drep {
        local_comm_id: local,
        remote_comm_id: remote,
        ..Drep::default()
    }
}

/// The answer to any LAP: we have one path.
pub(super) fn apr(lap: &Lap, status: ApStatus) -> Apr {
    Apr {
        local_comm_id: lap.remote_comm_id,
        remote_comm_id: lap.local_comm_id,
        status,
        ..Apr::default()
    }
}

/// The messages of a connection that we call `id`.
impl Connection {
    pub(super) fn rep(
        &self,
        config: &Config,
        guid: Guid,
        id: u32,
        accept: &AcceptParams,
    ) -> Result<Rep, Misuse> {
        let wants_alternate =
            matches!(&self.role, Role::Passive(passive) if passive.wants_alternate);
        let is_xrc =
            matches!(&self.role, Role::Passive(passive) if passive.qp_type == QpType::XrcRecv);
        // A receiving end is named where reliable datagrams have their context, and reads nothing.
        let (local_qpn, local_eecn) = if is_xrc {
            (Qpn::default(), Eecn::new(accept.qpn.get()))
        } else {
            (accept.qpn, Eecn::default())
        };
        Ok(Rep {
            local_comm_id: CommId::new(id),
            remote_comm_id: self.remote_comm_id,
            local_qpn,
            local_eecn,
            starting_psn: accept.starting_psn,
            responder_resources: accept.responder_resources,
            initiator_depth: if is_xrc { 0 } else { accept.initiator_depth },
            target_ack_delay: config.ack_delay,
            failover_accepted: if wants_alternate {
                FAILOVER_NOT_SUPPORTED
            } else {
                0
            },
            end_to_end_flow_control: accept.flow_control && !is_xrc,
            rnr_retry_count: accept.rnr_retry_count,
            srq: accept.srq || is_xrc,
            local_ca_guid: guid,
            private_data: private(&accept.private_data)?,
            ..Rep::default()
        })
    }

    pub(super) fn rtu(&self, id: u32) -> Rtu {
        Rtu {
            local_comm_id: CommId::new(id),
            remote_comm_id: self.remote_comm_id,
            ..Rtu::default()
        }
    }

    pub(super) fn mra(&self, id: u32, service_timeout: TimeoutCode) -> Mra {
        let message = match self.state {
            State::RepRcvd | State::MraRepSent => MessageKind::REP,
            _ => MessageKind::REQ,
        };
        Mra {
            local_comm_id: CommId::new(id),
            remote_comm_id: self.remote_comm_id,
            message,
            service_timeout,
            ..Mra::default()
        }
    }

    pub(super) fn rej(&self, id: u32, reject: &RejectParams) -> Result<Rej, Misuse> {
        let message = match self.state {
            State::ReqRcvd | State::MraReqSent => MessageKind::REQ,
            State::RepRcvd | State::MraRepSent => MessageKind::REP,
            _ => MessageKind::OTHER,
        };
        // Nobody has told the active side our name yet (IBA vol 1 ch 12, REJ).
        let local = match self.state {
            State::ReqRcvd => CommId::NONE,
            _ => CommId::new(id),
        };
        let info_len = u8::try_from(reject.info.len()).map_err(|_| Misuse::PrivateDataTooLong)?;
        Ok(Rej {
            info: private(&reject.info)?,
            info_len,
            private_data: private(&reject.private_data)?,
            ..stranger_rej(local, self.remote_comm_id, message, reject.reason)
        })
    }

    /// Of the REQ or REP that nobody answered. The peer may not know our name, but our adapter and
    /// its own name for the connection (IBA vol 1 ch 12, REJ reason codes).
    pub(super) fn timeout_rej(&self, guid: Guid, id: u32) -> Rej {
        let info = guid.get().to_be_bytes();
        Rej {
            info_len: 8,
            info: PrivateData::new(&info).unwrap_or_default(),
            ..stranger_rej(
                CommId::new(id),
                self.remote_comm_id,
                MessageKind::OTHER,
                RejReason::TIMEOUT,
            )
        }
    }

    pub(super) fn dreq(&self, id: u32) -> Dreq {
        Dreq {
            local_comm_id: CommId::new(id),
            remote_comm_id: self.remote_comm_id,
            remote_qpn: self.remote_qpn,
            ..Dreq::default()
        }
    }

    /// A message of the establishment.
    pub(super) fn mad(&self, message: impl Into<Message>) -> Mad {
        Mad::new(self.transaction_id, message)
    }
}
