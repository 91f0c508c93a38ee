//! What the engine serves: sources of readiness and time-outs, by token.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use nix::sys::epoll::EpollFlags;
use smallvec::SmallVec;
use softverbs_proto::time::Time;

use super::Engine;
use super::sys::Ready;

/// Something with a socket or a timer.
pub(crate) trait Source: Send + Sync {
    /// The socket is ready.
    fn ready(&self, engine: &Engine, readiness: EpollFlags);

    /// The timer set with [`Engine::set_timer`] has fired.
    fn timeout(&self, engine: &Engine, now: Time);

    /// The engine's thread asks, while application threads poll: has nobody served this source
    /// since it asked last?
    fn neglected(&self) -> bool {
        true
    }

    /// After [`Engine::add_hot`]: epoll is to watch this source again.
    fn cool(&self, _engine: &Engine) {}

    /// The process ends.
    fn farewell(&self) {}
}

/// Names a source; never reused for another one, so that a late event finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token(u64);

impl Token {
    /// A token that no source gets.
    pub(crate) const fn reserved(n: u32) -> Self {
        Self(((u32::MAX as u64) << 32) | n as u64)
    }

    pub(crate) const fn as_u64(self) -> u64 {
        self.0
    }

    const fn new(generation: u32, index: u32) -> Self {
        Self(((generation as u64) << 32) | index as u64)
    }

    #[allow(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    const fn index(self) -> u32 {
        self.0 as u32
    }

    const fn place(self) -> usize {
        self.index() as usize
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:#x})", self.0)
    }
}

#[derive(Default)]
struct Slot {
    generation: u32,
    source: Option<Arc<dyn Source>>,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

/// A source and what it is ready for.
pub(crate) type Found = (Arc<dyn Source>, EpollFlags);

/// The table of all sources.
#[derive(Default)]
pub(crate) struct Sources(RwLock<Slots>);

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = self.0.read().unwrap_or_else(PoisonError::into_inner);
        write!(f, "Sources({})", slots.slots.len() - slots.free.len())
    }
}

impl Sources {
    /// Adds a source.
    pub(crate) fn add(&self, source: Arc<dyn Source>) -> Token {
        let mut slots = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let index = slots.free.pop().unwrap_or_else(|| {
            slots.slots.push(Slot::default());
            u32::try_from(slots.slots.len() - 1).expect("fewer than 2^32 sources")
        });
        let slot = &mut slots.slots[index as usize];
        slot.source = Some(source);
        Token::new(slot.generation, index)
    }

    /// Removes a source; harmless if it is not there any more.
    pub(crate) fn remove(&self, token: Token) {
        let mut slots = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let index = token.index();
        let Some(slot) = slots.slots.get_mut(token.place()) else {
            return;
        };
        if Token::new(slot.generation, index) != token || slot.source.is_none() {
            return;
        }
        let gone = slot.source.take();
        // The last generation is kept for reserved tokens.
        slot.generation = if slot.generation >= u32::MAX - 1 {
            0
        } else {
            slot.generation + 1
        };
        slots.free.push(index);
        drop(slots);
        // Its destructor may come back here.
        drop(gone);
    }

    /// The source of a token.
    pub(crate) fn find(&self, token: Token) -> Option<Arc<dyn Source>> {
        let slots = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.slots.get(token.place())?;
        if Token::new(slot.generation, token.index()) != token {
            return None;
        }
        slot.source.clone()
    }

    /// Every source.
    pub(crate) fn all(&self) -> Vec<Arc<dyn Source>> {
        let slots = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let sources = slots.slots.iter().filter_map(|slot| slot.source.clone());
        sources.collect()
    }

    /// The sources of a batch of events, under one lock.
    pub(crate) fn find_all(&self, ready: &[Ready]) -> SmallVec<[Found; 8]> {
        let slots = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ready
            .iter()
            .filter_map(|&(token, readiness)| {
                let token = Token(token);
                let slot = slots.slots.get(token.place())?;
                if Token::new(slot.generation, token.index()) != token {
                    return None;
                }
                let readiness = EpollFlags::from_bits_truncate(readiness.cast_signed());
                Some((slot.source.clone()?, readiness))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Source for Nothing {
        fn ready(&self, _: &Engine, _: EpollFlags) {}
        fn timeout(&self, _: &Engine, _: Time) {}
    }

    #[test]
    fn a_token_is_never_reused() {
        let sources = Sources::default();
        let first = sources.add(Arc::new(Nothing));
        assert!(sources.find(first).is_some());
        sources.remove(first);
        sources.remove(first);
        let second = sources.add(Arc::new(Nothing));
        assert_eq!(first.index(), second.index());
        assert_ne!(first, second);
        assert!(sources.find(first).is_none());
        assert_eq!(
            sources
                .find_all(&[(first.as_u64(), 1), (second.as_u64(), 2)])
                .len(),
            1
        );
    }
}
