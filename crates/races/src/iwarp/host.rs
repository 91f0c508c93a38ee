//! One side: its start-ups, its connections, and what its application does.

use std::time::Duration;

use softverbs_proto::iwarp::negotiate::{
    Initiator, InitiatorOutcome, Negotiated, Responder, ResponderOutcome, RtrKind, Wishes,
};
use softverbs_proto::iwarp::stream::CloseCause;
use softverbs_proto::mutation::Mutations;
use softverbs_proto::time::Time;
use softverbs_wire::codec::Parsed;
use softverbs_wire::mpa::{MpaFrame, MpaKind};

use super::conn::{Around, Conn, Qp, Socket, Start};
use super::outgoing::Outgoing;
use super::world::IwarpSetup;
use crate::app::{AppStep, Phase, Plan};
use crate::world::{Property, Side};

/// The library's times.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Private data of a request, a reply and a reject.
const ASKED: &[u8] = &[0xa1];
const ACCEPTED: &[u8] = &[0xb2];
const REJECTED: &[u8] = &[0xc3];

/// One side.
#[derive(Clone, Debug, Hash)]
pub(super) struct Host {
    pub(super) side: Side,
    pub(super) plan: Plan,
    pub(super) setup: IwarpSetup,
    pub(super) mutations: Mutations,
    pub(super) conns: Vec<Conn>,
}

impl Host {
    fn wishes(&self, revision: u8) -> Wishes {
        Wishes {
            crc: self.setup.crc,
            markers: self.setup.markers,
            ird: 0,
            ord: 0,
            peer_to_peer: self.setup.peer_to_peer,
            rfc7306: true,
            revision,
            timeout: REPLY_TIMEOUT,
            mutations: self.mutations,
        }
    }

    /// Active: opens a TCP connection and sends the request.
    fn ask(&self, around: &mut Around<'_>, revision: u8) -> (usize, Start) {
        let link = around.tcp.connect();
        let mut initiator = Initiator::new(around.now, self.wishes(revision), ASKED);
        let request = initiator.transmit().unwrap_or_default();
        // A new connection has room for it.
        let _ = around.send(link, &mut Outgoing::start_up("MPA request", request));
        (link, Start::Initiator(initiator))
    }

    /// Active: the application connects.
    pub(super) fn connect(&mut self, around: &mut Around<'_>) {
        let (link, start) = self.ask(around, self.setup.revision);
        let mut conn = Conn::new(link, start, Phase::Connecting, self.plan.receives);
        conn.qp = Some(Qp::new(self.mutations));
        self.conns.push(conn);
    }

    /// Passive: a TCP connection is accepted.
    pub(super) fn welcome(&mut self, now: Time, link: usize) {
        let start = Start::Responder(Responder::new(now, REQUEST_TIMEOUT));
        let receives = self.plan.receives;
        self.conns
            .push(Conn::new(link, start, Phase::Unseen, receives));
    }

    /// Octets were read.
    pub(super) fn read(&mut self, around: &mut Around<'_>, at: usize, octets: usize) {
        let conn = &mut self.conns[at];
        let Socket::Starting(start) = &mut conn.socket else {
            return conn.read(around, octets);
        };
        let octets = around.tcp.read(conn.link, around.side, octets);
        match start {
            Start::Initiator(initiator) => {
                let outcome = initiator.on_bytes(around.now, &octets);
                self.conclude(around, at, outcome, &octets);
            }
            Start::Responder(responder) => {
                let outcome = responder.on_bytes(around.now, &octets);
                self.hear_request(around, at, outcome);
            }
        }
    }

    /// The end of the stream was read.
    pub(super) fn read_end(&mut self, around: &mut Around<'_>, at: usize, reset: bool) {
        let conn = &mut self.conns[at];
        match &mut conn.socket {
            Socket::Starting(Start::Initiator(initiator)) => {
                let outcome = initiator.on_eof(reset);
                self.conclude(around, at, outcome, &[]);
            }
            Socket::Starting(Start::Responder(responder)) => {
                let outcome = responder.on_eof();
                self.hear_request(around, at, outcome);
            }
            _ => conn.read_end(around, reset),
        }
    }

