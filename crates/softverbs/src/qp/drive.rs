//! The work on a connection: receive and place, transmit, hand out the results. Done by whichever
//! thread holds the queue pair's lock.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, Weak};

use nix::poll::PollFlags;
use nix::sys::epoll::EpollFlags;
use smallvec::SmallVec;
use softverbs_proto::fault::{Fault, LocalFault};
use softverbs_proto::iwarp::negotiate::Negotiated;
use softverbs_proto::iwarp::stream::{CloseCause, FpduSizing, Role, Stream, StreamEvent};
use softverbs_proto::memory::{Access, MemoryFault};
use softverbs_proto::qp_state::QpState;
use softverbs_proto::time::Time;
use softverbs_proto::transmit::{Piece, TxBatch};

use super::lane::Way;
use super::memory::QpMemory;
use super::receive::Expected;
use super::{Core, Iwarp, QpInner, Side};
use crate::cm::IdShared;
use crate::engine::edge::{self, Edge};
use crate::engine::sources::{Source, Token};
use crate::engine::sys::{IoList, MAX_IOV};
use crate::engine::{Engine, Set};
use crate::error::{Error, Result};
use crate::wr::Wc;

/// Octets gathered for one system call.
const BATCH_LEN: usize = 1 << 20;
/// The same with CRC, which copies: no more than stays in the core's cache.
const CRC_BATCH_LEN: usize = 256 << 10;
/// System calls on one connection before another one gets its turn.
pub(super) const BUDGET: usize = 32;
/// How often a connection is polled before it counts as hot.
const HEAT_EVERY: u32 = 256;
/// A batch buffer that has grown beyond this is not kept by an idle connection.
const KEEP_CAPACITY: usize = 512;

thread_local! {
    static BATCH: RefCell<TxBatch> = const { RefCell::new(TxBatch::new()) };
}

/// The TCP connection of a queue pair.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) token: Token,
    /// Frames that TCP has not taken completely.
    pub(super) batch: TxBatch,
    pub(super) sent: usize,
    /// epoll tells when the socket takes more.
    pub(super) waiting_for_room: bool,
    /// epoll is told to be quiet: application threads poll this connection all the time, and
    /// telling it of every packet would cost a tenth of a round trip.
    pub(super) hot: bool,
    pub(super) expected: Expected,
    pub(super) way: Way,
    /// Frames start on segment boundaries: one record each.
    mpa_aware: bool,
    timer: Option<Time>,
    /// Where the stream is disturbed.
    pub(super) edge: Edge,
}

pub(super) enum Sent {
    /// TCP took this many octets.
    Took(usize),
    Blocked,
    /// The edge holds enough back.
    Held,
    Lost,
    /// Memory of a request has gone.
    Gone(MemoryFault),
}

impl QpInner {
    /// Starts FPDU mode on a TCP connection whose MPA start-up is complete. `early` octets of the
    /// stream arrived with the last start-up frame.
    #[allow(clippy::too_many_arguments, reason = "the parts of one agreement")]
    pub(crate) fn attach(
        &self,
        socket: OwnedFd,
        role: Role,
        negotiated: Negotiated,
        sizing: FpduSizing,
        early: &[u8],
        edge: Edge,
        cm: Weak<IdShared>,
    ) -> Result<()> {
        let engine = self.engine;
        let source: Arc<dyn Source> = self.me.upgrade().expect("called on a living queue pair");
        let mut core = self.lock();
        let state = core.state;
        let Side::Iwarp(iwarp) = &mut core.side else {
            return Err(Error::invalid("qp", "is not for iWARP"));
        };
        // It may have been moved to the error state, or been connected by hand, meanwhile.
        let ready = matches!(state, QpState::Init | QpState::Rtr | QpState::Rts);
        if !ready || iwarp.connection.is_some() || iwarp.stream.negotiated().is_some() {
            return Err(Error::invalid(
                "qp",
                format!("the queue pair is in {state}"),
            ));
        }
        let token = engine.sources.add(source);
        if let Err(error) = engine.watch(Set::Data, token, socket.as_fd(), EpollFlags::EPOLLIN) {
            engine.sources.remove(token);
            return Err(error);
        }
        let now = engine.now();
        iwarp.connection = Some(Connection {
            socket,
            token,
            batch: TxBatch::new(),
            sent: 0,
            waiting_for_room: false,
            hot: false,
            expected: Expected::default(),
            way: Way::new(early.len()),
            mpa_aware: matches!(sizing, FpduSizing::MpaAware { .. }),
            timer: None,
            edge,
        });
        iwarp.stream.attach(now, role, negotiated, sizing);
        core.cm = Some(cm);
        if matches!(core.state, QpState::Init | QpState::Rtr) {
            self.set_state(&mut core, QpState::Rts);
        }
        if !early.is_empty()
            && let Side::Iwarp(iwarp) = &mut core.side
        {
            iwarp.stream.on_bytes(now, &mut QpMemory::new(self), early);
        }
        self.work(&mut core);
        self.transmit(&mut core);
        Ok(())
    }

