//! A connection as the library's queue pair sees it: the stream and its socket.

use std::fmt::Display;
use std::time::Duration;

use softverbs_proto::iwarp::negotiate::{Initiator, Negotiated, Responder};
use softverbs_proto::iwarp::stream::{
    CloseCause, FpduSizing, Role, Stream, StreamConfig, StreamEvent,
};
use softverbs_proto::mutation::Mutations;
use softverbs_proto::qp_state::QpState;
use softverbs_proto::time::Time;
use softverbs_proto::transmit::TxBatch;
use softverbs_proto::wr::{Completion, Payload, SendFlags, SendOp, SendRequest, WcStatus};

use super::outgoing::Outgoing;
use super::tcp::{Reset, Tcp, first_parts, words};
use crate::app::{App, Phase};
use crate::inbox::Inbox;
use crate::world::{Log, Property, Side, Sight, Violation};

/// The library's times.
const GRACE: Duration = Duration::from_millis(25);
const RTR_TIMEOUT: Duration = Duration::from_secs(10);
const LINGER: Duration = Duration::from_secs(2);

/// What is around a connection while something happens to it.
pub(super) struct Around<'a> {
    pub(super) side: Side,
    pub(super) now: Time,
    pub(super) tcp: &'a mut Tcp,
    pub(super) log: &'a mut Log,
    pub(super) violation: &'a mut Option<Violation>,
}

impl Around<'_> {
    pub(super) fn violated(&mut self, property: Property, what: impl Display) {
        let side = Some(self.side);
        self.violation.get_or_insert_with(|| Violation {
            property,
            side,
            what: what.to_string(),
        });
    }

    pub(super) fn local(&mut self, text: impl FnOnce() -> String) {
        self.log.local(self.side, text);
    }

    /// Hands octets to TCP; how many it took. Those go from `out`.
    pub(super) fn send(&mut self, link: usize, out: &mut Outgoing) -> Result<(usize, u8), Reset> {
        let taken = self.tcp.send(link, self.side, &out.octets, &out.parts)?;
        if taken > 0 {
            let from = self.side;
            self.log.note(|| Sight::Sent {
                from,
                label: words(&first_parts(&out.parts, taken)),
            });
        }
        Ok((taken, out.advance(taken)))
    }
}

/// The start-up, as long as it lasts.
#[derive(Clone, Debug, Hash)]
pub(super) enum Start {
    Initiator(Initiator),
    Responder(Responder),
}

/// Who has the socket.
#[derive(Clone, Debug, Hash)]
pub(super) enum Socket {
    /// The start-up.
    Starting(Start),
    /// The start-up is over, and the queue pair is about to get it.
    Handover {
        negotiated: Negotiated,
        early: Vec<u8>,
    },
    /// The queue pair.
    Stream,
    /// Nobody: it delivers what is left, then waits for the peer's end.
    Linger {
        rest: Outgoing,
        finished: bool,
        until: Time,
    },
    /// It is closed.
    Closed,
}

/// The queue pair.
#[derive(Clone, Debug, Hash)]
pub(super) struct Qp {
    pub(super) stream: Stream,
    pub(super) state: QpState,
    /// It has the socket.
    connected: bool,
    /// It tells the identifier what happens.
    tells: bool,
    /// FPDUs that TCP has not taken.
    pub(super) out: Outgoing,
    /// Something was posted that the next poll transmits.
    pub(super) deferred: bool,
    established: bool,
    closed: bool,
}

impl Qp {
    /// A queue pair in RTR, as `connect` and `accept` leave it.
    pub(super) fn new(mutations: Mutations) -> Self {
        Self {
            stream: Stream::new(StreamConfig {
                max_send_wr: 16,
                sq_sig_all: true,
                copy_limit: 4096,
                mutations,
            }),
            state: QpState::Rtr,
            connected: false,
            tells: false,
            out: Outgoing::default(),
            deferred: false,
            established: false,
            closed: false,
        }
    }
}

/// One connection of one side.
#[derive(Clone, Debug, Hash)]
pub(super) struct Conn {
    /// The TCP connection.
    pub(super) link: usize,
    pub(super) socket: Socket,
    /// `None` before a request is accepted, and when it was destroyed.
    pub(super) qp: Option<Qp>,
    memory: Inbox,
    pub(super) app: App,
    /// When the gate may open by itself.
    grace: Option<Time>,
    /// Sends whose last octet TCP has.
    taken: u8,
}

impl Conn {
    pub(super) fn new(link: usize, start: Start, phase: Phase, receives: u8) -> Self {
        Self {
            link,
            socket: Socket::Starting(start),
            qp: None,
            memory: Inbox::new(receives),
            app: App::new(phase),
            grace: None,
            taken: 0,
        }
    }

