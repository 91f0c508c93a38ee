//! Messages of the connection manager that are lost, late, doubled or overtaken, over RoCE on real
//! sockets. Above all the RTU: without it, the first packet of data is what tells the passive side
//! that the connection is up (InfiniBand's "communication established").

mod common;

use std::time::{Duration, Instant};

use common::faults::Faults;
use common::{End, Setup, expect, no_event, pattern, requested};
use softverbs::cm::EventKind;
use softverbs::fault::Kind;
use softverbs::{SendFlags, SendOp, Transport};

/// Far below the 4.3 s after which either side repeats what was not answered.
const AT_ONCE: Duration = Duration::from_secs(1);

const FAMILIES: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

fn setup(address: &str) -> Setup {
    Setup {
        address: address.parse().unwrap(),
        ..Setup::over(Transport::Roce)
    }
}

/// Where the receive of this number goes.
fn place(wr_id: u64) -> usize {
    4096 + usize::try_from(wr_id).unwrap() * 64
}

/// Connected for the client; the server has accepted and has not heard of it.
fn half_connected(setup: &Setup) -> (End, End) {
    let (client, server, _listening) = requested(setup);
    for wr_id in 0..64 {
        server.recv(wr_id, place(wr_id), 64);
        client.recv(wr_id, place(wr_id), 64);
    }
    server.id.accept(&setup.param).unwrap();
    drop(expect(&client.channel, EventKind::Established));
    (client, server)
}

/// Messages in both directions: each side's arrive at the other in order. Sends are unsignalled,
/// so that only receives complete.
fn converse(client: &End, server: &End, rounds: u64) {
    for round in 0..rounds {
        for (from, to, len) in [(client, server, 48), (server, client, 33)] {
            let sent = pattern(len, round * 64 + len as u64);
            from.send_inline(1000, &sent, SendFlags::empty());
            receive(to, &sent);
        }
    }
}

/// The next completion is of a receive that got `expected`, which is posted again.
fn receive(end: &End, expected: &[u8]) {
    let done = end.success();
    let at = place(done.wr_id);
    assert_eq!(end.read(at, done.byte_len as usize), expected);
    end.recv(done.wr_id, at, 64);
}

/// Both sides see the end of the connection.
fn part(client: &End, server: &End) {
    client.id.disconnect().unwrap();
    drop(expect(&client.channel, EventKind::Disconnected));
    drop(expect(&server.channel, EventKind::Disconnected));
}

/// The messages that make a connection. Those that end one may be of the test before.
const SET_UP: [Kind; 5] = [Kind::Req, Kind::Mra, Kind::Rej, Kind::Rep, Kind::Rtu];

/// So far the connection manager has said nothing but REQ, REP and one RTU, and nothing twice.
fn nothing_was_repeated(faults: &Faults, rtus_in: u64) {
    let sent = SET_UP.map(|kind| faults.sent(kind));
    assert_eq!(sent, [1, 0, 0, 1, 1]);
    let received = SET_UP.map(|kind| faults.received(kind));
    assert_eq!(received, [1, 0, 0, 1, rtus_in]);
}

#[test]
fn the_first_packet_stands_for_a_lost_rtu() {
    for address in FAMILIES {
        let faults = Faults::install("out:rtu=drop");
        let (client, server) = half_connected(&setup(address));
        no_event(&server.channel, Duration::from_millis(20));
        let begin = Instant::now();
        client.send_inline(1, b"first", SendFlags::SIGNALED);
        // Nobody polls: the engine's thread receives it.
        drop(expect(&server.channel, EventKind::Established));
        assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
        nothing_was_repeated(&faults, 0);
        assert_eq!(faults.done(0), 1);
        receive(&server, b"first");
        client.success();
        no_event(&server.channel, Duration::from_millis(50));
        nothing_was_repeated(&faults, 0);
        converse(&client, &server, 50);
        part(&client, &server);
        assert_eq!(faults.sent(Kind::Rtu), 1);
    }
}

