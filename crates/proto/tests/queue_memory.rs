//! Requests and the memory that they name: checks, several entries, memory that goes away.

mod common;

use common::raw::{segments, terminate};
use common::requests::*;
use common::*;
use smallvec::smallvec;
use softverbs_proto::iwarp::negotiate::Negotiated;
use softverbs_proto::wr::{Payload, SendFlags, SendOp, WcOpcode, WcStatus};

#[test]
fn local_memory_is_checked_when_the_request_is_sent() {
    let bad = [
        ("no key", sge(77, 0, 8)),
        ("outside", sge(1, 299_999, 2)),
        ("another PD", sge(3, 0, 8)),
    ];
    for (name, entry) in bad {
        let mut pair = loaded(agreed());
        pair.a.memory.add(3, 0, VecMemory::all_access(), &[0; 64]);
        pair.a.memory.region_mut(3).our_pd = false;
        pair.a.post(read(1, 100_000));
        pair.a.post(send(2));
        pair.a.post(unsignaled(wr(3, SendOp::Send, entry)));
        pair.a.post(send(4));
        pair.run();
        // Those before it complete as if nothing were: it is the first error.
        assert_eq!(
            statuses(&pair.a.sent),
            [
                (1, OK),
                (2, OK),
                (3, WcStatus::LocProtErr),
                (4, WcStatus::WrFlushErr)
            ],
            "{name}"
        );
        assert!(
            pair.a
                .closed_for()
                .starts_with("Some(Fault(Local(Protection("),
            "{name}"
        );
        assert_eq!(statuses(&pair.b.received), [(0, OK)], "{name}");
        assert!(pair.b.is_closed(), "{name}");
    }
}

#[test]
fn sinks_need_the_right_to_write() {
    use softverbs_proto::memory::Access;
    let atomic = SendOp::FetchAdd {
        remote_addr: 0,
        rkey: rkey(1),
        add: 1,
    };
    let read = SendOp::Read {
        remote_addr: 0,
        rkey: rkey(1),
    };
    for op in [read, atomic] {
        let mut pair = loaded(agreed());
        pair.a.memory.add(4, 0, Access::REMOTE_READ, &[0; 64]);
        pair.a.post(wr(1, op, sge(4, 0, 8)));
        pair.run();
        assert_eq!(statuses(&pair.a.sent), [(1, WcStatus::LocProtErr)]);
    }
    // A source does not.
    let mut pair = loaded(agreed());
    pair.a.memory.add(4, 0, Access::empty(), &[5; 64]);
    pair.a.post(wr(1, SendOp::Send, sge(4, 0, 8)));
    pair.run();
    assert_eq!(statuses(&pair.a.sent), [(1, OK)]);
}

#[test]
fn empty_entries_are_never_checked() {
    let mut pair = loaded(agreed());
    let nowhere = sge(77, u64::MAX, 0);
    let mut request = wr(1, SendOp::Send, nowhere);
    request.payload = Payload::Sges(smallvec![nowhere, sge(1, 5, 3), nowhere, sge(1, 0, 2)]);
    pair.a.post(request);
    pair.a.post(wr(
        2,
        SendOp::Read {
            remote_addr: 0,
            rkey: rkey(88),
        },
        nowhere,
    ));
    pair.a.post(wr(
        3,
        SendOp::Write {
            remote_addr: 0,
            rkey: rkey(88),
        },
        nowhere,
    ));
    pair.run();
    assert_eq!(statuses(&pair.a.sent), [(1, OK), (2, OK), (3, OK)]);
    let expected = [&pattern(1, 8)[5..], &pattern(1, 2)].concat();
    assert_eq!(pair.b.memory.octets(9)[..5], expected);
    pair.assert_open();
}

#[test]
fn memory_that_goes_in_the_middle_of_a_message_fails_it() {
    for crc in [false, true] {
        let mut pair = loaded(Negotiated { crc, ..agreed() });
        pair.a.post(write(1, 200_000));
        pair.a.post(write(2, 8));
        pair.a.transmit(at(0), 1, 1024);
        assert_eq!(pair.a.frames.len(), 1);
        pair.a.memory.region_mut(1).valid = false;
        pair.run();
        assert_eq!(
            statuses(&pair.a.sent),
            [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]
        );
        let last = segments(&pair.a.record).last().and_then(terminate).unwrap();
        let triple = last.code.to_triple();
        assert_eq!((triple.layer, triple.etype, triple.code), (0, 0, 0));
    }
}

