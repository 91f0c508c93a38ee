//! Who may send first: the send gate, RTR frames, and when a connection counts as established.

mod common;

use core::time::Duration;

use common::pair::{GRACE, RTR_TIMEOUT};
use common::raw::*;
use common::*;
use softverbs_proto::iwarp::negotiate::{
    Initiator, InitiatorOutcome, Negotiated, Responder, ResponderOutcome, RtrKind, Wishes,
};
use softverbs_proto::iwarp::stream::Role;
use softverbs_proto::mutation::Mutations;
use softverbs_proto::wr::{SendOp, WcStatus};
use softverbs_wire::rdmap::Opcode;

const KINDS: [RtrKind; 3] = [RtrKind::Send, RtrKind::Write, RtrKind::Read];

/// Receives for 16 messages of 8 octets at both ends.
fn post_receives(pair: &mut Pair) {
    for end in [&mut pair.a, &mut pair.b] {
        end.memory.add(9, 0, VecMemory::all_access(), &[0; 128]);
        for wr_id in 0..16 {
            end.memory.post_receive(wr_id, [sge(9, 8 * wr_id, 8)]);
        }
    }
}

fn messages(end: &End) -> Vec<u8> {
    let count = end.received.len();
    (0..count).map(|at| end.memory.octets(9)[8 * at]).collect()
}

#[test]
fn the_responder_keeps_what_is_posted_until_the_first_fpdu() {
    let mut pair = Pair::detached(config(), Link::Whole, 1);
    post_receives(&mut pair);
    // Before there is a connection, right after accept, and later: one queue, one order.
    pair.b.post(inline(1, SendOp::Send, &[1]));
    pair.attach(agreed(), LARGEST);
    pair.b.post(inline(2, SendOp::Send, &[2]));
    pair.run();
    assert!(!pair.b.stream.gate_is_open());
    assert!(
        pair.b.record.is_empty(),
        "an FPDU before the initiator's first"
    );
    assert_eq!(pair.b.stream.outstanding(), 2);
    assert!(!pair.b.stream.wants_transmit());
    pair.b.post(inline(3, SendOp::Send, &[3]));

    pair.a.post(inline(1, SendOp::Send, &[100]));
    pair.run();
    assert!(pair.b.stream.gate_is_open());
    pair.b.post(inline(4, SendOp::Send, &[4]));
    pair.run();
    assert_eq!(messages(&pair.a), [1, 2, 3, 4]);
    let ok = WcStatus::Success;
    assert_eq!(statuses(&pair.b.sent), [(1, ok), (2, ok), (3, ok), (4, ok)]);
    assert_eq!(pair.b.times_established(), 1);
    assert_eq!(pair.a.times_established(), 1);
    pair.assert_open();
}

#[test]
fn half_an_fpdu_opens_nothing() {
    let mut end = victim(agreed());
    end.post(inline(1, SendOp::Send, &[1]));
    let frame = send(true, 1, 0, b"abcdefgh");
    let (start, rest) = frame.split_at(frame.len() - 1);
    end.feed(at(0), start);
    assert!(!end.stream.gate_is_open());
    end.feed(at(0), rest);
    assert!(end.stream.gate_is_open());
}

#[test]
fn an_fpdu_with_a_wrong_crc_opens_nothing() {
    let mut end = victim(Negotiated {
        crc: true,
        ..peer_to_peer(RtrKind::Write)
    });
    end.post(inline(1, SendOp::Send, &[1]));
    let mut frame = write(true, 0, 0, b"");
    frame[5] ^= 1;
    end.feed(at(0), &frame);
    assert_eq!(end.times_established(), 0);
    assert_eq!(statuses(&end.sent), [(1, WcStatus::WrFlushErr)]);
}

#[test]
fn a_silent_peer_without_peer_to_peer_mode_gets_a_grace() {
    let mut pair = Pair::new(agreed(), LARGEST, Link::Whole, 1);
    post_receives(&mut pair);
    pair.b.post(inline(1, SendOp::Send, &[1]));
    pair.run();
    assert_eq!(pair.b.times_established(), 1, "established at once");
    assert_eq!(pair.b.stream.deadline(), Some(at(0) + GRACE));
    pair.b.stream.on_timeout(at(19));
    pair.run();
    assert!(pair.b.record.is_empty(), "too early");
    pair.pass_deadline();
    assert_eq!(pair.b.stream.deadline(), None);
    assert_eq!(messages(&pair.a), [1]);
    pair.assert_open();
}

