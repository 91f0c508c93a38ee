//! One side: its connection manager, its connections with their queue pairs, and what the library
//! does between them.

use std::fmt::Display;

use smallvec::SmallVec;
use softverbs_proto::cm::endpoint::Endpoint;
use softverbs_proto::cm::event::{
    CmEvent, CmStatus, QpAction, QpEvent as CmQpEvent, RtrAttributes, RtsAttributes,
};
use softverbs_proto::cm::params::ConnectionId;
use softverbs_proto::memory::Access;
use softverbs_proto::mutation::Mutations;
use softverbs_proto::qp_state::{QpAttrMask, QpState, QpType};
use softverbs_proto::roce::queue_pair::{
    PacketBatch, PacketMeta, QpAttributes, QpConfig, QpEvent, QpFailure, QueuePair,
};
use softverbs_proto::time::Time;
use softverbs_proto::wr::{Completion, Payload, SendFlags, SendOp, SendRequest, WcStatus};
use softverbs_wire::ib::Packet as Data;
use softverbs_wire::num::Qpn;

use super::packets;
use crate::app::{App, Phase, Plan};
use crate::inbox::Inbox;
use crate::net::Packet;
use crate::world::{Log, Property, Side, Violation};

/// What a queue pair has to tell the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Note {
    /// The first packet of the peer.
    CommEst,
    /// It went to the error state.
    Failed,
    /// It went to the error state because nobody answers.
    Unanswered,
}

/// A connection and its queue pair.
#[derive(Clone, Debug, Hash)]
pub(super) struct Conn {
    pub(super) id: ConnectionId,
    /// `None` before a request is accepted, and when it was destroyed.
    pub(super) qp: Option<QueuePair>,
    pub(super) qpn: Qpn,
    /// The peer's queue pair, once known.
    pub(super) remote_qpn: Option<Qpn>,
    memory: Inbox,
    /// What the connection manager wants of an application's own queue pair.
    pub(super) wanted: SmallVec<[QpAction; 2]>,
    /// Posted while the queue pair is in INIT and the peer is asked.
    early: Vec<SendRequest>,
    pub(super) notes: SmallVec<[Note; 2]>,
    pub(super) app: App,
    /// The network has delivered what says that the peer listens.
    pub(super) peer_listens: bool,
}

impl Conn {
    pub(super) fn new(id: ConnectionId, phase: Phase, qpn: Qpn, receives: u8) -> Self {
        Self {
            id,
            qp: None,
            qpn,
            remote_qpn: None,
            memory: Inbox::new(receives),
            wanted: SmallVec::new(),
            early: Vec::new(),
            notes: SmallVec::new(),
            app: App::new(phase),
            peer_listens: false,
        }
    }
}

/// One side.
#[derive(Clone, Debug, Hash)]
pub(super) struct Host {
    pub(super) side: Side,
    pub(super) plan: Plan,
    pub(super) cm: Endpoint,
    /// How often its queue pairs try again.
    pub(super) retries: u8,
    pub(super) mutations: Mutations,
    pub(super) conns: Vec<Conn>,
    pub(super) violation: Option<Violation>,
}

/// A queue pair in INIT, as an application creates it.
pub(super) fn new_qp(qpn: Qpn, mutations: Mutations) -> QueuePair {
    let mut qp = QueuePair::new(QpConfig {
        sq_sig_all: true,
        mutations,
        ..QpConfig::new(QpType::Rc, qpn, 16)
    });
    let mask =
        QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    let attributes = QpAttributes::default();
    if qp
        .modify(Time::ZERO, &attributes, mask, QpState::Init)
        .is_err()
    {
        debug_assert!(false, "a new queue pair goes to INIT");
    }
    qp
}

impl Host {
    pub(super) fn violated(&mut self, property: Property, what: impl Display) {
        let side = Some(self.side);
        self.violation.get_or_insert_with(|| Violation {
            property,
            side,
            what: what.to_string(),
        });
    }

    fn conn(&mut self, id: ConnectionId) -> Option<usize> {
        self.conns.iter().position(|conn| conn.id == id)
    }

    /// The connection of a queue pair that still exists.
    pub(super) fn conn_of_qp(&self, qpn: Qpn) -> Option<usize> {
        self.conns
            .iter()
            .position(|conn| conn.qpn == qpn && conn.qp.is_some())
    }

    /// Does what follows from what just happened, and sends what is to be sent.
    pub(super) fn settle(&mut self, now: Time, out: &mut Vec<Packet>, log: &mut Log) {
        loop {
            while let Some((id, event)) = self.cm.poll_event() {
                self.hear(now, id, event, log);
            }
            if let Some(transmit) = self.cm.poll_transmit() {
                self.check_ready(&*transmit.octets);
                out.push(packets::mad_packet(&*transmit.octets));
                continue;
            }
            let mut quiet = true;
            for at in 0..self.conns.len() {
                quiet &= !self.settle_qp(now, at, out, log);
            }
            if quiet {
                return;
            }
        }
    }

