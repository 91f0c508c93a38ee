//! RC: timers, going back, retry limits.
//!
//! Three timers, of which the first two run while something is in flight:
//!
//! * The *acknowledge timeout* of the attributes. It starts with the first packet and again with
//!   every progress. When it runs out, a retry is used up; when there is none left, the request
//!   fails with `RETRY_EXC_ERR`. So a peer that is gone is noticed after (retries + 1) timeouts.
//! * The *probe*, after a few round-trip times. It costs no retry, and finds out what a lost tail
//!   of a burst or a lost answer would otherwise hide until the acknowledge timeout, which is seconds
//!   with the values that connection managers choose: the oldest packet goes out again, alone. If
//!   the answer covers everything, only an answer was lost; else all after it is sent again.
//! * The *RNR timer* of a peer without a receive. Nothing is sent until it has run out.

use softverbs_wire::ib::NakCode;
use softverbs_wire::num::{Psn, RnrTimer};

use super::nak;
use super::queue_pair::{QpFailure, QueuePair};
use crate::qp_state::QpState;
use crate::time::Time;
use crate::wr::WcStatus;

#[derive(Clone, Debug, Hash)]
pub(super) struct Recovery {
    /// When the acknowledge timeout runs out.
    retry_at: Option<Time>,
    /// Retries used up since the last progress.
    retries: u32,
    probe_at: Option<Time>,
    /// Probes since the last answer.
    probes: u32,
    /// A probe is the only packet to be in flight.
    probing: bool,
    /// Which packet went out again as the probe, and which was next before it.
    resume: Option<(Psn, Psn)>,
    /// When the peer may be asked again after a RNR NAK.
    rnr_at: Option<Time>,
    /// RNR NAKs since the last progress.
    rnr_naks: u32,
    /// A packet that was sent once, and when.
    timed: Option<(Psn, Time)>,
    /// Where and when an answer made us go back.
    went_back: Option<(Psn, Time)>,
}

impl Recovery {
    pub(super) const fn new() -> Self {
        Self {
            retry_at: None,
            retries: 0,
            probe_at: None,
            probes: 0,
            probing: false,
            resume: None,
            rnr_at: None,
            rnr_naks: 0,
            timed: None,
            went_back: None,
        }
    }

    /// Whether only one packet may be in flight.
    pub(super) const fn is_probing(&self) -> bool {
        self.probing
    }

    /// Whether the peer asked to be left alone.
    pub(super) const fn is_waiting(&self) -> bool {
        self.rnr_at.is_some()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        [self.retry_at, self.probe_at, self.rnr_at]
            .into_iter()
            .flatten()
            .min()
    }

    const fn stop_timers(&mut self) {
        self.retry_at = None;
        self.probe_at = None;
    }
}

fn has_come(deadline: Option<Time>, now: Time) -> bool {
    deadline.is_some_and(|deadline| deadline <= now)
}

impl QueuePair {
    /// `count` sequence numbers from `next` on were sent, in so many packets.
    pub(super) fn packets_sent(&mut self, now: Time, count: u32, packets: u32, asks: bool) {
        let requester = &mut self.requester;
        let recovery = &mut requester.recovery;
        let first = requester.next;
        requester.next = first.advance(count);
        if first.is_before(requester.high) {
            self.counters.retransmitted += u64::from(packets);
        } else if asks && recovery.timed.is_none() {
            recovery.timed = Some((first, now));
        }
        if requester.high.is_before(requester.next) {
            requester.high = requester.next;
        }
        self.start_timers(now, false);
    }

    /// Starts the timers that do not run, or all of them again.
    fn start_timers(&mut self, now: Time, again: bool) {
        let timeout = self.attributes.ack_timeout();
        let recovery = &mut self.requester.recovery;
        if again || recovery.retry_at.is_none() {
            recovery.retry_at = timeout.map(|timeout| now + timeout);
        }
        if again || recovery.probe_at.is_none() {
            recovery.probe_at = Some(now + self.round_trip.wait(recovery.probes, timeout));
        }
    }

    /// `una` has moved from `before` on.
    pub(super) fn progressed(&mut self, now: Time, before: Psn) {
        let requester = &mut self.requester;
        let recovery = &mut requester.recovery;
        let una = requester.una;
        let Ok(packets @ 1..) = u32::try_from(una.distance_from(before)) else {
            return;
        };
        if let Some((psn, sent)) = recovery.timed
            && psn.is_before(una)
        {
            recovery.timed = None;
            self.round_trip.sample(now - sent);
        }
        if requester.next.is_before(una) {
            requester.next = una;
            self.sq.go_back();
        }
        self.probe_answered();
        self.window.on_progress(packets, una);
        let recovery = &mut self.requester.recovery;
        recovery.retries = 0;
        recovery.rnr_naks = 0;
        recovery.probes = 0;
        recovery.rnr_at = None;
        recovery.stop_timers();
        if una != self.requester.next {
            self.start_timers(now, true);
        }
    }