#[test]
fn the_first_fpdu_ends_the_grace() {
    let mut pair = Pair::new(agreed(), LARGEST, Link::Whole, 1);
    post_receives(&mut pair);
    pair.a.post(inline(1, SendOp::Send, &[1]));
    pair.run();
    assert_eq!(pair.b.stream.deadline(), None);
    assert!(pair.b.stream.gate_is_open());
}

#[test]
fn every_kind_of_rtr_frame() {
    for kind in KINDS {
        for link in [Link::Whole, Link::Octets] {
            let mut pair = Pair::detached(config(), link, 3);
            post_receives(&mut pair);
            pair.b.post(inline(1, SendOp::Send, &[7]));
            pair.a.post(inline(1, SendOp::Send, &[8]));
            pair.attach(peer_to_peer(kind), LARGEST);
            assert_eq!(pair.b.times_established(), 0);
            assert_eq!(pair.a.times_established(), 0, "the RTR comes first");
            pair.run();
            let first = &segments(&pair.a.record)[0];
            let expected = match kind {
                RtrKind::Send => (Opcode::SEND, 0),
                RtrKind::Write => (Opcode::WRITE, 0),
                RtrKind::Read => (Opcode::READ_REQUEST, 28),
            };
            let control = first.0.control();
            assert_eq!((control.opcode(), first.1.len()), expected);
            assert!(control.is_last());
            for end in [&pair.a, &pair.b] {
                assert_eq!(end.times_established(), 1);
                assert_eq!(end.log[0], "established", "before every completion");
                assert_eq!(statuses(&end.sent), [(1, WcStatus::Success)]);
            }
            // The application sees nothing of it: the first receive has the first message.
            assert_eq!(messages(&pair.a), [7]);
            assert_eq!(messages(&pair.b), [8]);
            assert_eq!(pair.a.received[0].wr_id, 0);
            assert_eq!(pair.b.received[0].wr_id, 0);
            pair.assert_open();
        }
    }
}

#[test]
fn the_rtr_frames_are_those_that_linux_takes() {
    let first_frame = |kind| {
        let mut pair = Pair::new(peer_to_peer(kind), LARGEST, Link::Whole, 0);
        pair.run();
        pair.a.record[..pair.a.frames[0]].to_vec()
    };
    let write = first_frame(RtrKind::Write);
    assert_eq!(write[..16], *b"\x00\x0e\xc1\x40\0\0\0\x01\0\0\0\0\0\0\0\0");
    let read = first_frame(RtrKind::Read);
    assert_eq!(
        read[..20],
        *b"\x00\x2e\x41\x41\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\0"
    );
    assert_eq!(read[32..36], [0; 4], "reads nothing");
    let send = first_frame(RtrKind::Send);
    assert_eq!(
        send[..20],
        *b"\x00\x12\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0"
    );
}

#[test]
fn a_read_as_rtr_takes_a_place_among_the_reads() {
    let negotiated = Negotiated {
        ord: 1,
        ..peer_to_peer(RtrKind::Read)
    };
    let mut pair = Pair::new(negotiated, LARGEST, Link::Whole, 0);
    for end in [&mut pair.a, &mut pair.b] {
        end.memory
            .add(1, 0, VecMemory::all_access(), &pattern(3, 64));
        end.memory.add(2, 0, VecMemory::all_access(), &[0; 64]);
    }
    let op = SendOp::Read {
        remote_addr: 0,
        rkey: rkey(1),
    };
    pair.a.post(wr(1, op, sge(2, 0, 64)));
    pair.a.flush();
    assert_eq!(
        pair.a.frames.len(),
        1,
        "the read waits for the answer to the RTR"
    );
    pair.run();
    let requests = segments(&pair.a.record);
    assert_eq!(requests.len(), 2);
    let softverbs_wire::ddp::DdpHeader::Untagged(second) = requests[1].0 else {
        panic!()
    };
    assert_eq!(second.msn.get(), 2);
    let answers = segments(&pair.b.record);
    assert!(answers[0].1.is_empty() && answers[0].0.control().is_last());
    assert_eq!(statuses(&pair.a.sent), [(1, WcStatus::Success)]);
    assert_eq!(pair.a.memory.octets(2), pattern(3, 64));
    pair.assert_open();
}

