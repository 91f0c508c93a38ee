//! What the application asks for on an identifier over RoCE.

use std::net::SocketAddr;
use std::sync::Arc;

use softverbs_proto::cm::event::QpEvent;
use softverbs_proto::cm::params::{
    AcceptParams, CmaAddresses, ConnectRequest, ConnectionId, Listen, ListenToken, PathAddress,
    RejectParams, Route,
};
use softverbs_proto::cm::state::State as CmState;
use softverbs_wire::ib::cm::{Rej, Rep};
use softverbs_wire::ib::rdma_cm::{CmaHeader, ServicePort};
use softverbs_wire::num::{PathMtu, Psn, RetryCount};

use super::Manager;
use super::events::Listener;
use super::ports::{random_u32, wire_space};
use crate::cm::event::{ConnParam, MAX_DEPTH};
use crate::cm::id::{IdShared, Phase, State};
use crate::device::limits;
use crate::error::{Error, Result};
use crate::qp::Qp;

/// A connect request that waits for the application.
#[derive(Clone, Copy, Debug)]
pub(in crate::cm) struct Incoming {
    /// Reads and atomics that the peer will have outstanding.
    pub(super) responder_resources: u8,
    /// Reads and atomics that the peer serves.
    pub(super) initiator_depth: u8,
}

impl Incoming {
    /// A question of a datagram identifier.
    pub(super) const DATAGRAM: Self = Self {
        responder_resources: 0,
        initiator_depth: 0,
    };
}

/// Listens on what the identifier is bound to.
pub(in crate::cm) fn listen(
    id: &Arc<IdShared>,
    state: &State,
    backlog: usize,
) -> Result<ListenToken> {
    let (Some(bound), Some(local)) = (&state.bound, state.local) else {
        return Err(Error::invalid("id", "is not bound"));
    };
    let listener = Arc::new(Listener {
        id: Arc::downgrade(id),
        options: state.options,
        address: local.ip(),
        waiting: Arc::default(),
        backlog,
    });
    let address = Some(local.ip()).filter(|address| !address.is_unspecified());
    Manager::get()?
        .listen(listener, Listen::port(bound.service(), address))
        .map_err(|_| Error::AddrInUse { address: local })
}

fn depth(what: &'static str, asked: u8, offer: u8) -> Result<u8> {
    match asked {
        MAX_DEPTH => Ok(limits::MAX_QP_RD_ATOM.min(offer)),
        asked if asked <= limits::MAX_QP_RD_ATOM => Ok(asked.min(offer)),
        _ => Err(Error::invalid(what, "exceeds max_qp_rd_atom")),
    }
}

pub(super) fn check_private_data(private_data: &[u8], most: usize) -> Result<()> {
    if private_data.len() > most {
        return Err(Error::invalid(
            "private_data",
            format!("InfiniBand carries up to {most} octets here"),
        ));
    }
    Ok(())
}

