//! Which local address and which device lead to a destination. The kernel's routing decides; no
//! packet is sent, and nothing waits.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use socket2::{Domain, Type};

use crate::device::{Device, is_link_local};
use crate::engine::sys;
use crate::error::{Error, Result};

/// How a destination is reached.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// Local address; the port is the one that the caller gave, or 0.
    pub(crate) src: SocketAddr,
    /// The destination, in canonical form: never unspecified, nor IPv4 in IPv6 clothes, and with
    /// a scope if it needs one.
    pub(crate) dst: SocketAddr,
    /// The device that owns the local address.
    pub(crate) device: Device,
}

/// Finds the local address and the device for a destination. A source address that is given
/// and not unspecified must be a local one, and is then the one that is used.
///
/// A destination of this machine is reached from itself, that is through the device that owns it.
/// An unspecified destination is this machine: the source address if there is one, the loopback
/// address if not.
pub(crate) fn resolve(src: Option<SocketAddr>, dst: SocketAddr) -> Result<Resolved> {
    let dst = canonical(dst);
    let src = src.map(|src| canonical_like(src, dst));
    let port = src.map_or(0, |src| src.port());
    let src = src.filter(|src| !src.ip().is_unspecified());
    if src.is_some_and(|src| src.is_ipv4() != dst.is_ipv4()) {
        return Err(Error::invalid(
            "src_addr",
            "not of the same address family as dst_addr",
        ));
    }
    let Some(src) = src else {
        let dst = with_scope(specified(dst, None), None)?;
        let found = route(any(dst), dst)?;
        let device = owner(found)?;
        return Ok(Resolved {
            src: device.socket_addr(found.ip(), port),
            dst,
            device,
        });
    };
    let device = local_device(src)?;
    let src = device.socket_addr(src.ip(), 0);
    let dst = with_scope(specified(dst, Some(src.ip())), Some(&device))?;
    route(src, dst)?;
    Ok(Resolved {
        src: device.socket_addr(src.ip(), port),
        dst,
        device,
    })
}

/// The device that an identifier belongs to which is bound to `addr`: none yet if that is
/// unspecified. A link-local address without a scope is accepted if it exists only once;
/// [`Device::socket_addr`] then adds the scope.
pub(crate) fn check_bind(addr: SocketAddr) -> Result<Option<Device>> {
    let addr = canonical(addr);
    if addr.ip().is_unspecified() {
        Ok(None)
    } else {
        local_device(addr).map(Some)
    }
}

/// IPv4 in IPv6 clothes becomes IPv4.
fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), addr.port()),
        IpAddr::V6(_) => addr,
    }
}

/// As `canonical`; besides, `::` is IPv4's wildcard if the destination is IPv4.
fn canonical_like(addr: SocketAddr, dst: SocketAddr) -> SocketAddr {
    let addr = canonical(addr);
    if addr.is_ipv6() && addr.ip().is_unspecified() && dst.is_ipv4() {
        SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), addr.port())
    } else {
        addr
    }
}

/// An unspecified destination means this machine.
fn specified(mut dst: SocketAddr, src: Option<IpAddr>) -> SocketAddr {
    if dst.ip().is_unspecified() {
        dst.set_ip(src.unwrap_or_else(|| match dst {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        }));
    }
    dst
}

/// The wildcard address of the same family.
fn any(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// A link-local destination with its scope: its own, or that of the device of the source address.
/// One that needs none has none.
fn with_scope(dst: SocketAddr, device: Option<&Device>) -> Result<SocketAddr> {
    let SocketAddr::V6(v6) = dst else {
        return Ok(dst);
    };
    // Multicast groups of one interface or link (ff01::, ff02::) are ambiguous in the same way.
    let on_one_link =
        is_link_local(dst.ip()) || matches!(v6.ip().segments()[0] & 0xff0f, 0xff01 | 0xff02);
    let scope = match (on_one_link, v6.scope_id(), device) {
        (false, ..) => 0,
        (true, 0, Some(device)) => device.interface_index(),
        (true, 0, None) => {
            let why = format!(
                "{} means something on one link only: it needs a scope (%interface)",
                v6.ip()
            );
            return Err(Error::invalid("dst_addr", why));
        }
        (true, scope, _) => scope,
    };
    Ok(SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), scope).into())
}

