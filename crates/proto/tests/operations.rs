//! Every operation, at every awkward size, over every kind of stream.

mod common;

use common::*;
use softverbs_proto::iwarp::negotiate::Negotiated;
use softverbs_proto::iwarp::stream::FpduSizing;
use softverbs_proto::wr::{SendOp, WcOpcode, WcStatus};

const SIZES: [usize; 17] = [
    0, 1, 2, 3, 4, 5, 511, 512, 513, 1023, 1024, 1025, 65_534, 65_535, 65_536, 200_000, 1_000_000,
];

fn variants() -> Vec<(Negotiated, FpduSizing, Link)> {
    let mut variants = Vec::new();
    for crc in [false, true] {
        for sizing in [LARGEST, AWARE, FpduSizing::Largest { limit: 4096 }] {
            for link in [Link::Whole, Link::Random] {
                variants.push((Negotiated { crc, ..agreed() }, sizing, link));
            }
            for (markers_out, markers_in) in [(true, false), (false, true), (true, true)] {
                let negotiated = Negotiated {
                    crc,
                    markers_out,
                    markers_in,
                    ..agreed()
                };
                variants.push((negotiated, sizing, Link::Random));
            }
        }
    }
    variants
}

fn for_each_variant(mut test: impl FnMut(&mut Pair, usize)) {
    for (seed, (negotiated, sizing, link)) in variants().into_iter().enumerate() {
        for size in SIZES {
            let mut pair = Pair::new(negotiated.clone(), sizing, link, seed as u64);
            for end in [&mut pair.a, &mut pair.b] {
                end.memory
                    .add(1, 0x1000, VecMemory::all_access(), &pattern(7, size + 64));
                end.memory
                    .add(2, 0x10_0000, VecMemory::all_access(), &vec![0; size + 64]);
            }
            test(&mut pair, size);
            pair.assert_open();
        }
    }
}

#[test]
fn send() {
    for_each_variant(|pair, size| {
        pair.b.memory.post_receive(7, [sge(2, 0x10_0000, size)]);
        pair.a.post(wr(1, SendOp::Send, sge(1, 0x1000, size)));
        pair.run();
        assert_eq!(statuses(&pair.a.sent), [(1, WcStatus::Success)]);
        assert_eq!(statuses(&pair.b.received), [(7, WcStatus::Success)]);
        assert_eq!(pair.b.received[0].byte_len as usize, size);
        assert_eq!(pair.b.received[0].opcode, WcOpcode::Recv);
        assert_eq!(pair.b.memory.octets(2)[..size], pattern(7, size));
        assert!(
            pair.b.memory.octets(2)[size..]
                .iter()
                .all(|octet| *octet == 0)
        );
    });
}

#[test]
fn write() {
    for_each_variant(|pair, size| {
        let op = SendOp::Write {
            remote_addr: 0x10_0003,
            rkey: rkey(2),
        };
        pair.a.post(wr(1, op, sge(1, 0x1000, size)));
        pair.run();
        assert_eq!(statuses(&pair.a.sent), [(1, WcStatus::Success)]);
        assert_eq!(pair.a.sent[0].opcode, WcOpcode::RdmaWrite);
        assert_eq!(pair.b.memory.octets(2)[3..3 + size], pattern(7, size));
        assert_eq!(pair.b.memory.octets(2)[..3], [0; 3]);
        assert!(
            pair.b.memory.octets(2)[3 + size..]
                .iter()
                .all(|octet| *octet == 0)
        );
        assert_eq!(pair.b.received, []);
    });
}

#[test]
fn read() {
    for_each_variant(|pair, size| {
        let op = SendOp::Read {
            remote_addr: 0x1000,
            rkey: rkey(1),
        };
        pair.a.post(wr(1, op, sge(2, 0x10_0003, size)));
        pair.run();
        assert_eq!(statuses(&pair.a.sent), [(1, WcStatus::Success)]);
        assert_eq!(pair.a.sent[0].opcode, WcOpcode::RdmaRead);
        assert_eq!(pair.a.sent[0].byte_len as usize, size);
        assert_eq!(pair.a.memory.octets(2)[3..3 + size], pattern(7, size));
        assert!(
            pair.a.memory.octets(2)[3 + size..]
                .iter()
                .all(|octet| *octet == 0)
        );
    });
}
