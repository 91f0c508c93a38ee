//! Setting up and ending connections: order of events, status values, private data, ports.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{
    PATIENCE, Setup, equip, expect, listener, next_event, no_event, pair, requested, resolved,
};
use softverbs::cm::{CmId, CmOption, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{QpState, Transport, WcStatus};

common::over_both! {
    a_request_that_nobody_keeps_is_rejected,
    destroying_a_listener_rejects_what_waits,
    many_connect_at_once,
    events_follow_a_migrated_identifier,
    dropping_an_end_disconnects_the_other,
    what_was_sent_before_a_disconnect_arrives,
}

const REQUEST_V2: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x01\x00\x01";
const REPLY_V2: &[u8] = b"MPA ID Rep Frame\x10\x02\x00\x04\x00\x01\x00\x01";

#[test]
fn events_come_in_order_with_exact_private_data() {
    // field B119: exact octets, exact length.
    for len in [0, 1, 56, 57, 196, 251] {
        let data = common::pattern(len, 3);
        let setup = Setup {
            param: ConnParam::with_private_data(data.clone()),
            ..Setup::default()
        };
        let (server_channel, listening, address) = listener(&setup);
        let (client_channel, id) = resolved(&setup, address);
        let client = equip(&setup, client_channel, id);
        client.id.connect(&setup.param).unwrap();
        let request = expect(&server_channel, EventKind::ConnectRequest);
        assert_eq!(request.private_data(), data);
        assert!(request.listen_id().unwrap().same_as(&listening));
        assert_eq!(request.id().peer_addr(), client.id.local_addr());
        let server = equip(&setup, server_channel, request.id().clone());
        assert_eq!(server.qp.state(), QpState::Init);
        server.id.accept(&setup.param).unwrap();
        let established = expect(&client.channel, EventKind::Established);
        assert_eq!(
            (established.status(), established.private_data()),
            (0, &data[..])
        );
        let established = expect(&server.channel, EventKind::Established);
        assert_eq!(established.private_data(), b"");
        assert_eq!(
            (client.qp.state(), server.qp.state()),
            (QpState::Rts, QpState::Rts)
        );
        client.id.disconnect().unwrap();
        for end in [&client, &server] {
            assert_eq!(expect(&end.channel, EventKind::Disconnected).status(), 0);
            no_event(&end.channel, Duration::from_millis(20));
            // field B6, B123: a second disconnect, from either side, is harmless.
            end.id.disconnect().unwrap();
        }
    }
    let setup = Setup::default();
    let (_channel, id) = resolved(&setup, listener(&setup).2);
    let too_much = ConnParam::with_private_data(vec![0; 252]);
    let error = id.connect(&too_much).unwrap_err();
    assert_eq!(error.errno(), libc_einval());
}

fn libc_einval() -> i32 {
    22
}

/// A port at which nobody listens, nor can: it is bound.
fn nobody() -> (socket2::Socket, std::net::SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

#[test]
fn nobody_listens() {
    let setup = Setup::default();
    let (_kept, address) = nobody();
    let (channel, id) = resolved(&setup, address);
    let client = equip(&setup, channel, id);
    client.recv(1, 0, 64);
    client.id.connect(&setup.param).unwrap();
    let event = next_event(&client.channel);
    assert_eq!((event.kind(), event.status()), (EventKind::Rejected, -111));
    assert!(!event.is_consumer_reject());
    // What was posted has been flushed.
    assert_eq!(client.completions(1)[0].status, WcStatus::WrFlushErr);
    no_event(&client.channel, Duration::from_millis(20));
}

#[test]
fn rejected_with_private_data() {
    let setup = Setup::default();
    let (client, server, _listening) = requested(&setup);
    server.id.reject(b"no, thank you").unwrap();
    let event = next_event(&client.channel);
    assert_eq!((event.kind(), event.status()), (EventKind::Rejected, -111));
    assert!(event.is_consumer_reject());
    assert_eq!(event.private_data(), b"no, thank you");
    assert_eq!(server.id.accept(&setup.param).unwrap_err().errno(), 22);
    no_event(&server.channel, Duration::from_millis(20));
}

fn a_request_that_nobody_keeps_is_rejected(transport: Transport) {
    let setup = Setup::over(transport);
    let (server_channel, _listening, address) = listener(&setup);
    let (channel, id) = resolved(&setup, address);
    let client = equip(&setup, channel, id);
    client.id.connect(&setup.param).unwrap();
    drop(expect(&server_channel, EventKind::ConnectRequest));
    assert_eq!(next_event(&client.channel).kind(), EventKind::Rejected);
}

fn destroying_a_listener_rejects_what_waits(transport: Transport) {
    // field B22
    let setup = Setup::over(transport);
    let (server_channel, listening, address) = listener(&setup);
    let clients: Vec<_> = (0..5)
        .map(|_| {
            let (channel, id) = resolved(&setup, address);
            let client = equip(&setup, channel, id);
            client.id.connect(&setup.param).unwrap();
            client
        })
        .collect();
    let end = Instant::now() + PATIENCE;
    let kept = expect(&server_channel, EventKind::ConnectRequest)
        .id()
        .clone();
    // The other four wait in the channel.
    while Instant::now() < end && !waiting(&server_channel) {}
    std::thread::sleep(Duration::from_millis(50));
    drop(listening);
    let rejected = clients
        .iter()
        .filter(|client| {
            let event = client
                .channel
                .get_event(Some(Duration::from_millis(500)))
                .unwrap();
            event.is_some_and(|event| event.kind() == EventKind::Rejected)
        })
        .count();
    assert_eq!(rejected, 4);
    no_event(&server_channel, Duration::from_millis(10));
    // The one that the application has taken is still good.
    let server = equip(&setup, server_channel, kept);
    server.id.accept(&setup.param).unwrap();
    expect(&server.channel, EventKind::Established);
}

fn waiting(channel: &EventChannel) -> bool {
    use std::os::fd::AsFd;
    let fd = channel.fd();
    let _ = fd.as_fd();
    true
}

#[test]
fn the_backlog_counts_requests_that_wait_to_be_fetched() {
    let setup = Setup::default();
    let channel = EventChannel::new().unwrap();
    let listening = CmId::new(&channel, PortSpace::Tcp, 0).unwrap();
    listening.bind_addr(setup.address).unwrap();
    listening.listen(2).unwrap();
    let address = listening.local_addr().unwrap();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (channel, id) = resolved(&setup, address);
            let client = equip(&setup, channel, id);
            client.id.connect(&setup.param).unwrap();
            client
        })
        .collect();
    let rejected = clients
        .iter()
        .filter(|client| {
            let event = client
                .channel
                .get_event(Some(Duration::from_millis(300)))
                .unwrap();
            event.is_some_and(|event| event.kind() == EventKind::Rejected)
        })
        .count();
    assert_eq!(rejected, 2);
    // Fetching makes room, accepted or not.
    let first = expect(&channel, EventKind::ConnectRequest);
    let (late_channel, id) = resolved(&setup, address);
    let late = equip(&setup, late_channel, id);
    late.id.connect(&setup.param).unwrap();
    no_event(&late.channel, Duration::from_millis(100));
    drop(first);
}

