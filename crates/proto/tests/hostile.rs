//! Everything a peer can do wrong, and what it is told.

mod common;
mod hostile_cases;

use common::raw::*;
use common::*;
use hostile_cases::{Case, Headers, cases};
use softverbs_proto::fault::{Fault, PeerViolation};
use softverbs_proto::iwarp::negotiate::Negotiated;
use softverbs_proto::iwarp::stream::{CloseCause, StreamEvent};
use softverbs_proto::wr::{SendOp, WcStatus};
use softverbs_wire::num::Stag;
use softverbs_wire::rdmap::Opcode;
use softverbs_wire::terminate::TerminateTriple;

fn check(case: &Case, negotiated: Negotiated, chunk: usize) {
    let name = case.name;
    let mut end = victim(negotiated.clone());
    let (bad, good) = case.frames.split_last().unwrap();
    for frame in good {
        end.feed(at(0), frame);
        assert!(!end.is_closed(), "{name}: closed by a good frame");
    }
    let before = end.memory.clone();
    let received = end.received.len();
    for octets in bad.chunks(chunk) {
        end.feed(at(0), octets);
    }
    assert!(end.is_closed(), "{name} ({chunk}): accepted");
    for key in [1, 2, 3, 4, 8, 9] {
        assert_eq!(
            end.memory.octets(key),
            before.octets(key),
            "{name}: touched region {key}"
        );
    }
    assert!(
        end.received[received..]
            .iter()
            .all(|completion| completion.status != WcStatus::Success),
        "{name}: a receive completed"
    );
    let cause = end.closed_for();
    let terminate = end
        .terminate()
        .unwrap_or_else(|| panic!("{name}: no Terminate, {cause}"));
    let TerminateTriple { layer, etype, code } = terminate.code.to_triple();
    assert_eq!(
        (layer, etype, code),
        case.triple,
        "{name} ({chunk}): {cause}"
    );
    let headers = match (terminate.ddp_header(), terminate.read_request()) {
        (None, None) => Headers::None,
        (Some(_), None) => Headers::Ddp,
        (Some(_), Some(_)) => Headers::DdpAndRdmap,
        (None, Some(_)) => panic!("{name}: R without D"),
    };
    assert_eq!(headers, case.headers, "{name} ({chunk})");
    assert_eq!(
        terminate.segment_len().is_some(),
        headers != Headers::None,
        "{name}: M"
    );
    if let Some(header) = terminate.ddp_header() {
        let length = u16::from_be_bytes([bad[0], bad[1]]);
        assert_eq!(terminate.segment_len(), Some(length), "{name}");
        let mut octets = [0; 18];
        header.emit(&mut softverbs_wire::Writer::new(&mut octets));
        let len = header.header_len();
        assert_eq!(
            octets[..len],
            bad[2..2 + len],
            "{name}: not the header of the frame"
        );
    }
    // Nothing more is accepted, and nothing more is said.
    let said = end.record.len();
    end.feed(at(0), &send(true, 1, 0, b"abcd"));
    end.flush();
    assert_eq!(end.record.len(), said, "{name}: spoke after its Terminate");
    end.stream
        .post_send(inline(5, SendOp::Send, b"late"))
        .unwrap();
    end.drain();
    assert_eq!(statuses(&end.sent), [(5, WcStatus::WrFlushErr)], "{name}");
}

#[test]
fn every_violation_gets_its_code() {
    for case in cases() {
        for crc in [false, true] {
            for chunk in [1 << 20, 1, 3, 20, 22] {
                check(&case, Negotiated { crc, ..agreed() }, chunk);
            }
        }
    }
}

