//! The system calls by which processes of one host find and judge each other. `unsafe` lives here so
//! that the rest needs none.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

/// A control message's length, level and type.
pub(crate) const CONTROL_HEADER: usize = size_of::<usize>() + 2 * size_of::<i32>();

/// The messages of a buffer that the kernel has filled: level, type, data.
pub(crate) fn control_messages(mut octets: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    std::iter::from_fn(move || {
        let (len, rest) = octets.split_first_chunk()?;
        let len = usize::from_ne_bytes(*len);
        let (level, rest) = rest.split_first_chunk()?;
        let (kind, _) = rest.split_first_chunk()?;
        let data = octets.get(CONTROL_HEADER..len)?;
        octets = octets
            .get(len.next_multiple_of(size_of::<usize>())..)
            .unwrap_or_default();
        Some((i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind), data))
    })
}

/// Sends octets by a Unix socket, to another one or to that which it is connected with, and descriptors
/// with them. Does not block.
pub(crate) fn send_descriptors(
    fd: BorrowedFd<'_>,
    to: Option<&Path>,
    octets: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let to = to.map(UnixAddr::new).transpose()?;
    let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_raw_fd()).collect();
    let control = [ControlMessage::ScmRights(&descriptors)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let octets = [IoSlice::new(octets)];
    sendmsg(fd.as_raw_fd(), &octets, &control, flags, to.as_ref())?;
    Ok(())
}

/// Receives octets by a Unix socket, and the descriptors that came with them, two at most. How many
/// octets it was. Does not block.
pub(crate) fn receive_descriptors(
    fd: BorrowedFd<'_>,
    octets: &mut [u8],
    control: &mut Vec<u8>,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    if control.capacity() == 0 {
        *control = nix::cmsg_space!([RawFd; 2]);
    }
    let room = control.capacity();
    let mut element = libc::iovec {
        iov_base: octets.as_mut_ptr().cast(),
        iov_len: octets.len(),
    };
    // SAFETY: an all-zero msghdr is a valid value of this plain C struct.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut element;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = room as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message names the octets and the room for control messages, which are borrowed
    // exclusively and live until the call returns, each with its length.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let mut descriptors = Vec::new();
    #[allow(
        clippy::unnecessary_cast,
        reason = "another type with other C libraries"
    )]
    let filled = (message.msg_controllen as usize).min(room);
    // SAFETY: the kernel has written so many octets there.
    unsafe { control.set_len(filled) };
    // Whatever came is closed if it is not used, also when not all of them found room.
    for (level, kind, data) in control_messages(control) {
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for fd in data.chunks_exact(size_of::<RawFd>()) {
                let fd = RawFd::from_ne_bytes(fd.try_into().unwrap_or_default());
                // SAFETY: the kernel has just made this descriptor, for this call; nobody else knows it.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    Ok((len, descriptors))
}

/// A descriptor of a process, which is readable when it has ended.
pub(crate) fn open_process(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd)
        .ok()
        .filter(|fd| *fd >= 0)
        .ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made it; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The user on whose behalf this process acts.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::geteuid() }
}
