//! Socket addresses of C.

use std::net::SocketAddr;

use libc::{sockaddr, socklen_t};

use crate::ffi::{Fault, Result, c_socket_addr, in_ref, out_mut, socket_addr, socklen};

/// Reads an address. EFAULT for a null pointer, EINVAL if it is cut short, EAFNOSUPPORT for other
/// families than IP.
///
/// # Safety
/// `address` is null or valid for reads of `len` octets.
pub(super) unsafe fn read(address: *const sockaddr, len: socklen_t) -> Result<SocketAddr> {
    if address.is_null() {
        return Err(Fault::new(libc::EFAULT));
    }
    // SAFETY: there are that many octets.
    unsafe { socket_addr(address, len) }?.ok_or(Fault::new(libc::EAFNOSUPPORT))
}

/// Writes an address, cut to the room that there is, and its whole length. Nothing if one of the
/// pointers is null.
///
/// # Safety
/// `len` is null or valid for reads and writes; `to` is null or valid for writes of `*len` octets.
pub(super) unsafe fn write(
    address: SocketAddr,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    if to.is_null() || len.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let len = unsafe { out_mut(len) }?;
    let (storage, whole) = c_socket_addr(&address);
    // SAFETY: the caller's promise; a storage has room for any address.
    unsafe { copy(&storage, whole, to, len) };
    Ok(())
}

/// # Safety
/// `to` is valid for writes of `*len` octets; `from` has `whole`.
unsafe fn copy<T>(from: &T, whole: socklen_t, to: *mut sockaddr, len: &mut socklen_t) {
    let octets = (*len).min(whole) as usize;
    // SAFETY: not more than there are of either.
    unsafe {
        std::ptr::from_ref(from)
            .cast::<u8>()
            .copy_to(to.cast(), octets)
    };
    *len = whole;
}

/// A value that C passes by reference, of any alignment.
///
/// # Safety
/// `pointer` is null or valid for reads of `len` octets, which are a `T`.
pub(super) unsafe fn value<T: Copy>(pointer: *const std::ffi::c_void, len: socklen_t) -> Result<T> {
    if len < socklen::<T>() {
        return Err(Fault::INVALID);
    }
    // SAFETY: the caller's promise.
    unsafe { in_ref(pointer.cast::<[u8; 1]>()) }.map_err(|_| Fault::new(libc::EFAULT))?;
    // SAFETY: not null, and that many octets are there.
    Ok(unsafe { pointer.cast::<T>().read_unaligned() })
}

/// Returns a value by reference, cut to the room that there is, and its length.
///
/// # Safety
/// `len` is null or valid for reads and writes; `pointer` is null or valid for writes of `*len`
/// octets.
pub(super) unsafe fn return_value<T: Copy>(
    value: T,
    pointer: *mut std::ffi::c_void,
    len: *mut socklen_t,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let len = unsafe { out_mut(len) }.map_err(|_| Fault::new(libc::EFAULT))?;
    if pointer.is_null() {
        return Err(Fault::new(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    unsafe { copy(&value, socklen::<T>(), pointer.cast(), len) };
    Ok(())
}
