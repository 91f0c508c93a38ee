//! The RDMA connection manager: identifiers, event channels, resolution, connections.
//!
//! The calls and events are those of rdma-core's `librdmacm`. An identifier with a channel never
//! blocks: what a call starts ends in an event. One without (see [`CmId::new_sync`]) waits for
//! that event itself.
//!
//! `event.rs` holds events and channels, `options.rs` the options, `id.rs` the state of an
//! identifier, `external.rs` identifiers without a queue pair, `resolve.rs` addresses, `tcp.rs` with `active.rs` and `passive.rs` how
//! a connection over TCP is set up, `ib/` the connection manager over RoCE.

mod active;
mod event;
mod external;
pub(crate) mod ib;
mod id;
mod kept;
mod options;
mod passive;
pub(crate) mod resolve;
mod tcp;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockAddr, Socket};
use softverbs_proto::iwarp::stream::CloseCause;
use softverbs_wire::ib::cm::RejReason;

pub use self::event::{CmEvent, ConnParam, EventChannel, EventKind, MAX_DEPTH, UdParam};
pub(crate) use self::id::IdShared;
use self::id::{Handle, Phase, State};
pub use self::options::CmOption;
use self::options::Options;
pub use self::resolve::source_address;
use crate::async_event::AsyncEventKind;
use crate::context::{Context, Pd};
use crate::device::{Device, Transport};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::qp::{Qp, QpInitAttr};

/// Answers connect requests to this host over RoCE, also while this process asks for none.
pub(crate) fn answer_over_roce() -> Result<()> {
    ib::Manager::get().map(|_| ())
}

/// Connect requests that may wait to be fetched, at most.
const MAX_BACKLOG: usize = 1024;

/// Port spaces; the values are those of `enum rdma_port_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PortSpace {
    /// IP over InfiniBand. **Not supported.**
    Ipoib = 0x0002,
    /// InfiniBand service ids (RoCE). Addresses are those of IP nevertheless.
    Ib = 0x013f,
    /// Reliable connections.
    Tcp = 0x0106,
    /// Datagrams (RoCE): `connect` asks for the queue pair behind a port, and its `Established`
    /// says where it is ([`ConnParam::ud`]).
    Udp = 0x0111,
}

/// A communication identifier (`struct rdma_cm_id`). Cloning makes another handle of the same; it
/// is destroyed, and its connection closed, when the last handle is dropped.
#[derive(Clone)]
pub struct CmId {
    handle: Arc<Handle>,
}

impl CmId {
    /// A new identifier whose events come through `channel`. `context` is the application's.
    /// Port spaces other than [`PortSpace::Tcp`] exist on RoCE only, which they choose;
    /// EOPNOTSUPP for [`PortSpace::Ipoib`].
    pub fn new(channel: &EventChannel, ps: PortSpace, context: u64) -> Result<Self> {
        Self::create(channel, ps, context, false)
    }

    /// A new identifier whose calls wait: they return when what they start has ended, with the
    /// error if it failed.
    pub fn new_sync(ps: PortSpace) -> Result<Self> {
        Self::create(&EventChannel::new()?, ps, 0, true)
    }

    fn create(channel: &EventChannel, ps: PortSpace, context: u64, sync: bool) -> Result<Self> {
        let mut options = Options::of_environment()?;
        match ps {
            PortSpace::Tcp => {}
            PortSpace::Udp | PortSpace::Ib => options.transport = Transport::Roce,
            PortSpace::Ipoib => {
                return Err(Error::not_supported("ps", "there is no RDMA_PS_IPOIB"));
            }
        }
        Engine::get()?;
        Ok(IdShared::create(channel, ps, context, sync, options))
    }

    fn shared(&self) -> &Arc<IdShared> {
        &self.handle.0
    }

    /// The application's value.
    pub fn context(&self) -> u64 {
        self.shared().context()
    }

    /// Sets the application's value; that of a connect request is its listener's before.
    pub fn set_context(&self, context: u64) {
        self.shared().set_context(context);
    }

    /// The port space.
    pub fn port_space(&self) -> PortSpace {
        self.shared().ps
    }

