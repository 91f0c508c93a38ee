//! iWARP past the kernel: the octets of a connection within a host go by shared memory from some moment on.
//! Nothing is lost or repeated then. Both ends are in one process.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::lanes::{SENT, SLOT, SLOTS, alone, content, lanes, more, none, prepare, setup};
use common::{End, PATIENCE, Setup, pair};
use softverbs::cm::CmOption;
use softverbs::{SendFlags, SendOp, WcOpcode, WcStatus};

/// Sends messages and receives as many of another kind, and looks at every octet.
fn exchange(end: &End, count: u64, [sends, receives]: [u64; 2]) {
    let slots = SLOTS as u64;
    let place = |number: u64| usize::try_from(number % slots).unwrap() * SLOT;
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    while sent < count || received < count {
        // Who has sent a message had received all but half as many as there are places: there are receives
        // for these.
        while posted < count && posted < received + slots / 2 && posted < sent + slots {
            let data = content(posted, sends);
            let offset = SENT + place(posted);
            end.mr.copy_in(offset, &data).unwrap();
            end.send(posted, offset, data.len());
            posted += 1;
        }
        for wc in end.completions(1) {
            assert_eq!(wc.status, WcStatus::Success);
            if wc.opcode == WcOpcode::Recv {
                let data = content(received, receives);
                assert_eq!(wc.byte_len as usize, data.len(), "message {received}");
                let offset = place(wc.wr_id);
                assert!(end.read(offset, data.len()) == data, "message {received}");
                received += 1;
                end.recv(wc.wr_id, offset, SLOT);
            } else {
                assert_eq!(wc.wr_id, sent);
                sent += 1;
            }
        }
    }
}

fn both_ways(setup: &Setup, rounds: u64) {
    const COUNT: u64 = 150;
    let _alone = alone();
    for round in 0..rounds {
        let (client, server) = pair(setup);
        prepare(&client);
        prepare(&server);
        let (before, begin) = (lanes(), Instant::now());
        let seeds = [2 * round, 2 * round + 1];
        loop {
            thread::scope(|scope| {
                scope.spawn(|| exchange(&server, COUNT, seeds));
                exchange(&client, COUNT, [seeds[1], seeds[0]]);
            });
            if none() || more(before, 2) {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "{before:?}, {:?}", lanes());
        }
    }
}

#[test]
fn every_octet_arrives_once_while_the_ends_go_over() {
    both_ways(&setup("127.0.0.1:0"), 20);
}

#[test]
fn over_ipv6_too() {
    both_ways(&setup("[::1]:0"), 5);
}

#[test]
fn with_crc_and_markers_too() {
    let options = vec![CmOption::Crc(true), CmOption::MpaMarkers(true)];
    let setup = Setup {
        client_options: options.clone(),
        server_options: options,
        ..setup("127.0.0.1:0")
    };
    both_ways(&setup, 5);
}

#[test]
fn with_frames_of_all_sizes_and_full_sockets_too() {
    let options = vec![
        CmOption::MpaAware(true),
        CmOption::FpduLimit(1000),
        CmOption::SendBuffer(4096),
        CmOption::RecvBuffer(4096),
    ];
    let setup = Setup {
        client_options: options.clone(),
        server_options: options,
        ..setup("127.0.0.1:0")
    };
    both_ways(&setup, 5);
}

/// One end on each side of which nobody polls: the library's thread serves it.
#[test]
fn a_target_that_does_nothing_is_served() {
    let _alone = alone();
    let before = lanes();
    let (client, server) = pair(&Setup {
        len: 4 << 20,
        ..setup("127.0.0.1:0")
    });
    let (addr, rkey) = (server.mr.addr(), server.mr.rkey());
    for round in 0..200 {
        let len = 1 + round * 7919 % (1 << 20);
        let offset = round * 104_729 % (2 << 20);
        let data = client.fill(0, len, round as u64);
        let remote_addr = addr + offset as u64;
        client.post(0, SendOp::Write { remote_addr, rkey }, 0, len);
        // Behind the write.
        client.post(1, SendOp::Read { remote_addr, rkey }, 1 << 20, len);
        client
            .completions(2)
            .iter()
            .for_each(|wc| assert!(wc.is_success()));
        assert!(client.read(1 << 20, len) == data, "{round}");
        assert!(server.read(offset, len) == data, "{round}");
        if round == 100 {
            // The thread sleeps.
            thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(none() || more(before, 2), "{before:?}, {:?}", lanes());
}

#[test]
fn more_connections_than_lanes() {
    const PAIRS: usize = 50;
    const MOST: u64 = 64;
    let _alone = alone();
    let before = lanes();
    let setup = Setup {
        len: 4096,
        ..setup("127.0.0.1:0")
    };
    let pairs: Vec<_> = (0..PAIRS).map(|_| pair(&setup)).collect();
    for round in 0..200_u64 {
        for (client, server) in &pairs {
            server.recv(round, 0, 8);
            client.send_inline(round, &round.to_ne_bytes(), SendFlags::SIGNALED);
        }
        for (client, server) in &pairs {
            assert!(client.success().wr_id == round && server.success().wr_id == round);
            assert_eq!(server.read(0, 8), round.to_ne_bytes());
        }
    }
    let [made, out, inn] = lanes();
    if !none() {
        let (made, out, inn) = (made - before[0], out - before[1], inn - before[2]);
        // Both ends are here. Only the clients send.
        assert!((MOST / 2..=MOST).contains(&made), "{made}");
        assert!(
            out == inn && (MOST / 4..=MOST / 2).contains(&out),
            "{out}, {inn}"
        );
    }
    // When they have gone there is a place for others.
    drop(pairs);
    both_ends_have_a_lane(&setup);
}

fn both_ends_have_a_lane(setup: &Setup) {
    let before = lanes();
    let begin = Instant::now();
    let (client, server) = pair(setup);
    while !none() && !more(before, 2) {
        for (from, to) in [(&client, &server), (&server, &client)] {
            to.recv(0, 0, 8);
            from.send_inline(0, b"are here", SendFlags::SIGNALED);
            assert!(from.success().is_success() && to.success().is_success());
        }
        assert!(begin.elapsed() < PATIENCE, "{before:?}, {:?}", lanes());
    }
}