    /// There was progress, maybe by the answer to a probe.
    fn probe_answered(&mut self) {
        let requester = &mut self.requester;
        let resume = requester.recovery.resume.take();
        if !core::mem::take(&mut requester.recovery.probing) || requester.una == requester.high {
            return;
        }
        match resume {
            // More than the probe has arrived: the packets behind it did, the first time, and the
            // answer was only late. Nothing has to go out a second time.
            Some((probe, next))
                if requester.una.distance_from(probe) > 1 && requester.una.is_before(next) =>
            {
                requester.next = next;
                self.sq.seek(next);
            }
            _ => self.window.on_loss(requester.high),
        }
    }

    /// The oldest packet goes out again, alone.
    fn probe(&mut self) {
        let requester = &mut self.requester;
        if !core::mem::replace(&mut requester.recovery.probing, true) {
            requester.recovery.resume = Some((requester.una, requester.next));
        }
        self.go_back();
    }

    /// Everything from the oldest packet on is sent again.
    fn go_back(&mut self) {
        self.requester.next = self.requester.una;
        self.requester.recovery.timed = None;
        self.requester.recovery.probe_at = None;
        self.sq.go_back();
    }

    /// An answer says that the oldest packet, or its answer, was lost.
    pub(super) fn lost(&mut self, now: Time) {
        let requester = &mut self.requester;
        let una = requester.una;
        // Nothing is on its way, so this is an old answer; the peer may even want to be left alone.
        if requester.next == una {
            return;
        }
        // What is on its way was sent after what this answers.
        if let Some((psn, at)) = requester.recovery.went_back
            && psn == una
            && now < at + self.round_trip.smoothed()
        {
            return;
        }
        requester.recovery.went_back = Some((una, now));
        requester.recovery.probing = false;
        self.counters.losses += 1;
        self.window.on_loss(self.requester.high);
        self.go_back();
    }

    /// The peer had no receive for the oldest packet.
    pub(super) fn receiver_not_ready(&mut self, now: Time, timer: RnrTimer) {
        let recovery = &mut self.requester.recovery;
        // One event: the network may repeat it. While we wait nothing is on its way.
        if self.requester.next == self.requester.una {
            return;
        }
        recovery.rnr_naks += 1;
        self.counters.rnr_naks_received += 1;
        if !self.attributes.bears_rnr(recovery.rnr_naks) {
            return self.sq.fail_oldest(WcStatus::RnrRetryExcErr);
        }
        recovery.rnr_at = Some(now + timer.duration());
        // It is there, whatever else it lacks.
        recovery.retries = 0;
        recovery.probes = 0;
        recovery.probing = false;
        recovery.stop_timers();
        self.go_back();
    }

    /// The peer refused the packet `psn` for good.
    pub(super) fn refused(&mut self, psn: Psn, code: NakCode) {
        if let Some(status) = nak::refused_status(code) {
            self.fail(QpFailure::SendQueue(status), Some((psn, status)));
        }
    }

    /// When the requester has to do something.
    pub(super) fn recovery_deadline(&self) -> Option<Time> {
        matches!(self.state, QpState::Rts | QpState::Sqd)
            .then(|| self.requester.recovery.deadline())
            .flatten()
    }

    pub(super) fn recovery_timeout(&mut self, now: Time) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        let recovery = &mut self.requester.recovery;
        if has_come(recovery.rnr_at, now) {
            recovery.rnr_at = None;
        }
        if has_come(recovery.retry_at, now) {
            if recovery.retries >= self.attributes.retry_cnt.into() {
                recovery.stop_timers();
                return self.sq.fail_oldest(WcStatus::RetryExcErr);
            }
            recovery.retries += 1;
            recovery.retry_at = self.attributes.ack_timeout().map(|timeout| now + timeout);
            self.counters.timeouts += 1;
            self.window.on_silence(self.requester.high);
            self.probe();
        } else if has_come(recovery.probe_at, now) {
            recovery.probes += 1;
            self.counters.probes += 1;
            // One may have been too early; two are a path that lets nothing through.
            if recovery.probes == 2 {
                self.window.on_silence(self.requester.high);
            }
            self.probe();
        }
    }
}
