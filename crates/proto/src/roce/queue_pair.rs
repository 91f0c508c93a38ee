//! One queue pair of RoCEv2: commands, states, the send gate, time and results.
//!
//! # Contract
//!
//! Queries take `&self`. Everything else feeds the queue pair one thing that happened: a command,
//! a packet, room to transmit, a deadline. After each of them ask
//!
//! 1. `poll_event` until it yields nothing: events come before the completions that they make
//!    sense of;
//! 2. `wants_transmit`, and if so `poll_transmit`, whose packets are sent at once;
//! 3. `poll_recv_completion` and `poll_send_completion` until they yield nothing: after the
//!    packets, since a request of an unreliable service completes when its last packet was
//!    yielded, and its memory belongs to the application again when the completion is seen;
//! 4. `deadline`, and call `on_timeout` when it has come.
//!
//! Feeding several packets before `poll_transmit` lets one acknowledge answer them all.
//!
//! Time never goes backwards. A packet that was yielded may be lost on the way, so a full socket
//! is no reason to keep one. Packets come to `on_packet` with a correct ICRC, from the address of
//! the peer (RC, UC), by their destination queue pair number.
//!
//! Receives that no message has taken belong to the owner, who flushes them in the error state.

use std::collections::VecDeque;

use softverbs_wire::ib::{Headers, Opcode, OpcodeInfo, Operation, Packet, Service};
use softverbs_wire::num::{Gid, Pkey, Psn, Qpn};

pub use super::attributes::{ModifyError, QpAttributes};
pub use super::batch::{Destination, PacketBatch, PacketFrame};
use super::congestion::{CNP_INTERVAL, RoundTrip, Window};
use super::inbound::MAX_MESSAGE;
pub use super::interface::{
    NetworkHeader, PacketMeta, QpConfig, QpCounters, QpEvent, QpFailure, RecvCompletion,
    UdDestination, UdSource,
};
use super::packets::{self, Source};
use super::requester::Requester;
use super::responder::Responder;
use super::send_queue::SendQueue;
use super::train;
use crate::fault::Misuse;
use crate::memory::Memory;
use crate::mutation::Mutation;
use crate::qp_state::{QpAttrMask, QpState, QpType};
use crate::send_gate::{Opener, SendGate};
use crate::time::Time;
use crate::wr::{Completion, Payload, SendOp, SendRequest, WcStatus};

/// Requests that go out before an acknowledge that waits.
const AHEAD_OF_ACKNOWLEDGE: usize = 8;

/// One queue pair, from RESET on. See the module for the contract.
#[derive(Clone, Debug, Hash)]
pub struct QueuePair {
    pub(super) config: QpConfig,
    pub(super) state: QpState,
    pub(super) attributes: QpAttributes,
    pub(super) gate: SendGate,
    /// A valid packet of the peer has come.
    heard: bool,
    /// The send queue has drained (SQD).
    drained: bool,
    groups: Vec<Gid>,
    pub(super) sq: SendQueue,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) window: Window,
    pub(super) round_trip: RoundTrip,
    /// A congestion notification is to be sent.
    cnp_due: bool,
    cnp_sent: Option<Time>,
    events: VecDeque<QpEvent>,
    pub(super) recv_completions: VecDeque<RecvCompletion>,
    pub(super) counters: QpCounters,
}

impl QueuePair {
    /// A queue pair in RESET. Its gate is open.
    pub fn new(mut config: QpConfig) -> Self {
        if config.qp_type == QpType::XrcRecv {
            // Its memory is of several protection domains, and a gather list names none.
            config.copy_limit = u32::MAX;
        }
        Self {
            config,
            state: QpState::Reset,
            attributes: QpAttributes::default(),
            gate: SendGate::Open { by: Opener::Role },
            heard: false,
            drained: false,
            groups: Vec::new(),
            sq: SendQueue::new(config.max_send_wr, config.sq_sig_all),
            requester: Requester::new(Psn::new(0)),
            responder: Responder::new(Psn::new(0)),
            window: Window::new(config.max_window),
            round_trip: RoundTrip::new(),
            cnp_due: false,
            cnp_sent: None,
            events: VecDeque::new(),
            recv_completions: VecDeque::new(),
            counters: QpCounters::default(),
        }
    }

