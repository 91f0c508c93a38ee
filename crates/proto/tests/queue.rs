//! The send queue's promises: order, fences, depths, signals, and requests that go wrong.

mod common;

use common::raw::{controls, read_request, segments, victim};
use common::requests::*;
use common::*;
use smallvec::smallvec;
use softverbs_proto::fault::Misuse;
use softverbs_proto::iwarp::negotiate::Negotiated;
use softverbs_proto::iwarp::stream::StreamConfig;
use softverbs_proto::wr::{Payload, SendFlags, SendOp, SendRequest, WcStatus};
use softverbs_wire::rdmap::Opcode;

fn opcodes(end: &End) -> Vec<Opcode> {
    controls(&end.record)
        .into_iter()
        .map(|control| control.opcode())
        .collect()
}

#[test]
fn completions_come_in_the_order_of_posting() {
    let mut pair = loaded(agreed());
    let requests = [
        read(1, 200_000),
        write(2, 10),
        send(3),
        read(4, 1),
        write(5, 200_000),
        send(6),
    ];
    for request in requests {
        pair.a.post(request);
    }
    pair.a.flush();
    assert_eq!(pair.a.sent, [], "all wait for the first read");
    pair.run();
    let expected: Vec<_> = (1..=6).map(|wr_id| (wr_id, OK)).collect();
    assert_eq!(statuses(&pair.a.sent), expected);
    assert_eq!(pair.a.stream.outstanding(), 0);
}

#[test]
fn success_is_reported_if_it_was_asked_for() {
    let mut pair = loaded(agreed());
    for request in [
        write(1, 8),
        unsignaled(write(2, 8)),
        unsignaled(read(3, 8)),
        read(4, 8),
    ] {
        pair.a.post(request);
    }
    pair.run();
    assert_eq!(statuses(&pair.a.sent), [(1, OK), (4, OK)]);
    let config = StreamConfig {
        sq_sig_all: true,
        ..config()
    };
    let mut all = Pair::detached(config, Link::Whole, 0);
    all.attach(agreed(), LARGEST);
    all.b.memory.add(9, 0, VecMemory::all_access(), &[0; 64]);
    all.b.memory.post_receive(0, [sge(9, 0, 64)]);
    all.a.post(unsignaled(send(1)));
    all.run();
    assert_eq!(statuses(&all.a.sent), [(1, OK)]);
}

#[test]
fn a_request_completes_when_tcp_has_its_last_octet() {
    let mut pair = loaded(agreed());
    pair.a.post(send(1));
    pair.a.post(send(2));
    let mut batch = softverbs_proto::transmit::TxBatch::new();
    let memory = &mut pair.a.memory;
    pair.a
        .stream
        .poll_transmit(at(0), memory, &mut batch, 1 << 20, 1024);
    let first = batch.frame_ends()[0];
    pair.a.stream.on_transmitted(first - 1);
    assert!(pair.a.stream.poll_send_completion().is_none());
    pair.a.stream.on_transmitted(1);
    assert_eq!(
        pair.a.stream.poll_send_completion().map(|c| c.wr_id),
        Some(1)
    );
    assert!(pair.a.stream.poll_send_completion().is_none());
    pair.a.stream.on_transmitted(batch.len() - first);
    assert_eq!(
        pair.a.stream.poll_send_completion().map(|c| c.wr_id),
        Some(2)
    );
}

#[test]
fn a_fence_waits_for_reads_and_for_nothing_else() {
    let mut pair = loaded(agreed());
    pair.a.post(with_flags(send(1), SendFlags::FENCE));
    pair.a.post(read(2, 8));
    pair.a.post(send(3));
    pair.a.post(with_flags(send(4), SendFlags::FENCE));
    pair.a.post(send(5));
    pair.a.flush();
    let before = [Opcode::SEND, Opcode::READ_REQUEST, Opcode::SEND];
    assert_eq!(opcodes(&pair.a), before, "those behind the fence wait too");
    pair.run();
    assert_eq!(opcodes(&pair.a).len(), 5);
    let expected: Vec<_> = (1..=5).map(|wr_id| (wr_id, OK)).collect();
    assert_eq!(statuses(&pair.a.sent), expected);
}

