//! Streams of iWARP that are delayed, cut, corrupted, reset and written in pieces.

mod common;

use std::time::{Duration, Instant};

use common::faults::Faults;
use common::{End, Setup, expect, nothing, pair, pattern, requested};
use softverbs::cm::{CmOption, EventKind};
use softverbs::fault::Kind;
use softverbs::{SendFlags, SendOp, WcStatus};

const FAMILIES: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

fn setup(address: &str) -> Setup {
    Setup {
        address: address.parse().unwrap(),
        ..Setup::default()
    }
}

/// With CRC; and with markers in both directions too.
fn with(options: &[CmOption]) -> Setup {
    Setup {
        client_options: options.to_vec(),
        server_options: options.to_vec(),
        ..Setup::default()
    }
}

/// Without the frames that a client sends before its first request.
fn plain(address: &str) -> Setup {
    Setup {
        client_options: vec![CmOption::PeerToPeer(false)],
        ..setup(address)
    }
}

/// Sends, writes and reads of all sizes, both ways at once, with every octet verified.
fn converse(client: &End, server: &End) {
    let half = 1 << 19;
    for (round, len) in (1..).zip([0, 1, 100, 4095, 4096, 65_535, 200_000, 33]) {
        for (from, to) in [(client, server), (server, client)] {
            let data = from.fill(0, len, round);
            to.recv(1, half, half);
            from.send(2, 0, len);
            assert_eq!(to.success().byte_len as usize, len);
            from.success();
            assert!(to.read(half, len) == data);
            let (remote_addr, rkey) = (to.mr.addr() + half as u64, to.mr.rkey());
            let data = from.fill(0, len, round + 100);
            from.post(3, SendOp::Write { remote_addr, rkey }, 0, len);
            from.post(4, SendOp::Read { remote_addr, rkey }, half, len);
            from.success();
            from.success();
            assert!(to.read(half, len) == data && from.read(half, len) == data);
        }
    }
}

fn part(client: &End, server: &End) {
    client.id.disconnect().unwrap();
    drop(expect(&client.channel, EventKind::Disconnected));
    drop(expect(&server.channel, EventKind::Disconnected));
}

#[test]
fn what_does_no_harm() {
    for spec in [
        "any=log",
        "any=delay:1ms",
        "any:10%=delay:0ms-5ms,seed=2",
        "frame=split:7",
        "in:frame=split:1",
        "mpa-request+mpa-reply=split:1",
        "any=rate:100M",
        "fpdu:3=partition:50ms",
        "any:10ms-40ms=partition",
    ] {
        for address in FAMILIES {
            let faults = Faults::install(spec);
            let (client, server) = pair(&setup(address));
            converse(&client, &server);
            assert_eq!(faults.sent(Kind::MpaRequest), 1);
            assert_eq!(faults.received(Kind::MpaRequest), 1);
            assert_eq!(faults.sent(Kind::MpaReply), 1);
            assert_eq!(faults.received(Kind::MpaReply), 1);
            assert_eq!(
                faults.sent(Kind::Fpdu),
                faults.received(Kind::Fpdu),
                "{spec}"
            );
            assert_eq!(faults.sent(Kind::Terminate), 0);
            part(&client, &server);
        }
    }
}

#[test]
fn markers_and_crc() {
    for options in [
        vec![CmOption::Crc(true)],
        vec![CmOption::MpaMarkers(true)],
        vec![CmOption::Crc(true), CmOption::MpaMarkers(true)],
    ] {
        let faults = Faults::install("fpdu:20%=delay:0ms-2ms,fpdu=split:100");
        let (client, server) = pair(&with(&options));
        converse(&client, &server);
        assert_eq!(faults.sent(Kind::Fpdu), faults.received(Kind::Fpdu));
        part(&client, &server);
    }
}

#[test]
fn start_up_that_is_delayed() {
    for spec in [
        "out:mpa-request=delay:100ms",
        "in:mpa-request=delay:100ms",
        "out:mpa-reply=delay:100ms",
        "in:mpa-reply=delay:100ms",
        "mpa-request+mpa-reply=partition:100ms",
    ] {
        let _faults = Faults::install(spec);
        let begin = Instant::now();
        let (client, server) = pair(&setup(FAMILIES[0]));
        assert!(begin.elapsed() >= Duration::from_millis(100), "{spec}");
        converse(&client, &server);
        part(&client, &server);
    }
}

