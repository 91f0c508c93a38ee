//! What a process has one of, and its children anew: threads and the sockets that they serve do not
//! survive a `fork`, though what points to them does.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::Result;

/// How many processes, each a child of the one before, may use the library.
const GENERATIONS: usize = 8;

/// One value for each process, made at the first use.
pub(crate) struct PerProcess<T: 'static> {
    /// A process finds those of its ancestors filled in.
    slots: [OnceLock<(u32, &'static T)>; GENERATIONS],
    one_makes: Mutex<()>,
}

impl<T> PerProcess<T> {
    /// None made yet.
    pub(crate) const fn new() -> Self {
        Self {
            slots: [const { OnceLock::new() }; GENERATIONS],
            one_makes: Mutex::new(()),
        }
    }

    /// That of this process.
    fn get(&self, process: u32) -> Option<&'static T> {
        let mut filled = self.slots.iter().map_while(OnceLock::get);
        filled.find_map(|(owner, value)| (*owner == process).then_some(*value))
    }

    /// That of this process, if it is made.
    pub(crate) fn existing(&self) -> Option<&'static T> {
        self.get(std::process::id())
    }

    /// That of this process, which `make` makes if there is none.
    pub(crate) fn get_or_try(
        &self,
        make: impl FnOnce() -> Result<&'static T>,
    ) -> Result<&'static T> {
        let process = std::process::id();
        if let Some(value) = self.get(process) {
            return Ok(value);
        }
        let _one_makes = self
            .one_makes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = self.get(process) {
            return Ok(value);
        }
        let value = make()?;
        // Beyond the last slot each use makes another one, which works all the same.
        let free = self.slots.iter().find(|slot| slot.get().is_none());
        if let Some(slot) = free {
            let _ = slot.set((process, value));
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn one_for_each_process() {
        static ONE: PerProcess<u32> = PerProcess::new();
        let refuse = || Err(Error::invalid("test", "on purpose"));
        assert!(ONE.get_or_try(refuse).is_err());
        assert_eq!(*ONE.get_or_try(|| Ok(&1)).unwrap(), 1);
        assert_eq!(*ONE.get_or_try(|| Ok(&2)).unwrap(), 1);
        assert_eq!(ONE.get(std::process::id()), Some(&1));
        assert_eq!(ONE.get(0), None, "another process has not made one");
    }
}
