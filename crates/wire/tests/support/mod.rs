//! From a capture file to the octets that each TCP connection carried.

mod packet;
mod pcap;
mod tcp;

use std::path::Path;

pub(crate) use tcp::{Connection, Side};

/// The TCP connections of a capture among `tests/captures`, in the order of their SYNs.
pub(crate) fn connections(capture: &str) -> Vec<Connection> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/captures")
        .join(capture);
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut connections = tcp::Connections::default();
    for frame in pcap::frames(&file) {
        connections.add(&packet::tcp_segment(frame));
    }
    connections.into_vec()
}
