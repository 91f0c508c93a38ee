//! The bandwidth loop: one for all verbs, both ends, one or both directions.
//!
//! An end that sends keeps up to `tx_depth` messages under way on every lane, for Sends also no
//! more than the peer has receives for, and closes with an End. An end that receives returns
//! credits and answers the End with an Ack, by which time everything has been placed: the time
//! that counts runs until the last Ack (for Reads and atomic operations: until the last one has
//! completed). What is different where messages may be lost is in `lossy.rs`.

use std::time::{Duration, Instant};

use softverbs::Wc;

use super::endpoint::{Arrival, Endpoint, Findings, Received};
use super::lane::Tag;
use super::lossy::Lossy;
use super::note::{Note, credit_batch};
use super::progress::Progress;
use super::seen::Seen;
use super::waiter::Waiter;
use crate::failure::Outcome;
use crate::plan::{Amount, AtomicOp, Verb};
use crate::stats::RateMeter;
use crate::{interrupt, stats};

/// What one end saw of one round.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Messages that this end sent.
    pub(crate) messages: u64,
    /// The time that took.
    pub(crate) elapsed: Duration,
    /// Highest rate in octets a second.
    pub(crate) peak: f64,
    /// Messages that came, if they show.
    pub(crate) received: u64,
    /// What verification found.
    pub(crate) findings: Findings,
}

/// Runs one round; both ends have called [`Endpoint::start_round`].
pub(crate) fn run(
    end: &mut Endpoint,
    timeout: Duration,
    progress: &mut Progress,
) -> Outcome<Tally> {
    Run::new(end, timeout).run(progress)
}

struct Run<'a> {
    end: &'a mut Endpoint,
    waiter: Waiter,
    start: Instant,
    /// This end sends.
    sends: bool,
    /// This end receives.
    receives: bool,
    /// Messages to send on each lane.
    quota: u64,
    /// When to stop, if that is what ends the round.
    run_for: Option<Duration>,
    stopped: bool,
    /// One completion for so many messages.
    signal_every: u32,
    /// Lanes that may have something to post.
    ready: Vec<u16>,
    /// Messages posted and completed, over all lanes.
    posted: u64,
    done: u64,
    /// Lanes that have sent their End, that have got an Ack, that have got an End.
    ended: u16,
    acked: u16,
    peer_ended: u16,
    finished: Option<Duration>,
    alive: Option<Alive>,
    /// What is needed where messages may be lost.
    lossy: Option<Lossy>,
    /// The old values that fetch-and-adds have brought back.
    old_values: Seen,
    meter: RateMeter,
    findings: Findings,
}

/// Signs of life for a target that sees no completions.
struct Alive {
    every: Duration,
    next: Duration,
    /// The last one has not been answered: no more receives than that are set aside.
    pending: bool,
}

impl<'a> Run<'a> {
    fn new(end: &'a mut Endpoint, timeout: Duration) -> Self {
        let workload = end.workload;
        let sends = end.initiator || workload.bidirectional;
        let receives = !end.initiator || workload.bidirectional;
        let (quota, run_for) = match workload.amount {
            Amount::Iterations(count) => (count, None),
            Amount::Duration(time) => (u64::MAX, Some(time)),
        };
        let alive = end
            .alive_every(timeout)
            .filter(|_| !receives)
            .map(|every| Alive {
                every,
                next: every,
                pending: false,
            });
        let lossy = (!workload.is_reliable()).then(Lossy::default);
        let mut waiter = Waiter::new(end.channel.clone(), workload.patience(timeout));
        if lossy.is_some() {
            waiter.look_often();
        }
        Self {
            waiter,
            start: Instant::now(),
            sends,
            receives,
            quota,
            run_for,
            stopped: false,
            signal_every: workload.signal_every(end.size),
            ready: if sends {
                (0..workload.qps).collect()
            } else {
                Vec::new()
            },
            posted: 0,
            done: 0,
            ended: 0,
            acked: 0,
            peer_ended: 0,
            finished: None,
            alive,
            lossy,
            old_values: Seen::default(),
            meter: RateMeter::new(),
            findings: Findings::default(),
            end,
        }
    }

    fn run(mut self, progress: &mut Progress) -> Outcome<Tally> {
        let mut completions = [Wc::default(); 32];
        let mut ready = Vec::new();
        loop {
            let now = self.start.elapsed();
            self.look_at_the_clock(now)?;
            std::mem::swap(&mut ready, &mut self.ready);
            for lane in ready.drain(..) {
                self.push(lane)?;
            }
            let count = self.end.cq.poll(&mut completions)?;
            if count == 0 {
                if self.is_complete() {
                    break;
                }
                if let Some(lossy) = &mut self.lossy {
                    lossy.idle(self.end, now)?;
                }
                self.waiter.idle(&self.end.cq)?;
                continue;
            }
            self.waiter.heard();
            for wc in &completions[..count] {
                self.complete(wc)?;
            }
            let now = self.start.elapsed();
            self.meter.record(now, self.done);
            if self.finished.is_none() && self.has_sent_all() {
                let waited = self.lossy.as_ref().map(Lossy::waited);
                self.finished = Some(now.saturating_sub(waited.unwrap_or_default()));
            }
            progress.update(self.done, now);
            interrupt::check()?;
        }
        self.verify_memory()?;
        let received = self.end.lanes.iter().map(|lane| lane.receiving.messages);
        let received = received.sum();
        let elapsed = self.finished.unwrap_or_default();
        Ok(Tally {
            messages: self.done,
            elapsed,
            peak: self.meter.peak() * f64::from(self.end.size),
            received,
            findings: self.findings,
        })
    }

