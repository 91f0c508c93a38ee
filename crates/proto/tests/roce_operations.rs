//! Every operation, path MTU and size, without loss.

mod roce_common;

use core::time::Duration;

use roce_common::*;
use smallvec::smallvec;
use softverbs_proto::fault::Misuse;
use softverbs_proto::qp_state::QpType;
use softverbs_proto::roce::queue_pair::QpAttributes;
use softverbs_proto::wr::{Payload, SendFlags, SendOp, SendRequest, WcOpcode, WcStatus};
use softverbs_wire::ib::{Opcode, Operation, Position};
use softverbs_wire::num::PathMtu;

const LOCAL: u32 = 1;
const REMOTE: u32 = 2;
const LOCAL_BASE: u64 = 0x10_0000;
const REMOTE_BASE: u64 = 0x7000_0000;

fn sizes(mtu: usize) -> Vec<usize> {
    vec![
        0,
        1,
        3,
        4,
        mtu - 1,
        mtu,
        mtu + 1,
        65535,
        65536,
        65537,
        1 << 20,
    ]
}

fn pair_with(mtu: PathMtu, len: usize, local: &[u8], remote: &[u8]) -> Pair {
    let attributes = QpAttributes {
        path_mtu: mtu,
        ..attributes()
    };
    let mut pair = Pair::new(attributes, Network::GOOD, 1);
    assert!(local.len() >= len && remote.len() >= len);
    let access = VecMemory::all_access();
    pair.a.memory.add(LOCAL, LOCAL_BASE, access, local);
    pair.b.memory.add(REMOTE, REMOTE_BASE, access, remote);
    pair
}

/// Runs `op` for each MTU and size, and checks what each end saw.
fn for_all(op: impl Fn(usize) -> SendOp, check: impl Fn(&Pair, usize, PathMtu)) {
    for mtu in PathMtu::ALL {
        for len in sizes(mtu.octets()) {
            let room = len.max(8);
            let (local, remote) = (pattern(1, room), pattern(2, room));
            let mut pair = pair_with(mtu, len, &local, &remote);
            pair.b
                .memory
                .post_receive(7, [sge(REMOTE, REMOTE_BASE, room)]);
            pair.a.post(wr(1, op(len), sge(LOCAL, LOCAL_BASE, len)));
            pair.run();
            pair.assert_connected();
            assert_eq!(
                pair.a.statuses(),
                [(1, WcStatus::Success)],
                "{len} octets at {mtu}"
            );
            assert_eq!(pair.a.sent[0].byte_len as usize, len);
            assert_eq!(pair.a.qp.outstanding(), 0);
            assert_eq!(pair.a.qp.counters().retransmitted, 0);
            assert_eq!(pair.a.qp.deadline(), None, "no timer is left");
            check(&pair, len, mtu);
        }
    }
}

fn arrived(pair: &Pair, len: usize) {
    assert_eq!(pair.b.memory.octets(REMOTE)[..len], pattern(1, len));
    assert_eq!(
        pair.b.memory.octets(REMOTE)[len..],
        pattern(2, len.max(8))[len..]
    );
}

#[test]
fn send() {
    for_all(
        |_| SendOp::Send,
        |pair, len, mtu| {
            arrived(pair, len);
            let received = &pair.b.received[0];
            assert_eq!(pair.b.received.len(), 1);
            assert_eq!(
                (received.wr_id, received.status, received.opcode),
                (7, WcStatus::Success, WcOpcode::Recv)
            );
            assert_eq!(received.byte_len as usize, len);
            assert_eq!((received.imm, received.invalidated), (None, None));
            let packets = pair.a.opcodes();
            let count = len.div_ceil(mtu.octets()).max(1);
            assert_eq!(packets.len(), count);
            let positions: Vec<_> = packets
                .iter()
                .map(|opcode| opcode.info().unwrap().position)
                .collect();
            let expected: Vec<_> = (0..count)
                .map(|at| Position::new(at == 0, at + 1 == count))
                .collect();
            assert_eq!(positions, expected);
        },
    );
}

#[test]
fn send_with_immediate() {
    for_all(
        |_| SendOp::SendWithImm(0x0102_0304),
        |pair, len, _| {
            arrived(pair, len);
            assert_eq!(pair.b.received[0].imm, Some(0x0102_0304));
            let (_, last) = pair.a.record.last().unwrap();
            assert_eq!(last.imm_dt.unwrap().to_bytes(), [1, 2, 3, 4]);
        },
    );
}

