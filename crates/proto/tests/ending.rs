//! How streams end: each request completes exactly once, and one `Closed` tells why.

mod common;

use common::raw::{header, read_request, segments, terminate, untagged, victim};
use common::requests::*;
use common::*;
use softverbs_proto::iwarp::negotiate::{Negotiated, RtrKind};
use softverbs_proto::iwarp::stream::{CloseCause, DRAIN_TIMEOUT, Role};
use softverbs_proto::transmit::TxBatch;
use softverbs_proto::wr::{SendOp, WcOpcode, WcStatus};
use softverbs_wire::ddp::{DdpHeader, TaggedHeader};
use softverbs_wire::num::{Stag, TaggedOffset};
use softverbs_wire::rdmap::{Opcode, ReadRequest};
use softverbs_wire::terminate::{Terminate, TerminateCode, TerminateTriple};

const FLUSH: WcStatus = WcStatus::WrFlushErr;

#[test]
fn disconnect_finishes_the_message_in_the_middle() {
    let mut pair = loaded(agreed());
    pair.a.post(read(1, 100));
    pair.a.post(write(2, 200_000));
    pair.a.post(write(3, 8));
    pair.a.post(send(4));
    // The read and one FPDU of the first write leave.
    pair.a.transmit(at(0), 100, 1024);
    assert_eq!(pair.a.frames.len(), 2);
    pair.a.stream.disconnect(at(0));
    pair.a.drain();
    assert_eq!(
        statuses(&pair.a.sent),
        [(1, FLUSH)],
        "its answer is not waited for"
    );
    assert_eq!(pair.a.closed_for(), "open");
    pair.a.post(send(5));
    pair.a.flush();
    assert_eq!(
        statuses(&pair.a.sent),
        [(1, FLUSH), (2, OK), (3, FLUSH), (4, FLUSH), (5, FLUSH)]
    );
    assert_eq!(pair.a.closed_for(), "None");
    assert!(
        segments(&pair.a.record)
            .iter()
            .all(|segment| terminate(segment).is_none())
    );
    pair.run();
    assert_eq!(pair.b.memory.octets(2)[..200_000], pattern(1, 200_000));
    assert_eq!(pair.b.received, []);
}

#[test]
fn closed_waits_for_tcp_to_take_the_last_octet() {
    let mut pair = loaded(agreed());
    pair.a.post(send(1));
    let mut batch = TxBatch::new();
    pair.a
        .stream
        .poll_transmit(at(0), &mut pair.a.memory, &mut batch, 1 << 20, 1024);
    pair.a.stream.disconnect(at(0));
    pair.a.stream.on_transmitted(batch.len() - 1);
    pair.a.drain();
    assert!(!pair.a.is_closed());
    assert_eq!(pair.a.sent, []);
    pair.a.stream.on_transmitted(1);
    pair.a.drain();
    assert_eq!(pair.a.log, ["established", "closed None", "send 1 Success"]);
}

#[test]
fn disconnect_with_nothing_to_do_closes_at_once() {
    for attach in [false, true] {
        let mut end = End::new(config());
        if attach {
            end.stream.attach(at(0), Role::Initiator, agreed(), LARGEST);
        }
        end.stream.disconnect(at(0));
        end.stream.disconnect(at(1));
        end.drain();
        assert_eq!(end.closed_for(), "None");
        assert_eq!(end.stream.deadline(), None);
        // Too late for a connection.
        end.stream.attach(at(2), Role::Initiator, agreed(), LARGEST);
        end.drain();
        assert_eq!(end.times_established(), usize::from(attach));
        end.post(send(1));
        end.drain();
        assert_eq!(statuses(&end.sent), [(1, FLUSH)]);
    }
}

#[test]
fn disconnect_with_a_closed_gate_flushes() {
    let mut end = victim(agreed());
    end.post(send(1));
    end.stream.disconnect(at(0));
    end.drain();
    end.flush();
    assert!(end.record.is_empty());
    assert_eq!(end.log, ["established", "closed None", "send 1 WrFlushErr"]);
}

