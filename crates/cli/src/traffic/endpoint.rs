//! The verbs objects of one end of a measurement, and what both kinds of measurement do with them;
//! how unreliable queue pairs are made and connected is in `service.rs`, atomic operations are in
//! `atomic.rs`.

use std::time::Duration;

use softverbs::cm::{CmId, CmOption};
use softverbs::{
    Access, CompChannel, Context, Cq, IbMtu, Mr, Pd, QpCap, QpInitAttr, RecvWr, SendData,
    SendFlags, SendOp, SendWr, Wc, WcOpcode, WcStatus,
};

use super::lane::{Lane, Tag};
use super::layout::{Layout, WORD, touch};
use super::note::{self, Note};
use super::pattern::Mark;
use super::seen::narrow;
use super::service;
use crate::exchange::LaneKeys;
use crate::failure::{Failure, Outcome, why};
use crate::plan::{Metric, Verb, Workload};

/// Sends for notes that one lane may have under way; further ones wait.
const NOTES_OUT: u32 = 8;

/// One end: one completion queue and one memory region for all lanes.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// What is measured.
    pub(crate) workload: Workload,
    /// This is the client's end.
    pub(crate) initiator: bool,
    /// Where things lie in `mr`.
    pub(crate) layout: Layout,
    /// All payload.
    pub(crate) mr: Mr,
    /// Completions of all lanes.
    pub(crate) cq: Cq,
    /// To sleep on, if that was asked for.
    pub(crate) channel: Option<CompChannel>,
    /// The queue pairs.
    pub(crate) lanes: Vec<Lane>,
    /// Size of the messages of this round.
    pub(crate) size: u32,
    /// Number of this round.
    pub(crate) round: u32,
    pd: Pd,
    session: u64,
    scratch: Vec<u8>,
}

/// What was found out about the payload.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Messages that were looked at.
    pub(crate) verified: u64,
    /// Those among them that were wrong.
    pub(crate) wrong: u64,
    /// What was wrong with the first of them.
    pub(crate) complaint: String,
}

impl Findings {
    /// Adds something that is wrong.
    pub(crate) fn blame(&mut self, text: impl FnOnce() -> String) {
        self.wrong += 1;
        if self.complaint.is_empty() {
            self.complaint = text();
        }
    }
}

/// What a receive brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A message that is measured.
    Message(Arrival),
    /// A note, with its number.
    Note(Note, u32),
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Which receive it took.
    pub(crate) slot: u32,
    /// Its number, or what is left of it, if it came along.
    pub(crate) imm: Option<u32>,
    /// It has the length of a message of this round.
    pub(crate) whole: bool,
}

impl Endpoint {
    /// Allocates everything but the lanes, on the device of `context`.
    pub(crate) fn new(
        context: &Context,
        workload: Workload,
        session: u64,
        initiator: bool,
        events: bool,
    ) -> Outcome<Self> {
        let layout = Layout::new(&workload);
        let pd = context.alloc_pd()?;
        let len = layout
            .len()
            .ok_or_else(|| Failure::run("too much memory for this machine"))?;
        service::check_port(context, &workload)?;
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        if workload.verb == Verb::Atomic {
            access |= Access::REMOTE_ATOMIC;
        }
        let mr = pd.alloc_mr(len, access)?;
        touch(&mr)?;
        let channel = if events {
            Some(context.create_comp_channel()?)
        } else {
            None
        };
        let mut entries = 0;
        for cap in [Some(cap(&workload)), beside_cap(&workload)]
            .into_iter()
            .flatten()
        {
            entries += cap.max_send_wr + cap.max_recv_wr;
        }
        let cqe = entries.saturating_mul(u32::from(workload.qps));
        let most = context.query_device().max_cqe;
        if cqe > most {
            return Err(Failure::run(format!(
                "-q {} and -t {} make a completion queue of {cqe} entries; {} has {most} at most",
                workload.qps,
                workload.tx_depth,
                context.device().name()
            )));
        }
        let cq = context.create_cq(cqe, channel.as_ref(), 0)?;
        let scratch = vec![0; workload.sizes.largest() as usize];
        Ok(Self {
            workload,
            initiator,
            layout,
            mr,
            cq,
            channel,
            lanes: Vec::new(),
            size: workload.sizes.largest(),
            round: 0,
            pd,
            session,
            scratch,
        })
    }

