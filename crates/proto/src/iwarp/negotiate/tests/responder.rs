use super::*;

#[test]
fn any_split_of_the_request_and_what_is_behind_it() {
    let mut stream = request(wishes(), b"please");
    let request_len = stream.len();
    stream.extend_from_slice(b"early");
    for first in 0..=stream.len() {
        let mut responder = Responder::new(at(0), Duration::from_secs(5));
        let mut outcomes = vec![
            responder.on_bytes(at(1), &stream[..first]),
            responder.on_bytes(at(2), &stream[first..]),
        ];
        outcomes.retain(|outcome| !matches!(outcome, ResponderOutcome::Pending));
        assert_eq!(outcomes.len(), 1, "{first}");
        let ResponderOutcome::Request {
            peer_ord,
            peer_ird,
            private_data,
        } = &outcomes[0]
        else {
            panic!();
        };
        assert_eq!((*peer_ord, *peer_ird), (8, 4));
        assert_eq!(private_data, b"please");
        assert_eq!(responder.deadline(), None);
        responder.accept(&wishes(), b"").unwrap();
        assert_eq!(responder.early_bytes(), stream[request_len..]);
        assert_eq!(responder.early_bytes(), b"", "handed over once");
    }
}

#[test]
fn the_reply_picks_one_rtr_kind() {
    let pick = |rtr_send, rtr_write, rtr_read| {
        let request = enhanced_request(Enhanced {
            peer_to_peer: true,
            rtr_send,
            rtr_write,
            rtr_read,
            ..words(0, 0)
        });
        let (reply, agreed) = accepted(
            &request,
            &Wishes {
                ird: 0,
                ord: 0,
                ..wishes()
            },
        );
        let words = frame(&reply, MpaKind::Reply).enhanced.unwrap();
        assert!(words.peer_to_peer);
        assert_eq!(words.ird, agreed.ird);
        let bits = (words.rtr_send, words.rtr_write, words.rtr_read);
        let expected = match agreed.rtr.unwrap() {
            RtrKind::Send => (true, false, false),
            RtrKind::Write => (false, true, false),
            RtrKind::Read => (false, false, true),
        };
        assert_eq!(bits, expected);
        (agreed.rtr.unwrap(), agreed.ird)
    };
    assert_eq!(pick(false, false, true), (RtrKind::Read, 1));
    assert_eq!(pick(true, true, true), (RtrKind::Read, 1));
    assert_eq!(pick(true, true, false), (RtrKind::Write, 0));
    assert_eq!(pick(true, false, false), (RtrKind::Send, 0));
    assert_eq!(pick(false, false, false), (RtrKind::Read, 1));
    // A=0: the bits mean nothing.
    let request = enhanced_request(Enhanced {
        rtr_write: true,
        rtr_read: true,
        ..words(1, 1)
    });
    let (reply, agreed) = accepted(&request, &wishes());
    let words = frame(&reply, MpaKind::Reply).enhanced.unwrap();
    assert!(!words.peer_to_peer && !words.rtr_write && !words.rtr_read && !words.rtr_send);
    assert_eq!(agreed.rtr, None);
}

#[test]
fn the_reply_offers_what_the_request_wants_to_read() {
    let depths = |peer_ird, peer_ord, ird, ord| {
        let request = enhanced_request(words(peer_ird, peer_ord));
        let (reply, agreed) = accepted(
            &request,
            &Wishes {
                ird,
                ord,
                ..wishes()
            },
        );
        let words = frame(&reply, MpaKind::Reply).enhanced.unwrap();
        ((words.ird, words.ord), (agreed.ird, agreed.ord))
    };
    assert_eq!(depths(16, 16, 16, 16), ((16, 16), (16, 16)));
    assert_eq!(
        depths(2, 16, 4, 16),
        ((16, 2), (16, 2)),
        "IRD is raised, ORD lowered"
    );
    assert_eq!(depths(0, 0, 0, 0), ((0, 0), (0, 0)));
    assert_eq!(
        depths(1, 16_000, 4, 1),
        ((128, 1), (128, 1)),
        "but not without end"
    );
    let unknown = 0x3fff;
    assert_eq!(depths(unknown, 16, 4, 9), ((16, unknown), (16, 9)));
    assert_eq!(depths(4, unknown, 3, 9), ((unknown, 4), (3, 4)));
}

#[test]
fn unenhanced_peers_get_unenhanced_replies() {
    for revision in 0..=2 {
        let request = octets(&MpaFrame {
            kind: MpaKind::Request,
            markers: false,
            crc: false,
            rejected: false,
            reserved: 0,
            revision,
            enhanced: None,
            private_data: b"old",
        });
        let (mut responder, peer_ord, peer_ird, private_data) = asked(&request);
        assert_eq!((peer_ord, peer_ird), (DEPTH_UNKNOWN, DEPTH_UNKNOWN));
        assert_eq!(private_data, b"old");
        let no_reads = Wishes { ird: 0, ..wishes() };
        let (reply, agreed) = responder.accept(&no_reads, &[3; 255]).unwrap();
        let reply = frame(&reply, MpaKind::Reply);
        assert_eq!(
            (reply.revision, reply.enhanced, reply.reserved),
            (revision, None, 0)
        );
        assert_eq!(
            (agreed.ird, agreed.ord, agreed.rtr),
            (1, 8, None),
            "a Read may be its RTR"
        );
        assert!(!agreed.rfc7306);
        let (mut responder, ..) = asked(&request);
        let reject = responder.reject(b"no").unwrap();
        let reject = frame(&reject, MpaKind::Reply);
        assert!(reject.rejected);
        assert_eq!((reject.revision, reject.enhanced), (revision, None));
    }
}