#[test]
fn start_up_that_is_reset() {
    let faults = Faults::install("out:mpa-request=reset");
    let (server_channel, _listening, address) = common::listener(&setup(FAMILIES[0]));
    let (channel, id) = common::resolved(&setup(FAMILIES[0]), address);
    let client = common::equip(&setup(FAMILIES[0]), channel, id);
    client.id.connect(&Setup::default().param).unwrap();
    let event = expect(&client.channel, EventKind::Rejected);
    assert_eq!(event.status(), -104);
    common::no_event(&server_channel, Duration::from_millis(20));
    faults.now("in:mpa-request=reset");
    let (channel, id) = common::resolved(&setup(FAMILIES[0]), address);
    let client = common::equip(&setup(FAMILIES[0]), channel, id);
    client.id.connect(&Setup::default().param).unwrap();
    assert_eq!(expect(&client.channel, EventKind::Rejected).status(), -104);
}

#[test]
fn a_reset_in_the_middle() {
    for spec in ["out:fpdu:5=reset", "in:fpdu:5=reset"] {
        let _faults = Faults::install(spec);
        let (client, server) = pair(&plain(FAMILIES[0]));
        for number in 0..8_u64 {
            server.recv(number, usize::try_from(number).unwrap() * 64, 64);
        }
        client.recv(99, 0, 64);
        for number in 0..8 {
            client.send_inline(number, b"on and on", SendFlags::SIGNALED);
            if number < 4 {
                // A reset takes what nobody has read yet with it.
                assert_eq!(server.success().wr_id, number, "{spec}");
            }
        }
        for end in [&client, &server] {
            drop(expect(&end.channel, EventKind::Disconnected));
        }
        let done = server.completions(4);
        assert!(
            done.iter().all(|wc| wc.status == WcStatus::WrFlushErr),
            "{spec}: {done:?}"
        );
        assert_eq!(client.completions(9).len(), 9, "all end");
    }
}

#[test]
fn a_wrong_bit_is_found_by_the_crc() {
    for spec in ["out:fpdu:3=corrupt,seed=5", "in:fpdu:3=corrupt:30"] {
        let faults = Faults::install(spec);
        let (client, server) = pair(&with(&[CmOption::Crc(true), CmOption::PeerToPeer(false)]));
        for number in 0..4 {
            server.recv(number, 0, 1024);
        }
        for number in 0..4_u8 {
            client.fill(0, 1024, number.into());
            client.send(number.into(), 0, 1024);
            std::thread::sleep(Duration::from_millis(2));
        }
        for end in [&client, &server] {
            drop(expect(&end.channel, EventKind::Disconnected));
        }
        let done = server.completions(4);
        let arrived = done.iter().filter(|wc| wc.is_success()).count();
        assert_eq!(arrived, 2, "{spec}: {done:?}");
        assert_eq!(faults.sent(Kind::Terminate), 1);
    }
}

#[test]
fn a_stream_that_stands_still() {
    for spec in ["out:fpdu:4-=partition", "in:fpdu:4=partition"] {
        let faults = Faults::install(spec);
        let (client, server) = pair(&plain(FAMILIES[1]));
        for number in 0..6_u64 {
            server.recv(number, usize::try_from(number).unwrap() * 64, 64);
        }
        for number in 0..6_u8 {
            client.send_inline(
                number.into(),
                &pattern(40, number.into()),
                SendFlags::empty(),
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(
            server
                .completions(3)
                .iter()
                .filter(|wc| wc.is_success())
                .count(),
            3
        );
        nothing(&server.cq, Duration::from_millis(100));
        assert!(faults.done(0) >= 1);
        // The application may end it nevertheless; what is held on its way in holds the end, too.
        client.id.disconnect().unwrap();
        drop(expect(&client.channel, EventKind::Disconnected));
        if spec.starts_with("in") {
            common::no_event(&server.channel, Duration::from_millis(100));
            server.id.disconnect().unwrap();
        }
        drop(expect(&server.channel, EventKind::Disconnected));
        assert_eq!(server.completions(3)[0].status, WcStatus::WrFlushErr);
    }
}

/// The connection was made without a plan: there is no edge that it could pass.
#[test]
fn an_earlier_connection_is_left_alone() {
    let faults = Faults::none();
    let (client, server) = pair(&setup(FAMILIES[0]));
    faults.now("any=partition");
    converse(&client, &server);
    assert_eq!(faults.sent(Kind::Frame), 0);
    part(&client, &server);
}

#[test]
fn a_request_that_is_rejected() {
    for spec in ["any=delay:5ms", "frame=split:3"] {
        let _faults = Faults::install(spec);
        let (client, server, _listening) = requested(&setup(FAMILIES[0]));
        server.id.reject(b"not now").unwrap();
        let event = expect(&client.channel, EventKind::Rejected);
        assert!(event.is_consumer_reject());
        assert_eq!(event.private_data(), b"not now");
    }
}
