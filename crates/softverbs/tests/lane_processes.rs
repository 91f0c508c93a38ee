//! iWARP past the kernel between two processes, one of which may be another user's, is stopped, is killed or
//! exits.

mod common;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use common::child::{Other, role};
use common::lanes::{SENT, SLOT, SLOTS, alone, content, lanes, more, none, prepare, setup};
use common::{End, PATIENCE, Setup, equip, expect, listener, pattern, poll, resolved};
use nix::sys::signal::Signal;
use softverbs::cm::{CmId, CmOption, ConnParam, EventChannel, EventKind};
use softverbs::{Rkey, SendFlags, SendOp, Wc, WcOpcode, WcStatus};

/// More than a ring holds.
const LARGE: usize = 600 << 10;

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
