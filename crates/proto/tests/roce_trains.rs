//! Trains: several packets of one message as one.

mod roce_common;

use roce_common::*;
use smallvec::smallvec;
use softverbs_proto::memory::Access;
use softverbs_proto::qp_state::{QpState, QpType};
use softverbs_proto::roce::queue_pair::{PacketBatch, PacketMeta, QpAttributes, QpCounters};
use softverbs_proto::roce::train;
use softverbs_proto::wr::{Payload, SendOp, WcStatus};
use softverbs_wire::ib::{Aeth, Opcode, Packet, Syndrome};
use softverbs_wire::num::{Msn24, PathMtu, Rkey};

const LEN: usize = 70_000;
const LENS: [usize; 11] = [
    1, 255, 256, 257, 1024, 4096, 4097, 16_384, 16_385, 65_537, 69_999,
];

fn with_memory(mut pair: Pair, mtu: PathMtu) -> Pair {
    pair.connect(QpAttributes {
        path_mtu: mtu,
        ..attributes()
    });
    for (end, seed) in [(&mut pair.a, 1), (&mut pair.b, 2)] {
        let access = VecMemory::all_access();
        end.memory.add(1, 0, access, &pattern(seed, LEN));
        end.memory.add(2, 0, access, &[0; LEN]);
        end.memory.add(7, 0, access, &[0; 8]);
        end.max_packets = 1000;
        for wr_id in 0..4 {
            end.memory.post_receive(wr_id, [sge(2, 0, LEN)]);
        }
    }
    pair
}

fn trains(qp_type: QpType, mtu: PathMtu, parts: Option<Random>) -> Pair {
    with_memory(Pair::with_trains(qp_type, Network::GOOD, 1, parts), mtu)
}

fn ops(qp_type: QpType) -> Vec<SendOp> {
    let mut ops = vec![
        SendOp::Send,
        SendOp::SendWithImm(5),
        write_op(2, 0),
        SendOp::WriteWithImm {
            remote_addr: 0,
            rkey: rkey(2),
            imm: 6,
        },
    ];
    if qp_type == QpType::Rc {
        ops.extend([SendOp::SendWithInvalidate(Rkey::new(7)), read_op(1, 0)]);
    }
    ops
}

/// Everything that both ends put on a wire for one request.
fn on_the_wire(mut pair: Pair, op: SendOp, len: usize) -> Vec<Vec<u8>> {
    let mut request = wr(1, op, sge(1, 0, len));
    if !matches!(op, SendOp::Read { .. }) && len > 3 {
        // A list whose borders are not those of packets.
        let third = len / 3;
        request.payload = Payload::Sges(smallvec![
            sge(1, 0, third),
            sge(1, third as u64, len - third)
        ]);
    }
    pair.a.post(request);
    let mut packets = Vec::new();
    for _ in 0..100 {
        let mut quiet = true;
        for to_b in [true, false] {
            let (from, to) = if to_b {
                (&mut pair.a, &mut pair.b)
            } else {
                (&mut pair.b, &mut pair.a)
            };
            for octets in from.transmit_all(micros(0)) {
                quiet = false;
                to.feed(micros(0), &octets, &PacketMeta::default());
                packets.push(octets);
            }
        }
        if quiet {
            break;
        }
    }
    let statuses = [(1, WcStatus::Success)];
    assert_eq!(pair.a.statuses(), statuses, "{op:?} of {len}");
    let (from, to) = match op {
        SendOp::Read { .. } => (&pair.b, &pair.a),
        _ => (&pair.a, &pair.b),
    };
    let local = if to.memory.octets(1)[..len] == from.memory.octets(1)[..len] {
        1
    } else {
        2
    };
    assert!(to.memory.octets(local)[..len] == from.memory.octets(1)[..len]);
    packets
}

