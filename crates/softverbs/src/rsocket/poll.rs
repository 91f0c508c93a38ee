//! Waiting for many sockets and descriptors at once.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::wait::{self, POLLING_TIME, Waker};
use super::{Kind, RSocket};
use crate::error::{Error, Result};

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub enum PollSource<'a> {
    /// A socket over RDMA.
    Socket(&'a RSocket),
    /// An ordinary descriptor.
    Fd(BorrowedFd<'a>),
    /// Nothing.
    Ignored,
}

/// One of those that [`poll`] waits for.
#[derive(Clone, Copy, Debug)]
pub struct PollEntry<'a> {
    /// What is waited for.
    pub source: PollSource<'a>,
    /// What it is waited for to be.
    pub events: PollFlags,
    /// What it is; set by [`poll`].
    pub revents: PollFlags,
}

impl<'a> PollEntry<'a> {
    /// Waits for a socket.
    pub const fn socket(socket: &'a RSocket, events: PollFlags) -> Self {
        Self {
            source: PollSource::Socket(socket),
            events,
            revents: PollFlags::empty(),
        }
    }

    /// Waits for an ordinary descriptor.
    pub const fn fd(fd: BorrowedFd<'a>, events: PollFlags) -> Self {
        Self {
            source: PollSource::Fd(fd),
            events,
            revents: PollFlags::empty(),
        }
    }
}

/// Waits until one of `entries` is ready, up to `timeout` (`None`: for ever), and sets all their
/// `revents`. Returns how many are ready. Level-triggered, as the system call of this name.
/// EINTR if a signal came first.
pub fn poll(entries: &mut [PollEntry<'_>], timeout: Option<Duration>) -> Result<usize> {
    let start = Instant::now();
    let deadline = timeout.and_then(|timeout| start.checked_add(timeout));
    loop {
        let ready = look(entries, false)?;
        if ready > 0 || timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Ok(ready);
        }
        if start.elapsed() >= POLLING_TIME {
            break;
        }
    }
    let waker = Waker::of_thread()?;
    loop {
        waker.clear();
        each_socket(entries, |kind| kind.waiters().enter(&waker));
        let result = look(entries, true).and_then(|ready| {
            if ready > 0 {
                return Ok(true);
            }
            sleep(entries, &waker, deadline)
        });
        each_socket(entries, |kind| kind.waiters().leave(&waker));
        let awake = result?;
        let ready = look(entries, false)?;
        if ready > 0 || !awake {
            return Ok(ready);
        }
    }
}

fn each_socket(entries: &[PollEntry<'_>], mut what: impl FnMut(&Kind)) {
    for entry in entries {
        if let PollSource::Socket(socket) = entry.source {
            what(&socket.kind);
        }
    }
}

/// Looks at all of them; with `arm`, what changes from now on makes their descriptors ready.
fn look(entries: &mut [PollEntry<'_>], arm: bool) -> Result<usize> {
    for entry in entries.iter_mut() {
        entry.revents = match entry.source {
            PollSource::Socket(socket) => socket.kind.look(entry.events, arm)?,
            PollSource::Fd(_) | PollSource::Ignored => PollFlags::empty(),
        };
    }
    look_at_fds(entries)?;
    let ready = entries.iter().filter(|entry| !entry.revents.is_empty());
    Ok(ready.count())
}

/// Looks at the ordinary descriptors, in one system call.
fn look_at_fds(entries: &mut [PollEntry<'_>]) -> Result<()> {
    let ordinary = |entry: &PollEntry<'_>| matches!(entry.source, PollSource::Fd(_));
    if !entries.iter().any(ordinary) {
        return Ok(());
    }
    let mut fds: Vec<PollFd<'_>> = entries
        .iter()
        .filter_map(|entry| match entry.source {
            PollSource::Fd(fd) => Some(PollFd::new(fd, entry.events)),
            _ => None,
        })
        .collect();
    nix::poll::poll(&mut fds, PollTimeout::ZERO).map_err(Error::from_call("poll"))?;
    let found = fds
        .iter()
        .map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
    let found: Vec<PollFlags> = found.collect();
    let places = entries.iter_mut().filter(|entry| ordinary(entry));
    for (entry, revents) in places.zip(found) {
        entry.revents = revents;
    }
    Ok(())
}

fn sleep(entries: &[PollEntry<'_>], waker: &Waker, deadline: Option<Instant>) -> Result<bool> {
    let mut fds: Vec<PollFd<'_>> = entries
        .iter()
        .filter_map(|entry| match entry.source {
            PollSource::Socket(socket) => Some(wait::readable(socket.kind.fd())),
            PollSource::Fd(fd) => Some(PollFd::new(fd, entry.events)),
            PollSource::Ignored => None,
        })
        .collect();
    fds.push(wait::readable(waker.fd()));
    wait::sleep(&mut fds, deadline)
}
