//! The passive side: judges the request, composes the reply.

use core::time::Duration;

use softverbs_wire::codec::{Malformed, Parsed};
use softverbs_wire::mpa::negotiation::{Enhanced, IRD_ORD_NOT_NEGOTIATED, MpaFrame, MpaKind};

use super::{
    AGREES_RFC7306, DEPTH_UNKNOWN, Negotiated, OFFERS_RFC7306, RELAXED_IRD, RtrKind, Wishes,
    max_private_data, sendable,
};
use crate::fault::{Fault, Misuse, PeerViolation};
use crate::time::Time;

/// Most octets that are kept for the stream while the application makes up its mind. A peer has
/// no business to send any: it does not know yet whether it is accepted.
const MAX_EARLY: usize = 64 * 1024;

/// The passive side.
#[derive(Clone, Debug, Hash)]
pub struct Responder {
    state: State,
    deadline: Time,
}

#[derive(Clone, Debug, Hash)]
enum State {
    /// The request is incomplete.
    Receiving(Vec<u8>),
    /// The application has it.
    Asked { request: Request, early: Vec<u8> },
    /// A reply was composed.
    Answered { early: Vec<u8> },
    /// Refused by ourselves, or given up by the peer.
    Over,
}

/// What the reply depends on.
#[derive(Clone, Copy, Debug, Hash)]
struct Request {
    markers: bool,
    crc: bool,
    offers_rfc7306: bool,
    revision: u8,
    enhanced: Option<Enhanced>,
}

/// What the responder learned.
#[derive(Debug)]
pub enum ResponderOutcome {
    /// Feed more bytes.
    Pending,
    /// A request for the application, which answers with `accept` or `reject`.
    Request {
        /// Reads that the peer wants to issue: what our `responder_resources` may be.
        /// [`DEPTH_UNKNOWN`] from a peer that did not say.
        peer_ord: u16,
        /// Reads that the peer serves: what our `initiator_depth` may be. [`DEPTH_UNKNOWN`]
        /// from a peer that did not say.
        peer_ird: u16,
        /// The application's private data of the request.
        private_data: Vec<u8>,
    },
    /// Send `reply` (may be empty) and close: the request was not acceptable.
    Refuse {
        /// Octets to send before closing.
        reply: Vec<u8>,
        /// Whose fault.
        fault: Fault,
    },
    /// The peer closed or stayed silent: close.
    Closed,
}

impl Responder {
    /// A TCP connection was accepted at `now`.
    pub fn new(now: Time, timeout: Duration) -> Self {
        Self {
            state: State::Receiving(Vec::new()),
            deadline: now + timeout,
        }
    }

    /// Octets from the peer. Octets behind the request are kept for the stream (see
    /// [`Responder::early_bytes`]).
    pub fn on_bytes(&mut self, now: Time, bytes: &[u8]) -> ResponderOutcome {
        let _ = now;
        match &mut self.state {
            State::Receiving(received) => {
                received.extend_from_slice(bytes);
                let received = core::mem::take(received);
                self.parse(received)
            }
            State::Asked { early, .. } | State::Answered { early } => {
                if early.len() + bytes.len() > MAX_EARLY {
                    return self.refuse(PeerViolation::EarlyData.into(), Vec::new());
                }
                early.extend_from_slice(bytes);
                ResponderOutcome::Pending
            }
            State::Over => ResponderOutcome::Pending,
        }
    }

    fn parse(&mut self, received: Vec<u8>) -> ResponderOutcome {
        let (frame, len) = match MpaFrame::parse(MpaKind::Request, &received) {
            Ok(Parsed::Complete { value, len }) => (value, len),
            Ok(Parsed::NeedMore(_)) => {
                self.state = State::Receiving(received);
                return ResponderOutcome::Pending;
            }
            Err(malformed) => {
                // Whoever sends half of the enhanced words understands a reject with them.
                let reply = match malformed {
                    Malformed::MpaEnhancedTooShort => reject_frame(2, Some(false), &[]),
                    _ => Vec::new(),
                };
                return self.refuse(malformed.into(), reply);
            }
        };
        if frame.revision > 2 {
            return self.refuse(
                PeerViolation::MpaRevision(frame.revision).into(),
                Vec::new(),
            );
        }
        if received.len() - len > MAX_EARLY {
            return self.refuse(PeerViolation::EarlyData.into(), Vec::new());
        }
        let request = Request {
            markers: frame.markers,
            crc: frame.crc,
            offers_rfc7306: frame.enhanced.is_some() && frame.reserved & OFFERS_RFC7306 != 0,
            revision: frame.revision,
            enhanced: frame.enhanced,
        };
        let outcome = ResponderOutcome::Request {
            peer_ord: frame.enhanced.map_or(DEPTH_UNKNOWN, |words| words.ord),
            peer_ird: frame.enhanced.map_or(DEPTH_UNKNOWN, |words| words.ird),
            private_data: frame.private_data.to_vec(),
        };
        self.state = State::Asked {
            request,
            early: received[len..].to_vec(),
        };
        outcome
    }

    fn refuse(&mut self, fault: Fault, reply: Vec<u8>) -> ResponderOutcome {
        self.state = State::Over;
        ResponderOutcome::Refuse { reply, fault }
    }

    /// The peer closed.
    pub fn on_eof(&mut self) -> ResponderOutcome {
        match core::mem::replace(&mut self.state, State::Over) {
            State::Receiving(_) | State::Asked { .. } => ResponderOutcome::Closed,
            // The stream that follows the reply learns of it.
            answered @ State::Answered { .. } => {
                self.state = answered;
                ResponderOutcome::Pending
            }
            State::Over => ResponderOutcome::Pending,
        }
    }

