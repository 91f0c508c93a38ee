//! Timers and limits: a peer that is gone, a peer without receives, answers that are lost.

mod roce_common;

use core::time::Duration;

use roce_common::*;
use softverbs_proto::qp_state::QpState;
use softverbs_proto::roce::queue_pair::{QpAttributes, QpEvent, QpFailure};
use softverbs_proto::time::Time;
use softverbs_proto::wr::{SendOp, WcStatus};
use softverbs_wire::ib::{NakCode, Opcode, Operation, Syndrome};
use softverbs_wire::num::{PathMtu, RnrTimer, TimeoutCode};

fn pair_with(attributes: QpAttributes) -> Pair {
    let mut pair = Pair::new(attributes, Network::GOOD, 1);
    let access = VecMemory::all_access();
    pair.a.memory.add(1, 0, access, &pattern(1, 100_000));
    pair.b.memory.add(2, 0, access, &pattern(2, 100_000));
    pair
}

fn send(wr_id: u64) -> softverbs_proto::wr::SendRequest {
    wr(wr_id, SendOp::Send, sge(1, 0, 8))
}

/// When the first request completes, the time is looked at after each step.
fn run_to_completion(pair: &mut Pair) -> Time {
    let limit = Time::new(Duration::from_secs(100_000));
    while pair.a.sent.is_empty() {
        assert!(pair.step(limit), "nothing happens any more");
    }
    pair.now
}

#[test]
fn a_peer_that_is_gone_is_noticed_when_the_attributes_say() {
    for (timeout, retry_cnt) in [(1, 0), (1, 7), (8, 3), (14, 0), (14, 1), (14, 7), (19, 7)] {
        let mut pair = pair_with(QpAttributes {
            timeout,
            retry_cnt,
            ..attributes()
        });
        pair.lose(|_, _| true);
        pair.a.post(send(1));
        pair.a.post(send(2));
        pair.a.post(wr(3, read_op(2, 0), sge(1, 0, 8)));
        let end = run_to_completion(&mut pair);
        let expected = TimeoutCode::new(timeout).duration() * (u32::from(retry_cnt) + 1);
        assert_eq!(end.since_epoch(), expected, "{timeout} {retry_cnt}");
        assert_eq!(
            pair.a.statuses(),
            [
                (1, WcStatus::RetryExcErr),
                (2, WcStatus::WrFlushErr),
                (3, WcStatus::WrFlushErr)
            ]
        );
        assert_eq!(pair.a.qp.state(), QpState::Err);
        let cause = QpFailure::SendQueue(WcStatus::RetryExcErr);
        assert_eq!(
            pair.a.events,
            [QpEvent::Fatal { cause }, QpEvent::LastWqeReached]
        );
        assert_eq!(pair.a.qp.deadline(), None);
        assert_eq!(pair.a.qp.counters().timeouts, u64::from(retry_cnt));
        assert!(!pair.step(Time::new(Duration::from_secs(100_000))));
    }
}

/// The time counts from the last progress, and progress gives back all retries.
#[test]
fn progress_starts_the_count_again() {
    let mut pair = pair_with(QpAttributes {
        timeout: 14,
        retry_cnt: 1,
        ..attributes()
    });
    let timeout = TimeoutCode::new(14).duration();
    pair.b.memory.post_receive(1, [sge(2, 0, 8)]);
    pair.lose(|_, _| true);
    pair.a.post(send(1));
    pair.run_until(Time::new(timeout * 3 / 2));
    assert_eq!(pair.a.qp.counters().timeouts, 1);
    pair.filter = None;
    let done = run_to_completion(&mut pair);
    assert_eq!(pair.a.statuses(), [(1, WcStatus::Success)]);
    assert!(done.since_epoch() < timeout * 2);
    pair.lose(|_, _| true);
    pair.a.sent.clear();
    pair.a.post(send(2));
    let begun = pair.now;
    let end = run_to_completion(&mut pair);
    assert_eq!(pair.a.statuses(), [(2, WcStatus::RetryExcErr)]);
    assert_eq!(end - begun, timeout * 2);
}

