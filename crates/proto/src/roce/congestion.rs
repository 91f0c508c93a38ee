//! How much may be in flight, how long an answer takes, and congestion notification.
//!
//! The window counts packets that are not acknowledged, and READ responses that were asked for.
//! It grows with every answer, first by one for each packet, later by one for each window. A loss
//! halves it, once for all packets that were on their way at that moment; a congestion
//! notification takes a quarter; silence leaves one packet. There is always room for one packet,
//! so that recovery goes on whatever the path does.

use core::time::Duration;

use softverbs_wire::num::Psn;

use crate::time::Time;

/// Packets that a new connection may have in flight.
const INITIAL: u32 = 32;

/// A queue pair sends no more than one congestion notification in this time.
pub(super) const CNP_INTERVAL: Duration = Duration::from_micros(50);

/// Least time between two answers to congestion notifications: they come for each marked packet
/// of the same queue.
const CUT_INTERVAL: Duration = Duration::from_micros(50);

/// The congestion window, in packets.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Window {
    size: u32,
    /// Packets acknowledged since the last growth by one.
    credit: u32,
    /// From this size on it grows slowly.
    threshold: u32,
    most: u32,
    /// Losses before this packet are the one that has been answered.
    recover: Option<Psn>,
    cut_at: Option<Time>,
}

impl Window {
    pub(super) fn new(most: u32) -> Self {
        let most = most.max(1);
        Self {
            size: INITIAL.min(most),
            credit: 0,
            threshold: most,
            most,
            recover: None,
            cut_at: None,
        }
    }

    pub(super) const fn size(&self) -> u32 {
        self.size
    }

    /// `packets` more were acknowledged; `una` is the oldest that is not.
    pub(super) fn on_progress(&mut self, packets: u32, una: Psn) {
        if self.recover.is_some_and(|recover| !una.is_before(recover)) {
            self.recover = None;
        }
        if self.size < self.threshold {
            self.size = (self.size + packets).min(self.threshold);
        } else {
            self.credit += packets;
            while self.credit >= self.size {
                self.credit -= self.size;
                self.size += 1;
            }
        }
        self.size = self.size.min(self.most);
    }

    /// A packet was lost. Whatever else is lost before `high` is part of it.
    pub(super) fn on_loss(&mut self, high: Psn) {
        if self.recover.is_none() {
            self.shrink(self.size / 2);
            self.recover = Some(high);
        }
    }

    /// Nothing came back for as long as the connection was given.
    pub(super) fn on_silence(&mut self, high: Psn) {
        let half = self.size / 2;
        self.shrink(1);
        self.threshold = self.threshold.max(half);
        self.recover = Some(high);
    }

    /// The network is congested.
    pub(super) fn on_notification(&mut self, now: Time) {
        if self.cut_at.is_none_or(|at| at + CUT_INTERVAL <= now) {
            self.cut_at = Some(now);
            self.shrink(self.size - self.size.div_ceil(4));
        }
    }

    fn shrink(&mut self, to: u32) {
        self.size = to.max(1);
        self.threshold = self.size.max(2);
        self.credit = 0;
    }
}

/// Round-trip times and what follows from them, in the manner of RFC 6298.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct RoundTrip {
    smoothed: Option<Duration>,
    variation: Duration,
}

impl RoundTrip {
    /// Before anything was measured.
    const INITIAL_WAIT: Duration = Duration::from_millis(20);
    /// Less would ask again while the peer is just not scheduled.
    const MIN_WAIT: Duration = Duration::from_millis(1);
    /// Seldom enough for a peer that is gone, often enough for one behind a path that loses much.
    const MAX_WAIT: Duration = Duration::from_millis(200);

    pub(super) const fn new() -> Self {
        Self {
            smoothed: None,
            variation: Duration::ZERO,
        }
    }