#[test]
fn disconnect_finishes_the_response_in_the_middle_and_no_other() {
    let mut end = victim(agreed());
    end.memory
        .add(5, 0, VecMemory::all_access(), &pattern(5, 200_000));
    end.feed(at(0), &read_request(1, 5, 0, 200_000));
    end.feed(at(0), &read_request(2, 5, 0, 8));
    end.transmit(at(0), 1, 1024);
    end.stream.disconnect(at(0));
    end.drain();
    assert!(!end.is_closed());
    end.flush();
    let total: usize = segments(&end.record)
        .iter()
        .map(|(_, payload)| payload.len())
        .sum();
    assert_eq!(total, 200_000);
    assert_eq!(end.closed_for(), "None");
}

#[test]
fn an_rtr_goes_out_even_if_the_application_leaves_at_once() {
    let mut pair = Pair::new(peer_to_peer(RtrKind::Write), LARGEST, Link::Whole, 0);
    pair.a.stream.disconnect(at(0));
    pair.a.drain();
    assert_eq!(pair.a.closed_for(), "open");
    pair.run();
    assert_eq!(pair.a.log, ["established", "closed None"]);
    pair.b.eof(false);
    assert_eq!(pair.b.log, ["established", "closed None"]);
}

#[test]
fn after_disconnect_the_peer_is_not_heard() {
    let mut end = victim(agreed());
    end.feed(at(0), &raw::send(false, 1, 0, b"abcd"));
    end.post(inline(1, SendOp::Send, &[0; 100]));
    let mut batch = TxBatch::new();
    end.stream
        .poll_transmit(at(0), &mut end.memory, &mut batch, 1 << 20, 1024);
    // Payload is about to be placed directly.
    end.feed(at(0), &raw::send(true, 1, 4, &[7; 40])[..22]);
    assert!(end.stream.direct().is_some());
    end.stream.disconnect(at(0));
    assert!(end.stream.direct().is_none());
    end.drain();
    assert!(!end.is_closed(), "TCP has not taken the message");
    assert_eq!(
        statuses(&end.received),
        [(0, FLUSH)],
        "the message in the middle"
    );
    let before = end.memory.clone();
    end.feed(at(0), &raw::send(true, 1, 4, b"efgh"));
    end.feed(at(0), &raw::write(true, 1, 0x1000, b"efgh"));
    assert_eq!(end.memory.octets(1), before.octets(1));
    assert_eq!(end.received.len(), 1);
    assert!(end.stream.direct().is_none());
}

#[test]
fn a_drain_that_makes_no_progress_is_given_up() {
    let mut pair = loaded(agreed());
    pair.a.post(send(1));
    let mut batch = TxBatch::new();
    pair.a
        .stream
        .poll_transmit(at(0), &mut pair.a.memory, &mut batch, 1 << 20, 1024);
    pair.a.stream.disconnect(at(0));
    let first = at(0) + DRAIN_TIMEOUT;
    assert_eq!(pair.a.stream.deadline(), Some(first));
    pair.a.stream.on_transmitted(1);
    pair.a.stream.on_timeout(first);
    pair.a.drain();
    assert!(!pair.a.is_closed(), "it moves");
    let second = first + DRAIN_TIMEOUT;
    assert_eq!(pair.a.stream.deadline(), Some(second));
    pair.a.stream.on_timeout(second);
    pair.a.drain();
    assert_eq!(pair.a.closed_for(), "Some(Lost)");
    assert_eq!(statuses(&pair.a.sent), [(1, FLUSH)]);
}

#[test]
fn progress_before_the_end_does_not_count_for_the_drain() {
    let mut pair = loaded(agreed());
    pair.a.post(send(1));
    let mut batch = TxBatch::new();
    pair.a
        .stream
        .poll_transmit(at(0), &mut pair.a.memory, &mut batch, 1 << 20, 1024);
    pair.a.stream.on_transmitted(1);
    pair.a.stream.disconnect(at(0));
    pair.a.stream.on_timeout(at(0) + DRAIN_TIMEOUT);
    pair.a.drain();
    assert_eq!(pair.a.closed_for(), "Some(Lost)");
}

