//! How far an exploration goes.

use std::fmt;

/// What the network and time may do in one run. Everything else is explored without a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Datagrams: packets that are lost.
    pub drops: u8,
    /// Datagrams: packets that arrive once more.
    pub duplicates: u8,
    /// Datagrams: arrivals that overtake an earlier packet of the same direction; `None`: any
    /// number.
    pub reorders: Option<u8>,
    /// Streams: connections that the network resets.
    pub resets: u8,
    /// Streams: reads that get less than all that is on its way; `None`: any number.
    pub splits: Option<u8>,
    /// Timers that fire although something else could still happen. When nothing else can, the next
    /// one fires in any case.
    pub timers: u8,
}

impl Bounds {
    /// None at all.
    pub const NONE: Self = Self {
        drops: 0,
        duplicates: 0,
        reorders: Some(0),
        resets: 0,
        splits: Some(0),
        timers: 0,
    };

    /// Those that mean something between datagrams, in words.
    pub fn of_datagrams(&self) -> String {
        format!(
            "{} drops, {} duplicates, {}, {} early timers",
            self.drops,
            self.duplicates,
            Count("reorders", "any reordering", self.reorders),
            self.timers
        )
    }

    /// Those that mean something on streams, in words.
    pub fn of_streams(&self) -> String {
        format!(
            "{} resets, {}, {} early timers",
            self.resets,
            Count("splits", "any splits", self.splits),
            self.timers
        )
    }
}

/// So many, or any number of them.
struct Count(&'static str, &'static str, Option<u8>);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(some, any, count) = self;
        match count {
            Some(count) => write!(f, "{count} {some}"),
            None => f.write_str(any),
        }
    }
}
