//! What comes out of the endpoint becomes events of identifiers and transitions of queue pairs.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use softverbs_proto::cm::event::{CmEvent, QpAction, Rejected, Reply, Request};
use softverbs_proto::cm::params::{ConnectionId, ListenToken, RejectParams};
use softverbs_proto::cm::state::State as CmState;
use softverbs_wire::ib::cm::RejReason;
use softverbs_wire::ib::rdma_cm::ServicePort;
use softverbs_wire::num::TimeoutCode;

use super::{Ended, Incoming, Manager};
use crate::cm::CmId;
use crate::cm::event::{BacklogPlace, ConnParam, EventKind};
use crate::cm::id::{IdShared, Phase};
use crate::cm::options::Options;
use crate::cm::resolve;
use crate::context::Context;
use crate::device::Transport;
use crate::roce::ConnectionOfQp;

/// A listening identifier.
pub(in crate::cm) struct Listener {
    pub(in crate::cm) id: Weak<IdShared>,
    pub(in crate::cm) options: Options,
    /// The address that it is bound to.
    pub(in crate::cm) address: IpAddr,
    /// Connect requests that wait to be fetched.
    pub(in crate::cm) waiting: Arc<AtomicUsize>,
    pub(in crate::cm) backlog: usize,
}

impl Listener {
    /// Whether a request to this address is for it.
    fn takes(&self, address: IpAddr) -> bool {
        match self.address {
            IpAddr::V4(v4) => address.is_ipv4() || !v4.is_unspecified(),
            IpAddr::V6(_) => address.is_ipv6() || !self.options.afonly,
        }
    }
}

impl Listener {
    /// The identifier of a request.
    pub(super) fn new_id(&self, listening: &IdShared) -> CmId {
        IdShared::create(
            &listening.channel(),
            listening.ps,
            listening.context(),
            listening.is_sync(),
            self.options,
        )
    }
}

impl Manager {
    /// Called by the thread that pumps, without any other lock. An end is reported by the caller.
    pub(super) fn on_event(
        &'static self,
        id: ConnectionId,
        event: CmEvent,
        shared: Option<&Arc<IdShared>>,
    ) -> Option<Ended> {
        match (event, shared) {
            (CmEvent::Request(request), _) => self.on_request(id, *request),
            (CmEvent::SidrRequest(request), _) => self.on_sidr_request(id, *request),
            (CmEvent::Reply(reply), Some(shared)) => self.on_reply(id, *reply, shared),
            (CmEvent::Established, Some(shared)) => {
                self.watch_peer(id);
                shared.on_established();
            }
            (CmEvent::Rejected(rejected), Some(shared)) => self.on_rejected(id, *rejected, shared),
            (CmEvent::Unreachable(status), Some(shared)) => {
                self.lock().forget(id);
                shared.on_ib_failed(EventKind::Unreachable, status.errno(), Vec::new());
            }
            (CmEvent::Disconnected(status), Some(shared)) => {
                self.on_disconnected(id, shared);
                return Some(Ended {
                    connection: id,
                    id: shared.clone(),
                    status,
                });
            }
            (CmEvent::TimewaitExit, Some(shared)) => {
                self.lock().forget(id);
                shared.on_timewait_exit();
            }
            (CmEvent::Qp(action), Some(shared)) => self.on_action(id, action, shared),
            // Nobody is there any more who could want it.
            (_, None) => self.give_up(id),
            (CmEvent::SidrReply(reply), Some(shared)) => self.on_sidr_reply(id, *reply, shared),
        }
        None
    }

    /// Who listens, and the device of a local address.
    pub(super) fn listener(
        &self,
        token: ListenToken,
        local: IpAddr,
        port: u16,
    ) -> Option<(Arc<Listener>, Arc<IdShared>, Context)> {
        let listener = {
            let inner = self.lock();
            let all = inner.listeners.get(&token)?;
            all.iter().find(|listener| listener.takes(local)).cloned()?
        };
        let listening = listener.id.upgrade()?;
        let device = resolve::check_bind(SocketAddr::new(local, port)).ok()??;
        let verbs = Context::shared(&device.with_transport(Transport::Roce)).ok()?;
        Some((listener, listening, verbs))
    }

