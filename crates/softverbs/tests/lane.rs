//! iWARP past the kernel: between processes of one user the octets of a connection go by shared memory
//! from some moment on. Nothing is lost or repeated then, nor at the end.

mod common;

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::child::{Other, role};
use common::{End, PATIENCE, Setup, equip, expect, listener, pair, pattern, poll, resolved};
use nix::sys::signal::Signal;
use softverbs::cm::{CmId, CmOption, ConnParam, EventChannel, EventKind};
use softverbs::{Rkey, SendFlags, SendOp, Wc, WcOpcode, WcStatus, iwarp_status};

/// Octets of each place for a message.
const SLOT: usize = 128 << 10;
/// Messages under way in each direction at most.
const SLOTS: usize = 8;
/// Where the messages that are sent lie, behind those that are received.
const SENT: usize = SLOTS * SLOT;
/// More than a ring holds.
const LARGE: usize = 600 << 10;

/// The counters are of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lanes that were made; of these, those that went over to sending, and to receiving.
fn lanes() -> [u64; 3] {
    let counters = iwarp_status().counters;
    assert_eq!(counters.len(), 3);
    [counters[0].1, counters[1].1, counters[2].1]
}

/// Whether there are so many more.
fn more(before: [u64; 3], count: u64) -> bool {
    let now = lanes();
    (0..3).all(|which| now[which] == before[which] + count)
}

/// Whether the environment of the tests says that there are none.
fn none() -> bool {
    std::env::var("SOFTVERBS_SAME_HOST").is_ok_and(|way| way == "network")
}

fn setup(address: &str) -> Setup {
    Setup {
        address: address.parse().unwrap(),
        len: 2 * SENT,
        ..Setup::default()
    }
}

/// The length of a message by its number: of all sizes, most of them small.
fn len_of(number: u64, seed: u64) -> usize {
    let random = pattern(8, number ^ seed << 32 | 1);
    let random =
        usize::from(random[3]) << 16 | usize::from(random[5]) << 8 | usize::from(random[7]);
    let bits = u32::try_from(random % 17).unwrap();
    (random >> 4 & ((1 << bits) - 1)) + random % 5
}

fn content(number: u64, seed: u64) -> Vec<u8> {
    pattern(len_of(number, seed), number + seed)
}

/// Receives that messages find.
fn prepare(end: &End) {
    for slot in 0..SLOTS {
        end.recv(slot as u64, slot * SLOT, SLOT);
    }
}

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

/// Connects to an address, or listens at it, and answers every message with the same. Then says what
/// became of it.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let (what, address) = role.split_once(' ').unwrap();
    let setup = setup(address);
    let (end, _keep) = if what == "listens" {
        let (channel, listening, address) = listener(&setup);
        eprintln!("address {address}");
        let request = expect(&channel, EventKind::ConnectRequest);
        let end = equip(&setup, channel.clone(), request.id().clone());
        prepare(&end);
        end.id.accept(&offer(&end)).unwrap();
        (end, Some((channel, listening)))
    } else {
        let (channel, id) = resolved(&setup, setup.address);
        let end = equip(&setup, channel, id);
        prepare(&end);
        end.id.connect(&offer(&end)).unwrap();
        (end, None)
    };
    drop(expect(&end.channel, EventKind::Established));
    let mut answers = 0_usize;
    loop {
        let wc = poll(&end.cq, 1)[0];
        if !wc.is_success() {
            break;
        }
        if wc.opcode != WcOpcode::Recv {
            continue;
        }
        let (slot, len) = (usize::try_from(wc.wr_id).unwrap(), wc.byte_len as usize);
        let (from, to) = (slot * SLOT, SENT + answers % SLOTS * SLOT);
        end.mr.copy_in(to, &end.read(from, len)).unwrap();
        end.recv(wc.wr_id, from, SLOT);
        if what == "exits" && len == 1 {
            // More than the ring holds, and nobody waits for it.
            (0..SLOTS).for_each(|slot| {
                end.fill(SENT + slot * SLOT, SLOT, slot as u64);
                end.send(0, SENT + slot * SLOT, SLOT);
            });
            std::process::exit(0);
        }
        end.send(0, to, len);
        answers += 1;
    }
    drop(expect(&end.channel, EventKind::Disconnected));
    let [_, out, inn] = lanes();
    eprintln!("done {answers} {}", out + inn);
}

