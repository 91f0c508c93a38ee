//! The connection manager over RoCE: InfiniBand's, one for this process.
//!
//! `mod.rs` drives proto's [`Endpoint`]: datagrams, commands and the time go in; what comes out is
//! done in order by whoever pumps. `events.rs` is what comes out, `calls.rs` what the application
//! asks for, `datagram.rs` both for datagrams, `ports.rs` the port numbers, `pump.rs` who pumps,
//! `peers.rs` who of this host has died.
//!
//! One thread pumps at a time, so that events of a connection stay in order. It holds the
//! endpoint's lock only to take the next event, never while it calls a queue pair or an
//! identifier. A thread that comes meanwhile leaves its work to the one that pumps, or, in a call
//! whose effect it needs, waits for its turn; it holds no lock of a queue pair or identifier then.

mod calls;
mod datagram;
mod events;
mod peers;
mod ports;
mod pump;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::sys::epoll::EpollFlags;
use softverbs_proto::cm::config::Config;
use softverbs_proto::cm::endpoint::Endpoint;
use softverbs_proto::cm::event::{CmEvent, CmStatus, QpEvent, Transmit};
use softverbs_proto::cm::ids::IdSpace;
use softverbs_proto::cm::params::{ConnectionId, Listen, ListenToken, PathAddress};
use softverbs_proto::fault::Misuse;
use softverbs_proto::time::Time;
use softverbs_wire::ib::mad::MAD_LEN;
use softverbs_wire::num::{Gid, Qpn, ServiceId};

pub(super) use self::calls::{
    Incoming, accept, attributes_of_request, connect, disconnect, establish, listen, notify,
    reject, starting_psn,
};
pub(super) use self::datagram::{answer, ask, decline};
pub(super) use self::events::Listener;
use self::peers::Peers;
pub(super) use self::ports::{Bound, ephemeral, random_u32};
use self::pump::Pump;
use super::id::IdShared;
use crate::device::is_link_local;
use crate::engine::Engine;
use crate::engine::sources::{Source, Token};
use crate::error::Result;
use crate::per_process::PerProcess;
use crate::roce::port::{GsiSink, Port, ReceivedFrom, SendPath};

/// Bits of a communication id below the prefix of this process.
const ID_BITS: u32 = 20;
/// The queue pair of the connection manager.
const GSI: Qpn = Qpn::new(1);

/// The connection manager of this process.
pub(crate) struct Manager {
    engine: &'static Engine,
    port: &'static Port,
    inner: Mutex<Inner>,
    pump: Pump,
    peers: Peers,
    notes: Mutex<Vec<(ConnectionId, Note)>>,
    noted: AtomicBool,
}

struct Inner {
    endpoint: Endpoint,
    ids: HashMap<ConnectionId, Weak<IdShared>>,
    /// By the endpoint's name: wildcards of IPv4 and IPv6 may share one.
    listeners: HashMap<ListenToken, Vec<Arc<Listener>>>,
    wildcards: HashMap<ServiceId, ListenToken>,
    next_listener: u64,
    /// The interface behind a link-local address.
    scopes: HashMap<Gid, u32>,
    token: Option<Token>,
    timer: Option<Time>,
    /// Why a queue pair could not follow; its connection has been given up.
    failed: HashMap<ConnectionId, i32>,
}

/// What a queue pair told while its lock was held.
#[derive(Clone, Copy, Debug)]
enum Note {
    CommEst,
    /// It is in the error state, and nobody asked for that.
    Failed,
    /// The same, because the peer has not answered as often as was agreed.
    Unanswered,
}

/// What the pump does next.
enum Step {
    Event(ConnectionId, CmEvent, Option<Arc<IdShared>>),
    Send(Transmit, u32),
    Nothing,
}

