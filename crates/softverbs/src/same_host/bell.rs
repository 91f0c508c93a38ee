//! How one process wakes another one, and learns of its end.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use smallvec::SmallVec;

use super::sys;

/// One end of the pair of sockets of a lane: wakes the other process, and tells when it has gone.
#[derive(Debug)]
pub(crate) struct Bell(UnixStream);

impl Bell {
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (here, there) = UnixStream::pair()?;
        here.set_nonblocking(true)?;
        Ok((Self(here), there.into()))
    }

    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The process that has made the pair, if this one has not.
    pub(crate) fn process(&self) -> Option<OwnedFd> {
        let credentials = getsockopt(&self.0, PeerCredentials).ok()?;
        sys::open_process(credentials.pid()).ok()
    }

    pub(crate) fn ring(&self) {
        // If there is no room, the other one has been told often enough.
        let _ = (&self.0).write(&[0]);
    }

    /// Takes what was told. Whether the other process is still there.
    pub(crate) fn hush(&self) -> bool {
        let mut octets = [0; 64];
        loop {
            match (&self.0).read(&mut octets) {
                Ok(0) => return false,
                Ok(len) if len == octets.len() => {}
                Ok(_) => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// Whether the other process has closed its end of a lane, or has ended, though a child of it may have
/// that end still.
pub(crate) fn has_ended(bell: &Bell, process: Option<&OwnedFd>) -> bool {
    let closed = PollFd::new(bell.fd(), PollFlags::empty());
    let ended = process.map(|process| PollFd::new(process.as_fd(), PollFlags::POLLIN));
    let mut fds: SmallVec<[PollFd<'_>; 2]> = [closed].into_iter().chain(ended).collect();
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
