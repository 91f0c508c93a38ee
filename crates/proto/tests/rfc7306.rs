//! Atomics and immediate data (RFC 7306).

mod common;

use common::raw::{controls, header, segments, terminate, untagged, victim};
use common::requests::*;
use common::*;
use smallvec::smallvec;
use softverbs_proto::iwarp::negotiate::Negotiated;
use softverbs_proto::wr::{Payload, SendFlags, SendOp, WcOpcode, WcStatus};
use softverbs_wire::rdmap::Opcode;

fn word(octets: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(octets[at..at + 8].try_into().unwrap())
}

fn set_word(end: &mut End, key: u32, at: usize, value: u64) {
    let region = end.memory.region_mut(key);
    region.octets_mut()[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

#[test]
fn fetch_and_add() {
    let mut pair = loaded(agreed());
    set_word(&mut pair.b, 1, 16, u64::MAX - 1);
    let op = SendOp::FetchAdd {
        remote_addr: 16,
        rkey: rkey(1),
        add: 5,
    };
    pair.a.post(wr(1, op, sge(2, 8, 8)));
    pair.a.post(wr(2, op, sge(2, 16, 8)));
    pair.run();
    assert_eq!(statuses(&pair.a.sent), [(1, OK), (2, OK)]);
    assert_eq!(pair.a.sent[0].opcode, WcOpcode::FetchAdd);
    assert_eq!(pair.a.sent[0].byte_len, 8);
    assert_eq!(word(pair.a.memory.octets(2), 8), u64::MAX - 1);
    assert_eq!(word(pair.a.memory.octets(2), 16), 3);
    assert_eq!(word(pair.b.memory.octets(1), 16), 8);
    pair.assert_open();
}

#[test]
fn compare_and_swap() {
    let mut pair = loaded(agreed());
    set_word(&mut pair.b, 1, 0, 0x0123_4567_89ab_cdef);
    let swap = |compare, swap| SendOp::CompareSwap {
        remote_addr: 0,
        rkey: rkey(1),
        compare,
        swap,
    };
    pair.a
        .post(wr(1, swap(0x0123_4567_89ab_cdee, 1), sge(2, 0, 8)));
    pair.a
        .post(wr(2, swap(0x0123_4567_89ab_cdef, 2), sge(2, 8, 8)));
    pair.a.post(wr(3, swap(2, 3), sge(2, 16, 8)));
    pair.run();
    assert_eq!(statuses(&pair.a.sent), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(pair.a.sent[0].opcode, WcOpcode::CompSwap);
    let results: Vec<_> = [0, 8, 16]
        .map(|at| word(pair.a.memory.octets(2), at))
        .to_vec();
    assert_eq!(results, [0x0123_4567_89ab_cdef, 0x0123_4567_89ab_cdef, 2]);
    assert_eq!(word(pair.b.memory.octets(1), 0), 3);
}

#[test]
fn the_result_may_be_scattered() {
    let mut pair = loaded(agreed());
    set_word(&mut pair.b, 1, 0, 0x0102_0304_0506_0708);
    let op = SendOp::FetchAdd {
        remote_addr: 0,
        rkey: rkey(1),
        add: 0,
    };
    let mut request = wr(1, op, sge(2, 0, 0));
    request.payload = Payload::Sges(smallvec![sge(2, 0, 3), sge(2, 10, 5)]);
    pair.a.post(request);
    pair.run();
    let sink = pair.a.memory.octets(2);
    let result = [&sink[..3], &sink[10..15]].concat();
    assert_eq!(word(&result, 0), 0x0102_0304_0506_0708);
}

#[test]
fn reads_and_atomics_are_carried_out_in_their_order() {
    for link in [Link::Whole, Link::Random] {
        let mut pair = loaded(Negotiated {
            crc: true,
            ..agreed()
        });
        pair.link = link;
        set_word(&mut pair.b, 1, 0, 10);
        let add = SendOp::FetchAdd {
            remote_addr: 0,
            rkey: rkey(1),
            add: 1,
        };
        let read = SendOp::Read {
            remote_addr: 0,
            rkey: rkey(1),
        };
        for at in 0..8 {
            let op = if at % 2 == 0 { read } else { add };
            pair.a.post(wr(at, op, sge(2, 8 * at, 8)));
        }
        pair.run();
        let seen: Vec<_> = (0..8)
            .map(|at| word(pair.a.memory.octets(2), 8 * at))
            .collect();
        assert_eq!(seen, [10, 10, 11, 11, 12, 12, 13, 13]);
    }
}

#[test]
fn an_atomic_of_the_peer_that_is_refused() {
    let mut pair = loaded(agreed());
    let op = SendOp::FetchAdd {
        remote_addr: 4,
        rkey: rkey(1),
        add: 1,
    };
    pair.a.post(wr(1, op, sge(2, 0, 8)));
    pair.run();
    assert_eq!(statuses(&pair.a.sent), [(1, WcStatus::RemOpErr)]);
    let mut pair = loaded(agreed());
    let op = SendOp::FetchAdd {
        remote_addr: 0,
        rkey: rkey(99),
        add: 1,
    };
    pair.a.post(wr(1, op, sge(2, 0, 8)));
    pair.a.post(send(2));
    pair.run();
    assert_eq!(
        statuses(&pair.a.sent)[0],
        (1, WcStatus::RemAccessErr),
        "told from the Terminate's header"
    );
}

#[test]
fn an_atomic_whose_target_goes_before_its_turn() {
    let mut end = victim(agreed());
    end.feed(at(0), &raw::fetch_add(1, 1, 0x1000, 1));
    end.memory.region_mut(1).valid = false;
    let message = end.terminate().unwrap();
    let triple = message.code.to_triple();
    assert_eq!((triple.layer, triple.etype, triple.code), (0, 1, 0));
    assert_eq!(message.segment_len(), Some(70));
    assert_eq!(end.memory.octets(1), pattern(1, 4096));
}

#[test]
fn write_with_immediate() {
    for size in [0, 1, 16, 1025, 200_000] {
        let mut pair = loaded(agreed());
        let op = SendOp::WriteWithImm {
            remote_addr: 7,
            rkey: rkey(2),
            imm: 0x8899_aabb,
        };
        pair.a.post(wr(1, op, sge(1, 0, size)));
        pair.a
            .post(with_flags(wr(2, op, sge(1, 0, 4)), SendFlags::SOLICITED));
        pair.a.post(send(3));
        pair.run();
        assert_eq!(statuses(&pair.a.sent), [(1, OK), (2, OK), (3, OK)]);
        assert_eq!(pair.a.sent[0].opcode, WcOpcode::RdmaWrite);
        let received = &pair.b.received;
        assert_eq!(statuses(received), [(0, OK), (1, OK), (2, OK)]);
        let imm = WcOpcode::RecvRdmaWithImm;
        assert_eq!(received[0].opcode, imm);
        assert_eq!(received[0].byte_len as usize, size, "what was written");
        assert_eq!(received[0].imm, Some(0x8899_aabb));
        assert!(!received[0].solicited);
        assert_eq!((received[1].opcode, received[1].byte_len), (imm, 4));
        assert!(received[1].solicited);
        assert_eq!(received[2].opcode, WcOpcode::Recv);
        assert_eq!(received[2].imm, None);
        // The second write repeats the first octets.
        assert_eq!(pair.b.memory.octets(2)[7..7 + size], pattern(1, size));
        assert_eq!(
            pair.b.memory.octets(9)[..128],
            [0; 128],
            "the receives' memory is not used"
        );
        let opcodes: Vec<_> = controls(&pair.a.record)
            .into_iter()
            .map(|control| control.opcode())
            .collect();
        assert_eq!(
            opcodes
                .iter()
                .filter(|opcode| opcode.is_immediate())
                .count(),
            2
        );
        pair.assert_open();
    }
}

#[test]
fn nothing_comes_between_a_write_and_its_immediate_data_from_the_same_queue() {
    let mut pair = loaded(agreed());
    let op = SendOp::WriteWithImm {
        remote_addr: 0,
        rkey: rkey(2),
        imm: 1,
    };
    pair.a.post(wr(1, op, sge(1, 0, 100)));
    // One frame at a time; the disconnect falls between the two messages.
    pair.a.transmit(at(0), 1, 1024);
    assert_eq!(pair.a.sent, [], "half done");
    pair.a.stream.disconnect(at(0));
    pair.a.flush();
    assert_eq!(statuses(&pair.a.sent), [(1, OK)]);
    pair.run();
    assert_eq!(pair.b.received.len(), 1);
}

#[test]
fn immediate_data_alone_reports_no_octets() {
    let mut end = victim(agreed());
    let frame = |msn| {
        untagged(
            header(Opcode::IMMEDIATE, true, msn, 0),
            &[0, 0, 0, 0, 1, 2, 3, 4],
        )
    };
    end.feed(at(0), &raw::write(true, 1, 0x1000, b"abcd"));
    end.feed(at(0), &frame(1));
    end.feed(at(0), &frame(2));
    let seen: Vec<_> = end.received.iter().map(|c| (c.byte_len, c.imm)).collect();
    assert_eq!(seen, [(4, Some(0x0102_0304)), (0, Some(0x0102_0304))]);
    // What was written before a Send belongs to nobody.
    let mut end = victim(agreed());
    end.feed(at(0), &raw::write(true, 1, 0x1000, b"abcd"));
    end.feed(at(0), &raw::send(true, 1, 0, b""));
    end.feed(at(0), &frame(2));
    assert_eq!(end.received[1].byte_len, 0);
}

#[test]
fn a_write_that_is_refused_delivers_no_immediate_data() {
    let mut pair = loaded(agreed());
    let op = SendOp::WriteWithImm {
        remote_addr: 0,
        rkey: rkey(77),
        imm: 1,
    };
    pair.a.post(wr(1, op, sge(1, 0, 100)));
    pair.run();
    assert_eq!(pair.b.received, []);
    let last = segments(&pair.b.record).last().and_then(terminate).unwrap();
    let triple = last.code.to_triple();
    assert_eq!((triple.layer, triple.etype, triple.code), (1, 1, 0));
}
