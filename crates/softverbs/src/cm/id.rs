//! The state of an identifier, and how it changes.
//!
//! Order of locks: a queue pair's lock, then `IdShared::state`, then a channel's queue. Nothing
//! here calls a queue pair (or drops a handle of one) while it holds `state`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use softverbs_proto::cm::event::{RtrAttributes, RtsAttributes};
use softverbs_proto::cm::params::{ConnectionId, ListenToken};
use softverbs_proto::iwarp::stream::CloseCause;
use softverbs_wire::num::{Psn, Qpn};

use super::active::{Attempt, Failure};
use super::event::{BacklogPlace, ConnParam, EventChannel, EventKind, Queued};
use super::ib::{Bound, Incoming, Manager};
use super::options::Options;
use super::passive::{Listener, Request};
use super::{CmId, PortSpace};
use crate::context::Context;
use crate::device::Transport;
use crate::event_queue::EventCounter;
use crate::qp::{Qp, QpInner, registry};

/// Where an identifier stands; each phase holds what only it needs.
pub(super) enum Phase {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening(Arc<Listener>),
    /// The same over RoCE.
    IbListening(ListenToken),
    /// The attempt is under way, up to the MPA reply.
    Connecting(Arc<Attempt>),
    /// A request has been sent over RoCE.
    IbConnecting,
    /// The peer has accepted, and waits for `establish`: the identifier has no queue pair.
    IbResponded,
    /// The peer or the application has accepted, `Established` has not been reported. Holds what it
    /// reports.
    Establishing(ConnParam),
    /// A connect request that waits for `accept` or `reject`.
    Requested(Arc<Request>),
    /// The same over RoCE.
    IbRequested(Incoming),
    Established,
    Disconnected,
    /// Rejected, unreachable, failed: the terminal event has been reported.
    Failed,
    Destroyed,
}

impl Phase {
    fn is_listening(&self) -> bool {
        matches!(self, Self::Listening(_) | Self::IbListening(_))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Bound => "bound",
            Self::AddrResolved => "address resolved",
            Self::RouteResolved => "route resolved",
            Self::Listening(_) | Self::IbListening(_) => "listening",
            Self::Connecting(_) | Self::IbConnecting => "connecting",
            Self::IbResponded => "accepted by the peer",
            Self::Establishing(_) => "establishing",
            Self::Requested(_) | Self::IbRequested(_) => "connect request",
            Self::Established => "established",
            Self::Disconnected => "disconnected",
            Self::Failed => "failed",
            Self::Destroyed => "destroyed",
        }
    }
}

pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) verbs: Option<Context>,
    pub(super) qp: Option<Qp>,
    /// One of the application's that `connect` or `accept` named by its number.
    pub(super) named: Weak<QpInner>,
    /// What the queue pair of the connection needs, as far as the two sides have agreed (RoCE).
    pub(super) rtr: Option<RtrAttributes>,
    pub(super) rts: Option<RtsAttributes>,
    /// First sequence number that the peer sends (RoCE).
    pub(super) psn: Option<Psn>,
    pub(super) options: Options,
    /// Bound, and kept for `listen` or `connect`.
    pub(super) socket: Option<socket2::Socket>,
    /// The port of the RDMA CM that it is bound to (RoCE).
    pub(super) bound: Option<Bound>,
    /// Its connection, from the request on (RoCE).
    pub(super) connection: Option<ConnectionId>,
    /// The peer asked for the connection.
    pub(super) passive: bool,
}

impl State {
    /// The queue pair of the connection: the identifier's, or the one that was named.
    pub(super) fn connected_qp(&self) -> Option<Arc<QpInner>> {
        match &self.qp {
            Some(qp) => Some(qp.inner().clone()),
            None => self.named.upgrade(),
        }
    }

    /// The same before there is a connection; `qp_num` names it if the identifier has none.
    pub(super) fn qp_to_connect(&mut self, qp_num: Qpn) -> Option<Arc<QpInner>> {
        if self.qp.is_none() {
            let named = registry::find(self.options.transport, qp_num);
            self.named = named.as_ref().map(Arc::downgrade).unwrap_or_default();
        }
        self.connected_qp()
    }