#[test]
fn a_wrong_crc_is_reported_whatever_else_is_wrong() {
    for case in cases() {
        // A length below the control word leaves no frame to check.
        let (bad, good) = case.frames.split_last().unwrap();
        if bad.len() <= 8 {
            continue;
        }
        for chunk in [1 << 20, 1, 7] {
            let mut end = victim(Negotiated {
                crc: true,
                ..agreed()
            });
            for frame in good {
                end.feed(at(0), frame);
            }
            let mut bad = bad.clone();
            *bad.last_mut().unwrap() ^= 1;
            for octets in bad.chunks(chunk) {
                end.feed(at(0), octets);
            }
            let terminate = end.terminate().unwrap();
            let TerminateTriple { layer, etype, code } = terminate.code.to_triple();
            assert_eq!((layer, etype, code), (2, 0, 2), "{} ({chunk})", case.name);
            assert_eq!(terminate.ddp_header(), None);
        }
    }
}

#[test]
fn a_wrong_crc_delivers_nothing() {
    for chunk in [1 << 20, 1, 5] {
        for frame in [
            send(true, 1, 0, b"abcdef"),
            write(true, 1, 0x1000, b"abcdef"),
        ] {
            for at_octet in 0..frame.len() {
                let mut end = victim(Negotiated {
                    crc: true,
                    ..agreed()
                });
                let mut frame = frame.clone();
                frame[at_octet] ^= 0x10;
                // A length that became longer waits for more.
                frame.resize(1 << 16, 0);
                for octets in frame.chunks(chunk) {
                    end.feed(at(0), octets);
                }
                assert!(end.is_closed(), "octet {at_octet}");
                assert!(
                    end.received
                        .iter()
                        .all(|c| c.status == WcStatus::WrFlushErr)
                );
                assert_eq!(end.times_established(), 1);
            }
        }
    }
}

#[test]
fn without_crc_the_field_is_not_looked_at() {
    let mut end = victim(agreed());
    let mut frame = send(true, 1, 0, b"abcde");
    let len = frame.len();
    frame[len - 4..].copy_from_slice(&[9, 9, 9, 9]);
    frame[len - 5] = 7; // PAD
    end.feed(at(0), &frame);
    assert_eq!(statuses(&end.received), [(0, WcStatus::Success)]);
}

#[test]
fn rfc7306_has_to_be_negotiated() {
    let plain = Negotiated {
        rfc7306: false,
        ..agreed()
    };
    for frame in [
        untagged(header(Opcode::IMMEDIATE, true, 1, 0), &[0; 8]),
        untagged(header(Opcode::IMMEDIATE_SE, true, 1, 0), &[0; 8]),
        fetch_add(1, 1, 0x1000, 1),
        atomic_response(1, 1, 1),
    ] {
        let mut end = victim(plain.clone());
        end.feed(at(0), &frame);
        let triple = end.terminate().unwrap().code.to_triple();
        assert_eq!((triple.layer, triple.etype, triple.code), (0, 2, 6));
    }
}

#[test]
fn a_peer_without_ird_may_not_read() {
    let mut end = victim(Negotiated { ird: 0, ..agreed() });
    end.feed(at(0), &read_request(1, 1, 0x1000, 4));
    let triple = end.terminate().unwrap().code.to_triple();
    assert_eq!((triple.layer, triple.etype, triple.code), (0, 2, 7));
}

#[test]
fn reserved_bits_and_the_unused_stag_are_ignored() {
    let mut end = victim(agreed());
    let mut header = header(Opcode::SEND, true, 1, 0);
    header.invalidate_stag = Stag::new(1);
    end.feed(
        at(0),
        &with_control(&untagged(header, b"abcd"), |word| word | 0x3c30),
    );
    assert_eq!(statuses(&end.received), [(0, WcStatus::Success)]);
    assert_eq!(end.received[0].invalidated, None);
    assert!(end.memory.region(1).valid);
}

#[test]
fn too_long_a_message_is_reported_to_the_receiver_too() {
    let mut end = victim(agreed());
    end.feed(at(0), &send(true, 1, 0, &[1; 65]));
    assert_eq!(statuses(&end.received), [(0, WcStatus::LocLenErr)]);
    assert_eq!(end.memory.octets(9), [0; 256], "not one octet was placed");
}

