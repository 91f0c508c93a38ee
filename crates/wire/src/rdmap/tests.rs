use super::*;
use crate::codec::{Malformed, Reader, emitted_over_noise};
use crate::num::{QueueNumber, Stag, TaggedOffset};

const READ_REQUEST: [u8; ReadRequest::LEN] = [
    0x11, 0x12, 0x13, 0x14, // sink STag
    0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, // sink TO
    0x31, 0x32, 0x33, 0x34, // size
    0x41, 0x42, 0x43, 0x44, // source STag
    0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, // source TO
];

const CMP_SWAP: [u8; AtomicRequest::LEN] = [
    0xab, 0xcd, 0xef, 0x12, // reserved, operation
    0x21, 0x22, 0x23, 0x24, // request identifier
    0x31, 0x32, 0x33, 0x34, // STag
    0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, // TO
    0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, // add or swap
    0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, // its mask
    0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, // compare
    0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, // its mask
];

const ATOMIC_RESPONSE: [u8; AtomicResponse::LEN] = [
    0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
];

#[test]
fn opcodes_and_their_queues() {
    for code in 0..=u8::MAX {
        let opcode = Opcode::new(code);
        assert_eq!(opcode.get(), code & 0x0f);
        assert_eq!(opcode.is_known(), code & 0x0f <= 11);
        // RFC 5041 §4: a known message is either tagged or has a queue.
        assert_eq!(
            opcode.is_known(),
            opcode.is_tagged() != opcode.queue().is_some()
        );
    }
    for (queue, codes) in [
        (QueueNumber::SEND, &[3, 4, 5, 6, 8, 9][..]),
        (QueueNumber::READ_REQUEST, &[1, 10]),
        (QueueNumber::TERMINATE, &[7]),
        (QueueNumber::ATOMIC_RESPONSE, &[11]),
    ] {
        for code in 0..16 {
            let is_here = Opcode::new(code).queue() == Some(queue);
            assert_eq!(
                is_here,
                codes.contains(&code),
                "opcode {code}, queue {queue}"
            );
        }
    }
}

#[test]
fn what_opcodes_do() {
    let having = |property: fn(Opcode) -> bool| -> Vec<u8> {
        (0..16)
            .filter(|code| property(Opcode::new(*code)))
            .collect()
    };
    assert_eq!(having(Opcode::is_tagged), [0, 2]);
    assert_eq!(having(Opcode::is_send), [3, 4, 5, 6]);
    assert_eq!(having(Opcode::is_immediate), [8, 9]);
    assert_eq!(having(Opcode::is_solicited), [5, 6, 9]);
    assert_eq!(having(Opcode::invalidates), [4, 6]);
    assert_eq!(Opcode::SEND.to_string(), "Send");
    assert_eq!(Opcode::new(13).to_string(), "opcode 0xd");
    assert_eq!(format!("{:?}", Opcode::WRITE), "Opcode(0: RDMA Write)");
}

#[test]
fn a_read_request() {
    let request = ReadRequest {
        sink_stag: Stag::new(0x1112_1314),
        sink_to: TaggedOffset::new(0x2122_2324_2526_2728),
        size: 0x3132_3334,
        source_stag: Stag::new(0x4142_4344),
        source_to: TaggedOffset::new(0x5152_5354_5556_5758),
    };
    assert_eq!(Reader::all(&READ_REQUEST, ReadRequest::parse), Ok(request));
    assert_eq!(request.to_bytes(), READ_REQUEST);
    assert_eq!(
        emitted_over_noise(ReadRequest::LEN, |writer| request.emit(writer)),
        READ_REQUEST
    );
    assert_eq!(
        request.to_string(),
        "825373492 octets from STag 0x41424344 TO 0x5152535455565758 \
         to STag 0x11121314 TO 0x2122232425262728"
    );
}

