//! From a capture file to the octets that each TCP connection carried.

mod packet;
pub(crate) mod pcap;
mod tcp;

pub(crate) use tcp::{Connection, Side};

/// The TCP connections of a capture among `tests/captures`, in the order of their SYNs.
pub(crate) fn connections(capture: &str) -> Vec<Connection> {
    let file = pcap::read(capture);
    let mut connections = tcp::Connections::default();
    for frame in pcap::frames(&file) {
        connections.add(&packet::tcp_segment(frame));
    }
    connections.into_vec()
}
