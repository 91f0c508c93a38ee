//! What FPDUs look like on the wire, and how they are gathered.

mod common;

use common::raw::{self, read_request, segments, victim};
use common::requests::*;
use common::*;
use softverbs_proto::iwarp::negotiate::{Negotiated, RtrKind};
use softverbs_proto::iwarp::stream::{FpduSizing, Role, StreamConfig};
use softverbs_proto::transmit::{Piece, TxBatch};
use softverbs_proto::wr::SendOp;
use softverbs_wire::codec::{Parsed, Reader};
use softverbs_wire::ddp::Control;
use softverbs_wire::mpa::{Fpdu, marker};
use softverbs_wire::num::{Lkey, Msn};
use softverbs_wire::rdmap::Opcode;

/// What `a` transmits for one message of `len` octets.
fn frames_of(
    op: SendOp,
    len: usize,
    negotiated: Negotiated,
    sizing: FpduSizing,
) -> (Vec<u8>, Vec<usize>) {
    let mut pair = Pair::new(negotiated, sizing, Link::Whole, 0);
    pair.a
        .memory
        .add(1, 0, VecMemory::all_access(), &pattern(1, len));
    pair.a.post(wr(1, op, sge(1, 0, len)));
    pair.a.flush();
    (pair.a.record.clone(), pair.a.frames.clone())
}

const WRITE: SendOp = SendOp::Write {
    remote_addr: 0x1122_3344_5566_7788,
    rkey: softverbs_wire::num::Rkey::new(0xaabb),
};

fn frame_lens(ends: &[usize]) -> Vec<usize> {
    let mut start = 0;
    ends.iter()
        .map(|end| {
            let len = end - start;
            start = *end;
            len
        })
        .collect()
}

#[test]
fn the_first_send_of_stock_siw() {
    let (octets, _) = frames_of(SendOp::Send, 16, agreed(), AWARE);
    let mut expected = b"\x00\x22\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0".to_vec();
    expected.extend_from_slice(&pattern(1, 16));
    expected.extend_from_slice(&[0; 4]);
    assert_eq!(octets, expected);
}

#[test]
fn test_vectors_with_crc() {
    let crc = Negotiated {
        crc: true,
        ..agreed()
    };
    let mut pair = Pair::new(crc.clone(), AWARE, Link::Whole, 0);
    pair.a.memory.add(1, 0, VecMemory::all_access(), &[0; 24]);
    pair.a.post(wr(1, SendOp::Send, sge(1, 0, 24)));
    pair.a.flush();
    assert_eq!(pair.a.record[..4], *b"\x00\x2a\x41\x43");
    assert_eq!(pair.a.record[44..], *b"\xb7\x24\x3e\xc3");
    // The zero-length Write that Linux sends as RTR.
    let rtr = Negotiated {
        rtr: Some(RtrKind::Write),
        ..crc
    };
    let mut pair = Pair::new(rtr, AWARE, Link::Whole, 0);
    pair.a.flush();
    assert_eq!(pair.a.record[16..], *b"\xeb\xd3\x4c\x5f");
}

#[test]
fn a_write_counts_its_offset_up() {
    let (octets, ends) = frames_of(WRITE, 3000, agreed(), AWARE);
    assert_eq!(ends.len(), 3);
    let segments = segments(&octets);
    let mut to = 0x1122_3344_5566_7788;
    for (at, (header, payload)) in segments.iter().enumerate() {
        let softverbs_wire::ddp::DdpHeader::Tagged(header) = header else {
            panic!()
        };
        assert_eq!(header.stag.get(), 0xaabb);
        assert_eq!(header.to.get(), to);
        assert_eq!(header.control.bits(), if at == 2 { 0xc140 } else { 0x8140 });
        to += payload.len() as u64;
    }
    // As siw cuts them at this segment size.
    assert_eq!(segments[0].1.len(), 1428);
    let (octets, _) = frames_of(SendOp::Send, 3000, agreed(), AWARE);
    let segments = raw::segments(&octets);
    assert_eq!(segments[0].1.len(), 1424);
    let softverbs_wire::ddp::DdpHeader::Untagged(second) = segments[1].0 else {
        panic!()
    };
    assert_eq!((second.mo.get(), second.msn), (1424, Msn::FIRST));
}

