//! Reassembly of TCP streams.

use std::net::SocketAddrV4;

use super::packet::Segment;

/// Which end of a connection sent something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one that sent the SYN.
    Initiator,
    /// The one that answered it.
    Responder,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    initiator: SocketAddrV4,
    responder: SocketAddrV4,
    /// The connection was refused by an RST before the responder had sent anything.
    pub(crate) refused: bool,
    to_responder: Stream,
    to_initiator: Stream,
}

impl Connection {
    /// What `side` sent.
    pub(crate) fn sent_by(&self, side: Side) -> &[u8] {
        let stream = match side {
            Side::Initiator => &self.to_responder,
            Side::Responder => &self.to_initiator,
        };
        assert_eq!(stream.waiting, [], "the capture misses a segment");
        &stream.octets
    }
}

/// The connections of a capture.
#[derive(Debug, Default)]
pub(crate) struct Connections(Vec<Connection>);

impl Connections {
    /// Adds a segment to the connection that it belongs to.
    pub(crate) fn add(&mut self, segment: &Segment<'_>) {
        if segment.syn && !segment.ack {
            self.0.push(Connection {
                initiator: segment.source,
                responder: segment.destination,
                refused: false,
                to_responder: Stream::default(),
                to_initiator: Stream::default(),
            });
        }
        // The latest one, should a port have been used twice.
        let ends = (segment.source, segment.destination);
        let (connection, side) = self
            .0
            .iter_mut()
            .rev()
            .find_map(|connection| {
                let (initiator, responder) = (connection.initiator, connection.responder);
                if ends == (initiator, responder) {
                    Some((connection, Side::Initiator))
                } else if ends == (responder, initiator) {
                    Some((connection, Side::Responder))
                } else {
                    None
                }
            })
            .expect("a segment of a connection whose SYN was not captured");
        let stream = match side {
            Side::Initiator => &mut connection.to_responder,
            Side::Responder => &mut connection.to_initiator,
        };
        if segment.syn {
            stream.first = Some(segment.sequence.wrapping_add(1));
        }
        let Some(first) = stream.first else {
            connection.refused |= segment.rst;
            return;
        };
        if !segment.payload.is_empty() {
            let at = usize::try_from(segment.sequence.wrapping_sub(first)).unwrap();
            stream.insert(at, segment.payload);
        }
    }

    /// All of them.
    pub(crate) fn into_vec(self) -> Vec<Connection> {
        self.0
    }
}

/// One direction.
#[derive(Debug, Default)]
struct Stream {
    /// Sequence number of the first octet, once the SYN was seen.
    first: Option<u32>,
    /// What is contiguous from the first octet on.
    octets: Vec<u8>,
    /// What is not, with its offset.
    waiting: Vec<(usize, Vec<u8>)>,
}

impl Stream {
    fn insert(&mut self, at: usize, payload: &[u8]) {
        self.waiting.push((at, payload.to_vec()));
        while let Some(next) = self
            .waiting
            .iter()
            .position(|(at, _)| *at <= self.octets.len())
        {
            let (at, payload) = self.waiting.swap_remove(next);
            let known = (self.octets.len() - at).min(payload.len());
            let (repeated, new) = payload.split_at(known);
            assert_eq!(
                &self.octets[at..at + known],
                repeated,
                "retransmission differs"
            );
            self.octets.extend_from_slice(new);
        }
    }
}
