use super::*;

// ---- the request ----

#[test]
fn the_request_of_our_own_wishes() {
    let octets = request(wishes(), b"hello");
    let request = frame(&octets, MpaKind::Request);
    assert_eq!(
        (request.revision, request.markers, request.crc),
        (2, false, false)
    );
    assert_eq!(request.reserved, 0x04);
    assert_eq!(request.private_data, b"hello");
    let enhanced = request.enhanced.unwrap();
    assert_eq!((enhanced.ird, enhanced.ord), (4, 8));
    assert!(enhanced.peer_to_peer && enhanced.rtr_write && enhanced.rtr_read);
    assert!(!enhanced.rtr_send);
}

#[test]
fn the_request_goes_out_once() {
    let mut initiator = Initiator::new(at(0), wishes(), b"");
    assert!(initiator.transmit().is_some());
    assert!(initiator.transmit().is_none());
}

#[test]
fn like_stock_siw_without_extras() {
    let plain = Wishes {
        peer_to_peer: false,
        rfc7306: false,
        ird: 1,
        ord: 1,
        ..wishes()
    };
    let expected = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x01\x00\x01";
    assert_eq!(request(plain, b""), expected);
}

#[test]
fn a_read_as_rtr_needs_an_ord() {
    let octets = request(Wishes { ord: 0, ..wishes() }, b"");
    assert_eq!(frame(&octets, MpaKind::Request).enhanced.unwrap().ord, 1);
    let octets = request(
        Wishes {
            ord: 0,
            peer_to_peer: false,
            ..wishes()
        },
        b"",
    );
    assert_eq!(frame(&octets, MpaKind::Request).enhanced.unwrap().ord, 0);
}

#[test]
fn depths_never_say_not_negotiated_by_accident() {
    let octets = request(
        Wishes {
            ord: u16::MAX,
            ird: 0x3fff,
            ..wishes()
        },
        b"",
    );
    let enhanced = frame(&octets, MpaKind::Request).enhanced.unwrap();
    assert_eq!((enhanced.ird, enhanced.ord), (0x3ffe, 0x3ffe));
    let request = enhanced_request(words(16, 16));
    let (reply, agreed) = accepted(
        &request,
        &Wishes {
            ird: u16::MAX,
            ..wishes()
        },
    );
    assert_eq!(frame(&reply, MpaKind::Reply).enhanced.unwrap().ird, 0x3ffe);
    assert_eq!(agreed.ird, 0x3ffe);
}

#[test]
fn revision_1_has_no_words() {
    let octets = request(
        Wishes {
            revision: 1,
            crc: true,
            ..wishes()
        },
        &[7; 255],
    );
    let request = frame(&octets, MpaKind::Request);
    assert_eq!(
        (request.revision, request.enhanced, request.reserved),
        (1, None, 0)
    );
    assert!(request.crc);
    assert_eq!(request.private_data, [7; 255]);
}

#[test]
fn private_data_fits_what_linux_takes() {
    assert_eq!(max_private_data(2), 251);
    assert_eq!(max_private_data(1), 255);
    let octets = request(wishes(), &[1; 251]);
    assert_eq!(octets[18..20], [0, 255]);
}

#[test]
#[should_panic(expected = "252 octets of private data")]
fn too_much_private_data_is_the_callers_fault() {
    request(wishes(), &[1; 252]);
}

// ---- the reply ----

#[test]
fn any_split_of_the_reply_and_what_is_behind_it() {
    let mut reply = enhanced_reply(words(4, 4));
    reply.private_data = b"welcome";
    let mut stream = octets(&reply);
    let reply_len = stream.len();
    stream.extend_from_slice(&[0xee; 600]);
    for first in 0..=reply_len + 5 {
        let mut initiator = Initiator::new(at(0), wishes(), b"");
        let outcome = initiator.on_bytes(at(1), &stream[..first]);
        let (outcome, fed) = match outcome {
            InitiatorOutcome::Pending => {
                assert!(first < reply_len);
                (initiator.on_bytes(at(2), &stream[first..]), first)
            }
            other => (other, 0),
        };
        let InitiatorOutcome::Established {
            private_data,
            consumed,
            ..
        } = outcome
        else {
            panic!("{outcome:?}");
        };
        assert_eq!(private_data, b"welcome");
        assert_eq!(fed + consumed, reply_len);
    }
}

