//! The counter that announces entries: an eventfd that a read takes one from.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};

/// One announcement for each entry. Whoever reads the descriptor, as C programs' `get_event` calls
/// do, sleeps until there is one and takes it; [`take`](Self::take) never sleeps.
#[derive(Debug)]
pub(super) struct Counter(EventFd);

impl Counter {
    pub(super) fn new() -> Result<Self> {
        // Blocking on purpose: setting O_NONBLOCK is the C API's way to say that getting an event
        // shall not wait, and must be the application's doing.
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        Ok(Self(
            EventFd::from_flags(flags).map_err(Error::from_call("eventfd"))?,
        ))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// One more.
    pub(super) fn add(&self) {
        // Only a counter close to 2^64 could refuse; entries fit into memory, so it never is.
        let _ = self.0.write(1);
    }

    /// One less; `false`: there was none. Never waits: a thread that sleeps in a read may be faster.
    pub(super) fn take(&self) -> bool {
        match self.read_without_waiting() {
            // Kernels before Linux 5.8 have no such read of an eventfd.
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => self.read_with_flag(),
            taken => taken.unwrap_or(false),
        }
    }

    fn read_without_waiting(&self) -> nix::Result<bool> {
        let mut one = 0_u64;
        let entry = libc::iovec {
            iov_base: (&raw mut one).cast(),
            iov_len: size_of::<u64>(),
        };
        loop {
            // SAFETY: one entry, which names eight octets that are ours to write for the time of the
            // call; the descriptor is open.
            let taken = unsafe {
                libc::preadv2(
                    self.0.as_raw_fd(),
                    &raw const entry,
                    1,
                    -1,
                    libc::RWF_NOWAIT,
                )
            };
            match Errno::result(taken) {
                Ok(_) => return Ok(true),
                Err(Errno::EAGAIN) => return Ok(false),
                Err(Errno::EINTR) => (),
                Err(other) => return Err(other),
            }
        }
    }

    /// The same by a flag of the descriptor's: a read that begins at this very moment may find it
    /// set, and return EAGAIN.
    fn read_with_flag(&self) -> bool {
        let Ok(flags) = fcntl(&self.0, FcntlArg::F_GETFL).map(OFlag::from_bits_retain) else {
            return false;
        };
        if fcntl(&self.0, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).is_err() {
            return false;
        }
        let taken = self.0.read().is_ok();
        let _ = fcntl(&self.0, FcntlArg::F_SETFL(flags));
        taken
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn readable(counter: &Counter) -> bool {
        let mut fds = [PollFd::new(counter.fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
    }

    #[test]
    fn both_ways_take_one_and_never_wait() {
        let counter = Counter::new().unwrap();
        let without_waiting = |counter: &Counter| counter.read_without_waiting().unwrap();
        for take in [Counter::take, Counter::read_with_flag, without_waiting] {
            assert!(!take(&counter));
            counter.add();
            counter.add();
            assert!(take(&counter));
            assert!(readable(&counter));
            assert!(take(&counter));
            assert!(!readable(&counter));
            assert!(!take(&counter));
        }
        // Whoever reads it waits, as before.
        let flags = fcntl(&counter.0, FcntlArg::F_GETFL).unwrap();
        assert!(!OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK));
    }
}
