//! The work on a queue pair over RoCE: packets in, packets out, results.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::{Arc, MutexGuard, Weak};

use smallvec::SmallVec;
use softverbs_proto::cm::params::ConnectionId;
use softverbs_proto::fault::Misuse;
use softverbs_proto::qp_state::{QpState, QpType};
use softverbs_proto::roce::batch::{Destination, PacketBatch};
use softverbs_proto::roce::queue_pair::{
    NetworkHeader, QpConfig, QpEvent, QpFailure, QueuePair, RecvCompletion, UdDestination,
};
use softverbs_proto::roce::train;
use softverbs_proto::time::Time;
use softverbs_proto::wr::{SendRequest, WcStatus};
use softverbs_wire::num::{PathMtu, Qkey, Qpn};

use super::address::Way;
use super::patience::Patience;
use super::port::{PacketSink, Port, ReceivedFrom, SendPath, Sent};
use crate::async_event::AsyncEventKind;
use crate::cm::ib::Manager;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::sources::{Source, Token};
use crate::error::{Error, Result};
use crate::qp::{Core, QpInitAttr, QpInner, QpMemory};
use crate::same_host::grants::Passive;
use crate::wr::{SendWr, Wc};

/// Packets that are put together before they are sent.
const BATCH_PACKETS: usize = 128;
/// Batches before another queue pair gets its turn.
const BUDGET: usize = 32;
/// The same for unreliable services, which nothing else slows down: what is sent faster than the
/// peer takes it is lost there. Between two turns this process receives, and others may.
const UNRELIABLE_BUDGET: usize = 2;
/// Payloads of up to this many octets are copied into the packet: one piece to send is cheaper
/// than three.
const COPY_LIMIT: u32 = 512;
/// Ways to datagram peers that a queue pair remembers.
const MAX_WAYS: usize = 1024;
/// A batch buffer that has grown beyond this is not kept by an idle queue pair.
const KEEP_CAPACITY: usize = 512;

thread_local! {
    static BATCH: RefCell<PacketBatch> = const { RefCell::new(PacketBatch::new()) };
}

/// The connection that a queue pair belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionOfQp {
    pub(crate) manager: &'static Manager,
    pub(crate) id: ConnectionId,
    /// The connection manager moves the queue pair. Otherwise the application does, and only the
    /// gate is common.
    pub(crate) owned: bool,
}

/// A queue pair over RoCE.
pub(crate) struct Roce {
    pub(crate) queue_pair: QueuePair,
    pub(super) port: &'static Port,
    /// Multicast groups and the interfaces that they were joined on.
    pub(super) groups: Vec<(IpAddr, u32)>,
    way: Option<Way>,
    /// To the connected peer.
    path: Option<SendPath>,
    /// To datagram peers, by the number of an address handle and the queue pair there.
    paths: HashMap<u64, SendPath>,
    pub(crate) connection: Option<ConnectionOfQp>,
    token: Option<Token>,
    /// When the engine's timer fires; not later than what the queue pair waits for.
    timer: Option<Time>,
    /// Requests that were posted between `connect` and the peer's answer: they go first. `None`
    /// when it is not the time for them.
    early: Option<Vec<(SendRequest, Option<Qpn>)>>,
    /// Packets that there was no room for, from that one on.
    pub(crate) pending: PacketBatch,
    pending_from: usize,
    /// The port tells when there is room.
    waiting: bool,
    /// Packets of an unreliable service were dropped from `pending`: their requests, which have
    /// completed as far as the queue pair knows, are flushed.
    cut: bool,
    pub(crate) patience: Patience,
    /// What the peer keeps writing to.
    passive: Passive,
}

