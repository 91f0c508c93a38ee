//! Over RoCE, a process of the same host dies while nobody waits for an answer of it: its peers hear
//! of that all the same, as of a DREQ, and of no one else's.

mod common;

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use common::child::{Other, role, until_dismissed};
use common::{End, PATIENCE, Setup, equip, expect, listener, next_event, no_event, resolved};
use nix::sys::signal::Signal;
use softverbs::cm::{CmId, ConnParam, EventChannel, EventKind};
use softverbs::{QpCap, QpState, SendFlags, Transport, Wc, WcStatus};

/// Receives that wait when the peer dies.
const RECEIVES: u64 = 5;
/// Longer than it takes to find out that somebody has died.
const WHILE: Duration = Duration::from_secs(2);

fn setup() -> Setup {
    Setup {
        cap: QpCap {
            max_send_wr: 8,
            max_recv_wr: 8,
            ..QpCap::default()
        },
        len: 4096,
        ..Setup::over(Transport::Roce)
    }
}

/// The other process; does nothing unless it is told to.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let words: Vec<_> = role.split(' ').collect();
    match words[..] {
        ["listen"] => answer(&[accepted(say_where())]),
        ["connect", address, count] => {
            let address = address.parse().unwrap();
            let count = count.parse().unwrap();
            let ends: Vec<_> = (0..count).map(|_| connected(address)).collect();
            answer(&ends);
        }
        ["becomes", address] => {
            let end = connected(address.parse().unwrap());
            eprintln!("connected");
            // Its descriptor of standard input tells when it may.
            end.success();
            panic!("{}", Command::new("sleep").arg("600").exec());
        }
        ["leaves", address] => {
            let _end = connected(address.parse().unwrap());
            eprintln!("connected");
            until_dismissed();
            std::process::exit(0);
        }
        _ => panic!("{role}"),
    }
}

fn say_where() -> (EventChannel, CmId) {
    let (channel, listening, address) = listener(&setup());
    eprintln!("listening on {address}");
    (channel, listening)
}

fn accepted((channel, _listening): (EventChannel, CmId)) -> End {
    accept(&channel)
}

/// Answers a request.
fn accept(channel: &EventChannel) -> End {
    let request = expect(channel, EventKind::ConnectRequest);
    let end = equip(&setup(), channel.clone(), request.id().clone());
    drop(request);
    receive(&end);
    end.id.accept(&ConnParam::default()).unwrap();
    drop(expect(channel, EventKind::Established));
    end
}

fn connected(address: SocketAddr) -> End {
    let (channel, id) = resolved(&setup(), address);
    let end = equip(&setup(), channel, id);
    receive(&end);
    end.id.connect(&ConnParam::default()).unwrap();
    drop(expect(&end.channel, EventKind::Established));
    end
}

fn receive(end: &End) {
    (0..RECEIVES).for_each(|n| end.recv(n, 64 * usize::try_from(n).unwrap(), 64));
}

/// Until it is killed: whatever comes is answered.
fn answer(ends: &[End]) {
    eprintln!("connected");
    std::io::stderr().flush().unwrap();
    loop {
        for end in ends {
            let mut wc = [Wc::default()];
            if end.cq.poll(&mut wc).unwrap() == 1 {
                assert!(wc[0].is_success(), "{:?}", wc[0].status);
                end.recv(0, 0, 64);
                end.send_inline(1, b"here", SendFlags::empty());
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_answered(end: &End) {
    end.send_inline(1, b"are you there", SendFlags::empty());
    end.success();
    end.recv(0, 0, 64);
}

/// The end of the connection, once, with everything that waited for it flushed.
fn hears_of_the_end(end: &End, receives: u64) {
    let event = expect(&end.channel, EventKind::Disconnected);
    assert_eq!(event.status(), 0);
    drop(event);
    assert_eq!(end.qp.state(), QpState::Err);
    for wc in end.completions(receives.try_into().unwrap()) {
        assert_eq!(wc.status, WcStatus::WrFlushErr);
    }
    drop(expect(&end.channel, EventKind::TimewaitExit));
    no_event(&end.channel, Duration::from_millis(20));
}

#[test]
fn the_active_side() {
    let (channel, listening, address) = listener(&setup());
    let mut child = Other::start(&format!("connect {address} 1"), &[], &[]);
    let end = accept(&channel);
    child.says("connected");
    drop(listening);
    child.kill();
    hears_of_the_end(&end, RECEIVES);
}

#[test]
fn the_passive_side() {
    let mut child = Other::start("listen", &[], &[]);
    let end = connected(child.says("listening on ").parse().unwrap());
    child.says("connected");
    is_answered(&end);
    child.kill();
    hears_of_the_end(&end, RECEIVES);
}

/// Nobody in this process looks at anything: a program that waits in `select` for its descriptors, say.
#[test]
fn those_who_sleep_are_woken() {
    let mut child = Other::start("listen", &[], &[]);
    let end = connected(child.says("listening on ").parse().unwrap());
    child.says("connected");
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        child.kill();
    });
    hears_of_the_end(&end, RECEIVES);
    killer.join().unwrap();
}

#[test]
fn a_process_that_is_stopped_lives() {
    let mut child = Other::start("listen", &[], &[]);
    let end = connected(child.says("listening on ").parse().unwrap());
    child.says("connected");
    child.signal(Signal::SIGSTOP);
    no_event(&end.channel, WHILE);
    child.signal(Signal::SIGCONT);
    is_answered(&end);
    child.kill();
    hears_of_the_end(&end, RECEIVES);
}

/// Its descriptors are closed, and it has not ended.
#[test]
fn a_process_that_becomes_another_program() {
    let (channel, _listening, address) = listener(&setup());
    let mut child = Other::start(&format!("becomes {address}"), &[], &[]);
    let end = accept(&channel);
    child.says("connected");
    end.send_inline(1, b"go", SendFlags::empty());
    hears_of_the_end(&end, RECEIVES);
    child.kill();
}

#[test]
fn a_process_that_exits_is_heard_of_once() {
    let (channel, _listening, address) = listener(&setup());
    let mut child = Other::start(&format!("leaves {address}"), &[], &[]);
    let end = accept(&channel);
    child.says("connected");
    let begun = Instant::now();
    assert!(child.finish().success());
    hears_of_the_end(&end, RECEIVES);
    assert!(begun.elapsed() < PATIENCE);
}

/// All connections with the one that dies end, and none with another one.
#[test]
fn many_connections() {
    const MANY: usize = 300;
    let (channel, _listening, address) = listener(&setup());
    let mut lives = Other::start(&format!("connect {address} 2"), &[], &[]);
    let others = [accept(&channel), accept(&channel)];
    lives.says("connected");
    let mut dies = Other::start(&format!("connect {address} {MANY}"), &[], &[]);
    let ends: Vec<_> = (0..MANY).map(|_| accept(&channel)).collect();
    dies.says("connected");
    dies.kill();
    let killed = Instant::now();
    let mut heard = [0, 0];
    while heard != [MANY; 2] {
        match next_event(&channel).kind() {
            EventKind::Disconnected => heard[0] += 1,
            EventKind::TimewaitExit => heard[1] += 1,
            other => panic!("{other:?}"),
        }
        if heard == [MANY, 0] {
            eprintln!("{MANY} ends after {:?}", killed.elapsed());
        }
    }
    for end in &ends {
        assert_eq!(end.qp.state(), QpState::Err);
    }
    no_event(&channel, WHILE);
    others.iter().for_each(is_answered);
    lives.kill();
    for _ in &others {
        drop(expect(&channel, EventKind::Disconnected));
    }
}
