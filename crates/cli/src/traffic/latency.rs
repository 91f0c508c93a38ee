//! The latency loop: one message at a time on one lane.
//!
//! Send: each end answers a message with one of its own. Write: the same, but both ends watch the
//! last octet of their memory; they poll the completion queue between two looks, because the
//! caller's thread is what moves the octets of this stack. Read: the initiator reads, the target
//! only waits for the End.

use std::time::{Duration, Instant};

use softverbs::Wc;

use super::bandwidth::Tally;
use super::endpoint::{Endpoint, Findings, Received};
use super::lane::Tag;
use super::note::Note;
use super::progress::Progress;
use super::waiter::Waiter;
use crate::failure::Outcome;
use crate::interrupt;
use crate::plan::{Amount, Verb};
use crate::stats::Latencies;

/// The only lane.
const LANE: u16 = 0;

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
    let divisor = if run.end.workload.verb == Verb::Read {
        1
    } else {
        2
    };
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
        run.await_answer(message)?;
        latencies.record(start.elapsed() / divisor);
        run.verify(message)?;
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
    let mut message = 0;
    while run.await_message(message)? {
        // Before the answer, after which the peer may write to the same buffer again.
        run.verify(message)?;
        run.send(message)?;
        message += 1;
        interrupt::check()?;
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
    /// Messages that have come (send).
    came: u64,
    /// The buffer of the last one.
    slot: usize,
    peer_ended: bool,
    acked: bool,
    alive_pending: bool,
    findings: Findings,
}

impl<'a> Run<'a> {
    fn new(end: &'a mut Endpoint, timeout: Duration) -> Self {
        Self {
            waiter: Waiter::new(end.channel.clone(), timeout),
            start: Instant::now(),
            completions: [Wc::default(); 16],
            came: 0,
            slot: 0,
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
        let marker = (self.end.workload.verb == Verb::Write).then(|| Self::marker(message));
        self.end.post_message(LANE, message, marker, true)?;
        self.end.lanes[usize::from(LANE)].sending.posted += 1;
        Ok(())
    }

    /// Waits for what ends the measured time of a message.
    fn await_answer(&mut self, message: u64) -> Outcome<()> {
        match self.end.workload.verb {
            Verb::Read => {
                while self.end.lanes[usize::from(LANE)].sending.done <= message {
                    self.poll()?;
                }
            }
            Verb::Send => {
                while self.came <= message {
                    self.poll()?;
                }
            }
            Verb::Write => while !self.poll_memory(message)? {},
        }
        Ok(())
    }

    /// Waits for a message to answer; `false` if the peer has ended instead.
    fn await_message(&mut self, message: u64) -> Outcome<bool> {
        loop {
            match self.end.workload.verb {
                Verb::Write => {
                    if self.poll_memory(message)? {
                        return Ok(true);
                    }
                }
                Verb::Send | Verb::Read => {
                    if self.came > message {
                        return Ok(true);
                    }
                    self.poll()?;
                }
            }
            if self.peer_ended {
                return Ok(false);
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
            self.slot = slot;
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
            Tag::Message(posted) => lane.sending.done = posted,
            Tag::Note | Tag::End => {
                lane.notes_out -= 1;
                self.end.send_due_notes(LANE)?;
            }
            Tag::Receive(slot) => match self.end.received(wc, slot)? {
                Received::Message(slot) => {
                    self.came += 1;
                    self.slot = slot as usize;
                    // Under --check the buffer is still needed; verification posts it again.
                    if !self.end.workload.check {
                        self.end.post_receive(LANE, slot)?;
                    }
                }
                Received::Note(note) => {
                    self.end.post_receive(LANE, slot)?;
                    match note {
                        Note::End => self.peer_ended = true,
                        Note::Ack => self.acked = true,
                        Note::Alive => self.end.send_note(LANE, Note::AliveAck)?,
                        Note::AliveAck => self.alive_pending = false,
                        Note::Credit => {}
                    }
                }
            },
        }
        Ok(())
    }

    /// Verifies the message that came last.
    fn verify(&mut self, message: u64) -> Outcome<()> {
        if !self.end.workload.check {
            return Ok(());
        }
        let size = self.end.size;
        match self.end.workload.verb {
            Verb::Send => {
                let slot = self.slot;
                self.end
                    .verify(LANE, message, (slot, size), &mut self.findings)?;
                self.end
                    .post_receive(LANE, u32::try_from(slot).unwrap_or(0))
            }
            Verb::Write => {
                let slot = self.end.slot(message);
                self.end
                    .verify(LANE, message, (slot, size - 1), &mut self.findings)
            }
            Verb::Read => {
                let slot = self.end.slot(message);
                self.end
                    .verify(LANE, slot as u64, (slot, size), &mut self.findings)
            }
        }
    }
}
