//! A connection as its application knows it: what it may ask for and what it may hear, and nothing
//! of messages, copies, losses and timers.
#![allow(unreachable_pub, reason = "a module of a test binary")]

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Active: has asked.
    Asked,
    /// Active: the peer accepts.
    Replied,
    /// Active: has confirmed, and is about to hear that it is connected.
    Confirmed,
    /// Passive: is asked.
    Requested,
    /// Passive: has accepted.
    Accepted,
    Connected,
    /// Has asked for the end.
    Leaving,
    Over,
    /// TimeWait is over too.
    Forgotten,
    /// A datagram service: has asked.
    Resolving,
    /// A datagram service: is asked.
    Questioned,
}

use Phase::*;

impl Phase {
    /// What follows when the application hears `event`; `None`: it may not hear that now.
    pub fn hears(self, event: &str) -> Option<Self> {
        Some(match (self, event) {
            (Asked, "Reply") => Replied,
            (Confirmed | Accepted, "Established") => Connected,
            (Asked | Replied | Requested | Accepted | Connected | Leaving, "Rejected") => Over,
            (Asked | Replied | Requested | Accepted, "Unreachable") => Over,
            (Accepted | Connected | Leaving, "Disconnected") => Over,
            (Over, "TimewaitExit") => Forgotten,
            (Resolving, "SidrReply" | "Unreachable" | "Rejected") => Over,
            (phase, "Qp") if !matches!(phase, Resolving | Questioned) => phase,
            _ => return None,
        })
    }

    /// What follows when the application asks for `command` with success; `None`: it is refused.
    pub fn does(self, command: &str) -> Option<Self> {
        Some(match (self, command) {
            (Requested, "accept") => Accepted,
            (Replied, "establish") => Confirmed,
            (Requested | Replied, "mra") => self,
            (Accepted | Confirmed | Connected, "disconnect") => Leaving,
            _ => return None,
        })
    }
}

/// Where the story of an identifier begins.
pub fn first(event: &str) -> Option<Phase> {
    match event {
        "Request" => Some(Requested),
        "SidrRequest" => Some(Questioned),
        _ => None,
    }
}
