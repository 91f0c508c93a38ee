//! Datagram identifiers: a question for the queue pair behind a port, and its answer (SIDR).

use std::sync::Arc;

use softverbs_proto::cm::event::{SidrReply, SidrRequest};
use softverbs_proto::cm::params::{
    CmaAddresses, ConnectionId, PathAddress, ResolveRequest, Route, SidrReplyParams,
};
use softverbs_wire::ib::cm::{SidrRep, SidrStatus};
use softverbs_wire::ib::rdma_cm::{CmaHeader, ServicePort};
use softverbs_wire::num::Qkey;

use super::Manager;
use super::calls::{Incoming, check_private_data};
use super::ports::wire_space;
use crate::cm::event::{BacklogPlace, ConnParam, EventKind, UdParam};
use crate::cm::id::{IdShared, Phase};
use crate::error::{Error, Result};
use crate::roce::AhAttr;

/// Asks for the queue pair behind the port that the identifier was resolved to.
pub(in crate::cm) fn ask(id: &Arc<IdShared>, param: &ConnParam) -> Result<()> {
    let manager = Manager::get()?;
    check_private_data(&param.private_data, CmaHeader::SIDR_REQ_PRIVATE_DATA_LEN)?;
    let (request, interface) = {
        let mut state = id.lock();
        let (Some(peer), Some(local), Some(verbs)) = (state.peer, state.local, &state.verbs) else {
            return Err(Error::invalid("id", "has no route"));
        };
        manager.port.check_reachable(peer.ip())?;
        let request = ResolveRequest {
            service_id: ServicePort::new(wire_space(id.ps), peer.port()).service_id(),
            addresses: Some(CmaAddresses {
                source: local.ip(),
                source_port: local.port(),
                destination: peer.ip(),
            }),
            route: Route::new(PathAddress::from_ips(local.ip(), peer.ip())),
            private_data: param.private_data.clone(),
        };
        let interface = (local.ip(), verbs.device().interface_index());
        state.phase = Phase::IbConnecting;
        (request, interface)
    };
    manager.know_scope(interface.0, interface.1);
    let asked = {
        let mut inner = manager.lock();
        let asked = inner.endpoint.resolve(manager.engine.now(), &request);
        if let Ok(question) = asked {
            inner.ids.insert(question, Arc::downgrade(id));
        }
        asked
    };
    let mut state = id.lock();
    match asked {
        Ok(question) if matches!(state.phase, Phase::Destroyed) => {
            drop(state);
            manager.destroy(question);
        }
        Ok(question) => {
            state.connection = Some(question);
            drop(state);
            manager.pump();
        }
        Err(misuse) => {
            if matches!(state.phase, Phase::IbConnecting) {
                state.phase = Phase::RouteResolved;
            }
            return Err(misuse.into());
        }
    }
    Ok(())
}

/// Tells the peer which queue pair it is.
pub(in crate::cm) fn answer(id: &Arc<IdShared>, param: &ConnParam) -> Result<()> {
    let manager = Manager::get()?;
    check_private_data(&param.private_data, SidrRep::PRIVATE_DATA_LEN)?;
    let (question, reply) = {
        let state = id.lock();
        let (Phase::IbRequested(_), Some(question)) = (&state.phase, state.connection) else {
            return Err(super::super::wrong_phase(&state, "accept"));
        };
        let qpn = match &state.qp {
            Some(qp) => qp.qp_num(),
            // One of another identifier serves it.
            None if param.qp_num.get() != 0 => param.qp_num,
            None => return Err(Error::invalid("id", "has no queue pair")),
        };
        let private_data = param.private_data.clone();
        let reply = SidrReplyParams::valid(qpn, Qkey::RDMA_UDP, private_data);
        (question, reply)
    };
    manager.command(|inner, now| inner.endpoint.sidr_reply(now, question, &reply))?;
    let mut state = id.lock();
    state.connection = None;
    if matches!(state.phase, Phase::IbRequested(_)) {
        state.phase = Phase::Established;
    }
    Ok(())
}

/// Tells the peer that it gets none.
pub(in crate::cm) fn decline(question: ConnectionId, private_data: &[u8]) -> Result<()> {
    check_private_data(private_data, SidrRep::PRIVATE_DATA_LEN)?;
    let reply = SidrReplyParams::refused(SidrStatus::REJECT, private_data.to_vec());
    Manager::get()?.command(|inner, now| {
        inner.endpoint.sidr_reply(now, question, &reply)?;
        inner.forget(question);
        Ok(())
    })?;
    Ok(())
}

impl Manager {
    pub(super) fn on_sidr_request(&'static self, id: ConnectionId, request: SidrRequest) {
        let local = request.address.local.to_ip();
        let port = ServicePort::from_service_id(request.service_id).map_or(0, |to| to.port);
        let Some((listener, listening, verbs)) = self.listener(request.listener, local, port)
        else {
            self.give_up(id);
            return;
        };
        let Some(place) = BacklogPlace::take(&listener.waiting, listener.backlog) else {
            // As Linux does: the peer asks again.
            let now = self.engine.now();
            let _ = self.lock().endpoint.drop_request(now, id);
            return;
        };
        let cma = request.cma;
        let remote = cma.and_then(|cma| cma.source_ip());
        let remote = remote.unwrap_or_else(|| request.address.remote.to_ip());
        let device = verbs.device();
        let new = listener.new_id(&listening);
        {
            let mut state = new.shared().lock();
            state.local = Some(device.socket_addr(local, port));
            let port = cma.map_or(0, |cma| cma.source_port);
            state.peer = Some(device.socket_addr(remote, port));
            state.phase = Phase::IbRequested(Incoming::DATAGRAM);
            state.connection = Some(id);
            state.passive = true;
            state.verbs = Some(verbs);
        }
        self.know(id, new.shared());
        let param = ConnParam {
            private_data: request.private_data,
            ..ConnParam::default().cleared()
        };
        listening.report_request(new, place, param);
    }

    pub(super) fn on_sidr_reply(&self, id: ConnectionId, reply: SidrReply, shared: &Arc<IdShared>) {
        self.lock().forget(id);
        if reply.status != SidrStatus::VALID {
            // A status of its own, not negated, as Linux reports it.
            let status = i32::from(reply.status.get());
            shared.on_ib_failed(EventKind::Unreachable, status, reply.private_data);
            return;
        }
        let mut state = shared.lock();
        if !matches!(state.phase, Phase::IbConnecting) {
            return;
        }
        let ud = match (state.peer, state.local, &state.verbs) {
            (Some(peer), Some(local), Some(verbs)) => {
                let own = verbs.device().addresses().iter();
                let index = own.clone().position(|address| *address == local.ip());
                let index = index.and_then(|index| u8::try_from(index).ok());
                Some(UdParam {
                    ah_attr: AhAttr::new(peer.ip().into(), index.unwrap_or(0)),
                    qp_num: reply.qpn,
                    qkey: reply.qkey.get(),
                })
            }
            _ => None,
        };
        state.connection = None;
        state.phase = Phase::Established;
        let param = ConnParam {
            private_data: reply.private_data,
            qp_num: reply.qpn,
            ud,
            ..ConnParam::default().cleared()
        };
        shared.report(EventKind::Established, 0, param);
    }
}