    /// The options that a data connection needs, on the side of this end.
    pub(crate) fn options(workload: &Workload) -> Vec<CmOption> {
        let mut options = Vec::new();
        if workload.crc {
            options.push(CmOption::Crc(true));
        }
        if let Some(limit) = workload.fpdu {
            options.push(CmOption::FpduLimit(limit));
        }
        if let Some(mtu) = workload.mtu {
            options.push(CmOption::PathMtu(IbMtu::at_most(mtu.into())));
        }
        options
    }

    /// Makes the queue pair of a connection that is being set up, with all its receives posted:
    /// on iWARP a message without a receive ends the connection. Returns what the peer needs.
    pub(crate) fn add_lane(&mut self, id: CmId) -> Outcome<LaneKeys> {
        let index = u16::try_from(self.lanes.len()).map_err(|_| Failure::run("too many lanes"))?;
        let mut attr = QpInitAttr::rc(&self.cq, &self.cq);
        attr.cap = cap(&self.workload);
        let data_receives = attr.cap.max_recv_wr;
        let mut keys = LaneKeys {
            session: self.session,
            addr: self.mr.addr(),
            rkey: self.mr.rkey(),
            index,
            qpn: 0,
            psn: 0,
        };
        let window = self.workload.window;
        if let Some(beside) = beside_cap(&self.workload) {
            let qp = service::create(&self.pd, &attr, &self.workload)?;
            attr.cap = beside;
            let beside = id.create_qp(&self.pd, &attr)?;
            keys.qpn = qp.qp_num().get();
            keys.psn = service::random_psn();
            self.lanes.push(Lane::new(id, qp, Some(beside), window));
            self.lanes[usize::from(index)].psn = keys.psn;
            for slot in 0..attr.cap.max_recv_wr {
                self.post_note_receive(index, slot)?;
            }
        } else {
            let qp = id.create_qp(&self.pd, &attr)?;
            self.lanes.push(Lane::new(id, qp, None, window));
        }
        for slot in 0..data_receives {
            self.post_receive(index, slot)?;
        }
        Ok(keys)
    }

    /// Learns what the peer of a lane has told, and connects an unreliable queue pair to it.
    pub(crate) fn know_peer(&mut self, keys: LaneKeys) -> Outcome<()> {
        let lane = &mut self.lanes[usize::from(keys.index)];
        lane.peer = Some(keys);
        if !self.workload.is_reliable() {
            service::connect(lane, &self.pd, &self.workload, &keys)?;
        }
        Ok(())
    }

    /// Gets ready for messages of `size` octets.
    pub(crate) fn start_round(&mut self, round: u32, size: u32) -> Outcome<()> {
        self.round = round;
        self.size = size;
        let lanes = self.workload.qps;
        for lane in &mut self.lanes {
            lane.start_round(self.workload.window);
        }
        if self.workload.verb == Verb::Atomic {
            for lane in 0..lanes {
                self.mr.copy_in(self.layout.atomic(lane), &[0; WORD])?;
            }
            return Ok(());
        }
        if self.workload.metric == Metric::Latency {
            // The octet that the ends watch must not hold what the last round left.
            self.mr
                .copy_in(self.layout.incoming(0, 0) + size as usize - 1, &[0])?;
        }
        if !self.workload.check {
            return Ok(());
        }
        // The incoming buffers must not hold what the last round left, which might look right.
        let blank = vec![0; size as usize];
        for lane in 0..lanes {
            for slot in 0..self.layout.in_slots() {
                self.mr.copy_in(self.layout.incoming(lane, slot), &blank)?;
            }
            if self.workload.verb == Verb::Read {
                for slot in 0..self.workload.slots {
                    self.fill(lane, u64::from(slot), slot as usize)?;
                }
            }
        }
        Ok(())
    }

