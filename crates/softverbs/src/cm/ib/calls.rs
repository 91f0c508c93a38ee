//! What the application asks for on an identifier over RoCE.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use softverbs_proto::cm::event::{QpEvent, RtrAttributes, RtsAttributes};
use softverbs_proto::cm::params::{
    AcceptParams, CmaAddresses, ConnectRequest, ConnectionId, Listen, ListenToken, PathAddress,
    RejectParams, Route,
};
use softverbs_proto::cm::state::State as CmState;
use softverbs_proto::qp_state::QpType;
use softverbs_wire::ib::cm::{Rej, RejReason, Rep};
use softverbs_wire::ib::rdma_cm::{CmaHeader, ServicePort};
use softverbs_wire::num::{PathMtu, Psn, Qpn, RetryCount, TimeoutCode};

use super::Manager;
use super::events::Listener;
use super::ports::{random_u32, wire_space};
use crate::cm::event::{ConnParam, MAX_DEPTH};
use crate::cm::id::{IdShared, Phase, State};
use crate::device::{Device, IbMtu, Transport, limits};
use crate::error::{Error, Result};
use crate::qp::registry;
use crate::roce::ConnectionOfQp;

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
    let manager = Manager::get()?;
    let token = manager
        .listen(listener, Listen::port(bound.service(), address))
        .map_err(|_| Error::AddrInUse { address: local })?;
    if let Err(error) = bound.offer() {
        manager.unlisten(token, id);
        return Err(error);
    }
    Ok(token)
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
        let (Some(peer), Some(local), Some(verbs)) = (state.peer, state.local, state.verbs.clone())
        else {
            return Err(Error::invalid("id", "has no route"));
        };
        let qp = state.qp.clone();
        let end = OwnEnd::of(&state, param)?;
        let psn = starting_psn(&mut state)?;
        let device = verbs.device();
        let request = connect_request(id, &state, device, &end, psn, (local, peer), param)?;
        manager.port.check_reachable(peer.ip())?;
        state.passive = false;
        state.phase = Phase::IbConnecting;
        let interface = device.interface_index();
        (request, local.ip(), interface, qp)
    };
    let (request, local, interface, qp) = request;
    if let Some(qp) = qp {
        qp.inner().cm_expect_answer();
    }
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

/// What our end of a connection is.
struct OwnEnd {
    qpn: Qpn,
    qp_type: QpType,
    srq: bool,
}

impl OwnEnd {
    /// The identifier's queue pair, or what the application says about one of its own.
    fn of(state: &State, param: &ConnParam) -> Result<Self> {
        match &state.qp {
            Some(qp) => Ok(Self {
                qpn: qp.qp_num(),
                qp_type: qp.qp_type(),
                srq: qp.inner().srq.is_some(),
            }),
            None if param.qp_num.get() != 0 => Ok(Self {
                qpn: param.qp_num,
                qp_type: registry::find(Transport::Roce, param.qp_num)
                    .map_or(QpType::Rc, |qp| qp.qp_type),
                srq: param.srq,
            }),
            None => Err(Error::invalid("id", "has no queue pair, nor has qp_num")),
        }
    }
}

/// The first sequence number that the peer sends; the same for all that ask.
pub(in crate::cm) fn starting_psn(state: &mut State) -> Result<Psn> {
    let psn = match state.psn {
        Some(psn) => psn,
        None => Psn::new(random_u32()?),
    };
    state.psn = Some(psn);
    Ok(psn)
}

/// The path MTU that is asked for unless the application chooses one: the port's, and not more
/// than another interface of this host has, if the way leads there.
fn usual_mtu(device: &Device, peer: IpAddr) -> IbMtu {
    let own = device.active_mtu();
    let is_local = |manager: &Manager| {
        let now = manager.engine.coarse_now();
        manager.port.is_local(peer, now)
    };
    if device.owns(peer) || !Manager::get().is_ok_and(is_local) {
        return own;
    }
    let other = Device::for_address(peer, Some(device.interface_index()));
    other.map_or(own, |other| {
        own.min(other.with_transport(Transport::Roce).active_mtu())
    })
}

