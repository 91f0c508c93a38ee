//! Resolution of service IDs, for datagrams (IBA vol 1 ch 12, service ID resolution).
//!
//! An answer is not kept: should it be lost, the peer asks again, and so does the application's
//! listener hear of it again.

use softverbs_wire::ib::cm::{Mad, SidrRep, SidrReq, SidrStatus};
use softverbs_wire::num::TransactionId;

use super::connection::{Connection, Role};
use super::endpoint::Endpoint;
use super::event::{CmEvent, SidrReply, SidrRequest};
use super::listeners::{NoListener, split_private_data};
use super::messages;
use super::params::{PathAddress, SidrReplyParams};
use super::perform::Input;
use super::state::{State, Trigger};
use crate::fault::Misuse;
use crate::time::Time;

impl Endpoint {
    pub(super) fn on_sidr_req(
        &mut self,
        now: Time,
        address: PathAddress,
        transaction_id: TransactionId,
        sidr: &SidrReq,
    ) {
        if let Some(id) = self.registry.by_request_id(address, sidr.request_id) {
            self.peer(now, id, Trigger::Req, Input::None);
            return;
        }
        if !self.has_room_for(address) {
            return;
        }
        if let Err(status) = self.take_sidr_req(address, transaction_id, sidr) {
            let refusal = SidrRep {
                request_id: sidr.request_id,
                status,
                service_id: sidr.service_id,
                ..SidrRep::default()
            };
            self.send(address, &Mad::new(transaction_id, refusal));
        }
    }

    fn take_sidr_req(
        &mut self,
        address: PathAddress,
        transaction_id: TransactionId,
        sidr: &SidrReq,
    ) -> Result<(), SidrStatus> {
        let split = split_private_data(sidr.service_id, &sidr.private_data);
        let destination = split
            .as_ref()
            .and_then(|(cma, _)| cma.and_then(|cma| cma.destination_ip()));
        let listener = self
            .listeners
            .find(sidr.service_id, destination)
            .map_err(|missing| match missing {
                NoListener::Service => SidrStatus::UNSUPPORTED,
                NoListener::Address => SidrStatus::REJECT,
            })?;
        let (cma, private_data) = split.ok_or(SidrStatus::REJECT)?;
        let id = self.allocate().map_err(|_| SidrStatus::NO_QP)?;
        let request = SidrRequest {
            listener,
            service_id: sidr.service_id,
            address,
            cma,
            private_data,
            pkey: sidr.pkey,
        };
        let role = Role::Asked(sidr.service_id);
        let mut connection = Connection::new(State::SidrReqRcvd, role, address, transaction_id);
        connection.remote_comm_id = sidr.request_id;
        self.registry.insert(id, connection);
        self.emit(id, CmEvent::SidrRequest(Box::new(request)));
        Ok(())
    }

    pub(super) fn on_sidr_rep(&mut self, now: Time, address: PathAddress, reply: &SidrRep) {
        if let Some((id, _)) = self.registry.of_peer(reply.request_id, address) {
            self.peer(now, id, Trigger::SidrRep, Input::SidrRep(reply));
        }
    }

    pub(super) fn take_sidr_rep(&mut self, id: u32, reply: &SidrRep) {
        let info = reply.info.as_array();
        let meant = usize::from(reply.info_len).min(info.len());
        let reply = SidrReply {
            status: reply.status,
            qpn: reply.qpn,
            qkey: reply.qkey,
            service_id: reply.service_id,
            info: info[..meant].to_vec(),
            private_data: reply.private_data.as_array().to_vec(),
        };
        self.withdraw(id);
        self.emit(id, CmEvent::SidrReply(Box::new(reply)));
    }

    pub(super) fn send_sidr_rep(&mut self, id: u32, reply: &SidrReplyParams) -> Result<(), Misuse> {
        if let Some(connection) = self.registry.get(id)
            && let Role::Asked(service_id) = connection.role
        {
            let message = messages::sidr_rep(connection.remote_comm_id, service_id, reply)?;
            let (address, mad) = (connection.address, connection.mad(message));
            self.send(address, &mad);
        }
        Ok(())
    }

    pub(super) fn refuse_sidr(&mut self, id: u32) -> Result<(), Misuse> {
        self.send_sidr_rep(
            id,
            &SidrReplyParams::refused(SidrStatus::REJECT, Vec::new()),
        )
    }
}
