//! Sending and receiving.

use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use smallvec::SmallVec;
use softverbs::rsocket::MsgFlags;

use super::{address, table};
use crate::ffi::{Fault, Result, in_ref, or, out_mut, slice};

/// Most buffers of one call (Linux's IOV_MAX).
const MOST_BUFFERS: usize = 1024;

fn flags(flags: c_int) -> MsgFlags {
    MsgFlags::from_bits_truncate(flags)
}

fn signed(len: usize) -> ssize_t {
    ssize_t::try_from(len).unwrap_or(ssize_t::MAX)
}

/// Buffers to be sent.
///
/// # Safety
/// `iov` is null or valid for reads of `count` entries, each of which names octets that stay as they
/// are meanwhile.
unsafe fn to_send<'a>(iov: *const iovec, count: usize) -> Result<SmallVec<[IoSlice<'a>; 8]>> {
    if count > MOST_BUFFERS {
        return Err(Fault::INVALID);
    }
    // SAFETY: the caller's promise.
    let entries = unsafe { slice(iov, count) }?;
    entries
        .iter()
        // SAFETY: as above.
        .map(|entry| unsafe { octets(entry.iov_base, entry.iov_len) }.map(IoSlice::new))
        .collect()
}

/// # Safety
/// `base` is null or valid for reads of `len` octets that stay as they are meanwhile.
unsafe fn octets<'a>(base: *const c_void, len: usize) -> Result<&'a [u8]> {
    // SAFETY: the caller's promise.
    unsafe { slice(base.cast::<u8>(), len) }.map_err(|_| Fault::new(libc::EFAULT))
}

/// Room to receive into.
///
/// # Safety
/// `iov` is null or valid for reads of `count` entries, each of which names octets that are valid for
/// writes, and that nobody else uses meanwhile.
unsafe fn to_fill<'a>(iov: *const iovec, count: usize) -> Result<SmallVec<[IoSliceMut<'a>; 8]>> {
    if count > MOST_BUFFERS {
        return Err(Fault::INVALID);
    }
    // SAFETY: the caller's promise.
    let entries = unsafe { slice(iov, count) }?;
    entries
        .iter()
        // SAFETY: as above.
        .map(|entry| unsafe { room(entry.iov_base, entry.iov_len) }.map(IoSliceMut::new))
        .collect()
}

/// # Safety
/// `base` is null or valid for writes of `len` octets that nobody else uses meanwhile.
unsafe fn room<'a>(base: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    match len {
        0 => Ok(&mut []),
        _ if base.is_null() => Err(Fault::new(libc::EFAULT)),
        // SAFETY: the caller's promise; octets have no invalid values.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(base.cast(), len) }),
    }
}

pub(crate) unsafe extern "C" fn rsend(
    socket: c_int,
    buf: *const c_void,
    len: size_t,
    how: c_int,
) -> ssize_t {
    or(-1, || {
        let socket = table::socket(socket)?;
        // SAFETY: C's promise.
        let data = unsafe { octets(buf, len) }?;
        Ok(signed(socket.send(data, flags(how))?))
    })
}

pub(crate) unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: size_t,
    how: c_int,
    dest_addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    if dest_addr.is_null() {
        // SAFETY: C's promise.
        return unsafe { rsend(socket, buf, len, how) };
    }
    or(-1, || {
        let socket = table::socket(socket)?;
        // SAFETY: C's promise.
        let (data, to) = unsafe { (octets(buf, len)?, address::read(dest_addr, addrlen)?) };
        let sent = socket.send_to(&[IoSlice::new(data)], to, flags(how))?;
        Ok(signed(sent))
    })
}

pub(crate) unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, how: c_int) -> ssize_t {
    or(-1, || {
        let socket = table::socket(socket)?;
        // SAFETY: C's promise.
        let msg = unsafe { in_ref(msg) }?;
        if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
            return Err(Fault::NOT_SUPPORTED);
        }
        // SAFETY: C's promise.
        let data = unsafe { to_send(msg.msg_iov, msg.msg_iovlen) }?;
        let sent = if msg.msg_name.is_null() {
            socket.send_vectored(&data, flags(how))?
        } else {
            // SAFETY: C's promise.
            let to = unsafe { address::read(msg.msg_name.cast(), msg.msg_namelen) }?;
            socket.send_to(&data, to, flags(how))?
        };
        Ok(signed(sent))
    })
}

pub(crate) unsafe extern "C" fn rwrite(
    socket: c_int,
    buf: *const c_void,
    count: size_t,
) -> ssize_t {
    // SAFETY: C's promise.
    unsafe { rsend(socket, buf, count, 0) }
}

pub(crate) unsafe extern "C" fn rwritev(
    socket: c_int,
    iov: *const iovec,
    iovcnt: c_int,
) -> ssize_t {
    or(-1, || {
        let socket = table::socket(socket)?;
        let count = usize::try_from(iovcnt).map_err(|_| Fault::INVALID)?;
        // SAFETY: C's promise.
        let data = unsafe { to_send(iov, count) }?;
        Ok(signed(socket.send_vectored(&data, MsgFlags::empty())?))
    })
}

pub(crate) unsafe extern "C" fn rrecv(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    how: c_int,
) -> ssize_t {
    or(-1, || {
        let socket = table::socket(socket)?;
        // SAFETY: C's promise.
        let buffer = unsafe { room(buf, len) }?;
        Ok(signed(socket.recv(buffer, flags(how))?))
    })
}

pub(crate) unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    how: c_int,
    src_addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    or(-1, || {
        let socket = table::socket(socket)?;
        // SAFETY: C's promise.
        let buffer = unsafe { room(buf, len) }?;
        if src_addr.is_null() {
            return Ok(signed(socket.recv(buffer, flags(how))?));
        }
        let (len, from) = socket.recv_from(&mut [IoSliceMut::new(buffer)], flags(how))?;
        // SAFETY: C's promise.
        unsafe { address::write(from, src_addr, addrlen) }?;
        Ok(signed(len))
    })
}

pub(crate) unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, how: c_int) -> ssize_t {
    or(-1, || {
        let socket = table::socket(socket)?;
        // SAFETY: C's promise.
        let msg = unsafe { out_mut(msg) }?;
        // SAFETY: C's promise.
        let mut buffers = unsafe { to_fill(msg.msg_iov, msg.msg_iovlen) }?;
        let len = if msg.msg_name.is_null() {
            socket.recv_vectored(&mut buffers, flags(how))?
        } else {
            let (len, from) = socket.recv_from(&mut buffers, flags(how))?;
            // SAFETY: C's promise.
            unsafe { address::write(from, msg.msg_name.cast(), &raw mut msg.msg_namelen) }?;
            len
        };
        msg.msg_controllen = 0;
        msg.msg_flags = 0;
        Ok(signed(len))
    })
}

pub(crate) unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    // SAFETY: C's promise.
    unsafe { rrecv(socket, buf, count, 0) }
}

pub(crate) unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    or(-1, || {
        let socket = table::socket(socket)?;
        let count = usize::try_from(iovcnt).map_err(|_| Fault::INVALID)?;
        // SAFETY: C's promise.
        let mut buffers = unsafe { to_fill(iov, count) }?;
        Ok(signed(
            socket.recv_vectored(&mut buffers, MsgFlags::empty())?,
        ))
    })
}