fn many_connect_at_once(transport: Transport) {
    // field B2, B3: as many as the backlog, whatever the application is doing meanwhile.
    let setup = Setup {
        len: 4096,
        ..Setup::over(transport)
    };
    let (server_channel, _listening, address) = listener(&setup);
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let (channel, id) = resolved(&setup, address);
            let client = equip(&setup, channel, id);
            client.id.connect(&setup.param).unwrap();
            client
        })
        .collect();
    let mut servers = Vec::new();
    for _ in 0..100 {
        let request = loop {
            let event = next_event(&server_channel);
            if event.kind() == EventKind::ConnectRequest {
                break event.id().clone();
            }
            assert_eq!(event.kind(), EventKind::Established);
        };
        let server = equip(&setup, server_channel.clone(), request);
        server.id.accept(&setup.param).unwrap();
        servers.push(server);
    }
    for client in &clients {
        expect(&client.channel, EventKind::Established);
    }
}

#[test]
fn the_peer_is_silent() {
    let setup = Setup {
        client_options: vec![CmOption::ReplyTimeout(Duration::from_millis(200))],
        ..Setup::default()
    };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (channel, id) = resolved(&setup, silent.local_addr().unwrap());
    let client = equip(&setup, channel, id);
    client.id.connect(&setup.param).unwrap();
    let event = next_event(&client.channel);
    assert_eq!(
        (event.kind(), event.status()),
        (EventKind::Unreachable, -110)
    );
}

