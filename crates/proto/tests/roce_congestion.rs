//! The congestion window, notification, and a recovery that never stops.

mod roce_common;

use core::time::Duration;

use roce_common::*;
use softverbs_proto::qp_state::QpState;
use softverbs_proto::roce::queue_pair::{PacketMeta, QpAttributes, QueuePair};
use softverbs_proto::time::Time;
use softverbs_proto::wr::WcStatus;
use softverbs_wire::ib::{Aeth, NakCode, Opcode, Packet, Reth, Syndrome};
use softverbs_wire::num::{PathMtu, Psn, VirtualAddress};

const LEN: usize = 1 << 20;

fn pair_with(network: Network) -> Pair {
    let attributes = QpAttributes {
        path_mtu: PathMtu::Mtu1024,
        // Seven tries in 2.1 s each.
        timeout: 19,
        ..attributes()
    };
    let mut pair = Pair::new(attributes, network, 3);
    pair.a
        .memory
        .add(1, 0, VecMemory::all_access(), &pattern(1, LEN));
    pair.b
        .memory
        .add(2, 0, VecMemory::all_access(), &pattern(2, LEN));
    pair
}

fn write_all(pair: &mut Pair, wr_id: u64) {
    pair.a.post(wr(wr_id, write_op(2, 0), sge(1, 0, LEN)));
}

fn ack(psn: Psn, syndrome: Syndrome) -> softverbs_wire::ib::Headers {
    bth(Opcode::RC_ACKNOWLEDGE, A_QPN, psn).with_aeth(Aeth::new(syndrome, Default::default()))
}

#[test]
fn no_more_than_the_window_is_in_flight() {
    let mut pair = pair_with(Network::GOOD);
    write_all(&mut pair, 1);
    let window = pair.a.qp.window();
    assert_eq!(pair.a.transmit_all(pair.now).len(), window as usize);
    pair.a
        .inject(pair.now, ack(A_PSN.advance(4), Syndrome::ACK), &[]);
    assert_eq!(pair.a.qp.window(), window + 5);
    assert_eq!(pair.a.transmit_all(pair.now).len(), 10);
}

/// READ responses count as well: no more are asked for than the window has room for.
#[test]
fn reads_are_asked_for_within_the_window() {
    let mut pair = pair_with(Network::GOOD);
    pair.a.post(wr(1, read_op(2, 0), sge(1, 0, LEN)));
    let window = pair.a.qp.window();
    pair.a.transmit_all(pair.now);
    let asked: u32 = pair
        .a
        .record
        .iter()
        .map(|(_, headers)| headers.reth.unwrap().dma_len / 1024)
        .sum();
    assert_eq!(asked, window);
    pair.run();
}

#[test]
fn grows_to_its_limit_on_a_good_path_and_shrinks_with_loss() {
    let mut pair = pair_with(Network::GOOD);
    write_all(&mut pair, 1);
    pair.run();
    let most = pair.a.qp.config().max_window;
    assert_eq!(pair.a.qp.window(), most);
    let peak = pair.peak;
    assert!(peak <= most as usize + 64, "{peak}");
    pair.network.drop = 2;
    write_all(&mut pair, 2);
    pair.run();
    assert!(pair.a.qp.window() < most / 2, "{}", pair.a.qp.window());
    pair.network.drop = 0;
    for wr_id in 3..20 {
        write_all(&mut pair, wr_id);
        pair.run();
    }
    assert!(pair.a.qp.window() > most / 2, "it grows again");
    assert_eq!(pair.a.sent.len(), 19);
}

/// A burst that loses many packets is one loss.
#[test]
fn one_burst_is_one_loss() {
    let mut pair = pair_with(Network::GOOD);
    write_all(&mut pair, 1);
    let window = pair.a.qp.window();
    pair.a.transmit_all(pair.now);
    let gap = Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR);
    pair.a.inject(pair.now, ack(A_PSN.advance(4), gap), &[]);
    let halved = pair.a.qp.window();
    assert!(halved <= window.div_ceil(2) + 4, "{halved}");
    let again = pair.a.transmit_all(pair.now);
    assert_eq!(again.len(), halved as usize);
    let first = Packet::parse(&again[0]).unwrap().headers.bth.psn;
    assert_eq!(first, A_PSN.advance(4), "from the missing one on");
    // The same NAK again, repeated by the network: nothing is sent a second time.
    pair.a.inject(pair.now, ack(A_PSN.advance(4), gap), &[]);
    assert_eq!(pair.a.qp.window(), halved);
    assert_eq!(pair.a.transmit_all(pair.now).len(), 0);
}