/// Where the peer may write.
fn offer(end: &End) -> ConnParam {
    let mut private_data = end.mr.addr().to_be_bytes().to_vec();
    private_data.extend_from_slice(&end.mr.rkey().get().to_be_bytes());
    ConnParam {
        private_data,
        ..ConnParam::default()
    }
}

/// The end of this process, the child, and where it may be written to.
struct Meeting {
    end: End,
    child: Other,
    addr: u64,
    rkey: Rkey,
    _listening: Option<(EventChannel, CmId)>,
}

fn meet(what: &str, wrapper: &[&str], environment: &[(&str, &str)], setup: &Setup) -> Meeting {
    let target = |data: &[u8]| {
        let rkey = u32::from_be_bytes(data[8..12].try_into().unwrap());
        let addr = u64::from_be_bytes(data[..8].try_into().unwrap());
        (addr, Rkey::new(rkey))
    };
    if what == "listens" {
        let role = format!("{what} {}", setup.address);
        let mut child = Other::start(&role, wrapper, environment);
        let address: SocketAddr = child.says("address").parse().unwrap();
        let (channel, id) = resolved(setup, address);
        let end = equip(setup, channel, id);
        prepare(&end);
        end.id.connect(&ConnParam::default()).unwrap();
        let event = expect(&end.channel, EventKind::Established);
        let (addr, rkey) = target(event.private_data());
        drop(event);
        return Meeting {
            end,
            child,
            addr,
            rkey,
            _listening: None,
        };
    }
    let (channel, listening, address) = listener(setup);
    let child = Other::start(&format!("{what} {address}"), wrapper, environment);
    let request = expect(&channel, EventKind::ConnectRequest);
    let (addr, rkey) = target(request.private_data());
    let end = equip(setup, channel.clone(), request.id().clone());
    drop(request);
    prepare(&end);
    end.id.accept(&ConnParam::default()).unwrap();
    drop(expect(&end.channel, EventKind::Established));
    Meeting {
        end,
        child,
        addr,
        rkey,
        _listening: Some((channel, listening)),
    }
}

impl Meeting {
    /// Messages that come back; each a new one.
    fn echoes(&self, from: u64, count: u64) {
        for number in from..from + count {
            let data = content(number, 99);
            self.end.mr.copy_in(SENT, &data).unwrap();
            self.end.send(number, SENT, data.len());
            for wc in self.end.completions(2) {
                assert!(wc.is_success(), "{wc:?}");
                if wc.opcode == WcOpcode::Recv {
                    assert_eq!(wc.byte_len as usize, data.len());
                    let offset = usize::try_from(wc.wr_id).unwrap() * SLOT;
                    assert!(self.end.read(offset, data.len()) == data, "{number}");
                    self.end.recv(wc.wr_id, offset, SLOT);
                }
            }
        }
    }

    /// The same until both have gone over. How many messages it took.
    fn goes_over(&self, before: [u64; 3]) -> u64 {
        const ROUND: u64 = 100;
        let begin = Instant::now();
        for round in 1.. {
            self.echoes(round * ROUND, ROUND);
            if none() || more(before, 1) {
                return round * ROUND;
            }
            assert!(begin.elapsed() < PATIENCE, "{before:?}, {:?}", lanes());
        }
        unreachable!("it takes less than for ever")
    }

    fn write(&self, wr_id: u64, offset: usize, len: usize) {
        let (remote_addr, rkey) = (self.addr + offset as u64, self.rkey);
        self.end
            .post(wr_id, SendOp::Write { remote_addr, rkey }, offset, len);
    }