    /// Ends a timed round, and shows the target that this end lives.
    fn look_at_the_clock(&mut self, now: Duration) -> Outcome<()> {
        if !self.stopped && self.sends && self.run_for.is_some_and(|limit| now >= limit) {
            self.stopped = true;
            self.ready = (0..self.end.workload.qps).collect();
        }
        if let Some(alive) = &mut self.alive
            && now >= alive.next
            && !alive.pending
            && !self.end.lanes[0].sending.ended
        {
            alive.next = now + alive.every;
            alive.pending = true;
            self.end.send_note(0, Note::Alive)?;
        }
        Ok(())
    }

    /// Posts what may be posted on a lane.
    fn push(&mut self, index: u16) -> Outcome<()> {
        let depth = u64::from(self.end.workload.tx_depth);
        let reliable = self.lossy.is_none();
        let counted = self.end.workload.takes_receives() && reliable;
        loop {
            let sending = &self.end.lanes[usize::from(index)].sending;
            if sending.ended {
                return Ok(());
            }
            if self.stopped || sending.posted == self.quota {
                // The End goes another way than the messages, and is not to overtake them.
                if !reliable && sending.done < sending.posted {
                    return Ok(());
                }
                self.end.lanes[usize::from(index)].sending.ended = true;
                self.ended += 1;
                return self.end.send_note(index, Note::End);
            }
            let allowed = if reliable {
                !counted || sending.credits > 0
            } else {
                sending.posted < sending.limit
            };
            if sending.posted - sending.done >= depth || !allowed {
                return Ok(());
            }
            let message = sending.posted;
            let signaled = sending.unsignaled + 1 >= self.signal_every || message + 1 == self.quota;
            self.end.post_message(index, message, None, signaled)?;
            let sending = &mut self.end.lanes[usize::from(index)].sending;
            sending.posted += 1;
            sending.unsignaled = if signaled { 0 } else { sending.unsignaled + 1 };
            if counted {
                sending.credits -= 1;
            }
            self.posted += 1;
        }
    }

    /// Takes a completion.
    fn complete(&mut self, wc: &Wc) -> Outcome<()> {
        self.end.check_completion(wc)?;
        let (index, tag) = Tag::unpack(wc.wr_id);
        match tag {
            Tag::Message(posted) => self.sent(index, posted),
            Tag::End => {
                let posted = self.end.lanes[usize::from(index)].sending.posted;
                self.sent(index, posted)?;
                self.note_sent(index)
            }
            Tag::Note => self.note_sent(index),
            Tag::Receive(slot) => match self.end.received(wc, slot)? {
                Received::Message(arrival) => self.message(index, arrival),
                Received::Note(note, number) => {
                    // Before anything that lets the peer send more.
                    self.end.post_receive(index, slot)?;
                    self.note(index, note, number)
                }
            },
            Tag::NoteReceive(slot) => {
                let note = self.end.note_of(wc)?;
                self.end.post_note_receive(index, slot)?;
                match note {
                    Received::Note(note, number) => self.note(index, note, number),
                    Received::Message(_) => Ok(()),
                }
            }
        }
    }

    /// All messages of a lane up to number `posted` have completed.
    fn sent(&mut self, index: u16, posted: u64) -> Outcome<()> {
        let before = self.end.lanes[usize::from(index)].sending.done;
        if self.end.workload.check && self.end.workload.verb == Verb::Read {
            for message in before..posted {
                // Every buffer at the target holds the pattern of its own number.
                let slot = self.end.slot(message);
                self.end.verify(
                    index,
                    slot as u64,
                    (slot, self.end.size),
                    &mut self.findings,
                )?;
            }
        }
        if self.end.workload.verb == Verb::Atomic {
            for message in before..posted {
                self.verify_old_value(index, message)?;
            }
        }
        self.end.lanes[usize::from(index)].sending.done = posted;
        self.done += posted - before;
        self.ready.push(index);
        Ok(())
    }

    fn note_sent(&mut self, index: u16) -> Outcome<()> {
        self.end.lanes[usize::from(index)].notes_out -= 1;
        self.end.send_due_notes(index)
    }

    /// Looks at what an atomic operation has brought back.
    fn verify_old_value(&mut self, index: u16, message: u64) -> Outcome<()> {
        let value = self.end.old_value(index, message)?;
        self.findings.verified += 1;
        let right = match self.end.workload.atomic {
            AtomicOp::FetchAdd => self.old_values.add(value),
            AtomicOp::CompareSwap => value == message,
        };
        if !right {
            self.findings.blame(|| {
                format!("queue pair {index}, operation {message}: the old value {value}")
            });
        }
        Ok(())
    }