    /// A message that says that our queue pair is ready leaves only when it is.
    fn check_ready(&mut self, octets: &[u8]) {
        let Some((comm_id, name)) = packets::says_ready(octets) else {
            return;
        };
        let conn = self.conns.iter().find(|conn| conn.id.comm_id() == comm_id);
        let state = conn.and_then(|conn| conn.qp.as_ref()).map(QueuePair::state);
        if matches!(state, Some(QpState::Reset | QpState::Init) | None) {
            let state = state.map_or_else(|| "gone".to_owned(), |state| state.to_string());
            self.violated(
                Property::Early,
                format_args!("a {name} leaves, the queue pair is {state}"),
            );
        }
    }

    /// In the order of the queue pair's contract. True if anything was there.
    fn settle_qp(&mut self, now: Time, at: usize, out: &mut Vec<Packet>, log: &mut Log) -> bool {
        let mut any = false;
        let side = self.side;
        let conn = &mut self.conns[at];
        let Some(qp) = &mut conn.qp else { return false };
        while let Some(event) = qp.poll_event() {
            any = true;
            log.local(side, || format!("queue pair: {event:?}"));
            match event {
                QpEvent::CommEst => conn.notes.push(Note::CommEst),
                QpEvent::Fatal {
                    cause: QpFailure::SendQueue(WcStatus::RetryExcErr),
                } => conn.notes.push(Note::Unanswered),
                QpEvent::Fatal { .. } => conn.notes.push(Note::Failed),
                QpEvent::SqDrained | QpEvent::LastWqeReached => {}
            }
        }
        if qp.wants_transmit() {
            any = true;
            let first = qp.attributes().sq_psn;
            let answers_from = qp.attributes().rq_psn;
            let mut batch = PacketBatch::new();
            qp.poll_transmit(now, &mut conn.memory, &mut batch, 16);
            let packets = packets::data_packets(&batch, &conn.memory, first, answers_from);
            let allowed = conn.peer_listens;
            for (packet, is_request) in packets {
                if is_request && !allowed {
                    let what =
                        format!("{} leaves before the peer is known to listen", packet.label);
                    self.violated(Property::Early, what);
                }
                out.push(packet);
            }
        }
        any | self.hand_out(at, log)
    }

    /// Completions go to the application.
    fn hand_out(&mut self, at: usize, log: &mut Log) -> bool {
        let mut any = false;
        while let Some(received) = self.conns[at]
            .qp
            .as_mut()
            .and_then(QueuePair::poll_recv_completion)
        {
            any = true;
            self.received(at, &received.completion, log);
        }
        while let Some(sent) = self.conns[at]
            .qp
            .as_mut()
            .and_then(QueuePair::poll_send_completion)
        {
            any = true;
            self.sent(at, &sent, log);
        }
        any
    }

    fn received(&mut self, at: usize, completion: &Completion, log: &mut Log) {
        let side = self.side;
        let conn = &mut self.conns[at];
        let (status, wr_id) = (completion.status, completion.wr_id);
        if status != WcStatus::Success {
            return;
        }
        let (content, expected) = (conn.memory.content(wr_id), conn.app.received);
        log.local(side, || format!("receives message {content}"));
        conn.app.received += 1;
        if content != expected || wr_id != u64::from(expected) {
            let what = format!("message {content} in receive {wr_id}, expected {expected}");
            self.violated(Property::Order, what);
        }
    }

    fn sent(&mut self, at: usize, completion: &Completion, log: &mut Log) {
        let side = self.side;
        let app = &mut self.conns[at].app;
        let (status, wr_id) = (completion.status, completion.wr_id);
        log.local(side, || format!("send {wr_id} completes: {status:?}"));
        let in_order = wr_id == u64::from(app.completed) && app.completed < app.posted;
        let success = status == WcStatus::Success;
        let after_failure = success && app.succeeded < app.completed;
        app.completed = app.completed.saturating_add(1);
        app.succeeded += u8::from(success);
        let (completed, posted) = (app.completed, app.posted);
        if !in_order || after_failure {
            let what =
                format!("send {wr_id} completes ({status:?}) as number {completed} of {posted}");
            self.violated(Property::Completion, what);
        }
    }