    /// The child says how many messages it has answered, and how often it has gone over.
    fn ends(mut self, answers: u64, went_over: u64) {
        self.end.id.disconnect().unwrap();
        let said = self.child.says("done");
        assert_eq!(said, format!("{answers} {went_over}"));
        assert!(self.child.finish().success());
    }
}

#[test]
fn between_two_processes_whoever_connects() {
    let _alone = alone();
    for what in ["listens", "connects"] {
        let before = lanes();
        let meeting = meet(what, &[], &[], &setup("127.0.0.1:0"));
        let echoes = meeting.goes_over(before);
        meeting.echoes(1, 500);
        meeting.ends(echoes + 500, if none() { 0 } else { 2 });
    }
}

#[test]
fn not_when_one_of_them_says_so() {
    let _alone = alone();
    for what in ["listens", "connects"] {
        let before = lanes();
        let only = [("SOFTVERBS_SAME_HOST", "network")];
        let meeting = meet(what, &[], &only, &setup("127.0.0.1:0"));
        meeting.echoes(0, 200);
        assert_eq!(lanes(), before);
        meeting.ends(200, 0);
    }
}

#[test]
fn not_between_users() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root is two users");
        return;
    }
    let _alone = alone();
    let nobody = ["setpriv", "--reuid=65534", "--clear-groups"];
    for what in ["listens", "connects"] {
        let before = lanes();
        let meeting = meet(what, &nobody, &[], &setup("127.0.0.1:0"));
        // They meet several times.
        meeting.echoes(0, 5000);
        assert_eq!(lanes(), before);
        meeting.ends(5000, 0);
    }
}

/// A peer that is stopped takes nothing; what it gets when it goes on is right.
#[test]
fn a_full_ring_waits_for_its_reader() {
    let _alone = alone();
    let before = lanes();
    let meeting = meet("connects", &[], &[], &setup("127.0.0.1:0"));
    let echoes = meeting.goes_over(before);
    let Meeting { end, child, .. } = &meeting;
    for round in 0..6 {
        let data = end.fill(SENT, LARGE, round);
        child.stop();
        meeting.write(round, SENT, LARGE);
        let mut written = 0;
        if round % 2 == 0 {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(50) {
                written += end.cq.poll(&mut [Wc::default()]).unwrap();
            }
        } else {
            // Nobody polls: the library's thread hears of the room.
            thread::sleep(Duration::from_millis(50));
        }
        assert!(none() || written == 0, "a ring does not hold so much");
        child.signal(Signal::SIGCONT);
        if round % 3 == 0 {
            thread::sleep(Duration::from_millis(50));
        }
        assert!(poll(&end.cq, 1 - written).iter().all(Wc::is_success));
        end.fill(SENT, LARGE, 1000);
        let (remote_addr, rkey) = (meeting.addr + SENT as u64, meeting.rkey);
        end.post(9, SendOp::Read { remote_addr, rkey }, SENT, LARGE);
        assert!(end.success().wr_id == 9 && end.read(SENT, LARGE) == data);
    }
    meeting.ends(echoes, if none() { 0 } else { 2 });
}

/// As the option `Keepalive` says, though TCP has nothing to ask for.
#[test]
fn a_peer_that_takes_nothing_for_too_long_is_given_up() {
    let _alone = alone();
    let options = vec![CmOption::Keepalive(Some(Duration::from_secs(1)))];
    let setup = Setup {
        client_options: options.clone(),
        server_options: options,
        ..setup("127.0.0.1:0")
    };
    let before = lanes();
    let meeting = meet("connects", &[], &[], &setup);
    meeting.goes_over(before);
    let Meeting { end, child, .. } = &meeting;
    child.stop();
    (0..4).for_each(|n| meeting.write(n, 0, SENT));
    drop(expect(&end.channel, EventKind::Disconnected));
    let ended = poll(&end.cq, 4 + SLOTS);
    let count = |status| ended.iter().filter(|wc| wc.status == status).count();
    assert!(count(WcStatus::WrFlushErr) > SLOTS, "{ended:?}");
}