    pub(super) fn give_up(&self, id: ConnectionId) {
        let now = self.engine.now();
        let mut inner = self.lock();
        inner.endpoint.destroy(now, id);
        inner.forget(id);
    }

    fn reject(&self, id: ConnectionId, reason: RejReason) {
        let now = self.engine.now();
        let mut inner = self.lock();
        let _ = inner
            .endpoint
            .reject(now, id, &RejectParams::reason(reason));
        inner.forget(id);
    }

    fn on_request(&'static self, id: ConnectionId, request: Request) {
        let local = request.address.local.to_ip();
        let port = ServicePort::from_service_id(request.service_id).map_or(0, |to| to.port);
        let Some((listener, listening, verbs)) = self.listener(request.listener, local, port)
        else {
            self.reject(id, RejReason::CONSUMER);
            return;
        };
        if request.path_mtu.octets() > verbs.device().active_mtu().octets() as usize {
            self.reject(id, RejReason::INVALID_PATH_MTU);
            return;
        }
        let Some(place) = BacklogPlace::take(&listener.waiting, listener.backlog) else {
            // As Linux does: the peer asks again.
            let now = self.engine.now();
            let _ = self.lock().endpoint.drop_request(now, id);
            return;
        };
        let peer = request.cma.and_then(|cma| cma.source_ip());
        let peer_port = request.cma.map_or(0, |cma| cma.source_port);
        let device = verbs.device();
        let param = ConnParam {
            private_data: request.private_data,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: request.flow_control,
            retry_count: request.retry_count.get(),
            rnr_retry_count: request.rnr_retry_count.get(),
            srq: request.srq,
            qp_num: request.remote_qpn,
            ud: None,
        };
        let remote = peer.unwrap_or_else(|| request.address.remote.to_ip());
        let new = listener.new_id(&listening);
        {
            let mut state = new.shared().lock();
            state.local = Some(device.socket_addr(local, port));
            state.peer = Some(device.socket_addr(remote, peer_port));
            state.phase = Phase::IbRequested(Incoming {
                responder_resources: request.responder_resources,
                initiator_depth: request.initiator_depth,
            });
            state.connection = Some(id);
            state.passive = true;
            state.verbs = Some(verbs);
        }
        self.know(id, new.shared());
        listening.report_request(new, place, param);
    }

    pub(super) fn know(&self, id: ConnectionId, shared: &Arc<IdShared>) {
        self.lock().ids.insert(id, Arc::downgrade(shared));
    }

    fn on_reply(&self, id: ConnectionId, reply: Reply, shared: &Arc<IdShared>) {
        let param = ConnParam {
            private_data: reply.private_data,
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            flow_control: reply.flow_control,
            rnr_retry_count: reply.rnr_retry_count.get(),
            srq: reply.srq,
            qp_num: reply.remote_qpn,
            ..ConnParam::default().cleared()
        };
        match shared.on_ib_reply(param) {
            Next::Establish => {
                let now = self.engine.now();
                let _ = self.lock().endpoint.establish(now, id);
            }
            Next::Application => {}
            Next::Nobody => self.give_up(id),
        }
    }

    fn on_rejected(&self, id: ConnectionId, rejected: Rejected, shared: &Arc<IdShared>) {
        // A connection that was established stays in TimeWait.
        if self.lock().endpoint.state(id) == CmState::Idle {
            self.lock().forget(id);
        }
        let status = rejected.reason.get().into();
        shared.on_ib_failed(EventKind::Rejected, status, rejected.private_data);
    }

    fn on_disconnected(&self, id: ConnectionId, shared: &Arc<IdShared>) {
        // The peer's queue pair is in the error state; so is ours, before the application hears of
        // it, and the peer need not wait for the application.
        let qp = shared.lock().qp.clone();
        if let Some(qp) = qp {
            qp.inner().disconnect();
        }
        let now = self.engine.now();
        let _ = self.lock().endpoint.disconnect_reply(now, id);
    }

