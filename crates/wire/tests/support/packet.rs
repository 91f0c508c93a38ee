//! Ethernet, IPv4 and TCP, as far as it takes to find a TCP payload.

use std::net::{Ipv4Addr, SocketAddrV4};

const ETHERNET_LEN: usize = 14;
const ETHERTYPE_IPV4: u16 = 0x0800;
const PROTOCOL_TCP: u8 = 6;
const FLAG_SYN: u8 = 0x02;
const FLAG_RST: u8 = 0x04;
const FLAG_ACK: u8 = 0x10;

/// One TCP segment.
#[derive(Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) source: SocketAddrV4,
    pub(crate) destination: SocketAddrV4,
    pub(crate) sequence: u32,
    pub(crate) syn: bool,
    pub(crate) ack: bool,
    pub(crate) rst: bool,
    pub(crate) payload: &'a [u8],
}

/// The segment in an Ethernet frame. The captures hold nothing but TCP over IPv4.
pub(crate) fn tcp_segment(frame: &[u8]) -> Segment<'_> {
    assert_eq!(u16_at(frame, 12), ETHERTYPE_IPV4);
    let ip = &frame[ETHERNET_LEN..];
    assert_eq!(ip[9], PROTOCOL_TCP);
    assert_eq!(u16_at(ip, 6) & 0x3fff, 0, "IP fragment");
    // Short Ethernet frames are padded, so the IP length decides, not the frame's.
    let tcp = &ip[usize::from(ip[0] & 0x0f) * 4..usize::from(u16_at(ip, 2))];
    let flags = tcp[13];
    Segment {
        source: SocketAddrV4::new(address_at(ip, 12), u16_at(tcp, 0)),
        destination: SocketAddrV4::new(address_at(ip, 16), u16_at(tcp, 2)),
        sequence: u32::from_be_bytes(*tcp[4..].first_chunk().unwrap()),
        syn: flags & FLAG_SYN != 0,
        ack: flags & FLAG_ACK != 0,
        rst: flags & FLAG_RST != 0,
        payload: &tcp[usize::from(tcp[12] >> 4) * 4..],
    }
}

fn u16_at(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(*octets[at..].first_chunk().unwrap())
}

fn address_at(octets: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::from(*octets[at..].first_chunk::<4>().unwrap())
}
