//! The passive side: listeners, and connections whose MPA request is awaited or waits for the
//! application.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nix::sys::epoll::EpollFlags;
use socket2::{SockRef, Socket};
use softverbs_proto::iwarp::negotiate::{Negotiated, Responder, ResponderOutcome, Wishes};
use softverbs_proto::time::Time;

use super::active::depth;
use super::event::{BacklogPlace, ConnParam};
use super::id::{IdShared, Phase};
use super::options::Options;
use super::{kept, resolve};
use crate::context::Context;
use crate::engine::edge::{self, Edge};
use crate::engine::sources::{Source, Token};
use crate::engine::{Engine, Set};
use crate::error::{Error, Result};
use crate::qp::Linger;

/// How long a peer may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// When no descriptor was left for a new connection, how long until the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections accepted before other sources get their turn.
const ACCEPT_BUDGET: usize = 64;

/// A listening socket.
pub(super) struct Listener {
    me: Weak<Self>,
    id: Weak<IdShared>,
    options: Options,
    socket: Socket,
    token: Mutex<Option<Token>>,
    /// Connect requests that wait to be fetched.
    waiting: Arc<AtomicUsize>,
    backlog: usize,
    /// Somebody has come.
    served: AtomicBool,
    /// Connections whose request is not complete, at most: what unknown peers may cost.
    max_incomplete: usize,
    incomplete: Mutex<HashMap<u64, Arc<Request>>>,
}

impl Listener {
    pub(super) fn start(
        engine: &Engine,
        id: &Arc<IdShared>,
        socket: Socket,
        options: Options,
        backlog: usize,
    ) -> Result<Arc<Self>> {
        // TCP's own backlog is not the application's: those are connections whose request has
        // not been read.
        socket.listen(4096).map_err(Error::from_call("listen"))?;
        let listener = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            id: Arc::downgrade(id),
            options,
            socket,
            token: Mutex::new(None),
            waiting: Arc::default(),
            backlog,
            served: AtomicBool::new(false),
            max_incomplete: Engine::strangers_share(),
            incomplete: Mutex::default(),
        });
        let source: Arc<dyn Source> = listener.clone();
        let token = engine.sources.add(source);
        *listener
            .token
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(token);
        engine.watch(
            Set::Control,
            token,
            listener.socket.as_fd(),
            EpollFlags::EPOLLIN,
        )?;
        Ok(listener)
    }

    /// No new requests; incomplete ones are dropped.
    pub(super) fn close(&self) {
        let Ok(engine) = Engine::get() else { return };
        let token = self
            .token
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        engine.unwatch(Set::Control, self.socket.as_fd());
        let may_return = self.served.load(Ordering::Relaxed);
        if may_return && kept::keep(engine, &self.socket, self.options.afonly) {
            self.end(engine, token);
            return;
        }
        // The socket may live on for a moment in the engine's hands; nobody may connect to it.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.end(engine, token);
    }

    fn end(&self, engine: &Engine, token: Option<Token>) {
        if let Some(token) = token {
            engine.set_timer(token, None);
            engine.sources.remove(token);
        }
        let incomplete: Vec<_> = {
            let mut map = self
                .incomplete
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            map.drain().map(|(_, request)| request).collect()
        };
        for request in incomplete {
            request.refuse(&[]);
        }
    }

    fn accept(&self, engine: &Engine) {
        for _ in 0..ACCEPT_BUDGET {
            match self.socket.accept() {
                Ok((socket, peer)) => {
                    let Some(peer) = peer.as_socket() else {
                        continue;
                    };
                    let _ = self.welcome(engine, socket, peer);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A connection that was gone before it was accepted.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    ) => {}
                Err(_) => {
                    // Out of descriptors or memory: level-triggered readiness would spin.
                    let token = *self.token.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(token) = token {
                        let none = EpollFlags::empty();
                        engine.rewatch(Set::Control, token, self.socket.as_fd(), none);
                        engine.set_timer(token, Some(engine.now() + ACCEPT_PAUSE));
                    }
                    return;
                }
            }
        }
    }

    fn welcome(&self, engine: &Engine, socket: Socket, peer: SocketAddr) -> Result<()> {
        if self.incomplete().len() >= self.max_incomplete {
            return Ok(());
        }
        socket
            .set_nonblocking(true)
            .map_err(Error::from_call("fcntl"))?;
        self.options
            .apply(&SockRef::from(&socket), peer.is_ipv6())
            .map_err(Error::from_call("setsockopt"))?;
        let responder = Responder::new(engine.now(), REQUEST_TIMEOUT);
        let deadline = responder.deadline();
        let request = Arc::new_cyclic(|me| Request {
            me: me.clone(),
            listener: self.me.clone(),
            peer,
            state: Mutex::new(RequestState {
                socket: Some(socket),
                edge: edge::new(peer.ip()),
                responder,
                token: None,
            }),
        });
        let source: Arc<dyn Source> = request.clone();
        let token = engine.sources.add(source);
        let mut state = request.lock();
        state.token = Some(token);
        let watched = state
            .socket
            .as_ref()
            .map(|socket| engine.watch(Set::Control, token, socket.as_fd(), EpollFlags::EPOLLIN));
        engine.set_timer(token, deadline);
        drop(state);
        if let Some(Err(error)) = watched {
            request.refuse(&[]);
            return Err(error);
        }
        // Nobody else serves the request before this returns: it is the engine's thread that
        // accepts, and that serves.
        self.incomplete().insert(token.as_u64(), request);
        Ok(())
    }

    fn incomplete(&self) -> MutexGuard<'_, HashMap<u64, Arc<Request>>> {
        self.incomplete
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, token: Option<Token>) {
        if let Some(token) = token {
            self.incomplete().remove(&token.as_u64());
        }
    }

    /// A complete request becomes an identifier and an event.
    fn announce(&self, request: &Arc<Request>, param: ConnParam, local: Option<SocketAddr>) {
        let Some(listening) = self.id.upgrade() else {
            request.refuse(&[]);
            return;
        };
        let place = BacklogPlace::take(&self.waiting, self.backlog);
        let device = local.and_then(|local| resolve::check_bind(local).ok().flatten());
        let verbs = device.and_then(|device| Context::shared(&device).ok());
        let (Some(place), Some(verbs)) = (place, verbs) else {
            request.refuse(&[]);
            return;
        };
        let id = IdShared::create(
            &listening.channel(),
            listening.ps,
            listening.context(),
            listening.is_sync(),
            self.options,
        );
        {
            let mut state = id.shared().lock();
            state.local = local;
            state.peer = Some(request.peer);
            state.verbs = Some(verbs);
            state.phase = Phase::Requested(request.clone());
        }
        self.served.store(true, Ordering::Relaxed);
        listening.report_request(id, place, param);
    }
}