    /// An application thread polls: does the work, unless another thread is at it.
    pub(crate) fn drive(&self) {
        if let Ok(mut core) = self.core.try_lock() {
            if self.note_driven().is_multiple_of(HEAT_EVERY) {
                self.heat(&mut core);
            }
            self.at_work(|| self.work(&mut core));
        }
    }

    /// An application thread does the work; says how often that has been. Under the lock.
    fn note_driven(&self) -> u32 {
        let driven = self.driven.load(Ordering::Relaxed).wrapping_add(1);
        self.driven.store(driven, Ordering::Relaxed);
        driven
    }

    /// An application thread works: the engine's thread leaves it alone, however long it takes.
    pub(super) fn at_work(&self, work: impl FnOnce()) {
        self.engine.enter();
        self.worked_on.store(true, Ordering::Relaxed);
        work();
        self.worked_on.store(false, Ordering::Relaxed);
        self.engine.leave();
    }

    /// An application thread polls this connection often: epoll need not watch it meanwhile.
    fn heat(&self, core: &mut Core) {
        let Some(connection) = core.connection() else {
            return;
        };
        // With a lane TCP brings nothing.
        if connection.hot || connection.way.has_lane() || !self.engine.is_backed_off() {
            return;
        }
        connection.hot = true;
        self.engine.mute(connection.socket.as_fd());
        if !self.engine.add_hot(connection.token) {
            connection.cool(self.engine);
        }
    }

    /// Does the work, since the `socket` or a lane has something.
    pub(super) fn serve(&self, engine: &Engine, socket: bool) {
        match self.core.try_lock() {
            Ok(mut core) => {
                if socket && let Some(connection) = core.connection() {
                    connection.way.look();
                }
                if Engine::is_own_thread() {
                    return self.work(&mut core);
                }
                // An application thread, which polls another queue and serves this one, too.
                self.note_driven();
                self.at_work(|| self.work(&mut core));
            }
            // Whoever holds the lock is doing this work, in a long system call perhaps. The engine's
            // thread would find the same again and again, on a core that they need.
            Err(_) => engine.note_poll(),
        }
    }

    /// Receives, transmits, hands out. Most polls find nothing to do.
    fn work(&self, core: &mut MutexGuard<'_, Core>) {
        if let Side::Iwarp(iwarp) = &mut core.side
            && let Some(connection) = &iwarp.connection
        {
            // Asked without the socket's lock: a sender that waits for room would fight for it with
            // the acknowledgements that make the room.
            let ready = if connection.waiting_for_room {
                connection.readiness()
            } else {
                PollFlags::POLLIN | PollFlags::POLLOUT
            };
            let came = ready.intersects(!PollFlags::POLLOUT) && self.receive(iwarp);
            if came && let Some(connection) = &mut iwarp.connection {
                connection.look_for_lane(self);
            }
            if !came && self.is_idle(iwarp) {
                return;
            }
            if !ready.intersects(!PollFlags::POLLIN) {
                self.settle(core);
                return;
            }
        }
        self.transmit(core);
    }

    /// Whether there is nothing to transmit, and nothing to end the connection for.
    fn is_idle(&self, of: &Iwarp) -> bool {
        of.connection.as_ref().is_some_and(Connection::is_idle)
            && !of.stream.wants_transmit()
            && !self.send_cq.has_overrun()
            && !self.recv_cq.has_overrun()
    }