#[test]
fn only_the_first_fpdu_can_be_the_rtr() {
    // The peer sends data first: tolerated, and its empty Send later is a message.
    let mut end = victim(peer_to_peer(RtrKind::Send));
    end.feed(at(0), &send(true, 1, 0, b"data"));
    assert_eq!(end.times_established(), 1);
    end.feed(at(0), &send(true, 2, 0, b""));
    assert_eq!(
        statuses(&end.received),
        [(0, WcStatus::Success), (1, WcStatus::Success)]
    );
    assert_eq!(end.log[0], "established");
    // A second empty Send after the RTR is one too.
    let mut end = victim(peer_to_peer(RtrKind::Send));
    end.feed(at(0), &send(true, 1, 0, b""));
    assert!(end.received.is_empty());
    end.feed(at(0), &send(true, 2, 0, b""));
    assert_eq!(statuses(&end.received), [(0, WcStatus::Success)]);
    assert_eq!(end.times_established(), 1);
}

#[test]
fn an_empty_send_is_no_rtr_unless_that_was_agreed() {
    for negotiated in [
        agreed(),
        peer_to_peer(RtrKind::Write),
        peer_to_peer(RtrKind::Read),
    ] {
        let mut end = victim(negotiated);
        end.feed(at(0), &send(true, 1, 0, b""));
        assert_eq!(statuses(&end.received), [(0, WcStatus::Success)]);
        assert_eq!(end.times_established(), 1);
    }
}

#[test]
fn an_empty_send_of_the_responder_is_a_message() {
    let mut end = End::new(config());
    end.memory.post_receive(3, []);
    end.stream
        .attach(at(0), Role::Initiator, peer_to_peer(RtrKind::Send), LARGEST);
    end.flush();
    end.feed(at(0), &send(true, 1, 0, b""));
    assert_eq!(statuses(&end.received), [(3, WcStatus::Success)]);
}

#[test]
fn rtr_frames_of_others_name_arbitrary_buffers() {
    let mut end = victim(peer_to_peer(RtrKind::Read));
    end.feed(at(0), &read_request(1, 0xdead_beef, u64::MAX, 0));
    assert_eq!(end.times_established(), 1);
    end.flush();
    let answer = &segments(&end.record)[0];
    assert_eq!(answer.0.control().opcode(), Opcode::READ_RESPONSE);
    assert!(answer.0.control().is_last() && answer.1.is_empty());
    let mut end = victim(peer_to_peer(RtrKind::Write));
    end.feed(at(0), &write(true, 0, u64::MAX, b""));
    assert_eq!(end.times_established(), 1);
    assert_eq!(end.closed_for(), "open");
}