#[test]
fn taken_apart_they_are_the_packets_that_would_have_been_sent() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        for mtu in PathMtu::ALL {
            for op in ops(qp_type) {
                for len in LENS {
                    let plain = with_memory(Pair::reset(qp_type, Network::GOOD, 1), mtu);
                    let plain = on_the_wire(plain, op, len);
                    let apart = on_the_wire(trains(qp_type, mtu, None), op, len);
                    assert!(plain == apart, "{qp_type:?} {mtu} {op:?} {len}");
                }
            }
        }
    }
}

#[test]
fn parts_of_any_length_are_as_good() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        for mtu in PathMtu::ALL {
            for op in ops(qp_type) {
                for (seed, len) in (1..).zip(LENS) {
                    let pair = trains(qp_type, mtu, Some(Random(seed)));
                    on_the_wire(pair, op, len);
                }
            }
        }
    }
}

/// The way through both ends is taken once for many packets.
#[test]
fn a_train_is_one_packet() {
    let mut pair = trains(QpType::Rc, PathMtu::Mtu4096, None);
    pair.a.post(wr(1, SendOp::Send, sge(1, 0, 65_536)));
    let mut batch = PacketBatch::new();
    let (a, memory) = (&mut pair.a.qp, &mut pair.a.memory);
    a.poll_transmit(micros(0), memory, &mut batch, 1000);
    assert_eq!((batch.len(), batch.packets()), (1, 16));
    assert_eq!(batch.frames()[0].packets, 16);
    // As many as it is asked for.
    let mut pair = trains(QpType::Rc, PathMtu::Mtu4096, None);
    pair.a.post(wr(1, SendOp::Send, sge(1, 0, 65_536)));
    batch.clear();
    let (a, memory) = (&mut pair.a.qp, &mut pair.a.memory);
    a.poll_transmit(micros(0), memory, &mut batch, 3);
    assert_eq!((batch.len(), batch.packets()), (1, 3));
}

/// A train that `b` is to take, and its packets.
fn train_of(pair: &mut Pair, op: SendOp, len: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
    pair.a.post(wr(1, op, sge(1, 0, len)));
    let packets = pair.a.transmit_all(micros(0));
    let mut whole = Vec::new();
    let first = Packet::parse(&packets[0]).unwrap();
    let last = Packet::parse(packets.last().unwrap()).unwrap();
    let mut headers = first.headers;
    headers.bth.opcode = Opcode::RC_SEND_ONLY;
    headers.bth.ack_req = true;
    headers.bth.pad_count = last.headers.bth.pad_count;
    let payload: Vec<u8> = packets
        .iter()
        .flat_map(|octets| Packet::parse(octets).unwrap().payload.to_vec())
        .collect();
    Packet {
        headers,
        payload: &payload,
        trailer: last.trailer,
    }
    .append_to(&mut whole);
    (whole, packets)
}

fn feed(end: &mut End, octets: &[u8], packets: u32) {
    let meta = PacketMeta {
        packets,
        ..PacketMeta::default()
    };
    end.feed(micros(0), octets, &meta);
}

#[test]
fn what_came_before_is_not_carried_out_again() {
    // Some packets came alone, then all of them as a train; then that again.
    for alone in 0..6 {
        let mut pair = trains(QpType::Rc, PathMtu::Mtu1024, None);
        let (whole, packets) = train_of(&mut pair, SendOp::Send, 6 * 1024 - 5);
        assert_eq!(packets.len(), 6);
        for octets in &packets[..alone] {
            feed(&mut pair.b, octets, 1);
        }
        feed(&mut pair.b, &whole, 6);
        assert_eq!(pair.b.received.len(), 1, "{alone}");
        assert_eq!(pair.b.received[0].byte_len, 6 * 1024 - 5);
        let sent = pattern(1, LEN);
        assert!(pair.b.memory.octets(2)[..6 * 1024 - 5] == sent[..6 * 1024 - 5]);
        let QpCounters { duplicates, .. } = *pair.b.qp.counters();
        assert_eq!(duplicates, alone as u64);
        feed(&mut pair.b, &whole, 6);
        assert_eq!(pair.b.received.len(), 1, "{alone}");
        assert_eq!(pair.b.qp.counters().duplicates, alone as u64 + 6);
        for octets in pair.b.transmit_all(micros(0)) {
            feed(&mut pair.a, &octets, 1);
        }
        assert_eq!(pair.a.statuses(), [(1, WcStatus::Success)]);
    }
}

