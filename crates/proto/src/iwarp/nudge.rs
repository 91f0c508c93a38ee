//! An initiator that hears nothing reminds its peer.
//!
//! Linux' siw, as a responder, sends the MPA reply first and only then begins to listen for what
//! arrives on the socket. An FPDU that comes in between is acknowledged by TCP, and lies there
//! until another segment comes. A program that then waits for an answer waits for ever. So while
//! nothing has come since the reply, a zero-length RDMA Write is sent now and then: it is legal at
//! any time, touches no memory and is seen by no application (RFC 5040 §5.2).

use core::time::Duration;

use crate::time::Time;

/// After how long the first reminder leaves; each further one takes four times as long.
const FIRST: Duration = Duration::from_millis(10);
const FACTOR: u32 = 4;
/// 10, 50, 210 and 850 ms after the first FPDU.
const REMINDERS: u8 = 4;

/// When to remind the peer.
#[derive(Clone, Debug, Hash)]
pub(super) enum Nudge {
    /// Nothing was sent yet that could have been overlooked.
    Idle,
    /// Something was sent, nothing was heard.
    Waiting {
        at: Time,
        interval: Duration,
        left: u8,
        /// A reminder is to be sent at the next message boundary.
        due: bool,
    },
    /// The peer was heard, or reminding does not help.
    Over,
}

impl Nudge {
    /// The first FPDU has been yielded.
    pub(super) fn begin(&mut self, now: Time) {
        if matches!(self, Self::Idle) {
            *self = Self::Waiting {
                at: now + FIRST,
                interval: FIRST,
                left: REMINDERS,
                due: false,
            };
        }
    }

    /// The peer was heard, or the stream ends.
    pub(super) const fn stop(&mut self) {
        *self = Self::Over;
    }

    pub(super) const fn is_due(&self) -> bool {
        matches!(self, Self::Waiting { due: true, .. })
    }

    /// The reminder has been yielded.
    pub(super) const fn sent(&mut self) {
        match self {
            Self::Waiting { left: 0, .. } => *self = Self::Over,
            Self::Waiting { due, .. } => *due = false,
            Self::Idle | Self::Over => {}
        }
    }

    pub(super) const fn deadline(&self) -> Option<Time> {
        match self {
            Self::Waiting { at, due: false, .. } => Some(*at),
            _ => None,
        }
    }

    pub(super) fn on_timeout(&mut self, now: Time) {
        if let Self::Waiting {
            at,
            interval,
            left,
            due: due @ false,
        } = self
            && *at <= now
        {
            *due = true;
            *left -= 1;
            *interval *= FACTOR;
            *at = now + *interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reminds_four_times_and_not_after_it_was_heard() {
        let at = |ms| Time::new(Duration::from_millis(ms));
        let mut nudge = Nudge::Idle;
        nudge.on_timeout(at(1000));
        assert_eq!(nudge.deadline(), None, "nothing was sent");
        nudge.begin(at(0));
        let mut reminders = Vec::new();
        while let Some(deadline) = nudge.deadline() {
            nudge.on_timeout(deadline);
            assert!(nudge.is_due());
            reminders.push(deadline);
            nudge.sent();
        }
        assert_eq!(reminders, [at(10), at(50), at(210), at(850)]);
        let mut nudge = Nudge::Idle;
        nudge.begin(at(0));
        nudge.stop();
        nudge.begin(at(5));
        assert_eq!((nudge.deadline(), nudge.is_due()), (None, false));
    }
}