    /// Whether somebody reads from the socket.
    pub(super) fn is_reading(&self) -> bool {
        match &self.socket {
            Socket::Starting(Start::Responder(_)) => self.app.phase == Phase::Unseen,
            Socket::Starting(Start::Initiator(_)) | Socket::Stream | Socket::Linger { .. } => true,
            Socket::Handover { .. } | Socket::Closed => false,
        }
    }

    /// When its timer fires.
    pub(super) fn deadline(&self) -> Option<Time> {
        match &self.socket {
            Socket::Starting(Start::Initiator(initiator)) => Some(initiator.deadline()),
            Socket::Starting(Start::Responder(responder)) => responder.deadline(),
            Socket::Stream => self.qp.as_ref()?.stream.deadline(),
            Socket::Linger { until, .. } => Some(*until),
            Socket::Handover { .. } | Socket::Closed => None,
        }
    }

    /// Whether its timer, at that moment, ends something.
    pub(super) fn ends_at(&self, now: Time) -> bool {
        match &self.socket {
            Socket::Starting(_) | Socket::Linger { .. } => true,
            Socket::Stream => self.qp.as_ref().is_some_and(|qp| {
                let mut stream = qp.stream.clone();
                stream.on_timeout(now);
                matches!(stream.poll_event(), Some(StreamEvent::Closed { .. }))
            }),
            Socket::Handover { .. } | Socket::Closed => false,
        }
    }

    /// Whether something waits for TCP to take it.
    pub(super) fn waits_for_room(&self) -> bool {
        match &self.socket {
            Socket::Stream => self.qp.as_ref().is_some_and(|qp| !qp.out.is_empty()),
            Socket::Linger { rest, .. } => !rest.is_empty(),
            _ => false,
        }
    }

    pub(super) fn close(&mut self, around: &mut Around<'_>) {
        around.tcp.close(self.link, around.side);
        self.socket = Socket::Closed;
    }

    /// The queue pair gets the socket.
    pub(super) fn attach(&mut self, around: &mut Around<'_>) {
        let Socket::Handover { negotiated, early } = &self.socket else {
            return;
        };
        let (negotiated, early) = (negotiated.clone(), early.clone());
        let Some(qp) = self.qp.as_mut().filter(|qp| qp.state != QpState::Err) else {
            // It was destroyed or moved to the error state meanwhile.
            self.close(around);
            if around.side == Side::Active {
                self.over(around, None);
            } else if !self.app.is_over() {
                around.local(|| "accept fails".to_owned());
                self.app.phase = Phase::Over;
                self.app.told_end = true;
            }
            return;
        };
        let role = match around.side {
            Side::Active => Role::Initiator,
            Side::Passive => Role::Responder {
                grace: GRACE,
                rtr_timeout: RTR_TIMEOUT,
            },
        };
        self.grace = negotiated.rtr.is_none().then(|| around.now + GRACE);
        self.socket = Socket::Stream;
        let sizing = FpduSizing::Largest { limit: u16::MAX };
        qp.stream.attach(around.now, role, negotiated, sizing);
        (qp.connected, qp.tells, qp.state) = (true, true, QpState::Rts);
        if !early.is_empty() {
            qp.stream.on_bytes(around.now, &mut self.memory, &early);
        }
        self.transmit(around);
    }

    /// The next octets of the stream, for the queue pair or for nobody.
    pub(super) fn read(&mut self, around: &mut Around<'_>, octets: usize) {
        let octets = around.tcp.read(self.link, around.side, octets);
        if let (Socket::Stream, Some(qp)) = (&self.socket, &mut self.qp) {
            qp.stream.on_bytes(around.now, &mut self.memory, &octets);
            self.transmit(around);
        }
    }

    /// The end of the stream, in good order or not.
    pub(super) fn read_end(&mut self, around: &mut Around<'_>, reset: bool) {
        match (&self.socket, &mut self.qp) {
            (Socket::Stream, Some(qp)) => {
                qp.stream.on_eof(around.now, reset);
                self.transmit(around);
            }
            (Socket::Linger { .. }, _) => self.close(around),
            _ => {}
        }
    }

    pub(super) fn fire(&mut self, around: &mut Around<'_>) {
        match (&self.socket, &mut self.qp) {
            (Socket::Stream, Some(qp)) => {
                qp.stream.on_timeout(around.now);
                self.transmit(around);
            }
            (Socket::Linger { .. }, _) => self.close(around),
            _ => {}
        }
    }

    /// TCP takes octets again.
    pub(super) fn on_room(&mut self, around: &mut Around<'_>) {
        match self.socket {
            Socket::Linger { .. } => self.linger_on(around),
            _ => self.transmit(around),
        }
    }