/// What the client hears when a raw peer answers its request with `reply` and closes.
fn answer(reply: &'static [u8]) -> (EventKind, i32) {
    let setup = Setup {
        client_options: vec![
            CmOption::ReplyTimeout(Duration::from_secs(5)),
            CmOption::PeerToPeer(false),
        ],
        ..Setup::default()
    };
    let raw = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = raw.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        // Twice: the second time for an attempt with revision 1.
        for _ in 0..2 {
            let (mut socket, _) = raw.accept().unwrap();
            let mut request = [0; 20];
            socket.read_exact(&mut request).unwrap();
            socket.write_all(reply).unwrap();
            if !reply.is_empty() {
                socket.shutdown(std::net::Shutdown::Write).unwrap();
                let _ = socket.read_to_end(&mut Vec::new());
                return;
            }
        }
    });
    let (channel, id) = resolved(&setup, address);
    let client = equip(&setup, channel, id);
    client.id.connect(&setup.param).unwrap();
    let event = next_event(&client.channel);
    let result = (event.kind(), event.status());
    if event.kind() == EventKind::Established {
        // field B25: a FIN right behind the reply.
        expect(&client.channel, EventKind::Disconnected);
    }
    no_event(&client.channel, Duration::from_millis(20));
    drop(client);
    peer.join().unwrap();
    result
}

#[test]
fn every_answer_is_one_event() {
    assert_eq!(answer(REPLY_V2), (EventKind::Established, 0));
    // field B10: octets that are no reply.
    assert_eq!(
        answer(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").0,
        EventKind::ConnectError
    );
    assert_eq!(answer(&REPLY_V2[..13]), (EventKind::Rejected, -104));
    assert_eq!(
        answer(b"MPA ID Rep Frame\x30\x02\x00\x04\x00\x00\x00\x00").0,
        EventKind::Rejected
    );
    assert_eq!(answer(b""), (EventKind::Rejected, -104));
}

#[test]
fn bad_requests_are_closed_and_leave_no_trace() {
    // field B19, B21
    let setup = Setup::default();
    let (server_channel, _listening, address) = listener(&setup);
    let requests: [&[u8]; 5] = [
        b"",
        b"MPA ID Req",
        b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n",
        b"MPA ID Req Frame\x10\x09\x00\x04\x00\x01\x00\x01",
        b"MPA ID Req Frame\x10\x02\xff\xff\x00\x01\x00\x01",
    ];
    for request in requests {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(request).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        let _ = socket.read_to_end(&mut reply);
        assert!(reply.is_empty() || reply[16] & 0x20 != 0, "{reply:x?}");
    }
    no_event(&server_channel, Duration::from_millis(20));
    // Octet by octet is as good as at once.
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_nodelay(true).unwrap();
    for octet in REQUEST_V2 {
        socket.write_all(&[*octet]).unwrap();
    }
    expect(&server_channel, EventKind::ConnectRequest);
}

#[test]
fn ports_and_addresses() {
    let channel = EventChannel::new().unwrap();
    let new = || CmId::new(&channel, PortSpace::Tcp, 0).unwrap();
    // field B122
    let foreign = new().bind_addr("192.0.2.1:0".parse().unwrap()).unwrap_err();
    assert_eq!(foreign.errno(), 99, "{foreign}");
    let first = new();
    first.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    first.listen(0).unwrap();
    let port = first.local_addr().unwrap().port();
    assert_ne!(port, 0);
    // field B121: a device for loopback.
    assert!(first.verbs().is_some());
    let second = new();
    let taken = second
        .bind_addr(([127, 0, 0, 1], port).into())
        .and_then(|()| second.listen(0))
        .unwrap_err();
    assert_eq!(taken.errno(), 98, "{taken}");
    // field B125: the port is free as soon as its listener is gone, connections or not.
    drop(first);
    let third = new();
    third.bind_addr(([127, 0, 0, 1], port).into()).unwrap();
    third.listen(0).unwrap();
    // field B34: IPv4 and IPv6 on the same port.
    let any6 = new();
    any6.set_option(CmOption::Afonly(true)).unwrap();
    any6.bind_addr(format!("[::]:{port}").parse().unwrap())
        .unwrap();
    any6.listen(0).unwrap();
    // field B77: any number of connections from one source address.
    let setup = Setup::default();
    for _ in 0..2 {
        let client = EventChannel::new().unwrap();
        let id = CmId::new(&client, PortSpace::Tcp, 0).unwrap();
        let src = Some("127.0.0.1:0".parse().unwrap());
        id.resolve_addr(src, ([127, 0, 0, 1], port).into(), PATIENCE)
            .unwrap();
        drop(expect(&client, EventKind::AddrResolved));
        id.resolve_route(PATIENCE).unwrap();
        drop(expect(&client, EventKind::RouteResolved));
        let end = equip(&setup, client, id);
        end.id.connect(&setup.param).unwrap();
    }
}

#[test]
fn calls_out_of_order_say_so() {
    let setup = Setup::default();
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Tcp, 0).unwrap();
    let errors = [
        id.connect(&setup.param).unwrap_err(),
        id.accept(&setup.param).unwrap_err(),
        id.reject(b"").unwrap_err(),
        // field B110
        id.disconnect().unwrap_err(),
        id.resolve_route(PATIENCE).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.errno(), 22);
        assert!(error.to_string().contains("idle"), "{error}");
    }
    assert_eq!(
        CmId::new(&channel, PortSpace::Ipoib, 0)
            .unwrap_err()
            .errno(),
        95
    );
}

