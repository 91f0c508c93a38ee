//! The active side: TCP connect, MPA request, MPA reply. Driven by the engine's thread.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::sys::epoll::EpollFlags;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use socket2::{SockAddr, SockRef, Socket};
use softverbs_proto::iwarp::negotiate::{Initiator, InitiatorOutcome, Negotiated, Wishes};
use softverbs_proto::iwarp::stream::Role;
use softverbs_proto::time::Time;

use super::event::{ConnParam, EventKind};
use super::id::{IdShared, Phase};
use super::options::Options;
use crate::engine::edge::{self, Edge};
use crate::engine::sources::{Source, Token};
use crate::engine::{Engine, Set};
use crate::error::{Error, Result};
use crate::qp::Linger;

/// One attempt to connect.
pub(super) struct Attempt {
    id: Weak<IdShared>,
    peer: SocketAddr,
    options: Options,
    state: Mutex<AttemptState>,
}

struct AttemptState {
    step: Step,
    token: Option<Token>,
    wishes: Wishes,
    private_data: Vec<u8>,
    /// Where the socket is bound, for a second attempt.
    source: Option<SocketAddr>,
    /// The application has destroyed the identifier.
    cancelled: bool,
}

enum Step {
    /// TCP connects.
    Tcp {
        socket: Socket,
        until: Time,
        failed: Option<i32>,
    },
    /// The request has been sent.
    Mpa {
        socket: Socket,
        initiator: Initiator,
        edge: Edge,
    },
    Over,
}

