//! Socket addresses of C.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::ffi::{Fault, Result, in_ref, out_mut};

#[allow(clippy::cast_possible_truncation, reason = "structs of a few octets")]
const fn size<T>() -> socklen_t {
    size_of::<T>() as socklen_t
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "2 and 10"
)]
const INET: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "2 and 10"
)]
const INET6: libc::sa_family_t = libc::AF_INET6 as libc::sa_family_t;

/// Reads an address. EFAULT for a null pointer, EINVAL if it is cut short, EAFNOSUPPORT for other
/// families than IP.
///
/// # Safety
/// `address` is null or valid for reads of `len` octets.
pub(super) unsafe fn read(address: *const sockaddr, len: socklen_t) -> Result<SocketAddr> {
    if address.is_null() {
        return Err(Fault::new(libc::EFAULT));
    }
    if len < size::<libc::sa_family_t>() {
        return Err(Fault::INVALID);
    }
    // SAFETY: there are that many octets; the struct may lie at any address.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if len >= size::<sockaddr_in>() => {
            // SAFETY: as above.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if len >= size::<sockaddr_in6>() => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            let flow = u32::from_be(v6.sin6_flowinfo);
            Ok(SocketAddrV6::new(ip, port, flow, v6.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(Fault::INVALID),
        _ => Err(Fault::new(libc::EAFNOSUPPORT)),
    }
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
    match address {
        SocketAddr::V4(v4) => {
            let c = sockaddr_in {
                sin_family: INET,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the caller's promise.
            unsafe { copy(&c, to, len) }
        }
        SocketAddr::V6(v6) => {
            let c = sockaddr_in6 {
                sin6_family: INET6,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo().to_be(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: the caller's promise.
            unsafe { copy(&c, to, len) }
        }
    }
    Ok(())
}

/// # Safety
/// `to` is valid for writes of `*len` octets.
unsafe fn copy<T>(from: &T, to: *mut sockaddr, len: &mut socklen_t) {
    let octets = (*len).min(size::<T>()) as usize;
    // SAFETY: not more than there are of either.
    unsafe {
        std::ptr::from_ref(from)
            .cast::<u8>()
            .copy_to(to.cast(), octets)
    };
    *len = size::<T>();
}

/// A value that C passes by reference, of any alignment.
///
/// # Safety
/// `pointer` is null or valid for reads of `len` octets, which are a `T`.
pub(super) unsafe fn value<T: Copy>(pointer: *const std::ffi::c_void, len: socklen_t) -> Result<T> {
    if len < size::<T>() {
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
    unsafe { copy(&value, pointer.cast(), len) };
    *len = size::<T>();
    Ok(())
}
