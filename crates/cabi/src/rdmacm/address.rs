//! Addresses as C has them: sockets' addresses, GIDs, address vectors and path records.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use softverbs::{Context, Gid, Transport};

use crate::abi::*;
use crate::ffi::{self, Fault, Result};

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
    // SAFETY: not null, so the caller's promise.
    match unsafe { ffi::family(address) } {
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
        // SAFETY: as long as its family says.
        _ => unsafe { ffi::socket_addr(address, libc::socklen_t::MAX) }?.ok_or(Fault::INVALID),
    }
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