    /// The connection manager says something.
    fn hear(&mut self, now: Time, id: ConnectionId, event: CmEvent, log: &mut Log) {
        let side = self.side;
        if let CmEvent::Request(_) = event {
            log.local(side, || "hears CONNECT_REQUEST".to_owned());
            let qpn = Qpn::new(0x21 + u32::try_from(self.conns.len()).unwrap_or(0));
            self.conns
                .push(Conn::new(id, Phase::Requested, qpn, self.plan.receives));
            return;
        }
        let Some(at) = self.conn(id) else {
            return self.violated(
                Property::Events,
                format_args!("{event:?} of an unknown connection"),
            );
        };
        let app = &mut self.conns[at].app;
        if app.forgotten {
            let what = format!(
                "{} of a connection that was rejected or destroyed",
                name(&event)
            );
            return self.violated(Property::Events, what);
        }
        if !matches!(event, CmEvent::Qp(_)) {
            log.local(side, || format!("hears {}", name(&event)));
        }
        match event {
            CmEvent::Qp(action @ (QpAction::ToRtr(_) | QpAction::ToRts(_)))
                if self.plan.confirms =>
            {
                self.conns[at].wanted.push(action);
            }
            CmEvent::Qp(action) => self.act(now, at, action, log),
            CmEvent::Reply(_) => {
                app.phase = Phase::Replied;
                if !self.plan.confirms {
                    self.establish(now, at, log);
                }
            }
            CmEvent::Established => self.established(at),
            CmEvent::Rejected(_) | CmEvent::Unreachable(_) => self.over(at, &event),
            CmEvent::Disconnected(_) => {
                self.over(at, &event);
                self.abort(at);
                if self.cm.disconnect_reply(now, id).is_err() {
                    // The same after our own disconnecting: there is nothing to confirm.
                }
            }
            CmEvent::TimewaitExit => {
                if app.exited || !(app.told_end || app.ended_it) {
                    self.violated(Property::Events, "the end of TimeWait before the end");
                }
                self.conns[at].app.exited = true;
            }
            CmEvent::Request(_) | CmEvent::SidrRequest(_) | CmEvent::SidrReply(_) => {
                self.violated(Property::Events, name(&event));
            }
        }
    }

    fn established(&mut self, at: usize) {
        let app = &mut self.conns[at].app;
        let before = app.phase;
        if !app.told_end && before != Phase::Over {
            app.phase = Phase::Established;
        }
        if before != Phase::Establishing || app.told_end {
            self.violated(
                Property::Events,
                format_args!("ESTABLISHED when {before:?}"),
            );
        }
        let conn = &self.conns[at];
        let shut = |qp: &QueuePair| {
            qp.state() == QpState::Rtr || qp.state() == QpState::Rts && !qp.gate_is_open()
        };
        if conn.qp.as_ref().is_some_and(shut) {
            self.violated(Property::Told, "ESTABLISHED, and the gate is shut");
        }
    }

    fn over(&mut self, at: usize, event: &CmEvent) {
        let app = &mut self.conns[at].app;
        if core::mem::replace(&mut app.told_end, true) {
            self.violated(
                Property::Events,
                format_args!("{} after the end", name(event)),
            );
        }
        self.conns[at].app.phase = Phase::Over;
    }

    /// The application does to its own queue pair what it has been told to.
    pub(super) fn ready(&mut self, now: Time, at: usize, log: &mut Log) {
        for action in core::mem::take(&mut self.conns[at].wanted) {
            self.act(now, at, action, log);
        }
    }

    /// Confirms a reply.
    pub(super) fn establish(&mut self, now: Time, at: usize, log: &mut Log) {
        let conn = &mut self.conns[at];
        conn.app.phase = Phase::Establishing;
        log.local(self.side, || "establishes".to_owned());
        if let Err(misuse) = self.cm.establish(now, conn.id) {
            self.violated(Property::Command, format_args!("establish: {misuse}"));
        }
    }

    /// The connection manager moves the queue pair.
    fn act(&mut self, now: Time, at: usize, action: QpAction, log: &mut Log) {
        let side = self.side;
        let conn = &mut self.conns[at];
        let Some(qp) = &mut conn.qp else { return };
        let done = match action {
            QpAction::ToRtr(rtr) => {
                conn.remote_qpn = Some(rtr.dest_qpn);
                if side == Side::Passive {
                    qp.hold_gate();
                }
                let (attributes, mask) = rtr_attributes(&rtr);
                let moved = qp.modify(now, &attributes, mask, QpState::Rtr);
                for request in conn.early.drain(..) {
                    if qp.post_send(request).is_err() {
                        debug_assert!(false, "a queue pair in RTR takes requests");
                    }
                }
                moved
            }
            QpAction::ToRts(rts) => {
                let (attributes, mask) = rts_attributes(&rts);
                qp.modify(now, &attributes, mask, QpState::Rts)
            }
            QpAction::OpenGate(_) => {
                let opens = qp.open_gate();
                if opens {
                    log.local(side, || "queue pair: the gate opens".to_owned());
                }
                Ok(())
            }
            QpAction::ToErr => {
                self.abort(at);
                Ok(())
            }
        };
        if let Err(error) = done {
            self.violated(Property::Command, format_args!("{action:?}: {error}"));
        }
    }