#[test]
fn timeout_zero_waits_without_end_and_still_recovers() {
    let mut pair = pair_with(QpAttributes {
        timeout: 0,
        retry_cnt: 0,
        ..attributes()
    });
    pair.b.memory.post_receive(1, [sge(2, 0, 8)]);
    pair.lose(|_, _| true);
    pair.a.post(send(1));
    pair.run_until(Time::new(Duration::from_secs(1000)));
    assert_eq!(pair.a.qp.state(), QpState::Rts);
    assert_eq!(pair.a.sent, []);
    pair.filter = None;
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::Success)]);
}

/// B41: the whole time of the timer, no packet in between.
#[test]
fn a_peer_without_receive_is_left_alone_for_its_time() {
    for code in [1, 12, 0] {
        let mut pair = pair_with(QpAttributes {
            min_rnr_timer: code,
            ..attributes()
        });
        let timer = RnrTimer::new(code).duration();
        pair.a.post(send(1));
        pair.a.post(send(2));
        let told = Time::new(LATENCY * 2);
        pair.run_until(told + (timer - Duration::from_nanos(1)));
        let before = pair.a.record.len();
        assert_eq!(before, 2, "both went out once");
        assert_eq!(pair.a.qp.deadline(), Some(told + timer));
        for wr_id in 0..2 {
            pair.b.memory.post_receive(wr_id, [sge(2, 0, 8)]);
        }
        pair.run();
        pair.assert_connected();
        let (again, _) = pair.a.record[before];
        assert_eq!(again, told + timer);
        assert_eq!(
            pair.a.statuses(),
            [(1, WcStatus::Success), (2, WcStatus::Success)]
        );
        assert_eq!(pair.a.qp.counters().rnr_naks_received, 1);
        assert_eq!(pair.a.qp.counters().timeouts, 0);
    }
}

#[test]
fn rnr_retries_are_counted() {
    for rnr_retry in 0..7 {
        let mut pair = pair_with(QpAttributes {
            rnr_retry,
            min_rnr_timer: 14,
            ..attributes()
        });
        let timer = RnrTimer::new(14).duration();
        pair.a.post(send(1));
        pair.a.post(send(2));
        let end = run_to_completion(&mut pair);
        let tries = u32::from(rnr_retry) + 1;
        assert_eq!(
            end.since_epoch(),
            LATENCY * 2 * tries + timer * u32::from(rnr_retry)
        );
        assert_eq!(
            pair.a.statuses(),
            [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)]
        );
        assert_eq!(pair.a.qp.state(), QpState::Err);
        assert_eq!(pair.b.qp.state(), QpState::Rts, "its fault is none");
    }
}

/// Each message may be refused as often as the count says.
#[test]
fn progress_gives_back_the_rnr_retries() {
    let mut pair = pair_with(QpAttributes {
        rnr_retry: 1,
        min_rnr_timer: 14,
        ..attributes()
    });
    let timer = RnrTimer::new(14).duration();
    for wr_id in 0..5 {
        pair.a.post(send(wr_id));
        let until = pair.now + timer / 2;
        pair.run_until(until);
        pair.b.memory.post_receive(wr_id, [sge(2, 0, 8)]);
        pair.run();
    }
    assert_eq!(pair.a.sent.len(), 5);
    assert_eq!(pair.a.qp.counters().rnr_naks_received, 5);
    pair.assert_connected();
}

/// B42: 7 is without end.
#[test]
fn rnr_retry_seven_is_without_end() {
    let mut pair = pair_with(QpAttributes {
        min_rnr_timer: 1,
        rnr_retry: 7,
        ..attributes()
    });
    pair.a.post(send(1));
    pair.run_until(Time::new(Duration::from_millis(100)));
    assert!(pair.a.qp.counters().rnr_naks_received > 1000);
    assert_eq!(pair.a.qp.state(), QpState::Rts);
    pair.b.memory.post_receive(1, [sge(2, 0, 8)]);
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::Success)]);
}