#[test]
fn send_with_invalidate() {
    const VICTIM: u32 = 9;
    for mtu in [PathMtu::Mtu256, PathMtu::Mtu4096] {
        for len in [0, 5, mtu.octets() + 1] {
            let mut pair = pair_with(mtu, len, &pattern(1, len.max(8)), &pattern(2, len.max(8)));
            pair.b
                .memory
                .add(VICTIM, 0x9000, VecMemory::all_access(), &[0; 8]);
            pair.b
                .memory
                .post_receive(7, [sge(REMOTE, REMOTE_BASE, len.max(1))]);
            let op = SendOp::SendWithInvalidate(rkey(VICTIM));
            pair.a.post(wr(1, op, sge(LOCAL, LOCAL_BASE, len)));
            pair.run();
            pair.assert_connected();
            assert_eq!(pair.b.received[0].invalidated, Some(rkey(VICTIM)));
            assert!(!pair.b.memory.region(VICTIM).valid);
        }
    }
}

#[test]
fn write() {
    for_all(
        |_| write_op(REMOTE, REMOTE_BASE),
        |pair, len, _| {
            arrived(pair, len);
            assert_eq!(pair.b.received, []);
            assert_eq!(pair.b.memory.receives.len(), 1, "takes no receive");
        },
    );
}

#[test]
fn write_with_immediate() {
    for_all(
        |_| SendOp::WriteWithImm {
            remote_addr: REMOTE_BASE,
            rkey: rkey(REMOTE),
            imm: u32::MAX,
        },
        |pair, len, _| {
            arrived(pair, len);
            let received = &pair.b.received[0];
            assert_eq!(received.opcode, WcOpcode::RecvRdmaWithImm);
            assert_eq!(
                (received.byte_len as usize, received.imm),
                (len, Some(u32::MAX))
            );
        },
    );
}

#[test]
fn read() {
    for_all(
        |_| read_op(REMOTE, REMOTE_BASE),
        |pair, len, mtu| {
            assert_eq!(pair.a.memory.octets(LOCAL)[..len], pattern(2, len));
            assert_eq!(
                pair.a.memory.octets(LOCAL)[len..],
                pattern(1, len.max(8))[len..]
            );
            assert_eq!(pair.b.memory.octets(REMOTE), pattern(2, len.max(8)));
            assert_eq!(pair.b.received, []);
            let responses = pair
                .b
                .opcodes()
                .into_iter()
                .filter(|opcode| opcode.info().unwrap().operation == Operation::ReadResponse)
                .count();
            assert_eq!(responses, len.div_ceil(mtu.octets()).max(1));
        },
    );
}

#[test]
fn atomics_return_what_was_there() {
    let mut pair = pair_with(PathMtu::Mtu1024, 0, &[0; 32], &[0; 32]);
    let word = |value: u64| value.to_ne_bytes();
    pair.b.memory.region_mut(REMOTE).octets_mut()[8..16].copy_from_slice(&word(100));
    let at = |index: u64| sge(LOCAL, LOCAL_BASE + 8 * index, 8);
    let swap = |compare, swap| SendOp::CompareSwap {
        remote_addr: REMOTE_BASE + 8,
        rkey: rkey(REMOTE),
        compare,
        swap,
    };
    let address = REMOTE_BASE + 8;
    pair.a.post(wr(1, fetch_add(REMOTE, address, 11), at(0)));
    pair.a.post(wr(2, swap(111, u64::MAX), at(1)));
    pair.a.post(wr(3, swap(111, 5), at(2)));
    pair.a.post(wr(4, fetch_add(REMOTE, address, 3), at(3)));
    pair.run();
    pair.assert_connected();
    let words: Vec<u64> = pair
        .a
        .memory
        .octets(LOCAL)
        .chunks(8)
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        .collect();
    assert_eq!(words, [100, 111, u64::MAX, u64::MAX]);
    assert_eq!(pair.b.memory.octets(REMOTE)[8..16], word(2), "it wraps");
    let opcodes: Vec<_> = pair.a.sent.iter().map(|done| done.opcode).collect();
    assert_eq!(
        opcodes,
        [
            WcOpcode::FetchAdd,
            WcOpcode::CompSwap,
            WcOpcode::CompSwap,
            WcOpcode::FetchAdd
        ]
    );
}