#[test]
fn one_octet_at_a_time() {
    let reply = octets(&enhanced_reply(words(4, 4)));
    let mut initiator = Initiator::new(at(0), wishes(), b"");
    let (last, before) = reply.split_last().unwrap();
    for octet in before {
        assert!(matches!(
            initiator.on_bytes(at(1), &[*octet]),
            InitiatorOutcome::Pending
        ));
    }
    let outcome = initiator.on_bytes(at(1), &[*last]);
    assert!(matches!(
        outcome,
        InitiatorOutcome::Established { consumed: 1, .. }
    ));
}

#[test]
fn depths_are_the_lower_of_both_ends() {
    let agreed = agreement(wishes(), &enhanced_reply(words(3, 2)));
    assert_eq!((agreed.ird, agreed.ord), (4, 3));
    let agreed = agreement(wishes(), &enhanced_reply(words(100, 4)));
    assert_eq!((agreed.ird, agreed.ord), (4, 8));
    // The peer wants more than offered: as long as it is little, it gets it.
    let agreed = agreement(wishes(), &enhanced_reply(words(100, 128)));
    assert_eq!((agreed.ird, agreed.ord), (128, 8));
    assert_eq!(
        failure(wishes(), &enhanced_reply(words(100, 129))),
        (2, 0, 6)
    );
    // Not negotiated: as the application wished.
    let agreed = agreement(wishes(), &enhanced_reply(words(0x3fff, 0x3fff)));
    assert_eq!((agreed.ird, agreed.ord), (4, 8));
}

#[test]
fn rtr_is_what_the_reply_picked() {
    let reply = |rtr_send, rtr_write, rtr_read| {
        enhanced_reply(Enhanced {
            peer_to_peer: true,
            rtr_send,
            rtr_write,
            rtr_read,
            ..words(4, 4)
        })
    };
    let rtr = |reply| agreement(wishes(), &reply).rtr;
    assert_eq!(rtr(reply(false, false, true)), Some(RtrKind::Read));
    assert_eq!(rtr(reply(false, true, false)), Some(RtrKind::Write));
    assert_eq!(rtr(reply(true, true, true)), Some(RtrKind::Write));
    assert_eq!(rtr(reply(true, false, true)), Some(RtrKind::Read));
    assert_eq!(failure(wishes(), &reply(true, false, false)), (2, 0, 7));
    assert_eq!(failure(wishes(), &reply(false, false, false)), (2, 0, 7));
    // A=0 in the reply, or not asked for: no RTR.
    assert_eq!(rtr(enhanced_reply(words(4, 4))), None);
    let plain = Wishes {
        peer_to_peer: false,
        ..wishes()
    };
    assert_eq!(agreement(plain, &reply(false, true, true)).rtr, None);
}

#[test]
fn a_read_as_rtr_needs_a_place_at_the_peer() {
    let reply = enhanced_reply(Enhanced {
        peer_to_peer: true,
        rtr_read: true,
        ..words(0, 0)
    });
    assert_eq!(failure(wishes(), &reply), (2, 0, 6));
    let reply = enhanced_reply(Enhanced {
        peer_to_peer: true,
        rtr_write: true,
        ..words(0, 0)
    });
    assert_eq!(agreement(wishes(), &reply).ord, 0);
}

#[test]
fn crc_if_either_asks() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut reply = enhanced_reply(words(4, 4));
        reply.crc = theirs;
        let agreed = agreement(
            Wishes {
                crc: ours,
                ..wishes()
            },
            &reply,
        );
        assert_eq!(agreed.crc, ours || theirs);
        let mut request = MpaFrame::new(MpaKind::Request, words(4, 4));
        request.crc = theirs;
        let (reply, agreed) = accepted(
            &octets(&request),
            &Wishes {
                crc: ours,
                ..wishes()
            },
        );
        assert_eq!(agreed.crc, ours || theirs);
        assert_eq!(frame(&reply, MpaKind::Reply).crc, ours || theirs);
    }
}

