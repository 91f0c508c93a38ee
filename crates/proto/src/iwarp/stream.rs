//! One RDMAP stream: the send queue, the framer, the requester and the responder of a queue pair.
//!
//! # Contract
//!
//! Queries take `&self`. Everything else feeds the stream one thing that happened: a command, the
//! room to transmit, octets taken by TCP or received from it, a deadline. After each of them ask
//!
//! 1. `poll_event` until it yields nothing: events come before the completions that they make
//!    sense of (an established connection before what it received);
//! 2. `poll_recv_completion` and `poll_send_completion` likewise;
//! 3. `wants_transmit`, `direct`, `deadline`.
//!
//! Time never goes backwards. Frames that `poll_transmit` yielded are sent in their order, all
//! of them, and reported by `on_transmitted`; after `Closed` nobody is interested any more, but in
//! those that will never be (`forget_untransmitted`), before what is yielded behind them. Octets
//! of the peer before `attach` have to wait until after it.
//!
//! Receives that no message has taken belong to the owner, who flushes them when the stream ends.

use core::time::Duration;
use std::collections::VecDeque;

use smallvec::SmallVec;
use softverbs_wire::num::Lkey;
use softverbs_wire::terminate::{Terminate, TerminateCode};

use super::deframer::Deframer;
use super::framer::{Framer, Source};
use super::inbound::Inbound;
use super::negotiate::{Negotiated, RtrKind};
use super::nudge::Nudge;
use super::requester::Requester;
use super::responder::Responder;
use super::send_queue::{Class, SendQueue};
use super::terminate::{self, Offender};
use crate::fault::{Fault, LocalFault, Misuse};
use crate::memory::Memory;
use crate::mutation::{Mutation, Mutations};
use crate::send_gate::{Opener, SendGate};
use crate::time::Time;
use crate::transmit::TxBatch;
use crate::wr::{Completion, Payload, SendOp, SendRequest, WcStatus};

/// How long an orderly end waits for TCP to take another octet before it gives up.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How outgoing FPDUs are sized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpduSizing {
    /// As large as the length field allows, or `limit` octets of ULPDU if that is smaller.
    Largest {
        /// Upper limit of the ULPDU in octets.
        limit: u16,
    },
    /// One FPDU fits one TCP segment (RFC 5044 §4.2).
    MpaAware {
        /// The connection's effective maximum segment size in octets.
        emss: u16,
    },
}

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct StreamConfig {
    /// Most requests in the send queue.
    pub max_send_wr: u32,
    /// Every send request is signaled.
    pub sq_sig_all: bool,
    /// Payloads of up to this many octets are copied into the scratch buffer instead of gathered.
    pub copy_limit: u32,
    /// Defects on demand; none in a release.
    pub mutations: Mutations,
}

/// Which side of the MPA start-up we were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The active side.
    Initiator,
    /// The passive side: its send gate opens on the first FPDU, or after `grace` if the peer
    /// did not ask for peer-to-peer mode.
    Responder {
        /// How long to wait for a silent peer, from the moment that the reply was sent.
        grace: Duration,
        /// How long to wait for the RTR of a peer that asked for peer-to-peer mode before the
        /// connection counts as failed.
        rtr_timeout: Duration,
    },
}

/// What the owner of the stream has to know.
#[derive(Clone, Debug, Hash)]
pub enum StreamEvent {
    /// The connection is established: raised exactly once per attached stream. For an initiator
    /// at once, or right after its RTR frame was yielded (peer-to-peer mode); for a responder at
    /// the first FPDU (peer-to-peer mode) or at once (without it).
    Established,
    /// The stream has ended. After it: send what `poll_transmit` still yields (a Terminate),
    /// then close. Every request has been completed or flushed before this event.
    Closed {
        /// Why; `None` for an orderly close.
        cause: Option<CloseCause>,
    },
}

