//! Names: `rdma_getaddrinfo`.

use std::ffi::{c_char, c_int};
use std::mem;
use std::ptr;

use softverbs::cm::source_address;

use super::address;
use crate::abi::*;
use crate::ffi::{self, Fault, set_errno};

/// Errors are `EAI_*`.
type Result<T> = std::result::Result<T, c_int>;

/// An address list under construction.
struct List(*mut rdma_addrinfo);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: made here, and nobody else has it.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    ffi::minus_one(|| {
        if (node.is_null() && service.is_null() && hints.is_null()) || res.is_null() {
            return Err(Fault::INVALID);
        }
        // SAFETY: C's strings and struct, or null.
        match unsafe { look_up(node, service, hints.as_ref()) } {
            Ok(mut list) => {
                let list = mem::replace(&mut list.0, ptr::null_mut());
                // SAFETY: not null, so C's to be filled in.
                unsafe { res.write(list) };
                Ok(0)
            }
            Err(code) => {
                tell_errno(code);
                Ok(code)
            }
        }
    })
}

/// `errno`, too: some programs look there only.
fn tell_errno(code: c_int) {
    match code {
        libc::EAI_SYSTEM => {}
        libc::EAI_MEMORY => set_errno(libc::ENOMEM),
        libc::EAI_AGAIN => set_errno(libc::EAGAIN),
        libc::EAI_FAMILY | libc::EAI_SOCKTYPE => set_errno(libc::EAFNOSUPPORT),
        libc::EAI_BADFLAGS | libc::EAI_SERVICE => set_errno(libc::EINVAL),
        _ => set_errno(libc::ENXIO),
    }
}

/// # Safety
/// The pointers are null or C's.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<List> {
    // SAFETY: zeroed memory of this size.
    let list = List(unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast());
    // SAFETY: null, or zeroed memory of its own, which is a valid struct.
    let rai = unsafe { list.0.as_mut() }.ok_or(libc::EAI_MEMORY)?;
    // SAFETY: null pointers and integers.
    let nothing: rdma_addrinfo = unsafe { mem::zeroed() };
    let given = hints.unwrap_or(&nothing);
    if node.is_null() && service.is_null() {
        rai.ai_flags = given.ai_flags;
        rai.ai_family = given.ai_family;
        rai.ai_qp_type = given.ai_qp_type;
        rai.ai_port_space = given.ai_port_space;
        // SAFETY: C's address.
        unsafe { copy_dst(rai, given.ai_dst_addr, given.ai_dst_len) }?;
    } else {
        // SAFETY: C's strings.
        unsafe { resolve_names(rai, node, service, hints) }?;
    }
    if rai.ai_src_addr.is_null() {
        // SAFETY: C's address.
        unsafe { copy_src(rai, given.ai_src_addr, given.ai_src_len) }?;
    }
    let flags = rai.ai_flags.cast_unsigned() | given.ai_flags.cast_unsigned();
    if flags & (RAI_PASSIVE | RAI_NOROUTE) == 0 {
        find_source(rai)?;
    }
    if rai.ai_qp_type == 0 {
        rai.ai_qp_type = match rai.ai_port_space.cast_unsigned() {
            RDMA_PS_UDP | RDMA_PS_IPOIB => IBV_QPT_UD,
            _ => IBV_QPT_RC,
        }
        .cast_signed();
    }
    Ok(list)
}

