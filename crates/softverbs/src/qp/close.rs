//! The end of a queue pair's connection.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{Shutdown, shutdown};
use softverbs_proto::fault::{Fault, PeerViolation};
use softverbs_proto::iwarp::stream::CloseCause;
use softverbs_proto::memory::MemoryFault;
use softverbs_proto::qp_state::QpState;
use softverbs_proto::time::Time;
use softverbs_proto::transmit::{Piece, TxBatch};
use softverbs_proto::wr::{WcOpcode, WcStatus};

use super::drive::Connection;
use super::lane::LastOutlet;
use super::memory::QpMemory;
use super::{Core, Iwarp, QpInner, Side, registry};
use crate::async_event::AsyncElement;
use crate::async_event::AsyncEventKind;
use crate::engine::sources::{Source, Token};
use crate::engine::sys::IoList;
use crate::engine::{Engine, Set};
use crate::wr::Wc;

/// How long a closed connection may take to deliver what TCP still holds, and to see the peer's
/// end, before it is given up.
const LINGER: Duration = Duration::from_secs(2);

impl QpInner {
    /// The stream has ended: everything is flushed, the socket is closed in good order, the
    /// application is told.
    pub(super) fn on_closed(&self, core: &mut Core, cause: Option<&CloseCause>) {
        if core.state != QpState::Reset {
            self.set_state(core, QpState::Err);
        }
        self.flush_receives(core);
        let lost = matches!(cause, Some(CloseCause::Lost));
        if let Side::Iwarp(iwarp) = &mut core.side
            && let Some(mut connection) = iwarp.connection.take()
        {
            let pending = if lost {
                Vec::new()
            } else {
                let rest = rest_of_stream(self, iwarp, &connection);
                match &mut connection.edge {
                    None => rest,
                    // With what it has held back so far; nothing, if that is for ever.
                    Some(edge) => {
                        edge.take(self.engine.now(), &rest);
                        edge.end().unwrap_or_default()
                    }
                }
            };
            self.engine.set_timer(connection.token, None);
            self.engine.unwatch(Set::Data, connection.socket.as_fd());
            self.engine.sources.remove(connection.token);
            let lane = connection.leave_lane(self.engine);
            if !lost {
                Linger::start_with(self.engine, connection.socket, pending, lane);
            }
        }
        match cause {
            Some(CloseCause::Fault(Fault::Peer(PeerViolation::Protection { .. }))) => {
                self.raise(AsyncEventKind::QpAccessErr);
            }
            Some(CloseCause::Fault(Fault::Peer(_) | Fault::Malformed(_))) => {
                self.raise(AsyncEventKind::QpReqErr);
            }
            Some(CloseCause::Fault(Fault::Local(_)) | CloseCause::PeerTerminated(_)) => {
                self.raise(AsyncEventKind::QpFatal);
            }
            _ => {}
        }
        if self.srq.is_some() {
            self.raise(AsyncEventKind::QpLastWqeReached);
        }
        if let Some(cm) = core.cm.take().as_ref().and_then(Weak::upgrade) {
            cm.on_closed(cause);
        }
    }

    /// Completes the receives that were posted to this queue pair with a flush error.
    pub(crate) fn flush_receives(&self, _core: &mut Core) {
        if self.srq.is_some() {
            return;
        }
        let flushed: Vec<Wc> = self
            .rq
            .drain()
            .iter()
            .map(|request| Wc {
                wr_id: request.wr_id,
                status: WcStatus::WrFlushErr,
                opcode: WcOpcode::Recv,
                qp_num: self.qp_num,
                ..Wc::default()
            })
            .collect();
        if !flushed.is_empty() {
            self.recv_cq.push(&flushed, false);
        }
    }

    /// Forgets the receives that were posted to this queue pair.
    pub(crate) fn forget_receives(&self) {
        if self.srq.is_none() {
            drop(self.rq.drain());
        }
    }

    /// The windows that were bound for this queue pair go with it.
    pub(crate) fn unbind_windows(&self) {
        let regions = &self.pd.context().inner().regions;
        regions.unbind_windows_of(self.qp_num.get());
    }

    /// `rdma_disconnect`: what TCP has taken is delivered, the rest is flushed.
    pub(crate) fn disconnect(&self) {
        let mut core = self.send_posted();
        let now = self.engine.now();
        match &mut core.side {
            Side::Iwarp(iwarp) => iwarp.stream.disconnect(now),
            Side::Roce(roce) => roce.abort(),
        }
        self.transmit(&mut core);
    }

    /// See [`send_posted`](Self::send_posted): before the peer hears of the end in another way.
    pub(crate) fn send_last(&self) {
        drop(self.send_posted());
    }