/// Why a stream ended out of order.
#[derive(Clone, Debug, Hash)]
pub enum CloseCause {
    /// We found a fault, and sent a Terminate about it.
    Fault(Fault),
    /// The peer sent a Terminate.
    PeerTerminated(TerminateCode),
    /// The connection was lost or closed in the middle of something.
    Lost,
    /// The peer asked for peer-to-peer mode and never sent its RTR frame.
    NoRtr,
    /// Our own side moved the queue pair to the error state.
    Local,
}

/// Registered memory that takes the next octets of the byte stream.
pub type DirectPieces = SmallVec<[(Lkey, u64, usize); 4]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// No connection yet.
    Detached,
    /// FPDUs in both directions.
    Open,
    /// We finish what is in the middle of transmission.
    Draining,
    /// Over; a Terminate may be left to send.
    Closed,
}

/// One RDMAP stream, from the creation of its queue pair on. See the module for the contract.
#[derive(Clone, Debug, Hash)]
pub struct Stream {
    phase: Phase,
    role: Role,
    pub(super) gate: SendGate,
    pub(super) negotiated: Option<Negotiated>,
    pub(super) sq: SendQueue,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) tx: Framer,
    /// Octets that TCP took.
    transmitted: u64,
    /// A request cannot be carried out; the stream ends when those before it have completed.
    pub(super) local_fault: Option<LocalFault>,
    terminate: Option<Terminate>,
    /// The last message was a response: the send queue has the next turn.
    turn_of_requests: bool,
    pub(super) rx: Deframer,
    pub(super) inbound: Inbound,
    /// The segment that is looked at, in case it is at fault.
    pub(super) offender: Offender,
    /// Until when the peer's RTR frame has to be there.
    rtr_deadline: Option<Time>,
    nudge: Nudge,
    drain_deadline: Option<Time>,
    drain_progress: bool,
    pub(super) established: bool,
    mutations: Mutations,
    pub(super) events: VecDeque<StreamEvent>,
    pub(super) recv_completions: VecDeque<Completion>,
}

impl Stream {
    /// A queue pair without a connection.
    pub fn new(config: StreamConfig) -> Self {
        Self {
            phase: Phase::Detached,
            role: Role::Initiator,
            gate: SendGate::CLOSED,
            negotiated: None,
            sq: SendQueue::new(config.max_send_wr, config.sq_sig_all),
            requester: Requester::new(),
            responder: Responder::new(),
            tx: Framer::new(config.copy_limit),
            transmitted: 0,
            local_fault: None,
            terminate: None,
            turn_of_requests: true,
            rx: Deframer::new(),
            inbound: Inbound::new(),
            offender: Offender::default(),
            rtr_deadline: None,
            nudge: Nudge::Idle,
            drain_deadline: None,
            drain_progress: false,
            established: false,
            mutations: config.mutations,
            events: VecDeque::new(),
            recv_completions: VecDeque::new(),
        }
    }

    // ---- commands ----

    /// Queues a request. Allowed before `attach`: the send gate holds it. After the end of the
    /// stream it is flushed. What is found out only later (memory that it may not touch, an
    /// operation that the connection turns out not to offer) completes it with an error, and
    /// ends the stream.
    pub fn post_send(&mut self, request: SendRequest) -> Result<(), Misuse> {
        check_post(&request)?;
        if matches!(self.phase, Phase::Draining | Phase::Closed) {
            self.sq.push_flushed(request);
            return Ok(());
        }
        if !self.offers(request.op) {
            return Err(Misuse::NotSupported);
        }
        if self.sq.is_full() {
            return Err(Misuse::QueueFull);
        }
        self.sq.push(request);
        Ok(())
    }

