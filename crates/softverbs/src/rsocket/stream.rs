//! Stream sockets: their life from `bind` to `close`.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use softverbs_proto::rsocket::{Shutdown, Stream};
use softverbs_wire::rsocket::ConnectData;

use super::Family;
use super::endpoint::Endpoint;
use super::keepalive;
use super::option::{Options, RSockOpt, RSockOptName};
use super::wait::Waiters;
use crate::cm::{CmId, CmOption, ConnParam, EventChannel, EventKind, PortSpace};
use crate::device::Transport;
use crate::error::{Error, Result};

/// How long closing waits for what is still to be delivered, if nobody says otherwise.
const LINGER: Duration = Duration::from_secs(10);
/// Resolving takes no time; the limit is for the form.
const RESOLVE: Duration = Duration::from_secs(2);

/// Where a socket stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    New,
    Bound,
    Listening,
    Connecting,
    Connected,
    /// The attempt to connect has failed.
    Failed,
    Closed,
}

pub(super) struct State {
    pub(super) phase: Phase,
    id: Option<CmId>,
    pub(super) channel: EventChannel,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) options: Options,
    /// Reported once, by the next call that can.
    pub(super) error: Option<i32>,
    /// Connected, and no call of `connect` has said so yet.
    pub(super) unreported: bool,
    peer: Option<SocketAddr>,
    local: Option<SocketAddr>,
    /// The descriptors in `ready`, so that each is entered once.
    watched_channel: bool,
    watched_completions: bool,
}

pub(super) struct StreamSocket {
    family: Family,
    transport: Mutex<Option<Transport>>,
    /// What is ready when there may be something to do; the number of the socket.
    ready: Epoll,
    nonblocking: AtomicBool,
    pub(super) waiters: Waiters,
    pub(super) sending: Mutex<()>,
    pub(super) receiving: Mutex<()>,
    state: Mutex<State>,
}

pub(super) fn errno(call: &'static str, errno: i32) -> Error {
    Error::os(call, errno)
}

impl StreamSocket {
    pub(super) fn new(family: Family) -> Result<Arc<Self>> {
        let channel = EventChannel::new()?;
        Self::create(family, channel, None, Options::default(), Phase::New)
    }