#[test]
fn abort_flushes_everything_in_order() {
    let mut pair = loaded(agreed());
    pair.a.post(unsignaled(read(1, 8)));
    pair.a.post(unsignaled(write(2, 200_000)));
    pair.a.post(unsignaled(send(3)));
    pair.a.transmit(at(0), 1, 1024);
    pair.a.transmit(at(0), 1, 1024);
    pair.a.stream.abort(CloseCause::Local);
    pair.a.drain();
    assert_eq!(statuses(&pair.a.sent), [(1, FLUSH), (2, FLUSH), (3, FLUSH)]);
    assert_eq!(pair.a.closed_for(), "Some(Local)");
    assert!(!pair.a.stream.wants_transmit());
    // Whatever still happens changes nothing.
    pair.a.stream.on_transmitted(1 << 20);
    pair.a.eof(true);
    pair.a.stream.disconnect(at(0));
    pair.a.stream.on_timeout(at(1 << 30));
    pair.a.stream.abort(CloseCause::Lost);
    pair.a.drain();
    assert_eq!(pair.a.sent.len(), 3);
    assert_eq!(pair.a.events.len(), 2);
    assert_eq!(pair.a.stream.outstanding(), 0);
}

#[test]
fn abort_of_a_queue_pair_without_a_connection() {
    let mut end = End::new(config());
    end.post(send(1));
    end.post(send(2));
    end.stream.abort(CloseCause::Local);
    end.drain();
    assert_eq!(
        end.log,
        [
            "closed Some(Local)",
            "send 1 WrFlushErr",
            "send 2 WrFlushErr"
        ]
    );
    end.post(send(3));
    end.drain();
    assert_eq!(statuses(&end.sent), [(1, FLUSH), (2, FLUSH), (3, FLUSH)]);
}

#[test]
fn the_end_of_the_peer_between_messages_is_orderly() {
    let mut pair = loaded(agreed());
    pair.a.post(send(1));
    pair.run();
    pair.b.eof(false);
    assert_eq!(pair.b.log, ["established", "recv 0 Success", "closed None"]);
    pair.a.eof(true);
    assert_eq!(pair.a.closed_for(), "Some(Lost)");
}

#[test]
fn the_end_of_the_peer_in_the_middle_is_a_loss() {
    let full = raw::send(true, 1, 0, b"abcdefgh");
    for cut in 1..full.len() {
        let mut end = victim(agreed());
        end.feed(at(0), &full[..cut]);
        end.eof(false);
        assert_eq!(end.closed_for(), "Some(Lost)", "{cut}");
        // The receive that the message took ends with it; others are their owner's.
        let expected: &[_] = if cut < 20 { &[] } else { &[(0, FLUSH)] };
        assert_eq!(statuses(&end.received), expected, "{cut}");
    }
    let mut end = victim(agreed());
    end.feed(at(0), &raw::write(false, 1, 0x1000, b"abcd"));
    end.eof(false);
    assert_eq!(
        end.closed_for(),
        "Some(Lost)",
        "an RDMA Write in the middle"
    );

    let mut pair = loaded(agreed());
    pair.a.post(read(1, 8));
    pair.a.flush();
    pair.a.eof(false);
    assert_eq!(
        pair.a.closed_for(),
        "Some(Lost)",
        "a read without its answer"
    );
    assert_eq!(statuses(&pair.a.sent), [(1, FLUSH)]);

    let mut end = victim(peer_to_peer(RtrKind::Write));
    end.eof(false);
    assert_eq!(end.closed_for(), "Some(Lost)", "before the RTR");
    assert_eq!(end.times_established(), 0);
}

#[test]
fn half_an_fpdu_with_markers_is_the_middle_too() {
    let markers = |markers_out, markers_in| Negotiated {
        markers_out,
        markers_in,
        ..agreed()
    };
    let mut pair = loaded(markers(true, false));
    pair.a.post(send(1));
    pair.a.flush();
    for cut in [0, 1, 4, 20, pair.a.record.len() - 1, pair.a.record.len()] {
        let mut end = victim(markers(false, true));
        end.feed(at(0), &pair.a.record[..cut]);
        end.eof(false);
        let whole = cut == 0 || cut == pair.a.record.len();
        assert_eq!(
            end.closed_for(),
            if whole { "None" } else { "Some(Lost)" },
            "{cut}"
        );
    }
}