/// However bad the path, one packet is always on its way or about to be.
#[test]
fn recovery_stays_live_on_a_path_that_loses_most_packets() {
    let mut pair = pair_with(Network {
        drop: 60,
        duplicate: 10,
        reorder: 30,
        mark: 100,
    });
    pair.a.post(wr(1, write_op(2, 0), sge(1, 0, 50_000)));
    pair.a
        .post(wr(2, read_op(2, 100_000), sge(1, 100_000, 50_000)));
    while pair.a.qp.outstanding() > 0 && pair.a.qp.state() == QpState::Rts {
        assert!(
            pair.step(Time::new(Duration::from_secs(3600))),
            "it stopped"
        );
        assert!(pair.a.qp.window() >= 1);
        if pair.a.qp.outstanding() > 0 && pair.a.qp.state() == QpState::Rts {
            let goes_on = pair.a.qp.wants_transmit() || pair.a.qp.deadline().is_some();
            assert!(goes_on, "nothing will happen any more");
        }
    }
    assert_eq!(
        pair.a.statuses(),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
    assert_eq!(pair.b.memory.octets(2)[..50_000], pattern(1, LEN)[..50_000]);
    assert_eq!(
        pair.a.memory.octets(1)[100_000..150_000],
        pattern(2, LEN)[100_000..150_000]
    );
}

fn write_only(psn: Psn) -> Vec<u8> {
    let headers = bth(Opcode::RC_WRITE_ONLY, B_QPN, psn).with_reth(Reth {
        va: VirtualAddress::new(0),
        rkey: rkey(0),
        dma_len: 0,
    });
    built(headers, &[])
}

#[test]
fn marked_packets_are_answered_with_notifications_at_a_limited_rate() {
    let mut pair = pair_with(Network::GOOD);
    let marked = PacketMeta {
        ecn_ce: true,
        ..PacketMeta::default()
    };
    let mut count = 0;
    for at in 0..200u32 {
        let now = micros(at.into());
        pair.b.feed(now, &write_only(A_PSN.advance(at)), &marked);
        for headers in pair.b.answers(now) {
            assert_eq!(headers.bth.opcode, Opcode::CNP);
            assert_eq!(headers.bth.dest_qp, A_QPN);
            assert!(headers.bth.becn);
            count += 1;
        }
    }
    assert_eq!(count, 4, "one in 50 µs");
    assert_eq!(pair.b.qp.counters().cnps_sent, 4);
    for at in 200..300u32 {
        let clean = PacketMeta::default();
        pair.b
            .feed(micros(1000), &write_only(A_PSN.advance(at)), &clean);
    }
    assert!(!pair.b.qp.wants_transmit());
    // FECN says the same as the mark.
    let mut fecn = bth(Opcode::RC_WRITE_ONLY, B_QPN, A_PSN.advance(300)).with_reth(Reth {
        va: VirtualAddress::new(0),
        rkey: rkey(0),
        dma_len: 0,
    });
    fecn.bth.fecn = true;
    pair.b.inject(micros(1000), fecn, &[]);
    assert_eq!(pair.b.answers(micros(1000))[0].bth.opcode, Opcode::CNP);
}

#[test]
fn a_notification_is_sixteen_octets_behind_a_bth() {
    let mut pair = pair_with(Network::GOOD);
    let marked = PacketMeta {
        ecn_ce: true,
        ..PacketMeta::default()
    };
    pair.b.feed(pair.now, &write_only(A_PSN), &marked);
    let packets = pair.b.transmit_all(pair.now);
    let packet = Packet::parse(&packets[0]).unwrap();
    assert_eq!(packet.payload, [0; 16]);
}

#[test]
fn notifications_shrink_the_window() {
    let mut pair = pair_with(Network::GOOD);
    write_all(&mut pair, 1);
    pair.a.transmit_all(pair.now);
    let before = pair.a.qp.window();
    let cnp = bth(Opcode::CNP, A_QPN, Psn::new(0));
    pair.a.inject(pair.now, cnp, &[0; 16]);
    let after = pair.a.qp.window();
    assert_eq!(after, before - before / 4);
    pair.a.inject(pair.now, cnp, &[0; 16]);
    assert_eq!(pair.a.qp.window(), after, "they come in crowds");
    for round in 1..100 {
        pair.a.inject(micros(1000 * round), cnp, &[0; 16]);
    }
    assert_eq!(pair.a.qp.window(), 1);
    assert_eq!(pair.a.qp.counters().cnps_received, 101);
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::Success)]);
}

/// Marks on all packets: slower, but everything arrives.
#[test]
fn a_congested_path_is_used_gently() {
    let mut pair = pair_with(Network {
        mark: 100,
        ..Network::GOOD
    });
    write_all(&mut pair, 1);
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::Success)]);
    assert!(pair.a.qp.counters().cnps_received > 0);
    assert!(pair.a.qp.window() < 64, "{}", pair.a.qp.window());
    assert_eq!(pair.b.memory.octets(2), pattern(1, LEN));
}

/// A lost answer is not taken for a loss of packets.
#[test]
fn a_lost_answer_does_not_shrink_the_window() {
    let mut pair = pair_with(Network::GOOD);
    pair.a.post(inline(1, write_op(2, 0), b"x"));
    pair.run();
    let before = pair.a.qp.window();
    let mut lost = false;
    pair.lose(move |from_a, _| !from_a && !core::mem::replace(&mut lost, true));
    pair.a.post(inline(2, write_op(2, 0), b"x"));
    pair.run();
    assert_eq!(pair.a.qp.counters().probes, 1);
    assert!(pair.a.qp.window() >= before);
}

/// Packets of equal size follow each other, so that they can leave as one.
#[test]
fn packets_of_a_message_are_of_equal_size() {
    use softverbs_proto::roce::queue_pair::PacketBatch;
    let mut pair = pair_with(Network::GOOD);
    write_all(&mut pair, 1);
    let mut batch = PacketBatch::new();
    let qp: &mut QueuePair = &mut pair.a.qp;
    qp.poll_transmit(pair.now, &mut pair.a.memory, &mut batch, 32);
    let lens: Vec<_> = batch.frames().iter().map(|frame| frame.len).collect();
    assert_eq!(lens[0], 12 + 16 + 1024);
    assert!(lens[1..].iter().all(|len| *len == 12 + 1024));
    assert_eq!(lens.len(), 32);
}