#[test]
fn one_that_comes_too_early_is_asked_for_again() {
    let mut pair = trains(QpType::Rc, PathMtu::Mtu1024, None);
    pair.a.post(wr(0, SendOp::Send, sge(1, 0, 8)));
    let lost = pair.a.transmit_all(micros(0));
    let (whole, _) = train_of(&mut pair, SendOp::Send, 3000);
    feed(&mut pair.b, &whole, 3);
    assert!(pair.b.received.is_empty());
    assert_eq!(pair.b.qp.counters().out_of_sequence, 3);
    let naks = pair.b.answers(micros(0));
    assert_eq!(naks.len(), 1, "said once");
    feed(&mut pair.b, &lost[0], 1);
    feed(&mut pair.b, &whole, 3);
    assert_eq!(pair.b.received.len(), 2);
}

/// Whoever says so may be wrong: the count has to be that of the payload, and of a kind that has trains.
#[test]
fn what_is_no_train_is_dropped() {
    let wrong = |packets: u32, len: usize, opcode: Opcode| {
        let mut pair = trains(QpType::Rc, PathMtu::Mtu1024, None);
        let mut headers = bth(opcode, B_QPN, A_PSN);
        if opcode == Opcode::RC_ACKNOWLEDGE {
            headers = headers.with_aeth(Aeth::new(Syndrome::ACK, Msn24::ZERO));
        }
        let octets = built(headers, &vec![1; len]);
        feed(&mut pair.b, &octets, packets);
        let state = pair.b.qp.state();
        (
            pair.b.qp.counters().dropped,
            pair.b.received.len(),
            state == QpState::Rts,
        )
    };
    let send = Opcode::RC_SEND_ONLY;
    assert_eq!(wrong(4, 4096, send), (0, 1, true), "right");
    assert_eq!(wrong(4, 3073, send), (0, 1, true), "right");
    assert_eq!(wrong(3, 4096, send), (3, 0, true), "too long");
    assert_eq!(wrong(4, 3072, send), (4, 0, true), "too short");
    assert_eq!(wrong(5, 0, send), (5, 0, true), "empty");
    let most = train::MOST + 1;
    let count = u64::from(most);
    let len = most as usize * 1024;
    assert_eq!(wrong(most, len, send), (count, 0, true), "too many");
    assert_eq!(wrong(2, 0, Opcode::RC_ACKNOWLEDGE), (2, 0, true));
    assert_eq!(wrong(u32::MAX, 4096, send).1, 0);
    // What is right as a length may be wrong in its place.
    let (_, received, stays) = wrong(4, 4095, Opcode::RC_SEND_FIRST);
    assert_eq!((received, stays), (0, false), "refused");
    let (_, received, stays) = wrong(4, 4096, Opcode::RC_SEND_MIDDLE);
    assert_eq!((received, stays), (0, false), "refused");
}

/// Memory that may not be written is not, whichever packet of the train it is for.
#[test]
fn a_receive_that_is_too_short_for_a_train() {
    let mut pair = Pair::with_trains(QpType::Rc, Network::GOOD, 1, Some(Random(4)));
    pair.connect(attributes());
    pair.a
        .memory
        .add(1, 0, Access::LOCAL_WRITE, &pattern(1, LEN));
    pair.b.memory.add(2, 0, Access::LOCAL_WRITE, &[0; LEN]);
    pair.b.memory.post_receive(9, [sge(2, 0, 2000)]);
    pair.a.post(wr(1, SendOp::Send, sge(1, 0, 8000)));
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(statuses(&pair.b.received), [(9, WcStatus::LocLenErr)]);
    assert!(
        pair.b.memory.octets(2)[2000..]
            .iter()
            .all(|octet| *octet == 0)
    );
}
