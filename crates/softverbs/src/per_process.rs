//! What a process has one of, and its children anew: threads and the sockets that they serve do not
//! survive a `fork`, though what points to them does.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::Result;

/// One value for each process, made at the first use.
pub(crate) struct PerProcess<T: 'static> {
    /// Of the process that has used it last: this one, or an ancestor that did before the `fork`.
    /// Slots are never freed.
    last: AtomicPtr<Slot<T>>,
}

/// What belongs to one process, its lock included: a `fork` may come while an ancestor's is held, by
/// a thread that the child does not have.
struct Slot<T: 'static> {
    process: u32,
    one_makes: Mutex<()>,
    value: OnceLock<&'static T>,
}

impl<T> PerProcess<T> {
    /// None made yet.
    pub(crate) const fn new() -> Self {
        Self {
            last: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The slot of a process, if it has one.
    fn slot(&self, process: u32) -> Option<&'static Slot<T>> {
        // SAFETY: null, or a slot that `claim` has leaked, of which there are shared references only.
        let last = unsafe { self.last.load(Ordering::Acquire).as_ref() };
        last.filter(|slot| slot.process == process)
    }

    /// The slot of this process.
    fn claim(&self, process: u32) -> &'static Slot<T> {
        loop {
            let before = self.last.load(Ordering::Acquire);
            if let Some(slot) = self.slot(process) {
                return slot;
            }
            let new = Box::into_raw(Box::new(Slot {
                process,
                one_makes: Mutex::new(()),
                value: OnceLock::new(),
            }));
            let won = self
                .last
                .compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire);
            if won.is_err() {
                // Another thread was faster.
                // SAFETY: made above, and nobody else knows it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    /// That of a process.
    fn get(&self, process: u32) -> Option<&'static T> {
        self.slot(process)?.value.get().copied()
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
        let slot = self.claim(process);
        let _one_makes = slot
            .one_makes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = slot.value.get() {
            return Ok(value);
        }
        let value = make()?;
        Ok(slot.value.get_or_init(|| value))
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

    #[test]
    fn nobody_waits_for_a_thread_of_an_ancestor() {
        static ONE: PerProcess<u32> = PerProcess::new();
        // As it is in a child that was forked while a thread of the parent made the value.
        let _lock = ONE.claim(0).one_makes.lock().unwrap();
        assert_eq!(*ONE.get_or_try(|| Ok(&1)).unwrap(), 1);
        assert_eq!(ONE.existing(), Some(&1));
    }

    #[test]
    fn many_threads_make_one() {
        static ONE: PerProcess<usize> = PerProcess::new();
        static NUMBERS: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
        std::thread::scope(|scope| {
            let threads: Vec<_> = NUMBERS
                .iter()
                .map(|number| scope.spawn(move || ONE.get_or_try(|| Ok(number)).unwrap()))
                .collect();
            let first = ONE.get_or_try(|| Ok(&NUMBERS[0])).unwrap();
            for thread in threads {
                assert!(ptr::eq(thread.join().unwrap(), first));
            }
        });
    }
}