    /// The buffer that a message uses.
    pub(crate) fn slot(&self, message: u64) -> usize {
        usize::try_from(message % u64::from(self.workload.slots)).unwrap_or(0)
    }

    /// Writes the payload of `message` into an outgoing buffer.
    pub(crate) fn fill(&mut self, lane: u16, message: u64, slot: usize) -> Outcome<()> {
        let payload = &mut self.scratch[..self.size as usize];
        let mark = Mark {
            from_initiator: self.initiator,
            lane,
            round: self.round,
            message,
        };
        mark.fill(payload);
        self.mr.copy_in(self.layout.outgoing(lane, slot), payload)?;
        Ok(())
    }

    /// Compares the first `octets` of an incoming buffer with what the peer sends as `message`.
    pub(crate) fn verify(
        &mut self,
        lane: u16,
        message: u64,
        (slot, octets): (usize, u32),
        findings: &mut Findings,
    ) -> Outcome<()> {
        let payload = &mut self.scratch[..octets as usize];
        let at = self.layout.incoming(lane, slot) + self.workload.headroom() as usize;
        self.mr.copy_out(at, payload)?;
        let mark = Mark {
            from_initiator: !self.initiator,
            lane,
            round: self.round,
            message,
        };
        findings.verified += 1;
        if let Some(at) = mark.first_wrong(payload) {
            findings.blame(|| {
                format!(
                    "queue pair {lane}, message {message} of {} octets: octet {at}",
                    payload.len()
                )
            });
        }
        Ok(())
    }

    /// Verifies a message that shows: its number, its length, and its payload if that was asked
    /// for.
    pub(crate) fn verify_arrival(
        &mut self,
        lane: u16,
        message: u64,
        arrival: Arrival,
        findings: &mut Findings,
    ) -> Outcome<()> {
        let numbered = arrival.imm.is_none_or(|imm| imm == narrow(message));
        if !(numbered && arrival.whole) {
            findings.verified += 1;
            findings.blame(|| {
                format!(
                    "queue pair {lane}, message {message}: not its number or length: {arrival:?}"
                )
            });
            return Ok(());
        }
        if self.workload.check {
            let slot = if self.workload.is_checked_in_receives() {
                arrival.slot as usize
            } else {
                self.slot(message)
            };
            return self.verify(lane, message, (slot, self.size), findings);
        }
        if arrival.imm.is_some() {
            findings.verified += 1;
        }
        Ok(())
    }