    /// The TCP connection is in FPDU mode from here on. For a responder call it when the reply
    /// has been handed to TCP. A stream that has ended already stays so.
    pub fn attach(&mut self, now: Time, role: Role, negotiated: Negotiated, sizing: FpduSizing) {
        if self.phase != Phase::Detached {
            return;
        }
        self.phase = Phase::Open;
        self.role = role;
        self.tx
            .attach(negotiated.crc, negotiated.markers_out, sizing);
        self.rx.attach(negotiated.crc, negotiated.markers_in);
        if self.mutations.has(Mutation::NoGate) {
            self.gate.open(Opener::Role);
        }
        match role {
            Role::Initiator => {
                self.gate.open(Opener::Role);
                self.requester.begin_with(negotiated.rtr);
                if negotiated.rtr.is_none() {
                    self.establish();
                }
            }
            Role::Responder { rtr_timeout, .. } if negotiated.rtr.is_some() => {
                self.rtr_deadline = Some(now + rtr_timeout);
            }
            Role::Responder { grace, .. } => {
                self.gate.open_at(now + grace);
                self.establish();
            }
        }
        self.negotiated = Some(negotiated);
    }

    /// Orderly end (`rdma_disconnect`): what is in the middle of transmission is finished, the
    /// rest is flushed, `Closed` follows when the last octet has been transmitted. From now on
    /// nothing of the peer is looked at.
    pub fn disconnect(&mut self, now: Time) {
        match self.phase {
            Phase::Detached => self.end_with(None, None, None),
            Phase::Open => {
                self.phase = Phase::Draining;
                self.rtr_deadline = None;
                self.drain_deadline = Some(now + DRAIN_TIMEOUT);
                self.drain_progress = false;
                self.rx.stop();
                self.responder.finish_current();
                self.sq.flush_waiting();
                self.flush_message();
                self.settle();
            }
            Phase::Draining | Phase::Closed => {}
        }
    }

    /// The queue pair goes to the error state: everything is flushed.
    pub fn abort(&mut self, cause: CloseCause) {
        self.end_with(cause, None, None);
    }

    // ---- transmit ----

    /// Whether `poll_transmit` would yield something.
    pub fn wants_transmit(&self) -> bool {
        self.terminate.is_some()
            || self.requester.rtr().is_some()
            || self.nudges()
            || self.responder.is_ready()
            || self.request_ready()
    }

    /// Whether a request that is posted now is the only one, and may leave at once.
    pub fn is_idle(&self) -> bool {
        let quiet = self.sq.len() == 0 && !self.wants_transmit();
        quiet && self.phase == Phase::Open && self.gate.is_open()
    }

    /// Appends frames to `out` until it holds about `max_len` octets or `max_pieces` pieces, or
    /// nothing more may be sent now. The pieces are exceeded only by a frame that has more of
    /// them alone.
    pub fn poll_transmit<M: Memory>(
        &mut self,
        now: Time,
        memory: &mut M,
        out: &mut TxBatch,
        max_len: usize,
        max_pieces: usize,
    ) {
        while out.len() < max_len && self.wants_transmit() {
            let responds = self.is_turn_of_response();
            let pieces = if responds { 3 } else { self.request_pieces() };
            if !out.is_empty() && out.pieces().len() + pieces > max_pieces {
                break;
            }
            self.transmit_frame(memory, out, responds);
            self.settle();
        }
        if self.is_initiator() && !out.is_empty() {
            self.nudge.begin(now);
        }
    }

    /// A reminder is to be sent; never in the middle of a message.
    fn nudges(&self) -> bool {
        self.nudge.is_due()
            && self.is_receiving()
            && !self.requester.is_busy()
            && !self.responder.is_busy()
    }

    /// Messages of the two sources are not interleaved: a peer may take segments of a Read
    /// Response in the middle of an RDMA Write for an error (siw does). They take turns.
    fn is_turn_of_response(&self) -> bool {
        if self.requester.is_busy() {
            false
        } else if self.responder.is_busy() || !self.turn_of_requests {
            self.responder.is_ready()
        } else {
            self.responder.is_ready() && !self.request_ready()
        }
    }

