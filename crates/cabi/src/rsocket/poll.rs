//! `rpoll` and `rselect`: sockets and ordinary descriptors together.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use libc::{fd_set, nfds_t, pollfd, timeval};
use nix::poll::PollFlags;
use smallvec::SmallVec;
use softverbs::rsocket::{PollEntry, PollSource, RSocket, poll};

use super::table;
use crate::ffi::{Fault, Result, minus_one};

/// Waits for `fds` and sets their `revents`; returns how many are ready.
fn wait(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize> {
    let sockets: SmallVec<[Option<Arc<RSocket>>; 8]> =
        fds.iter().map(|fd| table::find(fd.fd)).collect();
    let mut entries: SmallVec<[PollEntry<'_>; 8]> = fds
        .iter()
        .zip(&sockets)
        .map(|(fd, socket)| PollEntry {
            source: match socket {
                Some(socket) => PollSource::Socket(socket),
                None if fd.fd < 0 => PollSource::Ignored,
                // SAFETY: not -1, and only looked at by the system's poll, for which a descriptor that
                // is closed is no harm.
                None => PollSource::Fd(unsafe { BorrowedFd::borrow_raw(fd.fd) }),
            },
            events: PollFlags::from_bits_retain(fd.events),
            revents: PollFlags::empty(),
        })
        .collect();
    let ready = poll(&mut entries, timeout)?;
    for (fd, entry) in fds.iter_mut().zip(&entries) {
        fd.revents = entry.revents.bits();
    }
    Ok(ready)
}

fn count(ready: usize) -> c_int {
    c_int::try_from(ready).unwrap_or(c_int::MAX)
}

pub(crate) unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    minus_one(|| {
        let len = usize::try_from(nfds).map_err(|_| Fault::INVALID)?;
        let fds = match len {
            0 => &mut [],
            _ if fds.is_null() => return Err(Fault::new(libc::EFAULT)),
            // SAFETY: C's promise.
            _ => unsafe { std::slice::from_raw_parts_mut(fds, len) },
        };
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        Ok(count(wait(fds, timeout)?))
    })
}

/// # Safety
/// `set` is null or points to a set.
unsafe fn is_set(set: *const fd_set, fd: c_int) -> bool {
    // SAFETY: the caller's promise; `fd` is less than FD_SETSIZE.
    !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
}

pub(crate) unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *const timeval,
) -> c_int {
    const READ: i16 = libc::POLLIN | libc::POLLHUP | libc::POLLERR;
    const WRITE: i16 = libc::POLLOUT | libc::POLLERR;
    const EXCEPT: i16 = libc::POLLPRI;
    minus_one(|| {
        let most = c_int::try_from(libc::FD_SETSIZE).unwrap_or(c_int::MAX);
        if !(0..=most).contains(&nfds) {
            return Err(Fault::INVALID);
        }
        // SAFETY: C's promise.
        let timeout = match unsafe { timeout.as_ref() } {
            None => None,
            Some(time) => {
                let seconds = u64::try_from(time.tv_sec).map_err(|_| Fault::INVALID)?;
                let micros = u64::try_from(time.tv_usec).map_err(|_| Fault::INVALID)?;
                Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
            }
        };
        let sets = [
            (readfds, libc::POLLIN, READ),
            (writefds, libc::POLLOUT, WRITE),
            (exceptfds, libc::POLLPRI, EXCEPT),
        ];
        let mut fds: SmallVec<[pollfd; 8]> = (0..nfds)
            .filter_map(|fd| {
                let wanted = sets.iter().filter(|(set, ..)| {
                    // SAFETY: C's promise.
                    unsafe { is_set(*set, fd) }
                });
                let events = wanted.fold(0, |events, (_, wanted, _)| events | wanted);
                (events != 0).then_some(pollfd {
                    fd,
                    events,
                    revents: 0,
                })
            })
            .collect();
        wait(&mut fds, timeout)?;
        if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
            return Err(Fault::new(libc::EBADF));
        }
        let mut found = 0;
        for fd in &fds {
            for (set, wanted, means) in sets {
                if fd.events & wanted == 0 {
                    continue;
                }
                if fd.revents & means != 0 {
                    found += 1;
                } else {
                    // SAFETY: it is in the set, so there is one; C's promise.
                    unsafe { libc::FD_CLR(fd.fd, set) };
                }
            }
        }
        Ok(found)
    })
}