    /// Posts the operation that moves message number `message` of the lane. `marker` replaces its
    /// last octet.
    pub(crate) fn post_message(
        &mut self,
        index: u16,
        message: u64,
        marker: Option<u8>,
        signaled: bool,
    ) -> Outcome<()> {
        let slot = self.slot(message);
        let size = self.size as usize;
        let outgoing = self.layout.outgoing(index, slot);
        let incoming = match self.workload.verb {
            Verb::Send => self.layout.incoming(index, 0),
            _ => self.layout.incoming(index, slot),
        };
        let answered = self.workload.is_answered();
        if self.workload.check && !answered {
            self.fill(index, message, slot)?;
        }
        if let Some(marker) = marker {
            self.mr.copy_in(outgoing + size - 1, &[marker])?;
        }
        let lane = &self.lanes[usize::from(index)];
        // What is left of the number tells the messages of a round apart.
        let imm = self.workload.carries_imm().then_some(narrow(message));
        let (op, local) = match (self.workload.verb, imm) {
            (Verb::Send, None) => (SendOp::Send, outgoing),
            (Verb::Send, Some(imm)) => (SendOp::SendWithImm(imm), outgoing),
            (Verb::Write, imm) => {
                let (remote_addr, rkey) = lane.remote(incoming);
                let op = match imm {
                    None => SendOp::Write { remote_addr, rkey },
                    Some(imm) => SendOp::WriteWithImm {
                        remote_addr,
                        rkey,
                        imm,
                    },
                };
                (op, outgoing)
            }
            (Verb::Read, _) => {
                let (remote_addr, rkey) = lane.remote(outgoing);
                (SendOp::Read { remote_addr, rkey }, incoming)
            }
            (Verb::Atomic, _) => (self.atomic(lane, index, message), incoming),
        };
        let sges = [self.mr.sge(local, size)];
        let inline = size <= usize::from(self.workload.inline) && !answered;
        let data = if inline {
            self.mr.copy_out(local, &mut self.scratch[..size])?;
            SendData::Inline(&self.scratch[..size])
        } else {
            SendData::Sges(&sges)
        };
        let flags = if signaled {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let wr = SendWr::new(Tag::Message(message + 1).pack(index), op, data).with_flags(flags);
        lane.post(&wr)
    }

    /// Posts the receive of a buffer.
    pub(crate) fn post_receive(&self, index: u16, slot: u32) -> Outcome<()> {
        // What a receive takes besides messages means nothing; immediate data lie nowhere.
        let (offset, octets) = if self.workload.verb == Verb::Send {
            // A message that is verified must not be overwritten by the next one.
            let own = self.workload.is_checked_in_receives();
            let buffer = if own { slot as usize } else { 0 };
            let octets = self.workload.sizes.largest().max(note::LONGEST);
            let octets = octets + self.workload.headroom();
            (self.layout.incoming(index, buffer), octets)
        } else {
            (self.layout.notes(), note::LONGEST)
        };
        let sges = [self.mr.sge(offset, octets as usize)];
        let wr = RecvWr {
            wr_id: Tag::Receive(slot).pack(index),
            sges: &sges,
        };
        self.lanes[usize::from(index)].qp.post_recv(&wr)?;
        Ok(())
    }

    /// Posts a receive of the queue pair beside an unreliable one.
    pub(crate) fn post_note_receive(&self, index: u16, slot: u32) -> Outcome<()> {
        let sges = [self.mr.sge(self.layout.notes(), note::LONGEST as usize)];
        let wr = RecvWr {
            wr_id: Tag::NoteReceive(slot).pack(index),
            sges: &sges,
        };
        self.lanes[usize::from(index)].note_qp().post_recv(&wr)?;
        Ok(())
    }

    /// Sends a note, or keeps it until there is room in the send queue.
    pub(crate) fn send_note(&mut self, index: u16, note: Note) -> Outcome<()> {
        self.send_number(index, note, 0)
    }

    /// Sends a note with a number, which travels on unreliable lanes only.
    pub(crate) fn send_number(&mut self, index: u16, note: Note, number: u32) -> Outcome<()> {
        let lane = &mut self.lanes[usize::from(index)];
        lane.notes_due.push_back((note, number));
        self.send_due_notes(index)
    }

    /// Sends the notes that wait, as far as there is room.
    pub(crate) fn send_due_notes(&mut self, index: u16) -> Outcome<()> {
        loop {
            let lane = &mut self.lanes[usize::from(index)];
            if lane.notes_out >= NOTES_OUT {
                return Ok(());
            }
            let Some((note, number)) = lane.notes_due.pop_front() else {
                return Ok(());
            };
            lane.notes_out += 1;
            let lane = &self.lanes[usize::from(index)];
            let mut flags = SendFlags::SIGNALED;
            let mut tag = Tag::Note;
            if note == Note::End {
                self.send_count(index)?;
                // The peer may forget the round when the End arrives: not before the Reads.
                flags |= SendFlags::FENCE;
                tag = Tag::End;
            }
            // What is in the buffer does not matter, its length does.
            let sges = [self
                .mr
                .sge(self.layout.outgoing(index, 0), note.len(self.size) as usize)];
            let op = match lane.beside {
                None => SendOp::Send,
                Some(_) => SendOp::SendWithImm(number),
            };
            let wr = SendWr::new(tag.pack(index), op, SendData::Sges(&sges)).with_flags(flags);
            lane.note_qp().post_send(&wr)?;
        }
    }

    /// Writes the number of messages that were sent into the peer's memory, ahead of the End.
    fn send_count(&self, index: u16) -> Outcome<()> {
        let lane = &self.lanes[usize::from(index)];
        let offset = self.layout.count_out(index);
        self.mr
            .copy_in(offset, &lane.sending.posted.to_be_bytes())?;
        let (remote_addr, rkey) = lane.remote(self.layout.count_in(index));
        let sges = [self.mr.sge(offset, WORD)];
        let op = SendOp::Write { remote_addr, rkey };
        let wr = SendWr::new(Tag::Note.pack(index), op, SendData::Sges(&sges))
            .with_flags(SendFlags::empty());
        lane.note_qp().post_send(&wr)?;
        Ok(())
    }

    /// How many messages the peer has sent on this lane: known once its End has come.
    pub(crate) fn peer_count(&self, index: u16) -> Outcome<u64> {
        let mut word = [0; WORD];
        self.mr.copy_out(self.layout.count_in(index), &mut word)?;
        Ok(u64::from_be_bytes(word))
    }

    /// Tells what a completed receive brought.
    pub(crate) fn received(&self, wc: &Wc, slot: u32) -> Outcome<Received> {
        let len = wc.byte_len;
        let is_message = if self.workload.carries_imm() {
            wc.imm.is_some()
        } else {
            self.workload.verb == Verb::Send && len == self.size
        };
        if is_message {
            return Ok(Received::Message(Arrival {
                slot,
                imm: wc.imm,
                whole: len == self.size + self.workload.headroom(),
            }));
        }
        if self.workload.is_reliable() {
            return self.note_of(wc);
        }
        Err(Failure::run(format!(
            "the peer sent a message of {len} octets without a number"
        )))
    }

    /// Tells which note has come.
    pub(crate) fn note_of(&self, wc: &Wc) -> Outcome<Received> {
        let note = Note::of_len(wc.byte_len, self.size)
            .map(|note| Received::Note(note, wc.imm.unwrap_or_default()));
        note.ok_or_else(|| {
            Failure::run(format!("the peer sent a message of {} octets", wc.byte_len))
        })
    }

    /// Fails if the work request did.
    pub(crate) fn check_completion(&self, wc: &Wc) -> Outcome<()> {
        if wc.status == WcStatus::Success {
            return Ok(());
        }
        Err(completion_failure(wc))
    }

    /// How often an initiator shows that it lives to a target that sees no completions; `None` if
    /// the measured messages show it.
    pub(crate) fn alive_every(&self, timeout: Duration) -> Option<Duration> {
        let silent = self.initiator
            && match self.workload.metric {
                Metric::Bandwidth => !self.workload.takes_receives(),
                Metric::Latency => self.workload.is_answered(),
            };
        silent.then_some(timeout / 4)
    }
}

/// What the user is told about a work request that failed.
pub(crate) fn completion_failure(wc: &Wc) -> Failure {
    match wc.status {
        WcStatus::WrFlushErr => Failure::run(why(wc.status)),
        status => {
            let what = match wc.opcode {
                WcOpcode::RdmaWrite => "a write",
                WcOpcode::RdmaRead => "a read",
                WcOpcode::FetchAdd | WcOpcode::CompSwap => "an atomic operation",
                opcode if opcode.is_recv() => "a receive",
                _ => "a request",
            };
            Failure::run(format!("{what} failed: {}", why(status)))
        }
    }
}

/// The queues of the queue pair that is measured: messages, and on a reliable one notes, with the
/// count that goes with an End.
fn cap(workload: &Workload) -> QpCap {
    let window = if workload.takes_receives() {
        workload.window
    } else {
        0
    };
    QpCap {
        max_send_wr: workload.tx_depth + NOTES_OUT + 1,
        max_recv_wr: window + note::RECEIVES,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: workload.inline.into(),
    }
}

/// The queues of the queue pair beside an unreliable one.
fn beside_cap(workload: &Workload) -> Option<QpCap> {
    (!workload.is_reliable()).then_some(QpCap {
        max_send_wr: NOTES_OUT + 1,
        max_recv_wr: note::RECEIVES,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    })
}