    // ---- commands ----

    /// Sets the attributes in `mask` and goes to `to`, by the table of
    /// [`qp_state`](crate::qp_state). To change attributes only, `to` is the present state.
    ///
    /// In RESET everything is forgotten, without completions. In the error state everything is
    /// flushed. In SQD what has begun goes on.
    pub fn modify(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        mask: QpAttrMask,
        to: QpState,
    ) -> Result<(), ModifyError> {
        let _ = now;
        let transition = (self.state, to);
        self.attributes
            .apply(self.config.qp_type, transition, attributes, mask)?;
        match transition {
            (_, QpState::Reset) => self.reset(),
            (_, QpState::Err) => self.abort(),
            (QpState::Init, QpState::Rtr) => {
                self.responder = Responder::new(self.attributes.rq_psn);
                self.state = to;
            }
            (QpState::Rtr, QpState::Rts) => {
                self.requester = Requester::new(self.attributes.sq_psn);
                self.state = to;
            }
            (from, QpState::Sqd) if from != to => {
                self.drained = false;
                self.state = to;
            }
            _ => self.state = to,
        }
        self.settle();
        Ok(())
    }

    fn reset(&mut self) {
        let config = self.config;
        let forgotten = core::mem::replace(self, Self::new(config));
        self.groups = forgotten.groups;
        self.counters = forgotten.counters;
        // What has been decided is still told.
        self.events = forgotten.events;
        self.recv_completions = forgotten.recv_completions;
        self.sq = forgotten.sq;
        self.sq.clear();
    }

    /// Queues a request (RC, UC). Allowed from RTR on: it goes out in RTS, when the gate is open.
    /// In SQE and in the error state it is flushed.
    pub fn post_send(&mut self, request: SendRequest) -> Result<(), Misuse> {
        match self.config.qp_type {
            QpType::Rc | QpType::Uc => self.post(request, UdDestination::default()),
            QpType::Ud => Err(Misuse::Invalid("a datagram needs a destination")),
            QpType::XrcSend => Err(Misuse::Invalid("XRC needs a shared receive queue")),
            QpType::XrcRecv => Err(Misuse::Invalid("the receiving end of XRC sends nothing")),
        }
    }

    /// The same (RC) for an RDMA Write that may go past the wire (`Memory::place`) when all requests before
    /// it have completed.
    pub fn post_send_past(&mut self, request: SendRequest) -> Result<(), Misuse> {
        let is_write = matches!(request.op, SendOp::Write { .. });
        let before = self.sq.len();
        self.post_send(request)?;
        if is_write && self.config.qp_type == QpType::Rc && self.sq.len() > before {
            self.sq.let_newest_past();
        }
        Ok(())
    }

    /// Queues a request (XRC) for the shared receive queue of this number at the peer.
    pub fn post_send_xrc(&mut self, request: SendRequest, srq: Qpn) -> Result<(), Misuse> {
        if self.config.qp_type != QpType::XrcSend {
            return Err(Misuse::Invalid("only XRC names a shared receive queue"));
        }
        let destination = UdDestination {
            remote_qpn: srq,
            ..UdDestination::default()
        };
        self.post(request, destination)
    }

    /// Queues a datagram (UD). One that is longer than the port's MTU fails with `LOC_LEN_ERR`.
    pub fn post_send_to(
        &mut self,
        request: SendRequest,
        destination: UdDestination,
    ) -> Result<(), Misuse> {
        if self.config.qp_type != QpType::Ud {
            return Err(Misuse::Invalid("only a datagram has a destination"));
        }
        self.post(request, destination)
    }

    fn post(&mut self, request: SendRequest, destination: UdDestination) -> Result<(), Misuse> {
        check_post(self.config.qp_type, &request)?;
        match self.state {
            QpState::Reset | QpState::Init => return Err(Misuse::State),
            QpState::Sqe | QpState::Err => self.sq.push_flushed(&request),
            QpState::Rtr | QpState::Rts | QpState::Sqd if self.sq.is_full() => {
                return Err(Misuse::QueueFull);
            }
            QpState::Rtr | QpState::Rts | QpState::Sqd => self.sq.push(request, destination),
        }
        Ok(())
    }

