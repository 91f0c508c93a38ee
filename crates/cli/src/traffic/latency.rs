//! The latency loop: one message at a time on one lane.
//!
//! Send: each end answers a message with one of its own. Write: the same, but both ends watch the
//! last octet of their memory; they poll the completion queue between two looks, because the
//! caller's thread is what moves the octets of this stack. Write with immediate data: as Send.
//! Read and atomic: the initiator works, the target only waits for the End.
//!
//! Where messages may be lost, an answer carries the number of its question, and one that does not
//! come in time counts as lost.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use softverbs::Wc;

use super::bandwidth::Tally;
use super::endpoint::{Arrival, Endpoint, Findings, Received};
use super::lane::Tag;
use super::note::Note;
use super::progress::Progress;
use super::seen::widen;
use super::waiter::Waiter;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::plan::{Amount, Verb};
use crate::stats::Latencies;

/// The only lane.
const LANE: u16 = 0;

/// An answer that has not come in this time is lost, where that may be.
const PATIENCE: Duration = Duration::from_millis(500);

/// Runs one round as the initiator and returns the latencies; both ends have called
/// [`Endpoint::start_round`].
pub(crate) fn initiate(
    end: &mut Endpoint,
    timeout: Duration,
    progress: &mut Progress,
) -> Outcome<(Latencies, Tally)> {
    let mut latencies = Latencies::new();
    let amount = end.workload.amount;
    let mut run = Run::new(end, timeout);
    let divisor = if run.end.workload.is_answered() { 1 } else { 2 };
    let mut alive = run.end.alive_every(timeout).map(|every| (every, every));
    let mut message = 0;
    loop {
        let elapsed = run.start.elapsed();
        let enough = match amount {
            Amount::Iterations(count) => message == count,
            Amount::Duration(limit) => elapsed >= limit,
        };
        if enough {
            break;
        }
        if let Some((every, next)) = &mut alive
            && elapsed >= *next
            && !run.alive_pending
        {
            *next = elapsed + *every;
            run.alive_pending = true;
            run.end.send_note(LANE, Note::Alive)?;
        }
        let start = Instant::now();
        run.send(message)?;
        if run.await_answer(message)? {
            latencies.record(start.elapsed() / divisor);
            run.verify(message)?;
            run.answered += 1;
            run.heard = Instant::now();
        } else if run.heard.elapsed() > timeout {
            return Err(Failure::run(format!(
                "no message of the peer came for {} s (--timeout)",
                timeout.as_secs_f64()
            )));
        }
        message += 1;
        progress.update(message, elapsed);
        interrupt::check()?;
    }
    run.end.lanes[usize::from(LANE)].sending.ended = true;
    run.end.send_note(LANE, Note::End)?;
    while !(run.acked && run.end.lanes[usize::from(LANE)].is_quiet()) {
        run.poll()?;
    }
    Ok((latencies, run.tally()))
}

/// Runs one round as the target.
pub(crate) fn answer(end: &mut Endpoint, timeout: Duration) -> Outcome<Tally> {
    let mut run = Run::new(end, timeout);
    let mut next = 0;
    while let Some(message) = run.await_message(next)? {
        // Before the answer, after which the peer may write to the same buffer again.
        run.verify(message)?;
        run.send(message)?;
        run.answered += 1;
        next = message + 1;
        interrupt::check()?;
    }
    if run.end.workload.verb == Verb::Atomic {
        run.end.verify_words(&mut run.findings)?;
    }
    run.end.send_note(LANE, Note::Ack)?;
    while !run.end.lanes[usize::from(LANE)].is_quiet() {
        run.poll()?;
    }
    Ok(run.tally())
}

struct Run<'a> {
    end: &'a mut Endpoint,
    waiter: Waiter,
    start: Instant,
    completions: [Wc; 16],
    /// Messages that have come and nobody has looked at.
    arrivals: VecDeque<Arrival>,
    /// The one that is being looked at.
    arrival: Option<Arrival>,
    /// Messages that were answered.
    answered: u64,
    /// When the last answer came.
    heard: Instant,
    peer_ended: bool,
    acked: bool,
    alive_pending: bool,
    findings: Findings,
}

impl<'a> Run<'a> {
    fn new(end: &'a mut Endpoint, timeout: Duration) -> Self {
        let patience = end.workload.patience(timeout);
        let mut waiter = Waiter::new(end.channel.clone(), patience);
        if !end.workload.is_reliable() {
            waiter.look_often();
        }
        Self {
            waiter,
            start: Instant::now(),
            completions: [Wc::default(); 16],
            arrivals: VecDeque::new(),
            arrival: None,
            answered: 0,
            heard: Instant::now(),
            peer_ended: false,
            acked: false,
            alive_pending: false,
            findings: Findings::default(),
            end,
        }
    }

    fn tally(self) -> Tally {
        Tally {
            messages: self.end.lanes[usize::from(LANE)].sending.posted,
            elapsed: self.start.elapsed(),
            peak: 0.0,
            received: self.answered,
            findings: self.findings,
        }
    }

    /// The last octet of a written message: never that of the message before, nor that of fresh
    /// memory.
    fn marker(message: u64) -> u8 {
        u8::try_from(message % 255 + 1).unwrap_or(u8::MAX)
    }