#[test]
fn local_invalidate_keeps_its_place() {
    let mut pair = loaded(agreed());
    pair.a
        .memory
        .add(5, 0, VecMemory::all_access(), &pattern(5, 16));
    pair.a.post(wr(1, SendOp::Send, sge(5, 0, 16)));
    pair.a
        .post(inline(2, SendOp::LocalInvalidate(rkey(5)), b""));
    pair.a.post(wr(3, SendOp::Send, sge(5, 0, 16)));
    pair.run();
    assert_eq!(
        statuses(&pair.a.sent),
        [(1, OK), (2, OK), (3, WcStatus::LocProtErr)]
    );
    assert_eq!(pair.a.sent[1].opcode, WcOpcode::LocalInv);
    assert_eq!(pair.b.memory.octets(9)[..16], pattern(5, 16));
    assert!(!pair.a.memory.region(5).valid);
}

#[test]
fn local_invalidate_of_nothing_fails() {
    let mut pair = loaded(agreed());
    pair.a
        .post(inline(1, SendOp::LocalInvalidate(rkey(66)), b""));
    pair.run();
    assert_eq!(statuses(&pair.a.sent), [(1, WcStatus::LocProtErr)]);
    assert!(pair.a.is_closed());
}

#[test]
fn local_invalidate_waits_for_a_fence_and_the_gate() {
    let mut pair = loaded(agreed());
    pair.b.memory.add(5, 0, VecMemory::all_access(), &[0; 16]);
    pair.b
        .post(inline(1, SendOp::LocalInvalidate(rkey(5)), b""));
    pair.b.flush();
    assert!(pair.b.memory.region(5).valid, "the gate is closed");
    pair.a.post(read(1, 8));
    let fenced = with_flags(
        inline(2, SendOp::LocalInvalidate(rkey(2)), b""),
        SendFlags::FENCE,
    );
    pair.a.post(fenced);
    pair.a.flush();
    assert!(pair.a.memory.region(2).valid, "the read still needs it");
    pair.run();
    assert!(!pair.a.memory.region(2).valid);
    assert!(!pair.b.memory.region(5).valid);
    assert_eq!(statuses(&pair.a.sent), [(1, OK), (2, OK)]);
    assert_eq!(statuses(&pair.b.sent), [(1, OK)]);
}

#[test]
fn a_read_may_have_several_sinks() {
    let mut pair = loaded(Negotiated {
        crc: true,
        ..agreed()
    });
    let mut request = read(1, 0);
    request.payload = Payload::Sges(smallvec![
        sge(2, 10, 1),
        sge(2, 100, 100_000),
        sge(9, 0, 7),
        sge(2, 5, 3)
    ]);
    pair.a.post(request);
    pair.run();
    assert_eq!(statuses(&pair.a.sent), [(1, OK)]);
    let source = pattern(1, 300_000);
    let sink = pair.a.memory.octets(2);
    assert_eq!(sink[10], source[0]);
    assert_eq!(sink[100..100_100], source[1..100_001]);
    assert_eq!(pair.a.memory.octets(9)[..7], source[100_001..100_008]);
    assert_eq!(sink[5..8], source[100_008..100_011]);
    assert_eq!(sink[8..10], [0, 0]);
}

#[test]
fn sends_scatter_and_gather() {
    let mut pair = loaded(agreed());
    pair.b.memory.receives.clear();
    pair.b
        .memory
        .post_receive(1, [sge(2, 0, 3), sge(2, 50, 1), sge(2, 100, 90_000)]);
    let mut request = wr(1, SendOp::Send, sge(1, 0, 0));
    request.payload = Payload::Sges(smallvec![sge(1, 7, 70_000), sge(1, 3, 2), sge(1, 0, 5)]);
    pair.a.post(request);
    pair.run();
    let source = pattern(1, 300_000);
    let message = [&source[7..70_007], &source[3..5], &source[..5]].concat();
    let sink = pair.b.memory.octets(2);
    assert_eq!(sink[..3], message[..3]);
    assert_eq!(sink[50], message[3]);
    assert_eq!(sink[100..100 + message.len() - 4], message[4..]);
    assert_eq!(pair.b.received[0].byte_len as usize, message.len());
}