/// Sends the request. The queue pair stays as it is until the peer accepts.
pub(in crate::cm) fn connect(id: &Arc<IdShared>, param: &ConnParam) -> Result<()> {
    let manager = Manager::get()?;
    let request = {
        let mut state = id.lock();
        let (Some(peer), Some(local), Some(qp)) = (state.peer, state.local, state.qp.clone())
        else {
            return Err(Error::invalid("id", "has no queue pair"));
        };
        let request = connect_request(id, &state, &qp, local, peer, param)?;
        manager.port.check_reachable(peer.ip())?;
        state.passive = false;
        state.phase = Phase::IbConnecting;
        let device = qp.inner().pd.context().device();
        let interface = device.interface_index();
        (request, local.ip(), interface, qp)
    };
    let (request, local, interface, qp) = request;
    qp.inner().cm_expect_answer();
    drop(qp);
    manager.know_scope(local, interface);
    let sent = {
        let mut inner = manager.lock();
        inner
            .endpoint
            .connect(manager.engine.now(), &request)
            .inspect(|connection| {
                inner.ids.insert(*connection, Arc::downgrade(id));
            })
    };
    let mut state = id.lock();
    match sent {
        Ok(connection) if matches!(state.phase, Phase::Destroyed) => {
            drop(state);
            manager.destroy(connection);
        }
        Ok(connection) => {
            state.connection = Some(connection);
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

fn connect_request(
    id: &IdShared,
    state: &State,
    qp: &Qp,
    local: SocketAddr,
    peer: SocketAddr,
    param: &ConnParam,
) -> Result<ConnectRequest> {
    check_private_data(&param.private_data, CmaHeader::REQ_PRIVATE_DATA_LEN)?;
    let device = qp.inner().pd.context().device();
    let mut route = Route::new(PathAddress::from_ips(local.ip(), peer.ip()));
    route.traffic_class = state.options.traffic_class();
    Ok(ConnectRequest {
        service_id: ServicePort::new(wire_space(id.ps), peer.port()).service_id(),
        addresses: Some(CmaAddresses {
            source: local.ip(),
            source_port: local.port(),
            destination: peer.ip(),
        }),
        route,
        path_mtu: PathMtu::ALL[device.active_mtu() as usize - 1],
        qpn: qp.qp_num(),
        qp_type: qp.qp_type(),
        starting_psn: Psn::new(random_u32()?),
        responder_resources: depth("responder_resources", param.responder_resources, MAX_DEPTH)?,
        initiator_depth: depth("initiator_depth", param.initiator_depth, MAX_DEPTH)?,
        retry_count: RetryCount::new(param.retry_count),
        rnr_retry_count: RetryCount::new(param.rnr_retry_count),
        flow_control: param.flow_control,
        srq: qp.inner().srq.is_some(),
        private_data: param.private_data.clone(),
    })
}

/// Accepts: the queue pair is ready, its gate closed, before the peer hears of it.
pub(in crate::cm) fn accept(id: &Arc<IdShared>, param: &ConnParam) -> Result<()> {
    let manager = Manager::get()?;
    let (connection, incoming, accept) = {
        let mut state = id.lock();
        let (Phase::IbRequested(incoming), Some(connection)) = (&state.phase, state.connection)
        else {
            return Err(super::super::wrong_phase(&state, "accept"));
        };
        let incoming = *incoming;
        let Some(qp) = state.qp.clone() else {
            return Err(Error::invalid("id", "has no queue pair"));
        };
        check_private_data(&param.private_data, Rep::PRIVATE_DATA_LEN)?;
        let accept = AcceptParams {
            qpn: qp.qp_num(),
            starting_psn: Psn::new(random_u32()?),
            responder_resources: depth(
                "responder_resources",
                param.responder_resources,
                incoming.responder_resources,
            )?,
            initiator_depth: depth(
                "initiator_depth",
                param.initiator_depth,
                incoming.initiator_depth,
            )?,
            rnr_retry_count: RetryCount::new(param.rnr_retry_count),
            flow_control: param.flow_control,
            srq: qp.inner().srq.is_some(),
            private_data: param.private_data.clone(),
        };
        let established = ConnParam {
            responder_resources: accept.responder_resources,
            initiator_depth: accept.initiator_depth,
            ..ConnParam::default().cleared()
        };
        state.passive = true;
        state.phase = Phase::Establishing(established);
        (connection, incoming, accept)
    };
    let now = manager.engine.now();
    let accepted = manager.lock().endpoint.accept(now, connection, &accept);
    if let Err(misuse) = accepted {
        let mut state = id.lock();
        if matches!(state.phase, Phase::Establishing(_)) {
            state.phase = Phase::IbRequested(incoming);
        }
        return Err(misuse.into());
    }
    // The queue pair takes requests from the return of this call on.
    manager.pump_and_wait();
    let failed = manager.lock().failed.remove(&connection);
    if let Some(errno) = failed {
        let mut state = id.lock();
        state.fail();
        state.connection = None;
        return Err(Error::os("modify_qp", errno));
    }
    Ok(())
}

pub(in crate::cm) fn reject(connection: ConnectionId, private_data: &[u8]) -> Result<()> {
    check_private_data(private_data, Rej::PRIVATE_DATA_LEN)?;
    let reject = RejectParams::consumer(private_data.to_vec());
    Manager::get()?.command(|inner, now| {
        // The peer may have taken its request back meanwhile.
        if inner.endpoint.state(connection) != CmState::Idle {
            inner.endpoint.reject(now, connection, &reject)?;
        }
        inner.forget(connection);
        Ok(())
    })?;
    Ok(())
}

/// Flushes the queue pair and tells the peer.
pub(in crate::cm) fn disconnect(connection: ConnectionId) -> Result<()> {
    let manager = Manager::get()?;
    let now = manager.engine.now();
    let disconnected = manager.lock().endpoint.disconnect(now, connection);
    manager.pump_and_wait();
    Ok(disconnected?)
}

/// The application has heard of the peer, as the queue pair has.
pub(in crate::cm) fn notify(connection: ConnectionId) -> Result<()> {
    let _ = Manager::get()?.command(|inner, now| {
        inner
            .endpoint
            .on_qp_event(now, connection, QpEvent::CommEst)
    });
    Ok(())
}