/// The queue is served in its order, whatever is in it; messages are counted (MSN).
#[test]
fn a_mixed_queue_completes_in_order() {
    let len = 5000;
    let mut pair = pair_with(
        PathMtu::Mtu256,
        len,
        &pattern(1, 3 * len),
        &pattern(2, 3 * len),
    );
    for wr_id in 0..3 {
        pair.b
            .memory
            .post_receive(wr_id, [sge(REMOTE, REMOTE_BASE + 2 * 5000, len)]);
    }
    let local = |offset| sge(LOCAL, LOCAL_BASE + offset, len);
    let ops = [
        (SendOp::Send, 0),
        (read_op(REMOTE, REMOTE_BASE), 5000),
        (write_op(REMOTE, REMOTE_BASE + 5000), 0),
        (SendOp::SendWithImm(4), 0),
        (read_op(REMOTE, REMOTE_BASE), 10000),
        (
            SendOp::WriteWithImm {
                remote_addr: REMOTE_BASE + 5000,
                rkey: rkey(REMOTE),
                imm: 5,
            },
            0,
        ),
    ];
    for (wr_id, (op, offset)) in (0..).zip(ops) {
        pair.a.post(wr(wr_id, op, local(offset)));
    }
    pair.run();
    pair.assert_connected();
    let expected: Vec<_> = (0..6).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(pair.a.statuses(), expected);
    assert_eq!(pair.a.memory.octets(LOCAL)[5000..10000], pattern(2, len));
    let received: Vec<_> = pair.b.received.iter().map(|done| done.imm).collect();
    assert_eq!(received, [None, Some(4), Some(5)]);
    let last = pair.b.record.last().unwrap().1.aeth.unwrap();
    let asked = pair
        .a
        .opcodes()
        .iter()
        .filter(|opcode| **opcode == Opcode::RC_READ_REQUEST)
        .count();
    assert_eq!(last.msn.get() as usize, 4 + asked);
}

#[test]
fn gathers_and_scatters_lists() {
    let mut pair = pair_with(PathMtu::Mtu256, 0, &pattern(1, 1000), &[0; 1000]);
    pair.b.memory.post_receive(
        7,
        [
            sge(REMOTE, REMOTE_BASE + 900, 100),
            sge(REMOTE, REMOTE_BASE, 0),
            sge(REMOTE, REMOTE_BASE + 1, 500),
        ],
    );
    let list = smallvec![
        sge(LOCAL, LOCAL_BASE + 500, 3),
        sge(99, 0, 0),
        sge(LOCAL, LOCAL_BASE, 400),
    ];
    pair.a.post(SendRequest {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(list),
    });
    pair.run();
    pair.assert_connected();
    let source = pattern(1, 1000);
    let message = [&source[500..503], &source[..400]].concat();
    assert_eq!(pair.b.memory.octets(REMOTE)[900..], message[..100]);
    assert_eq!(pair.b.memory.octets(REMOTE)[1..304], message[100..]);
    assert_eq!(pair.b.memory.octets(REMOTE)[304], 0);
}

#[test]
fn solicited_is_said_once_and_only_where_it_means_something() {
    let mut pair = pair_with(PathMtu::Mtu256, 600, &pattern(1, 600), &pattern(2, 600));
    for wr_id in 0..2 {
        pair.b
            .memory
            .post_receive(wr_id, [sge(REMOTE, REMOTE_BASE, 600)]);
    }
    let local = sge(LOCAL, LOCAL_BASE, 600);
    for op in [
        SendOp::Send,
        write_op(REMOTE, REMOTE_BASE),
        read_op(REMOTE, REMOTE_BASE),
    ] {
        pair.a
            .post(with_flags(wr(1, op, local), SendFlags::SOLICITED));
    }
    pair.a.post(wr(2, SendOp::Send, local));
    pair.run();
    let solicited: Vec<_> = pair
        .a
        .record
        .iter()
        .filter(|(_, headers)| headers.bth.solicited)
        .map(|(_, headers)| headers.bth.opcode)
        .collect();
    assert_eq!(solicited, [Opcode::RC_SEND_LAST]);
    let received: Vec<_> = pair.b.received.iter().map(|done| done.solicited).collect();
    assert_eq!(received, [true, false]);
}