#[test]
fn without_the_rtr_the_connection_fails_in_bounded_time() {
    let mut end = victim(peer_to_peer(RtrKind::Write));
    end.post(inline(1, SendOp::Send, &[1]));
    let deadline = at(0) + RTR_TIMEOUT;
    assert_eq!(end.stream.deadline(), Some(deadline));
    end.stream.on_timeout(at(4999));
    end.drain();
    assert_eq!(end.closed_for(), "open");
    assert!(!end.stream.gate_is_open(), "no grace in peer-to-peer mode");
    end.stream.on_timeout(deadline);
    end.drain();
    assert_eq!(end.closed_for(), "Some(NoRtr)");
    assert_eq!(end.times_established(), 0);
    assert_eq!(statuses(&end.sent), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(end.stream.deadline(), None);
    end.flush();
    assert!(end.record.is_empty());
}

#[test]
fn a_broken_first_fpdu_establishes_nothing() {
    let mut end = victim(peer_to_peer(RtrKind::Write));
    end.feed(at(0), &send(true, 7, 0, b""));
    assert_eq!(end.times_established(), 0);
    assert!(end.is_closed());
}

#[test]
fn the_passive_side_may_send_in_answer_to_the_rtr_only() {
    // Both sides post at once, over real start-up frames, and the reply carries FPDUs of a fast
    // peer right behind it.
    let wishes = Wishes {
        crc: true,
        markers: false,
        ird: 4,
        ord: 4,
        peer_to_peer: false,
        rfc7306: true,
        revision: 2,
        timeout: Duration::from_secs(10),
        mutations: Mutations::NONE,
    };
    let mut initiator = Initiator::new(at(0), wishes.clone(), b"");
    let mut responder = Responder::new(at(0), Duration::from_secs(5));
    let request = initiator.transmit().unwrap();
    assert!(matches!(
        responder.on_bytes(at(0), &request),
        ResponderOutcome::Request { .. }
    ));
    let (reply, passive) = responder.accept(&wishes, b"").unwrap();

    let mut pair = Pair::detached(config(), Link::Whole, 0);
    post_receives(&mut pair);
    pair.b.post(inline(1, SendOp::Send, &[42]));
    let impatient = Role::Responder {
        grace: Duration::ZERO,
        rtr_timeout: RTR_TIMEOUT,
    };
    pair.b.stream.attach(at(0), impatient, passive, LARGEST);
    pair.b.stream.on_timeout(at(0));
    pair.b.flush();
    assert!(!pair.b.record.is_empty(), "it did not wait");

    let octets = [&reply[..], &pair.b.record].concat();
    let InitiatorOutcome::Established {
        negotiated,
        consumed,
        ..
    } = initiator.on_bytes(at(1), &octets)
    else {
        panic!();
    };
    pair.a
        .stream
        .attach(at(1), Role::Initiator, negotiated, LARGEST);
    pair.a.feed(at(1), &octets[consumed..]);
    assert_eq!(pair.a.log, ["established", "recv 0 Success"]);
    assert_eq!(messages(&pair.a), [42]);
}

/// The same FPDU on a connection without CRC.
fn without_crc(mut fpdu: Vec<u8>) -> Vec<u8> {
    let end = fpdu.len();
    fpdu[end - 4..].fill(0);
    fpdu
}

/// Linux' siw overlooks an FPDU that comes right behind its MPA reply, until another one comes.
#[test]
fn an_initiator_that_hears_nothing_reminds_its_peer() {
    let reminder = without_crc(write(true, 1, 0, &[]));
    for kind in KINDS {
        let mut pair = Pair::detached(config(), Link::Whole, 1);
        post_receives(&mut pair);
        pair.a
            .stream
            .attach(at(0), Role::Initiator, peer_to_peer(kind), LARGEST);
        pair.a.post(inline(1, SendOp::Send, &[7]));
        pair.a.transmit(at(0), 1 << 20, 64);
        let first = core::mem::take(&mut pair.a.record);
        let mut reminded = Vec::new();
        while let Some(deadline) = pair.a.stream.deadline() {
            pair.a.stream.on_timeout(deadline);
            pair.a.transmit(deadline, 1 << 20, 64);
            assert_eq!(core::mem::take(&mut pair.a.record), reminder);
            reminded.push(deadline);
        }
        assert_eq!(reminded, [at(10), at(50), at(210), at(850)], "{kind:?}");
        // The peer takes all of it for one message, and its answer ends the reminding.
        let role = Role::Responder {
            grace: GRACE,
            rtr_timeout: RTR_TIMEOUT,
        };
        pair.b
            .stream
            .attach(at(0), role, peer_to_peer(kind), LARGEST);
        pair.b.feed(at(900), &first);
        for _ in reminded {
            pair.b.feed(at(900), &reminder);
        }
        pair.b.drain();
        assert_eq!(messages(&pair.b), [7]);
        assert!(!pair.b.is_closed());
    }
}

#[test]
fn nobody_is_reminded_once_heard_or_in_the_middle_of_a_message() {
    let mut pair = Pair::detached(config(), Link::Whole, 1);
    post_receives(&mut pair);
    pair.a
        .stream
        .attach(at(0), Role::Initiator, agreed(), LARGEST);
    assert_eq!(pair.a.stream.deadline(), None, "nothing was sent");
    pair.a
        .memory
        .add(5, 0, VecMemory::all_access(), &[1; 200_000]);
    let to = SendOp::Write {
        remote_addr: 0,
        rkey: rkey(9),
    };
    pair.a.post(wr(1, to, sge(5, 0, 200_000)));
    pair.a.transmit(at(0), 1, 64);
    pair.a.stream.on_timeout(at(10));
    pair.a.record.clear();
    pair.a.transmit(at(10), 1 << 20, 64);
    let reminder = without_crc(write(true, 1, 0, &[]));
    assert!(pair.a.record.ends_with(&reminder), "behind the message");
    assert!(pair.a.record.len() > 130_000);
    pair.a.feed(at(11), &without_crc(send(true, 1, 0, &[1])));
    assert_eq!(pair.a.stream.deadline(), None);
}
