//! A REQ: duplicates, checks, and to whom it goes.

use softverbs_wire::ib::cm::{Mad, MessageKind, RejReason, Req, TransportService};
use softverbs_wire::num::{CommId, PathMtu, TransactionId};

use super::connection::{Connection, Passive, Role};
use super::endpoint::Endpoint;
use super::event::{CmEvent, Request};
use super::listeners::{NoListener, split_private_data};
use super::messages::{self, EXTENDED_XRC};
use super::params::PathAddress;
use super::perform::Input;
use super::state::{State, Trigger};
use super::timeout;
use crate::qp_state::QpType;
use crate::time::Time;

impl Endpoint {
    pub(super) fn on_req(
        &mut self,
        now: Time,
        address: PathAddress,
        transaction_id: TransactionId,
        req: &Req,
    ) {
        if req.local_comm_id == CommId::NONE || self.is_known(now, address, req) {
            return;
        }
        let (guid, comm_id, qpn) = (req.local_ca_guid, req.local_comm_id, req.local_qpn);
        let outcome = if self.clean_up(now, address, guid, comm_id, qpn) {
            // The peer has to try again (IBA vol 1 ch 12, REJ reason codes).
            Err(RejReason::STALE_CONNECTION)
        } else if !self.has_room_for(address) {
            // As if it were lost: an honest peer asks again.
            return;
        } else {
            self.take_req(now, address, transaction_id, req)
        };
        if let Err(reason) = outcome {
            let rej =
                messages::stranger_rej(CommId::NONE, req.local_comm_id, MessageKind::REQ, reason);
            self.send(address, &Mad::new(transaction_id, rej));
        }
    }

    /// Whether the REQ is one that we know; then its connection has dealt with it.
    fn is_known(&mut self, now: Time, address: PathAddress, req: &Req) -> bool {
        let id = self
            .registry
            .by_remote_id(address, req.local_ca_guid, req.local_comm_id)
            .filter(|id| {
                self.registry
                    .get(*id)
                    .is_some_and(|connection| connection.is_from(req))
            });
        if let Some(id) = id {
            self.peer(now, id, Trigger::Req, Input::None);
        }
        id.is_some()
    }

    pub(super) fn has_room_for(&self, address: PathAddress) -> bool {
        let (of_peer, of_all) = self.registry.half_open(address.remote);
        of_peer < self.config.max_half_open_per_peer && of_all < self.config.max_half_open
    }

    fn take_req(
        &mut self,
        now: Time,
        address: PathAddress,
        transaction_id: TransactionId,
        req: &Req,
    ) -> Result<(), RejReason> {
        let qp_type = qp_type(req)?;
        let path_mtu = req
            .path_mtu
            .path_mtu()
            .filter(|mtu| *mtu <= self.config.max_path_mtu)
            .ok_or(RejReason::INVALID_PATH_MTU)?;
        if req.primary_path.remote_gid != address.local {
            return Err(RejReason::PRIMARY_REMOTE_GID);
        }
        let split = split_private_data(req.service_id, &req.private_data);
        let destination = split
            .as_ref()
            .and_then(|(cma, _)| cma.and_then(|cma| cma.destination_ip()));
        let listener = self
            .listeners
            .find(req.service_id, destination)
            .map_err(|missing| match missing {
                NoListener::Service => RejReason::INVALID_SERVICE_ID,
                NoListener::Address => RejReason::CONSUMER,
            })?;
        let (cma, private_data) = split.ok_or(RejReason::CONSUMER)?;
        let id = self.allocate().map_err(|_| RejReason::NO_RESOURCES)?;

        let request = Request {
            listener,
            service_id: req.service_id,
            address,
            cma,
            private_data,
            qp_type,
            remote_qpn: req.local_qpn,
            remote_comm_id: req.local_comm_id,
            remote_ca_guid: req.local_ca_guid,
            starting_psn: req.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.end_to_end_flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            path_mtu,
            pkey: req.pkey,
            primary_path: req.primary_path,
            remote_cm_response_timeout: req.remote_cm_response_timeout,
            local_cm_response_timeout: req.local_cm_response_timeout,
            max_cm_retries: req.max_cm_retries,
        };
        let connection = self.passive(address, transaction_id, req, qp_type, path_mtu);
        self.registry.insert(id, connection);
        self.emit(id, CmEvent::Request(Box::new(request)));
        if self.config.delayed_mra.is_some() {
            self.peer(now, id, Trigger::DelayedMra, Input::None);
        }
        Ok(())
    }

    fn passive(
        &self,
        address: PathAddress,
        transaction_id: TransactionId,
        req: &Req,
        qp_type: QpType,
        path_mtu: PathMtu,
    ) -> Connection {
        let role = Role::Passive(Box::new(Passive::new(req, qp_type, path_mtu)));
        let mut connection = Connection::new(State::ReqRcvd, role, address, transaction_id);
        connection.remote_comm_id = req.local_comm_id;
        connection.remote_ca_guid = req.local_ca_guid;
        connection.remote_qpn = req.local_qpn;
        connection.timewait = timeout::duration(req.primary_path.local_ack_timeout);
        connection.response_time =
            timeout::duration(req.local_cm_response_timeout).min(self.config.max_wait);
        connection.max_retries = req.max_cm_retries;
        connection
    }
}

/// The type of the queue pair that fits the peer's; nobody has reliable datagrams.
const fn qp_type(req: &Req) -> Result<QpType, RejReason> {
    match req.transport_service {
        TransportService::RC => Ok(QpType::Rc),
        TransportService::UC => Ok(QpType::Uc),
        TransportService::EXTENDED if req.extended_transport == EXTENDED_XRC => Ok(QpType::XrcRecv),
        _ => Err(RejReason::INVALID_TRANSPORT_SERVICE),
    }
}