impl Manager {
    /// The connection manager of this process; made at the first call.
    pub(in crate::cm) fn get() -> Result<&'static Self> {
        static MANAGER: PerProcess<Manager> = PerProcess::new();
        MANAGER.get_or_try(Self::start)
    }

    fn start() -> Result<&'static Self> {
        let engine = Engine::get()?;
        let port = Port::get(engine)?;
        let prefix = port.comm_id_prefix() >> ID_BITS;
        let ids = IdSpace::new(prefix, ID_BITS, random_u32()?, random_u32()?);
        let endpoint = Endpoint::new(Config::default(), port.ca_guid(), ids);
        let manager: &'static Self = Box::leak(Box::new(Self {
            engine,
            port,
            inner: Mutex::new(Inner {
                endpoint,
                ids: HashMap::new(),
                listeners: HashMap::new(),
                wildcards: HashMap::new(),
                next_listener: 1,
                scopes: HashMap::new(),
                token: None,
                timer: None,
                failed: HashMap::new(),
            }),
            pump: Pump::new(),
            peers: Peers::default(),
            notes: Mutex::default(),
            noted: AtomicBool::new(false),
        }));
        let at_work = Arc::new(AtWork(manager));
        manager.lock().token = Some(engine.sources.add(at_work.clone()));
        manager.serve_peers();
        port.set_gsi(at_work);
        Ok(manager)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first valid packet came on a queue pair. Called under its lock.
    pub(crate) fn note_comm_est(&self, id: ConnectionId) {
        self.note(id, Note::CommEst);
    }

    /// A queue pair went to the error state by itself. Called under its lock.
    pub(crate) fn note_failed(&self, id: ConnectionId) {
        self.note(id, Note::Failed);
    }

    /// The peer has stopped to answer, so that a queue pair gave up. Called under its lock, when
    /// its completions have been handed out.
    pub(crate) fn note_unanswered(&self, id: ConnectionId) {
        self.note(id, Note::Unanswered);
    }

    fn note(&self, id: ConnectionId, note: Note) {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((id, note));
        if !self.noted.swap(true, Ordering::SeqCst) {
            // Whoever holds the queue pair's lock may not pump; the engine's thread does it if
            // nobody else does before.
            self.wake();
        }
    }

    fn wake(&self) {
        let now = self.engine.now();
        let mut inner = self.lock();
        if let Some(token) = inner.token
            && inner.timer.is_none_or(|at| at > now)
        {
            inner.timer = Some(now);
            self.engine.set_timer(token, Some(now));
        }
    }

    /// Pumps if a queue pair has told something. Called without any lock.
    pub(crate) fn pump_noted(&'static self) {
        if self.noted.load(Ordering::Relaxed) {
            self.pump();
        }
    }

    /// Does what there is to do, unless another thread is at it, which does it then.
    fn pump(&'static self) {
        self.pump.run(|| self.drain());
    }

    /// Does what there is to do before it returns. Not to be called from within the pump, nor
    /// with a lock held.
    fn pump_and_wait(&'static self) {
        self.pump.run_and_wait(|| self.drain());
    }

    fn drain(&'static self) {
        let mut ended = Vec::new();
        loop {
            if self.noted.swap(false, Ordering::SeqCst) {
                self.take_notes();
            }
            match self.next_step() {
                Step::Event(id, event, shared) => {
                    let reported = !matches!(event, CmEvent::Qp(_));
                    report(
                        ended.extract_if(.., |end: &mut Ended| reported && end.connection == id),
                    );
                    ended.extend(self.on_event(id, event, shared.as_ref()));
                }
                Step::Send(transmit, interface) => {
                    let address = transmit.address;
                    let (local, remote) = (address.local.to_ip(), address.remote.to_ip());
                    let mut path = SendPath::new(local, remote, GSI);
                    path.interface = interface;
                    // What is lost is repeated.
                    let _ = self.port.send_mad(&path, &transmit.octets);
                }
                Step::Nothing if ended.is_empty() => return,
                Step::Nothing => report(ended.drain(..)),
            }
        }
    }

    /// Events before datagrams: a queue pair is ready before the peer hears that it is.
    fn next_step(&self) -> Step {
        let mut inner = self.lock();
        if let Some((id, event)) = inner.endpoint.poll_event() {
            let shared = inner.ids.get(&id).and_then(Weak::upgrade);
            return Step::Event(id, event, shared);
        }
        if let Some(transmit) = inner.endpoint.poll_transmit() {
            let interface = inner.scopes.get(&transmit.address.local).copied();
            return Step::Send(transmit, interface.unwrap_or(0));
        }
        let deadline = inner.endpoint.deadline();
        if let Some(token) = inner.token
            && inner.timer != deadline
        {
            inner.timer = deadline;
            self.engine.set_timer(token, deadline);
        }
        Step::Nothing
    }

    fn take_notes(&self) {
        let notes = std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner));
        let now = self.engine.now();
        let mut inner = self.lock();
        let mut unanswered = Vec::new();
        for (id, note) in notes {
            // The connection may have gone.
            let _ = match note {
                Note::CommEst => inner.endpoint.on_qp_event(now, id, QpEvent::CommEst),
                // Told to the peer, whose answer is the end that the application hears of.
                Note::Failed => inner.endpoint.disconnect(now, id),
                // The application has waited as long as it wanted to: it does not wait for the
                // answer to this, too, which would take a minute not to come.
                Note::Unanswered => {
                    unanswered.extend(inner.ids.get(&id).and_then(Weak::upgrade));
                    inner.endpoint.disconnect(now, id)
                }
            };
        }
        drop(inner);
        for shared in unanswered {
            shared.on_ib_disconnected(CmStatus::TimedOut.errno());
        }
    }

    /// Gives the endpoint a command, and does what follows from it.
    fn command<T>(
        &'static self,
        command: impl FnOnce(&mut Inner, Time) -> std::result::Result<T, Misuse>,
    ) -> std::result::Result<T, Misuse> {
        let now = self.engine.now();
        let result = command(&mut self.lock(), now);
        self.pump();
        result
    }

    /// The identifier has gone: so does its connection. Callable with the pump's lock held.
    pub(super) fn destroy(&'static self, id: ConnectionId) {
        // The peer hears that its messages have arrived before it hears that this is the end.
        self.engine.flush_deferred();
        let _ = self.command(|inner, now| {
            inner.endpoint.destroy(now, id);
            inner.forget(id);
            Ok(())
        });
    }

    /// The process ends: as destroying all its identifiers, which Linux does then.
    fn destroy_all(&'static self) {
        let now = self.engine.now();
        let mut inner = self.lock();
        let gone: Vec<_> = inner.ids.drain().map(|(id, _)| id).collect();
        for id in gone {
            inner.endpoint.destroy(now, id);
        }
        drop(inner);
        self.pump_and_wait();
    }

    pub(super) fn listen(&self, listener: Arc<Listener>, listen: Listen) -> Result<ListenToken> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let wildcard = listen.address.is_none();
        if wildcard && let Some(token) = inner.wildcards.get(&listen.service_id) {
            // Their port was free, so the other one is of another address family.
            inner.listeners.entry(*token).or_default().push(listener);
            return Ok(*token);
        }
        let token = ListenToken(inner.next_listener);
        inner.endpoint.listen(token, listen)?;
        inner.next_listener += 1;
        inner.listeners.insert(token, vec![listener]);
        if wildcard {
            inner.wildcards.insert(listen.service_id, token);
        }
        Ok(token)
    }

    /// `id` does not listen any more.
    pub(super) fn unlisten(&self, token: ListenToken, id: &IdShared) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let Some(listeners) = inner.listeners.get_mut(&token) else {
            return;
        };
        let mine = |listener: &Arc<Listener>| std::ptr::eq(listener.id.as_ptr(), id);
        let gone: Vec<_> = listeners
            .extract_if(.., |listener| mine(listener))
            .collect();
        if listeners.is_empty() {
            inner.listeners.remove(&token);
            inner.wildcards.retain(|_, of| *of != token);
            let _ = inner.endpoint.unlisten(token);
        }
        drop(guard);
        drop(gone);
    }

    /// Packets to or from a link-local address need its interface.
    fn know_scope(&self, local: IpAddr, interface: u32) {
        if is_link_local(local) {
            self.lock().scopes.insert(local.into(), interface);
        }
    }
}