#[test]
fn a_failed_invalidation_is_reported_to_the_receiver_too() {
    let mut end = victim(agreed());
    let mut header = header(Opcode::SEND_INVALIDATE, true, 1, 0);
    header.invalidate_stag = Stag::new(3);
    end.feed(at(0), &untagged(header, b""));
    assert_eq!(statuses(&end.received), [(0, WcStatus::RemInvReqErr)]);
    assert!(end.memory.region(3).valid);
}

#[test]
fn a_receive_into_forbidden_memory_fails_locally() {
    let mut end = victim(agreed());
    end.memory.receives.clear();
    end.memory
        .post_receive(7, [sge(9, 0x9000, 4), sge(2, 0x2000, 4)]);
    end.feed(at(0), &send(true, 1, 0, b"abcdefgh"));
    assert_eq!(statuses(&end.received), [(7, WcStatus::LocProtErr)]);
    assert_eq!(end.memory.octets(9), [0; 256]);
    assert!(matches!(
        end.events.last(),
        Some(StreamEvent::Closed {
            cause: Some(CloseCause::Fault(Fault::Local(_)))
        })
    ));
    let triple = end.terminate().unwrap().code.to_triple();
    assert_eq!((triple.layer, triple.etype, triple.code), (0, 0, 0));
}

#[test]
fn the_cause_names_the_violation() {
    let mut end = victim(agreed());
    end.feed(at(0), &send(true, 2, 0, b""));
    assert!(matches!(
        end.events.last(),
        Some(StreamEvent::Closed {
            cause: Some(CloseCause::Fault(Fault::Peer(
                PeerViolation::MessageSequence
            )))
        })
    ));
}

#[test]
fn a_source_that_goes_while_it_is_read_is_reported() {
    for (crc, size) in [(false, 4), (true, 4), (false, 4000), (true, 4000)] {
        let mut end = victim(Negotiated { crc, ..agreed() });
        end.memory
            .add(5, 0, VecMemory::all_access(), &pattern(5, 4000));
        end.feed(at(0), &read_request(1, 1, 0x1000, 4));
        end.feed(at(0), &read_request(2, 5, 0, size));
        end.memory.region_mut(5).valid = false;
        let terminate = end.terminate().unwrap();
        let triple = terminate.code.to_triple();
        assert_eq!((triple.layer, triple.etype, triple.code), (0, 1, 0));
        assert_eq!(terminate.read_request().unwrap().source_stag, Stag::new(5));
        assert_eq!(terminate.segment_len(), Some(46));
        assert_eq!(
            segments(&end.record).len(),
            2,
            "the first read was answered"
        );
    }
}

#[test]
fn rights_that_are_taken_away_before_the_answer_count() {
    use softverbs_proto::memory::Access;
    let frames = [
        read_request(1, 1, 0x1000, 4),
        read_request(1, 1, 0x1000, 4000),
        fetch_add(1, 1, 0x1000, 1),
    ];
    for frame in frames {
        let mut end = victim(agreed());
        end.feed(at(0), &frame);
        end.memory.region_mut(1).access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let triple = end.terminate().unwrap().code.to_triple();
        assert_eq!((triple.layer, triple.etype, triple.code), (0, 1, 2));
        assert_eq!(end.memory.octets(1), pattern(1, 4096));
    }
}

#[test]
fn wrong_markers_are_noticed() {
    let mut end = victim(Negotiated {
        markers_in: true,
        ..agreed()
    });
    // An FPDU without the marker that has to be in front of it.
    end.feed(at(0), &send(true, 1, 0, b"abcd"));
    let triple = end.terminate().unwrap().code.to_triple();
    assert_eq!((triple.layer, triple.etype, triple.code), (2, 0, 3));
    assert_eq!(end.received, []);
}
