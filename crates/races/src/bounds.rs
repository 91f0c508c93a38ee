//! How far an exploration goes.

use std::fmt;

/// What the network and time may do in one run. Everything else is explored without a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Packets that are lost.
    pub drops: u8,
    /// Packets that arrive once more.
    pub duplicates: u8,
    /// Arrivals that overtake an earlier packet of the same direction; `None`: any number.
    pub reorders: Option<u8>,
    /// Timers that fire although something else could still happen. When nothing else can, the next
    /// one fires in any case.
    pub timers: u8,
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            drops,
            duplicates,
            reorders,
            timers,
        } = self;
        write!(f, "{drops} drops, {duplicates} duplicates, ")?;
        match reorders {
            Some(reorders) => write!(f, "{reorders} reorders")?,
            None => f.write_str("any reordering")?,
        }
        write!(f, ", {timers} early timers")
    }
}