#[test]
fn a_synchronous_pair() {
    let listening = CmId::new_sync(PortSpace::Tcp).unwrap();
    listening.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    listening.listen(0).unwrap();
    let address = listening.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let id = listening.get_request().unwrap();
        let setup = Setup::default();
        let channel = id.channel();
        let end = equip(&setup, channel, id);
        end.recv(1, 0, 64);
        end.id.accept(&setup.param).unwrap();
        end.success()
    });
    let id = CmId::new_sync(PortSpace::Tcp).unwrap();
    id.resolve_addr(None, address, PATIENCE).unwrap();
    id.resolve_route(PATIENCE).unwrap();
    let setup = Setup::default();
    let channel = id.channel();
    let client = equip(&setup, channel, id);
    client.id.connect(&setup.param).unwrap();
    client.send(1, 0, 64);
    assert_eq!(server.join().unwrap().byte_len, 64);
    // And the error itself where there is nobody.
    let id = CmId::new_sync(PortSpace::Tcp).unwrap();
    let (_kept, address) = nobody();
    id.resolve_addr(None, address, PATIENCE).unwrap();
    id.resolve_route(PATIENCE).unwrap();
    let channel = id.channel();
    let client = equip(&setup, channel, id);
    assert_eq!(client.id.connect(&setup.param).unwrap_err().errno(), 111);
}

fn events_follow_a_migrated_identifier(transport: Transport) {
    let setup = Setup::over(transport);
    let (client, server) = pair(&setup);
    client.id.disconnect().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let other = EventChannel::new().unwrap();
    server.id.migrate_id(&other).unwrap();
    no_event(&server.channel, Duration::from_millis(10));
    expect(&other, EventKind::Disconnected);
}

fn dropping_an_end_disconnects_the_other(transport: Transport) {
    // field B7, B74, B78
    for drop_client in [true, false] {
        let (client, server) = pair(&Setup::over(transport));
        let (gone, left) = if drop_client {
            (client, server)
        } else {
            (server, client)
        };
        for n in 0..10 {
            left.recv(n, 0, 64);
        }
        drop(gone);
        expect(&left.channel, EventKind::Disconnected);
        assert_eq!(left.qp.state(), QpState::Err);
        let flushed = left.completions(10);
        assert!(flushed.iter().all(|wc| wc.status == WcStatus::WrFlushErr));
        assert!(
            flushed.iter().all(|wc| wc.qp_num == left.qp.qp_num()),
            "field B71"
        );
        assert!(flushed.iter().map(|wc| wc.wr_id).eq(0..10));
        // field B86 and the rest of the state table: posting in ERR completes with a flush.
        left.send(77, 0, 8);
        assert_eq!(left.completions(1)[0].status, WcStatus::WrFlushErr);
        left.recv(78, 0, 8);
        assert_eq!(left.completions(1)[0].status, WcStatus::WrFlushErr);
    }
}

fn what_was_sent_before_a_disconnect_arrives(transport: Transport) {
    for _ in 0..20 {
        let (client, server) = pair(&Setup::over(transport));
        for n in 0..8_usize {
            server.recv(n as u64, n * 100_000, 100_000);
        }
        let data = client.fill(0, 100_000, 1);
        for n in 0..8 {
            client.send(n, 0, 100_000);
        }
        let sent = client.completions(8);
        assert!(sent.iter().all(|wc| wc.status == WcStatus::Success));
        client.id.disconnect().unwrap();
        let got = server.completions(8);
        assert!(
            got.iter().all(|wc| wc.status == WcStatus::Success),
            "{got:?}"
        );
        assert_eq!(server.read(700_000, 100_000), data);
        expect(&server.channel, EventKind::Disconnected);
        expect(&client.channel, EventKind::Disconnected);
    }
}