#[test]
fn mpa_aware_frames_fit_a_segment() {
    for emss in [536, 1380, 1448, 1460, 1461, 1462, 1463, 8948, 65_483] {
        for markers_out in [false, true] {
            for op in [SendOp::Send, WRITE] {
                let negotiated = Negotiated {
                    crc: true,
                    markers_out,
                    ..agreed()
                };
                let sizing = FpduSizing::MpaAware { emss };
                let (octets, ends) = frames_of(op, 100_000, negotiated, sizing);
                assert_eq!(*ends.last().unwrap(), octets.len());
                for len in frame_lens(&ends) {
                    assert!(len <= usize::from(emss), "{len} octets, {emss} fit");
                    assert_eq!(len % 4, 0);
                }
                // Not smaller than need be.
                let full = frame_lens(&ends)[0];
                let markers = if markers_out {
                    4 * usize::from(emss).div_ceil(512)
                } else {
                    0
                };
                assert!(full + 8 + markers > usize::from(emss), "{full} of {emss}");
            }
        }
    }
    // A segment size that no FPDU can have.
    let (octets, ends) = frames_of(WRITE, 1000, agreed(), FpduSizing::MpaAware { emss: 64 });
    assert_eq!(frame_lens(&ends)[0], 2 + 14 + 112 + 4);
    assert_eq!(segments(&octets).len(), 9);
}

#[test]
fn the_largest_frames_use_the_length_field() {
    let (_, ends) = frames_of(WRITE, 1_000_000, agreed(), LARGEST);
    assert_eq!(ends.len(), 16);
    let first = frame_lens(&ends)[0];
    assert!(first > 65_400 && first < 65_545, "{first}");
    let (octets, _) = frames_of(WRITE, 1_000_000, agreed(), LARGEST);
    for (_, payload) in &segments(&octets)[..15] {
        assert_eq!(payload.len() % 64, 0, "aligned copies at the receiver");
    }
    let (octets, _) = frames_of(WRITE, 300, agreed(), FpduSizing::Largest { limit: 0 });
    assert_eq!(
        segments(&octets).len(),
        3,
        "no limit below what a header needs"
    );
    // With markers a pointer has to reach back to the length field.
    let markers = Negotiated {
        markers_out: true,
        ..agreed()
    };
    let (_, ends) = frames_of(WRITE, 200_000, markers, LARGEST);
    assert!(frame_lens(&ends)[0] < 65_536);
}

#[test]
fn markers_stand_where_they_have_to() {
    let markers = Negotiated {
        markers_out: true,
        crc: true,
        ..agreed()
    };
    let (octets, ends) = frames_of(SendOp::Send, 3000, markers, AWARE);
    let mut starts = vec![0];
    starts.extend_from_slice(&ends);
    for at in (0..octets.len()).step_by(512) {
        assert_eq!(octets[at..at + 2], [0, 0]);
        let pointer = usize::from(u16::from_be_bytes([octets[at + 2], octets[at + 3]]));
        let fpdu = *starts.iter().rev().find(|start| **start <= at).unwrap();
        let length_field = if fpdu % 512 == 0 { fpdu + 4 } else { fpdu };
        assert_eq!(pointer, at.saturating_sub(length_field), "marker at {at}");
    }
}

