//! Waiting: threads that sleep for a socket, and those who wake them.
//!
//! A thread that has to wait for a socket enters itself in the socket's list, arms the completion
//! queue, looks once more, and then sleeps on the socket's descriptor and on one of its own.
//! Whoever takes an event from the socket's channels has disarmed them for all that sleep, and
//! wakes the others in the list; so does who changes what others may wait for. A thread that was
//! woken starts over, so waking one too many is no harm, and none is missed.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};

/// How long an operation that has to wait tries again before it sleeps.
pub(super) const POLLING_TIME: Duration = Duration::from_micros(20);

/// What wakes one thread.
#[derive(Debug)]
pub(super) struct Waker(EventFd);

impl Waker {
    /// That of the calling thread.
    pub(super) fn of_thread() -> Result<Arc<Self>> {
        thread_local! {
            static MINE: std::cell::OnceCell<Arc<Waker>> = const { std::cell::OnceCell::new() };
        }
        MINE.with(|mine| {
            if let Some(waker) = mine.get() {
                return Ok(waker.clone());
            }
            let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
                .map_err(Error::from_call("eventfd"))?;
            Ok(mine.get_or_init(|| Arc::new(Self(fd))).clone())
        })
    }

    fn wake(&self) {
        // A counter that is full wakes, too.
        let _ = self.0.write(1);
    }

    /// Forgets that it was woken.
    pub(super) fn clear(&self) {
        let _ = self.0.read();
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The threads that wait for a socket.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<Vec<Arc<Waker>>>);

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Waker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, waker: &Arc<Waker>) {
        self.lock().push(waker.clone());
    }

    pub(super) fn leave(&self, waker: &Arc<Waker>) {
        let mut waiting = self.lock();
        if let Some(at) = waiting.iter().position(|other| Arc::ptr_eq(other, waker)) {
            waiting.swap_remove(at);
        }
    }

    /// Wakes all of them, the calling thread included if it has entered itself.
    pub(super) fn wake(&self) {
        self.lock().iter().for_each(|waker| waker.wake());
    }
}

/// Looks until there is a result: for a while again and again, then asleep between looks. `None` if
/// there was none by the `deadline`, or, `nonblocking`, at once. EINTR if a signal came.
///
/// `look` does the work of the socket and tries; with `true` it also sees to it that what may change
/// the result from then on makes `fd` readable, or wakes the `waiters`.
pub(super) fn until<T>(
    waiters: &Waiters,
    fd: BorrowedFd<'_>,
    nonblocking: bool,
    deadline: Option<Instant>,
    mut look: impl FnMut(bool) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let start = Instant::now();
    loop {
        if let Some(result) = look(false)? {
            return Ok(Some(result));
        }
        if nonblocking {
            return Ok(None);
        }
        if start.elapsed() >= POLLING_TIME {
            break;
        }
    }
    let waker = Waker::of_thread()?;
    loop {
        waker.clear();
        waiters.enter(&waker);
        let mut found = look(true);
        let mut in_time = true;
        if matches!(found, Ok(None)) {
            match sleep(&mut vec![readable(fd), readable(waker.fd())], deadline) {
                Ok(woken) => in_time = woken,
                Err(error) => found = Err(error),
            }
        }
        waiters.leave(&waker);
        if let Some(result) = found? {
            return Ok(Some(result));
        }
        if !in_time {
            return look(false);
        }
    }
}

/// Sleeps until one of `fds` or the waker is ready, up to `deadline`. `false`: time is up.
/// EINTR if a signal came.
pub(super) fn sleep(fds: &mut Vec<PollFd<'_>>, deadline: Option<Instant>) -> Result<bool> {
    let timeout = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
        None => PollTimeout::NONE,
        Some(left) => i32::try_from(left.as_nanos().div_ceil(1_000_000))
            .ok()
            .and_then(|millis| PollTimeout::try_from(millis).ok())
            .unwrap_or(PollTimeout::MAX),
    };
    let ready = poll(fds, timeout).map_err(Error::from_call("poll"))?;
    // Not for ever, either, where something is ready that leads to nothing.
    Ok(ready > 0 && deadline.is_none_or(|at| Instant::now() < at))
}

/// The interest of somebody who only waits for a descriptor.
pub(super) fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLIN)
}