    /// Transmits what may be transmitted, and hands out the results.
    pub(super) fn transmit(&mut self, around: &mut Around<'_>) {
        self.send_frames(around);
        self.settle(around);
    }

    fn send_frames(&mut self, around: &mut Around<'_>) {
        let Some(qp) = self.qp.as_mut().filter(|qp| qp.connected) else {
            return;
        };
        loop {
            if qp.out.is_empty() {
                if !qp.stream.wants_transmit() {
                    return;
                }
                let mut batch = TxBatch::new();
                qp.stream
                    .poll_transmit(around.now, &mut self.memory, &mut batch, 1 << 20, 64);
                if batch.is_empty() {
                    return;
                }
                qp.out.append(&batch, &self.memory);
                if !may_send(around, self.link, self.grace) {
                    let what = words(&first_parts(&qp.out.parts, usize::MAX));
                    around.violated(
                        Property::Early,
                        format_args!("{what} leaves before the peer is known to listen"),
                    );
                }
            }
            match around.send(self.link, &mut qp.out) {
                Ok((0, _)) => return,
                Ok((octets, sends)) => {
                    self.taken += sends;
                    qp.stream.on_transmitted(octets);
                }
                Err(Reset) => return qp.stream.on_eof(around.now, true),
            }
        }
    }

    /// Events and completions.
    fn settle(&mut self, around: &mut Around<'_>) {
        while let Some(event) = self.qp.as_mut().and_then(|qp| qp.stream.poll_event()) {
            match event {
                StreamEvent::Established => self.established(around),
                StreamEvent::Closed { cause } => {
                    self.hand_out(around);
                    self.closed(around, cause);
                }
            }
        }
        self.hand_out(around);
    }

    fn established(&mut self, around: &mut Around<'_>) {
        let Some(qp) = &mut self.qp else { return };
        if core::mem::replace(&mut qp.established, true) || qp.closed {
            around.violated(Property::Events, "the stream is established again");
        }
        let waits = around.side == Side::Passive && self.grace.is_none();
        if waits && !around.tcp.has_read_fpdu(self.link, around.side) {
            around.violated(Property::Early, "ESTABLISHED before the peer's RTR frame");
        }
        if qp.tells && self.app.phase == Phase::Establishing {
            self.app.phase = Phase::Established;
            around.local(|| "hears ESTABLISHED".to_owned());
        }
    }

    fn closed(&mut self, around: &mut Around<'_>, cause: Option<CloseCause>) {
        let Some(qp) = &mut self.qp else { return };
        if core::mem::replace(&mut qp.closed, true) {
            around.violated(Property::Events, "the stream ends again");
        }
        if let Some(CloseCause::Fault(_) | CloseCause::PeerTerminated(_)) = cause {
            around.violated(Property::Events, format_args!("a fault: {cause:?}"));
        }
        qp.state = QpState::Err;
        let tells = core::mem::take(&mut qp.tells);
        if core::mem::take(&mut qp.connected) {
            if matches!(cause, Some(CloseCause::Lost)) {
                qp.out = Outgoing::default();
                self.close(around);
            } else {
                let waiting = qp.out.octets.len();
                let mut rest = qp.out.rest_of_frame();
                qp.stream.forget_untransmitted(waiting - rest.octets.len());
                let mut last = TxBatch::new();
                qp.stream
                    .poll_transmit(around.now, &mut self.memory, &mut last, 4096, 64);
                rest.append(&last, &self.memory);
                self.linger(around, rest);
            }
        }
        if tells {
            self.over(around, cause);
        }
    }

    /// Sends the rest, ends our direction, and waits for the end of the other one.
    pub(super) fn linger(&mut self, around: &mut Around<'_>, rest: Outgoing) {
        self.socket = Socket::Linger {
            rest,
            finished: false,
            until: around.now + LINGER,
        };
        self.linger_on(around);
    }

    fn linger_on(&mut self, around: &mut Around<'_>) {
        let Socket::Linger { rest, finished, .. } = &mut self.socket else {
            return;
        };
        while !rest.is_empty() {
            match around.send(self.link, rest) {
                Ok((0, _)) => return,
                Ok(_) => {}
                Err(Reset) => return self.close(around),
            }
        }
        if !core::mem::replace(finished, true) {
            around.tcp.shut_down(self.link, around.side);
            around.local(|| "ends its direction".to_owned());
        }
    }