#[test]
fn unsignaled_requests_complete_silently() {
    let mut pair = pair_with(PathMtu::Mtu256, 8, &[1; 8], &[0; 8]);
    for wr_id in 0..100 {
        let mut request = inline(wr_id, write_op(REMOTE, REMOTE_BASE), &[1; 8]);
        if wr_id != 99 {
            request.flags = SendFlags::empty();
        }
        pair.a.post(request);
        pair.run();
    }
    assert_eq!(pair.a.statuses(), [(99, WcStatus::Success)]);
}

/// No more requests of this kind are on their way than the peer has agreed to.
#[test]
fn read_depth_is_kept() {
    let mut pair = pair_with(PathMtu::Mtu256, 8, &pattern(1, 64), &pattern(2, 64));
    for wr_id in 0..8 {
        let op = read_op(REMOTE, REMOTE_BASE + 8 * wr_id);
        pair.a
            .post(wr(wr_id, op, sge(LOCAL, LOCAL_BASE + 8 * wr_id, 8)));
    }
    let first = pair.a.transmit_all(pair.now);
    assert_eq!(first.len(), 4);
    for octets in first {
        pair.b.feed(pair.now, &octets, &Default::default());
    }
    for octets in pair.b.transmit_all(pair.now).into_iter().take(1) {
        pair.a.feed(pair.now, &octets, &Default::default());
    }
    assert_eq!(pair.a.transmit_all(pair.now).len(), 1, "one has come back");
}

#[test]
fn a_fence_waits_for_reads() {
    let mut pair = pair_with(PathMtu::Mtu256, 8, &pattern(1, 64), &pattern(2, 64));
    pair.a.post(wr(
        1,
        read_op(REMOTE, REMOTE_BASE),
        sge(LOCAL, LOCAL_BASE, 8),
    ));
    let write = wr(2, write_op(REMOTE, REMOTE_BASE), sge(LOCAL, LOCAL_BASE, 8));
    pair.a.post(with_flags(write, SendFlags::FENCE));
    let first = pair.a.transmit_all(pair.now);
    assert_eq!(first.len(), 1, "the READ alone");
    pair.run_until(pair.now);
    pair.b.feed(pair.now, &first[0], &Default::default());
    pair.run();
    pair.assert_connected();
    assert_eq!(
        pair.a.statuses(),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
    assert_eq!(
        pair.b.memory.octets(REMOTE)[..8],
        pattern(2, 8),
        "what was read was written back"
    );
}

#[test]
fn local_invalidate_waits_for_what_may_need_the_key() {
    let mut pair = pair_with(PathMtu::Mtu256, 600, &pattern(1, 600), &[0; 600]);
    pair.a.post(wr(
        1,
        write_op(REMOTE, REMOTE_BASE),
        sge(LOCAL, LOCAL_BASE, 600),
    ));
    pair.a
        .post(inline(2, SendOp::LocalInvalidate(rkey(LOCAL)), &[]));
    pair.a.post(inline(3, write_op(REMOTE, REMOTE_BASE), b"x"));
    pair.a.transmit_all(pair.now);
    assert!(pair.a.memory.region(LOCAL).valid, "the write may be lost");
    // It was: nothing of it was handed to the network.
    pair.run();
    pair.assert_connected();
    assert_eq!(pair.a.statuses().len(), 3);
    assert!(!pair.a.memory.region(LOCAL).valid);
    assert_eq!(pair.b.memory.octets(REMOTE)[0], b'x');
    assert_eq!(pair.b.memory.octets(REMOTE)[1..], pattern(1, 600)[1..]);
}

/// An acknowledge comes for the end of each message, and now and then in a long one.
#[test]
fn acknowledges_are_asked_for_regularly() {
    let mut pair = pair_with(
        PathMtu::Mtu256,
        1 << 20,
        &pattern(1, 1 << 20),
        &pattern(2, 1 << 20),
    );
    pair.a.post(wr(
        1,
        write_op(REMOTE, REMOTE_BASE),
        sge(LOCAL, LOCAL_BASE, 1 << 20),
    ));
    pair.run();
    let asks: Vec<bool> = pair
        .a
        .record
        .iter()
        .map(|(_, headers)| headers.bth.ack_req)
        .collect();
    assert_eq!(asks.len(), 4096);
    assert_eq!(asks.last(), Some(&true));
    assert!(asks.chunks(32).all(|chunk| chunk.contains(&true)));
    let asked = asks.iter().filter(|asks| **asks).count();
    assert!(asked < 4096 / 8, "{asked} is too often");
    let answers = pair.b.record.len();
    assert!(answers <= asked, "more acknowledges than were asked for");
}

/// Several packets in one go are acknowledged by one packet.
#[test]
fn acknowledges_coalesce() {
    let mut pair = pair_with(PathMtu::Mtu256, 8, &pattern(1, 8), &[0; 8]);
    for wr_id in 0..10 {
        pair.a.post(wr(
            wr_id,
            write_op(REMOTE, REMOTE_BASE),
            sge(LOCAL, LOCAL_BASE, 8),
        ));
    }
    let packets = pair.a.transmit_all(pair.now);
    assert_eq!(packets.len(), 10);
    for octets in &packets {
        pair.b.feed(pair.now, octets, &Default::default());
    }
    let answers = pair.b.answers(pair.now);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].bth.psn, A_PSN.advance(9));
    assert_eq!(answers[0].aeth.unwrap().msn.get(), 10);
    pair.a.inject(pair.now, answers[0], &[]);
    assert_eq!(pair.a.sent.len(), 10);
    assert_eq!(pair.a.qp.deadline(), None);
}

