use std::collections::BTreeSet;

use super::*;

fn having(service: Service, property: impl Fn(&OpcodeInfo) -> bool) -> Vec<u8> {
    (0..=u8::MAX)
        .filter(|code| {
            Opcode::new(*code)
                .info()
                .is_some_and(|info| info.service == service && property(info))
        })
        .collect()
}

#[test]
fn codes_of_each_service() {
    let all = |service| having(service, |_| true);
    let rc: Vec<u8> = (0x00..=0x14).chain([0x16, 0x17, 0x1c, 0x1d]).collect();
    assert_eq!(all(Service::Rc), rc);
    assert_eq!(all(Service::Uc), (0x20..=0x2b).collect::<Vec<u8>>());
    assert_eq!(all(Service::Rd), (0x40..=0x55).collect::<Vec<u8>>());
    assert_eq!(all(Service::Ud), [0x64, 0x65]);
    assert_eq!(all(Service::Cnp), [0x81]);
    let xrc: Vec<u8> = (0xa0..=0xb4).chain([0xb6, 0xb7]).collect();
    assert_eq!(all(Service::Xrc), xrc);
    let count: usize = Service::ALL
        .into_iter()
        .map(|service| all(service).len())
        .sum();
    assert_eq!(count, Opcode::ALL.len());
}

#[test]
fn what_packets_of_a_reliable_connection_do() {
    let rc = |property: fn(&OpcodeInfo) -> bool| having(Service::Rc, property);
    assert_eq!(
        rc(OpcodeInfo::is_response),
        [0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12]
    );
    let requests = having(Service::Rc, |info| !info.is_response());
    assert_eq!(rc(OpcodeInfo::is_request), requests);
    assert_eq!(
        rc(OpcodeInfo::has_payload),
        [
            0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0d, 0x0e,
            0x0f, 0x10, 0x16, 0x17, 0x1d
        ]
    );
    assert_eq!(rc(OpcodeInfo::has_immediate), [0x03, 0x05, 0x09, 0x0b]);
    assert_eq!(rc(OpcodeInfo::invalidates), [0x16, 0x17]);
    assert_eq!(
        rc(OpcodeInfo::takes_receive),
        [0x00, 0x04, 0x05, 0x09, 0x0b, 0x17]
    );
    assert_eq!(
        rc(OpcodeInfo::completes_receive),
        [0x02, 0x03, 0x04, 0x05, 0x09, 0x0b, 0x16, 0x17]
    );
    let at = |position| having(Service::Rc, move |info| info.position == position);
    assert_eq!(at(Position::First), [0x00, 0x06, 0x0d]);
    assert_eq!(at(Position::Middle), [0x01, 0x07, 0x0e]);
    assert_eq!(at(Position::Last), [0x02, 0x03, 0x08, 0x09, 0x0f, 0x16]);
    assert_eq!(rc(|info| info.operation.is_atomic()), [0x13, 0x14]);
}

#[test]
fn extension_headers_of_a_reliable_connection() {
    let with = |header| having(Service::Rc, move |info| info.extensions.contains(header));
    assert_eq!(
        with(ExtensionHeader::Reth),
        [0x06, 0x0a, 0x0b, 0x0c, 0x1c, 0x1d]
    );
    assert_eq!(with(ExtensionHeader::Aeth), [0x0d, 0x0f, 0x10, 0x11, 0x12]);
    assert_eq!(with(ExtensionHeader::AtomicEth), [0x13, 0x14]);
    assert_eq!(with(ExtensionHeader::AtomicAckEth), [0x12]);
    assert_eq!(with(ExtensionHeader::Feth), [0x1c]);
    for header in [
        ExtensionHeader::Deth,
        ExtensionHeader::Rdeth,
        ExtensionHeader::Xrceth,
    ] {
        assert_eq!(with(header), []);
    }
    for (opcode, len) in [
        (Opcode::RC_SEND_FIRST, 12),
        (Opcode::RC_SEND_LAST_IMMEDIATE, 16),
        (Opcode::RC_WRITE_ONLY, 28),
        (Opcode::RC_WRITE_ONLY_IMMEDIATE, 32),
        (Opcode::RC_READ_REQUEST, 28),
        (Opcode::RC_READ_RESPONSE_MIDDLE, 12),
        (Opcode::RC_ACKNOWLEDGE, 16),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, 24),
        (Opcode::RC_FETCH_ADD, 40),
        (Opcode::UD_SEND_ONLY, 20),
        (Opcode::UD_SEND_ONLY_IMMEDIATE, 24),
        (Opcode::CNP, 12),
    ] {
        assert_eq!(opcode.info().unwrap().header_len, len, "{opcode}");
    }
    let info = Opcode::UD_SEND_ONLY_IMMEDIATE.info().unwrap();
    assert_eq!(format!("{:?}", info.extensions), "[Deth, ImmDt]");
}

