//! The bandwidth loop where messages may be lost: every message carries its number, notes travel
//! on a reliable queue pair beside, and nothing waits without end for a message.
//!
//! A Credit says up to which number the receiver is done with messages; the sender may be a window
//! ahead of that. A sender that has used its window up and hears nothing sends a Probe; when the
//! lane has been quiet for a while after that, the receiver gives up what is missing, and answers
//! with a Credit. After an End it waits a little longer, and its Ack says how long: that time does
//! not count.

use std::time::Duration;

use super::endpoint::{Arrival, Endpoint, Findings};
use super::note::{Note, credit_batch};
use super::seen::{narrow, widen};
use crate::failure::Outcome;

/// A window that is used up for so long is asked about.
const STALL: Duration = Duration::from_millis(10);

/// What has not come so long after a Probe is lost.
const SETTLE: Duration = Duration::from_millis(10);

/// What has not come so long after an End is lost.
const QUIET: Duration = Duration::from_millis(100);

/// The part of a run that knows of losses.
#[derive(Debug, Default)]
pub(crate) struct Lossy {
    /// How long ago the peer got its last message, when it gave the others up: the least of all
    /// lanes.
    waited: Option<Duration>,
}

impl Lossy {
    /// How long the peer has waited for messages that did not come.
    pub(crate) fn waited(&self) -> Duration {
        self.waited.unwrap_or_default()
    }

    /// The peer has answered an End.
    pub(crate) fn acked(&mut self, micros: u32) {
        let waited = Duration::from_micros(micros.into());
        self.waited = Some(self.waited.map_or(waited, |before| before.min(waited)));
    }

    /// The peer is done with messages up to a number.
    pub(crate) fn credit(&self, end: &mut Endpoint, index: u16, number: u32, now: Duration) {
        let window = u64::from(end.workload.window);
        let sending = &mut end.lanes[usize::from(index)].sending;
        let number = widen(number, sending.posted);
        sending.limit = sending.limit.max(number + window);
        sending.moved = now;
        if sending.probe.is_some_and(|probe| number >= probe) {
            sending.probe = None;
        }
    }

    /// The peer asks what has become of its messages up to a number.
    pub(crate) fn probe(
        &self,
        end: &mut Endpoint,
        index: u16,
        number: u32,
        now: Duration,
    ) -> Outcome<()> {
        let receiving = &mut end.lanes[usize::from(index)].receiving;
        let number = widen(number, receiving.next);
        if receiving.next < number {
            receiving.probed = Some(number);
            receiving.last = now;
            return Ok(());
        }
        self.give_credit(end, index)
    }

    /// The peer has sent all of its messages.
    pub(crate) fn end(&self, end: &mut Endpoint, index: u16, now: Duration) -> Outcome<()> {
        end.lanes[usize::from(index)].receiving.ended = true;
        if end.lanes[usize::from(index)].receiving.messages == 0 {
            // Nothing to reckon from.
            end.lanes[usize::from(index)].receiving.last = now;
        }
        self.answer_end(end, index, now)
    }

    /// A message has come.
    pub(crate) fn message(
        &self,
        end: &mut Endpoint,
        index: u16,
        arrival: Arrival,
        now: Duration,
        findings: &mut Findings,
    ) -> Outcome<()> {
        let window = end.workload.window;
        let receiving = &mut end.lanes[usize::from(index)].receiving;
        let message = widen(arrival.imm.unwrap_or_default(), receiving.next);
        receiving.last = now;
        // The network may deliver a datagram twice.
        if receiving.seen.add(message) {
            receiving.messages += 1;
            receiving.next = receiving.next.max(message + 1);
            end.verify_arrival(index, message, arrival, findings)?;
        }
        end.post_receive(index, arrival.slot)?;
        let receiving = &mut end.lanes[usize::from(index)].receiving;
        if receiving.next - receiving.credited >= credit_batch(window).into() {
            self.give_credit(end, index)?;
        }
        if end.lanes[usize::from(index)].receiving.ended {
            self.answer_end(end, index, now)?;
        }
        Ok(())
    }

    /// Nothing has come by `now`: asks about what is missing, and gives up what does not come.
    pub(crate) fn idle(&self, end: &mut Endpoint, now: Duration) -> Outcome<()> {
        for index in 0..end.workload.qps {
            let lane = &mut end.lanes[usize::from(index)];
            let sending = &mut lane.sending;
            let stalled = !sending.ended && sending.posted == sending.limit;
            if stalled && sending.probe.is_none() && now >= sending.moved + STALL {
                sending.probe = Some(sending.posted);
                sending.moved = now;
                let number = narrow(sending.posted);
                end.send_number(index, Note::Probe, number)?;
            }
            let receiving = &mut end.lanes[usize::from(index)].receiving;
            if let Some(probed) = receiving.probed
                && now >= receiving.last + SETTLE
            {
                receiving.probed = None;
                receiving.next = receiving.next.max(probed);
                self.give_credit(end, index)?;
            }
            if end.lanes[usize::from(index)].receiving.ended {
                self.answer_end(end, index, now)?;
            }
        }
        Ok(())
    }

    fn give_credit(&self, end: &mut Endpoint, index: u16) -> Outcome<()> {
        let receiving = &mut end.lanes[usize::from(index)].receiving;
        receiving.credited = receiving.next;
        let number = narrow(receiving.next);
        end.send_number(index, Note::Credit, number)
    }

    /// Answers an End, if all messages are there or have had their time.
    fn answer_end(&self, end: &mut Endpoint, index: u16, now: Duration) -> Outcome<()> {
        let sent = end.peer_count(index)?;
        let receiving = &mut end.lanes[usize::from(index)].receiving;
        let waited = now.saturating_sub(receiving.last);
        let missing = receiving.messages < sent;
        if receiving.acked || (missing && waited < QUIET) {
            return Ok(());
        }
        receiving.acked = true;
        let micros = if missing { waited.as_micros() } else { 0 };
        let micros = u32::try_from(micros).unwrap_or(u32::MAX);
        end.send_number(index, Note::Ack, micros)
    }
}