#[test]
fn a_reject_has_the_words_that_siw_reads() {
    let (mut responder, ..) = asked(&request(wishes(), b""));
    let reply = responder.reject(b"never").unwrap();
    let reply = frame(&reply, MpaKind::Reply);
    assert!(reply.rejected && reply.enhanced.is_some());
    assert_eq!(reply.revision, 2);
    assert_eq!(reply.private_data, b"never");
}

#[test]
fn refused_requests() {
    let refused = |request: &[u8]| {
        let mut responder = Responder::new(at(0), Duration::from_secs(5));
        match responder.on_bytes(at(1), request) {
            ResponderOutcome::Refuse { reply, fault } => {
                assert!(matches!(
                    responder.on_bytes(at(1), b"x"),
                    ResponderOutcome::Pending
                ));
                assert!(responder.accept(&wishes(), b"").is_err());
                (reply, fault)
            }
            other => panic!("{other:?}"),
        }
    };
    let (reply, fault) = refused(b"GET / HTTP/1.1");
    assert!(reply.is_empty());
    assert_eq!(fault, Fault::Malformed(Malformed::MpaKey));
    let (reply, fault) = refused(b"MPA ID Req Frame\x10\x03\x00\x04\x00\x00\x00\x00");
    assert!(reply.is_empty());
    assert_eq!(fault, Fault::Peer(PeerViolation::MpaRevision(3)));
    let (reply, _) = refused(b"MPA ID Req Frame\x10\x02\x02\x01");
    assert!(reply.is_empty());
    let (reply, _) = refused(b"MPA ID Req Frame\x10\x02\x00\x02\x00\x00");
    let reply = frame(&reply, MpaKind::Reply);
    assert!(reply.rejected && reply.enhanced.is_some());
    // A reply is no request.
    let (_, fault) = refused(&octets(&enhanced_reply(words(1, 1))));
    assert_eq!(fault, Fault::Malformed(Malformed::MpaKey));
}

#[test]
fn a_flood_before_the_answer_is_not_kept() {
    let request = request(wishes(), b"");
    let flood = [&request[..], &[0; 70_000]].concat();
    let mut responder = Responder::new(at(0), Duration::from_secs(5));
    let outcome = responder.on_bytes(at(1), &flood);
    assert!(matches!(
        outcome,
        ResponderOutcome::Refuse {
            fault: Fault::Peer(PeerViolation::EarlyData),
            ..
        }
    ));
    let (mut responder, ..) = asked(&request);
    let outcome = responder.on_bytes(at(1), &[0; 40_000]);
    assert!(matches!(outcome, ResponderOutcome::Pending));
    let outcome = responder.on_bytes(at(1), &[0; 40_000]);
    assert!(matches!(outcome, ResponderOutcome::Refuse { .. }));
}

#[test]
fn misuse_of_the_responder() {
    let mut responder = Responder::new(at(0), Duration::from_secs(5));
    assert_eq!(responder.accept(&wishes(), b"").unwrap_err(), Misuse::State);
    assert_eq!(responder.reject(b"").unwrap_err(), Misuse::State);
    let (mut responder, ..) = asked(&request(wishes(), b""));
    let error = responder.accept(&wishes(), &[0; 252]).unwrap_err();
    assert_eq!(error, Misuse::PrivateDataTooLong);
    // It can be done better.
    responder.accept(&wishes(), &[0; 251]).unwrap();
    assert_eq!(responder.accept(&wishes(), b"").unwrap_err(), Misuse::State);
    assert_eq!(responder.reject(b"").unwrap_err(), Misuse::State);
}

#[test]
fn a_peer_that_hangs_up_before_the_answer() {
    let mut responder = Responder::new(at(0), Duration::from_secs(5));
    responder.on_bytes(at(0), b"MPA ID");
    assert!(matches!(responder.on_eof(), ResponderOutcome::Closed));
    let (mut responder, ..) = asked(&request(wishes(), b""));
    assert!(matches!(responder.on_eof(), ResponderOutcome::Closed));
    assert_eq!(responder.accept(&wishes(), b"").unwrap_err(), Misuse::State);
    let (mut responder, ..) = asked(&request(wishes(), b""));
    responder.accept(&wishes(), b"").unwrap();
    assert!(
        matches!(responder.on_eof(), ResponderOutcome::Pending),
        "the stream's business now"
    );
}