    /// Before the application ends what it has posted to: requests that were left for the next poll
    /// leave, as they would have left a device by now. They may be unsignaled, and nobody asks for
    /// their completions. Whatever `deferred` says: the engine's thread may have taken them over,
    /// and wait for the lock that we hold.
    pub(super) fn send_posted(&self) -> MutexGuard<'_, Core> {
        /// So long a peer is waited for that has no room for what goes over an unreliable service.
        const PATIENCE: Duration = Duration::from_millis(200);
        const NAP: Duration = Duration::from_micros(50);
        let mut core = self.lock();
        self.takes_along(&mut core);
        self.transmit(&mut core);
        if self.qp_type.is_reliable() {
            return core;
        }
        // An unreliable service has small turns, and its send queue is a whole one of datagrams.
        let end = self.engine.now() + PATIENCE;
        while let Some(roce) = core.roce() {
            let is_blocked = !roce.pending.is_empty();
            if !is_blocked && !roce.queue_pair.wants_transmit() || self.engine.now() > end {
                break;
            }
            if is_blocked {
                // Whoever makes room may want the lock first.
                drop(core);
                std::thread::sleep(NAP);
                core = self.lock();
            }
            self.transmit(&mut core);
        }
        core
    }

    /// Moves to the error state and closes the connection.
    pub(crate) fn abort(&self, cause: CloseCause) {
        let mut core = if matches!(cause, CloseCause::Local) {
            self.send_posted()
        } else {
            self.lock()
        };
        self.abort_locked(&mut core, cause);
    }

    pub(super) fn abort_locked(&self, core: &mut MutexGuard<'_, Core>, cause: CloseCause) {
        match &mut core.side {
            Side::Iwarp(iwarp) => iwarp.stream.abort(cause),
            Side::Roce(roce) => roce.abort(),
        }
        self.set_state(core, QpState::Err);
        self.transmit(core);
        self.flush_receives(core);
    }

    /// The last handle is gone, or the application has said so.
    pub(super) fn destroy(&self) {
        // Not a flag: a second caller too may return only when it is done.
        self.destroyed.call_once(|| self.destroy_once());
    }

    fn destroy_once(&self) {
        registry::remove(self);
        let mut core = self.send_posted();
        match &mut core.side {
            Side::Iwarp(iwarp) => iwarp.stream.abort(CloseCause::Local),
            Side::Roce(roce) => roce.abort(),
        }
        self.transmit(&mut core);
        if let Some(roce) = core.roce() {
            roce.unregister(self.engine);
        }
        drop(core);
        self.unbind_windows();
        self.send_cq.detach(&self.me);
        self.send_cq.forget(self.qp_num);
        self.recv_cq.detach(&self.me);
        self.recv_cq.forget(self.qp_num);
        let events = &self.pd.context().inner().async_events;
        events.forget(AsyncElement::Qp(self.qp_num));
    }
}

/// What TCP has to get before the connection is closed: the rest of a frame that it has in part,
/// and the Terminate message behind it. Copied, since the memory of flushed requests belongs to
/// the application again.
fn rest_of_stream(qp: &QpInner, iwarp: &mut Iwarp, connection: &Connection) -> Vec<u8> {
    let mut memory = QpMemory::new(qp);
    let mut out = Vec::new();
    let (batch, sent) = (&connection.batch, connection.sent);
    let mut frame_ends = batch.frame_ends().iter().copied();
    let kept = match sent {
        0 => 0,
        _ => frame_ends.find(|&end| end >= sent).unwrap_or(sent),
    };
    if copy_range(&memory, batch, sent..kept, &mut out).is_err() {
        // Memory has gone in the middle of a frame: nothing more can be said to the peer.
        return Vec::new();
    }
    // Markers stand where they have to in the octets that are sent.
    iwarp.stream.forget_untransmitted(batch.len() - kept);
    let mut last = TxBatch::new();
    iwarp
        .stream
        .poll_transmit(qp.engine.now(), &mut memory, &mut last, 4096, 64);
    let all = 0..last.len();
    let _ = copy_range(&memory, &last, all, &mut out);
    out
}

/// Copies a range of a batch.
pub(super) fn copy_range(
    memory: &QpMemory<'_>,
    batch: &TxBatch,
    range: std::ops::Range<usize>,
    out: &mut Vec<u8>,
) -> Result<(), MemoryFault> {
    let mut position = 0;
    for piece in batch.pieces() {
        let (from, to) = (
            range.start.max(position),
            range.end.min(position + piece.len()),
        );
        if from < to {
            let (skip, len) = (from - position, to - from);
            match *piece {
                Piece::Scratch { start, .. } => {
                    out.extend_from_slice(&batch.scratch()[start + skip..start + skip + len]);
                }
                Piece::Memory { key, addr, .. } => {
                    let at = out.len();
                    out.resize(at + len, 0);
                    let (addr, domain) = (addr + skip as u64, memory.domain());
                    memory.regions().read(key, addr, &mut out[at..], domain)?;
                }
            }
        }
        position += piece.len();
    }
    Ok(())
}

/// A socket whose stream has ended: sends what is left, says so with a FIN, and reads until the
/// peer's FIN, since closing with unread octets would reset the connection and take what the peer
/// has not read yet with it.
pub(crate) struct Linger {
    state: Mutex<LingerState>,
}