    pub(super) fn fire(&mut self, around: &mut Around<'_>, at: usize) {
        let conn = &mut self.conns[at];
        match &mut conn.socket {
            Socket::Starting(Start::Initiator(initiator)) => {
                let outcome = initiator.on_timeout(around.now);
                self.conclude(around, at, outcome, &[]);
            }
            Socket::Starting(Start::Responder(responder)) => {
                let outcome = responder.on_timeout(around.now);
                self.hear_request(around, at, outcome);
            }
            _ => conn.fire(around),
        }
    }

    /// Active: what the initiator made of `octets`.
    fn conclude(
        &mut self,
        around: &mut Around<'_>,
        at: usize,
        outcome: InitiatorOutcome,
        octets: &[u8],
    ) {
        let conn = &mut self.conns[at];
        match outcome {
            InitiatorOutcome::Pending => {}
            InitiatorOutcome::Established {
                negotiated,
                private_data,
                consumed,
            } => {
                check_private_data(around, &private_data, ACCEPTED);
                conn.app.phase = Phase::Establishing;
                conn.socket = Socket::Handover {
                    negotiated,
                    early: octets[consumed..].to_vec(),
                };
            }
            InitiatorOutcome::Rejected { private_data } => {
                if !private_data.is_empty() {
                    check_private_data(around, &private_data, REJECTED);
                }
                self.fail(around, at, "REJECTED");
            }
            InitiatorOutcome::RetryWithRevision1 => {
                conn.close(around);
                around.local(|| "tries revision 1".to_owned());
                let (link, start) = self.ask(around, 1);
                let conn = &mut self.conns[at];
                (conn.link, conn.socket) = (link, Socket::Starting(start));
            }
            InitiatorOutcome::Closed => self.fail(around, at, "REJECTED (reset)"),
            InitiatorOutcome::TimedOut => self.fail(around, at, "UNREACHABLE"),
            InitiatorOutcome::Failed { fault, .. } => {
                around.violated(Property::Events, format_args!("the reply: {fault:?}"));
            }
        }
    }

    /// Active: the attempt has failed.
    fn fail(&mut self, around: &mut Around<'_>, at: usize, name: &str) {
        let conn = &mut self.conns[at];
        conn.close(around);
        conn.app.phase = Phase::Over;
        conn.abort(around, CloseCause::Local);
        conn.hear_end(around, name);
    }

    /// Passive: what the responder made of what came.
    fn hear_request(&mut self, around: &mut Around<'_>, at: usize, outcome: ResponderOutcome) {
        let conn = &mut self.conns[at];
        match outcome {
            ResponderOutcome::Pending => {}
            ResponderOutcome::Request { private_data, .. } => {
                check_private_data(around, &private_data, ASKED);
                around.local(|| "hears CONNECT_REQUEST".to_owned());
                conn.app.phase = Phase::Requested;
            }
            ResponderOutcome::Refuse { fault, .. } => {
                around.violated(Property::Events, format_args!("the request: {fault:?}"));
            }
            ResponderOutcome::Closed => {
                around.local(|| "drops a connection without a request".to_owned());
                conn.close(around);
                conn.app.phase = Phase::Over;
                conn.app.forgotten = true;
            }
        }
    }

    fn accept(&mut self, around: &mut Around<'_>, at: usize) {
        let wishes = self.wishes(self.setup.revision);
        let conn = &mut self.conns[at];
        let Socket::Starting(Start::Responder(responder)) = &mut conn.socket else {
            return;
        };
        conn.qp = Some(Qp::new(self.mutations));
        let (mut reply, mut negotiated) = match responder.accept(&wishes, ACCEPTED) {
            Ok(accepted) => accepted,
            Err(misuse) => {
                return around.violated(Property::Command, format_args!("accept: {misuse}"));
            }
        };
        if self.setup.rtr_write {
            choose_write(&mut reply, &mut negotiated);
        }
        let early = responder.early_bytes();
        let mut reply = Outgoing::start_up("MPA reply", reply);
        let sent = around.send(conn.link, &mut reply);
        if sent.is_ok() && reply.is_empty() {
            conn.app.phase = Phase::Establishing;
            conn.socket = Socket::Handover { negotiated, early };
        } else {
            // The call says so, and no event does.
            around.local(|| "accept fails: the peer has gone".to_owned());
            conn.close(around);
            conn.app.phase = Phase::Over;
            conn.app.told_end = true;
            conn.abort(around, CloseCause::Lost);
        }
    }