    /// The connection has failed, and the application knows.
    pub(super) fn fail(&mut self) {
        if !matches!(self.phase, Phase::Destroyed) {
            self.phase = Phase::Failed;
        }
    }
}

/// What all handles of an identifier, and the engine, share.
pub(crate) struct IdShared {
    pub(super) me: Weak<Self>,
    pub(super) ps: PortSpace,
    context: AtomicU64,
    /// Calls wait for their events themselves.
    pub(super) sync: AtomicBool,
    pub(super) state: Mutex<State>,
    channel: Mutex<EventChannel>,
    handle: Mutex<Weak<Handle>>,
    pub(super) unacked: EventCounter,
    /// Its events that are queued, and maybe one that is just being pushed.
    pub(super) queued: AtomicUsize,
}

/// Destroys the identifier when the application has let go of it.
pub(super) struct Handle(pub(super) Arc<IdShared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

impl IdShared {
    pub(super) fn create(
        channel: &EventChannel,
        ps: PortSpace,
        context: u64,
        sync: bool,
        options: Options,
    ) -> CmId {
        let shared = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            ps,
            context: AtomicU64::new(context),
            sync: AtomicBool::new(sync),
            state: Mutex::new(State {
                phase: Phase::Idle,
                local: None,
                peer: None,
                verbs: None,
                qp: None,
                named: Weak::new(),
                rtr: None,
                rts: None,
                psn: None,
                options,
                socket: None,
                bound: None,
                connection: None,
                passive: false,
            }),
            channel: Mutex::new(channel.clone()),
            handle: Mutex::new(Weak::new()),
            unacked: EventCounter::new(),
            queued: AtomicUsize::new(0),
        });
        let handle = Arc::new(Handle(shared.clone()));
        *shared.handle.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&handle);
        CmId { handle }
    }

    /// The application's value.
    pub(super) fn context(&self) -> u64 {
        self.context.load(Ordering::Acquire)
    }

    pub(super) fn set_context(&self, context: u64) {
        self.context.store(context, Ordering::Release);
    }

    pub(super) fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn channel(&self) -> EventChannel {
        self.channel
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// A new handle, while the application still has one.
    pub(super) fn handle(&self) -> Option<CmId> {
        let handle = self
            .handle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .upgrade()?;
        Some(CmId { handle })
    }

    /// Queues an event of this identifier.
    pub(super) fn report(&self, kind: EventKind, status: i32, param: ConnParam) {
        self.report_ending(kind, status, param, false);
    }

    pub(super) fn report_ending(
        &self,
        kind: EventKind,
        status: i32,
        param: ConnParam,
        consumer_reject: bool,
    ) {
        let Some(id) = self.me.upgrade() else { return };
        // Held over the push, so that `migrate` does not overlook it.
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.push(Queued {
            id,
            request: None,
            listen_id: None,
            backlog: None,
            kind,
            status,
            param,
            consumer_reject,
        });
    }

    /// Queues a connect request that came to this listening identifier. If that listens no more,
    /// the request is dropped, and so rejected.
    pub(super) fn report_request(&self, request: CmId, place: BacklogPlace, param: ConnParam) {
        let state = self.lock();
        if !state.phase.is_listening() {
            drop(state);
            return;
        }
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        request.shared().follow(&channel);
        channel.push(Queued {
            id: request.shared().clone(),
            request: Some(request),
            listen_id: self.me.upgrade(),
            backlog: Some(place),
            kind: EventKind::ConnectRequest,
            status: 0,
            param,
            consumer_reject: false,
        });
    }

    /// Moves to another channel, with the events that have not been fetched.
    pub(super) fn migrate(&self, to: &EventChannel) {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = channel.remove_of(self);
        for event in mine {
            if let Some(request) = &event.request {
                request.shared().follow(to);
            }
            to.push(event);
        }
        *channel = to.clone();
    }

    /// A connect request has its listener's channel until it is fetched.
    fn follow(&self, channel: &EventChannel) {
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = channel.clone();
    }

    /// The connection is established. iWARP: called under the queue pair's lock.
    pub(crate) fn on_established(&self) {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Establishing(_)) {
            return;
        }
        let before = std::mem::replace(&mut state.phase, Phase::Established);
        if let Phase::Establishing(param) = before {
            self.report(EventKind::Established, 0, param);
        }
    }

    /// The stream has ended. Called under the queue pair's lock.
    pub(crate) fn on_closed(&self, cause: Option<&CloseCause>) {
        let mut state = self.lock();
        match state.phase {
            Phase::Established => {
                state.phase = Phase::Disconnected;
                self.report(EventKind::Disconnected, 0, ConnParam::default().cleared());
            }
            Phase::Establishing(_) => {
                state.phase = Phase::Failed;
                let (kind, status) = match cause {
                    Some(CloseCause::NoRtr) => (EventKind::Unreachable, -libc::ETIMEDOUT),
                    Some(CloseCause::Fault(_) | CloseCause::PeerTerminated(_)) => {
                        (EventKind::ConnectError, -libc::EPROTO)
                    }
                    _ => (EventKind::Rejected, -libc::ECONNRESET),
                };
                self.report(kind, status, ConnParam::default().cleared());
            }
            _ => {}
        }
    }

    /// The attempt to connect has failed: its one terminal event.
    pub(super) fn on_failed(&self, failure: Failure) {
        let qp = {
            let mut state = self.lock();
            if !matches!(state.phase, Phase::Connecting(_)) {
                return;
            }
            state.phase = Phase::Failed;
            state.connected_qp()
        };
        // Requests that were posted meanwhile are flushed before the application hears of it.
        if let Some(qp) = qp {
            qp.abort(CloseCause::Local);
        }
        let Failure {
            kind,
            status,
            private_data,
            consumer_reject,
            ..
        } = failure;
        let param = ConnParam {
            private_data,
            ..ConnParam::default().cleared()
        };
        self.report_ending(kind, status, param, consumer_reject);
    }

    /// Ends everything that this identifier started; its events that have not been fetched go.
    pub(super) fn destroy(&self) {
        let last = self.lock().connected_qp();
        if let Some(last) = last {
            last.send_last();
        }
        let (phase, qp, named, socket, bound, connection) = {
            let mut state = self.lock();
            // Over RoCE it is the application that ends what it has named.
            let named = match state.options.transport {
                Transport::Iwarp => std::mem::take(&mut state.named).upgrade(),
                Transport::Roce => None,
            };
            let phase = std::mem::replace(&mut state.phase, Phase::Destroyed);
            let connection = state.connection.take();
            (
                phase,
                state.qp.take(),
                named,
                state.socket.take(),
                state.bound.take(),
                connection,
            )
        };
        if let Some(connection) = connection
            && let Ok(manager) = Manager::get()
        {
            manager.destroy(connection);
        }
        let connected = matches!(
            phase,
            Phase::Connecting(_) | Phase::Establishing(_) | Phase::Established
        );
        match phase {
            Phase::Listening(listener) => listener.close(),
            Phase::IbListening(token) => {
                if let Ok(manager) = Manager::get() {
                    manager.unlisten(token, self);
                }
            }
            Phase::Connecting(attempt) => attempt.cancel(),
            Phase::Requested(request) => request.refuse(&[]),
            _ => {}
        }
        if let Some(qp) = &qp {
            qp.inner().abort(CloseCause::Local);
        }
        if let Some(named) = &named
            && connected
        {
            named.abort(CloseCause::Local);
        }
        drop((qp, named, socket, bound));
        let gone = self.channel().remove_of(self);
        // Among them may be connect requests, which are rejected by this.
        drop(gone);
    }
}

impl ConnParam {
    /// As the kernel reports it in an event that has no parameters.
    pub(super) fn cleared(mut self) -> Self {
        self.responder_resources = 0;
        self.initiator_depth = 0;
        self.retry_count = 0;
        self.rnr_retry_count = 0;
        self
    }
}
