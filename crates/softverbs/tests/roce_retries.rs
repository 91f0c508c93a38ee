//! A peer that does not answer, or is not ready, costs as long as the queue pair's attributes say,
//! and then the application hears of it: by a completion and by an event of the connection.

mod common;

use std::time::{Duration, Instant};

use common::child::{self, Other};
use common::faults::Faults;
use common::{End, Setup, equip, expect, listener, pair, resolved};
use nix::sys::signal::Signal;
use softverbs::cm::{CmOption, ConnParam, EventKind};
use softverbs::fault::Kind;
use softverbs::{QpState, SendFlags, Transport, WcStatus};

/// For a machine that is busy with other things.
const SLACK: Duration = Duration::from_secs(3);

/// ACK timeout code, and what it stands for.
const TIMEOUT: (u8, Duration) = (14, Duration::from_nanos(4096 << 14));

fn setup(retry_count: u8, rnr_retry_count: u8) -> Setup {
    let option = vec![CmOption::AckTimeout(TIMEOUT.0)];
    Setup {
        client_options: option.clone(),
        server_options: option,
        param: ConnParam {
            retry_count,
            rnr_retry_count,
            ..ConnParam::default()
        },
        ..Setup::over(Transport::Roce)
    }
}

/// IBA vol 1 ch 9: a requester waits for the time of the code to four times as long, and sends
/// again so many times.
fn gives_up_in_time(took: Duration, retries: u8) {
    let attempts = u32::from(retries) + 1;
    let least = TIMEOUT.1 * attempts;
    assert!(
        took >= least && took < least * 4 + SLACK,
        "{retries} retries: {took:?}, at least {least:?}"
    );
}

/// Two requests to a peer that has gone: an error, a flush, and an event, in time.
fn nobody_answers(end: &End, retries: u8) {
    end.recv(7, 0, 64);
    let begin = Instant::now();
    end.send_inline(1, b"is there", SendFlags::empty());
    end.send_inline(2, b"anybody", SendFlags::SIGNALED);
    let event = expect(&end.channel, EventKind::Disconnected);
    gives_up_in_time(begin.elapsed(), retries);
    assert_eq!(event.status(), -110);
    drop(event);
    // They were there before the event.
    let mut done: Vec<_> = end
        .completions(3)
        .iter()
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    done.sort_by_key(|(wr_id, _)| *wr_id);
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(
        done,
        [(1, WcStatus::RetryExcErr), (2, flushed), (7, flushed)]
    );
    assert_eq!(end.qp.state(), QpState::Err);
    common::no_event(&end.channel, Duration::from_millis(20));
}

#[test]
fn a_partition() {
    for retries in [0, 1, 3, 7] {
        let faults = Faults::none();
        let (client, server) = pair(&setup(retries, 7));
        assert_eq!(client.qp.query().timeout, TIMEOUT.0);
        assert_eq!(client.qp.query().retry_cnt, retries);
        faults.now("packet=partition");
        nobody_answers(&client, retries);
        assert!(faults.sent(Kind::Send) > u64::from(retries));
        assert_eq!(faults.received(Kind::Data), 0);
        // The other side has not asked for anything, and waits.
        assert_eq!(server.qp.state(), QpState::Rts);
        common::no_event(&server.channel, Duration::ZERO);
    }
}

/// Acknowledges that do not come are as bad as requests that do not arrive, whatever arrives.
#[test]
fn only_the_acknowledges_are_lost() {
    let faults = Faults::none();
    let (client, server) = pair(&setup(2, 7));
    server.recv(1, 0, 64);
    server.recv(2, 64, 64);
    faults.now("response=drop");
    nobody_answers(&client, 2);
    assert_eq!(
        server
            .completions(2)
            .iter()
            .filter(|wc| wc.is_success())
            .count(),
        2
    );
}

