//! From `rsocket` to `rclose`.

use std::ffi::{c_int, c_long};
use std::net::Shutdown;

use libc::{sockaddr, socklen_t};
use softverbs::rsocket::{Family, RSocket};

use super::{address, table};
use crate::ffi::{Fault, Result, in_ref, minus_one};

pub(crate) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    minus_one(|| {
        let family = match domain {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => return Err(Fault::new(libc::EAFNOSUPPORT)),
        };
        let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        let socket = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => RSocket::stream(family)?,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => RSocket::datagram(family)?,
            _ => return Err(Fault::NOT_SUPPORTED),
        };
        socket.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
        Ok(table::enter(socket))
    })
}

pub(crate) unsafe extern "C" fn rbind(
    socket: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> c_int {
    minus_one(|| {
        let socket = table::socket(socket)?;
        // SAFETY: C's promise.
        socket.bind(unsafe { address::read(addr, addrlen) }?)?;
        Ok(0)
    })
}

pub(crate) extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    minus_one(|| {
        table::socket(socket)?.listen(backlog)?;
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn raccept(
    socket: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    minus_one(|| {
        let (socket, peer) = table::socket(socket)?.accept()?;
        // SAFETY: C's promise.
        unsafe { address::write(peer, addr, addrlen) }?;
        Ok(table::enter(socket))
    })
}

pub(crate) unsafe extern "C" fn rconnect(
    socket: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> c_int {
    minus_one(|| {
        let socket = table::socket(socket)?;
        // SAFETY: C's promise.
        socket.connect(unsafe { address::read(addr, addrlen) }?)?;
        Ok(0)
    })
}

pub(crate) extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    minus_one(|| {
        let socket = table::socket(socket)?;
        socket.shutdown(match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Fault::INVALID),
        })?;
        Ok(0)
    })
}

pub(crate) extern "C" fn rclose(socket: c_int) -> c_int {
    minus_one(|| {
        table::remove(socket)?.close();
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn rgetpeername(
    socket: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    // SAFETY: C's promise.
    minus_one(|| unsafe { name(table::socket(socket)?.peer_addr()?, addr, addrlen) })
}

pub(crate) unsafe extern "C" fn rgetsockname(
    socket: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    // SAFETY: C's promise.
    minus_one(|| unsafe { name(table::socket(socket)?.local_addr()?, addr, addrlen) })
}

/// # Safety
/// As for [`address::write`].
unsafe fn name(
    found: std::net::SocketAddr,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let room = *unsafe { in_ref(addrlen) }.map_err(|_| Fault::new(libc::EFAULT))?;
    // Without room only the length is asked for: librspreload does.
    if addr.is_null() && room > 0 {
        return Err(Fault::new(libc::EFAULT));
    }
    let mut nowhere = std::mem::MaybeUninit::<sockaddr>::uninit();
    let addr = if addr.is_null() {
        nowhere.as_mut_ptr()
    } else {
        addr
    };
    // SAFETY: the caller's promise; into `nowhere` go as many octets as there is room for: none.
    unsafe { address::write(found, addr, addrlen) }?;
    Ok(0)
}

/// Variable arguments, of which there is one at most: it is where a third argument would be.
pub(crate) extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int {
    minus_one(|| {
        let socket = table::socket(socket)?;
        match command {
            libc::F_GETFL if socket.is_nonblocking() => Ok(libc::O_RDWR | libc::O_NONBLOCK),
            libc::F_GETFL => Ok(libc::O_RDWR),
            libc::F_SETFL => {
                socket.set_nonblocking(argument & c_long::from(libc::O_NONBLOCK) != 0);
                Ok(0)
            }
            // The descriptor is closed in other programs in any case.
            libc::F_GETFD => Ok(libc::FD_CLOEXEC),
            libc::F_SETFD => Ok(0),
            _ => Err(Fault::NOT_SUPPORTED),
        }
    })
}