/// The device that owns a local address which the caller gave.
fn local_device(addr: SocketAddr) -> Result<Device> {
    match Device::for_address(addr.ip(), scope_of(addr)) {
        Err(Error::NoDevice { .. }) if is_local(addr) => Device::loopback(),
        Err(Error::NoDevice { .. }) => Err(Error::AddrNotAvailable { address: addr.ip() }),
        found => found,
    }
}

/// The device that owns the source address which the kernel chose.
fn owner(src: SocketAddr) -> Result<Device> {
    match Device::for_address(src.ip(), scope_of(src)) {
        Err(Error::NoDevice { .. }) if is_local(src) => Device::loopback(),
        found => found,
    }
}

fn scope_of(addr: SocketAddr) -> Option<u32> {
    match addr {
        SocketAddr::V4(_) => None,
        SocketAddr::V6(v6) => Some(v6.scope_id()),
    }
}

/// Whether the kernel takes an address for this machine's though no interface has it: a whole
/// prefix may be local (`ip route add local ... dev lo`). To such an address one talks from itself.
fn is_local(addr: SocketAddr) -> bool {
    let discard = SocketAddr::new(addr.ip(), 9);
    !is_link_local(addr.ip()) && route(any(addr), discard).is_ok_and(|src| src.ip() == addr.ip())
}

/// The local address that packets to `dst` leave from, if nobody chooses another, without a port.
/// Asks the kernel's routing; nothing is sent. The errors of [`CmId::resolve_addr`](super::CmId::resolve_addr).
pub fn source_address(dst: SocketAddr) -> Result<SocketAddr> {
    let mut to = dst;
    if to.port() == 0 {
        // The discard port: any will do.
        to.set_port(9);
    }
    let mut source = route(any(dst), to)?;
    source.set_port(0);
    Ok(source)
}

/// Asks the kernel for the way to `dst`, and returns the local address that it chooses if `src`
/// leaves the choice.
fn route(src: SocketAddr, dst: SocketAddr) -> Result<SocketAddr> {
    // A datagram socket asks the routing when it is connected, and sends nothing.
    let socket = sys::socket(Domain::for_address(src), Type::DGRAM, None)
        .and_then(|socket| socket.bind(&src.into()).map(|()| UdpSocket::from(socket)))
        .map_err(|error| bind_error(src, dst, &error))?;
    socket
        .connect(dst)
        .map_err(|error| connect_error(src, dst, &error))?;
    socket.local_addr().map_err(Error::from_call("getsockname"))
}

fn bind_error(src: SocketAddr, dst: SocketAddr, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) if !src.ip().is_unspecified() => {
            Error::AddrNotAvailable { address: src.ip() }
        }
        // This machine does not have the address family.
        Some(errno @ (libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => Error::Unreachable {
            address: dst,
            errno,
        },
        errno => Error::os("bind", errno.unwrap_or(libc::EIO)),
    }
}

fn connect_error(src: SocketAddr, dst: SocketAddr, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EINVAL) if !src.ip().is_unspecified() => {
            Error::invalid("src_addr", format!("{dst} cannot be reached from there"))
        }
        Some(
            errno @ (libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::EADDRNOTAVAIL
            | libc::EACCES
            | libc::EPERM
            | libc::EINVAL),
        ) => Error::Unreachable {
            address: dst,
            errno,
        },
        Some(libc::ENODEV | libc::ENXIO) => Error::NoDevice {
            what: dst.to_string(),
        },
        errno => Error::os("connect", errno.unwrap_or(libc::EIO)),
    }
}

#[cfg(test)]
mod tests;