#[test]
fn markers_go_where_they_were_asked_for() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut reply = enhanced_reply(words(4, 4));
        reply.markers = theirs;
        let wishes = Wishes {
            markers: ours,
            ..wishes()
        };
        assert_eq!(
            frame(&request(wishes.clone(), b""), MpaKind::Request).markers,
            ours
        );
        let agreed = agreement(wishes.clone(), &reply);
        assert_eq!((agreed.markers_out, agreed.markers_in), (theirs, ours));
        let mut request = MpaFrame::new(MpaKind::Request, words(4, 4));
        request.markers = theirs;
        let (reply, agreed) = accepted(&octets(&request), &wishes);
        assert_eq!((agreed.markers_out, agreed.markers_in), (theirs, ours));
        assert_eq!(frame(&reply, MpaKind::Reply).markers, ours);
    }
}

#[test]
fn rfc7306_needs_the_other_bit_back() {
    let offered = |reserved: u8, wishes: Wishes| {
        let mut reply = enhanced_reply(words(4, 4));
        reply.reserved = reserved;
        agreement(wishes, &reply).rfc7306
    };
    assert!(offered(0x02, wishes()));
    assert!(!offered(0, wishes()));
    assert!(!offered(0x04, wishes()), "siw echoes");
    assert!(!offered(0x06, wishes()), "an echo of everything");
    assert!(!offered(
        0x02,
        Wishes {
            rfc7306: false,
            ..wishes()
        }
    ));
    let asked = |reserved: u8, wishes: &Wishes| {
        let mut request = MpaFrame::new(MpaKind::Request, words(4, 4));
        request.reserved = reserved;
        let (reply, agreed) = accepted(&octets(&request), wishes);
        (agreed.rfc7306, frame(&reply, MpaKind::Reply).reserved)
    };
    assert_eq!(asked(0x04, &wishes()), (true, 0x02));
    assert_eq!(
        asked(0x0c, &wishes()),
        (true, 0x02),
        "GSO_EXP of siw beside it"
    );
    assert_eq!(asked(0x02, &wishes()), (false, 0));
    assert_eq!(
        asked(
            0x04,
            &Wishes {
                rfc7306: false,
                ..wishes()
            }
        ),
        (false, 0)
    );
}

#[test]
fn a_reject_is_the_peers_answer() {
    let mut reply = enhanced_reply(words(0, 0));
    reply.rejected = true;
    reply.private_data = b"no";
    let InitiatorOutcome::Rejected { private_data } = answered(wishes(), &reply) else {
        panic!();
    };
    assert_eq!(private_data, b"no");
    // An unenhanced stack rejects without words.
    reply.enhanced = None;
    reply.revision = 1;
    assert!(matches!(
        answered(wishes(), &reply),
        InitiatorOutcome::Rejected { .. }
    ));
}

#[test]
fn a_hang_up_on_an_enhanced_request_means_revision_1() {
    for reset in [false, true] {
        let mut initiator = Initiator::new(at(0), wishes(), b"");
        assert!(matches!(
            initiator.on_eof(reset),
            InitiatorOutcome::RetryWithRevision1
        ));
        assert!(
            matches!(initiator.on_eof(reset), InitiatorOutcome::Pending),
            "said once"
        );
        let mut initiator = Initiator::new(
            at(0),
            Wishes {
                revision: 1,
                ..wishes()
            },
            b"",
        );
        assert!(matches!(initiator.on_eof(reset), InitiatorOutcome::Closed));
        let mut initiator = Initiator::new(at(0), wishes(), b"");
        initiator.on_bytes(at(1), b"MPA");
        assert!(
            matches!(initiator.on_eof(reset), InitiatorOutcome::Closed),
            "it had begun"
        );
    }
}

#[test]
fn a_reply_without_words_means_revision_1() {
    let mut reply = enhanced_reply(words(4, 4));
    reply.enhanced = None;
    for revision in 0..=2 {
        reply.revision = revision;
        assert!(matches!(
            answered(wishes(), &reply),
            InitiatorOutcome::RetryWithRevision1
        ));
        let first = Wishes {
            revision: 1,
            ..wishes()
        };
        let agreed = agreement(first, &reply);
        assert_eq!(
            (agreed.ird, agreed.ord, agreed.rtr, agreed.rfc7306),
            (4, 8, None, false)
        );
    }
}