impl Attempt {
    /// Begins to connect; every result, an immediate failure included, becomes an event.
    pub(super) fn new(
        id: &Arc<IdShared>,
        peer: SocketAddr,
        options: Options,
        wishes: Wishes,
        private_data: Vec<u8>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id: Arc::downgrade(id),
            peer,
            options,
            state: Mutex::new(AttemptState {
                step: Step::Over,
                token: None,
                wishes,
                private_data,
                source: None,
                cancelled: false,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, AttemptState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts TCP on a bound socket, or on a new one. Returns its local address.
    pub(super) fn start(
        self: &Arc<Self>,
        engine: &Engine,
        socket: Option<Socket>,
        source: Option<SocketAddr>,
    ) -> Result<Option<SocketAddr>> {
        let mut state = self.lock();
        state.source = source;
        self.start_tcp(engine, &mut state, socket)
    }

    fn start_tcp(
        self: &Arc<Self>,
        engine: &Engine,
        state: &mut AttemptState,
        socket: Option<Socket>,
    ) -> Result<Option<SocketAddr>> {
        if state.cancelled {
            return Err(Error::invalid("id", "was destroyed"));
        }
        let socket = match socket {
            Some(socket) => {
                if socket.is_listener().unwrap_or(false) {
                    // It was a listener's at this address a moment ago. It stays bound, unless it was
                    // the kernel that had chosen the port.
                    let _ = socket.shutdown(std::net::Shutdown::Both);
                    if let Some(source) = state.source {
                        let _ = socket.bind(&SockAddr::from(source));
                    }
                }
                socket
            }
            None => {
                let socket = self
                    .options
                    .socket(&self.peer)
                    .map_err(Error::from_call("socket"))?;
                if let Some(source) = state.source {
                    if source.port() == 0 {
                        // The kernel then chooses the port as it connects, when it knows the peer:
                        // before that it has to be nobody else's, which takes the longer to find the
                        // more connections there are. Where it cannot, it chooses at once.
                        let _ = setsockopt(&socket, IpBindAddressNoPort, &true);
                    }
                    socket
                        .bind(&SockAddr::from(source))
                        .map_err(Error::from_call("bind"))?;
                }
                socket
            }
        };
        self.options
            .apply(&SockRef::from(&socket), self.peer.is_ipv6())
            .map_err(Error::from_call("setsockopt"))?;
        let result = socket.connect(&SockAddr::from(self.peer));
        let until = engine.now() + self.options.connect_timeout;
        // The application hears of an immediate failure as of any later one: by an event.
        let failed = match result {
            Err(error) => error
                .raw_os_error()
                .filter(|errno| *errno != libc::EINPROGRESS),
            Ok(()) => None,
        };
        let source: Arc<dyn Source> = self.clone();
        let token = engine.sources.add(source);
        if let Err(error) = engine.watch(Set::Control, token, socket.as_fd(), EpollFlags::EPOLLOUT)
        {
            engine.sources.remove(token);
            return Err(error);
        }
        let local = socket
            .local_addr()
            .ok()
            .and_then(|address| address.as_socket());
        state.token = Some(token);
        state.step = Step::Tcp {
            socket,
            until,
            failed,
        };
        engine.set_timer(token, Some(until));
        Ok(local)
    }

    /// The application has destroyed the identifier.
    pub(super) fn cancel(&self) {
        let mut state = self.lock();
        state.cancelled = true;
        if let Ok(engine) = Engine::get() {
            drop(state.take_socket(engine));
        }
    }

    fn fail(&self, mut state: MutexGuard<'_, AttemptState>, engine: &Engine, mut failure: Failure) {
        let socket = state.take_socket(engine);
        drop(state);
        if let Some(socket) = socket {
            if failure.last_words.is_empty() {
                drop(socket);
            } else {
                let last_words = std::mem::take(&mut failure.last_words);
                Linger::start(engine, OwnedFd::from(socket), last_words);
            }
        }
        if let Some(id) = self.id.upgrade() {
            id.on_failed(failure);
        }
    }

    fn step(self: &Arc<Self>, engine: &Engine, timed_out: bool) {
        let mut state = self.lock();
        let now = engine.now();
        let token = state.token;
        match &mut state.step {
            Step::Over => {}
            Step::Tcp {
                socket,
                until,
                failed,
            } => {
                let pending = || {
                    socket
                        .take_error()
                        .ok()
                        .flatten()
                        .and_then(|e| e.raw_os_error())
                };
                let error = failed.or_else(pending);
                let connected = error.is_none() && socket.peer_addr().is_ok();
                if connected {
                    self.send_request(state, engine);
                } else if let Some(errno) = error {
                    self.fail(state, engine, Failure::tcp(errno));
                } else if timed_out && *until <= now {
                    self.fail(state, engine, Failure::tcp(libc::ETIMEDOUT));
                }
            }
            Step::Mpa {
                socket,
                initiator,
                edge,
            } => {
                if timed_out && initiator.deadline() <= now {
                    let outcome = initiator.on_timeout(now);
                    self.conclude(state, engine, outcome, &[]);
                    return;
                }
                let mut room = [0; 4096];
                let got = edge::receive(edge, now, socket.as_fd(), &mut room);
                if edge.is_some()
                    && let Some(token) = token
                {
                    let next = edge::earlier(edge, Some(initiator.deadline()));
                    engine.set_timer(token, next);
                }
                let (outcome, bytes) = match got {
                    Ok(0) => (initiator.on_eof(false), &room[..0]),
                    Ok(got) => (initiator.on_bytes(now, &room[..got]), &room[..got]),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                    Err(_) => (initiator.on_eof(true), &room[..0]),
                };
                self.conclude(state, engine, outcome, bytes);
            }
        }
    }

    fn send_request(&self, mut state: MutexGuard<'_, AttemptState>, engine: &Engine) {
        let now = engine.now();
        let mut initiator = Initiator::new(now, state.wishes.clone(), &state.private_data);
        let request = initiator.transmit().unwrap_or_default();
        let Step::Tcp { socket, .. } = std::mem::replace(&mut state.step, Step::Over) else {
            return;
        };
        let mut edge = edge::new(self.peer.ip());
        let sent = edge::send(&mut edge, now, socket.as_fd(), &request);
        let deadline = edge::earlier(&edge, Some(initiator.deadline()));
        if let Some(token) = state.token {
            engine.rewatch(Set::Control, token, socket.as_fd(), EpollFlags::EPOLLIN);
            engine.set_timer(token, deadline);
        }
        state.step = Step::Mpa {
            socket,
            initiator,
            edge,
        };
        // A new connection has room for such a small frame.
        if !matches!(sent, Ok(octets) if octets == request.len()) {
            self.fail(state, engine, Failure::tcp(libc::ECONNRESET));
        }
    }

    fn conclude(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, AttemptState>,
        engine: &Engine,
        outcome: InitiatorOutcome,
        bytes: &[u8],
    ) {
        match outcome {
            InitiatorOutcome::Pending => {}
            InitiatorOutcome::Established {
                negotiated,
                private_data,
                consumed,
            } => {
                let edge = match &mut state.step {
                    Step::Mpa { edge, .. } => edge.take(),
                    _ => None,
                };
                let Some(socket) = state.take_socket(engine) else {
                    return;
                };
                drop(state);
                self.establish(socket, negotiated, private_data, &bytes[consumed..], edge);
            }
            InitiatorOutcome::Rejected { private_data } => {
                let failure = Failure {
                    private_data,
                    consumer_reject: true,
                    ..Failure::tcp(libc::ECONNREFUSED)
                };
                self.fail(state, engine, failure);
            }
            InitiatorOutcome::RetryWithRevision1 => {
                drop(state.take_socket(engine));
                state.wishes.revision = 1;
                if let Err(error) = self.start_tcp(engine, &mut state, None) {
                    self.fail(state, engine, Failure::tcp(error.errno()));
                }
            }
            InitiatorOutcome::Closed => self.fail(state, engine, Failure::tcp(libc::ECONNRESET)),
            InitiatorOutcome::TimedOut => self.fail(state, engine, Failure::tcp(libc::ETIMEDOUT)),
            InitiatorOutcome::Failed { terminate, .. } => {
                let failure = Failure {
                    kind: EventKind::ConnectError,
                    status: -libc::EINVAL,
                    private_data: Vec::new(),
                    consumer_reject: false,
                    last_words: terminate,
                };
                self.fail(state, engine, failure);
            }
        }
    }

    /// The MPA start-up is complete: the queue pair takes over.
    fn establish(
        &self,
        socket: Socket,
        negotiated: Negotiated,
        private_data: Vec<u8>,
        early: &[u8],
        edge: Edge,
    ) {
        let Some(id) = self.id.upgrade() else { return };
        let sizing = self.options.sizing(&SockRef::from(&socket));
        let (qp, attempt) = {
            let mut state = id.lock();
            if !matches!(state.phase, Phase::Connecting(_)) {
                return;
            }
            state.local = socket
                .local_addr()
                .ok()
                .and_then(|address| address.as_socket())
                .or(state.local);
            // wire of the kernel: own final depths, IRD as initiator_depth.
            let param = ConnParam {
                private_data,
                initiator_depth: depth(negotiated.ird),
                responder_resources: depth(negotiated.ord),
                ..ConnParam::default().cleared()
            };
            let before = std::mem::replace(&mut state.phase, Phase::Establishing(param));
            (state.connected_qp(), before)
        };
        drop(attempt);
        let Some(qp) = qp else {
            id.on_closed(None);
            return;
        };
        let attached = qp.attach(
            OwnedFd::from(socket),
            Role::Initiator,
            negotiated,
            sizing,
            early,
            edge,
            self.id.clone(),
        );
        if attached.is_err() {
            id.on_closed(None);
        }
    }
}

pub(super) fn depth(negotiated: u16) -> u8 {
    u8::try_from(negotiated).unwrap_or(u8::MAX)
}

/// How an attempt ended.
pub(super) struct Failure {
    pub(super) kind: EventKind,
    pub(super) status: i32,
    pub(super) private_data: Vec<u8>,
    /// The peer said so.
    pub(super) consumer_reject: bool,
    /// Sent before the connection is closed.
    last_words: Vec<u8>,
}

impl Failure {
    /// The events that the kernel makes of these errors of a TCP connection.
    fn tcp(errno: i32) -> Self {
        let kind = match errno {
            libc::ECONNREFUSED | libc::ECONNRESET => EventKind::Rejected,
            libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => EventKind::Unreachable,
            _ => EventKind::ConnectError,
        };
        Self {
            kind,
            status: -errno,
            private_data: Vec::new(),
            consumer_reject: false,
            last_words: Vec::new(),
        }
    }
}

impl AttemptState {
    fn take_socket(&mut self, engine: &Engine) -> Option<Socket> {
        let socket = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Tcp { socket, .. } | Step::Mpa { socket, .. } => Some(socket),
            Step::Over => None,
        };
        if let Some(socket) = &socket {
            engine.unwatch(Set::Control, socket.as_fd());
        }
        if let Some(token) = self.token.take() {
            engine.set_timer(token, None);
            engine.sources.remove(token);
        }
        socket
    }
}

/// A source is called through `Arc<dyn Source>`; the attempt needs its own `Arc` to restart.
impl Source for Attempt {
    fn ready(&self, engine: &Engine, _: EpollFlags) {
        self.serve(engine, false);
    }

    fn timeout(&self, engine: &Engine, _: Time) {
        self.serve(engine, true);
    }
}

impl Attempt {
    fn serve(&self, engine: &Engine, timed_out: bool) {
        match self.own() {
            Some(me) => me.step(engine, timed_out),
            // Nobody waits for it any more; a socket that stays ready would keep the engine busy.
            None => drop(self.lock().take_socket(engine)),
        }
    }

    fn own(&self) -> Option<Arc<Self>> {
        let id = self.id.upgrade()?;
        let state = id.lock();
        match &state.phase {
            Phase::Connecting(attempt) => Some(attempt.clone()),
            _ => None,
        }
    }
}