    fn create(
        family: Family,
        channel: EventChannel,
        id: Option<CmId>,
        options: Options,
        phase: Phase,
    ) -> Result<Arc<Self>> {
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(Error::from_call("epoll_create1"))?;
        let socket = Self {
            family,
            transport: Mutex::default(),
            ready,
            nonblocking: AtomicBool::new(false),
            waiters: Waiters::default(),
            sending: Mutex::default(),
            receiving: Mutex::default(),
            state: Mutex::new(State {
                phase,
                id,
                channel,
                endpoint: None,
                options,
                error: None,
                unreported: false,
                peer: None,
                local: None,
                watched_channel: false,
                watched_completions: false,
            }),
        };
        Ok(Arc::new(socket))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.ready.0.as_fd()
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(super) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    pub(super) fn set_transport(&self, transport: Transport) -> Result<()> {
        if self.lock().phase != Phase::New {
            return Err(Error::invalid("transport", "the socket is bound already"));
        }
        *self
            .transport
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(transport);
        Ok(())
    }

    /// The identifier; a new one for a new attempt.
    fn id(&self, state: &mut State) -> Result<CmId> {
        if let Some(id) = &state.id {
            return Ok(id.clone());
        }
        let id = CmId::new(&state.channel, PortSpace::Tcp, 0)?;
        let transport = *self
            .transport
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(transport) = transport {
            id.set_option(CmOption::Transport(transport))?;
        }
        id.set_option(CmOption::Afonly(state.options.v6_only))?;
        if state.options.keepalive {
            id.set_option(CmOption::Keepalive(Some(state.options.keepalive_idle)))?;
        }
        state.id = Some(id.clone());
        Ok(id)
    }

    /// Enters the descriptors that there are by now.
    fn watch(&self, state: &mut State) -> Result<()> {
        let event = || EpollEvent::new(EpollFlags::EPOLLIN, 0);
        let failed = Error::from_call("epoll_ctl");
        if !state.watched_channel {
            self.ready
                .add(state.channel.fd(), event())
                .map_err(&failed)?;
            state.watched_channel = true;
        }
        if let Some(endpoint) = &state.endpoint
            && !state.watched_completions
        {
            self.ready
                .add(endpoint.channel.fd(), event())
                .map_err(&failed)?;
            state.watched_completions = true;
        }
        Ok(())
    }

    pub(super) fn bind(&self, address: SocketAddr) -> Result<()> {
        self.family.check(address)?;
        let mut state = self.lock();
        match state.phase {
            Phase::New => {}
            Phase::Closed => return Err(errno("rbind", libc::EBADF)),
            _ => return Err(errno("rbind", libc::EINVAL)),
        }
        self.id(&mut state)?.bind_addr(address)?;
        state.phase = Phase::Bound;
        Ok(())
    }

    pub(super) fn listen(&self, backlog: i32) -> Result<()> {
        let mut state = self.lock();
        match state.phase {
            Phase::New | Phase::Bound => {}
            Phase::Listening => return Ok(()),
            Phase::Closed => return Err(errno("rlisten", libc::EBADF)),
            _ => return Err(errno("rlisten", libc::EINVAL)),
        }
        let id = self.id(&mut state)?;
        if state.phase == Phase::New {
            id.bind_addr(self.family.unspecified())?;
        }
        self.watch(&mut state)?;
        id.listen(backlog)?;
        state.phase = Phase::Listening;
        Ok(())
    }

    /// Takes the next connection; those that fail in the middle are passed over.
    pub(super) fn accept(&self) -> Result<(Arc<Self>, SocketAddr)> {
        loop {
            let event = self.wait_for(self.is_nonblocking(), |state| {
                if state.phase != Phase::Listening {
                    return Some(Err(errno("raccept", libc::EINVAL)));
                }
                match state.channel.get_event(Some(Duration::ZERO)) {
                    Ok(event) => event.map(Ok),
                    Err(error) => Some(Err(error)),
                }
            })?;
            if event.kind() != EventKind::ConnectRequest {
                continue;
            }
            let Ok(peer) = Stream::parse_connect_data(event.private_data()) else {
                let _ = event.id().reject(&[]);
                continue;
            };
            let id = event.id().clone();
            drop(event);
            if let Ok(accepted) = self.accept_from(id, &peer) {
                return Ok(accepted);
            }
        }
    }

    fn accept_from(&self, id: CmId, peer: &ConnectData) -> Result<(Arc<Self>, SocketAddr)> {
        let options = self.lock().options;
        let channel = EventChannel::new()?;
        id.migrate_id(&channel)?;
        let address = id
            .peer_addr()
            .ok_or_else(|| errno("raccept", libc::ECONNABORTED))?;
        let mut endpoint = Endpoint::create(&id, &options.sizes)?;
        id.accept(&parameters(&endpoint))?;
        endpoint.connected(peer);
        let socket = Self::create(self.family, channel, Some(id), options, Phase::Connected)?;
        let mut state = socket.lock();
        state.peer = Some(address);
        state.endpoint = Some(endpoint);
        socket.watch(&mut state)?;
        drop(state);
        keepalive::consider(&socket);
        Ok((socket, address))
    }

    pub(super) fn connect(self: &Arc<Self>, address: SocketAddr) -> Result<()> {
        self.family.check(address)?;
        let mut state = self.lock();
        self.progress(&mut state);
        let phase = state.phase;
        match phase {
            Phase::New | Phase::Bound => {}
            Phase::Listening | Phase::Closed => return Err(errno("rconnect", libc::EINVAL)),
            Phase::Connecting if self.is_nonblocking() => {
                return Err(errno("rconnect", libc::EALREADY));
            }
            Phase::Connecting => {
                drop(state);
                return self.wait_connected();
            }
            Phase::Connected if std::mem::take(&mut state.unreported) => return Ok(()),
            Phase::Connected => return Err(errno("rconnect", libc::EISCONN)),
            Phase::Failed => {
                if let Some(error) = state.error.take() {
                    return Err(errno("rconnect", error));
                }
                // A new attempt needs a new identifier, and no address of the old one.
                state.id = None;
                state.endpoint = None;
                state.watched_completions = false;
                state.phase = Phase::New;
            }
        }
        if let Err(error) = self.start(&mut state, address) {
            state.endpoint = None;
            if state.phase == Phase::New {
                state.id = None;
            }
            return Err(error);
        }
        state.phase = Phase::Connecting;
        state.peer = Some(address);
        drop(state);
        if self.is_nonblocking() {
            return Err(errno("rconnect", libc::EINPROGRESS));
        }
        self.wait_connected()
    }

    fn start(&self, state: &mut State, address: SocketAddr) -> Result<()> {
        let id = self.id(state)?;
        id.resolve_addr(None, address, RESOLVE)?;
        id.resolve_route(RESOLVE)?;
        let endpoint = Endpoint::create(&id, &state.options.sizes)?;
        let parameters = parameters(&endpoint);
        state.endpoint = Some(endpoint);
        self.watch(state)?;
        id.connect(&parameters)
    }

    fn wait_connected(self: &Arc<Self>) -> Result<()> {
        self.wait_for(false, |state| match state.phase {
            Phase::Connecting => None,
            Phase::Connected => {
                state.unreported = false;
                Some(Ok(()))
            }
            _ => {
                let error = state.error.take().unwrap_or(libc::ECONNREFUSED);
                Some(Err(errno("rconnect", error)))
            }
        })?;
        keepalive::consider(self);
        Ok(())
    }

    pub(super) fn local_addr(&self) -> Result<SocketAddr> {
        let state = self.lock();
        let known = state.id.as_ref().and_then(CmId::local_addr);
        Ok(known
            .or(state.local)
            .unwrap_or_else(|| self.family.unspecified()))
    }

    pub(super) fn peer_addr(&self) -> Result<SocketAddr> {
        let state = self.lock();
        match (state.phase, state.peer) {
            (Phase::Connected, Some(peer)) => Ok(peer),
            _ => Err(errno("rgetpeername", libc::ENOTCONN)),
        }
    }

    pub(super) fn set_option(self: &Arc<Self>, option: RSockOpt) -> Result<()> {
        let mut state = self.lock();
        let queues = matches!(
            option,
            RSockOpt::SendQueue(_)
                | RSockOpt::RecvQueue(_)
                | RSockOpt::Inline(_)
                | RSockOpt::IomapSize(_)
        );
        let buffers = matches!(option, RSockOpt::SendBuffer(_) | RSockOpt::RecvBuffer(_));
        if state.endpoint.is_some() {
            if queues {
                return Err(Error::invalid("option", "the socket is connected already"));
            }
            if buffers {
                // As elsewhere: a wish that comes too late is no error.
                return Ok(());
            }
        }
        if !state.options.keep(option) {
            return Err(Error::invalid("option", "the value is out of range"));
        }
        drop(state);
        keepalive::consider(self);
        Ok(())
    }

    pub(super) fn option(&self, name: RSockOptName) -> RSockOpt {
        self.lock().options.value(name)
    }

    pub(super) fn take_error(&self) -> Option<i32> {
        let mut state = self.lock();
        self.progress(&mut state);
        state.error.take()
    }

    pub(super) fn shutdown(&self, how: Shutdown) -> Result<()> {
        let mut state = self.lock();
        self.progress(&mut state);
        match (state.phase, &mut state.endpoint) {
            (Phase::Connected, Some(endpoint)) => endpoint.stream.shutdown(how),
            _ => return Err(errno("rshutdown", libc::ENOTCONN)),
        }
        // Posts the farewell.
        self.progress(&mut state);
        self.waiters.wake();
        Ok(())
    }

    /// Says farewell, waits until everything is delivered, and lets go of everything.
    pub(super) fn close(&self) {
        let linger = self.lock().options.linger.unwrap_or(LINGER);
        let _ = self.shutdown(Shutdown::Both);
        let deadline = Instant::now().checked_add(linger);
        let finished = || {
            self.wait_until(false, deadline, |state| match &state.endpoint {
                Some(endpoint)
                    if state.phase == Phase::Connected
                        && !endpoint.stream.is_drained()
                        && !endpoint.is_broken() =>
                {
                    None
                }
                _ => Some(Ok(())),
            })
        };
        // A signal does not end a socket early.
        while finished().is_err_and(|error| error.errno() == libc::EINTR) {}
        let mut state = self.lock();
        let was = std::mem::replace(&mut state.phase, Phase::Closed);
        let (id, endpoint) = (state.id.take(), state.endpoint.take());
        if let Some(id) = &id {
            state.local = id.local_addr();
            if was == Phase::Connected {
                let _ = id.disconnect();
            }
        }
        drop(state);
        self.waiters.wake();
        drop((endpoint, id));
    }
}

/// What is asked of the connection: rsockets read nothing, but there are network cards that
/// begin with a read of nothing.
fn parameters(endpoint: &Endpoint) -> ConnParam {
    ConnParam {
        private_data: endpoint.connect_data(),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: true,
        ..ConnParam::default()
    }
}