#[test]
fn broken_replies() {
    let mut initiator = Initiator::new(at(0), wishes(), b"");
    let outcome = initiator.on_bytes(at(1), b"HTTP/1.1 400 Bad Request\r\n");
    let InitiatorOutcome::Failed { terminate, fault } = outcome else {
        panic!()
    };
    assert_eq!(fault, Fault::Malformed(Malformed::MpaKey));
    assert_eq!(triple(&terminate), (2, 0, 4));
    assert!(matches!(
        initiator.on_bytes(at(2), b"more"),
        InitiatorOutcome::Pending
    ));
    assert!(matches!(initiator.on_eof(false), InitiatorOutcome::Pending));
    assert!(matches!(
        initiator.on_timeout(at(99_999)),
        InitiatorOutcome::Pending
    ));

    let mut reply = enhanced_reply(words(4, 4));
    reply.revision = 3;
    assert_eq!(failure(wishes(), &reply), (2, 0, 4));
    let first = Wishes {
        revision: 1,
        ..wishes()
    };
    assert_eq!(failure(first, &enhanced_reply(words(4, 4))), (2, 0, 4));

    let too_long = [&b"MPA ID Rep Frame\x10\x02\x02\x01"[..], &[0; 600]].concat();
    let mut initiator = Initiator::new(at(0), wishes(), b"");
    assert!(matches!(
        initiator.on_bytes(at(1), &too_long),
        InitiatorOutcome::Failed { .. }
    ));
    let too_short = b"MPA ID Rep Frame\x10\x02\x00\x03\x00\x00\x00";
    let mut initiator = Initiator::new(at(0), wishes(), b"");
    let InitiatorOutcome::Failed { terminate, .. } = initiator.on_bytes(at(1), too_short) else {
        panic!();
    };
    assert_eq!(triple(&terminate), (2, 0, 4));
}

#[test]
fn a_terminate_has_the_markers_that_the_reply_asks_for() {
    let mut reply = enhanced_reply(words(100, 129));
    reply.markers = true;
    let InitiatorOutcome::Failed { terminate, .. } = answered(wishes(), &reply) else {
        panic!()
    };
    assert_eq!(terminate[..4], [0; 4]);
    let mut plain = Vec::new();
    let parsed = softverbs_wire::mpa::marker::strip(0, &terminate, &mut plain).unwrap();
    let (stripped, len) = parsed.complete().unwrap();
    assert_eq!(len, terminate.len());
    stripped.check_crc().unwrap();
    let code = [plain[20], plain[21]];
    assert_eq!(code, [0x20, 0x06]);
}

#[test]
fn the_longest_reply_is_taken() {
    let data = [5; 508];
    let mut reply = enhanced_reply(words(4, 4));
    reply.private_data = &data;
    let InitiatorOutcome::Established { private_data, .. } = answered(wishes(), &reply) else {
        panic!();
    };
    assert_eq!(private_data, data);
}

#[test]
fn a_silent_peer_times_out() {
    let mut initiator = Initiator::new(at(5), wishes(), b"");
    assert_eq!(initiator.deadline(), at(10_005));
    assert!(matches!(
        initiator.on_timeout(at(10_004)),
        InitiatorOutcome::Pending
    ));
    assert!(matches!(
        initiator.on_timeout(at(10_005)),
        InitiatorOutcome::TimedOut
    ));
    assert!(
        matches!(initiator.on_timeout(at(10_006)), InitiatorOutcome::Pending),
        "said once"
    );

    let mut responder = Responder::new(at(5), Duration::from_secs(5));
    assert_eq!(responder.deadline(), Some(at(5005)));
    assert!(matches!(
        responder.on_timeout(at(5004)),
        ResponderOutcome::Pending
    ));
    assert!(matches!(
        responder.on_timeout(at(5005)),
        ResponderOutcome::Closed
    ));
    assert!(matches!(
        responder.on_timeout(at(5006)),
        ResponderOutcome::Pending
    ));
    assert_eq!(responder.deadline(), None);
}
