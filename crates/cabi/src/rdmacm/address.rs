//! Addresses as C has them: sockets' addresses, GIDs, address vectors and path records.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use softverbs::{Context, Gid, Transport};

use crate::abi::*;
use crate::ffi::{Fault, Result};

const AF_INET: libc::sa_family_t = 2;
const AF_INET6: libc::sa_family_t = 10;
/// `AF_IB`, the family of `sockaddr_ib`.
pub(super) const AF_IB: libc::sa_family_t = 27;

/// An address that C passes. EINVAL for none, and for families other than IPv4, IPv6 and AF_IB,
/// whose addresses are those of IP as a GID, with the port in the service ID.
///
/// # Safety
/// `address` is null or points to an address that is as long as its family says.
pub(super) unsafe fn from_c(address: *const libc::sockaddr) -> Result<SocketAddr> {
    if address.is_null() {
        return Err(Fault::INVALID);
    }
    // SAFETY: not null, so the caller's promise; programs do not always align them.
    let family = unsafe { ptr::addr_of!((*address).sa_family).read_unaligned() };
    match family {
        AF_INET => {
            // SAFETY: as above, of this family.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        AF_INET6 => {
            // SAFETY: as above, of this family.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        AF_IB => {
            // SAFETY: as above, of this family.
            let ib = unsafe { address.cast::<sockaddr_ib>().read_unaligned() };
            let [.., high, low] = u64::from_be(ib.sib_sid).to_be_bytes();
            let port = u16::from_be_bytes([high, low]);
            let ip = Ipv6Addr::from(ib.sib_addr);
            Ok(match IpAddr::from(ip).to_canonical() {
                IpAddr::V4(v4) => SocketAddr::new(v4.into(), port),
                IpAddr::V6(_) => {
                    let scope = u32::try_from(ib.sib_scope_id).unwrap_or(0);
                    SocketAddrV6::new(ip, port, 0, scope).into()
                }
            })
        }
        _ => Err(Fault::INVALID),
    }
}

/// An address in C's form, and how long it is.
pub(super) fn to_c(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: a plain struct of integers.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let place = ptr::from_mut(&mut storage);
    let length = match address {
        SocketAddr::V4(v4) => {
            let c = libc::sockaddr_in {
                sin_family: AF_INET,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has room and alignment for any address.
            unsafe { place.cast::<libc::sockaddr_in>().write(c) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let c = libc::sockaddr_in6 {
                sin6_family: AF_INET6,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(c) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, libc::socklen_t::try_from(length).unwrap_or(0))
}

pub(super) fn gid(address: IpAddr) -> ibv_gid {
    ibv_gid {
        raw: Gid::from(address).get(),
    }
}

/// The GIDs of the two ends. Those of iWARP are addresses as well.
pub(super) fn ib_addr(local: Option<SocketAddr>, peer: Option<SocketAddr>) -> rdma_ib_addr {
    let none = ibv_gid { raw: [0; 16] };
    let specified = |address: Option<SocketAddr>| {
        address
            .map(|address| address.ip())
            .filter(|ip| !ip.is_unspecified())
            .map_or(none, gid)
    };
    rdma_ib_addr {
        sgid: specified(local),
        dgid: specified(peer),
        pkey: 0xffff_u16.to_be(),
    }
}

/// The path of a route over RoCE, as Linux makes one up for it. iWARP has none.
pub(super) fn path(
    verbs: &Context,
    local: SocketAddr,
    peer: SocketAddr,
) -> Option<ibv_sa_path_rec> {
    /// `exactly`, of a selector.
    const EXACTLY: u8 = 2;
    /// `IBV_RATE_10_GBPS`.
    const RATE: u8 = 3;
    /// 4.096 µs × 2^16, which Linux takes for a round trip.
    const PACKET_LIFETIME: u8 = 16;
    if verbs.device().transport() != Transport::Roce {
        return None;
    }
    let mtu = verbs.query_port(1).ok()?.active_mtu as u8;
    Some(ibv_sa_path_rec {
        dgid: gid(peer.ip()),
        sgid: gid(local.ip()),
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: 0,
        hop_limit: 64,
        traffic_class: 0,
        reversible: 1,
        numb_path: 1,
        pkey: 0xffff_u16.to_be(),
        sl: 0,
        mtu_selector: EXACTLY,
        mtu,
        rate_selector: EXACTLY,
        rate: RATE,
        packet_life_time_selector: EXACTLY,
        packet_life_time: PACKET_LIFETIME,
        preference: 0,
    })
}
