//! What properties choose from.

use proptest::prelude::*;
use softverbs_proto::iwarp::negotiate::{Negotiated, RtrKind};
use softverbs_wire::rdmap::Opcode;

use super::raw;

/// So many cases, and no files beside the tests: a failure prints its input.
pub fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Any agreement.
pub fn agreements() -> impl Strategy<Value = Negotiated> {
    let rtr = prop_oneof![
        Just(None),
        Just(Some(RtrKind::Send)),
        Just(Some(RtrKind::Write)),
        Just(Some(RtrKind::Read)),
    ];
    (any::<[bool; 4]>(), 0..20_u16, 0..20_u16, rtr).prop_map(|(flags, ird, ord, rtr)| {
        let [crc, markers_in, markers_out, rfc7306] = flags;
        Negotiated {
            crc,
            markers_out,
            markers_in,
            ird,
            ord,
            rtr,
            rfc7306,
        }
    })
}

/// Frames that are nearly right: good ones, and good ones with some octets changed.
pub fn frames() -> impl Strategy<Value = Vec<u8>> {
    let payload = || proptest::collection::vec(any::<u8>(), 0..80);
    let key = || {
        prop_oneof![
            Just(1_u32),
            Just(2),
            Just(3),
            Just(4),
            Just(9),
            any::<u32>()
        ]
    };
    let to = || {
        prop_oneof![
            0x0ff0..0x1010_u64,
            0x1ff0..0x2010_u64,
            0x8ff0..0x9110_u64,
            any::<u64>()
        ]
    };
    let small = || 0..5_u32;
    let frame = prop_oneof![
        (
            any::<bool>(),
            small(),
            prop_oneof![Just(0), 0..80_u32],
            payload()
        )
            .prop_map(|(last, msn, mo, payload)| raw::send(last, msn, mo, &payload)),
        (any::<bool>(), key(), to(), payload())
            .prop_map(|(last, key, to, payload)| raw::write(last, key, to, &payload)),
        (
            any::<bool>(),
            small(),
            prop_oneof![Just(0), any::<u64>()],
            payload()
        )
            .prop_map(|(last, key, to, payload)| raw::read_response(last, key, to, &payload)),
        (small(), key(), to(), 0..5000_u32)
            .prop_map(|(msn, key, to, size)| raw::read_request(msn, key, to, size)),
        (small(), key(), to(), any::<u64>())
            .prop_map(|(msn, key, to, add)| raw::fetch_add(msn, key, to, add)),
        (small(), small(), any::<u64>())
            .prop_map(|(msn, id, original)| raw::atomic_response(msn, id, original)),
        (small(), any::<bool>()).prop_map(|(msn, solicited)| {
            let opcode = if solicited {
                Opcode::IMMEDIATE_SE
            } else {
                Opcode::IMMEDIATE
            };
            raw::untagged(raw::header(opcode, true, msn, 0), &[5; 8])
        }),
        (payload(), 0..16_u8).prop_map(|(body, opcode)| {
            let header = raw::header(Opcode::TERMINATE, true, 1, 0);
            let frame = raw::untagged(header, &body);
            if opcode < 2 {
                frame
            } else {
                raw::with_control(&frame, |word| word ^ u16::from(opcode))
            }
        }),
        payload().prop_map(|ulpdu| raw::fpdu(&ulpdu)),
    ];
    (
        frame,
        proptest::collection::vec((any::<u16>(), any::<u8>()), 0..3),
        any::<bool>(),
    )
        .prop_map(|(mut frame, changes, change)| {
            if change {
                for (at, value) in changes {
                    let at = usize::from(at) % frame.len();
                    frame[at] = value;
                }
            }
            frame
        })
}