fn connect_request(
    id: &IdShared,
    state: &State,
    device: &Device,
    end: &OwnEnd,
    starting_psn: Psn,
    (local, peer): (SocketAddr, SocketAddr),
    param: &ConnParam,
) -> Result<ConnectRequest> {
    check_private_data(&param.private_data, CmaHeader::REQ_PRIVATE_DATA_LEN)?;
    let path_mtu = match state.options.path_mtu {
        Some(mtu) if mtu > device.active_mtu() => {
            return Err(Error::invalid(
                "path_mtu",
                format!(
                    "{} exceeds active_mtu of {}: {}",
                    mtu.octets(),
                    device.name(),
                    device.active_mtu().octets()
                ),
            ));
        }
        Some(mtu) => mtu,
        None => usual_mtu(device, peer.ip()),
    };
    let mut route = Route::new(PathAddress::from_ips(local.ip(), peer.ip()));
    route.traffic_class = state.options.traffic_class();
    if let Some(timeout) = state.options.ack_timeout {
        // The peer's queue pair waits for what goes there and back.
        route.packet_lifetime = TimeoutCode::new(timeout.saturating_sub(1));
    }
    Ok(ConnectRequest {
        service_id: ServicePort::new(wire_space(id.ps), peer.port()).service_id(),
        addresses: Some(CmaAddresses {
            source: local.ip(),
            source_port: local.port(),
            destination: peer.ip(),
        }),
        route,
        path_mtu: PathMtu::ALL[path_mtu as usize - 1],
        qpn: end.qpn,
        qp_type: end.qp_type,
        starting_psn,
        responder_resources: depth("responder_resources", param.responder_resources, MAX_DEPTH)?,
        initiator_depth: depth("initiator_depth", param.initiator_depth, MAX_DEPTH)?,
        retry_count: RetryCount::new(param.retry_count),
        rnr_retry_count: RetryCount::new(param.rnr_retry_count),
        flow_control: param.flow_control,
        srq: end.srq,
        private_data: param.private_data.clone(),
    })
}

/// Accepts: the queue pair is ready, its gate closed, before the peer hears of it.
pub(in crate::cm) fn accept(id: &Arc<IdShared>, param: &ConnParam) -> Result<()> {
    let manager = Manager::get()?;
    let named;
    let (connection, incoming, accept) = {
        let mut state = id.lock();
        let (Phase::IbRequested(incoming), Some(connection)) = (&state.phase, state.connection)
        else {
            return Err(super::super::wrong_phase(&state, "accept"));
        };
        let incoming = *incoming;
        let end = OwnEnd::of(&state, param)?;
        named = state.qp_to_connect(end.qpn).filter(|_| state.qp.is_none());
        let starting_psn = starting_psn(&mut state)?;
        check_private_data(&param.private_data, Rep::PRIVATE_DATA_LEN)?;
        let accept = AcceptParams {
            qpn: end.qpn,
            starting_psn,
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
            srq: end.srq,
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
    if let Some(qp) = named {
        // The application's, but what it posts is held until the peer listens as with all others.
        qp.cm_watch(ConnectionOfQp {
            manager,
            id: connection,
            owned: false,
        });
    }
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

pub(in crate::cm) fn reject(
    connection: ConnectionId,
    reason: RejReason,
    private_data: &[u8],
) -> Result<()> {
    check_private_data(private_data, Rej::PRIVATE_DATA_LEN)?;
    let reject = RejectParams {
        reason,
        ..RejectParams::consumer(private_data.to_vec())
    };
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
    // As for `destroy`.
    manager.engine.flush_deferred();
    let now = manager.engine.now();
    let disconnected = manager.lock().endpoint.disconnect(now, connection);
    manager.pump_and_wait();
    Ok(disconnected?)
}

/// Active side without a queue pair of its own: the application's is ready.
pub(in crate::cm) fn establish(connection: ConnectionId) -> Result<()> {
    Ok(Manager::get()?.command(|inner, now| inner.endpoint.establish(now, connection))?)
}

/// What the queue pair of a request needs that was not accepted yet.
pub(in crate::cm) fn attributes_of_request(
    connection: ConnectionId,
    incoming: Incoming,
    starting_psn: Psn,
) -> Result<Option<(RtrAttributes, RtsAttributes)>> {
    let accept = AcceptParams {
        qpn: Qpn::new(0),
        starting_psn,
        responder_resources: incoming.responder_resources.min(limits::MAX_QP_RD_ATOM),
        initiator_depth: incoming.initiator_depth.min(limits::MAX_QP_RD_ATOM),
        rnr_retry_count: RetryCount::new(0),
        flow_control: false,
        srq: false,
        private_data: Vec::new(),
    };
    let manager = Manager::get()?;
    Ok(manager
        .lock()
        .endpoint
        .passive_attributes(connection, &accept))
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