    /// Passive: says no, and closes.
    fn refuse(&mut self, around: &mut Around<'_>, at: usize, private_data: &[u8]) {
        let conn = &mut self.conns[at];
        let Socket::Starting(Start::Responder(responder)) = &mut conn.socket else {
            return;
        };
        match responder.reject(private_data) {
            Ok(reply) => conn.linger(around, Outgoing::start_up("MPA reject", reply)),
            Err(misuse) => around.violated(Property::Command, format_args!("reject: {misuse}")),
        }
    }

    fn destroy(&mut self, around: &mut Around<'_>, at: usize) {
        self.conns[at].send_posted(around);
        self.forget(at);
        match &self.conns[at].socket {
            Socket::Starting(Start::Initiator(_)) => self.conns[at].close(around),
            Socket::Starting(Start::Responder(_)) => self.refuse(around, at, &[]),
            _ => {}
        }
        let conn = &mut self.conns[at];
        conn.abort(around, CloseCause::Local);
        conn.qp = None;
    }

    /// The application does not want to hear of it again.
    fn forget(&mut self, at: usize) {
        let app = &mut self.conns[at].app;
        app.ended_it = true;
        app.forgotten = true;
        app.phase = Phase::Over;
    }

    /// What the application may do with a connection.
    pub(super) fn app_steps(&self, at: usize, mut may: impl FnMut(AppStep)) {
        let (conn, plan) = (&self.conns[at], &self.plan);
        let app = &conn.app;
        if app.forgotten || app.phase == Phase::Unseen {
            return;
        }
        if let Some(qp) = &conn.qp {
            if app.posted < plan.sends {
                may(AppStep::Post);
                if app.posted > 0 && !app.is_over() {
                    may(AppStep::PostLater);
                }
            }
            if qp.deferred {
                may(AppStep::Poll);
            }
        }
        if app.is_over() {
            return;
        }
        if app.phase == Phase::Requested {
            may(AppStep::Accept);
            if plan.rejects {
                may(AppStep::Reject);
            }
        }
        let connected = matches!(app.phase, Phase::Establishing | Phase::Established);
        if plan.disconnects && connected && !app.ended_it {
            may(AppStep::Disconnect);
        }
        if plan.aborts && conn.qp.is_some() && !app.ended_it {
            may(AppStep::Abort);
        }
        if plan.destroys {
            may(AppStep::Destroy);
        }
    }

    /// The application does it.
    pub(super) fn act(&mut self, around: &mut Around<'_>, at: usize, step: AppStep) {
        around.local(|| step.to_string());
        let conn = &mut self.conns[at];
        match step {
            AppStep::Post => conn.post(around, false),
            AppStep::PostLater => conn.post(around, true),
            AppStep::Poll => conn.send_posted(around),
            AppStep::Accept => self.accept(around, at),
            AppStep::Reject => {
                self.refuse(around, at, REJECTED);
                self.forget(at);
            }
            AppStep::Disconnect => conn.disconnect(around),
            AppStep::Abort => {
                conn.app.ended_it = true;
                conn.abort(around, CloseCause::Local);
            }
            AppStep::Destroy => self.destroy(around, at),
            AppStep::Ready | AppStep::Establish | AppStep::Delay => {}
        }
    }
}

/// Changes a reply in peer-to-peer mode: the RTR frame is to be an RDMA Write.
fn choose_write(reply: &mut Vec<u8>, negotiated: &mut Negotiated) {
    let octets = core::mem::take(reply);
    if let Ok(Parsed::Complete { mut value, .. }) = MpaFrame::parse(MpaKind::Reply, &octets) {
        if let (Some(words), Some(rtr)) = (&mut value.enhanced, &mut negotiated.rtr) {
            (words.rtr_read, words.rtr_write) = (false, true);
            *rtr = RtrKind::Write;
        }
        value.append_to(reply);
    }
}

fn check_private_data(around: &mut Around<'_>, got: &[u8], expected: &[u8]) {
    if got != expected {
        let what = format!("private data {got:02x?} instead of {expected:02x?}");
        around.violated(Property::Events, what);
    }
}
