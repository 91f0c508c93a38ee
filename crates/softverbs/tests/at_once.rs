//! Small RDMA Writes to a process of the same host that never polls are placed by their sender: as fast as
//! that is, they go nowhere where they may not, nor any longer than they may.

mod common;
#[path = "common/guarded.rs"]
mod guarded;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::child::{Other, role, until_dismissed};
use common::{ALL, End, PATIENCE, Setup, equip, expect, listener, pair, resolved};
use guarded::Guarded;
use softverbs::cm::{ConnParam, EventKind};
use softverbs::{
    QpAttr, QpAttrMask, QpCap, QpState, Rkey, SendData, SendFlags, SendOp, SendWr, Transport, Wc,
    WcStatus, iwarp_status, roce_status,
};

common::over_both! {
    all_arrive_while_the_target_stays,
    none_when_the_environment_says_so,
    not_after_the_region_has_gone,
    not_after_the_queue_pair_has_failed,
    not_after_the_queue_pair_has_gone,
    a_killed_target_is_missed,
    small_ones_overtake_nothing,
}

/// Octets of the target's region; the first eight are the number of the last write.
const LEN: usize = 256;
/// Writes before something happens.
const MANY: u64 = 2000;
const PLACED: &str = "writes placed in another process's memory";

fn setup(transport: Transport) -> Setup {
    Setup {
        cap: QpCap {
            max_send_wr: 8,
            max_inline_data: 256,
            max_recv_wr: 8,
            ..QpCap::default()
        },
        len: 8192,
        ..Setup::over(transport)
    }
}

/// The target; does nothing unless it is told to.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let (transport, role) = role.split_once(' ').unwrap();
    let setup = setup(transport.parse().unwrap());
    let (channel, _listening, address) = listener(&setup);
    eprintln!("listening on {address}");
    let request = expect(&channel, EventKind::ConnectRequest);
    let end = equip(&setup, channel.clone(), request.id().clone());
    drop(request);
    let target = Guarded::new(&end.pd, LEN, true, ALL);
    assert!(target.is_zero());
    let mut private_data = target.mr.addr().to_be_bytes().to_vec();
    private_data.extend(target.mr.rkey().get().to_be_bytes());
    let param = ConnParam {
        private_data,
        ..ConnParam::default()
    };
    end.id.accept(&param).unwrap();
    drop(expect(&channel, EventKind::Established));
    // From here on it reads its memory, and nothing else.
    let number = || {
        loop {
            // It may be written while it is read.
            let (one, other) = (target.word(), target.word());
            if one == other {
                return one;
            }
        }
    };
    let begin = Instant::now();
    while number() < MANY {
        assert!(begin.elapsed() < PATIENCE, "{} writes", number());
        std::thread::sleep(Duration::from_micros(50));
    }
    match role {
        "stays" => {}
        "deregisters" => target.mr.dereg().unwrap(),
        "ends the queue pair" => {
            let attr = QpAttr {
                qp_state: QpState::Err,
                ..QpAttr::default()
            };
            end.qp.modify(&attr, QpAttrMask::STATE).unwrap();
        }
        "destroys the queue pair" => end.qp.destroy(),
        "takes the right to write away" => {
            let attr = QpAttr {
                qp_access_flags: softverbs::Access::LOCAL_WRITE,
                ..QpAttr::default()
            };
            end.qp.modify(&attr, QpAttrMask::ACCESS_FLAGS).unwrap();
        }
        "waits to be killed" => {}
        _ => panic!("{role}"),
    }
    if role != "stays" && role != "waits to be killed" {
        if role != "deregisters" {
            // What had begun before is finished soon.
            std::thread::sleep(Duration::from_millis(50));
        }
        let before = number();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(number(), before, "written to afterwards");
    }
    assert!(target.is_intact_outside(), "written beside the region");
    eprintln!("done {}", number());
    until_dismissed();
}

/// Starts a target.
fn target(transport: Transport, role: &str, environment: &[(&str, &str)]) -> Other {
    Other::start(&format!("{} {role}", transport.name()), &[], environment)
}

struct Writer {
    end: End,
    addr: u64,
    rkey: Rkey,
    written: u64,
}

impl Writer {
    fn connect(transport: Transport, child: &mut Other) -> Self {
        let setup = setup(transport);
        let address = child.says("listening on ").parse().unwrap();
        let (channel, id) = resolved(&setup, address);
        let end = equip(&setup, channel, id);
        end.id.connect(&ConnParam::default()).unwrap();
        let established = expect(&end.channel, EventKind::Established);
        let (addr, rest) = established
            .param()
            .private_data
            .split_first_chunk::<8>()
            .unwrap();
        let rkey = rest.first_chunk::<4>().unwrap();
        let (addr, rkey) = (u64::from_be_bytes(*addr), u32::from_be_bytes(*rkey));
        drop(established);
        Self {
            end,
            addr,
            rkey: Rkey::new(rkey),
            written: 0,
        }
    }