/// rxe answers the rest of a burst with a sequence NAK: the wait goes on, and counts once.
#[test]
fn an_rnr_nak_and_a_sequence_nak_are_one_event() {
    let mut pair = pair_with(QpAttributes {
        rnr_retry: 1,
        ..attributes()
    });
    pair.a.post(send(1));
    pair.a.post(send(2));
    pair.a.transmit_all(pair.now);
    let timer = RnrTimer::new(20);
    let answer = |syndrome| {
        bth(Opcode::RC_ACKNOWLEDGE, A_QPN, A_PSN)
            .with_aeth(softverbs_wire::ib::Aeth::new(syndrome, Default::default()))
    };
    let rnr = answer(Syndrome::rnr_nak(timer));
    let sequence = answer(Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR));
    for headers in [rnr, sequence, rnr, sequence, rnr] {
        pair.a.inject(pair.now, headers, &[]);
    }
    assert!(pair.a.transmit_all(pair.now).is_empty());
    assert_eq!(pair.a.qp.deadline(), Some(pair.now + timer.duration()));
    pair.a.qp.on_timeout(pair.now + timer.duration());
    assert_eq!(pair.a.transmit_all(pair.now).len(), 2);
    assert_eq!(pair.a.qp.state(), QpState::Rts);
}

/// A lost acknowledge: the request is not carried out again, and the sender learns soon.
#[test]
fn a_lost_acknowledge_is_asked_for_again() {
    let mut pair = pair_with(attributes());
    pair.b.memory.post_receive(1, [sge(2, 0, 8)]);
    pair.b.memory.post_receive(2, [sge(2, 8, 8)]);
    let mut lost = false;
    pair.lose(move |from_a, _| !from_a && !core::mem::replace(&mut lost, true));
    pair.a.post(send(1));
    pair.run();
    pair.assert_connected();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pair.b.received.len(), 1, "once");
    assert_eq!(pair.b.qp.counters().duplicates, 1);
    assert_eq!(pair.a.qp.counters().timeouts, 0);
    assert!(pair.now.since_epoch() < Duration::from_millis(50));
}

/// B43: the answer of an atomic is lost, the operation is carried out once.
#[test]
fn an_atomic_is_replayed_from_its_saved_result() {
    let mut pair = pair_with(attributes());
    pair.b.memory.region_mut(2).octets_mut()[..8].copy_from_slice(&5u64.to_ne_bytes());
    let mut lost = 0;
    pair.lose(move |from_a, headers| {
        let is_result = !from_a && headers.bth.opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE;
        lost += usize::from(is_result);
        is_result && lost <= 3
    });
    pair.a.post(wr(1, fetch_add(2, 0, 1), sge(1, 0, 8)));
    pair.run();
    pair.assert_connected();
    assert_eq!(pair.a.memory.octets(1)[..8], 5u64.to_ne_bytes());
    assert_eq!(pair.b.memory.octets(2)[..8], 6u64.to_ne_bytes());
    assert_eq!(pair.b.qp.counters().duplicates, 3);
}

/// B45: a READ goes on from the response that is missing.
#[test]
fn a_read_resumes_at_the_missing_response() {
    let mut pair = pair_with(QpAttributes {
        path_mtu: PathMtu::Mtu1024,
        ..attributes()
    });
    let len = 10_000;
    let missing = A_PSN.advance(3);
    let mut lost = false;
    pair.lose(move |from_a, headers| {
        !from_a && headers.bth.psn == missing && !core::mem::replace(&mut lost, true)
    });
    pair.a.post(wr(1, read_op(2, 100), sge(1, 50, len)));
    pair.run();
    pair.assert_connected();
    assert_eq!(
        pair.a.memory.octets(1)[50..50 + len],
        pattern(2, 100_000)[100..100 + len]
    );
    let requests: Vec<_> = pair
        .a
        .record
        .iter()
        .map(|(_, headers)| (headers.bth.psn, headers.reth.unwrap()))
        .map(|(psn, reth)| (psn, reth.va.get(), reth.dma_len))
        .collect();
    assert_eq!(
        requests,
        [
            (A_PSN, 100, 10_000),
            (missing, 100 + 3 * 1024, 10_000 - 3 * 1024)
        ]
    );
    assert_eq!(pair.a.qp.counters().probes, 0);
    let responses = pair.b.record.len();
    assert_eq!(responses, 10 + 7);
}