    /// Holds the gate: requests wait until [`open_gate`](Self::open_gate), or until the first
    /// valid packet of the peer. For the passive side of a connection, before RTR. Without effect
    /// once the peer was heard of.
    pub fn hold_gate(&mut self) {
        if !self.heard && !self.config.mutations.has(Mutation::NoGate) {
            self.gate = SendGate::CLOSED;
        }
    }

    /// The connection manager knows that the peer listens. True if this opened the gate.
    pub fn open_gate(&mut self) -> bool {
        self.gate.open(Opener::ReadyToUse)
    }

    /// The queue pair goes to the error state, whatever state it is in but RESET: everything is
    /// flushed.
    pub fn abort(&mut self) {
        if !matches!(self.state, QpState::Reset | QpState::Err) {
            self.responder.answers.clear();
            self.end(None);
        }
    }

    /// Joins a multicast group (UD). False if it was a member. Which packets are the group's is
    /// the owner's to find out: see [`is_attached`](Self::is_attached).
    pub fn attach_mcast(&mut self, group: Gid) -> Result<bool, Misuse> {
        if self.config.qp_type != QpType::Ud {
            return Err(Misuse::NotSupported);
        }
        let joins = !self.is_attached(group);
        if joins {
            self.groups.push(group);
        }
        Ok(joins)
    }

    /// Leaves a multicast group. False if it was no member.
    pub fn detach_mcast(&mut self, group: Gid) -> bool {
        let before = self.groups.len();
        self.groups.retain(|member| *member != group);
        self.groups.len() < before
    }

    /// Whether datagrams to the group are for this queue pair too.
    pub fn is_attached(&self, group: Gid) -> bool {
        self.groups.contains(&group)
    }

    // ---- receive ----

    /// A packet for this queue pair. Nothing that is in it does harm; what may not be placed is
    /// refused before its first octet is.
    pub fn on_packet<M: Memory>(
        &mut self,
        now: Time,
        memory: &mut M,
        packet: &Packet<'_>,
        meta: &PacketMeta,
    ) {
        let bth = &packet.headers.bth;
        let service = self.service();
        let Some(info) = bth.opcode.info().filter(|info| {
            let is_ours = info.service == service;
            (is_ours || info.service == Service::Cnp) && bth.pkey.matches(Pkey::DEFAULT)
        }) else {
            self.counters.dropped += 1;
            return;
        };
        if info.operation == Operation::CongestionNotification {
            self.counters.cnps_received += 1;
            return self.window.on_notification(now);
        }
        if bth.becn {
            self.window.on_notification(now);
        }
        if meta.ecn_ce || bth.fecn {
            self.congestion_met(now);
        }
        let count = meta.packets.max(1);
        if count > 1 && !self.takes_train(packet, info, count) {
            return self.take_apart(now, memory, packet, info, count);
        }
        match service {
            Service::Uc => self.on_unreliable(memory, packet, info, count),
            Service::Ud => self.on_datagram(memory, packet, meta),
            // Either end of XRC knows one direction only.
            _ if info.is_response() && self.config.qp_type != QpType::XrcRecv => {
                self.on_response(now, memory, packet, info, count);
            }
            _ if !info.is_response() && self.config.qp_type != QpType::XrcSend => {
                self.on_request(memory, packet, info, count);
            }
            _ => self.counters.dropped += 1,
        }
        self.settle();
    }

    /// Whether a train comes in its order, so that it can be taken as one packet.
    fn takes_train(&self, packet: &Packet<'_>, info: &OpcodeInfo, count: u32) -> bool {
        let psn = packet.headers.bth.psn;
        let mtu = self.attributes.mtu();
        let in_order = if info.is_response() {
            let after = psn.advance(count);
            psn == self.requester.una && !self.requester.high.is_before(after)
        } else {
            psn == self.responder.expected
        };
        in_order && train::fits(info, count, packet.payload.len(), mtu)
    }

    /// A train that is not what it should be, or does not come in its order.
    fn take_apart<M: Memory>(
        &mut self,
        now: Time,
        memory: &mut M,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        count: u32,
    ) {
        let mtu = self.attributes.mtu();
        if !train::fits(info, count, packet.payload.len(), mtu) {
            self.counters.dropped += u64::from(count);
            return;
        }
        for index in 0..count {
            let packet = train::packet(packet, count, index, mtu);
            self.on_packet(now, memory, &packet, &PacketMeta::default());
        }
    }