/// TCP took a part of the first frame; the others are dropped when the peer is at fault. The frame
/// ends 20 octets before a marker.
#[test]
fn a_terminate_behind_dropped_frames_has_its_markers_in_their_places() {
    let negotiated = Negotiated {
        crc: true,
        markers_out: true,
        ..agreed()
    };
    let mut end = raw::victim_of(negotiated, true);
    let write = SendOp::Write {
        remote_addr: 0,
        rkey: rkey(7),
    };
    for wr_id in 0..5 {
        end.post(wr(wr_id, write, sge(1, 0x1000, 468)));
    }
    let mut batch = TxBatch::new();
    end.stream
        .poll_transmit(at(0), &mut end.memory, &mut batch, 1 << 20, 64);
    let mut octets = end.memory.flatten(&batch);
    let kept = batch.frame_ends()[0];
    assert_eq!(kept, 492);
    end.stream.on_transmitted(10);
    let mut broken = raw::send(true, 1, 0, b"x");
    broken[24] ^= 1;
    end.feed(at(0), &broken);
    assert!(end.is_closed());
    end.stream.forget_untransmitted(octets.len() - kept);
    octets.truncate(kept);
    batch.clear();
    end.stream
        .poll_transmit(at(0), &mut end.memory, &mut batch, 1 << 20, 64);
    octets.extend(end.memory.flatten(&batch));

    let (mut position, mut plain) = (0, Vec::new());
    while position < octets.len() {
        plain.clear();
        let stripped = marker::strip(position as u64, &octets[position..], &mut plain);
        let Ok(Parsed::Complete { value, len }) = stripped else {
            panic!("{stripped:?} at {position} of {}", octets.len());
        };
        value.check_crc().unwrap();
        position += len;
    }
    let length = usize::from(u16::from_be_bytes([plain[0], plain[1]]));
    let control = Control::parse(&mut Reader::new(&plain[2..2 + length])).unwrap();
    assert_eq!(control.opcode(), Opcode::TERMINATE);
}

#[test]
fn a_small_message_is_one_piece_and_a_large_one_is_gathered() {
    // With CRC all of it is copied: what is summed has to be what is sent.
    let crc = [(0, 1, true), (513, 1, true), (60_000, 1, true)];
    let plain = [(0, 1), (1, 1), (512, 1), (513, 3), (60_000, 3)];
    let plain = plain.map(|(len, pieces)| (len, pieces, false));
    for (len, pieces, crc) in plain.into_iter().chain(crc) {
        let mut pair = loaded(Negotiated { crc, ..agreed() });
        pair.a.post(write(1, len));
        let mut batch = TxBatch::new();
        pair.a
            .stream
            .poll_transmit(at(0), &mut pair.a.memory, &mut batch, 1, 1024);
        assert_eq!(batch.pieces().len(), pieces, "{len}");
        if pieces == 3 {
            let memory = Piece::Memory {
                key: Lkey::new(1),
                addr: 0,
                len,
            };
            assert_eq!(batch.pieces()[1], memory, "not copied");
        }
        assert_eq!(batch.frame_ends(), [batch.len()]);
    }
}

#[test]
fn copy_limit_is_the_owners_choice() {
    for copy_limit in [0, 100_000] {
        let config = StreamConfig {
            copy_limit,
            ..config()
        };
        let mut end = End::new(config);
        end.memory.add(1, 0, VecMemory::all_access(), &[1; 1000]);
        end.stream.attach(at(0), Role::Initiator, agreed(), LARGEST);
        end.post(wr(1, SendOp::Send, sge(1, 0, 1000)));
        let mut batch = TxBatch::new();
        end.stream
            .poll_transmit(at(0), &mut end.memory, &mut batch, 1, 1024);
        let gathers = batch
            .pieces()
            .iter()
            .any(|piece| matches!(piece, Piece::Memory { .. }));
        assert_eq!(gathers, copy_limit == 0);
    }
}

/// What the peer reads may change while it is being sent; the octets that were summed have to be
/// those that are sent.
#[test]
fn read_responses_with_a_crc_do_not_depend_on_the_memory_after_they_were_made() {
    for (crc, gathers) in [(true, false), (false, true)] {
        let mut end = victim(Negotiated { crc, ..agreed() });
        end.feed(at(0), &read_request(1, 1, 0x1000, 4000));
        let mut batch = TxBatch::new();
        end.stream
            .poll_transmit(at(0), &mut end.memory, &mut batch, 1 << 20, 1024);
        let memory = batch
            .pieces()
            .iter()
            .any(|piece| matches!(piece, Piece::Memory { .. }));
        assert_eq!(memory, gathers);
        end.memory.region_mut(1).octets_mut().fill(0xee);
        let octets = end.memory.flatten(&batch);
        let Parsed::Complete { value, .. } = Fpdu::parse(&octets).unwrap() else {
            panic!()
        };
        assert_eq!(value.check_crc().is_ok(), crc);
        assert_eq!(value.ulpdu[14..] == pattern(1, 4096)[..4000], crc);
    }
}