/// A connection that has ended. The application hears of it when the peer has its answer: it may
/// exit at once.
struct Ended {
    connection: ConnectionId,
    id: Arc<IdShared>,
    status: CmStatus,
}

fn report(ended: impl Iterator<Item = Ended>) {
    for end in ended {
        end.id.on_ib_disconnected(end.status.errno());
    }
}

impl Inner {
    fn forget(&mut self, id: ConnectionId) {
        self.ids.remove(&id);
        self.failed.remove(&id);
    }
}

/// What the engine and the port hold of the manager.
struct AtWork(&'static Manager);

impl GsiSink for AtWork {
    fn mad(&self, now: Time, from: &ReceivedFrom, mad: &[u8; MAD_LEN]) {
        let manager = self.0;
        manager.know_scope(from.local, from.interface);
        let address = PathAddress::from_ips(from.local, from.remote);
        // Not every management datagram is one of connections.
        let _ = manager.lock().endpoint.on_mad(now, address, mad);
        manager.pump();
    }
}

impl Source for AtWork {
    fn ready(&self, _: &Engine, _: EpollFlags) {}

    fn timeout(&self, _: &Engine, now: Time) {
        let manager = self.0;
        let mut inner = manager.lock();
        inner.timer = None;
        inner.endpoint.on_timeout(now);
        drop(inner);
        manager.pump();
    }

    fn farewell(&self) {
        self.0.destroy_all();
    }
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager").finish_non_exhaustive()
    }
}