    /// Writes the next number, and waits for the completion. In turn from the request itself and from
    /// registered memory; the whole region each time.
    fn write(&mut self) -> WcStatus {
        let number = self.written + 1;
        let octets = number.to_be_bytes().repeat(LEN / 8);
        let op = SendOp::Write {
            remote_addr: self.addr,
            rkey: self.rkey,
        };
        let end = &self.end;
        if number.is_multiple_of(2) {
            end.mr.copy_in(0, &octets).unwrap();
            let sges = [end.mr.sge(0, 100), end.mr.sge(100, LEN - 100)];
            let wr = SendWr::new(number, op, SendData::Sges(&sges));
            end.qp.post_send(&wr).unwrap();
        } else {
            let (first, rest) = octets.split_at(200);
            // Behind the first part, which is not asked for.
            let wr = SendWr::new(0, op, SendData::Inline(first)).with_flags(SendFlags::empty());
            end.qp.post_send(&wr).unwrap();
            end.mr.copy_in(0, rest).unwrap();
            let sges = [end.mr.sge(0, rest.len())];
            let op = SendOp::Write {
                remote_addr: self.addr + 200,
                rkey: self.rkey,
            };
            let wr = SendWr::new(number, op, SendData::Sges(&sges));
            end.qp.post_send(&wr).unwrap();
        }
        let begin = Instant::now();
        let mut wc = [Wc::default()];
        while end.cq.poll(&mut wc).unwrap() == 0 {
            assert!(
                begin.elapsed() < PATIENCE,
                "write {number} does not complete"
            );
        }
        if wc[0].is_success() {
            assert_eq!(wc[0].wr_id, number);
            self.written = number;
        }
        if number / 100 % 2 == 1 {
            // Over iWARP, where a write completes before it is there: the target has time to come to it.
            std::thread::sleep(Duration::from_micros(20));
        }
        wc[0].status
    }

    /// Writes until it fails, and says how.
    fn write_until_failure(&mut self) -> WcStatus {
        let begin = Instant::now();
        loop {
            let status = self.write();
            if status != WcStatus::Success {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "{} writes", self.written);
        }
    }
}

/// The tests one after the other: what is counted is counted for the process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes that this process has placed itself.
fn placed(transport: Transport) -> u64 {
    let counters = match transport {
        Transport::Iwarp => iwarp_status().counters,
        Transport::Roce => roce_status().unwrap().counters,
    };
    let found = counters.iter().find(|(name, _)| *name == PLACED);
    found.unwrap().1
}

fn all_arrive_while_the_target_stays(transport: Transport) {
    let _alone = alone();
    let mut child = target(transport, "stays", &[]);
    let mut writer = Writer::connect(transport, &mut child);
    let begin = Instant::now();
    let before = placed(transport);
    // Some go the other way, and behind them the next ones.
    while writer.written < 2 * MANY || placed(transport) == before {
        assert_eq!(writer.write(), WcStatus::Success);
        assert!(begin.elapsed() < PATIENCE, "none was placed by the sender");
    }
    let seen: u64 = child.says("done").parse().unwrap();
    assert!((MANY..=writer.written).contains(&seen));
    assert!(child.finish().success());
}

fn none_when_the_environment_says_so(transport: Transport) {
    let _alone = alone();
    let before = placed(transport);
    let mut child = target(transport, "stays", &[("SOFTVERBS_SAME_HOST", "network")]);
    let mut writer = Writer::connect(transport, &mut child);
    while writer.written < MANY {
        assert_eq!(writer.write(), WcStatus::Success);
    }
    assert_eq!(placed(transport), before);
    child.says("done");
    assert!(child.finish().success());
}

fn refused(transport: Transport, role: &str, how: WcStatus) {
    let _alone = alone();
    let before = placed(transport);
    let mut child = target(transport, role, &[]);
    let mut writer = Writer::connect(transport, &mut child);
    let status = writer.write_until_failure();
    // Over iWARP it has completed before the peer refuses it.
    let flushed = transport == Transport::Iwarp && status == WcStatus::WrFlushErr;
    assert!(flushed || status == how, "{status:?}");
    assert!(placed(transport) > before, "all went another way");
    let seen: u64 = child.says("done").parse().unwrap();
    // The one that failed is of two parts, of which the first may have been in time.
    assert!((MANY..=writer.written + 1).contains(&seen), "{seen}");
    assert!(child.finish().success());
}

fn not_after_the_region_has_gone(transport: Transport) {
    refused(transport, "deregisters", WcStatus::RemAccessErr);
}

#[test]
fn not_after_the_right_has_gone() {
    refused(
        Transport::Roce,
        "takes the right to write away",
        WcStatus::RemInvReqErr,
    );
}