struct LingerState {
    socket: Option<OwnedFd>,
    token: Option<Token>,
    pending: Vec<u8>,
    sent: usize,
    /// The way of what is pending, until all of it has gone.
    lane: Option<LastOutlet>,
    finished: bool,
}

impl Linger {
    /// The same for a stranger, who never had a connection: if too many sockets linger already, it
    /// gets what TCP takes at once, and no more patience.
    pub(crate) fn refuse(engine: &Engine, socket: OwnedFd, pending: Vec<u8>) {
        if LINGERING.load(Ordering::Relaxed) < Engine::strangers_share() {
            Self::start(engine, socket, pending);
        } else {
            LingerState::new(socket, pending, None).progress();
        }
    }

    /// Takes over a socket that no epoll set holds any more.
    pub(crate) fn start(engine: &Engine, socket: OwnedFd, pending: Vec<u8>) {
        Self::start_with(engine, socket, pending, None);
    }

    /// The same. What is pending goes by a lane if there is one.
    fn start_with(engine: &Engine, socket: OwnedFd, pending: Vec<u8>, lane: Option<LastOutlet>) {
        let linger = Arc::new(Self {
            state: Mutex::new(LingerState::new(socket, pending, lane)),
        });
        let mut state = linger.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.progress() {
            return;
        }
        if state.finished {
            state.lane = None;
        }
        let token = engine.sources.add(linger.clone());
        state.token = Some(token);
        let watched = state.socket.as_ref().is_some_and(|socket| {
            let interest = if state.finished || state.lane.is_some() {
                EpollFlags::EPOLLIN
            } else {
                EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT
            };
            let watch = |fd, interest| engine.watch(Set::Control, token, fd, interest).is_ok();
            let bell = state.lane.as_ref().map(|lane| lane.bell().fd());
            bell.is_none_or(|bell| watch(bell, EpollFlags::EPOLLIN))
                && watch(socket.as_fd(), interest)
        });
        if watched {
            engine.set_timer(token, Some(engine.now() + LINGER));
        } else {
            state.socket = None;
            drop(state);
            engine.sources.remove(token);
        }
    }
}

/// Sockets that linger.
static LINGERING: AtomicUsize = AtomicUsize::new(0);

impl Drop for LingerState {
    fn drop(&mut self) {
        LINGERING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LingerState {
    fn new(socket: OwnedFd, pending: Vec<u8>, lane: Option<LastOutlet>) -> Self {
        LINGERING.fetch_add(1, Ordering::Relaxed);
        Self {
            socket: Some(socket),
            token: None,
            pending,
            sent: 0,
            lane,
            finished: false,
        }
    }

    /// Nothing goes by the lane any more.
    fn leave_lane(&mut self, engine: &Engine) {
        if let Some(lane) = self.lane.take() {
            engine.unwatch(Set::Control, lane.bell().fd());
        }
    }

    /// Whether all is done.
    fn progress(&mut self) -> bool {
        let Some(socket) = &self.socket else {
            return true;
        };
        let fd = socket.as_fd();
        while self.sent < self.pending.len() {
            let mut list = IoList::new();
            list.push_out(&self.pending[self.sent..]);
            let sent = match &mut self.lane {
                Some(lane) => lane.send(&list),
                None => list.send(fd, false),
            };
            match sent {
                Ok(octets) => self.sent += octets,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => return true,
            }
        }
        if self.sent == self.pending.len() && !self.finished {
            self.finished = true;
            if shutdown(socket.as_raw_fd(), Shutdown::Write).is_err() {
                return true;
            }
        }
        drain(fd)
    }
}

/// Reads and forgets. Whether the stream has ended.
fn drain(fd: BorrowedFd<'_>) -> bool {
    let mut bin = [0; 16 << 10];
    for _ in 0..64 {
        let mut list = IoList::new();
        list.push_in(&mut bin);
        match list.receive(fd) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
    false
}

impl Source for Linger {
    fn ready(&self, engine: &Engine, _: EpollFlags) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.finished;
        // The other end takes nothing any more.
        let gone = state.lane.as_ref().is_some_and(|lane| !lane.bell().hush());
        let done = state.progress() || gone;
        let Some(token) = state.token else { return };
        if done || state.finished {
            state.leave_lane(engine);
        }
        if done {
            if let Some(socket) = state.socket.take() {
                engine.unwatch(Set::Control, socket.as_fd());
            }
            drop(state);
            engine.set_timer(token, None);
            engine.sources.remove(token);
        } else if state.finished
            && !before
            && let Some(socket) = &state.socket
        {
            engine.rewatch(Set::Control, token, socket.as_fd(), EpollFlags::EPOLLIN);
        }
    }

    fn timeout(&self, engine: &Engine, _: Time) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.leave_lane(engine);
        if let Some(socket) = state.socket.take() {
            engine.unwatch(Set::Control, socket.as_fd());
        }
        if let Some(token) = state.token {
            drop(state);
            engine.sources.remove(token);
        }
    }
}
