//! What the explorer asks of a model: a state, the steps that are possible in it, and what they
//! lead to.

use std::fmt;
use std::hash::Hash;

/// One of the two ends. The names are those of the connection managers' roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The end that connects: the IB CM's active side, MPA's initiator.
    Active,
    /// The end that listens: the IB CM's passive side, MPA's responder.
    Passive,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Active, Self::Passive];

    /// The other one.
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Active => Self::Passive,
            Self::Passive => Self::Active,
        }
    }

    /// Its place in arrays.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Active => "active",
            Self::Passive => "passive",
        })
    }
}

/// What must hold on every path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Property {
    /// Each side hears ESTABLISHED at most once, and at most one terminal event, after which nothing
    /// but the end of TimeWait follows; a failure that nothing explains is none.
    Events,
    /// Nothing is sent before its peer is known to listen, and no message says that a queue pair
    /// is ready that is not.
    Early,
    /// A side that has received data learns that it is connected, and its gate opens.
    Told,
    /// The receiver gets each message once, in the order of posting.
    Order,
    /// Each request completes exactly once, in order, and with success only if the peer has it.
    Completion,
    /// A command that the application may give is not refused.
    Command,
    /// When nothing can happen any more, both sides are connected and everything is delivered, or
    /// both have heard of the end.
    DeadEnd,
    /// A connection that is over leaves nothing behind.
    Leak,
}

impl Property {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Events,
        Self::Early,
        Self::Told,
        Self::Order,
        Self::Completion,
        Self::Command,
        Self::DeadEnd,
        Self::Leak,
    ];
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Events => "events",
            Self::Early => "early",
            Self::Told => "told",
            Self::Order => "order",
            Self::Completion => "completion",
            Self::Command => "command",
            Self::DeadEnd => "dead-end",
            Self::Leak => "leak",
        })
    }
}

/// A property that does not hold, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Violation {
    /// Which.
    pub property: Property,
    /// On which side, if on one.
    pub side: Option<Side>,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.property)?;
        if let Some(side) = self.side {
            write!(f, "{side} side: ")?;
        }
        f.write_str(&self.what)
    }
}

/// Something that is seen in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A packet leaves its sender.
    Sent {
        /// By whom.
        from: Side,
        /// What.
        label: String,
    },
    /// A packet arrives.
    Arrived {
        /// Where.
        to: Side,
        /// What.
        label: String,
        /// Another copy of it stays on its way.
        again: bool,
    },
    /// The network loses a packet.
    Lost {
        /// On the way to whom.
        to: Side,
        /// What.
        label: String,
    },
    /// Something on one side: a command of the application, an event, a completion, a timer.
    Local {
        /// Where.
        side: Side,
        /// What.
        text: String,
    },
}

/// Notes what is seen, if somebody wants to know.
#[derive(Debug, Default)]
pub struct Log(Option<Vec<Sight>>);

impl Log {
    /// Nobody wants to know.
    pub const fn off() -> Self {
        Self(None)
    }

    /// Somebody does.
    pub const fn on() -> Self {
        Self(Some(Vec::new()))
    }

    /// Notes what `sight` makes.
    pub fn note(&mut self, sight: impl FnOnce() -> Sight) {
        if let Some(sights) = &mut self.0 {
            sights.push(sight());
        }
    }

    /// Notes something on one side.
    pub fn local(&mut self, side: Side, text: impl FnOnce() -> String) {
        self.note(|| Sight::Local { side, text: text() });
    }

    /// What was noted since the last call.
    pub fn take(&mut self) -> Vec<Sight> {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// A state of the two ends and of what is between them.
pub trait World: Clone + Hash + fmt::Debug + Send + Sync + 'static {
    /// What can happen.
    type Step: Clone + PartialEq + fmt::Debug + Send + Sync + 'static;

    /// Appends everything that can happen now. Nothing can after a violation.
    fn steps(&self, out: &mut Vec<Self::Step>);

    /// What happens next if nothing goes wrong any more: packets arrive in order, applications do
    /// what they have to and no more, time passes when nothing else can. `None` at rest.
    fn next_step(&self) -> Option<Self::Step>;

    /// Lets one of them happen.
    fn take(&mut self, step: &Self::Step, log: &mut Log);

    /// The step in words that tell it from the others that are possible now.
    fn describe(&self, step: &Self::Step) -> String;

    /// What is wrong, if anything.
    fn violation(&self) -> Option<&Violation>;

    /// What the two ends have come to, in words.
    fn summary(&self) -> String;
}