/// # Safety
/// The strings are null or C's.
unsafe fn resolve_names(
    rai: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<()> {
    let asked = hints.map(addrinfo_hints);
    let asked_pointer = asked.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut found: *mut libc::addrinfo = ptr::null_mut();
    // SAFETY: C's strings, our hints, and a pointer to be filled in.
    let code = unsafe { libc::getaddrinfo(node, service, asked_pointer, &raw mut found) };
    if code != 0 {
        return Err(code);
    }
    // SAFETY: a list of at least one entry.
    let copied = unsafe { convert(rai, hints, &*found) };
    // SAFETY: the list of above.
    unsafe { libc::freeaddrinfo(found) };
    copied
}

/// The hints as the resolver of names wants them.
fn addrinfo_hints(hints: &rdma_addrinfo) -> libc::addrinfo {
    // SAFETY: null pointers and integers.
    let mut asked: libc::addrinfo = unsafe { mem::zeroed() };
    let flags = hints.ai_flags.cast_unsigned();
    if flags & RAI_PASSIVE != 0 {
        asked.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & RAI_NUMERICHOST != 0 {
        asked.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_family != c_int::from(address::AF_IB) {
        asked.ai_family = hints.ai_family;
    }
    asked.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    asked.ai_protocol = match (hints.ai_port_space.cast_unsigned(), asked.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    asked
}

/// # Safety
/// `found` is an entry of the resolver's.
unsafe fn convert(
    rai: &mut rdma_addrinfo,
    hints: Option<&rdma_addrinfo>,
    found: &libc::addrinfo,
) -> Result<()> {
    let (qp_type, port_space, flags) = hints.map_or((0, 0, 0), |hints| {
        (hints.ai_qp_type, hints.ai_port_space, hints.ai_flags)
    });
    rai.ai_qp_type = match (qp_type, found.ai_socktype) {
        (0, libc::SOCK_STREAM) => IBV_QPT_RC.cast_signed(),
        (0, libc::SOCK_DGRAM) => IBV_QPT_UD.cast_signed(),
        (given, _) => given,
    };
    rai.ai_port_space = match (port_space, found.ai_protocol) {
        (0, libc::IPPROTO_TCP) => RDMA_PS_TCP.cast_signed(),
        (0, libc::IPPROTO_UDP) => RDMA_PS_UDP.cast_signed(),
        (given, _) => given,
    };
    rai.ai_family = found.ai_family;
    let name = if found.ai_canonname.is_null() {
        ptr::null_mut()
    } else {
        // SAFETY: the resolver's string.
        unsafe { libc::strdup(found.ai_canonname) }
    };
    // SAFETY: the resolver's address.
    unsafe {
        if flags.cast_unsigned() & RAI_PASSIVE != 0 {
            rai.ai_flags = RAI_PASSIVE.cast_signed();
            rai.ai_src_canonname = name;
            copy_src(rai, found.ai_addr, found.ai_addrlen)
        } else {
            rai.ai_dst_canonname = name;
            copy_dst(rai, found.ai_addr, found.ai_addrlen)
        }
    }
}

/// An address in memory that the list owns.
///
/// # Safety
/// `from` is null or valid for `len` octets.
unsafe fn copy(from: *const libc::sockaddr, len: libc::socklen_t) -> Result<*mut libc::sockaddr> {
    // At least as much as any of its users reads.
    let room = (len as usize).max(size_of::<libc::sockaddr_in6>());
    // SAFETY: zeroed memory.
    let to = unsafe { libc::calloc(1, room) };
    if to.is_null() {
        return Err(libc::EAI_MEMORY);
    }
    // SAFETY: the caller's promise, and enough room.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), len as usize) };
    Ok(to.cast())
}

/// # Safety
/// As [`copy`].
unsafe fn copy_src(
    rai: &mut rdma_addrinfo,
    from: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<()> {
    if len != 0 && !from.is_null() {
        // SAFETY: the caller's promise.
        rai.ai_src_addr = unsafe { copy(from, len) }?;
        rai.ai_src_len = len;
    }
    Ok(())
}

/// # Safety
/// As [`copy`].
unsafe fn copy_dst(
    rai: &mut rdma_addrinfo,
    from: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<()> {
    if len != 0 && !from.is_null() {
        // SAFETY: the caller's promise.
        rai.ai_dst_addr = unsafe { copy(from, len) }?;
        rai.ai_dst_len = len;
    }
    Ok(())
}

/// The own address that leads to the destination, if there is one: programs look for the device there.
fn find_source(rai: &mut rdma_addrinfo) -> Result<()> {
    if !rai.ai_src_addr.is_null() || rai.ai_dst_addr.is_null() {
        return Ok(());
    }
    // SAFETY: the list's own address.
    let Ok(dst) = (unsafe { address::from_c(rai.ai_dst_addr) }) else {
        return Ok(());
    };
    let Ok(src) = source_address(dst) else {
        return Ok(());
    };
    let (storage, len) = ffi::c_socket_addr(&src);
    // SAFETY: a storage is larger than any address.
    unsafe { copy_src(rai, ptr::from_ref(&storage).cast(), len) }
}

pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let mut next = res;
    while !next.is_null() {
        // SAFETY: a list of `rdma_getaddrinfo`'s, which C gives up; programs may have replaced what is in
        // it by memory of `malloc`.
        unsafe {
            let rai = *next;
            for memory in [
                rai.ai_src_addr.cast(),
                rai.ai_dst_addr.cast(),
                rai.ai_src_canonname.cast(),
                rai.ai_dst_canonname.cast(),
                rai.ai_route,
                rai.ai_connect,
                next.cast(),
            ] {
                libc::free(memory);
            }
            next = rai.ai_next;
        }
    }
}