#[test]
fn the_end_of_the_peer_before_its_answer_is_a_loss() {
    let mut end = victim(agreed());
    end.feed(at(0), &read_request(1, 1, 0x1000, 4));
    end.eof(false);
    assert_eq!(end.closed_for(), "Some(Lost)");
    assert!(!end.stream.wants_transmit());
}

#[test]
fn tcp_cannot_have_taken_more_than_there_was() {
    let mut pair = loaded(agreed());
    pair.a.stream.on_transmitted(1 << 20);
    pair.a.post(send(1));
    let mut batch = TxBatch::new();
    pair.a
        .stream
        .poll_transmit(at(0), &mut pair.a.memory, &mut batch, 1 << 20, 1024);
    pair.a.stream.on_transmitted(0);
    pair.a.drain();
    assert_eq!(pair.a.sent, []);
}

#[test]
fn a_reset_flushes_what_tcp_had_not_taken() {
    let mut pair = loaded(agreed());
    pair.a.post(send(1));
    pair.a.post(send(2));
    let mut batch = TxBatch::new();
    pair.a
        .stream
        .poll_transmit(at(0), &mut pair.a.memory, &mut batch, 1 << 20, 1024);
    pair.a.stream.on_transmitted(batch.frame_ends()[0]);
    pair.a.eof(true);
    assert_eq!(statuses(&pair.a.sent), [(1, OK), (2, FLUSH)]);
}

fn terminate_frame(message: &Terminate) -> Vec<u8> {
    let mut body = Vec::new();
    message.append_to(&mut body);
    untagged(header(Opcode::TERMINATE, true, 1, 0), &body)
}

/// An initiator with a read, a write and a Send of which TCP has not taken everything.
fn busy() -> End {
    let mut pair = loaded(agreed());
    pair.a.post(read(1, 8));
    pair.a.post(read(2, 8));
    pair.a.post(write(3, 8));
    pair.a.post(send(4));
    pair.a
        .post(with_flags(send(5), softverbs_proto::wr::SendFlags::FENCE));
    let mut batch = TxBatch::new();
    pair.a
        .stream
        .poll_transmit(at(0), &mut pair.a.memory, &mut batch, 1 << 20, 1024);
    assert_eq!(batch.frame_ends().len(), 4);
    pair.a
}

#[test]
fn a_terminate_of_the_peer_is_put_down_to_the_oldest_request_it_can_mean() {
    let write_header: DdpHeader =
        TaggedHeader::new(Opcode::WRITE, true, Stag::new(2), TaggedOffset::new(0)).into();
    let read_header: DdpHeader = header(Opcode::READ_REQUEST, true, 1, 0).into();
    let send_header: DdpHeader = header(Opcode::SEND, true, 1, 0).into();
    let request = ReadRequest {
        sink_stag: Stag::new(1),
        sink_to: TaggedOffset::new(0),
        size: 8,
        source_stag: Stag::new(1),
        source_to: TaggedOffset::new(0),
    };
    let bare = Terminate::new;
    use TerminateCode as Code;
    let cases = [
        (
            bare(Code::ProtectionBounds),
            Some((1, WcStatus::RemAccessErr)),
        ),
        (
            bare(Code::ProtectionAccess)
                .with_segment(46, read_header)
                .with_read_request(request),
            Some((1, WcStatus::RemAccessErr)),
        ),
        (
            bare(Code::ProtectionAccess).with_segment(22, write_header),
            Some((3, WcStatus::RemAccessErr)),
        ),
        (bare(Code::TaggedBounds), Some((3, WcStatus::RemAccessErr))),
        (
            bare(Code::UntaggedNoBuffer).with_segment(34, send_header),
            Some((4, WcStatus::RemOpErr)),
        ),
        (
            bare(Code::UntaggedTooLong),
            Some((4, WcStatus::RemInvReqErr)),
        ),
        (
            bare(Code::ProtectionCannotInvalidate),
            Some((4, WcStatus::RemInvReqErr)),
        ),
        (
            bare(Code::OperationCannotInvalidate),
            Some((4, WcStatus::RemInvReqErr)),
        ),
        (
            bare(Code::OperationCatastrophicStream).with_segment(46, read_header),
            Some((1, WcStatus::RemOpErr)),
        ),
        (bare(Code::OperationCatastrophicStream), None),
        (bare(Code::RdmapLocalCatastrophic), None),
        (bare(Code::MpaCrc), None),
        (bare(Code::Unknown(TerminateTriple::new(9, 9, 9))), None),
    ];
    for (message, blamed) in cases {
        let mut end = busy();
        end.feed(at(0), &terminate_frame(&message));
        let expected: Vec<_> = (1..=5)
            .map(|wr_id| match blamed {
                Some((id, status)) if id == wr_id => (wr_id, status),
                _ => (wr_id, FLUSH),
            })
            .collect();
        assert_eq!(statuses(&end.sent), expected, "{message}");
        let cause = format!("Some(PeerTerminated({:?}))", message.code);
        assert_eq!(end.closed_for(), cause);
        assert!(!end.stream.wants_transmit(), "a Terminate is not answered");
    }
}