    /// The queue pair goes to the error state.
    pub(super) fn abort(&mut self, at: usize) {
        let conn = &mut self.conns[at];
        if let Some(qp) = &mut conn.qp {
            qp.abort();
            for request in conn.early.drain(..) {
                if qp.post_send(request).is_err() {
                    debug_assert!(false, "a queue pair in ERR flushes requests");
                }
            }
        }
    }

    /// The application posts its next send.
    pub(super) fn post(&mut self, at: usize) {
        let conn = &mut self.conns[at];
        let number = conn.app.posted;
        let request = SendRequest {
            wr_id: number.into(),
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline([number].into_iter().collect()),
        };
        conn.app.posted += 1;
        let Some(qp) = &mut conn.qp else { return };
        if qp.state() == QpState::Init {
            conn.early.push(request);
        } else if let Err(misuse) = qp.post_send(request) {
            self.violated(Property::Command, format_args!("post: {misuse}"));
        }
    }

    /// What a queue pair noted is told to the connection manager.
    pub(super) fn tell(&mut self, now: Time, at: usize) {
        let conn = &mut self.conns[at];
        if conn.notes.is_empty() {
            return;
        }
        let (note, id) = (conn.notes.remove(0), conn.id);
        // The connection may have gone, or be over: nothing is to be done then.
        let _ = match note {
            Note::CommEst => self.cm.on_qp_event(now, id, CmQpEvent::CommEst),
            Note::Failed => self.cm.disconnect(now, id),
            Note::Unanswered => {
                conn.app.phase = Phase::Over;
                self.cm.disconnect(now, id)
            }
        };
    }

    /// A packet for a queue pair.
    pub(super) fn on_data(&mut self, now: Time, octets: &[u8]) {
        let Ok(packet) = Data::parse(octets) else {
            return;
        };
        let Some(at) = self.conn_of_qp(packet.headers.bth.dest_qp) else {
            return;
        };
        let conn = &mut self.conns[at];
        if let Some(qp) = &mut conn.qp {
            // A queue pair that is not ready to receive hears nothing.
            conn.peer_listens |= matches!(qp.state(), QpState::Rtr | QpState::Rts);
            qp.on_packet(now, &mut conn.memory, &packet, &PacketMeta::default());
        }
    }
}

pub(super) const fn name(event: &CmEvent) -> &'static str {
    match event {
        CmEvent::Request(_) => "CONNECT_REQUEST",
        CmEvent::Reply(_) => "the reply",
        CmEvent::Established => "ESTABLISHED",
        CmEvent::Rejected(_) => "REJECTED",
        CmEvent::Unreachable(_) => "UNREACHABLE",
        CmEvent::Disconnected(CmStatus::Success) => "DISCONNECTED",
        CmEvent::Disconnected(CmStatus::TimedOut) => "DISCONNECTED (no answer)",
        CmEvent::TimewaitExit => "TIMEWAIT_EXIT",
        CmEvent::SidrRequest(_) => "a SIDR request",
        CmEvent::SidrReply(_) => "a SIDR reply",
        CmEvent::Qp(_) => "an action",
    }
}

fn rtr_attributes(rtr: &RtrAttributes) -> (QpAttributes, QpAttrMask) {
    let attributes = QpAttributes {
        access: Access::REMOTE_WRITE,
        path_mtu: rtr.path_mtu,
        dest_qpn: rtr.dest_qpn,
        rq_psn: rtr.rq_psn,
        max_dest_rd_atomic: rtr.max_dest_rd_atomic,
        min_rnr_timer: rtr.min_rnr_timer.get(),
        ..QpAttributes::default()
    };
    let mask = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER
        | QpAttrMask::ACCESS_FLAGS;
    (attributes, mask)
}

fn rts_attributes(rts: &RtsAttributes) -> (QpAttributes, QpAttrMask) {
    let attributes = QpAttributes {
        sq_psn: rts.sq_psn,
        timeout: rts.timeout.get(),
        retry_cnt: rts.retry_count.get(),
        rnr_retry: rts.rnr_retry_count.get(),
        max_rd_atomic: rts.max_rd_atomic,
        ..QpAttributes::default()
    };
    let mask = QpAttrMask::STATE
        | QpAttrMask::SQ_PSN
        | QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::MAX_QP_RD_ATOMIC;
    (attributes, mask)
}