    /// Whether both are handles of one identifier.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.shared(), other.shared())
    }

    /// Its own address: after `bind_addr`, `resolve_addr`, or of a connection.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.shared().lock().local
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.shared().lock().peer
    }

    /// The opened device: after binding to an address of one, after resolving, and in a connect
    /// request.
    pub fn verbs(&self) -> Option<Context> {
        self.shared().lock().verbs.clone()
    }

    /// The transport that it uses.
    pub fn transport(&self) -> Transport {
        self.shared().lock().options.transport
    }

    /// The queue pair of this identifier.
    pub fn qp(&self) -> Option<Qp> {
        self.shared().lock().qp.clone()
    }

    /// The channel of its events.
    pub fn channel(&self) -> EventChannel {
        self.shared().channel()
    }

    /// Sets an option; EINVAL with a text for a value out of range. Options of the connection
    /// take effect if set before `listen` or `connect`; [`CmOption::Afonly`],
    /// [`CmOption::ReuseAddr`] and the buffer sizes before `bind_addr`.
    pub fn set_option(&self, option: CmOption) -> Result<()> {
        let mut state = self.shared().lock();
        if matches!(option, CmOption::Transport(_)) && !matches!(state.phase, Phase::Idle) {
            return Err(wrong_phase(&state, "change the transport"));
        }
        if option == CmOption::Transport(Transport::Iwarp) && self.shared().ps != PortSpace::Tcp {
            return Err(Error::not_supported(
                "transport",
                "iWARP has the port space RDMA_PS_TCP only",
            ));
        }
        state
            .options
            .set(option)
            .map_err(|(what, why)| Error::invalid(what, why))
    }

    /// Binds to a local address. A wildcard address stands for all devices; port 0 for a free
    /// port, which [`CmId::local_addr`] then tells.
    ///
    /// EADDRNOTAVAIL if no interface has the address, EADDRINUSE if another identifier or socket
    /// holds the port, EACCES for a port below 1024 without the privilege, EINVAL if bound
    /// already.
    pub fn bind_addr(&self, address: SocketAddr) -> Result<()> {
        let mut state = self.shared().lock();
        if !matches!(state.phase, Phase::Idle) {
            return Err(wrong_phase(&state, "bind"));
        }
        bind(&mut state, self.shared().ps, address)?;
        state.phase = Phase::Bound;
        Ok(())
    }

    /// Finds the device and the local address that lead to `dst`. Ends with
    /// [`EventKind::AddrResolved`]. `src` binds to a local address first (port 0: any); of an
    /// identifier that is bound it is ignored.
    ///
    /// Fails at once with ENETUNREACH, EADDRNOTAVAIL or ENODEV, as the kernel's does. The timeout
    /// is for transports that have to ask the network; here it is the kernel that knows.
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let _ = timeout;
        {
            let mut state = self.shared().lock();
            if !matches!(state.phase, Phase::Idle | Phase::Bound) {
                return Err(wrong_phase(&state, "resolve an address"));
            }
            // One that is bound stays so, whatever source is named, as with Linux.
            let src = src.filter(|_| matches!(state.phase, Phase::Idle));
            if let Some(src) = src {
                // Not a port of its own: any number of connections may share a source address.
                resolve::check_bind(src)?;
            }
            let from = src
                .or(state.local)
                .filter(|from| !from.ip().is_unspecified());
            let resolved = resolve::resolve(from, dst)?;
            let device = resolved.device.with_transport(state.options.transport);
            state.verbs = Some(Context::shared(&device)?);
            if let Some(src) = src
                && src.port() != 0
            {
                bind(&mut state, self.shared().ps, src)?;
            }
            let port = match (state.local, state.options.transport) {
                (Some(local), _) => local.port(),
                (None, Transport::Iwarp) => 0,
                // Nobody connects to it, so nobody minds if others have it, too.
                (None, Transport::Roce) => ib::ephemeral()?,
            };
            let mut local = resolved.src;
            local.set_port(port);
            state.local = Some(local);
            state.peer = Some(resolved.dst);
            state.phase = Phase::AddrResolved;
        }
        self.shared()
            .report(EventKind::AddrResolved, 0, ConnParam::default().cleared());
        self.wait_for(EventKind::AddrResolved)
    }

    /// Finds the route: always known on this transport. Ends with [`EventKind::RouteResolved`].
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        let _ = timeout;
        {
            let mut state = self.shared().lock();
            if !matches!(state.phase, Phase::AddrResolved) {
                return Err(wrong_phase(&state, "resolve a route"));
            }
            state.phase = Phase::RouteResolved;
        }
        self.shared()
            .report(EventKind::RouteResolved, 0, ConnParam::default().cleared());
        self.wait_for(EventKind::RouteResolved)
    }

    /// Listens for connect requests. `backlog`: how many may wait to be fetched (0 or less, or
    /// more than 1024: 1024); more are rejected. Not bound before: to a free port of all
    /// addresses. EADDRINUSE if another identifier or socket listens there.
    pub fn listen(&self, backlog: i32) -> Result<()> {
        let mut state = self.shared().lock();
        if matches!(state.phase, Phase::Idle) {
            let any = SocketAddr::from(([0, 0, 0, 0], 0));
            bind(&mut state, self.shared().ps, any)?;
            state.phase = Phase::Bound;
        }
        if !matches!(state.phase, Phase::Bound) {
            return Err(wrong_phase(&state, "listen"));
        }
        let backlog = usize::try_from(backlog).unwrap_or(0);
        let backlog = if backlog == 0 {
            MAX_BACKLOG
        } else {
            backlog.min(MAX_BACKLOG)
        };
        if state.options.transport == Transport::Roce {
            let token = ib::listen(self.shared(), &state, backlog)?;
            state.phase = Phase::IbListening(token);
            return Ok(());
        }
        let Some(socket) = state.socket.take() else {
            return Err(Error::invalid("id", "is not bound"));
        };
        let engine = Engine::get()?;
        let listener =
            passive::Listener::start(engine, self.shared(), socket, state.options, backlog)?;
        state.phase = Phase::Listening(listener);
        Ok(())
    }

    /// Waits for the next connect request of a synchronous listener.
    pub fn get_request(&self) -> Result<Self> {
        if !self.shared().is_sync() {
            return Err(Error::invalid(
                "id",
                "has an event channel: take its events",
            ));
        }
        loop {
            let event = self.channel().get_event(None)?;
            if let Some(event) = event
                && event.kind() == EventKind::ConnectRequest
            {
                let id = event.id().clone();
                // A channel of its own, for its events to wait in.
                id.shared().migrate(&EventChannel::new()?);
                return Ok(id);
            }
        }
    }

    /// Creates the queue pair of this identifier, in INIT: receives may be posted, and should be
    /// before `connect` or `accept`. Datagram queue pairs are in RTS at once. EINVAL if there is one, or if the protection domain belongs
    /// to another device than [`CmId::verbs`].
    pub fn create_qp(&self, pd: &Pd, attr: &QpInitAttr<'_>) -> Result<Qp> {
        self.check_new_qp(pd.context(), attr.qp_type)?;
        let qp = pd.create_qp(attr)?;
        self.attach_qp(&qp)?;
        Ok(qp)
    }

    /// Lets go of the queue pair, which is destroyed with its last handle.
    pub fn destroy_qp(&self) {
        let qp = self.shared().lock().qp.take();
        if let Some(qp) = qp {
            qp.inner().abort(CloseCause::Local);
        }
    }

    /// Connects. Never blocks: ends with [`EventKind::Established`], or with exactly one of
    /// [`Rejected`](EventKind::Rejected), [`Unreachable`](EventKind::Unreachable) and
    /// [`ConnectError`](EventKind::ConnectError). From the return of this call on, send requests
    /// may be posted: they leave when they may.
    ///
    /// Status of the event over iWARP: no listener, or rejected by the application: `Rejected`
    /// -ECONNREFUSED; closed or reset: `Rejected` -ECONNRESET; no answer: `Unreachable`
    /// -ETIMEDOUT; MPA violated: `ConnectError` -EINVAL. Over RoCE: `Rejected` with the reason of
    /// the connection manager, 8 for no listener and 28 for the application's; no answer:
    /// `Unreachable` -ETIMEDOUT.
    ///
    /// An identifier without a queue pair takes the application's own that
    /// [`ConnParam::qp_num`] names. Over iWARP that makes no difference, if it is one of this
    /// process in INIT. Over RoCE [`ConnectResponse`](EventKind::ConnectResponse) comes instead of
    /// `Established`: see [`CmId::establish`].
    ///
    /// EINVAL: no route resolved, no queue pair, more private data than 251 octets (RoCE: 56, which
    /// the peer gets padded with zeros to that length; 180 with [`PortSpace::Udp`]), or depths
    /// beyond the device's.
    pub fn connect(&self, param: &ConnParam) -> Result<()> {
        {
            let state = self.shared().lock();
            if !matches!(state.phase, Phase::RouteResolved) {
                return Err(wrong_phase(&state, "connect"));
            }
        }
        match self.transport() {
            Transport::Iwarp => self.connect_tcp(param)?,
            Transport::Roce if self.shared().ps == PortSpace::Udp => {
                ib::ask(self.shared(), param)?;
            }
            Transport::Roce => ib::connect(self.shared(), param)?,
        }
        self.wait_for(EventKind::Established)
    }

    /// Accepts a connect request. Ends with [`EventKind::Established`], or with
    /// [`Rejected`](EventKind::Rejected), [`Unreachable`](EventKind::Unreachable) or
    /// [`ConnectError`](EventKind::ConnectError) if the peer does not go through with it. From
    /// the return of this call on, send requests may be posted: the stack holds them, in order,
    /// until the peer may receive them. An identifier without a queue pair takes the application's
    /// own that [`ConnParam::qp_num`] names; over RoCE the application has moved it to RTS before,
    /// by the attributes of [`CmId::init_qp_attr`].
    ///
    /// EINVAL: no connect request, no queue pair, more private data than 251 octets (RoCE: 196;
    /// 136 with [`PortSpace::Udp`], where no event follows), or depths beyond the device's;
    /// ECONNRESET or EPIPE: the peer has gone.
    pub fn accept(&self, param: &ConnParam) -> Result<()> {
        if matches!(self.shared().lock().phase, Phase::IbResponded) {
            return self.establish();
        }
        match self.transport() {
            Transport::Iwarp => self.accept_tcp(param)?,
            Transport::Roce if self.shared().ps == PortSpace::Udp => {
                // The answer is all there is: no event follows.
                return ib::answer(self.shared(), param);
            }
            Transport::Roce => ib::accept(self.shared(), param)?,
        }
        self.wait_for(EventKind::Established)
    }

    /// Rejects a connect request; the peer gets [`EventKind::Rejected`] with the private data
    /// (up to 251 octets, RoCE 148, else EINVAL).
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.reject_because(RejReason::CONSUMER, private_data)
    }

    /// The same for want of what the peer's device offers (`rdma_reject_ece`): over RoCE the status
    /// of the event is 35 then.
    pub fn reject_ece(&self, private_data: &[u8]) -> Result<()> {
        self.reject_because(RejReason::VENDOR_OPTION_NOT_SUPPORTED, private_data)
    }

    fn reject_because(&self, reason: RejReason, private_data: &[u8]) -> Result<()> {
        let request = {
            let state = self.shared().lock();
            match (&state.phase, state.connection) {
                (Phase::Requested(request), _) => Ok(request.clone()),
                (Phase::IbRequested(_) | Phase::IbResponded, Some(connection)) => Err(connection),
                // The peer has taken its request back meanwhile.
                (Phase::Failed, _) if state.passive => return Ok(()),
                _ => return Err(wrong_phase(&state, "reject")),
            }
        };
        match request {
            Ok(request) => {
                tcp::check_private_data(private_data)?;
                request.reject(private_data)?;
            }
            Err(connection) if self.shared().ps == PortSpace::Udp => {
                ib::decline(connection, private_data)?;
            }
            Err(connection) => ib::reject(connection, reason, private_data)?,
        }
        let mut state = self.shared().lock();
        state.connection = None;
        state.fail();
        Ok(())
    }

    /// Closes the connection in good order: over iWARP what TCP has taken is delivered, over RoCE
    /// what was acknowledged; other requests are flushed. Both ends get [`EventKind::Disconnected`]. Harmless if the connection has ended
    /// already; EINVAL if there never was one. Over RoCE [`EventKind::TimewaitExit`] follows, when
    /// no packet of the connection can be under way any more.
    pub fn disconnect(&self) -> Result<()> {
        let (qp, connection) = {
            let state = self.shared().lock();
            match state.phase {
                Phase::Establishing(_) | Phase::Established => {
                    (state.connected_qp(), state.connection)
                }
                Phase::Disconnected => return Ok(()),
                _ => return Err(wrong_phase(&state, "disconnect")),
            }
        };
        if let Some(connection) = connection {
            if let Some(qp) = qp {
                qp.send_last();
            }
            return ib::disconnect(connection);
        }
        if self.shared().ps == PortSpace::Udp {
            return Err(Error::invalid("id", "datagrams have no connection"));
        }
        if let Some(qp) = qp {
            qp.disconnect();
        }
        Ok(())
    }

    pub(crate) fn report_join(&self, ud: UdParam) {
        let param = ConnParam {
            qp_num: ud.qp_num,
            ud: Some(ud),
            ..ConnParam::default().cleared()
        };
        self.shared().report(EventKind::MulticastJoin, 0, param);
    }

    /// Tells of an asynchronous event of the queue pair (`rdma_notify`). Nobody has to: what it
    /// could tell is known already. Accepted, and without effect then.
    pub fn notify(&self, event: AsyncEventKind) -> Result<()> {
        let connection = self.shared().lock().connection;
        match (event, connection) {
            (AsyncEventKind::CommEst, Some(connection)) => ib::notify(connection),
            _ => Ok(()),
        }
    }

    /// Destroys the identifier now, whatever handles there are: closes its connection abruptly,
    /// rejects what waits, forgets its events. Waits until the events that were fetched are
    /// acknowledged: acknowledge (drop) them first.
    pub fn destroy(&self) -> Result<()> {
        self.shared().destroy();
        self.shared().unacked.wait_acked();
        Ok(())
    }

    /// Synchronous identifiers: waits for the event that ends a call.
    fn wait_for(&self, wanted: EventKind) -> Result<()> {
        if !self.shared().is_sync() {
            return Ok(());
        }
        loop {
            let event = self.channel().get_event(None)?;
            let Some(event) = event else { continue };
            let responded = event.kind() == EventKind::ConnectResponse;
            if event.kind() == wanted || responded && wanted == EventKind::Established {
                return Ok(());
            }
            return Err(match event.kind() {
                EventKind::Rejected => Error::Rejected {
                    status: event.status(),
                },
                kind => Error::Cm {
                    event: kind.name(),
                    status: event.status(),
                },
            });
        }
    }
}