#[test]
fn a_terminate_as_siw_lays_it_out() {
    // Layer 0, type 1, code 1, with M and D; siw swaps the nibbles and the flags.
    let mut body = vec![0x10, 0x01, 0x03, 0x00, 0x00, 0x2e];
    body.extend_from_slice(&header(Opcode::READ_REQUEST, true, 1, 0).to_bytes());
    let mut end = busy();
    end.feed(
        at(0),
        &untagged(header(Opcode::TERMINATE, true, 1, 0), &body),
    );
    assert_eq!(statuses(&end.sent)[0], (1, WcStatus::RemAccessErr));
    assert_eq!(end.closed_for(), "Some(PeerTerminated(ProtectionBounds))");
}

#[test]
fn a_terminate_that_is_wrong_itself_ends_the_stream_as_well() {
    let body = [0x01, 0x01, 0xe0, 0x00, 0x00, 0x2e, 0x41];
    for header in [
        header(Opcode::TERMINATE, true, 1, 0),
        header(Opcode::TERMINATE, true, 2, 0),
        header(Opcode::TERMINATE, true, 1, 4),
        raw::on_queue(header(Opcode::TERMINATE, true, 1, 0), 0),
    ] {
        let mut end = busy();
        end.feed(at(0), &untagged(header, &body));
        assert_eq!(end.closed_for(), "Some(PeerTerminated(ProtectionBounds))");
        assert!(end.sent.iter().all(|completion| completion.status == FLUSH));
        assert_eq!(end.sent.len(), 5);
        assert!(!end.stream.wants_transmit());
    }
}

#[test]
fn what_follows_a_terminate_is_not_looked_at() {
    let mut end = victim(agreed());
    let mut octets = terminate_frame(&Terminate::new(TerminateCode::MpaCrc));
    octets.extend_from_slice(&raw::send(true, 1, 0, b"abcd"));
    end.feed(at(0), &octets);
    assert_eq!(end.received, []);
    assert_eq!(end.closed_for(), "Some(PeerTerminated(MpaCrc))");
}

#[test]
fn a_terminate_goes_between_fpdus() {
    let mut pair = loaded(agreed());
    pair.a.post(write(1, 200_000));
    pair.a.transmit(at(0), 1, 1024);
    pair.a.feed(at(0), &raw::send(true, 7, 0, b""));
    pair.a.flush();
    let sent = segments(&pair.a.record);
    assert_eq!(sent.len(), 2, "the rest of the write is not sent");
    assert!(terminate(&sent[1]).is_some());
    assert_eq!(pair.a.sent[0].opcode, WcOpcode::RdmaWrite);
    assert_eq!(statuses(&pair.a.sent), [(1, FLUSH)]);
}

#[test]
fn completions_are_ready_when_closed_is_reported() {
    let mut pair = loaded(agreed());
    pair.a.post(send(1));
    pair.a.stream.on_eof(at(0), true);
    assert_eq!(pair.a.stream.outstanding(), 0);
    assert!(pair.a.stream.poll_event().is_some());
    assert!(pair.a.stream.poll_send_completion().is_some());
}