    /// A message has arrived.
    fn message(&mut self, index: u16, arrival: Arrival) -> Outcome<()> {
        if let Some(lossy) = &mut self.lossy {
            let now = self.start.elapsed();
            return lossy.message(self.end, index, arrival, now, &mut self.findings);
        }
        let receiving = &mut self.end.lanes[usize::from(index)].receiving;
        let message = receiving.messages;
        receiving.messages += 1;
        receiving.uncredited += 1;
        let batch = credit_batch(self.end.workload.window);
        let give = receiving.uncredited >= batch;
        if give {
            receiving.uncredited -= batch;
        }
        self.end
            .verify_arrival(index, message, arrival, &mut self.findings)?;
        self.end.post_receive(index, arrival.slot)?;
        if give {
            self.end.send_note(index, Note::Credit)?;
        }
        Ok(())
    }

    /// A note has arrived.
    fn note(&mut self, index: u16, note: Note, number: u32) -> Outcome<()> {
        let batch = credit_batch(self.end.workload.window);
        let now = self.start.elapsed();
        let lane = &mut self.end.lanes[usize::from(index)];
        match (note, &mut self.lossy) {
            (Note::Credit, None) => {
                lane.sending.credits += batch;
                self.ready.push(index);
            }
            (Note::Credit, Some(lossy)) => {
                lossy.credit(self.end, index, number, now);
                self.ready.push(index);
            }
            (Note::Probe, Some(lossy)) => lossy.probe(self.end, index, number, now)?,
            (Note::Probe, None) => {}
            (Note::End, None) => {
                lane.receiving.ended = true;
                self.peer_ended += 1;
                self.count_received(index)?;
                self.end.send_note(index, Note::Ack)?;
            }
            (Note::End, Some(lossy)) => {
                self.peer_ended += 1;
                lossy.end(self.end, index, now)?;
            }
            (Note::Ack, lossy) => {
                lane.sending.acked = true;
                self.acked += 1;
                if let Some(lossy) = lossy {
                    lossy.acked(number);
                }
            }
            (Note::Alive, _) => self.end.send_note(index, Note::AliveAck)?,
            (Note::AliveAck, _) => {
                if let Some(alive) = &mut self.alive {
                    alive.pending = false;
                }
            }
        }
        Ok(())
    }

    /// Compares the number of messages that came with the number that the peer says it sent.
    fn count_received(&mut self, index: u16) -> Outcome<()> {
        if !self.end.workload.takes_receives() {
            return Ok(());
        }
        let came = self.end.lanes[usize::from(index)].receiving.messages;
        let sent = self.end.peer_count(index)?;
        if came != sent {
            self.findings
                .blame(|| format!("queue pair {index}: {came} of {sent} messages came"));
        }
        Ok(())
    }

    /// Everything that this end sends is where it should be.
    fn has_sent_all(&self) -> bool {
        let lanes = self.end.workload.qps;
        self.sends
            && self.ended == lanes
            && self.done == self.posted
            && (self.acked == lanes || self.end.workload.is_answered())
    }

    /// Nothing is left to do for this end.
    fn is_complete(&self) -> bool {
        let lanes = self.end.workload.qps;
        (!self.sends || self.acked == lanes)
            && (!self.receives || self.peer_ended == lanes)
            && self.lossy.as_ref().is_none_or(|_| self.has_answered_all())
            && self.end.lanes.iter().all(super::lane::Lane::is_quiet)
    }

    /// Every End of the peer has had its Ack.
    fn has_answered_all(&self) -> bool {
        !self.receives || self.end.lanes.iter().all(|lane| lane.receiving.acked)
    }

    /// Verifies what the peer has done to the memory of this end: the words of atomic operations,
    /// and the last message in every buffer, if its messages did not show. All of them lie there
    /// since its Ends have come.
    fn verify_memory(&mut self) -> Outcome<()> {
        let workload = self.end.workload;
        if workload.verb == Verb::Atomic {
            if self.sends && self.old_values.beyond_gaps() > 0 {
                self.findings
                    .blame(|| "old values are missing among those that came".into());
            }
            if self.receives {
                self.end.verify_words(&mut self.findings)?;
            }
            return Ok(());
        }
        let unseen = workload.verb == Verb::Write && !workload.takes_receives();
        if !(workload.check && unseen && self.receives) {
            return Ok(());
        }
        for index in 0..workload.qps {
            let count = self.end.peer_count(index)?;
            for message in count.saturating_sub(workload.slots.into())..count {
                let slot = self.end.slot(message);
                let octets = self.end.size;
                self.end
                    .verify(index, message, (slot, octets), &mut self.findings)?;
            }
        }
        Ok(())
    }
}

impl Tally {
    /// The peak as a whole number, for the peer.
    pub(crate) fn peak_octets(&self) -> u64 {
        stats::to_u64(self.peak)
    }
}