impl Source for Listener {
    fn ready(&self, engine: &Engine, _: EpollFlags) {
        self.accept(engine);
    }

    fn timeout(&self, engine: &Engine, _: Time) {
        let token = *self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = token {
            engine.rewatch(
                Set::Control,
                token,
                self.socket.as_fd(),
                EpollFlags::EPOLLIN,
            );
        }
    }
}

/// A TCP connection of the passive side up to its MPA reply.
pub(super) struct Request {
    me: Weak<Self>,
    listener: Weak<Listener>,
    peer: SocketAddr,
    state: Mutex<RequestState>,
}

struct RequestState {
    socket: Option<Socket>,
    edge: Edge,
    responder: Responder,
    /// Watched: the request is not complete.
    token: Option<Token>,
}

/// What `accept` hands to the queue pair.
pub(super) struct Accepted {
    pub(super) socket: OwnedFd,
    pub(super) negotiated: Negotiated,
    pub(super) early: Vec<u8>,
    pub(super) edge: Edge,
}

impl Request {
    fn lock(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, engine: &Engine, timed_out: bool) {
        let mut state = self.lock();
        let now = engine.now();
        let RequestState {
            socket: Some(socket),
            edge,
            responder,
            token: Some(token),
        } = &mut *state
        else {
            return;
        };
        // The timer may be the edge's.
        let outcome = if timed_out && responder.deadline().is_none_or(|at| at <= now) {
            responder.on_timeout(now)
        } else {
            let mut room = [0; 1024];
            let got = edge::receive(edge, now, socket.as_fd(), &mut room);
            if edge.is_some() {
                engine.set_timer(*token, edge::earlier(edge, responder.deadline()));
            }
            match got {
                Ok(0) => responder.on_eof(),
                Ok(got) => responder.on_bytes(now, &room[..got]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => responder.on_eof(),
            }
        };
        let local = socket
            .local_addr()
            .ok()
            .and_then(|address| address.as_socket());
        match outcome {
            ResponderOutcome::Pending => {}
            ResponderOutcome::Request {
                peer_ord,
                peer_ird,
                private_data,
            } => {
                let token = state.unwatch(engine);
                drop(state);
                let param = ConnParam {
                    private_data,
                    responder_resources: depth(peer_ord),
                    initiator_depth: depth(peer_ird),
                    ..ConnParam::default().cleared()
                };
                if let (Some(listener), Some(me)) = (self.listener.upgrade(), self.me.upgrade()) {
                    listener.forget(token);
                    listener.announce(&me, param, local);
                }
            }
            ResponderOutcome::Refuse { reply, .. } => self.close(state, engine, reply),
            ResponderOutcome::Closed => self.close(state, engine, Vec::new()),
        }
    }

    fn close(&self, mut state: MutexGuard<'_, RequestState>, engine: &Engine, reply: Vec<u8>) {
        let token = state.unwatch(engine);
        let socket = state.socket.take();
        drop(state);
        if let Some(socket) = socket
            && !reply.is_empty()
        {
            Linger::refuse(engine, OwnedFd::from(socket), reply);
        }
        if let Some(listener) = self.listener.upgrade() {
            listener.forget(token);
        }
    }

    /// Says no, if the request is complete, and closes.
    pub(super) fn refuse(&self, private_data: &[u8]) {
        let Ok(engine) = Engine::get() else { return };
        let mut state = self.lock();
        let reply = state.responder.reject(private_data).unwrap_or_default();
        self.close(state, engine, reply);
    }

    /// Refuses with a reply of the application. The request stays as it is on an error.
    pub(super) fn reject(&self, private_data: &[u8]) -> Result<()> {
        let engine = Engine::get()?;
        let mut state = self.lock();
        if state.socket.is_none() {
            return Err(Error::invalid("id", "the connect request has gone"));
        }
        let reply = state.responder.reject(private_data)?;
        self.close(state, engine, reply);
        Ok(())
    }

    /// Sends the reply. The request stays as it is if the arguments are wrong.
    pub(super) fn accept(&self, wishes: &Wishes, private_data: &[u8]) -> Result<Accepted> {
        let mut state = self.lock();
        if state.socket.is_none() {
            return Err(Error::invalid("id", "the connect request has gone"));
        }
        let (reply, negotiated) = state.responder.accept(wishes, private_data)?;
        let early = state.responder.early_bytes();
        let Some(socket) = state.socket.take() else {
            return Err(Error::invalid("id", "the connect request has gone"));
        };
        // A system call of its own, so a segment of its own: an initiator may take octets behind
        // the reply for an error (siw and cxgb4 do).
        let now = Engine::get()?.now();
        let sent = edge::send(&mut state.edge, now, socket.as_fd(), &reply);
        match sent {
            Ok(octets) if octets == reply.len() => Ok(Accepted {
                socket: OwnedFd::from(socket),
                negotiated,
                early,
                edge: state.edge.take(),
            }),
            Ok(_) => Err(Error::os("send", libc::ECONNRESET)),
            Err(error) => Err(Error::os(
                "send",
                error.raw_os_error().unwrap_or(libc::ECONNRESET),
            )),
        }
    }
}

impl RequestState {
    fn unwatch(&mut self, engine: &Engine) -> Option<Token> {
        let token = self.token.take()?;
        if let Some(socket) = &self.socket {
            engine.unwatch(Set::Control, socket.as_fd());
        }
        engine.set_timer(token, None);
        engine.sources.remove(token);
        Some(token)
    }
}

impl Source for Request {
    fn ready(&self, engine: &Engine, _: EpollFlags) {
        self.step(engine, false);
    }

    fn timeout(&self, engine: &Engine, _: Time) {
        self.step(engine, true);
    }
}