fn unanswered(transport: Transport, role: &str) {
    let _alone = alone();
    let before = placed(transport);
    let mut child = target(transport, role, &[]);
    let mut writer = Writer::connect(transport, &mut child);
    let status = writer.write_until_failure();
    assert!(placed(transport) > before, "all went another way");
    assert!(
        matches!(status, WcStatus::RetryExcErr | WcStatus::WrFlushErr),
        "{status:?}"
    );
    child.says("done");
    assert!(child.finish().success());
}

fn not_after_the_queue_pair_has_failed(transport: Transport) {
    unanswered(transport, "ends the queue pair");
}

fn not_after_the_queue_pair_has_gone(transport: Transport) {
    unanswered(transport, "destroys the queue pair");
}

fn a_killed_target_is_missed(transport: Transport) {
    let _alone = alone();
    let before = placed(transport);
    let mut child = target(transport, "waits to be killed", &[]);
    let mut writer = Writer::connect(transport, &mut child);
    while writer.written < MANY {
        assert_eq!(writer.write(), WcStatus::Success);
    }
    child.says("done");
    assert!(placed(transport) > before, "all went another way");
    child.kill();
    let status = writer.write_until_failure();
    assert!(
        matches!(status, WcStatus::RetryExcErr | WcStatus::WrFlushErr),
        "{status:?}"
    );
    drop(expect(&writer.end.channel, EventKind::Disconnected));
}

/// Over RoCE, large ones wait for their turn: what is posted behind them sees them, and completions come in the
/// order of the requests.
#[test]
fn large_ones_keep_their_place_in_the_queue() {
    const BIG: usize = 64 << 10;
    let transport = Transport::Roce;
    let _alone = alone();
    let before = placed(transport);
    let setup = Setup {
        len: 4 * BIG,
        ..Setup::over(transport)
    };
    let (client, server) = pair(&setup);
    let rkey = server.mr.rkey();
    let remote_addr = server.mr.addr();
    for round in 0..300_u64 {
        let data = client.fill(0, BIG, round);
        server.recv(round, 2 * BIG, 8);
        let write = SendOp::Write { remote_addr, rkey };
        let read = SendOp::Read { remote_addr, rkey };
        let number = 4 * round;
        client.post(number, SendOp::Read { remote_addr, rkey }, 3 * BIG, BIG);
        client.post(number + 1, write, 0, BIG);
        client.post(number + 2, read, BIG, BIG);
        client.post(number + 3, SendOp::Send, 0, 8);
        let ids: Vec<_> = client.completions(4).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, [number, number + 1, number + 2, number + 3]);
        assert!(client.read(BIG, BIG) == data, "round {round}");
        server.success();
        assert!(server.read(0, BIG) == data, "round {round}");
    }
    assert!(placed(transport) > before, "all went by packets");
}

/// A write that is placed may come while those before it are on their way, which go to the same place; and
/// what is behind it sees it.
fn small_ones_overtake_nothing(transport: Transport) {
    const ROUNDS: u64 = 3000;
    let _alone = alone();
    let before = placed(transport);
    let (client, server) = pair(&setup(transport));
    let (rkey, remote_addr) = (server.mr.rkey(), server.mr.addr());
    let mut rounds = 0;
    let begin = Instant::now();
    // Only the library's thread receives, as for who waits by reading its memory.
    while placed(transport) == before {
        client.post(0, SendOp::Write { remote_addr, rkey }, 0, 8);
        client.success();
        std::thread::sleep(Duration::from_micros(200));
        assert!(begin.elapsed() < PATIENCE, "none was placed by the sender");
    }
    while rounds < ROUNDS || placed(transport) < before + ROUNDS / 10 {
        rounds += 1;
        server.recv(rounds, 4096, 8);
        let write = |number: u64| {
            let octets = number.to_ne_bytes().repeat(LEN / 8);
            let op = SendOp::Write { remote_addr, rkey };
            let wr = SendWr::new(number, op, SendData::Inline(&octets));
            client.qp.post_send(&wr).unwrap();
        };
        let poll = |room: &mut [Wc]| client.cq.poll(room).unwrap();
        let (mut done, mut room) = (0, [Wc::default(); 4]);
        // The first after a poll, two behind it, and the first after another one.
        write(4 * rounds);
        write(4 * rounds + 1);
        write(4 * rounds + 2);
        done += poll(&mut room);
        if rounds % 3 == 0 {
            while done < 3 {
                done += poll(&mut room[done..]);
            }
            // The target may have come to all of them.
            std::thread::sleep(Duration::from_micros(10));
        }
        write(4 * rounds + 3);
        client.send(0, 0, 8);
        while done < 5 {
            done += poll(&mut [Wc::default()]);
        }
        assert_eq!(server.success().wr_id, rounds);
        let wanted = (4 * rounds + 3).to_ne_bytes().repeat(LEN / 8);
        assert!(server.read(0, LEN) == wanted, "round {rounds}");
        assert!(
            begin.elapsed() < PATIENCE,
            "only {} placed",
            placed(transport) - before
        );
    }
}
