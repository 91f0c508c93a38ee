//! Ethernet, IP and UDP, as far as it takes to find a RoCEv2 packet and what its ICRC covers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use softverbs_wire::ib::{Icrc, Ipv4Ident};

const ETHERNET_LEN: usize = 14;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const ROCE_PORT: u16 = 4791;

/// The ends of a datagram, with the part of the IPv4 header that an ICRC covers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ends {
    V4(SocketAddrV4, SocketAddrV4, Ipv4Ident),
    V6(SocketAddrV6, SocketAddrV6),
}

/// One datagram to the port of RoCEv2.
#[derive(Debug)]
pub(crate) struct Datagram<'a> {
    pub(crate) ends: Ends,
    pub(crate) payload: &'a [u8],
}

/// The RoCEv2 datagram in an Ethernet frame, if that is what it holds.
pub(crate) fn roce_datagram(frame: &[u8]) -> Option<Datagram<'_>> {
    let ip = &frame[ETHERNET_LEN..];
    // Short Ethernet frames are padded, so the IP length decides, not the frame's.
    let (protocol, udp) = match u16_at(frame, 12) {
        ETHERTYPE_IPV4 => (
            ip[9],
            &ip[usize::from(ip[0] & 0x0f) * 4..usize::from(u16_at(ip, 2))],
        ),
        ETHERTYPE_IPV6 => (ip[6], &ip[IPV6_LEN..IPV6_LEN + usize::from(u16_at(ip, 4))]),
        other => panic!("Ethernet type {other:#06x} is in none of the captures"),
    };
    if protocol != PROTOCOL_UDP || u16_at(udp, 2) != ROCE_PORT {
        return None;
    }
    assert_eq!(usize::from(u16_at(udp, 4)), udp.len());
    let (source_port, destination_port) = (u16_at(udp, 0), u16_at(udp, 2));
    let ends = if ip[0] >> 4 == 4 {
        let fragment = u16_at(ip, 6);
        assert_eq!(fragment & 0xbfff, 0, "IP fragment");
        Ends::V4(
            SocketAddrV4::new(v4_at(ip, 12), source_port),
            SocketAddrV4::new(v4_at(ip, 16), destination_port),
            Ipv4Ident {
                id: u16_at(ip, 4),
                dont_fragment: fragment & 0x4000 != 0,
            },
        )
    } else {
        Ends::V6(
            SocketAddrV6::new(v6_at(ip, 8), source_port, 0, 0),
            SocketAddrV6::new(v6_at(ip, 24), destination_port, 0, 0),
        )
    };
    Some(Datagram {
        ends,
        payload: &udp[UDP_LEN..],
    })
}

impl Datagram<'_> {
    /// The ICRC that the packet has to have.
    pub(crate) fn icrc(&self) -> Icrc {
        match self.ends {
            Ends::V4(source, destination, ident) => {
                Icrc::of_datagram_v4(source, destination, ident, self.payload)
            }
            Ends::V6(source, destination) => {
                Icrc::of_datagram_v6(source, destination, self.payload)
            }
        }
        .unwrap()
    }

    /// The same, begun with these headers and not yet fed with what follows them.
    pub(crate) fn icrc_of_headers(&self, headers: &[u8]) -> Icrc {
        let len = self.payload.len();
        match self.ends {
            Ends::V4(source, destination, ident) => {
                Icrc::new_v4(source, destination, ident, len, headers)
            }
            Ends::V6(source, destination) => Icrc::new_v6(source, destination, len, headers),
        }
    }

    pub(crate) fn source_port(&self) -> u16 {
        match self.ends {
            Ends::V4(source, ..) => source.port(),
            Ends::V6(source, _) => source.port(),
        }
    }

    pub(crate) fn source(&self) -> IpAddr {
        match self.ends {
            Ends::V4(source, ..) => (*source.ip()).into(),
            Ends::V6(source, _) => (*source.ip()).into(),
        }
    }

    pub(crate) fn destination(&self) -> IpAddr {
        match self.ends {
            Ends::V4(_, destination, _) => (*destination.ip()).into(),
            Ends::V6(_, destination) => (*destination.ip()).into(),
        }
    }
}

fn u16_at(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(*octets[at..].first_chunk().unwrap())
}

fn v4_at(octets: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::from(*octets[at..].first_chunk::<4>().unwrap())
}

fn v6_at(octets: &[u8], at: usize) -> Ipv6Addr {
    Ipv6Addr::from(*octets[at..].first_chunk::<16>().unwrap())
}