#[test]
fn a_peer_that_is_killed_is_missed() {
    let _alone = alone();
    for what in ["listens", "connects"] {
        let before = lanes();
        let mut meeting = meet(what, &[], &[], &setup("127.0.0.1:0"));
        meeting.goes_over(before);
        // In the middle of something, in both directions.
        let (remote_addr, rkey) = (meeting.addr, meeting.rkey);
        for n in 0..8 {
            meeting.write(n, SENT, SENT);
            let read = SendOp::Read { remote_addr, rkey };
            meeting.end.post(n, read, SENT, SENT);
        }
        meeting.end.completions(2);
        meeting.child.kill();
        drop(expect(&meeting.end.channel, EventKind::Disconnected));
        let ended = poll(&meeting.end.cq, 14 + SLOTS);
        let flushed = |wc: &&Wc| wc.status == WcStatus::WrFlushErr;
        assert!(ended.iter().filter(flushed).count() >= SLOTS);
        assert!(ended.iter().all(|wc| wc.is_success() || flushed(&wc)));
    }
}

#[test]
fn an_idle_peer_that_is_killed_is_missed() {
    let _alone = alone();
    let before = lanes();
    let mut meeting = meet("connects", &[], &[], &setup("127.0.0.1:0"));
    meeting.goes_over(before);
    thread::sleep(Duration::from_millis(20));
    meeting.child.kill();
    drop(expect(&meeting.end.channel, EventKind::Disconnected));
    let before = lanes();
    let mut meeting = meet("listens", &[], &[], &setup("127.0.0.1:0"));
    meeting.goes_over(before);
    meeting.child.kill();
    // Polls only: the thread leaves it to us.
    let flushed = poll(&meeting.end.cq, SLOTS);
    assert!(flushed.iter().all(|wc| wc.status == WcStatus::WrFlushErr));
}

/// What it has posted before is more than a ring holds.
#[test]
fn what_a_process_leaves_when_it_exits_arrives() {
    let _alone = alone();
    for _ in 0..3 {
        let before = lanes();
        let meeting = meet("exits", &[], &[], &setup("127.0.0.1:0"));
        let Meeting { end, child, .. } = meeting;
        let begin = Instant::now();
        while !none() && !more(before, 1) {
            end.send_inline(0, b"not yet", SendFlags::empty());
            let wc = end.success();
            end.recv(wc.wr_id, usize::try_from(wc.wr_id).unwrap() * SLOT, SLOT);
            assert!(begin.elapsed() < PATIENCE, "{before:?}, {:?}", lanes());
        }
        end.send_inline(0, b"!", SendFlags::empty());
        for (slot, wc) in end.completions(SLOTS).iter().enumerate() {
            assert!(wc.is_success() && wc.byte_len as usize == SLOT, "{wc:?}");
            let offset = usize::try_from(wc.wr_id).unwrap() * SLOT;
            assert!(end.read(offset, SLOT) == pattern(SLOT, slot as u64));
        }
        drop(expect(&end.channel, EventKind::Disconnected));
        assert!(child.finish().success());
    }
}

/// The ring is full; what is in it, and the rest of the frame that has begun, reaches the peer before the
/// end of the connection, which is no fault of anybody.
#[test]
fn a_queue_pair_that_goes_leaves_whole_frames() {
    let _alone = alone();
    for destroy in [false, true] {
        let before = lanes();
        let meeting = meet("connects", &[], &[], &setup("127.0.0.1:0"));
        let echoes = meeting.goes_over(before);
        let Meeting { end, child, .. } = &meeting;
        child.stop();
        for n in 0..4 {
            meeting.write(n, SENT, SENT);
        }
        if destroy {
            end.qp.destroy();
        } else {
            end.id.disconnect().unwrap();
        }
        child.signal(Signal::SIGCONT);
        let mut child = meeting.child;
        let went_over = if none() { 0 } else { 2 };
        assert_eq!(child.says("done"), format!("{echoes} {went_over}"));
        assert!(child.finish().success());
    }
}