impl Roce {
    pub(crate) fn new(device: &Device, attr: &QpInitAttr<'_>) -> Result<Self> {
        let port = Port::get(Engine::get()?)?;
        let qpn = port.alloc_qpn()?;
        let port_mtu = PathMtu::ALL[device.active_mtu() as usize - 1];
        let config = QpConfig {
            sq_sig_all: attr.sq_sig_all,
            copy_limit: COPY_LIMIT,
            port_mtu,
            max_window: port.window(port_mtu),
            max_train: train::MOST,
            ..QpConfig::new(attr.qp_type, qpn, attr.cap.max_send_wr)
        };
        Ok(Self {
            queue_pair: QueuePair::new(config),
            port,
            groups: Vec::new(),
            way: None,
            path: None,
            paths: HashMap::new(),
            connection: None,
            token: None,
            timer: None,
            early: None,
            pending: PacketBatch::new(),
            pending_from: 0,
            waiting: false,
            cut: false,
            patience: Patience::default(),
            passive: Passive::default(),
        })
    }

    fn path_to(&self, destination: Destination) -> Option<&SendPath> {
        match destination {
            Destination::Peer => self.path.as_ref(),
            Destination::Address(address) => self.paths.get(&address),
        }
    }

    pub(crate) fn set_way(&mut self, way: Way) {
        self.way = Some(way);
    }

    /// The way to the queue pair that the attributes name.
    pub(crate) fn set_path(&mut self) {
        let dest_qpn = self.queue_pair.attributes().dest_qpn;
        if self.queue_pair.config().qp_type == QpType::Ud {
            return;
        }
        if let Some(way) = &self.way {
            let same = self.path.as_ref().is_some_and(|path| {
                path.dest_qpn == dest_qpn && path.remote == way.remote && path.local == way.local
            });
            if !same {
                let mut path = way.to(dest_qpn);
                path.reliable = self.queue_pair.config().qp_type.is_reliable();
                self.path = Some(path);
            }
        }
    }

    pub(crate) fn reset(&mut self) {
        self.way = None;
        self.path = None;
        self.paths.clear();
        self.connection = None;
        self.early = None;
        self.pending.clear();
        self.pending_from = 0;
        self.cut = false;
    }

    pub(crate) fn post_send(
        &mut self,
        request: SendRequest,
        wr: &SendWr<'_>,
        pd: u32,
    ) -> Result<()> {
        if self.queue_pair.config().qp_type != QpType::Ud {
            if let Some(early) = &mut self.early {
                if early.len() >= self.queue_pair.config().max_send_wr as usize {
                    return Err(Misuse::QueueFull.into());
                }
                early.push((request, wr.remote_srqn));
                return Ok(());
            }
            return Ok(self.post_connected(request, wr.remote_srqn)?);
        }
        let Some(to) = &wr.ud else {
            return Err(Error::invalid("ud", "a datagram needs a destination"));
        };
        if to.ah.pd_id() != pd {
            return Err(Error::invalid("ah", "belongs to another protection domain"));
        }
        let address = to.ah.id() << 24 | u64::from(to.remote_qpn.get());
        let idle = self.queue_pair.outstanding() == 0 && self.pending.is_empty();
        if self.paths.len() >= MAX_WAYS && idle {
            self.paths.clear();
        }
        self.paths
            .entry(address)
            .or_insert_with(|| to.ah.way().to(to.remote_qpn));
        let destination = UdDestination {
            address,
            remote_qpn: to.remote_qpn,
            remote_qkey: Qkey::new(to.remote_qkey),
        };
        Ok(self.queue_pair.post_send_to(request, destination)?)
    }

    fn post_connected(
        &mut self,
        request: SendRequest,
        srq: Option<Qpn>,
    ) -> std::result::Result<(), Misuse> {
        match srq {
            Some(srq) if self.queue_pair.config().qp_type == QpType::XrcSend => {
                self.queue_pair.post_send_xrc(request, srq)
            }
            _ => self.queue_pair.post_send(request),
        }
    }

    /// The peer is being asked: requests may be posted.
    pub(crate) fn expect_answer(&mut self) {
        self.early.get_or_insert_default();
    }

