//! A queue that a file descriptor announces, and the count of events that wait for their
//! acknowledgement. Completion channels, CM event channels and asynchronous events share them.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::counter::Counter;
use crate::error::{Error, Result};

#[allow(unsafe_code, reason = "a system call")]
mod counter;

/// A queue whose file descriptor is readable if and only if the queue is not empty.
///
/// The descriptor counts announcements, one for each entry. There are two ways to an entry. Rust
/// pops it, and takes an announcement along. C reads the descriptor, which sleeps, may be
/// interrupted, refuses and is cancelled as the kernel's descriptors are, and so takes an
/// announcement; then it [redeems](Self::redeem) that for the entry. Who comes too late with one,
/// since the entry was popped or removed meanwhile, reads again. Hence level-triggered waiting
/// never misses an entry, and wakes for an empty queue only those who lost the race for the last
/// one. Since every push writes, an edge-triggered epoll sees an edge for each of them; as usual
/// with those, a reader then takes entries until there are none.
///
/// Any number of threads may wait. A push wakes all that poll, and one that reads; those that come
/// too late for the entry wait on.
pub(crate) struct EventQueue<T> {
    announced: Counter,
    inner: Mutex<Inner<T>>,
}

/// Announcements that are there, and those that were read and not redeemed yet, are together as
/// many as there are entries and `stale` ones.
struct Inner<T> {
    entries: VecDeque<T>,
    /// Announcements that were read whose entries have gone another way.
    stale: usize,
}

impl<T> fmt::Debug for EventQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventQueue")
            .field("fd", &self.announced.fd())
            .finish_non_exhaustive()
    }
}

