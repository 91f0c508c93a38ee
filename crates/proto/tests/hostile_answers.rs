//! Answers to our own requests that do not match them.

mod common;

use common::raw::*;
use common::*;
use softverbs_proto::iwarp::negotiate::Negotiated;
use softverbs_proto::iwarp::stream::Role;
use softverbs_proto::wr::{SendOp, WcStatus};

/// An initiator with one read of 8 octets outstanding.
fn reader(length: usize) -> End {
    let mut end = victim_initiator(agreed());
    let op = SendOp::Read {
        remote_addr: 0x1000,
        rkey: rkey(1),
    };
    end.post(wr(1, op, sge(9, 0x9000, length)));
    end.flush();
    end
}

fn victim_initiator(negotiated: Negotiated) -> End {
    let mut end = End::new(config());
    end.memory
        .add(9, 0x9000, VecMemory::all_access(), &[0; 256]);
    end.stream
        .attach(at(0), Role::Initiator, negotiated, LARGEST);
    end.drain();
    end
}

#[test]
fn responses_have_to_match_the_request() {
    let stag = 1; // what the first read of a stream names
    let long = [7; 9];
    type Case = (&'static str, Vec<Vec<u8>>, (u8, u8, u8));
    let cases: [Case; 8] = [
        (
            "another STag",
            vec![read_response(true, 2, 0, b"01234567")],
            (1, 1, 0),
        ),
        (
            "another offset",
            vec![read_response(true, stag, 1, b"01234567")],
            (1, 1, 1),
        ),
        (
            "too long",
            vec![read_response(true, stag, 0, &long)],
            (1, 1, 1),
        ),
        (
            "goes on beyond",
            vec![
                read_response(false, stag, 0, b"01234567"),
                read_response(false, stag, 8, b"0"),
            ],
            (1, 1, 1),
        ),
        (
            "gap",
            vec![
                read_response(false, stag, 0, b"0123"),
                read_response(true, stag, 5, b"567"),
            ],
            (1, 1, 1),
        ),
        (
            "too short",
            vec![read_response(true, stag, 0, b"0123456")],
            (0, 2, 7),
        ),
        (
            "nothing",
            vec![read_response(true, stag, 0, b"")],
            (0, 2, 7),
        ),
        (
            "twice",
            vec![
                read_response(true, stag, 0, b"01234567"),
                read_response(true, stag, 0, b"01234567"),
            ],
            (0, 2, 6),
        ),
    ];
    for (name, frames, triple) in cases {
        for chunk in [1 << 20, 1] {
            let mut end = reader(8);
            let (bad, good) = frames.split_last().unwrap();
            for frame in good {
                end.feed(at(0), frame);
            }
            let before = end.memory.octets(9).to_vec();
            for octets in bad.chunks(chunk) {
                end.feed(at(0), octets);
            }
            assert_eq!(end.memory.octets(9), before, "{name}: placed");
            assert!(
                end.memory.octets(9)[8..].iter().all(|octet| *octet == 0),
                "{name}"
            );
            let found = end.terminate().unwrap().code.to_triple();
            assert_eq!(
                (found.layer, found.etype, found.code),
                triple,
                "{name} ({chunk})"
            );
            if name != "twice" {
                assert_eq!(statuses(&end.sent), [(1, WcStatus::WrFlushErr)], "{name}");
            }
        }
    }
}

#[test]
fn an_empty_last_segment_may_end_a_response() {
    let mut end = reader(8);
    end.feed(at(0), &read_response(false, 1, 0, b"01234567"));
    assert_eq!(end.sent, []);
    end.feed(at(0), &read_response(true, 99, 99, b""));
    assert_eq!(statuses(&end.sent), [(1, WcStatus::Success)]);
}

#[test]
fn a_response_is_not_to_be_taken_for_a_write() {
    // What a read names as its sink is no key: nobody can write there.
    let mut end = reader(8);
    end.feed(at(0), &write(true, 1, 0, b"01234567"));
    let triple = end.terminate().unwrap().code.to_triple();
    assert_eq!((triple.layer, triple.etype, triple.code), (1, 1, 0));
}

#[test]
fn a_sink_that_has_gone_fails_its_read() {
    let mut end = reader(8);
    end.memory.region_mut(9).valid = false;
    end.feed(at(0), &read_response(true, 1, 0, b"01234567"));
    assert_eq!(statuses(&end.sent), [(1, WcStatus::LocProtErr)]);
    let triple = end.terminate().unwrap().code.to_triple();
    assert_eq!((triple.layer, triple.etype, triple.code), (0, 0, 0));
}

#[test]
fn atomic_answers_have_to_match() {
    let frames = [
        atomic_response(1, 77, 5),
        atomic_response(2, 1, 5),
        read_response(true, 1, 0, b"01234567"),
    ];
    let triples = [(0, 2, 6), (1, 2, 3), (0, 2, 6)];
    for (frame, triple) in frames.iter().zip(triples) {
        let mut end = victim_initiator(agreed());
        let op = SendOp::FetchAdd {
            remote_addr: 0x1000,
            rkey: rkey(1),
            add: 1,
        };
        end.post(wr(1, op, sge(9, 0x9000, 8)));
        end.flush();
        end.feed(at(0), frame);
        assert_eq!(end.memory.octets(9), [0; 256]);
        let found = end.terminate().unwrap().code.to_triple();
        assert_eq!((found.layer, found.etype, found.code), triple);
        assert_eq!(statuses(&end.sent), [(1, WcStatus::WrFlushErr)]);
    }
}