    /// The peer's packets meet congestion: it has to know (IBA annex A17), but not of each.
    fn congestion_met(&mut self, now: Time) {
        let is_time = self.cnp_sent.is_none_or(|at| at + CNP_INTERVAL <= now);
        let connected = self.config.qp_type != QpType::Ud
            && matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if is_time && connected {
            self.cnp_sent = Some(now);
            self.cnp_due = true;
        }
    }

    /// A valid packet of the peer was recognised: the connection is established.
    pub(super) fn heard_of_peer(&mut self) {
        let told = core::mem::replace(&mut self.heard, true);
        if told || self.config.mutations.has(Mutation::NoCommEst) {
            return;
        }
        let opens = self.gate.open(Opener::FirstFrame);
        if opens || self.state == QpState::Rtr {
            self.events.push_back(QpEvent::CommEst);
        }
    }

    // ---- transmit ----

    /// Whether `poll_transmit` would do something.
    pub fn wants_transmit(&self) -> bool {
        self.cnp_due || !self.responder.answers.is_empty() || self.request_ready()
    }

    /// Whether what `poll_transmit` would do may wait until the application has seen its
    /// completions: it will answer the messages that it gets, and acknowledges can go along.
    pub fn may_wait(&self) -> bool {
        !self.cnp_due
            && !self.recv_completions.is_empty()
            && !self.responder.answers.is_empty()
            && self.responder.answers.only_acknowledges()
            && !self.request_ready()
    }

    /// Appends up to `max_packets` packets to `out`, several of one message as one
    /// [`train`] if the configuration says so. Also carries out local requests whose turn
    /// has come.
    pub fn poll_transmit<M: Memory>(
        &mut self,
        now: Time,
        memory: &mut M,
        out: &mut PacketBatch,
        max_packets: usize,
    ) {
        let end = out.packets().saturating_add(max_packets);
        if out.packets() < end && core::mem::take(&mut self.cnp_due) {
            self.transmit_cnp(memory, out);
        }
        // An acknowledge is shorter than most requests: behind some, it is the last segment of the
        // same call.
        let answers = &self.responder.answers;
        if !answers.is_empty() && answers.only_acknowledges() {
            let ahead = end
                .saturating_sub(1)
                .min(out.packets() + AHEAD_OF_ACKNOWLEDGE);
            self.transmit_requests(now, memory, out, ahead);
        }
        // Long READ responses and long messages of our own share the way.
        let share = if self.request_ready() {
            out.packets() + max_packets.div_ceil(2)
        } else {
            end
        };
        self.transmit_answers(memory, out, share.min(end));
        self.transmit_requests(now, memory, out, end);
        self.transmit_answers(memory, out, end);
        self.settle();
    }

    fn transmit_requests<M: Memory>(
        &mut self,
        now: Time,
        memory: &mut M,
        out: &mut PacketBatch,
        end: usize,
    ) {
        while out.packets() < end && self.request_ready() {
            self.transmit_request(now, memory, out, end - out.packets());
        }
    }

    fn transmit_answers<M: Memory>(&mut self, memory: &mut M, out: &mut PacketBatch, end: usize) {
        while out.packets() < end && !self.responder.answers.is_empty() {
            self.transmit_answer(memory, out, end - out.packets());
        }
    }

    fn transmit_cnp<M: Memory>(&mut self, memory: &M, out: &mut PacketBatch) {
        let mut bth = packets::bth(Opcode::CNP, self.attributes.dest_qpn, Psn::new(0));
        bth.becn = true;
        let headers = Headers::new(bth);
        // Sixteen octets that mean nothing yet. Without memory there is nothing to fail.
        let source = Source::Inline(&[0; 16]);
        let _ = packets::emit(memory, out, u32::MAX, Destination::Peer, headers, source);
        self.counters.cnps_sent += 1;
    }

    // ---- time ----

    /// When to call `on_timeout`.
    pub fn deadline(&self) -> Option<Time> {
        self.recovery_deadline()
    }

    /// A deadline has passed.
    pub fn on_timeout(&mut self, now: Time) {
        self.recovery_timeout(now);
        self.settle();
    }