    /// Whether requests may be posted although the queue pair is in INIT.
    pub(crate) fn takes_early(&self) -> bool {
        self.early.is_some()
    }

    /// The queue pair has left INIT: it takes what was posted early, to transmit or to flush it.
    pub(crate) fn post_early(&mut self) {
        for (request, srq) in self.early.take().unwrap_or_default() {
            if self.post_connected(request, srq).is_err() {
                // What no transport could do: nothing behind it may be done either.
                self.queue_pair.abort();
            }
        }
    }

    /// To the error state, everything flushed.
    pub(crate) fn abort(&mut self) {
        self.queue_pair.abort();
        self.post_early();
    }

    /// The engine's timer has fired. False if nothing is due yet: then it is set again.
    pub(crate) fn timer_fired(&mut self, engine: &Engine, now: Time) -> bool {
        self.timer = None;
        let due = self.is_due(now);
        if !due {
            self.set_timer(engine);
        }
        due
    }

    fn is_due(&self, now: Time) -> bool {
        self.queue_pair.deadline().is_some_and(|at| at <= now)
    }

    /// Everything that had come by `now` has been received.
    pub(crate) fn on_timeout(&mut self, now: Time) {
        if self.is_due(now) {
            self.queue_pair.on_timeout(now);
        }
    }

    pub(crate) const fn port(&self) -> &'static Port {
        self.port
    }

    /// The engine's timer is moved only to an earlier time: one that fires too early costs less
    /// than moving it with every packet.
    fn set_timer(&mut self, engine: &Engine) {
        let (Some(token), Some(deadline)) = (self.token, self.queue_pair.deadline()) else {
            return;
        };
        if self.timer.is_none_or(|at| deadline < at) {
            self.timer = Some(deadline);
            engine.set_timer(token, Some(deadline));
        }
    }

    /// Whether a packet comes from the connected peer; datagrams come from anywhere.
    fn is_from_peer(&self, from: &ReceivedFrom) -> bool {
        match (&self.path, self.queue_pair.config().qp_type) {
            (_, QpType::Ud) => {
                !from.local.is_multicast() || self.queue_pair.is_attached(from.local.into())
            }
            (Some(path), _) => path.remote == from.remote && path.local == from.local,
            (None, _) => false,
        }
    }

    /// The queue pair has gone: no packets, no timer.
    pub(crate) fn unregister(&mut self, engine: &Engine) {
        let qpn = self.queue_pair.config().qpn;
        for (group, interface) in self.groups.drain(..) {
            self.port.leave(group, interface, qpn);
        }
        self.end_grants();
        if let Some(token) = self.token.take() {
            self.port.unregister(qpn);
            engine.set_timer(token, None);
            engine.sources.remove(token);
        }
    }
}

impl Drop for Roce {
    fn drop(&mut self) {
        self.port.free_qpn(self.queue_pair.config().qpn);
    }
}

/// What became of a batch.
enum Gone {
    All,
    /// There is no room for this packet and those behind it.
    From(usize),
}

impl QpInner {
    /// Packets for this queue pair come to it from now on.
    pub(crate) fn register(&self) -> Result<()> {
        let Some(me) = self.weak().upgrade() else {
            return Ok(());
        };
        let mut core = self.lock();
        if let Some(roce) = core.roce() {
            let source: Arc<dyn Source> = me;
            roce.token = Some(self.engine.sources.add(source));
            let sink: Weak<dyn PacketSink> = self.weak();
            roce.port.register(self.qp_num, sink);
        }
        Ok(())
    }

    /// Whether acknowledges wait for the application's answer or next poll.
    fn acknowledges_later(&self, roce: &mut Roce) -> bool {
        if !self.engine.is_backed_off() || !roce.pending.is_empty() || !roce.queue_pair.may_wait() {
            return false;
        }
        roce.patience.begin()
    }

