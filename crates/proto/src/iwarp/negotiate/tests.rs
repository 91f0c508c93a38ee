mod initiator;
mod responder;

use core::time::Duration;

use softverbs_wire::codec::{Malformed, Parsed};
use softverbs_wire::mpa::fpdu::Fpdu;
use softverbs_wire::mpa::negotiation::{Enhanced, MpaFrame, MpaKind};
use softverbs_wire::terminate::Terminate;

use super::*;
use crate::fault::{Fault, Misuse, PeerViolation};
use crate::mutation::Mutations;
use crate::time::Time;

fn at(millis: u64) -> Time {
    Time::new(Duration::from_millis(millis))
}

fn wishes() -> Wishes {
    Wishes {
        crc: false,
        markers: false,
        ird: 4,
        ord: 8,
        peer_to_peer: true,
        rfc7306: true,
        revision: 2,
        timeout: Duration::from_secs(10),
        mutations: Mutations::NONE,
    }
}

fn words(ird: u16, ord: u16) -> Enhanced {
    Enhanced {
        ird,
        ord,
        ..Enhanced::default()
    }
}

fn octets(frame: &MpaFrame<'_>) -> Vec<u8> {
    let mut octets = Vec::new();
    frame.append_to(&mut octets);
    octets
}

fn frame(octets: &[u8], kind: MpaKind) -> MpaFrame<'_> {
    match MpaFrame::parse(kind, octets).unwrap() {
        Parsed::Complete { value, len } => {
            assert_eq!(len, octets.len());
            value
        }
        Parsed::NeedMore(_) => panic!("incomplete"),
    }
}

/// The request that `wishes` make.
fn request(wishes: Wishes, private_data: &[u8]) -> Vec<u8> {
    Initiator::new(at(0), wishes, private_data)
        .transmit()
        .unwrap()
}

fn answered(wishes: Wishes, reply: &MpaFrame<'_>) -> InitiatorOutcome {
    let mut initiator = Initiator::new(at(0), wishes, b"");
    initiator.on_bytes(at(1), &octets(reply))
}

fn agreement(wishes: Wishes, reply: &MpaFrame<'_>) -> Negotiated {
    match answered(wishes, reply) {
        InitiatorOutcome::Established { negotiated, .. } => negotiated,
        other => panic!("{other:?}"),
    }
}

fn failure(wishes: Wishes, reply: &MpaFrame<'_>) -> (u8, u8, u8) {
    match answered(wishes, reply) {
        InitiatorOutcome::Failed { terminate, .. } => triple(&terminate),
        other => panic!("{other:?}"),
    }
}

/// What a Terminate FPDU says.
fn triple(octets: &[u8]) -> (u8, u8, u8) {
    let Ok(Parsed::Complete { value, len }) = Fpdu::parse(octets) else {
        panic!("no FPDU: {octets:02x?}");
    };
    assert_eq!(len, octets.len());
    value.check_crc().unwrap();
    assert_eq!(value.ulpdu[..2], [0x41, 0x47]);
    let body = &value.ulpdu[18..];
    let terminate = softverbs_wire::Reader::all(body, Terminate::parse).unwrap();
    let triple = terminate.code.to_triple();
    (triple.layer, triple.etype, triple.code)
}

/// A responder that has asked its application about `request`.
fn asked(request: &[u8]) -> (Responder, u16, u16, Vec<u8>) {
    let mut responder = Responder::new(at(0), Duration::from_secs(5));
    match responder.on_bytes(at(1), request) {
        ResponderOutcome::Request {
            peer_ord,
            peer_ird,
            private_data,
        } => (responder, peer_ord, peer_ird, private_data),
        other => panic!("{other:?}"),
    }
}

fn accepted(request: &[u8], wishes: &Wishes) -> (Vec<u8>, Negotiated) {
    asked(request).0.accept(wishes, b"").unwrap()
}

fn enhanced_request(enhanced: Enhanced) -> Vec<u8> {
    octets(&MpaFrame::new(MpaKind::Request, enhanced))
}

fn enhanced_reply(enhanced: Enhanced) -> MpaFrame<'static> {
    MpaFrame::new(MpaKind::Reply, enhanced)
}

// ---- both ----

#[test]
fn our_two_roles_agree_with_each_other() {
    let bools = [false, true];
    for peer_to_peer in bools {
        for rfc7306 in bools {
            for revision in [1, 2] {
                let active = Wishes {
                    peer_to_peer,
                    revision,
                    ..wishes()
                };
                let passive = Wishes {
                    ird: 9,
                    ord: 3,
                    rfc7306,
                    ..wishes()
                };
                let mut initiator = Initiator::new(at(0), active, b"hi");
                let (mut responder, ..) = asked(&initiator.transmit().unwrap());
                let (reply, theirs) = responder.accept(&passive, b"ho").unwrap();
                let InitiatorOutcome::Established {
                    negotiated: ours,
                    private_data,
                    consumed,
                } = initiator.on_bytes(at(1), &reply)
                else {
                    panic!();
                };
                assert_eq!(private_data, b"ho");
                assert_eq!(consumed, reply.len());
                assert_eq!(ours.rtr, theirs.rtr);
                assert_eq!(ours.rtr.is_some(), peer_to_peer && revision == 2);
                assert_eq!(ours.rfc7306, theirs.rfc7306);
                assert_eq!(ours.rfc7306, rfc7306 && revision == 2);
                if revision == 2 {
                    assert!(ours.ord <= theirs.ird && theirs.ord <= ours.ird);
                }
            }
        }
    }
}
