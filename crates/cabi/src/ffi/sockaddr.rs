//! Socket addresses of C.

use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use super::{Fault, Result};

const INET: sa_family_t = 2;
const INET6: sa_family_t = 10;

#[allow(clippy::cast_possible_truncation, reason = "structs of a few octets")]
pub(crate) const fn socklen<T>() -> socklen_t {
    size_of::<T>() as socklen_t
}

/// The family of an address.
///
/// # Safety
/// `address` is valid for reads of a family, at any alignment.
pub(crate) unsafe fn family(address: *const sockaddr) -> sa_family_t {
    // SAFETY: the caller's promise.
    unsafe { ptr::addr_of!((*address).sa_family).read_unaligned() }
}

/// Reads an address of IP. EINVAL if it is cut short, `None` for other families.
///
/// # Safety
/// `address` is valid for reads of `len` octets, or of as many as its family says.
pub(crate) unsafe fn socket_addr(
    address: *const sockaddr,
    len: socklen_t,
) -> Result<Option<SocketAddr>> {
    if len < socklen::<sa_family_t>() {
        return Err(Fault::INVALID);
    }
    // SAFETY: there are that many octets.
    match unsafe { family(address) } {
        INET if len >= socklen::<sockaddr_in>() => {
            // SAFETY: as above; the struct may lie at any address.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            let port = u16::from_be(v4.sin_port);
            Ok(Some(SocketAddrV4::new(ip, port).into()))
        }
        INET6 if len >= socklen::<sockaddr_in6>() => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            // In the order of the network, as the standard library has it.
            let flow = v6.sin6_flowinfo;
            Ok(Some(
                SocketAddrV6::new(ip, port, flow, v6.sin6_scope_id).into(),
            ))
        }
        INET | INET6 => Err(Fault::INVALID),
        _ => Ok(None),
    }
}

/// An address in C's form, and how long it is.
pub(crate) fn c_socket_addr(address: &SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: a plain struct of integers.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let place = ptr::from_mut(&mut storage);
    let length = match address {
        SocketAddr::V4(v4) => {
            let c = sockaddr_in {
                sin_family: INET,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has room and alignment for any address.
            unsafe { place.cast::<sockaddr_in>().write(c) };
            socklen::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let c = sockaddr_in6 {
                sin6_family: INET6,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<sockaddr_in6>().write(c) };
            socklen::<sockaddr_in6>()
        }
    };
    (storage, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(address: &SocketAddr, less: socklen_t) -> Result<Option<SocketAddr>> {
        let (storage, len) = c_socket_addr(address);
        // SAFETY: a storage has room for any address.
        unsafe { socket_addr(ptr::from_ref(&storage).cast(), len - less) }
    }

    #[test]
    fn there_and_back() {
        let v6 = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7, 0x1234_u32.to_be(), 3).into();
        for address in ["10.1.2.3:4711".parse().unwrap(), v6] {
            assert_eq!(back(&address, 0), Ok(Some(address)));
            assert_eq!(back(&address, 1), Err(Fault::INVALID));
        }
    }

    #[test]
    fn the_flow_is_as_the_kernel_has_it() {
        let flow = 0x1234_u32.to_be();
        let v6 = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7, flow, 3);
        let (storage, _) = c_socket_addr(&v6.into());
        // SAFETY: it holds an address of this family.
        let c = unsafe { ptr::from_ref(&storage).cast::<sockaddr_in6>().read() };
        assert_eq!(c.sin6_flowinfo, flow);
    }

    #[test]
    fn other_families_are_none() {
        // SAFETY: a plain struct of integers.
        let storage: sockaddr_storage = unsafe { mem::zeroed() };
        let address = ptr::from_ref(&storage).cast();
        // SAFETY: a storage has room for any address.
        assert_eq!(unsafe { socket_addr(address, 16) }, Ok(None));
        // SAFETY: as above.
        assert_eq!(unsafe { socket_addr(address, 1) }, Err(Fault::INVALID));
    }
}