    /// Call when `deadline` has passed.
    pub fn on_timeout(&mut self, now: Time) -> ResponderOutcome {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return ResponderOutcome::Pending;
        }
        self.state = State::Over;
        ResponderOutcome::Closed
    }

    /// When to call `on_timeout`; `None` once the request is complete.
    pub fn deadline(&self) -> Option<Time> {
        matches!(self.state, State::Receiving(_)).then_some(self.deadline)
    }

    /// The application accepts: the reply to send and the agreement.
    ///
    /// Never send an FPDU in the same segment: siw and cxgb4 initiators take octets behind the
    /// reply as an error. The stream's send gate sees to it.
    pub fn accept(
        &mut self,
        wishes: &Wishes,
        private_data: &[u8],
    ) -> Result<(Vec<u8>, Negotiated), Misuse> {
        let request = self.answer(private_data)?;
        let mut negotiated = Negotiated {
            // RFC 5044 §7.1.1: in both directions if either side wants it.
            crc: wishes.crc || request.crc,
            markers_out: request.markers,
            markers_in: wishes.markers,
            // Without depths in the request nothing keeps the peer from a Read as RTR: cxgb4
            // sends one even after falling back to revision 1.
            ird: wishes.ird.max(1),
            ord: wishes.ord,
            rtr: None,
            rfc7306: wishes.rfc7306 && request.offers_rfc7306,
        };
        let enhanced = request
            .enhanced
            .map(|offer| answer_words(offer, &mut negotiated, wishes));
        let mut reply = Vec::new();
        MpaFrame {
            kind: MpaKind::Reply,
            markers: wishes.markers,
            crc: negotiated.crc,
            rejected: false,
            reserved: if negotiated.rfc7306 {
                AGREES_RFC7306
            } else {
                0
            },
            revision: request.revision,
            enhanced,
            private_data,
        }
        .append_to(&mut reply);
        Ok((reply, negotiated))
    }

    /// The application refuses: the reply to send before closing.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<Vec<u8>, Misuse> {
        let request = self.answer(private_data)?;
        let peer_to_peer = request.enhanced.map(|words| words.peer_to_peer);
        Ok(reject_frame(request.revision, peer_to_peer, private_data))
    }

    /// Octets that arrived behind the request.
    pub fn early_bytes(&mut self) -> Vec<u8> {
        match &mut self.state {
            State::Asked { early, .. } | State::Answered { early } => core::mem::take(early),
            State::Receiving(_) | State::Over => Vec::new(),
        }
    }

    /// Moves on to `Answered`, if there is a request and the reply can carry `private_data`.
    fn answer(&mut self, private_data: &[u8]) -> Result<Request, Misuse> {
        let State::Asked { request, early } = &mut self.state else {
            return Err(Misuse::State);
        };
        let request = *request;
        let revision = if request.enhanced.is_some() { 2 } else { 1 };
        if private_data.len() > max_private_data(revision) {
            return Err(Misuse::PrivateDataTooLong);
        }
        self.state = State::Answered {
            early: core::mem::take(early),
        };
        Ok(request)
    }
}

/// The reply's enhanced words (RFC 6581 §9); completes the agreement.
fn answer_words(offer: Enhanced, negotiated: &mut Negotiated, wishes: &Wishes) -> Enhanced {
    if offer.peer_to_peer {
        // One kind, since initiators disagree on which of several they send; Read if it is
        // offered, since cxgb4 can do nothing else; Read too if nothing is.
        negotiated.rtr = Some(if offer.rtr_read {
            RtrKind::Read
        } else if offer.rtr_write {
            RtrKind::Write
        } else if offer.rtr_send {
            RtrKind::Send
        } else {
            RtrKind::Read
        });
    }
    let rtr = negotiated.rtr;
    let at_least = u16::from(rtr == Some(RtrKind::Read));
    // The value that means "not negotiated" is the answer to itself and to nothing else: siw
    // takes it as a number.
    let ird = if offer.ord == IRD_ORD_NOT_NEGOTIATED {
        negotiated.ird = wishes.ird.max(at_least);
        IRD_ORD_NOT_NEGOTIATED
    } else {
        negotiated.ird = sendable(wishes.ird.max(offer.ord.min(RELAXED_IRD)).max(at_least));
        negotiated.ird
    };
    let ord = if offer.ird == IRD_ORD_NOT_NEGOTIATED {
        negotiated.ord = wishes.ord;
        IRD_ORD_NOT_NEGOTIATED
    } else {
        negotiated.ord = wishes.ord.min(offer.ird);
        negotiated.ord
    };
    Enhanced {
        ird,
        ord,
        peer_to_peer: offer.peer_to_peer,
        rtr_send: rtr == Some(RtrKind::Send),
        rtr_write: rtr == Some(RtrKind::Write),
        rtr_read: rtr == Some(RtrKind::Read),
    }
}

/// A reply with R=1. siw reads the enhanced words of a reject too, and crashes without them, so
/// they are there for every enhanced peer; `peer_to_peer` is that peer's A.
fn reject_frame(revision: u8, peer_to_peer: Option<bool>, private_data: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    MpaFrame {
        kind: MpaKind::Reply,
        markers: false,
        crc: false,
        rejected: true,
        reserved: 0,
        revision,
        enhanced: peer_to_peer.map(|peer_to_peer| Enhanced {
            peer_to_peer,
            ..Enhanced::default()
        }),
        private_data,
    }
    .append_to(&mut reply);
    reply
}
