//! `rsetsockopt` and `rgetsockopt`.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use libc::{linger, socklen_t};
use softverbs::rsocket::{RSockOpt, RSockOptName, RSocket};

use super::address::{return_value, value};
use super::table;
use crate::abi::PATH_DATA;
use crate::ffi::{Fault, Result, minus_one, out_mut};

/// The level of the options of RDMA.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;
/// What TCP_MAXSEG says: a number that programs size buffers by.
const MAX_SEGMENT: c_int = 2048;

fn positive(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn octets(value: c_int) -> usize {
    usize::try_from(value).unwrap_or(0)
}

/// # Safety
/// `optval` is null or valid for reads of `optlen` octets.
unsafe fn option(
    level: c_int,
    name: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> Result<Option<RSockOpt>> {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
        // SAFETY: the caller's promise.
        let wanted: linger = unsafe { value(optval, optlen) }?;
        let limit = Duration::from_secs(positive(wanted.l_linger).into());
        return Ok(Some(RSockOpt::Linger(
            (wanted.l_onoff != 0).then_some(limit),
        )));
    }
    if (level, name) == (SOL_RDMA, RDMA_ROUTE) {
        // Routes are the kernel's affair.
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let number: c_int = unsafe { value(optval, optlen) }?;
    let on = number != 0;
    Ok(Some(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => RSockOpt::ReuseAddr(on),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => RSockOpt::RecvBuffer(octets(number)),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => RSockOpt::SendBuffer(octets(number)),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => RSockOpt::Keepalive(on),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => RSockOpt::OobInline(on),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            RSockOpt::KeepaliveIdle(Duration::from_secs(positive(number).into()))
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG) => {
            return Ok(None);
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => RSockOpt::NoDelay(on),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => RSockOpt::V6Only(on),
        (SOL_RDMA, RDMA_SQSIZE) => RSockOpt::SendQueue(positive(number)),
        (SOL_RDMA, RDMA_RQSIZE) => RSockOpt::RecvQueue(positive(number)),
        (SOL_RDMA, RDMA_INLINE) => RSockOpt::Inline(positive(number)),
        (SOL_RDMA, RDMA_IOMAPSIZE) => RSockOpt::IomapSize(positive(number)),
        _ => return Err(Fault::NOT_SUPPORTED),
    }))
}

pub(crate) unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> c_int {
    minus_one(|| {
        let socket = table::socket(socket)?;
        // SAFETY: C's promise.
        if let Some(option) = unsafe { option(level, optname, optval, optlen) }? {
            socket.set_option(option)?;
        }
        Ok(0)
    })
}

/// The options that are a number.
fn number(socket: &RSocket, level: c_int, name: c_int) -> Result<c_int> {
    let of = |name| match socket.option(name) {
        RSockOpt::ReuseAddr(on)
        | RSockOpt::Keepalive(on)
        | RSockOpt::OobInline(on)
        | RSockOpt::NoDelay(on)
        | RSockOpt::V6Only(on) => on.into(),
        RSockOpt::RecvBuffer(octets) | RSockOpt::SendBuffer(octets) => {
            c_int::try_from(octets).unwrap_or(c_int::MAX)
        }
        RSockOpt::SendQueue(number)
        | RSockOpt::RecvQueue(number)
        | RSockOpt::Inline(number)
        | RSockOpt::IomapSize(number) => c_int::try_from(number).unwrap_or(c_int::MAX),
        RSockOpt::KeepaliveIdle(idle) => c_int::try_from(idle.as_secs()).unwrap_or(c_int::MAX),
        _ => 0,
    };
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => of(RSockOptName::ReuseAddr),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => of(RSockOptName::RecvBuffer),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => of(RSockOptName::SendBuffer),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => of(RSockOptName::Keepalive),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => of(RSockOptName::OobInline),
        (libc::SOL_SOCKET, libc::SO_ERROR) => socket.take_error().unwrap_or(0),
        (libc::SOL_SOCKET, libc::SO_TYPE) if socket.is_datagram() => libc::SOCK_DGRAM,
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => of(RSockOptName::KeepaliveIdle),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => 1,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => of(RSockOptName::NoDelay),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => MAX_SEGMENT,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => of(RSockOptName::V6Only),
        (SOL_RDMA, RDMA_SQSIZE) => of(RSockOptName::SendQueue),
        (SOL_RDMA, RDMA_RQSIZE) => of(RSockOptName::RecvQueue),
        (SOL_RDMA, RDMA_INLINE) => of(RSockOptName::Inline),
        (SOL_RDMA, RDMA_IOMAPSIZE) => of(RSockOptName::IomapSize),
        _ => return Err(Fault::NOT_SUPPORTED),
    })
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut socklen_t,
) -> c_int {
    minus_one(|| {
        let socket = table::socket(socket)?;
        match (level, optname) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let RSockOpt::Linger(limit) = socket.option(RSockOptName::Linger) else {
                    return Err(Fault::NOT_SUPPORTED);
                };
                let seconds = limit.map_or(0, |limit| limit.as_secs());
                let c = linger {
                    l_onoff: limit.is_some().into(),
                    l_linger: c_int::try_from(seconds).unwrap_or(c_int::MAX),
                };
                // SAFETY: C's promise.
                unsafe { return_value(c, optval, optlen) }?;
            }
            (SOL_RDMA, RDMA_ROUTE) => {
                // SAFETY: C's promise.
                let len = unsafe { out_mut(optlen) }?;
                if (*len as usize) < PATH_DATA {
                    return Err(Fault::INVALID);
                }
                // There are no path records over IP.
                *len = 0;
            }
            _ => {
                let number = number(&socket, level, optname)?;
                // SAFETY: C's promise.
                unsafe { return_value(number, optval, optlen) }?;
            }
        }
        Ok(0)
    })
}