/// Both directions at once, reads among them, share the way.
#[test]
fn both_directions_at_once() {
    let len = 300_000;
    let mut pair = pair_with(PathMtu::Mtu1024, len, &pattern(1, len), &pattern(2, len));
    let access = VecMemory::all_access();
    pair.a.memory.add(3, 0, access, &vec![0; len]);
    pair.b.memory.add(4, 0, access, &vec![0; len]);
    pair.a
        .post(wr(1, write_op(4, 0), sge(LOCAL, LOCAL_BASE, len)));
    pair.b.post(wr(
        2,
        read_op(LOCAL, LOCAL_BASE),
        sge(REMOTE, REMOTE_BASE, len),
    ));
    pair.b
        .post(wr(3, write_op(3, 0), sge(REMOTE, REMOTE_BASE, len)));
    pair.run();
    pair.assert_connected();
    assert_eq!(pair.b.memory.octets(4), pattern(1, len));
    assert_eq!(pair.b.memory.octets(REMOTE), pattern(1, len));
    assert_eq!(pair.b.statuses().len(), 2);
    assert_eq!(pair.a.qp.counters().retransmitted, 0);
    assert!(pair.now.since_epoch() < Duration::from_millis(10));
}

#[test]
fn posts_that_cannot_be_are_refused() {
    let mut pair = Pair::good();
    let local = sge(LOCAL, LOCAL_BASE, 8);
    let post = |pair: &mut Pair, request| pair.a.qp.post_send(request);
    assert!(matches!(
        post(&mut pair, inline(1, read_op(REMOTE, 0), b"x")),
        Err(Misuse::Invalid(_))
    ));
    let long = sge(LOCAL, LOCAL_BASE, 9);
    assert!(matches!(
        post(&mut pair, wr(1, fetch_add(REMOTE, 0, 1), long)),
        Err(Misuse::Invalid(_))
    ));
    let huge = sge(LOCAL, 0, (1 << 31) + 1);
    assert_eq!(
        post(&mut pair, wr(1, SendOp::Send, huge)),
        Err(Misuse::MessageTooLong)
    );
    for wr_id in 0..64 {
        post(&mut pair, wr(wr_id, SendOp::Send, local)).unwrap();
    }
    assert_eq!(
        post(&mut pair, wr(64, SendOp::Send, local)),
        Err(Misuse::QueueFull)
    );
    let destination = Default::default();
    assert!(
        pair.a
            .qp
            .post_send_to(wr(1, SendOp::Send, local), destination)
            .is_err()
    );
    let mut unreliable = Pair::reset(QpType::Uc, Network::GOOD, 1);
    unreliable.connect(attributes());
    for op in [
        read_op(REMOTE, 0),
        fetch_add(REMOTE, 0, 1),
        SendOp::SendWithInvalidate(rkey(1)),
    ] {
        assert_eq!(
            post(&mut unreliable, wr(1, op, local)),
            Err(Misuse::NotSupported)
        );
    }
}