    fn transmit_frame<M: Memory>(&mut self, memory: &mut M, out: &mut TxBatch, responds: bool) {
        if let Some(terminate) = self.terminate.take() {
            // It has no payload that could fail.
            let _ = self
                .tx
                .emit(memory, out, &terminate::segment(&terminate), Source::None);
        } else if let Some(rtr) = self.requester.rtr() {
            self.transmit_rtr(memory, out, rtr);
        } else if self.nudges() {
            self.nudge.sent();
            self.transmit_rtr(memory, out, RtrKind::Write);
        } else if responds {
            if let Err(fault) = self.transmit_response(memory, out) {
                self.fail(fault);
            } else if !self.responder.is_busy() {
                self.turn_of_requests = true;
            }
        } else {
            self.transmit_request(memory, out);
            if !self.requester.is_busy() {
                self.turn_of_requests = false;
            }
        }
    }

    /// TCP took `octets` more of what `poll_transmit` yielded; requests whose last octet is
    /// among them complete.
    pub fn on_transmitted(&mut self, octets: usize) {
        self.transmitted = self
            .transmitted
            .saturating_add(octets as u64)
            .min(self.tx.position());
        self.drain_progress |= octets > 0;
        self.sq.transmitted(self.transmitted);
        self.settle();
    }

    /// The last `octets` that were yielded, whole frames, will not be sent. Only after `Closed`: what
    /// is yielded then follows those before them.
    pub const fn forget_untransmitted(&mut self, octets: usize) {
        self.tx.rewind(octets);
    }

    // ---- receive ----

    /// The registered memory that the next octets of the stream go to, if all of them are
    /// payload whose header has been checked; else `None` and all octets go to `on_bytes`.
    pub fn direct(&self) -> Option<&DirectPieces> {
        self.rx.direct()
    }

    /// The first `octets` of `direct` were placed there.
    pub fn on_direct<M: Memory>(&mut self, now: Time, memory: &mut M, octets: usize) {
        let _ = (now, memory);
        if self.is_receiving() {
            self.placed_directly(octets);
            self.received(Ok(()));
        }
    }

    /// Octets from the peer; all of them are taken.
    pub fn on_bytes<M: Memory>(&mut self, now: Time, memory: &mut M, bytes: &[u8]) {
        let _ = now;
        if self.is_receiving() {
            self.nudge.stop();
            let result = self.receive(memory, bytes);
            self.received(result);
        }
    }

    fn received(&mut self, result: Result<(), Fault>) {
        if let Err(fault) = result {
            self.fail(fault);
        }
        self.update_direct();
        self.settle();
    }

    /// The peer closed its side (`reset`: the connection was lost).
    pub fn on_eof(&mut self, now: Time, reset: bool) {
        let _ = now;
        let in_the_middle = match self.phase {
            // Without a half-close what we have not sent is of no use to anyone (siw stops its
            // own transmitter too).
            Phase::Open => {
                !self.rx.at_boundary()
                    || self.inbound.is_busy()
                    || self.responder.is_ready()
                    || self.sq.has_unfinished()
                    || self.rtr_deadline.is_some()
            }
            Phase::Detached | Phase::Draining | Phase::Closed => false,
        };
        let cause = (reset || in_the_middle).then_some(CloseCause::Lost);
        self.end_with(cause, None, None);
    }

    /// Whether octets of the peer are looked at.
    pub(super) fn is_receiving(&self) -> bool {
        self.phase == Phase::Open
    }

    pub(super) fn is_initiator(&self) -> bool {
        self.role == Role::Initiator
    }

    /// A valid FPDU is done with. The first one proves that the peer listens (RFC 5044 §7.1.2
    /// rule 4).
    pub(super) fn fpdu_accepted(&mut self) {
        if !core::mem::replace(&mut self.inbound.begun, true) {
            self.rtr_deadline = None;
            if self.is_receiving() && !self.mutations.has(Mutation::NoCommEst) {
                self.gate.open(Opener::FirstFrame);
                self.establish();
            }
        }
    }

    // ---- time ----