    pub(crate) fn send_packets(&self, roce: &mut Roce) {
        if !roce.pending.is_empty() {
            if roce.queue_pair.state() == QpState::Err {
                // They belong to requests that are flushed, or are as good as that.
                roce.pending.clear();
                roce.cut = !roce.queue_pair.config().qp_type.is_reliable();
            } else {
                let batch = std::mem::take(&mut roce.pending);
                let from = roce.pending_from;
                if !self.send_batch(roce, batch, from) {
                    // There may be no room for long: what waits for an answer may not wait for ever.
                    roce.set_timer(self.engine);
                    return;
                }
            }
        }
        let reliable = self.qp_type.is_reliable();
        let budget = if reliable { BUDGET } else { UNRELIABLE_BUDGET };
        let mut rounds = 0;
        while roce.queue_pair.wants_transmit() {
            rounds += 1;
            if rounds > budget {
                self.again();
                break;
            }
            let mut batch = BATCH.take();
            let now = self.engine.now();
            let mut memory = QpMemory::new(self).reaching(roce.port, roce.path.as_ref());
            roce.queue_pair
                .poll_transmit(now, &mut memory, &mut batch, BATCH_PACKETS);
            drop(memory);
            if batch.is_empty() {
                BATCH.set(batch);
                break;
            }
            if !self.send_batch(roce, batch, 0) {
                break;
            }
        }
        roce.set_timer(self.engine);
    }

    /// Sends packets from `from` on, and keeps what there is no room for.
    /// `false` if there was no room.
    fn send_batch(&self, roce: &mut Roce, mut batch: PacketBatch, from: usize) -> bool {
        match self.send_frames_of(roce, &batch, from) {
            Gone::All => {
                batch.clear();
                if batch.capacity() > KEEP_CAPACITY || roce.pending.capacity() == 0 {
                    BATCH.set(batch);
                }
                true
            }
            Gone::From(next) => {
                roce.pending = batch;
                roce.pending_from = next;
                if !std::mem::replace(&mut roce.waiting, true) {
                    let sink: Weak<dyn PacketSink> = self.weak();
                    let frame = roce.pending.frame_of(next);
                    let path = frame.and_then(|frame| roce.path_to(frame.destination));
                    roce.port.wait_for_room(path, sink);
                }
                false
            }
        }
    }

    fn send_frames_of(&self, roce: &Roce, batch: &PacketBatch, mut from: usize) -> Gone {
        let regions = &self.pd.context().inner().regions;
        while let Some(frame) = batch.frame_of(from) {
            let destination = frame.destination;
            let mut frames = batch.frames().iter();
            let other = frames.find(|frame| frame.first > from && frame.destination != destination);
            let range: Range<usize> =
                from..other.map_or_else(|| batch.packets(), |frame| frame.first);
            let Some(path) = roce.path_to(destination) else {
                from = range.end;
                continue;
            };
            match roce
                .port
                .send(regions, self.domain(), batch, range.clone(), path)
            {
                Sent::Took(count) if from + count < range.end => return Gone::From(from + count),
                Sent::Took(_) | Sent::Lost { .. } => from = range.end,
                Sent::Blocked => return Gone::From(from),
                // The queue pair finds out when it is to send the packet again (RC).
                Sent::Gone { took, .. } => from += took + 1,
            }
        }
        Gone::All
    }