/// A partition that is over in time costs time, and nothing else.
#[test]
fn a_partition_that_ends() {
    let faults = Faults::none();
    let (client, server) = pair(&setup(7, 7));
    faults.now("data:first=partition:100ms");
    for number in 0..10_u8 {
        server.recv(number.into(), usize::from(number) * 64, 64);
        client.send_inline(number.into(), &[number; 40], SendFlags::SIGNALED);
    }
    for number in 0..10_u8 {
        assert_eq!(client.success().wr_id, number.into());
        assert_eq!(server.success().wr_id, number.into());
        assert_eq!(server.read(usize::from(number) * 64, 40), [number; 40]);
    }
    assert!(faults.done(0) > 0);
}

/// The other process; does nothing unless it is told to.
#[test]
fn child() {
    if child::role().is_none() {
        return;
    }
    let setup = setup(1, 7);
    let (channel, _listening, address) = listener(&setup);
    eprintln!("listening on {address}");
    let request = expect(&channel, EventKind::ConnectRequest);
    let end = equip(&setup, channel, request.id().clone());
    end.id.accept(&setup.param).unwrap();
    drop(expect(&end.channel, EventKind::Established));
    end.recv(1, 0, 64);
    end.success();
    eprintln!("received");
    // Until it is stopped.
    std::thread::sleep(common::PATIENCE * 10);
}

#[test]
fn a_process_that_is_stopped() {
    let _faults = Faults::none();
    for retries in [1, 5] {
        let mut server = Other::start("listen", &[], &[]);
        let address = server.says("listening on ").parse().unwrap();
        let setup = setup(retries, 7);
        let (channel, id) = resolved(&setup, address);
        let client = equip(&setup, channel, id);
        client.id.connect(&setup.param).unwrap();
        drop(expect(&client.channel, EventKind::Established));
        client.send_inline(9, b"hello", SendFlags::SIGNALED);
        client.success();
        server.says("received");
        server.signal(Signal::SIGSTOP);
        nobody_answers(&client, retries);
    }
}

#[test]
fn a_receiver_that_is_never_ready() {
    for retries in [0, 1, 4] {
        let faults = Faults::none();
        let (client, server) = pair(&setup(7, retries));
        assert_eq!(client.qp.query().rnr_retry, retries);
        faults.now("rnr=log");
        let begin = Instant::now();
        client.send_inline(1, b"nobody takes it", SendFlags::empty());
        client.send_inline(2, b"nor this", SendFlags::empty());
        let done = client.completions(2);
        let took = begin.elapsed();
        assert_eq!(done[0].status, WcStatus::RnrRetryExcErr);
        assert_eq!(done[1].status, WcStatus::WrFlushErr);
        // Each was asked for as often as agreed, and left alone in between for the time of the
        // responder's timer.
        assert_eq!(faults.sent(Kind::Rnr), u64::from(retries) + 1);
        let timer = rnr_timer(server.qp.query().min_rnr_timer);
        let least = timer * retries.into();
        assert!(
            took >= least && took < least * 4 + SLACK,
            "{retries}: {took:?}"
        );
        // The peer is there, and answers.
        for end in [&client, &server] {
            let event = expect(&end.channel, EventKind::Disconnected);
            assert_eq!(event.status(), 0);
        }
        assert!(begin.elapsed() < least * 4 + SLACK);
    }
}

/// What an RNR timer code stands for.
fn rnr_timer(code: u8) -> Duration {
    softverbs_wire::num::RnrTimer::new(code).duration()
}

/// Retries are counted from the last progress on, and 7 RNR retries are any number of them.
#[test]
fn a_receiver_that_is_ready_late_again_and_again() {
    let faults = Faults::none();
    let (client, server) = pair(&setup(7, 7));
    faults.now("rnr=log");
    for number in 0..3_u8 {
        client.send_inline(number.into(), &[number; 20], SendFlags::SIGNALED);
        let begin = Instant::now();
        while faults.sent(Kind::Rnr) < (u64::from(number) + 1) * 2 {
            assert!(begin.elapsed() < common::PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        server.recv(number.into(), 0, 64);
        assert_eq!(server.success().wr_id, number.into());
        client.success();
    }
}