impl<T> EventQueue<T> {
    /// An empty queue.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            announced: Counter::new()?,
            inner: Mutex::new(Inner {
                entries: VecDeque::new(),
                stale: 0,
            }),
        })
    }

    /// What to poll. Who reads it [redeems](Self::redeem) the announcement.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.announced.fd()
    }

    /// Appends an entry.
    pub(crate) fn push(&self, entry: T) {
        let mut inner = self.lock();
        inner.entries.push_back(entry);
        self.announced.add();
    }

    /// Takes the oldest entry, if there is one.
    #[cfg(test)]
    pub(crate) fn try_pop(&self) -> Option<T> {
        self.try_pop_noting(&mut |_| ())
    }

    /// Takes the oldest entry, if there is one; `note` sees it before anybody can find that it is
    /// not queued any more.
    fn try_pop_noting(&self, note: &mut dyn FnMut(&T)) -> Option<T> {
        let mut inner = self.lock();
        let entry = inner.entries.pop_front()?;
        note(&entry);
        self.withdraw(&mut inner);
        Some(entry)
    }

    /// Takes the oldest entry for an announcement that was read from the descriptor. `None`: it was
    /// popped or removed meanwhile. `note` as for [`pop_noting`](Self::pop_noting).
    pub(crate) fn redeem(&self, note: impl FnOnce(&T)) -> Option<T> {
        let mut inner = self.lock();
        let entry = inner.entries.pop_front().inspect(note);
        if inner.stale > 0 {
            // This announcement may be one of those, and the entry has its own still.
            inner.stale -= 1;
            if entry.is_some() {
                self.withdraw(&mut inner);
            }
        }
        entry
    }

    /// Takes back the announcement of an entry that is taken out.
    fn withdraw(&self, inner: &mut Inner<T>) {
        if !self.announced.take() {
            inner.stale += 1;
        }
    }

    /// Takes the oldest entry. Waits for one up to `timeout`, without one for ever; signals do
    /// not end the wait.
    pub(crate) fn pop(&self, timeout: Option<Duration>) -> Result<Option<T>> {
        self.pop_noting(timeout, |_| ())
    }

    /// The same; `note` sees the entry before anybody can find that it is not queued any more.
    pub(crate) fn pop_noting(
        &self,
        timeout: Option<Duration>,
        mut note: impl FnMut(&T),
    ) -> Result<Option<T>> {
        // A deadline that the clock cannot express is as good as none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let forever = deadline.is_none();
        loop {
            if let Some(entry) = self.try_pop_noting(&mut note) {
                return Ok(Some(entry));
            }
            let rest = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if !forever && rest.is_none_or(|rest| rest.is_zero()) {
                return Ok(None);
            }
            match self.wait(rest) {
                Ok(_) => (),
                Err(error) if error.errno() == libc::EINTR => (),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until there is an entry, or for `timeout` at most. `true`: there was one. A signal
    /// ends the wait with `EINTR`.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let mut fds = [PollFd::new(self.announced.fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, poll_timeout(timeout)).map_err(Error::from_call("poll"))?;
        Ok(ready > 0)
    }

    /// Takes all entries that `unwanted` picks, in their order; those that stay keep theirs.
    pub(crate) fn remove_if(&self, unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        self.remove_first(usize::MAX, unwanted)
    }

    /// Takes the first `most` entries that `unwanted` picks, and looks no further: a queue may hold
    /// one entry for each of thousands of objects, which are destroyed one after the other.
    pub(crate) fn remove_first(&self, most: usize, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        if most == 0 {
            return removed;
        }
        let mut inner = self.lock();
        let mut at = 0;
        while removed.len() < most && at < inner.entries.len() {
            if unwanted(&inner.entries[at]) {
                self.withdraw(&mut inner);
                removed.extend(inner.entries.remove(at));
            } else {
                at += 1;
            }
        }
        removed
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rounded up to what `poll` can express, so that a wait is never too short, and capped.
fn poll_timeout(timeout: Option<Duration>) -> PollTimeout {
    match timeout {
        None => PollTimeout::NONE,
        Some(timeout) => {
            let millis = timeout.as_nanos().div_ceil(1_000_000);
            i32::try_from(millis)
                .ok()
                .and_then(|millis| PollTimeout::try_from(millis).ok())
                .unwrap_or(PollTimeout::MAX)
        }
    }
}

/// Events of one object that its owner must not outlive: those that are queued and those that
/// the application has fetched and not yet acknowledged.
///
/// An event counts from the moment it is queued, or from the one in which it is taken out
/// ([`EventQueue::pop_noting`]), so there is no instant at which it is neither in the queue nor
/// counted. Whoever destroys the object takes its events out of the queue
/// ([`EventQueue::remove_if`]), acknowledges those that count, and waits for the rest.
#[derive(Debug, Default)]
pub(crate) struct EventCounter {
    outstanding: Mutex<u64>,
    acked: Condvar,
}

impl EventCounter {
    /// Nothing is outstanding.
    pub(crate) const fn new() -> Self {
        Self {
            outstanding: Mutex::new(0),
            acked: Condvar::new(),
        }
    }

    /// One more event.
    pub(crate) fn raise(&self) {
        *self.lock() += 1;
    }

    /// `n` events are acknowledged. More than are outstanding count as all of them; `false` then.
    pub(crate) fn ack(&self, n: u64) -> bool {
        let mut outstanding = self.lock();
        let known = n <= *outstanding;
        *outstanding = outstanding.saturating_sub(n);
        if *outstanding == 0 {
            self.acked.notify_all();
        }
        known
    }

    /// How many events are not acknowledged yet.
    pub(crate) fn outstanding(&self) -> u64 {
        *self.lock()
    }

    /// Waits until every event is acknowledged.
    pub(crate) fn wait_acked(&self) {
        let guard = self
            .acked
            .wait_while(self.lock(), |outstanding| *outstanding > 0);
        drop(guard.unwrap_or_else(PoisonError::into_inner));
    }

    /// As [`wait_acked`](Self::wait_acked), for `timeout` at most. `true`: all are acknowledged.
    #[cfg(test)]
    pub(crate) fn wait_acked_timeout(&self, timeout: Duration) -> bool {
        let waited = self
            .acked
            .wait_timeout_while(self.lock(), timeout, |outstanding| *outstanding > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.outstanding
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