    /// Hands out events and completions of a queue pair over RoCE.
    pub(crate) fn settle_packets(&self, core: &mut MutexGuard<'_, Core>) {
        let mut unanswered = None;
        while let Some(event) = core.roce().and_then(|roce| roce.queue_pair.poll_event()) {
            let connection = core.roce().and_then(|roce| roce.connection);
            match event {
                QpEvent::CommEst => {
                    self.raise(AsyncEventKind::CommEst);
                    if let Some(connection) = connection {
                        connection.manager.note_comm_est(connection.id);
                    }
                }
                QpEvent::SqDrained => self.raise(AsyncEventKind::SqDrained),
                QpEvent::Fatal { cause } => {
                    match cause {
                        QpFailure::SendQueue(_) => {}
                        QpFailure::RemoteAccess => self.raise(AsyncEventKind::QpAccessErr),
                        QpFailure::InvalidRequest => self.raise(AsyncEventKind::QpReqErr),
                        QpFailure::Local => self.raise(AsyncEventKind::QpFatal),
                    }
                    if let Some(connection) = connection
                        && connection.owned
                        && core.roce().map(|roce| roce.queue_pair.state()) == Some(QpState::Err)
                    {
                        if matches!(cause, QpFailure::SendQueue(WcStatus::RetryExcErr)) {
                            unanswered = Some(connection);
                        } else {
                            connection.manager.note_failed(connection.id);
                        }
                    }
                }
                QpEvent::LastWqeReached => {
                    if self.srq.is_some() {
                        self.raise(AsyncEventKind::QpLastWqeReached);
                    }
                }
            }
        }
        self.hand_out_packets(core);
        let Some(state) = core.roce().map(|roce| roce.queue_pair.state()) else {
            return;
        };
        if state != core.state {
            self.set_state(core, state);
            if state == QpState::Err {
                self.flush_receives(core);
            }
        }
        if let Some(connection) = unanswered {
            connection.manager.note_unanswered(connection.id);
        }
        if state == QpState::Rts
            && (self.send_cq.has_overrun() || self.recv_cq.has_overrun())
            && let Some(roce) = core.roce()
        {
            roce.queue_pair.abort();
            if let Some(connection) = roce.connection.filter(|of| of.owned) {
                connection.manager.note_failed(connection.id);
            }
            self.settle_packets(core);
        }
    }

    fn hand_out_packets(&self, core: &mut Core) {
        let Some(roce) = core.roce() else { return };
        let queue_pair = &mut roce.queue_pair;
        let mut ready: SmallVec<[Wc; 8]> = SmallVec::new();
        let mut solicited = false;
        while let Some(RecvCompletion {
            completion,
            source,
            srq,
        }) = queue_pair.poll_recv_completion()
        {
            if let Some(srq) = srq {
                // One at a time: they seldom go to the same queue as their neighbours.
                let srq = self.xrcd.as_ref().and_then(|xrcd| xrcd.srq(srq));
                if let Some(cq) = srq.and_then(|srq| srq.cq()) {
                    let wc = Wc::new(&completion, self.qp_num);
                    cq.inner().push(&[wc], completion.solicited);
                }
                continue;
            }
            solicited |= completion.solicited;
            let mut wc = Wc::new(&completion, self.qp_num);
            if let Some(source) = source {
                wc.src_qp = Some(source.qpn);
                wc.grh = source.grh.is_some();
                wc.sl = match source.grh {
                    Some(NetworkHeader::Ipv4) => 2,
                    Some(NetworkHeader::Ipv6) => 1,
                    None => 0,
                };
            }
            ready.push(wc);
        }
        if !ready.is_empty() {
            self.recv_cq.push(&ready, solicited);
            ready.clear();
        }
        // A request of an unreliable service completes when its packets were yielded; its memory is
        // the application's again when they have gone.
        let cut = std::mem::take(&mut roce.cut);
        if roce.pending.is_empty() || queue_pair.config().qp_type.is_reliable() {
            while let Some(completion) = queue_pair.poll_send_completion() {
                let mut wc = Wc::new(&completion, self.qp_num);
                if cut && wc.is_success() {
                    (wc.status, wc.byte_len) = (WcStatus::WrFlushErr, 0);
                }
                ready.push(wc);
            }
        }
        if !ready.is_empty() {
            self.send_cq.push(&ready, false);
        }
    }
}

mod at_once;
mod receive;
#[cfg(test)]
mod tests;