#[test]
fn a_fence_waits_for_atomics() {
    let mut pair = loaded(agreed());
    let op = SendOp::FetchAdd {
        remote_addr: 0,
        rkey: rkey(1),
        add: 1,
    };
    pair.a.post(wr(1, op, sge(2, 0, 8)));
    pair.a.post(with_flags(send(2), SendFlags::FENCE));
    pair.a.flush();
    assert_eq!(opcodes(&pair.a), [Opcode::ATOMIC_REQUEST]);
    pair.run();
    assert_eq!(opcodes(&pair.a), [Opcode::ATOMIC_REQUEST, Opcode::SEND]);
}

#[test]
fn no_more_reads_than_agreed_and_all_of_them() {
    for ord in [1, 2, 9, 16] {
        let mut pair = loaded(Negotiated { ord, ..agreed() });
        for wr_id in 0..40 {
            pair.a.post(read(wr_id, 5000));
        }
        pair.a.post(send(40));
        pair.a.flush();
        assert_eq!(
            pair.a.frames.len(),
            usize::from(ord),
            "the Send keeps its place"
        );
        pair.run();
        pair.assert_open();
        let expected: Vec<_> = (0..=40).map(|wr_id| (wr_id, OK)).collect();
        assert_eq!(statuses(&pair.a.sent), expected);
        assert_eq!(pair.a.memory.octets(2)[..5000], pattern(1, 300_000)[..5000]);
    }
}

/// spdk#2261: sixteen reads were agreed on, so the sixteenth is as good as the first.
#[test]
fn sixteen_outstanding_reads_are_served() {
    let mut end = victim(agreed());
    let requests: Vec<u8> = (1..=16)
        .flat_map(|msn| read_request(msn, 1, 0x1000 + u64::from(msn), 100))
        .collect();
    end.feed(at(0), &requests);
    assert_eq!(end.closed_for(), "open");
    end.flush();
    let answers = segments(&end.record);
    assert_eq!(answers.len(), 16);
    for (at, (header, payload)) in answers.iter().enumerate() {
        assert_eq!(header.control().opcode(), Opcode::READ_RESPONSE);
        assert_eq!(payload[..], pattern(1, 4096)[at + 1..at + 101]);
    }
    // Answered ones make room.
    end.feed(at(0), &read_request(17, 1, 0x1000, 4));
    assert_eq!(end.closed_for(), "open");
}

