//! Frames that are held back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use softverbs_proto::time::Time;

/// Frames that are held at most; beyond, they are lost as in a switch.
const MOST: usize = 16_384;
/// Octets that are held at most.
const MOST_OCTETS: usize = 64 << 20;
/// A frame that waits for later ones goes after this time if none come.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// A frame that waits.
struct Waiting<T> {
    frame: T,
    octets: usize,
    /// To or from where, and how many later frames it waits for.
    behind: Option<(IpAddr, u32)>,
}

/// Frames of one direction that wait, in the order in which they go.
pub(crate) struct Held<T> {
    waiting: BTreeMap<(Time, u64), Waiting<T>>,
    next: u64,
    octets: usize,
    /// Of those that wait for later ones.
    behind: usize,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            next: 0,
            octets: 0,
            behind: 0,
        }
    }
}

impl<T> Held<T> {
    /// Holds a frame until a moment. `false`: there is no room.
    pub(crate) fn until(&mut self, at: Time, octets: usize, frame: T) -> bool {
        self.insert(at, octets, None, frame)
    }

    /// Holds a frame until so many later ones to or from the same address have passed, but not
    /// for long.
    pub(crate) fn behind(
        &mut self,
        now: Time,
        octets: usize,
        (peer, count): (IpAddr, u32),
        frame: T,
    ) -> bool {
        let held = self.insert(now + LONGEST_WAIT, octets, Some((peer, count)), frame);
        self.behind += usize::from(held);
        held
    }

    fn insert(&mut self, at: Time, octets: usize, behind: Option<(IpAddr, u32)>, frame: T) -> bool {
        if self.waiting.len() >= MOST || self.octets + octets > MOST_OCTETS {
            return false;
        }
        self.octets += octets;
        self.next += 1;
        let waiting = Waiting {
            frame,
            octets,
            behind,
        };
        self.waiting.insert((at, self.next), waiting);
        true
    }

    /// Takes a frame whose time has come.
    pub(crate) fn due(&mut self, now: Time) -> Option<T> {
        let (&key, _) = self.waiting.first_key_value()?;
        if key.0 > now {
            return None;
        }
        self.take(key)
    }

    /// A frame has passed: takes those that waited for it.
    pub(crate) fn passed(&mut self, peer: IpAddr) -> Vec<T> {
        if self.behind == 0 {
            return Vec::new();
        }
        let mut overtaken = Vec::new();
        for (key, waiting) in &mut self.waiting {
            if let Some((of, count)) = &mut waiting.behind
                && *of == peer
            {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    overtaken.push(*key);
                }
            }
        }
        overtaken
            .into_iter()
            .filter_map(|key| self.take(key))
            .collect()
    }

    fn take(&mut self, key: (Time, u64)) -> Option<T> {
        let waiting = self.waiting.remove(&key)?;
        self.octets -= waiting.octets;
        self.behind -= usize::from(waiting.behind.is_some());
        Some(waiting.frame)
    }

    /// When the next one goes.
    pub(crate) fn next(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|(key, _)| key.0)
    }
}

impl<T> std::fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held({})", self.waiting.len())
    }
}
