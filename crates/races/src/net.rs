//! Packets on their way: each direction in the order of sending, unless the order means nothing.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::bounds::Bounds;
use crate::shared::hash_of;
use crate::world::Side;

/// A packet that somebody sent.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// What it is, for people.
    pub(crate) label: String,
    pub(crate) octets: Vec<u8>,
    hash: u64,
}

impl Packet {
    pub(crate) fn new(label: String, octets: Vec<u8>) -> Self {
        let hash = hash_of(&octets);
        Self {
            label,
            octets,
            hash,
        }
    }
}

impl Hash for Packet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// What the network does to one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It arrives.
    Deliver,
    /// It arrives, and a copy stays on its way.
    Duplicate,
    /// It is lost.
    Drop,
}

/// The network, and what it may still do.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Network {
    /// On their way to each side.
    flying: [Vec<Arc<Packet>>; 2],
    pub(crate) left: Bounds,
}

impl Network {
    pub(crate) const fn new(bounds: Bounds) -> Self {
        Self {
            flying: [Vec::new(), Vec::new()],
            left: bounds,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flying.iter().all(Vec::is_empty)
    }

    pub(crate) fn send(&mut self, to: Side, packet: Packet) {
        let flying = &mut self.flying[to.index()];
        flying.push(Arc::new(packet));
        if self.left.reorders.is_none() {
            // Where any packet may be next, what was sent first makes no difference.
            flying.sort_by_key(|packet| packet.hash);
        }
    }

    /// The packets that may arrive next at `to`.
    fn candidates(&self, to: Side) -> impl Iterator<Item = usize> {
        let flying = &self.flying[to.index()];
        let first_only = self.left.reorders == Some(0);
        (0..flying.len()).filter(move |at| {
            let twin = flying[..*at].iter().any(|earlier| {
                earlier.hash == flying[*at].hash && earlier.octets == flying[*at].octets
            });
            !twin && (*at == 0 || !first_only)
        })
    }

    /// Everything that it can do now.
    pub(crate) fn fates(&self, mut each: impl FnMut(Side, u8, Fate)) {
        for to in Side::BOTH {
            for at in self.candidates(to) {
                let at = u8::try_from(at).unwrap_or(u8::MAX);
                each(to, at, Fate::Deliver);
                if self.left.duplicates > 0 {
                    each(to, at, Fate::Duplicate);
                }
                if self.left.drops > 0 {
                    each(to, at, Fate::Drop);
                }
            }
        }
    }

    /// Lets it do that; the packet, whether it arrives or not.
    pub(crate) fn take(&mut self, to: Side, at: u8, fate: Fate) -> Option<Arc<Packet>> {
        let at = usize::from(at);
        let flying = &mut self.flying[to.index()];
        let packet = flying.get(at)?.clone();
        if let (Some(reorders), true) = (&mut self.left.reorders, at > 0 && fate != Fate::Drop) {
            *reorders = reorders.saturating_sub(1);
        }
        match fate {
            Fate::Duplicate => self.left.duplicates = self.left.duplicates.saturating_sub(1),
            Fate::Drop => {
                self.left.drops = self.left.drops.saturating_sub(1);
                flying.remove(at);
            }
            Fate::Deliver => {
                flying.remove(at);
            }
        }
        Some(packet)
    }

    /// A packet in words that tell it from the others on their way to the same side.
    pub(crate) fn name(&self, to: Side, at: u8) -> String {
        let flying = &self.flying[to.index()];
        let Some(packet) = flying.get(usize::from(at)) else {
            return "nothing".to_owned();
        };
        let same = flying[..usize::from(at)]
            .iter()
            .filter(|earlier| earlier.label == packet.label)
            .count();
        match same {
            0 => packet.label.clone(),
            _ => format!("{} ({})", packet.label, same + 1),
        }
    }
}