/// The service is in the top three bits, the rest means the same in each.
#[test]
fn services_agree() {
    for opcode in Opcode::ALL {
        let info = opcode.info().unwrap();
        assert_eq!(info.service as u8, opcode.get() >> 5);
        if info.service == Service::Cnp {
            assert!(!info.is_request() && !info.is_response());
            continue;
        }
        let same = Opcode::new(opcode.get() & 0x1f);
        let Some(rc) = same.info() else {
            assert_eq!(*opcode, Opcode::RD_RESYNC);
            continue;
        };
        assert_eq!(
            (info.operation, info.position, info.extra()),
            (rc.operation, rc.position, rc.extra()),
            "{opcode}"
        );
        let own: &[ExtensionHeader] = match (info.service, info.is_request()) {
            (Service::Rd, true) => &[ExtensionHeader::Rdeth, ExtensionHeader::Deth],
            (Service::Rd, false) => &[ExtensionHeader::Rdeth],
            (Service::Ud, _) => &[ExtensionHeader::Deth],
            (Service::Xrc, true) => &[ExtensionHeader::Xrceth],
            _ => &[],
        };
        let extensions = own.iter().copied().chain(rc.extensions.iter());
        assert!(info.extensions.iter().eq(extensions), "{opcode}");
        assert_eq!(
            info.name.strip_prefix(info.service.name()),
            rc.name.strip_prefix("RC")
        );
        assert_ne!(info.is_request(), info.is_response());
    }
}

#[test]
fn a_code_for_each_kind_of_packet() {
    for opcode in Opcode::ALL {
        let info = opcode.info().unwrap();
        let found = Opcode::find(info.service, info.operation, info.position, info.extra());
        assert_eq!(found, Some(*opcode));
    }
    let none = [
        (
            Service::Uc,
            Operation::ReadRequest,
            Position::Only,
            Extra::None,
        ),
        (
            Service::Uc,
            Operation::Send,
            Position::Only,
            Extra::Invalidate,
        ),
        (Service::Ud, Operation::Send, Position::First, Extra::None),
        (
            Service::Rc,
            Operation::Send,
            Position::First,
            Extra::Immediate,
        ),
        (
            Service::Rc,
            Operation::Write,
            Position::Last,
            Extra::Invalidate,
        ),
    ];
    for (service, operation, position, extra) in none {
        assert_eq!(Opcode::find(service, operation, position, extra), None);
    }
}

#[test]
fn positions() {
    for (starts, ends, position) in [
        (true, false, Position::First),
        (false, false, Position::Middle),
        (false, true, Position::Last),
        (true, true, Position::Only),
    ] {
        assert_eq!(Position::new(starts, ends), position);
        assert_eq!((position.starts(), position.ends()), (starts, ends));
    }
}

#[test]
fn reliable_services() {
    let reliable = Service::ALL
        .into_iter()
        .filter(|service| service.is_reliable());
    assert!(reliable.eq([Service::Rc, Service::Rd, Service::Xrc]));
}

#[test]
fn names() {
    for (code, name) in [
        (0x00, "RC SEND First"),
        (0x05, "RC SEND Only with Immediate"),
        (0x0b, "RC RDMA WRITE Only with Immediate"),
        (0x0e, "RC RDMA READ response Middle"),
        (0x16, "RC SEND Last with Invalidate"),
        (0x26, "UC RDMA WRITE First"),
        (0x55, "RD RESYNC"),
        (0x64, "UD SEND Only"),
        (0x81, "CNP"),
        (0xb3, "XRC CmpSwap"),
        (0x15, "opcode 0x15"),
    ] {
        let opcode = Opcode::new(code);
        assert_eq!(opcode.to_string(), name);
        assert_eq!(opcode.is_known(), code != 0x15);
    }
    assert_eq!(
        format!("{:?}", Opcode::RC_ACKNOWLEDGE),
        "Opcode(0x11: RC Acknowledge)"
    );
    let names: BTreeSet<_> = Opcode::ALL.iter().map(|opcode| opcode.name()).collect();
    assert_eq!(names.len(), Opcode::ALL.len());
}
