//! The send gate: holds a send queue until its peer is known to listen.
//!
//! Requests posted while the gate is closed stay in the send queue, in their order; nothing else
//! changes about them. So an application may post as soon as it has a queue pair, whatever the
//! connection manager's hand-shake still has to do.

use crate::time::Time;

/// Who opened a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opener {
    /// Our side may send first: the active side, after the peer's reply.
    Role,
    /// The first valid frame of the peer: an FPDU (RFC 5044 §7.1.2 rule 4) or a packet on the
    /// queue pair ("communication established").
    FirstFrame,
    /// The connection manager's Ready To Use.
    ReadyToUse,
    /// The peer stayed silent for as long as it was given.
    Grace,
}

/// Whether requests may leave the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendGate {
    /// They wait for an opener.
    Closed {
        /// When waiting ends by itself; `None` if only the peer can end it.
        grace: Option<Time>,
    },
    /// They go out.
    Open {
        /// By whom it was opened first.
        by: Opener,
    },
}

impl SendGate {
    /// A gate that waits without a limit.
    pub const CLOSED: Self = Self::Closed { grace: None };

    /// Opens the gate. True if this call did: a gate opens once, by whoever is first.
    pub const fn open(&mut self, by: Opener) -> bool {
        let opens = !self.is_open();
        if opens {
            *self = Self::Open { by };
        }
        opens
    }

    /// A closed gate opens by itself at `deadline`; an open one stays as it is.
    pub const fn open_at(&mut self, deadline: Time) {
        if let Self::Closed { grace } = self {
            *grace = Some(deadline);
        }
    }

    /// Whether requests may leave.
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. })
    }

    /// When the gate opens by itself.
    pub const fn deadline(&self) -> Option<Time> {
        match self {
            Self::Closed { grace } => *grace,
            Self::Open { .. } => None,
        }
    }

    /// Opens the gate if its time has come. True if this call did.
    pub fn on_timeout(&mut self, now: Time) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now) && self.open(Opener::Grace)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::new(Duration::from_millis(millis))
    }

    #[test]
    fn opens_once_and_remembers_by_whom() {
        let mut gate = SendGate::CLOSED;
        assert!(!gate.is_open());
        assert!(gate.open(Opener::ReadyToUse));
        assert!(!gate.open(Opener::FirstFrame));
        assert_eq!(
            gate,
            SendGate::Open {
                by: Opener::ReadyToUse
            }
        );
        gate.open_at(at(1));
        assert_eq!(gate.deadline(), None);
    }

    #[test]
    fn grace_opens_it_not_before_its_time() {
        let mut gate = SendGate::CLOSED;
        assert!(!gate.on_timeout(at(1_000_000)), "no limit, no opening");
        gate.open_at(at(20));
        assert_eq!(gate.deadline(), Some(at(20)));
        assert!(!gate.on_timeout(at(19)));
        assert!(!gate.is_open());
        assert!(gate.on_timeout(at(20)));
        assert_eq!(gate, SendGate::Open { by: Opener::Grace });
        assert!(!gate.on_timeout(at(21)), "already open");
    }

    #[test]
    fn a_frame_before_the_grace_ends_it() {
        let mut gate = SendGate::CLOSED;
        gate.open_at(at(20));
        assert!(gate.open(Opener::FirstFrame));
        assert_eq!(gate.deadline(), None);
        assert!(!gate.on_timeout(at(30)));
        assert_eq!(
            gate,
            SendGate::Open {
                by: Opener::FirstFrame
            }
        );
    }
}