    /// Transmits what may be transmitted, and hands out the results.
    pub(crate) fn transmit(&self, core: &mut MutexGuard<'_, Core>) {
        match &mut core.side {
            Side::Iwarp(iwarp) => {
                if iwarp.connection.is_some() {
                    self.send_frames(iwarp);
                }
                self.settle(core);
            }
            Side::Roce(roce) => {
                self.send_packets(roce);
                self.settle_packets(core);
            }
        }
    }

    fn send_frames(&self, core: &mut Iwarp) {
        if self.is_idle(core) {
            return self.set_timer(core);
        }
        let mut memory = QpMemory::new(self);
        let crc = core.stream.negotiated().is_some_and(|agreed| agreed.crc);
        let most = if crc { CRC_BATCH_LEN } else { BATCH_LEN };
        let disturbed = core.connection.as_ref().is_some_and(|of| of.edge.is_some());
        let now = if disturbed {
            self.engine.now()
        } else {
            self.engine.coarse_now()
        };
        for _ in 0..BUDGET {
            let Some(connection) = &mut core.connection else {
                return;
            };
            let flushed = match connection.edge {
                Some(_) => connection.flush_edge(now),
                None => None,
            };
            if connection.batch.is_empty() && flushed.is_none() {
                if !core.stream.wants_transmit() {
                    break;
                }
                if connection.batch.capacity() == 0 {
                    connection.batch = BATCH.take();
                }
                core.stream.poll_transmit(
                    now,
                    &mut memory,
                    &mut connection.batch,
                    most,
                    MAX_IOV - 8,
                );
                connection.sent = 0;
                if connection.batch.is_empty() {
                    break;
                }
            }
            connection.go_over(self.engine);
            match flushed.unwrap_or_else(|| connection.send(&memory, now)) {
                Sent::Took(octets) => core.stream.on_transmitted(octets),
                Sent::Blocked => {
                    connection.wait_for_room(self.engine, true);
                    self.set_timer(core);
                    return;
                }
                Sent::Held => {
                    connection.wait_for_room(self.engine, false);
                    self.set_timer(core);
                    return;
                }
                Sent::Lost => {
                    core.stream.on_eof(now, true);
                    return;
                }
                Sent::Gone(fault) => {
                    core.stream
                        .abort(CloseCause::Fault(Fault::Local(LocalFault::Protection(
                            fault,
                        ))));
                    return;
                }
            }
        }
        if let Some(connection) = &mut core.connection {
            let more = !connection.batch.is_empty()
                || core.stream.wants_transmit()
                || connection.edge.as_ref().is_some_and(|of| of.is_due(now));
            connection.wait_for_room(self.engine, more);
            connection.look_for_lane(self);
            if connection.batch.is_empty() && connection.batch.capacity() > KEEP_CAPACITY {
                BATCH.set(std::mem::take(&mut connection.batch));
            }
        }
        self.set_timer(core);
    }

    pub(super) fn set_timer(&self, core: &mut Iwarp) {
        let mut deadline = core.stream.deadline();
        if let Some(connection) = &mut core.connection {
            if connection.edge.is_some() {
                deadline = edge::earlier(&connection.edge, deadline);
            }
            if let Some(look) = connection.way.deadline() {
                deadline = Some(deadline.map_or(look, |deadline| deadline.min(look)));
            }
            if connection.timer != deadline {
                connection.timer = deadline;
                self.engine.set_timer(connection.token, deadline);
            }
        }
    }

    /// Hands out events and completions.
    fn settle(&self, core: &mut MutexGuard<'_, Core>) {
        while let Some(event) = core.stream().and_then(Stream::poll_event) {
            match event {
                StreamEvent::Established => {
                    // Before the completions of what arrived with it.
                    if let Some(cm) = core.cm.as_ref().and_then(Weak::upgrade) {
                        cm.on_established();
                    }
                }
                StreamEvent::Closed { cause } => {
                    self.hand_out(core);
                    self.on_closed(core, cause.as_ref());
                }
            }
        }
        self.hand_out(core);
        if core.state == QpState::Rts
            && (self.send_cq.has_overrun() || self.recv_cq.has_overrun())
            && let Some(stream) = core.stream()
        {
            stream.abort(CloseCause::Local);
            self.settle(core);
        }
    }