#[test]
fn batches_stay_near_their_limits() {
    let mut pair = loaded(agreed());
    for wr_id in 0..20 {
        pair.a.post(write(wr_id, 2000));
    }
    let mut batch = TxBatch::new();
    pair.a
        .stream
        .poll_transmit(at(0), &mut pair.a.memory, &mut batch, 5000, 1024);
    assert_eq!(
        batch.frame_ends().len(),
        3,
        "the third frame reached the limit"
    );
    batch.clear();
    // Frames of three pieces, of which neighbours share one.
    pair.a
        .stream
        .poll_transmit(at(0), &mut pair.a.memory, &mut batch, 1 << 20, 8);
    assert_eq!(batch.pieces().len(), 7);
    assert_eq!(batch.frame_ends().len(), 3);
    batch.clear();
    pair.a
        .stream
        .poll_transmit(at(0), &mut pair.a.memory, &mut batch, 1 << 20, 1);
    assert_eq!(
        batch.frame_ends().len(),
        1,
        "one goes out whatever the limit"
    );
    // What is in the batch already counts.
    let before = batch.len();
    pair.a
        .stream
        .poll_transmit(at(0), &mut pair.a.memory, &mut batch, before, 1024);
    assert_eq!(batch.len(), before);
    assert!(pair.a.stream.wants_transmit());
}

#[test]
fn nothing_is_yielded_that_was_not_wanted() {
    let mut pair = loaded(agreed());
    assert!(!pair.a.stream.wants_transmit());
    let mut batch = TxBatch::new();
    pair.a
        .stream
        .poll_transmit(at(0), &mut pair.a.memory, &mut batch, 1 << 20, 1024);
    assert!(batch.is_empty() && batch.frame_ends().is_empty());
}

#[test]
fn memory_that_fails_leaves_no_half_frame() {
    for len in [100, 200_000] {
        let mut pair = loaded(agreed());
        pair.a.post(send(1));
        let mut request = write(2, 0);
        request.payload = softverbs_proto::wr::Payload::Sges(
            [sge(1, 0, len / 2), sge(2, 0, len / 2)]
                .into_iter()
                .collect(),
        );
        pair.a.post(request);
        // Both entries are there when the request starts; the second goes before the frame that
        // needs it, or with this frame.
        if len > 65_536 {
            pair.a.transmit(at(0), 100, 1024);
        }
        pair.a.memory.region_mut(2).valid = false;
        pair.a.flush();
        let sent = segments(&pair.a.record);
        let last = sent.last().and_then(raw::terminate);
        assert!(
            last.is_some(),
            "whole frames, and the Terminate behind them"
        );
    }
}

#[test]
fn direct_names_the_rest_of_the_payload() {
    let mut end = victim(agreed());
    let frame = raw::write(true, 1, 0x1010, &[7; 100]);
    assert!(end.stream.direct().is_none());
    end.feed(at(0), &frame[..15]);
    assert!(end.stream.direct().is_none(), "the header is not whole");
    end.feed(at(0), &frame[15..16]);
    assert_eq!(
        end.stream.direct().unwrap()[..],
        [(Lkey::new(1), 0x1010, 100)]
    );
    end.feed(at(0), &frame[16..20]);
    assert_eq!(
        end.stream.direct().unwrap()[..],
        [(Lkey::new(1), 0x1014, 96)]
    );
    end.stream.on_direct(at(0), &mut end.memory, 90);
    assert_eq!(
        end.stream.direct().unwrap()[..],
        [(Lkey::new(1), 0x106e, 6)]
    );
    end.stream.on_direct(at(0), &mut end.memory, 6);
    assert!(end.stream.direct().is_none(), "the trailer follows");
    end.feed(at(0), &frame[116..]);
    assert_eq!(end.closed_for(), "open");
}