    fn on_action(&'static self, id: ConnectionId, action: QpAction, shared: &Arc<IdShared>) {
        let (action, qp, named, passive) = {
            let mut state = shared.lock();
            let action = match action {
                QpAction::ToRtr(rtr) => {
                    state.rtr = Some(rtr);
                    action
                }
                QpAction::ToRts(mut rts) => {
                    if let Some(timeout) = state.options.ack_timeout {
                        rts.timeout = TimeoutCode::new(timeout);
                    }
                    state.rts = Some(rts);
                    QpAction::ToRts(rts)
                }
                _ => action,
            };
            let named = state.named.upgrade();
            (action, state.qp.clone(), named, state.passive)
        };
        let Some(qp) = qp else {
            // The application moves its queue pair itself.
            if let (QpAction::OpenGate(_), Some(named)) = (action, named) {
                named.cm_open_gate();
            }
            return;
        };
        let connection = ConnectionOfQp {
            manager: self,
            id,
            owned: true,
        };
        let done = match action {
            QpAction::ToRtr(attributes) => qp.inner().cm_to_rtr(&attributes, passive, connection),
            QpAction::ToRts(attributes) => qp.inner().cm_to_rts(&attributes),
            QpAction::OpenGate(_) => {
                qp.inner().cm_open_gate();
                Ok(())
            }
            QpAction::ToErr => {
                qp.inner().disconnect();
                Ok(())
            }
        };
        if let Err(error) = done {
            self.give_up(id);
            if passive {
                // The call of `accept` finds it.
                self.lock().failed.insert(id, error.errno());
            } else {
                shared.on_ib_failed(EventKind::ConnectError, -error.errno(), Vec::new());
            }
        }
    }
}

/// Who goes on when the peer has accepted.
enum Next {
    /// We do: the queue pair is ready.
    Establish,
    /// The application does, whose queue pair it is.
    Application,
    /// Nobody waits for it any more.
    Nobody,
}

impl IdShared {
    /// The peer accepts.
    fn on_ib_reply(&self, param: ConnParam) -> Next {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::IbConnecting) {
            return Next::Nobody;
        }
        if state.qp.is_none() {
            state.phase = Phase::IbResponded;
            self.report(EventKind::ConnectResponse, 0, param);
            return Next::Application;
        }
        state.phase = Phase::Establishing(param);
        Next::Establish
    }

    /// The one terminal event of an attempt, or the end of a connection that the peer takes back.
    pub(super) fn on_ib_failed(&self, kind: EventKind, status: i32, private_data: Vec<u8>) {
        let mut state = self.lock();
        let concerns = matches!(
            state.phase,
            Phase::IbConnecting
                | Phase::IbResponded
                | Phase::IbRequested(_)
                | Phase::Establishing(_)
                | Phase::Established
        );
        if concerns {
            let before = std::mem::replace(&mut state.phase, Phase::Failed);
            let param = ConnParam {
                private_data,
                ..ConnParam::default().cleared()
            };
            let consumer = i32::from(RejReason::CONSUMER.get());
            let consumer_reject = kind == EventKind::Rejected && status == consumer;
            self.report_ending(kind, status, param, consumer_reject);
            drop(state);
            drop(before);
        }
    }

    pub(super) fn on_ib_disconnected(&self, status: i32) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Establishing(_) | Phase::Established) {
            state.phase = Phase::Disconnected;
            let param = ConnParam::default().cleared();
            self.report(EventKind::Disconnected, status, param);
        }
    }

    fn on_timewait_exit(&self) {
        let mut state = self.lock();
        state.connection = None;
        if matches!(state.phase, Phase::Disconnected) {
            let param = ConnParam::default().cleared();
            self.report(EventKind::TimewaitExit, 0, param);
        }
    }
}