fn bind(state: &mut State, ps: PortSpace, address: SocketAddr) -> Result<()> {
    let transport = state.options.transport;
    let device: Option<Device> = resolve::check_bind(address)?;
    let verbs = device
        .map(|device| Context::shared(&device.with_transport(transport)))
        .transpose()?;
    if transport == Transport::Roce {
        let bound = ib::Bound::take(ps, address, state.options.afonly)?;
        let mut local = address;
        local.set_port(bound.service().port);
        state.local = Some(local);
        state.bound = Some(bound);
        state.verbs = verbs.or_else(|| state.verbs.take());
        return Ok(());
    }
    let socket = match kept::take(address, state.options.afonly) {
        Some(socket) => socket,
        None => bound_socket(&state.options, address)?,
    };
    state.local = socket
        .local_addr()
        .ok()
        .and_then(|address| address.as_socket());
    state.verbs = verbs.or_else(|| state.verbs.take());
    state.socket = Some(socket);
    Ok(())
}

fn bound_socket(options: &Options, address: SocketAddr) -> Result<Socket> {
    let socket = options
        .socket(&address)
        .map_err(Error::from_call("socket"))?;
    socket
        .bind(&SockAddr::from(address))
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => Error::AddrInUse { address },
            Some(errno) => Error::os("bind", errno),
            None => Error::os("bind", libc::EINVAL),
        })?;
    Ok(socket)
}

fn wrong_phase(state: &State, call: &str) -> Error {
    Error::invalid(
        "id",
        format!("cannot {call}: the identifier is {}", state.phase.name()),
    )
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared().lock();
        f.debug_struct("CmId")
            .field("state", &state.phase.name())
            .field("local", &state.local)
            .field("peer", &state.peer)
            .finish_non_exhaustive()
    }
}