/// An acknowledge for what follows a READ says that its response was lost.
#[test]
fn an_acknowledge_past_a_read_means_that_its_response_was_lost() {
    let mut pair = pair_with(attributes());
    pair.b.memory.post_receive(1, [sge(2, 0, 8)]);
    let mut lost = false;
    pair.lose(move |_, headers| {
        let is_response = headers
            .bth
            .opcode
            .info()
            .is_some_and(|info| info.operation == Operation::ReadResponse);
        is_response && !core::mem::replace(&mut lost, true)
    });
    pair.a.post(wr(1, read_op(2, 100), sge(1, 50, 8)));
    pair.a.post(wr(2, SendOp::Send, sge(1, 0, 8)));
    pair.run();
    pair.assert_connected();
    assert_eq!(
        pair.a.statuses(),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
    assert_eq!(pair.b.received.len(), 1);
    assert_eq!(pair.a.qp.counters().losses, 1);
    assert_eq!(pair.a.qp.counters().probes, 0);
}

/// The sequence NAK brings the missing packet at once.
#[test]
fn a_lost_packet_in_a_burst_is_sent_again_at_once() {
    let mut pair = pair_with(QpAttributes {
        path_mtu: PathMtu::Mtu256,
        ..attributes()
    });
    let mut lost = false;
    pair.lose(move |_, headers| {
        headers.bth.psn == A_PSN.advance(2) && !core::mem::replace(&mut lost, true)
    });
    pair.a.post(wr(1, write_op(2, 0), sge(1, 0, 2560)));
    pair.run();
    pair.assert_connected();
    assert_eq!(pair.b.memory.octets(2)[..2560], pattern(1, 2560));
    assert_eq!(pair.a.qp.counters().losses, 1);
    assert_eq!(pair.a.qp.counters().retransmitted, 8);
    assert!(pair.now.since_epoch() <= LATENCY * 4);
}

/// An outage that is shorter than what the attributes allow is not noticed by the application.
#[test]
fn an_outage_within_the_limits_is_survived() {
    let mut pair = pair_with(QpAttributes {
        timeout: 14,
        retry_cnt: 3,
        ..attributes()
    });
    for wr_id in 0..20 {
        pair.b.memory.post_receive(wr_id, [sge(2, 8 * wr_id, 8)]);
        pair.a.post(send(wr_id));
    }
    pair.a.post(wr(20, read_op(2, 1000), sge(1, 1000, 50_000)));
    pair.lose(|_, _| true);
    pair.run_until(Time::new(TimeoutCode::new(14).duration() * 7 / 2));
    assert_eq!(pair.a.qp.counters().timeouts, 3, "all retries are used up");
    assert_eq!(pair.a.sent, []);
    pair.filter = None;
    pair.run();
    pair.assert_connected();
    assert_eq!(pair.b.received.len(), 20);
    assert_eq!(pair.a.sent.len(), 21);
}

/// A probe that was too early: what is already there is not sent again.
#[test]
fn a_late_answer_makes_no_second_burst() {
    let mut pair = pair_with(attributes());
    for wr_id in 0..20 {
        let op = if wr_id % 5 == 4 {
            read_op(2, 0)
        } else {
            write_op(2, 0)
        };
        pair.a.post(wr(wr_id, op, sge(1, 0, 8)));
    }
    let packets = pair.a.transmit_all(pair.now);
    assert_eq!(packets.len(), 20, "four of them READs");
    let probe_at = pair.a.qp.deadline().unwrap();
    pair.a.qp.on_timeout(probe_at);
    assert_eq!(pair.a.transmit_all(probe_at).len(), 1, "the probe");
    for octets in &packets[..11] {
        pair.b.feed(probe_at, octets, &Default::default());
    }
    for octets in pair.b.transmit_all(probe_at) {
        pair.a.feed(probe_at, &octets, &Default::default());
    }
    assert_eq!(pair.a.sent.len(), 11);
    assert_eq!(pair.a.transmit_all(probe_at).len(), 0);
    // The rest was lost after all.
    pair.a.post(inline(20, write_op(2, 0), b"x"));
    pair.now = probe_at;
    pair.run();
    pair.assert_connected();
    let all: Vec<_> = (0..21).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(pair.a.statuses(), all);
    assert_eq!(pair.a.qp.counters().timeouts, 0);
}