    pub(super) fn sample(&mut self, sample: Duration) {
        match &mut self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.variation = sample / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
                *smoothed = (*smoothed * 7 + sample) / 8;
            }
        }
    }

    /// How long an answer takes.
    pub(super) fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or(Self::INITIAL_WAIT)
    }

    /// How long to wait for an answer before asking for it, after `asked` times without one. Of
    /// the acknowledge timeout, if there is one, no more than a part passes in silence.
    pub(super) fn wait(&self, asked: u32, timeout: Option<Duration>) -> Duration {
        let wait = self.smoothed.map_or(Self::INITIAL_WAIT, |smoothed| {
            (smoothed + self.variation * 4).max(Self::MIN_WAIT)
        });
        let most = timeout.map_or(Self::MAX_WAIT, |timeout| {
            (timeout / 4).clamp(Self::MIN_WAIT, Self::MAX_WAIT)
        });
        wait.saturating_mul(1 << asked.min(8)).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psn(value: u32) -> Psn {
        Psn::new(value)
    }

    #[test]
    fn grows_fast_then_slowly_up_to_its_limit() {
        let mut window = Window::new(256);
        assert_eq!(window.size(), INITIAL);
        window.on_loss(psn(100));
        assert_eq!(window.size(), 16);
        window.on_progress(15, psn(100));
        assert_eq!(window.size(), 16, "slowly after a loss");
        window.on_progress(1, psn(101));
        assert_eq!(window.size(), 17);
        let mut window = Window::new(40);
        window.on_progress(4, psn(4));
        assert_eq!(window.size(), INITIAL + 4, "fast before it");
        window.on_progress(1000, psn(1004));
        window.on_progress(1000, psn(2004));
        assert_eq!(window.size(), 40);
        assert_eq!(Window::new(0).size(), 1);
    }

    #[test]
    fn one_loss_for_all_packets_that_were_on_their_way() {
        let mut window = Window::new(64);
        window.on_loss(psn(50));
        window.on_loss(psn(60));
        assert_eq!(window.size(), 16);
        window.on_progress(1, psn(49));
        window.on_loss(psn(70));
        assert_eq!(window.size(), 16);
        window.on_progress(1, psn(50));
        window.on_loss(psn(80));
        assert_eq!(window.size(), 8);
    }

    #[test]
    fn never_closes() {
        let mut window = Window::new(64);
        for round in 0..40 {
            window.on_loss(psn(round));
            window.on_progress(0, psn(round));
            window.on_notification(Time::new(Duration::from_secs(round.into())));
            window.on_silence(psn(round));
            window.on_progress(0, psn(round));
            assert_eq!(window.size(), 1);
        }
        window.on_progress(1, psn(100));
        assert!(window.size() >= 2, "grows again");
    }

    #[test]
    fn notifications_count_once_in_a_while() {
        let mut window = Window::new(64);
        window.on_notification(Time::ZERO);
        assert_eq!(window.size(), 24);
        window.on_notification(Time::ZERO + CUT_INTERVAL / 2);
        assert_eq!(window.size(), 24);
        window.on_notification(Time::ZERO + CUT_INTERVAL);
        assert_eq!(window.size(), 18);
    }

    #[test]
    fn waiting_follows_the_round_trip_within_limits() {
        let mut trip = RoundTrip::new();
        assert_eq!(trip.wait(0, None), RoundTrip::INITIAL_WAIT);
        trip.sample(Duration::from_micros(10));
        assert_eq!(trip.wait(0, None), RoundTrip::MIN_WAIT);
        assert_eq!(trip.wait(3, None), RoundTrip::MIN_WAIT * 8);
        assert_eq!(trip.wait(u32::MAX, None), RoundTrip::MAX_WAIT);
        let timeout = Duration::from_millis(20);
        assert_eq!(trip.wait(3, Some(timeout)), timeout / 4);
        assert_eq!(trip.wait(3, Some(timeout / 20)), RoundTrip::MIN_WAIT);
        for _ in 0..100 {
            trip.sample(Duration::from_millis(8));
        }
        let wait = trip.wait(0, None);
        assert!(wait > Duration::from_millis(7) && wait < Duration::from_millis(9));
    }
}
