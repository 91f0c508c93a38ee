//! Frames in a stream.

use std::time::Duration;

use softverbs_proto::time::Time;
use softverbs_wire::mpa::fpdu::fpdu_len;
use softverbs_wire::mpa::marker;

use crate::fault::judge::{Bit, Verdict};
use crate::fault::stream::{Found, Lane};

const NOW: Time = Time::ZERO;

fn start_up(key: &[u8; 16], flags: u8, private_data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(private_data.len()).unwrap();
    let mut octets = key.to_vec();
    octets.extend([flags, 2]);
    octets.extend(len.to_be_bytes());
    octets.extend(private_data);
    octets
}

/// An FPDU with this RDMAP opcode, CRC field and all, without markers.
fn fpdu(opcode: u8, len: u16) -> Vec<u8> {
    let mut octets = vec![0; fpdu_len(len)];
    octets[..2].copy_from_slice(&len.to_be_bytes());
    octets[2] = 0x41;
    octets[3] = 0x40 | opcode;
    for (at, octet) in octets.iter_mut().enumerate().skip(4) {
        *octet = u8::try_from(at % 251).unwrap();
    }
    octets
}

/// All octets that are due.
fn take(lane: &mut Lane, now: Time) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(chunk) = lane.due(now) {
        let rest = chunk.rest().to_vec();
        lane.went(rest.len());
        out.extend(rest);
    }
    out
}

/// Pushes a stream in pieces of so many octets; the frames that are found, and what comes out.
fn scan(stream: &[u8], piece: usize, markers: bool) -> (Vec<(String, usize)>, Vec<u8>) {
    let mut lane = Lane::new();
    let mut found = Vec::new();
    let mut out = Vec::new();
    for octets in stream.chunks(piece) {
        lane.push(NOW, octets, markers, |frame: &Found| {
            found.push((frame.kinds.to_string(), frame.len));
            Verdict::Pass
        });
        out.extend(take(&mut lane, NOW));
    }
    out.extend(lane.end().unwrap());
    (found, out)
}

#[test]
fn frames_are_found_in_any_split() {
    let frames = [
        start_up(b"MPA ID Req Frame", 0x40, b"hello"),
        fpdu(3, 18),
        fpdu(0, 1400),
        fpdu(7, 30),
        fpdu(3, 65_535),
    ];
    let stream = frames.concat();
    let kinds = ["mpa-request", "fpdu", "fpdu", "fpdu+terminate", "fpdu"];
    let expected: Vec<(String, usize)> = kinds
        .iter()
        .zip(&frames)
        .map(|(kind, frame)| (format!("any+frame+{kind}"), frame.len()))
        .collect();
    for piece in [1, 2, 3, 7, 20, 21, 1000, stream.len()] {
        let (found, out) = scan(&stream, piece, false);
        assert_eq!(found, expected, "in pieces of {piece}");
        assert!(out == stream, "in pieces of {piece}");
    }
}

#[test]
fn frames_with_markers() {
    let lens = [18, 490, 506, 508, 509, 510, 1400, 20, 65_535, 3];
    let mut stream = start_up(b"MPA ID Rep Frame", 0x80, b"");
    let begin = stream.len();
    let mut expected = vec![("any+frame+mpa-reply".to_owned(), begin)];
    for (index, len) in (0..).zip(lens) {
        let position = stream.len() - begin;
        let opcode = if index % 3 == 2 { 7 } else { 3 };
        let plain = fpdu(opcode, len);
        // All but the CRC field, which is made anew.
        let covered = &plain[..plain.len() - 4];
        marker::insert(position as u64, covered, true, &mut stream);
        let kind = if opcode == 7 { "+terminate" } else { "" };
        let whole = stream.len() - begin - position;
        expected.push((format!("any+frame+fpdu{kind}"), whole));
    }
    for piece in [1, 5, 512, stream.len()] {
        let (found, out) = scan(&stream, piece, true);
        assert_eq!(found, expected, "in pieces of {piece}");
        assert!(out == stream);
    }
}

#[test]
fn who_wants_markers_says_so() {
    for (flags, wants) in [(0x00, false), (0x40, false), (0x80, true), (0xc0, true)] {
        let mut lane = Lane::new();
        let frame = start_up(b"MPA ID Req Frame", flags, b"");
        lane.push(NOW, &frame, false, |_| Verdict::Pass);
        assert_eq!(lane.wants_markers, wants);
    }
}

#[test]
fn something_else_passes_as_it_is() {
    for text in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"M",
        b"MPA ID Rex Frame 1234567890",
        b"",
    ] {
        for piece in [1, 4, 100] {
            let (_, out) = scan(text, piece, false);
            assert_eq!(out, text);
        }
    }
    // At once, not when the stream ends.
    let mut lane = Lane::new();
    lane.push(NOW, b"G", false, |_| Verdict::Pass);
    assert_eq!(take(&mut lane, NOW), b"G");
}

#[test]
fn nothing_overtakes() {
    let at = |ms| Time::new(Duration::from_millis(ms));
    let mut lane = Lane::new();
    let frames = [
        start_up(b"MPA ID Req Frame", 0, b""),
        fpdu(3, 10),
        fpdu(3, 20),
        fpdu(3, 30),
    ];
    let verdicts = [
        Verdict::Pass,
        Verdict::Delay(Duration::from_millis(20)),
        Verdict::Delay(Duration::from_millis(5)),
        Verdict::Pass,
    ];
    let mut verdicts = verdicts.into_iter();
    for frame in &frames {
        lane.push(NOW, frame, false, |_| verdicts.next().unwrap());
    }
    assert_eq!(take(&mut lane, at(19)), frames[0]);
    assert_eq!(lane.next(), Some(at(20)));
    assert_eq!(lane.waiting(), frames[1..].concat().len());
    assert_eq!(take(&mut lane, at(20)), frames[1..].concat());
    assert_eq!((lane.next(), lane.waiting()), (None, 0));
    // What is held for ever holds all behind it.
    lane.push(NOW, &frames[1], false, |_| Verdict::Hold(None));
    lane.push(NOW, &frames[2], false, |_| Verdict::Pass);
    assert_eq!(take(&mut lane, at(1_000_000)), b"");
    assert_eq!((lane.next(), lane.end()), (None, None));
}

#[test]
fn bits_are_flipped_wherever_they_come() {
    let frames = [start_up(b"MPA ID Req Frame", 0, b""), fpdu(3, 100)].concat();
    for octet in [0, 1, 3, 4, 50, 107] {
        for piece in [1, 3, 200] {
            let mut lane = Lane::new();
            let bit = Bit { octet, mask: 0x10 };
            for octets in frames.chunks(piece) {
                lane.push(NOW, octets, false, |found: &Found| match found.len {
                    20 => Verdict::Pass,
                    _ => Verdict::Corrupt(bit),
                });
            }
            let mut expected = frames.clone();
            expected[20 + octet] ^= 0x10;
            assert_eq!(
                take(&mut lane, NOW),
                expected,
                "{octet} in pieces of {piece}"
            );
        }
    }
}