#[test]
fn an_atomic_request() {
    let request = AtomicRequest {
        operation: AtomicOp::CMP_SWAP,
        reserved: 0xabcd_ef10,
        request_id: 0x2122_2324,
        stag: Stag::new(0x3132_3334),
        to: TaggedOffset::new(0x4142_4344_4546_4748),
        add_or_swap: 0x5152_5354_5556_5758,
        add_or_swap_mask: 0x6162_6364_6566_6768,
        compare: 0x7172_7374_7576_7778,
        compare_mask: 0x8182_8384_8586_8788,
    };
    assert_eq!(Reader::all(&CMP_SWAP, AtomicRequest::parse), Ok(request));
    assert_eq!(request.to_bytes(), CMP_SWAP);
    assert_eq!(
        emitted_over_noise(AtomicRequest::LEN, |writer| request.emit(writer)),
        CMP_SWAP
    );
    assert_eq!(
        request.to_string(),
        "CmpSwap 555885348 at STag 0x31323334 TO 0x4142434445464748, \
         data 0x5152535455565758 mask 0x6162636465666768, \
         compare 0x7172737475767778 mask 0x8182838485868788"
    );
}

/// The operations of the verbs are the plain ones: all 64 bits, as one number.
#[test]
fn plain_atomics() {
    let (stag, to) = (Stag::new(1), TaggedOffset::new(8));
    let add = AtomicRequest::fetch_add(9, stag, to, 5);
    assert_eq!(
        (add.operation, add.add_or_swap, add.add_or_swap_mask),
        (AtomicOp::FETCH_ADD, 5, 0)
    );
    assert_eq!((add.compare, add.compare_mask), (0, u64::MAX));
    let swap = AtomicRequest::cmp_swap(9, stag, to, 5, 6);
    assert_eq!(
        (swap.operation, swap.compare, swap.add_or_swap),
        (AtomicOp::CMP_SWAP, 5, 6)
    );
    assert_eq!(
        (swap.compare_mask, swap.add_or_swap_mask),
        (u64::MAX, u64::MAX)
    );
    assert_eq!(add.to_bytes()[..4], [0, 0, 0, 0]);
    assert_eq!(swap.to_bytes()[..4], [0, 0, 0, 2]);
    assert_eq!(AtomicOp::new(0xf1).to_string(), "atomic operation 0x1");
}

#[test]
fn an_atomic_response() {
    let response = AtomicResponse {
        request_id: 0x1112_1314,
        original: 0x2122_2324_2526_2728,
    };
    assert_eq!(
        Reader::all(&ATOMIC_RESPONSE, AtomicResponse::parse),
        Ok(response)
    );
    assert_eq!(response.to_bytes(), ATOMIC_RESPONSE);
    let len = AtomicResponse::LEN;
    assert_eq!(
        emitted_over_noise(len, |writer| response.emit(writer)),
        ATOMIC_RESPONSE
    );
    assert_eq!(
        response.to_string(),
        "answer to atomic 286397204: 0x2122232425262728"
    );
}

#[test]
fn immediate_data() {
    let octets = [1, 2, 3, 4, 5, 6, 7, 8];
    let data = ImmediateData(octets);
    assert_eq!(Reader::all(&octets, ImmediateData::parse), Ok(data));
    assert_eq!(data.to_bytes(), octets);
    assert_eq!(
        emitted_over_noise(ImmediateData::LEN, |writer| data.emit(writer)),
        octets
    );
    assert_eq!(data.to_string(), "0x0102030405060708");
    assert_eq!(
        Reader::all(&[0; 9], ImmediateData::parse),
        Err(Malformed::TrailingOctets)
    );
}

#[test]
fn a_short_header_is_not_consumed() {
    fn refuses<T: std::fmt::Debug + PartialEq>(
        octets: &[u8],
        parse: fn(&mut Reader<'_>) -> Result<T, Malformed>,
    ) {
        for len in 0..octets.len() {
            let mut reader = Reader::new(&octets[..len]);
            assert_eq!(parse(&mut reader), Err(Malformed::Truncated));
            assert_eq!(reader.remaining(), len);
        }
    }
    refuses(&READ_REQUEST, ReadRequest::parse);
    refuses(&CMP_SWAP, AtomicRequest::parse);
    refuses(&ATOMIC_RESPONSE, AtomicResponse::parse);
    refuses(&[0; 8], ImmediateData::parse);
}