    // ---- results ----

    /// Whether [`poll_send_completion`](Self::poll_send_completion) would yield something.
    pub fn has_send_completions(&self) -> bool {
        self.sq.has_completions()
    }

    /// The next completion of the send queue, in the order of posting.
    pub fn poll_send_completion(&mut self) -> Option<Completion> {
        self.sq.pop_completion()
    }

    /// The next completion of the receive queue.
    pub fn poll_recv_completion(&mut self) -> Option<RecvCompletion> {
        self.recv_completions.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.events.pop_front()
    }

    /// The present state.
    pub const fn state(&self) -> QpState {
        self.state
    }

    /// Whether the send queue is draining (SQD): requests that have begun are not complete.
    pub fn is_draining(&self) -> bool {
        self.state == QpState::Sqd && !self.drained
    }

    /// The present attributes.
    pub const fn attributes(&self) -> &QpAttributes {
        &self.attributes
    }

    /// What it was created with.
    pub const fn config(&self) -> &QpConfig {
        &self.config
    }

    /// Requests in the send queue that have not completed.
    pub fn outstanding(&self) -> usize {
        self.sq.len()
    }

    /// Whether the send gate is open.
    pub const fn gate_is_open(&self) -> bool {
        self.gate.is_open()
    }

    /// Packets that may be in flight now (RC).
    pub const fn window(&self) -> u32 {
        self.window.size()
    }

    /// What happened so far.
    pub const fn counters(&self) -> &QpCounters {
        &self.counters
    }

    // ---- the end ----

    /// What follows from completions: a failed request at the front of the queue stops it; a
    /// queue without begun requests has drained.
    fn settle(&mut self) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        if let Some(status) = self.sq.failure() {
            if self.config.qp_type.is_reliable() {
                return self.fail(QpFailure::SendQueue(status), None);
            }
            self.sq.flush(None);
            self.state = QpState::Sqe;
        } else if self.is_draining() && !self.sq.has_begun() {
            self.drained = true;
            if self.attributes.en_sqd_async_notify {
                self.events.push_back(QpEvent::SqDrained);
            }
        }
    }

    /// The queue pair goes to the error state. If the peer is at fault it still gets its answers,
    /// of which the last says so. `blamed` is the request packet that the peer refused.
    pub(super) fn fail(&mut self, cause: QpFailure, blamed: Option<(Psn, WcStatus)>) {
        if matches!(self.state, QpState::Reset | QpState::Err) {
            return;
        }
        if matches!(cause, QpFailure::SendQueue(_)) {
            self.responder.answers.clear();
        }
        self.events.push_back(QpEvent::Fatal { cause });
        self.end(blamed);
    }

    fn end(&mut self, blamed: Option<(Psn, WcStatus)>) {
        self.state = QpState::Err;
        self.cnp_due = false;
        self.sq.flush(blamed);
        self.fail_receive(WcStatus::WrFlushErr);
        self.events.push_back(QpEvent::LastWqeReached);
    }
}

/// What is wrong with a request whatever the connection.
fn check_post(qp_type: QpType, request: &SendRequest) -> Result<(), Misuse> {
    let offered = match request.op {
        SendOp::Send | SendOp::SendWithImm(_) => true,
        SendOp::Write { .. }
        | SendOp::WriteWithImm { .. }
        | SendOp::LocalInvalidate(_)
        | SendOp::BindMw(_) => qp_type != QpType::Ud,
        SendOp::SendWithInvalidate(_)
        | SendOp::Read { .. }
        | SendOp::FetchAdd { .. }
        | SendOp::CompareSwap { .. } => qp_type.is_reliable(),
    };
    if !offered {
        return Err(Misuse::NotSupported);
    }
    let len = request.payload.len();
    if len > MAX_MESSAGE.into() {
        return Err(Misuse::MessageTooLong);
    }
    let inline = matches!(request.payload, Payload::Inline(_));
    match request.op {
        SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } if inline => {
            Err(Misuse::Invalid("a read has no inline data"))
        }
        SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } if len != 8 => Err(Misuse::Invalid(
            "the result of an atomic operation has 8 octets",
        )),
        _ => Ok(()),
    }
}