#[test]
fn an_rtu_that_is_lost_on_the_last_metre() {
    for address in FAMILIES {
        let faults = Faults::install("in:rtu=drop");
        let (client, server) = half_connected(&setup(address));
        no_event(&server.channel, Duration::from_millis(20));
        client.send_inline(1, b"first", SendFlags::SIGNALED);
        drop(expect(&server.channel, EventKind::Established));
        nothing_was_repeated(&faults, 1);
        assert_eq!(faults.done(0), 1);
        receive(&server, b"first");
        client.success();
        converse(&client, &server, 5);
    }
}

#[test]
fn responses_from_the_first_completion_go_out_in_order() {
    for address in FAMILIES {
        let faults = Faults::install("out:rtu=drop");
        let (client, server) = half_connected(&setup(address));
        let begin = Instant::now();
        for number in 0..20_u8 {
            client.send_inline(1000, &[number; 9], SendFlags::empty());
        }
        // The application looks at its completion queue only, and answers at once.
        for number in 0..20_u8 {
            receive(&server, &[number; 9]);
            server.send_inline(1000, &[number ^ 0x80; 17], SendFlags::empty());
        }
        for number in 0..20_u8 {
            receive(&client, &[number ^ 0x80; 17]);
        }
        assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
        nothing_was_repeated(&faults, 0);
        drop(expect(&server.channel, EventKind::Established));
        no_event(&server.channel, Duration::from_millis(20));
        part(&client, &server);
    }
}

/// One-sided operations establish it too, although they complete nothing on the passive side.
#[test]
fn any_first_request_stands_for_a_lost_rtu() {
    let faults = Faults::install("out:rtu=drop");
    for address in FAMILIES {
        for op in ["write", "read", "atomic"] {
            let (client, server) = half_connected(&setup(address));
            let sent = SET_UP.map(|kind| faults.sent(kind));
            let data = server.fill(0, 1024, 5);
            let (remote_addr, rkey) = (server.mr.addr(), server.mr.rkey());
            let begin = Instant::now();
            match op {
                "write" => client.post(7, SendOp::Write { remote_addr, rkey }, 2048, 512),
                "read" => client.post(7, SendOp::Read { remote_addr, rkey }, 0, 1024),
                _ => {
                    let op = SendOp::FetchAdd {
                        remote_addr,
                        rkey,
                        add: 1,
                    };
                    client.post(7, op, 0, 8);
                }
            }
            drop(expect(&server.channel, EventKind::Established));
            assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
            client.success();
            match op {
                "write" => assert_eq!(server.read(0, 512), [0; 512]),
                "read" => assert_eq!(client.read(0, 1024), data),
                _ => {
                    let before = u64::from_ne_bytes(data[..8].try_into().unwrap());
                    let now = u64::from_ne_bytes(server.read(0, 8).try_into().unwrap());
                    assert_eq!(now, before.wrapping_add(1));
                    assert_eq!(client.read(0, 8), data[..8]);
                }
            }
            let now = SET_UP.map(|kind| faults.sent(kind));
            assert_eq!(now, sent, "nothing was repeated");
            no_event(&server.channel, Duration::from_millis(10));
            part(&client, &server);
        }
    }
}

#[test]
fn a_late_rtu_does_no_harm() {
    for address in FAMILIES {
        let faults = Faults::install("out:rtu=delay:200ms");
        let (client, server) = half_connected(&setup(address));
        client.send_inline(1000, b"before", SendFlags::empty());
        drop(expect(&server.channel, EventKind::Established));
        receive(&server, b"before");
        assert_eq!(faults.received(Kind::Rtu), 0);
        no_event(&server.channel, Duration::from_millis(300));
        nothing_was_repeated(&faults, 1);
        converse(&client, &server, 20);
        no_event(&server.channel, Duration::from_millis(10));
        part(&client, &server);
    }
}