    /// Posts a message once there is room for it.
    fn send(&mut self, message: u64) -> Outcome<()> {
        let depth = u64::from(self.end.workload.tx_depth);
        loop {
            let sending = &self.end.lanes[usize::from(LANE)].sending;
            if sending.posted - sending.done < depth {
                break;
            }
            self.poll()?;
        }
        let marker = self.watches().then(|| Self::marker(message));
        self.end.post_message(LANE, message, marker, true)?;
        let sending = &mut self.end.lanes[usize::from(LANE)].sending;
        // Of a target, the numbers of what it answers, some of which may be missing.
        sending.posted = sending.posted.max(message + 1);
        Ok(())
    }

    /// The ends watch their memory.
    fn watches(&self) -> bool {
        self.end.workload.verb == Verb::Write && !self.end.workload.takes_receives()
    }

    /// Waits for what ends the measured time of a message; `false` if it is lost.
    fn await_answer(&mut self, message: u64) -> Outcome<bool> {
        if self.end.workload.is_answered() {
            while self.end.lanes[usize::from(LANE)].sending.done <= message {
                self.poll()?;
            }
            return Ok(true);
        }
        if self.watches() {
            while !self.poll_memory(message)? {}
            return Ok(true);
        }
        let lossy = !self.end.workload.is_reliable();
        let deadline = Instant::now() + PATIENCE;
        loop {
            while let Some(arrival) = self.arrivals.pop_front() {
                if lossy && widen(arrival.imm.unwrap_or_default(), message) != message {
                    // The answer to a question that was given up.
                    self.end.post_receive(LANE, arrival.slot)?;
                    continue;
                }
                self.arrival = Some(arrival);
                return Ok(true);
            }
            self.poll()?;
            if lossy && self.arrivals.is_empty() && Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }

    /// Waits for a message to answer and returns its number, which is `next` unless messages are
    /// lost; `None` if the peer has ended instead.
    fn await_message(&mut self, next: u64) -> Outcome<Option<u64>> {
        loop {
            if self.watches() {
                if self.poll_memory(next)? {
                    return Ok(Some(next));
                }
            } else if let Some(arrival) = self.arrivals.pop_front() {
                self.arrival = Some(arrival);
                if self.end.workload.is_reliable() {
                    return Ok(Some(next));
                }
                return Ok(arrival.imm.map(|imm| widen(imm, next)));
            } else {
                self.poll()?;
            }
            if self.peer_ended && self.arrivals.is_empty() {
                return Ok(None);
            }
        }
    }

    /// Looks for a written message, and drives the stack if it is not there.
    fn poll_memory(&mut self, message: u64) -> Outcome<bool> {
        let slot = self.end.slot(message);
        let last = self.end.layout.incoming(LANE, slot) + self.end.size as usize - 1;
        let mut octet = [0];
        self.end.mr.copy_out(last, &mut octet)?;
        if octet[0] == Self::marker(message) {
            self.waiter.heard();
            return Ok(true);
        }
        self.poll()?;
        Ok(false)
    }

    /// Polls once.
    fn poll(&mut self) -> Outcome<()> {
        let count = self.end.cq.poll(&mut self.completions)?;
        if count == 0 {
            return self.waiter.idle(&self.end.cq);
        }
        self.waiter.heard();
        for index in 0..count {
            let wc = self.completions[index];
            self.complete(&wc)?;
        }
        Ok(())
    }

    fn complete(&mut self, wc: &Wc) -> Outcome<()> {
        self.end.check_completion(wc)?;
        let lane = &mut self.end.lanes[usize::from(LANE)];
        match Tag::unpack(wc.wr_id).1 {
            Tag::Message(posted) => lane.sending.done = lane.sending.done.max(posted),
            Tag::Note | Tag::End => {
                lane.notes_out -= 1;
                self.end.send_due_notes(LANE)?;
            }
            // Its buffer is still needed; whoever has looked at it posts it again.
            Tag::Receive(slot) => match self.end.received(wc, slot)? {
                Received::Message(arrival) => self.arrivals.push_back(arrival),
                Received::Note(note, _) => {
                    self.end.post_receive(LANE, slot)?;
                    self.note(note)?;
                }
            },
            Tag::NoteReceive(slot) => {
                let note = self.end.note_of(wc)?;
                self.end.post_note_receive(LANE, slot)?;
                if let Received::Note(note, _) = note {
                    self.note(note)?;
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, note: Note) -> Outcome<()> {
        match note {
            Note::End => self.peer_ended = true,
            Note::Ack => self.acked = true,
            Note::Alive => self.end.send_note(LANE, Note::AliveAck)?,
            Note::AliveAck => self.alive_pending = false,
            Note::Credit | Note::Probe => {}
        }
        Ok(())
    }

    /// Verifies the message that came last.
    fn verify(&mut self, message: u64) -> Outcome<()> {
        if let Some(arrival) = self.arrival.take() {
            self.end
                .verify_arrival(LANE, message, arrival, &mut self.findings)?;
            return self.end.post_receive(LANE, arrival.slot);
        }
        if self.end.workload.verb == Verb::Atomic {
            let value = self.end.old_value(LANE, message)?;
            self.findings.verified += 1;
            if value != message {
                self.findings
                    .blame(|| format!("operation {message}: the old value {value}"));
            }
            return Ok(());
        }
        if !self.end.workload.check {
            return Ok(());
        }
        let size = self.end.size;
        let slot = self.end.slot(message);
        // The last octet of a write is the one that was waited for.
        let (number, octets) = match self.end.workload.verb {
            Verb::Read => (slot as u64, size),
            _ => (message, size - 1),
        };
        self.end
            .verify(LANE, number, (slot, octets), &mut self.findings)
    }
}