    /// When to call `on_timeout`.
    pub fn deadline(&self) -> Option<Time> {
        match self.phase {
            Phase::Open => self
                .rtr_deadline
                .into_iter()
                .chain(self.gate.deadline())
                .chain(self.nudge.deadline())
                .min(),
            Phase::Draining => self.drain_deadline,
            Phase::Detached | Phase::Closed => None,
        }
    }

    /// A deadline has passed.
    pub fn on_timeout(&mut self, now: Time) {
        match self.phase {
            Phase::Open => {
                self.gate.on_timeout(now);
                self.nudge.on_timeout(now);
                if self.rtr_deadline.is_some_and(|deadline| deadline <= now) {
                    self.end_with(CloseCause::NoRtr, None, None);
                }
            }
            Phase::Draining if self.drain_deadline.is_some_and(|deadline| deadline <= now) => {
                if core::mem::take(&mut self.drain_progress) {
                    self.drain_deadline = Some(now + DRAIN_TIMEOUT);
                } else {
                    self.end_with(CloseCause::Lost, None, None);
                }
            }
            Phase::Detached | Phase::Draining | Phase::Closed => {}
        }
    }

    // ---- results ----

    /// The next completion of the send queue, in the order of posting.
    pub fn poll_send_completion(&mut self) -> Option<Completion> {
        self.sq.pop_completion()
    }

    /// The next completion of the receive queue.
    pub fn poll_recv_completion(&mut self) -> Option<Completion> {
        self.recv_completions.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<StreamEvent> {
        self.events.pop_front()
    }

    /// Requests in the send queue that have not completed.
    pub fn outstanding(&self) -> usize {
        self.sq.len()
    }

    /// Whether the send gate is open.
    pub fn gate_is_open(&self) -> bool {
        self.gate.is_open()
    }

    /// What was agreed on, once attached.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.as_ref()
    }

    // ---- the end ----

    /// A fault ends the stream; the peer is told.
    fn fail(&mut self, fault: Fault) {
        if matches!(fault, Fault::Malformed(_)) {
            // What a broken frame seemed to say about its message does not count.
            self.receive_fails(WcStatus::WrFlushErr);
        }
        let terminate = terminate::message(&fault, self.offender);
        self.end_with(CloseCause::Fault(fault), Some(terminate), None);
    }

    /// What follows from completions: a failed request at the front of the queue ends the
    /// stream; an orderly end is reached when nothing is on its way any more.
    fn settle(&mut self) {
        match self.phase {
            Phase::Open | Phase::Draining
                if let Some(fault) = self.local_fault
                    && self.sq.has_failed() =>
            {
                self.offender = Offender::default();
                self.fail(fault.into());
            }
            Phase::Draining if !self.wants_transmit() && self.transmitted == self.tx.position() => {
                self.end_with(None, None, None);
            }
            _ => {}
        }
    }

    /// Completes everything and closes, once.
    pub(super) fn end_with(
        &mut self,
        cause: impl Into<Option<CloseCause>>,
        terminate: Option<Terminate>,
        blame: Option<(Class, WcStatus)>,
    ) {
        if self.phase == Phase::Closed {
            return;
        }
        self.phase = Phase::Closed;
        self.terminate = terminate;
        self.rx.stop();
        self.requester.stop();
        self.responder.stop();
        self.sq.flush(blame);
        self.flush_message();
        self.events.push_back(StreamEvent::Closed {
            cause: cause.into(),
        });
    }
}

/// What is wrong with a request whatever the connection.
fn check_post(request: &SendRequest) -> Result<(), Misuse> {
    let len = request.payload.len();
    if len > u64::from(u32::MAX) {
        return Err(Misuse::MessageTooLong);
    }
    let inline = matches!(request.payload, Payload::Inline(_));
    match request.op {
        SendOp::SendWithImm(_) => Err(Misuse::NotSupported),
        SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } if inline => {
            Err(Misuse::Invalid("a read has no inline data"))
        }
        SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } if len != 8 => Err(Misuse::Invalid(
            "the result of an atomic operation has 8 octets",
        )),
        _ => Ok(()),
    }
}
