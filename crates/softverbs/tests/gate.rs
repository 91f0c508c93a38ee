//! The promise: an application may post its sends the moment `accept` returns. The stack holds
//! them until the peer may receive them, and releases them in order. The peer here is a bare TCP
//! socket that looks at every octet.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{PATIENCE, Setup, equip, expect, listener, no_event, requested};
use softverbs::cm::{CmOption, EventKind};
use softverbs::{SendFlags, Transport};

common::over_both! {
    sends_posted_before_the_connection_is_established_keep_their_order,
    answered_from_the_first_completion,
}

/// Flags S; A=0: what the kernel's siw asks for.
const SILENT_REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x01\x00\x01";
/// A=1 with Write and Read as RTR.
const P2P_REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x04\x80\x01\xc0\x01";
/// A zero-length RDMA Write, as siw's RTR.
const WRITE_RTR: [u8; 20] = [
    0, 14, 0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];
/// A zero-length RDMA Read with arbitrary keys, as cxgb4's RTR.
const READ_RTR: [u8; 52] = {
    let mut frame = [0; 52];
    frame[1] = 46;
    (frame[2], frame[3]) = (0x41, 0x41);
    frame[11] = 1; // QN 1
    frame[15] = 1; // MSN 1
    frame[23] = 1; // sink STag
    frame[31] = 1;
    frame[39] = 1; // source STag
    frame[47] = 1;
    frame
};

struct RawPeer(TcpStream);

impl RawPeer {
    /// Connects and sends an MPA request.
    fn request(address: std::net::SocketAddr, request: &[u8]) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.write_all(request).unwrap();
        Self(socket)
    }

    fn exactly(&mut self, len: usize) -> Vec<u8> {
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut out = vec![0; len];
        self.0.read_exact(&mut out).unwrap();
        out
    }

    fn nothing(&mut self, during: Duration) {
        self.0.set_read_timeout(Some(during)).unwrap();
        let mut room = [0; 64];
        match self.0.read(&mut room) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            other => panic!("expected silence, got {other:?} {room:x?}"),
        }
    }

    /// Three Sends of 8 octets, MSN 1, 2, 3, with `others` frames of 20 octets between them,
    /// whose heads are returned.
    fn expect_sends(&mut self, first_msn: u8, others: usize) -> Vec<[u8; 4]> {
        let (mut sends, mut heads) = (0_u8, Vec::new());
        while sends < 3 || heads.len() < others {
            let mut frame = self.exactly(20);
            if frame[..4] != [0, 26, 0x41, 0x43] {
                heads.push(frame[..4].try_into().unwrap());
                assert!(heads.len() <= others, "not a Send: {frame:x?}");
                continue;
            }
            frame.extend(self.exactly(12));
            assert_eq!(frame[15], first_msn + sends, "message sequence number");
            assert_eq!(
                &frame[20..28],
                &u64::from(sends).to_le_bytes(),
                "payload in posted order"
            );
            sends += 1;
        }
        heads
    }
}

fn accept_and_post(request: &[u8], grace: Duration) -> (common::End, RawPeer) {
    let setup = Setup {
        server_options: vec![CmOption::Grace(grace)],
        ..Setup::default()
    };
    let (channel, _listening, address) = listener(&setup);
    let peer = RawPeer::request(address, request);
    let event = expect(&channel, EventKind::ConnectRequest);
    let server = equip(&setup, channel, event.id().clone());
    server.id.accept(&setup.param).unwrap();
    for n in 0..3_u64 {
        server.send_inline(n, &n.to_le_bytes(), SendFlags::SIGNALED);
    }
    (server, peer)
}

#[test]
fn a_peer_that_announced_an_rtr_gets_nothing_before_it() {
    for rtr in [&WRITE_RTR[..], &READ_RTR[..]] {
        let (server, mut peer) = accept_and_post(P2P_REQUEST, Duration::ZERO);
        let reply = peer.exactly(24);
        assert!(reply.starts_with(b"MPA ID Rep Frame"));
        assert_eq!(reply[20] & 0x80, 0x80, "A is copied from the request");
        // Longer than any grace: only the frame opens the gate.
        peer.nothing(Duration::from_millis(150));
        no_event(&server.channel, Duration::ZERO);
        common::nothing(&server.cq, Duration::from_millis(5));
        peer.0.write_all(rtr).unwrap();
        expect(&server.channel, EventKind::Established);
        // Reads are answered in no order relative to Sends (RFC 5040 §5.5).
        let answers = peer.expect_sends(1, usize::from(rtr.len() == READ_RTR.len()));
        assert!(
            answers.iter().all(|head| *head == [0, 14, 0xc1, 0x42]),
            "{answers:x?}"
        );
        let done = server.completions(3);
        assert!(done.iter().map(|wc| wc.wr_id).eq(0..3));
    }
}