    fn hand_out(&self, core: &mut Core) {
        let Some(stream) = core.stream() else { return };
        let mut ready: SmallVec<[Wc; 8]> = SmallVec::new();
        while let Some(completion) = stream.poll_send_completion() {
            ready.push(Wc::new(&completion, self.qp_num));
        }
        if !ready.is_empty() {
            self.send_cq.push(&ready, false);
            ready.clear();
        }
        let mut solicited = false;
        while let Some(completion) = stream.poll_recv_completion() {
            solicited |= completion.solicited;
            ready.push(Wc::new(&completion, self.qp_num));
        }
        if !ready.is_empty() {
            self.recv_cq.push(&ready, solicited);
        }
    }
}

pub(super) fn is_retry(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl Core {
    /// Whether TCP has refused to take more.
    pub(super) fn waits_for_room(&self) -> bool {
        match &self.side {
            Side::Iwarp(iwarp) => iwarp
                .connection
                .as_ref()
                .is_some_and(|c| c.waiting_for_room),
            Side::Roce(_) => false,
        }
    }
}

impl Connection {
    /// Gives TCP what it takes of the batch, in one system call.
    fn send(&mut self, memory: &QpMemory<'_>, now: Time) -> Sent {
        if self.edge.is_some() {
            return self.send_disturbed(memory, now);
        }
        let mut skip = self.sent;
        // With records each call ends with a frame.
        let records = self.mpa_aware && !self.way.leads_out();
        let stop = if records {
            let ends = self.batch.frame_ends();
            ends.iter()
                .copied()
                .find(|&end| end > self.sent)
                .unwrap_or(self.batch.len())
        } else {
            self.batch.len()
        };
        let mut left = stop - self.sent;
        let mut list = IoList::new();
        for piece in self.batch.pieces() {
            let len = piece.len();
            if skip >= len {
                skip -= len;
                continue;
            }
            let take = (len - skip).min(left);
            match *piece {
                Piece::Scratch { start, .. } => {
                    list.push_out(&self.batch.scratch()[start + skip..start + skip + take]);
                }
                Piece::Memory { key, addr, .. } => {
                    let addr = addr + skip as u64;
                    match memory
                        .regions()
                        .iovec(key, addr, take, Access::empty(), memory.domain())
                    {
                        Ok((pin, start)) => list.push_pinned(pin, start, take),
                        Err(fault) => return Sent::Gone(fault),
                    }
                }
            }
            left -= take;
            skip = 0;
            if left == 0 || list.elements() == MAX_IOV {
                break;
            }
        }
        let result = self.way.send(&mut list, self.socket.as_fd(), records);
        drop(list);
        match result {
            Ok(octets) => {
                self.sent += octets;
                if self.sent == self.batch.len() {
                    self.batch.clear();
                    self.sent = 0;
                }
                Sent::Took(octets)
            }
            Err(error) if is_retry(&error) => Sent::Blocked,
            Err(_) => Sent::Lost,
        }
    }
}

impl Source for QpInner {
    fn ready(&self, engine: &Engine, _readiness: EpollFlags) {
        self.serve(engine, true);
    }

    fn timeout(&self, engine: &Engine, now: Time) {
        let mut core = self.lock();
        if let Some(roce) = core.roce() {
            if !roce.timer_fired(engine, now) {
                return;
            }
            let port = roce.port();
            drop(core);
            // What has come and waits in the socket is no silence: this process may have waited for
            // a core for longer than the peer needed to answer.
            port.receive_all(now);
            core = self.lock();
        }
        match &mut core.side {
            Side::Iwarp(Iwarp { stream, connection }) => {
                if let Some(connection) = connection {
                    connection.timer = None;
                    if connection.is_stuck(now) {
                        stream.on_eof(now, true);
                    }
                }
                if stream.deadline().is_some_and(|deadline| deadline <= now) {
                    stream.on_timeout(now);
                }
            }
            Side::Roce(roce) => roce.on_timeout(now),
        }
        self.work(&mut core);
        if core.stream().is_some() {
            // What time has brought about, though nothing came.
            self.transmit(&mut core);
        }
    }

    fn neglected(&self) -> bool {
        if self.worked_on.load(Ordering::Relaxed) {
            return false;
        }
        let driven = self.driven.load(Ordering::Relaxed);
        self.driven_seen.swap(driven, Ordering::Relaxed) == driven
    }

    /// Nobody polls this connection any more.
    fn cool(&self, engine: &Engine) {
        let mut core = self.lock();
        if let Some(connection) = core.connection() {
            connection.cool(engine);
        }
    }
}