    /// The identifier hears that the stream has ended.
    pub(super) fn over(&mut self, around: &mut Around<'_>, cause: Option<CloseCause>) {
        let name = match (self.app.phase, cause) {
            (Phase::Established, _) => "DISCONNECTED",
            (Phase::Establishing, Some(CloseCause::NoRtr)) => "UNREACHABLE",
            (Phase::Establishing, _) => "REJECTED (reset)",
            _ => return,
        };
        self.hear_end(around, name);
    }

    pub(super) fn hear_end(&mut self, around: &mut Around<'_>, name: &str) {
        around.local(|| format!("hears {name}"));
        self.app.phase = Phase::Over;
        if core::mem::replace(&mut self.app.told_end, true) {
            around.violated(Property::Events, format_args!("{name} after the end"));
        }
    }

    fn hand_out(&mut self, around: &mut Around<'_>) {
        let Some(qp) = &mut self.qp else { return };
        while let Some(sent) = qp.stream.poll_send_completion() {
            sent_completes(&mut self.app, self.taken, around, &sent);
        }
        while let Some(received) = qp.stream.poll_recv_completion() {
            receive_completes(&mut self.app, &self.memory, around, &received);
        }
    }

    /// The application posts its next send.
    pub(super) fn post(&mut self, around: &mut Around<'_>, later: bool) {
        let number = self.app.posted;
        let Some(qp) = &mut self.qp else { return };
        self.app.posted += 1;
        let request = SendRequest {
            wr_id: number.into(),
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline([number].into_iter().collect()),
        };
        if let Err(misuse) = qp.stream.post_send(request) {
            around.violated(Property::Command, format_args!("post: {misuse}"));
        }
        if later {
            qp.deferred = true;
        } else if qp.out.is_empty() {
            self.send_posted(around);
        }
    }

    /// What was left for the next poll goes.
    pub(super) fn send_posted(&mut self, around: &mut Around<'_>) {
        if let Some(qp) = &mut self.qp {
            qp.deferred = false;
        }
        self.transmit(around);
    }

    pub(super) fn disconnect(&mut self, around: &mut Around<'_>) {
        self.app.ended_it = true;
        self.send_posted(around);
        if let Some(qp) = &mut self.qp {
            qp.stream.disconnect(around.now);
        }
        self.transmit(around);
    }

    /// The queue pair goes to the error state.
    pub(super) fn abort(&mut self, around: &mut Around<'_>, cause: CloseCause) {
        if matches!(cause, CloseCause::Local) {
            self.send_posted(around);
        }
        if let Some(qp) = &mut self.qp {
            qp.stream.abort(cause);
            qp.state = QpState::Err;
        }
        self.transmit(around);
    }
}

/// Whether FPDUs may leave: the initiator's behind the reply, the responder's after an FPDU of the
/// initiator (RFC 5044 §7.1.2), or when an initiator that has not promised one stayed silent.
fn may_send(around: &Around<'_>, link: usize, grace: Option<Time>) -> bool {
    match around.side {
        Side::Active => around.tcp.has_read_start_up(link, Side::Active),
        Side::Passive => {
            around.tcp.has_read_fpdu(link, Side::Passive)
                || grace.is_some_and(|grace| grace <= around.now)
        }
    }
}

fn sent_completes(app: &mut App, taken: u8, around: &mut Around<'_>, completion: &Completion) {
    let (status, wr_id) = (completion.status, completion.wr_id);
    around.local(|| format!("send {wr_id} completes: {status:?}"));
    let in_order = wr_id == u64::from(app.completed) && app.completed < app.posted;
    let success = status == WcStatus::Success;
    let after_failure = success && app.succeeded < app.completed;
    app.completed = app.completed.saturating_add(1);
    app.succeeded += u8::from(success);
    let (completed, posted) = (app.completed, app.posted);
    if !in_order || after_failure {
        let what = format!("send {wr_id} completes ({status:?}) as number {completed} of {posted}");
        around.violated(Property::Completion, what);
    }
    if app.succeeded > taken {
        let what = format!("{} sends succeeded, TCP has {taken}", app.succeeded);
        around.violated(Property::Completion, what);
    }
}

fn receive_completes(
    app: &mut App,
    memory: &Inbox,
    around: &mut Around<'_>,
    completion: &Completion,
) {
    let (status, wr_id) = (completion.status, completion.wr_id);
    if status != WcStatus::Success {
        return;
    }
    let (content, expected) = (memory.content(wr_id), app.received);
    around.local(|| format!("receives message {content}"));
    app.received += 1;
    if content != expected || wr_id != u64::from(expected) {
        let what = format!("message {content} in receive {wr_id}, expected {expected}");
        around.violated(Property::Order, what);
    }
    if app.phase == Phase::Establishing {
        around.violated(
            Property::Told,
            "data arrived, and nobody says that the connection is established",
        );
    }
}