#[test]
fn an_rtu_after_the_end_does_no_harm() {
    let faults = Faults::install("out:rtu=delay:100ms");
    for address in FAMILIES {
        let (client, server) = half_connected(&setup(address));
        client.send_inline(1000, b"before", SendFlags::empty());
        drop(expect(&server.channel, EventKind::Established));
        part(&client, &server);
        let before = faults.received(Kind::Rtu);
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(faults.received(Kind::Rtu), before + 1);
        for end in [&client, &server] {
            if let Some(event) = end.channel.get_event(Some(Duration::ZERO)).unwrap() {
                assert_eq!(event.kind(), EventKind::TimewaitExit);
            }
        }
    }
}

#[test]
fn a_doubled_rtu_establishes_once() {
    for address in FAMILIES {
        let faults = Faults::install("out:rtu=dup:3");
        let (client, server) = half_connected(&setup(address));
        drop(expect(&server.channel, EventKind::Established));
        no_event(&server.channel, Duration::from_millis(20));
        assert_eq!(faults.received(Kind::Rtu), 4);
        converse(&client, &server, 20);
        no_event(&server.channel, Duration::from_millis(10));
        part(&client, &server);
    }
}

#[test]
fn a_doubled_reply_establishes_once() {
    for address in FAMILIES {
        let faults = Faults::install("out:rep=dup:2");
        let (client, server) = half_connected(&setup(address));
        drop(expect(&server.channel, EventKind::Established));
        converse(&client, &server, 20);
        no_event(&client.channel, Duration::from_millis(10));
        no_event(&server.channel, Duration::from_millis(10));
        // Each REP is answered: the first RTU may have been lost.
        assert_eq!(faults.received(Kind::Rep), 3);
        assert_eq!(faults.sent(Kind::Rep), 1);
        part(&client, &server);
    }
}

#[test]
fn a_doubled_request_is_one_connection() {
    for address in FAMILIES {
        let faults = Faults::install("out:req=dup:2");
        let (client, server) = half_connected(&setup(address));
        drop(expect(&server.channel, EventKind::Established));
        converse(&client, &server, 20);
        no_event(&server.channel, Duration::from_millis(10));
        assert_eq!(faults.received(Kind::Req), 3);
        part(&client, &server);
    }
}

/// What is answered by nothing is repeated: both families at once, since it takes a while.
fn lost_once(kind: Kind) {
    let spec = format!("out:{kind}@127.0.0.1:first=drop,out:{kind}@[::1]:first=drop");
    let faults = Faults::install(&spec);
    std::thread::scope(|scope| {
        for address in FAMILIES {
            scope.spawn(move || {
                let (client, server) = half_connected(&setup(address));
                drop(expect(&server.channel, EventKind::Established));
                converse(&client, &server, 20);
                no_event(&server.channel, Duration::from_millis(10));
                part(&client, &server);
            });
        }
    });
    assert_eq!([faults.done(0), faults.done(1)], [1, 1]);
    assert!(faults.sent(kind) >= 4, "{}", faults.sent(kind));
}

#[test]
fn a_lost_request_is_repeated() {
    lost_once(Kind::Req);
}

#[test]
fn a_lost_reply_is_repeated() {
    lost_once(Kind::Rep);
}

#[test]
fn overtaking_in_both_directions() {
    for seed in 1..=6 {
        let spec = format!("cm:50%=reorder:2,data:20%=reorder:3,seed={seed}");
        let faults = Faults::install(&spec);
        for address in FAMILIES {
            let (client, server) = half_connected(&setup(address));
            // Data and RTU race.
            for number in 0..10_u8 {
                client.send_inline(1000, &[number; 9], SendFlags::empty());
            }
            for number in 0..10_u8 {
                receive(&server, &[number; 9]);
            }
            drop(expect(&server.channel, EventKind::Established));
            converse(&client, &server, 20);
            no_event(&server.channel, Duration::from_millis(5));
            part(&client, &server);
        }
        assert!(faults.done(0) > 0 && faults.done(1) > 0);
    }
}
