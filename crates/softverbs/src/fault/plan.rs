//! What is to be disturbed: rules, and how they are written.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::kind::{Carrier, Direction, Kind, Kinds};
use crate::device::Transport;

/// Rules, the seed of their dice and where to log; see [`parse`](Self::parse) for how they are
/// written. `Display` writes them so that they can be read again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In their order: the first rule that selects a frame decides about it.
    pub rules: Vec<Rule>,
    /// Seed of everything that is left to chance. The same seed and the same frames make the same
    /// faults.
    pub seed: u64,
    /// Where each fault is logged, one line each.
    pub log: Option<LogTo>,
}

impl Plan {
    /// The first rule that never acts over a transport, since it is about frames of the other one.
    pub fn idle_over(&self, transport: Transport) -> Option<&Rule> {
        let other = match transport {
            Transport::Iwarp => Carrier::Datagram,
            Transport::Roce => Carrier::Stream,
        };
        let is_idle = |rule: &&Rule| rule.kinds.iter().all(|kind| kind.carrier() == other);
        self.rules.iter().find(is_idle)
    }
}

/// Where faults are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTo {
    /// The standard error stream.
    Stderr,
    /// A file, to which is appended.
    File(PathBuf),
}

/// What happens to which frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Frames of this direction only.
    pub direction: Option<Direction>,
    /// Frames of any of these kinds.
    pub kinds: Kinds,
    /// Frames to or from this address only.
    pub peer: Option<IpAddr>,
    /// Which of them.
    pub which: Which,
    /// What happens to them.
    pub action: Action,
}

/// Which of the frames that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// From this number to that one, both included; the first frame is number 1.
    Numbers(u64, Option<u64>),
    /// Every so manieth.
    Every(u64),
    /// By chance: parts in a million.
    Chance(u32),
    /// Those that pass in this time, counted from the moment at which the plan was installed.
    Time(Duration, Option<Duration>),
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is counted and logged.
    Log,
    /// It is lost (datagrams).
    Drop,
    /// It comes so many times more (datagrams).
    Duplicate(u32),
    /// It is held back for a time between these two. Of a stream, all behind it is held back too.
    Delay(Duration, Duration),
    /// So many later frames to or from the same address overtake it (datagrams).
    Reorder(u32),
    /// One bit is flipped: one by chance, or the lowest bit of this octet.
    Corrupt(Option<u32>),
    /// Such frames are spaced out to so many octets in a second.
    Rate(u64),
    /// From this frame on nothing passes for a time (for ever): datagrams are lost, streams stand
    /// still.
    Partition(Option<Duration>),
    /// The TCP connection is reset (streams).
    Reset,
    /// It is written in pieces of so many octets, each a system call and, mostly, a segment of
    /// its own (streams).
    Split(u32),
}

impl Action {
    /// Why it cannot happen to frames that this carries.
    pub(super) const fn unfit(self, carrier: Carrier) -> Option<&'static str> {
        match (self, carrier) {
            (Self::Drop | Self::Duplicate(_) | Self::Reorder(_), Carrier::Stream) => {
                Some("TCP delivers every octet once and in order: delay, partition or reset it")
            }
            (Self::Drop | Self::Duplicate(_) | Self::Reorder(_), Carrier::Both) => {
                Some("only RoCE packets can be lost, doubled or overtaken: write `packet`")
            }
            (Self::Reset | Self::Split(_), Carrier::Datagram) => {
                Some("only a TCP connection can be reset or written in pieces")
            }
            (Self::Reset | Self::Split(_), Carrier::Both) => {
                Some("only a TCP connection can be reset or written in pieces: write `frame`")
            }
            _ => None,
        }
    }

    /// Its name in a rule.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Drop => "drop",
            Self::Duplicate(_) => "dup",
            Self::Delay(..) => "delay",
            Self::Reorder(_) => "reorder",
            Self::Corrupt(_) => "corrupt",
            Self::Rate(_) => "rate",
            Self::Partition(_) => "partition",
            Self::Reset => "reset",
            Self::Split(_) => "split",
        }
    }
}

impl Rule {
    /// Every frame of a kind.
    pub const fn every(kind: Kind, action: Action) -> Self {
        Self {
            direction: None,
            kinds: Kinds::of(&[kind]),
            peer: None,
            which: Which::All,
            action,
        }
    }
}

/// A time with the largest unit that leaves no fraction.
pub(super) struct Span(pub(super) Duration);

/// The units of time, largest first, in nanoseconds.
pub(super) const UNITS: [(&str, u128); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let (name, unit) = UNITS
            .into_iter()
            .find(|(_, unit)| nanos.is_multiple_of(*unit))
            .unwrap_or(UNITS[3]);
        write!(f, "{}{name}", nanos / unit)
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::All => f.write_str("*"),
            Self::Numbers(1, Some(1)) => f.write_str("first"),
            Self::Numbers(from, Some(to)) if from == to => write!(f, "{from}"),
            Self::Numbers(from, Some(to)) => write!(f, "{from}-{to}"),
            Self::Numbers(from, None) => write!(f, "{from}-"),
            Self::Every(n) => write!(f, "/{n}"),
            Self::Chance(parts) => {
                let (whole, rest) = (parts / 10_000, parts % 10_000);
                write!(f, "{whole}")?;
                if rest > 0 {
                    let digits = format!("{rest:04}");
                    write!(f, ".{}", digits.trim_end_matches('0'))?;
                }
                f.write_str("%")
            }
            Self::Time(from, Some(to)) => write!(f, "{}-{}", Span(from), Span(to)),
            Self::Time(from, None) => write!(f, "{}-", Span(from)),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match *self {
            Self::Log
            | Self::Drop
            | Self::Duplicate(1)
            | Self::Reorder(1)
            | Self::Corrupt(None)
            | Self::Partition(None)
            | Self::Reset => Ok(()),
            Self::Duplicate(n) | Self::Reorder(n) | Self::Corrupt(Some(n)) | Self::Split(n) => {
                write!(f, ":{n}")
            }
            Self::Delay(least, most) if least == most => write!(f, ":{}", Span(least)),
            Self::Delay(least, most) => write!(f, ":{}-{}", Span(least), Span(most)),
            Self::Rate(octets) => {
                let (unit, name) = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "K")]
                    .into_iter()
                    .find(|(unit, _)| octets.is_multiple_of(*unit))
                    .unwrap_or((1, ""));
                write!(f, ":{}{name}", octets / unit)
            }
            Self::Partition(Some(time)) => write!(f, ":{}", Span(time)),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(direction) = self.direction {
            write!(f, "{direction}:")?;
        }
        write!(f, "{}", self.kinds)?;
        match self.peer {
            Some(IpAddr::V4(peer)) => write!(f, "@{peer}")?,
            Some(IpAddr::V6(peer)) => write!(f, "@[{peer}]")?,
            None => {}
        }
        if self.which != Which::All {
            write!(f, ":{}", self.which)?;
        }
        write!(f, "={}", self.action)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for rule in &self.rules {
            write!(f, "{separator}{rule}")?;
            separator = ",";
        }
        if self.seed != 0 {
            write!(f, "{separator}seed={}", self.seed)?;
            separator = ",";
        }
        match &self.log {
            Some(LogTo::Stderr) => write!(f, "{separator}log=stderr"),
            Some(LogTo::File(path)) => write!(f, "{separator}log={}", path.display()),
            None => Ok(()),
        }
    }
}