#[test]
fn direct_ends_with_the_payload_and_with_the_stream() {
    // An owner who claims more than there was.
    let mut end = victim(agreed());
    let frame = raw::write(true, 1, 0x1010, &[7; 100]);
    end.feed(at(0), &frame[..90]);
    end.stream.on_direct(at(0), &mut end.memory, 1000);
    assert!(end.stream.direct().is_none());
    end.feed(at(0), &frame[116..]);
    assert_eq!(end.closed_for(), "open");
    // Memory that goes in the middle of the payload.
    let mut end = victim(agreed());
    end.feed(at(0), &frame[..50]);
    end.memory.region_mut(1).valid = false;
    end.feed(at(0), &frame[50..60]);
    assert!(end.stream.direct().is_none());
    let triple = end.terminate().unwrap().code.to_triple();
    assert_eq!((triple.layer, triple.etype, triple.code), (1, 1, 0));
}

#[test]
fn empty_segments_of_a_write_say_nothing_about_its_place() {
    let mut end = victim(agreed());
    let segments = [
        raw::write(false, 77, 5, b""),
        raw::write(false, 1, 0x1000, b"abcd"),
        raw::write(false, 77, 5, b""),
        raw::write(false, 1, 0x1004, b"efgh"),
        raw::write(true, 77, 5, b""),
    ];
    for segment in segments {
        end.feed(at(0), &segment);
    }
    assert_eq!(end.closed_for(), "open");
    assert_eq!(end.memory.octets(1)[..8], *b"abcdefgh");
    // All of them are one message.
    end.feed(
        at(0),
        &raw::untagged(raw::header(Opcode::IMMEDIATE, true, 1, 0), &[0; 8]),
    );
    assert_eq!(end.received[0].byte_len, 8);
}

#[test]
fn direct_follows_a_scatter_list() {
    let mut end = victim(agreed());
    end.memory.receives.clear();
    end.memory.post_receive(
        1,
        [sge(9, 0x9000, 5), sge(1, 0x1000, 0), sge(1, 0x1100, 95)],
    );
    let frame = raw::send(true, 1, 0, &[7; 90]);
    end.feed(at(0), &frame[..20]);
    let both = [(Lkey::new(9), 0x9000, 5), (Lkey::new(1), 0x1100, 85)];
    assert_eq!(end.stream.direct().unwrap()[..], both);
    end.stream.on_direct(at(0), &mut end.memory, 7);
    assert_eq!(
        end.stream.direct().unwrap()[..],
        [(Lkey::new(1), 0x1102, 83)]
    );
}

#[test]
fn direct_is_off_with_markers_and_after_the_end() {
    let markers = Negotiated {
        markers_out: true,
        ..agreed()
    };
    let (octets, _) = frames_of(SendOp::Send, 60, markers, AWARE);
    let mut end = victim(Negotiated {
        markers_in: true,
        ..agreed()
    });
    end.feed(at(0), &octets[..40]);
    assert!(end.stream.direct().is_none());
    end.feed(at(0), &octets[40..]);
    assert_eq!(end.received.len(), 1);

    let mut end = victim(agreed());
    end.feed(at(0), &raw::write(true, 1, 0x1000, &[7; 100])[..50]);
    assert!(end.stream.direct().is_some());
    end.eof(true);
    assert!(end.stream.direct().is_none());
    end.stream.on_direct(at(0), &mut end.memory, 10);
}

#[test]
fn nothing_is_placed_directly_that_has_a_crc() {
    for wrong in [false, true] {
        let mut end = victim(Negotiated {
            crc: true,
            ..agreed()
        });
        let mut frame = raw::write(true, 1, 0x1000, &[7; 100]);
        frame[50] ^= u8::from(wrong);
        end.feed(at(0), &frame[..60]);
        assert!(end.stream.direct().is_none());
        // Whoever else writes there meanwhile does not make the sum wrong.
        end.memory.region_mut(1).octets_mut().fill(9);
        end.feed(at(0), &frame[60..]);
        assert_eq!(end.is_closed(), wrong);
    }
}