#[test]
fn atomics_count_as_reads() {
    let mut pair = loaded(Negotiated { ord: 2, ..agreed() });
    let op = SendOp::FetchAdd {
        remote_addr: 0,
        rkey: rkey(1),
        add: 1,
    };
    pair.a.post(read(1, 8));
    pair.a.post(wr(2, op, sge(2, 0, 8)));
    pair.a.post(wr(3, op, sge(2, 0, 8)));
    pair.a.flush();
    assert_eq!(
        opcodes(&pair.a),
        [Opcode::READ_REQUEST, Opcode::ATOMIC_REQUEST]
    );
    pair.run();
    assert_eq!(statuses(&pair.a.sent), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn responses_and_requests_take_turns_at_message_borders() {
    let mut pair = loaded(agreed());
    // Both want to send a lot: `b` answers reads and writes itself.
    pair.a.post(send(0));
    pair.run();
    for wr_id in 0..4 {
        pair.a.post(read(wr_id, 200_000));
        pair.b.post(write(wr_id, 200_000));
    }
    let before = pair.b.record.len();
    pair.a.flush();
    let requests: Vec<u8> = pair.a.wire.drain(..).collect();
    pair.b.feed(at(0), &requests);
    pair.run();
    let order = whole_messages(&pair.b.record[before..]);
    assert_eq!(order.len(), 8);
    let changes = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!(changes, 7, "one source starves: {order:?}");
}

/// Opcodes of the messages that `octets` hold; none may begin before the one before it ended.
fn whole_messages(octets: &[u8]) -> Vec<Opcode> {
    let mut messages: Vec<(Opcode, bool)> = Vec::new();
    for control in controls(octets) {
        match messages.last_mut() {
            Some((opcode, open)) if *open => {
                assert_eq!(
                    *opcode,
                    control.opcode(),
                    "in the middle of another message"
                );
                *open = !control.is_last();
            }
            _ => messages.push((control.opcode(), !control.is_last())),
        }
    }
    messages.into_iter().map(|(opcode, _)| opcode).collect()
}

#[test]
fn a_message_that_began_alone_is_not_interrupted() {
    let big = || {
        let mut end = victim(agreed());
        end.memory
            .add(5, 0, VecMemory::all_access(), &pattern(5, 200_000));
        end.feed(at(0), &raw::send(true, 1, 0, b""));
        end
    };
    let write = |wr_id| {
        let op = SendOp::Write {
            remote_addr: 0,
            rkey: rkey(2),
        };
        wr(wr_id, op, sge(5, 0, 200_000))
    };
    // A read comes in while a write is under way, after another request.
    let mut end = big();
    end.post(send(1));
    end.post(write(2));
    end.transmit(at(0), 100, 1024);
    end.feed(at(0), &read_request(1, 5, 0, 200_000));
    end.post(send(3));
    end.flush();
    let order = [
        Opcode::SEND,
        Opcode::WRITE,
        Opcode::READ_RESPONSE,
        Opcode::SEND,
    ];
    assert_eq!(whole_messages(&end.record), order);
    // A write is posted while a response is under way.
    let mut end = big();
    end.feed(at(0), &read_request(1, 5, 0, 200_000));
    end.transmit(at(0), 1, 1024);
    end.post(write(1));
    end.flush();
    assert_eq!(
        whole_messages(&end.record),
        [Opcode::READ_RESPONSE, Opcode::WRITE]
    );
}

#[test]
fn a_full_queue_says_so_and_has_room_again() {
    let mut pair = loaded(agreed());
    for wr_id in 0..64 {
        pair.a.post(send(wr_id));
    }
    assert_eq!(pair.a.stream.post_send(send(64)), Err(Misuse::QueueFull));
    pair.run();
    pair.a.post(unsignaled(send(64)));
    assert_eq!(pair.a.sent.len(), 64);
}

#[test]
fn requests_that_make_no_sense_are_refused_at_once() {
    let mut pair = loaded(agreed());
    let atomic = SendOp::FetchAdd {
        remote_addr: 0,
        rkey: rkey(1),
        add: 1,
    };
    let read = SendOp::Read {
        remote_addr: 0,
        rkey: rkey(1),
    };
    let mut refuse = |request: SendRequest| pair.a.stream.post_send(request).unwrap_err();
    assert_eq!(
        refuse(inline(1, SendOp::SendWithImm(5), b"")),
        Misuse::NotSupported
    );
    assert!(matches!(
        refuse(wr(1, atomic, sge(2, 0, 7))),
        Misuse::Invalid(_)
    ));
    assert!(matches!(
        refuse(inline(1, atomic, &[0; 8])),
        Misuse::Invalid(_)
    ));
    assert!(matches!(
        refuse(inline(1, read, &[0; 8])),
        Misuse::Invalid(_)
    ));
    let half = sge(1, 0, 1 << 31);
    let mut long = wr(1, SendOp::Send, half);
    long.payload = Payload::Sges(smallvec![half, half]);
    assert_eq!(refuse(long), Misuse::MessageTooLong);
    assert_eq!(pair.a.stream.outstanding(), 0);
    pair.run();
    assert_eq!(pair.a.sent, []);
}

#[test]
fn what_the_connection_does_not_offer_is_refused_once_that_is_known() {
    let atomic = SendOp::FetchAdd {
        remote_addr: 0,
        rkey: rkey(1),
        add: 1,
    };
    let imm = SendOp::WriteWithImm {
        remote_addr: 0,
        rkey: rkey(2),
        imm: 1,
    };
    let plain = Negotiated {
        rfc7306: false,
        ..agreed()
    };
    for op in [atomic, imm] {
        let mut after = loaded(plain.clone());
        let refused = after.a.stream.post_send(wr(1, op, sge(2, 0, 8)));
        assert_eq!(refused, Err(Misuse::NotSupported));
        // Nobody knew when it was posted: it fails in its turn, and those behind it are flushed.
        let mut before = Pair::detached(config(), Link::Whole, 0);
        before.b.memory.add(9, 0, VecMemory::all_access(), &[0; 64]);
        before.b.memory.post_receive(0, [sge(9, 0, 64)]);
        before.a.post(send(1));
        before.a.post(unsignaled(wr(2, op, sge(2, 0, 8))));
        before.a.post(send(3));
        before.attach(plain.clone(), LARGEST);
        before.run();
        assert_eq!(
            statuses(&before.a.sent),
            [
                (1, OK),
                (2, WcStatus::LocQpOpErr),
                (3, WcStatus::WrFlushErr)
            ]
        );
        assert_eq!(before.a.closed_for(), "Some(Fault(Local(NotSupported)))");
        assert_eq!(statuses(&before.b.received), [(0, OK)]);
        assert!(
            before
                .b
                .closed_for()
                .contains("PeerTerminated(RdmapLocalCatastrophic)")
        );
    }
    let mut pair = loaded(Negotiated { ord: 0, ..agreed() });
    assert_eq!(
        pair.a.stream.post_send(read(1, 8)),
        Err(Misuse::NotSupported)
    );
    let mut before = Pair::detached(config(), Link::Whole, 0);
    before.a.memory.add(2, 0, VecMemory::all_access(), &[0; 64]);
    before.a.post(read(1, 8));
    before.attach(Negotiated { ord: 0, ..agreed() }, LARGEST);
    before.run();
    assert_eq!(
        statuses(&before.a.sent),
        [(1, WcStatus::LocQpOpErr)],
        "not left to wait"
    );
}

#[test]
fn flags_and_keys_of_sends_arrive() {
    let mut pair = loaded(agreed());
    pair.b.memory.add(5, 0, VecMemory::all_access(), &[0; 16]);
    pair.b.memory.add(6, 0, VecMemory::all_access(), &[0; 16]);
    let se = SendFlags::SOLICITED;
    pair.a.post(send(0));
    pair.a.post(with_flags(send(1), se));
    pair.a
        .post(inline(2, SendOp::SendWithInvalidate(rkey(5)), b"x"));
    pair.a.post(with_flags(
        inline(3, SendOp::SendWithInvalidate(rkey(6)), b""),
        se,
    ));
    pair.run();
    let seen: Vec<_> = pair
        .b
        .received
        .iter()
        .map(|c| (c.solicited, c.invalidated))
        .collect();
    assert_eq!(
        seen,
        [
            (false, None),
            (true, None),
            (false, Some(rkey(5))),
            (true, Some(rkey(6)))
        ]
    );
    assert!(!pair.b.memory.region(5).valid && !pair.b.memory.region(6).valid);
    pair.assert_open();
}

#[test]
fn inline_data_is_that_of_the_moment_of_posting() {
    for len in [0, 1, 64, 65, 500, 70_000] {
        let mut pair = loaded(agreed());
        pair.b.memory.receives.clear();
        pair.b.memory.post_receive(1, [sge(2, 0, len)]);
        pair.a.post(inline(1, SendOp::Send, &pattern(6, len)));
        let op = SendOp::Write {
            remote_addr: 100_000,
            rkey: rkey(2),
        };
        pair.a.post(inline(2, op, &pattern(7, len)));
        pair.run();
        assert_eq!(pair.b.memory.octets(2)[..len], pattern(6, len));
        assert_eq!(
            pair.b.memory.octets(2)[100_000..100_000 + len],
            pattern(7, len)
        );
        assert_eq!(statuses(&pair.a.sent), [(1, OK), (2, OK)]);
    }
}
