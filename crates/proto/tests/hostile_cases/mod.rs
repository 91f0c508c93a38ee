//! What a peer can do wrong, frame by frame, with the Terminate that it deserves.
#![allow(unreachable_pub, missing_docs, reason = "a module of a test binary")]

use softverbs_wire::num::{Stag, TaggedOffset};
use softverbs_wire::rdmap::{AtomicOp, AtomicRequest, Opcode};

use super::common::raw::*;

/// M, D and R of the Terminate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    None,
    Ddp,
    DdpAndRdmap,
}

use Headers::{Ddp, DdpAndRdmap};

/// One hostile frame (or several, of which the last is the hostile one).
pub struct Case {
    pub name: &'static str,
    pub frames: Vec<Vec<u8>>,
    pub triple: (u8, u8, u8),
    pub headers: Headers,
}

fn case(
    name: &'static str,
    frames: impl IntoIterator<Item = Vec<u8>>,
    triple: (u8, u8, u8),
    headers: Headers,
) -> Case {
    Case {
        name,
        frames: frames.into_iter().collect(),
        triple,
        headers,
    }
}

pub fn cases() -> Vec<Case> {
    let ver = |frame: &[u8], mask: u16| with_control(frame, |word| word ^ mask);
    let good_write = write(true, 1, 0x1000, b"abcd");
    let good_send = send(true, 1, 0, b"abcd");
    let opcode = |code: u16| with_control(&good_send, |word| word & !0xf | code);
    let read = read_request(1, 1, 0x1000, 4);
    let long_read = {
        let mut body = read[20..48].to_vec();
        body.extend_from_slice(&[0; 4]);
        untagged(header(Opcode::READ_REQUEST, true, 1, 0), &body)
    };
    let misaligned = fetch_add(1, 1, 0x1004, 1);
    let swap = {
        let mut request = AtomicRequest::fetch_add(1, Stag::new(1), TaggedOffset::new(0), 1);
        request.operation = AtomicOp::new(1);
        untagged(
            header(Opcode::ATOMIC_REQUEST, true, 1, 0),
            &request.to_bytes(),
        )
    };
    let invalidate = |key: u32| {
        let mut header = header(Opcode::SEND_INVALIDATE, true, 1, 0);
        header.invalidate_stag = Stag::new(key);
        // Payload would be placed first: the receive takes whatever the peer sends.
        untagged(header, b"")
    };
    let imm = Opcode::IMMEDIATE;
    vec![
        // versions and opcodes
        case(
            "DV of a tagged segment",
            [ver(&good_write, 0x0200)],
            (1, 1, 4),
            Headers::None,
        ),
        case(
            "DV of an untagged segment",
            [ver(&good_send, 0x0100)],
            (1, 2, 6),
            Headers::None,
        ),
        case("RV", [ver(&good_send, 0x0080)], (0, 2, 5), Headers::None),
        case(
            "DV and RV",
            [ver(&good_send, 0x0380)],
            (1, 2, 6),
            Headers::None,
        ),
        case("opcode 12", [opcode(12)], (0, 2, 6), Headers::None),
        case("opcode 15", [opcode(15)], (0, 2, 6), Headers::None),
        case(
            "tagged Send",
            [ver(&good_send, 0x8000)],
            (0, 2, 6),
            Headers::None,
        ),
        case(
            "untagged Write",
            [ver(&good_write, 0x8000)],
            (0, 2, 6),
            Headers::None,
        ),
        // lengths
        case("no control word", [fpdu(&[])], (2, 0, 3), Headers::None),
        case(
            "half a control word",
            [fpdu(&[0x41])],
            (2, 0, 3),
            Headers::None,
        ),
        case(
            "half a tagged header",
            [fpdu(&good_write[2..15])],
            (2, 0, 3),
            Headers::None,
        ),
        case(
            "half an untagged header",
            [fpdu(&good_send[2..19])],
            (2, 0, 3),
            Headers::None,
        ),
        case(
            "half a Read Request",
            [fpdu(&read[2..47])],
            (2, 0, 3),
            Headers::None,
        ),
        case("Read Request with payload", [long_read], (1, 2, 5), Ddp),
        case(
            "short immediate data",
            [untagged(header(imm, true, 1, 0), &[0; 7])],
            (2, 0, 3),
            Headers::None,
        ),
        case(
            "long immediate data",
            [untagged(header(imm, true, 1, 0), &[0; 9])],
            (1, 2, 5),
            Ddp,
        ),
        case(
            "half an atomic request",
            [untagged(
                header(Opcode::ATOMIC_REQUEST, true, 1, 0),
                &[0; 51],
            )],
            (2, 0, 3),
            Headers::None,
        ),
        // Sends
        case(
            "Send on another queue",
            [untagged(on_queue(header(Opcode::SEND, true, 1, 0), 1), b"")],
            (1, 2, 1),
            Ddp,
        ),
        case("first MSN 0", [send(true, 0, 0, b"abcd")], (1, 2, 3), Ddp),
        case("first MSN 2", [send(true, 2, 0, b"abcd")], (1, 2, 3), Ddp),
        case(
            "MSN twice",
            [send(true, 1, 0, b"a"), send(true, 1, 0, b"a")],
            (1, 2, 3),
            Ddp,
        ),
        case("first MO 4", [send(true, 1, 4, b"abcd")], (1, 2, 4), Ddp),
        case(
            "MO gap",
            [send(false, 1, 0, b"abcd"), send(true, 1, 5, b"a")],
            (1, 2, 4),
            Ddp,
        ),
        case(
            "MO overlap",
            [send(false, 1, 0, b"abcd"), send(true, 1, 3, b"a")],
            (1, 2, 4),
            Ddp,
        ),
        case(
            "MSN in the middle",
            [send(false, 1, 0, b"abcd"), send(true, 2, 0, b"a")],
            (1, 2, 3),
            Ddp,
        ),
        case(
            "another Send in the middle",
            [
                send(false, 1, 0, b"ab"),
                untagged(header(Opcode::SEND_SE, true, 1, 2), b"c"),
            ],
            (0, 2, 6),
            Headers::None,
        ),
        case(
            "another opcode in the middle",
            [
                send(false, 1, 0, b""),
                untagged(header(imm, true, 1, 0), &[0; 8]),
            ],
            (0, 2, 6),
            Headers::None,
        ),
        case(
            "longer than the receive",
            [send(true, 1, 0, &[0; 65])],
            (1, 2, 5),
            Ddp,
        ),
        case(
            "longer than the receive in its second segment",
            [send(false, 1, 0, &[0; 60]), send(true, 1, 60, &[0; 5])],
            (1, 2, 5),
            Ddp,
        ),
        case(
            "no receive",
            (1..=4).map(|msn| send(true, msn, 0, b"a")),
            (1, 2, 2),
            Ddp,
        ),
        case(
            "no receive for an empty Send",
            (1..=4).map(|msn| send(true, msn, 0, b"")),
            (1, 2, 2),
            Ddp,
        ),
        case(
            "no receive for immediate data",
            (1..=4).map(|msn| untagged(header(imm, true, msn, 0), &[0; 8])),
            (1, 2, 2),
            Ddp,
        ),
        case("invalidates nothing", [invalidate(0x77)], (0, 2, 9), Ddp),
        case("invalidates another's key", [invalidate(3)], (0, 2, 9), Ddp),
        // Writes
        case(
            "Write without a key",
            [write(true, 0x77, 0x1000, b"abcd")],
            (1, 1, 0),
            Ddp,
        ),
        case(
            "Write before the region",
            [write(true, 1, 0xfff, b"abcd")],
            (1, 1, 1),
            Ddp,
        ),
        case(
            "Write behind the region",
            [write(true, 1, 0x1ffd, b"abcd")],
            (1, 1, 1),
            Ddp,
        ),
        case(
            "Write to another PD",
            [write(true, 3, 0x3000, b"abcd")],
            (1, 1, 2),
            Ddp,
        ),
        case(
            "Write around the end",
            [write(true, 1, u64::MAX - 2, b"abcd")],
            (1, 1, 3),
            Ddp,
        ),
        case(
            "Write without the right",
            [write(true, 4, 0x4000, b"abcd")],
            (0, 1, 2),
            Ddp,
        ),
        case(
            "Write that changes its key",
            [
                write(false, 1, 0x1000, b"abcd"),
                write(true, 9, 0x1004, b"a"),
            ],
            (1, 1, 0),
            Ddp,
        ),
        case(
            "Write with a gap",
            [
                write(false, 1, 0x1000, b"abcd"),
                write(true, 1, 0x1005, b"a"),
            ],
            (1, 1, 1),
            Ddp,
        ),
        case(
            "Write whose second segment is outside",
            [
                write(false, 1, 0x1ffc, b"abcd"),
                write(true, 1, 0x2000, b"a"),
            ],
            (1, 1, 1),
            Ddp,
        ),
        // Reads
        case(
            "Read without a key",
            [read_request(1, 0x77, 0x1000, 4)],
            (0, 1, 0),
            DdpAndRdmap,
        ),
        case(
            "Read outside",
            [read_request(1, 1, 0x1ffd, 4)],
            (0, 1, 1),
            DdpAndRdmap,
        ),
        case(
            "Read without the right",
            [read_request(1, 4, 0x4000, 4)],
            (0, 1, 2),
            DdpAndRdmap,
        ),
        case(
            "Read of another PD",
            [read_request(1, 3, 0x3000, 4)],
            (0, 1, 3),
            DdpAndRdmap,
        ),
        case(
            "Read around the end",
            [read_request(1, 1, u64::MAX, 4)],
            (0, 1, 4),
            DdpAndRdmap,
        ),
        case("Read MSN", [read_request(2, 1, 0x1000, 4)], (1, 2, 3), Ddp),
        case(
            "Read on another queue",
            [untagged(
                on_queue(header(Opcode::READ_REQUEST, true, 1, 0), 0),
                &read[20..48],
            )],
            (1, 2, 1),
            Ddp,
        ),
        case(
            "Read MO",
            [untagged(
                header(Opcode::READ_REQUEST, true, 1, 4),
                &read[20..48],
            )],
            (1, 2, 4),
            Ddp,
        ),
        case(
            "Read that goes on",
            [untagged(
                header(Opcode::READ_REQUEST, false, 1, 0),
                &read[20..48],
            )],
            (1, 2, 5),
            Ddp,
        ),
        case(
            "more reads than agreed",
            (1..=17).map(|msn| read_request(msn, 1, 0x1000, 4)),
            (0, 2, 7),
            Ddp,
        ),
        case(
            "more empty reads than agreed",
            (1..=17).map(|msn| read_request(msn, 0, 0, 0)),
            (0, 2, 7),
            Ddp,
        ),
        case(
            "response to nothing",
            [read_response(true, 1, 0x1000, b"abcd")],
            (0, 2, 6),
            Headers::None,
        ),
        case(
            "empty response to nothing",
            [read_response(true, 1, 0, b"")],
            (0, 2, 6),
            Headers::None,
        ),
        // Atomics
        case("misaligned atomic", [misaligned], (0, 2, 7), Ddp),
        case(
            "atomic without a key",
            [fetch_add(1, 0x70, 0x1000, 1)],
            (0, 1, 0),
            Ddp,
        ),
        case(
            "atomic outside",
            [fetch_add(1, 1, 0x2000, 1)],
            (0, 1, 1),
            Ddp,
        ),
        case(
            "atomic without the right",
            [fetch_add(1, 4, 0x4000, 1)],
            (0, 1, 2),
            Ddp,
        ),
        case(
            "atomic on another PD",
            [fetch_add(1, 3, 0x3000, 1)],
            (0, 1, 3),
            Ddp,
        ),
        case("atomic operation 1", [swap], (0, 2, 6), Headers::None),
        case(
            "atomic response to nothing",
            [atomic_response(1, 1, 1)],
            (0, 2, 6),
            Headers::None,
        ),
    ]
}