#[test]
fn a_silent_peer_gets_the_sends_after_the_grace() {
    let grace = Duration::from_millis(200);
    let (server, mut peer) = accept_and_post(SILENT_REQUEST, grace);
    let accepted = Instant::now();
    peer.exactly(24);
    // Without peer-to-peer mode there is nothing to wait for before the event.
    expect(&server.channel, EventKind::Established);
    peer.nothing(grace / 2);
    peer.expect_sends(1, 0);
    assert!(accepted.elapsed() >= grace / 2);
    assert!(server.completions(3).iter().map(|wc| wc.wr_id).eq(0..3));
}

#[test]
fn the_first_frame_of_a_peer_without_rtr_opens_the_gate() {
    let (server, mut peer) = accept_and_post(SILENT_REQUEST, Duration::from_secs(600));
    peer.exactly(24);
    peer.nothing(Duration::from_millis(50));
    // A Send of 8 octets.
    let mut send = vec![
        0, 26, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
    ];
    send.extend_from_slice(b"it is me\0\0\0\0");
    server.recv(9, 0, 64);
    peer.0.write_all(&send).unwrap();
    peer.expect_sends(1, 0);
    let done = server.completions(4);
    assert!(done.iter().any(|wc| wc.wr_id == 9 && wc.byte_len == 8));
    assert_eq!(server.read(0, 8), b"it is me");
}

#[test]
fn an_rtr_that_never_comes_ends_the_attempt() {
    let (server, mut peer) = accept_and_post(P2P_REQUEST, Duration::ZERO);
    peer.exactly(24);
    drop(peer);
    let event = common::next_event(&server.channel);
    assert_eq!((event.kind(), event.status()), (EventKind::Rejected, -104));
    assert_eq!(server.completions(3).len(), 3, "flushed");
}

fn sends_posted_before_the_connection_is_established_keep_their_order(transport: Transport) {
    // Both ends post at once: the client when connect returns, the server when accept returns.
    let setup = Setup::over(transport);
    for _ in 0..20 {
        let (client, server, _listening) = requested(&setup);
        for n in 0..20 {
            client.recv(n, 4096, 64);
            server.recv(n, 4096, 64);
        }
        for n in 0..10_u64 {
            client.send_inline(100 + n, &n.to_le_bytes(), SendFlags::empty());
        }
        server.id.accept(&setup.param).unwrap();
        for n in 0..10_u64 {
            server.send_inline(100 + n, &n.to_le_bytes(), SendFlags::empty());
        }
        expect(&client.channel, EventKind::Established);
        expect(&server.channel, EventKind::Established);
        for end in [&client, &server] {
            for n in 10..20_u64 {
                end.send_inline(100 + n, &n.to_le_bytes(), SendFlags::empty());
            }
        }
        for end in [&client, &server] {
            let got = end.completions(20);
            assert!(got.iter().map(|wc| wc.wr_id).eq(0..20), "{got:?}");
            assert_eq!(end.read(4096, 8), 19_u64.to_le_bytes());
        }
    }
}

fn answered_from_the_first_completion(transport: Transport) {
    // The debate of 2006: the first message may be seen before the event; the answer is posted
    // at once, and nothing is lost.
    let setup = Setup::over(transport);
    for _ in 0..20 {
        let (client, server, _listening) = requested(&setup);
        server.recv(1, 0, 64);
        client.recv(2, 0, 64);
        client.send_inline(3, b"ping", SendFlags::empty());
        server.id.accept(&setup.param).unwrap();
        assert_eq!(server.success().wr_id, 1);
        server.send_inline(4, b"pong", SendFlags::empty());
        assert_eq!(client.success().wr_id, 2);
        assert_eq!(client.read(0, 4), b"pong");
        expect(&server.channel, EventKind::Established);
    }
}
