//! The active side: sends the request, judges the reply.

use softverbs_wire::codec::{Malformed, Parsed};
use softverbs_wire::mpa::negotiation::{Enhanced, IRD_ORD_NOT_NEGOTIATED, MpaFrame, MpaKind};

use super::{
    AGREES_RFC7306, Negotiated, OFFERS_RFC7306, RELAXED_IRD, RtrKind, Wishes, max_private_data,
    sendable,
};
use crate::fault::{Fault, PeerViolation};
use crate::iwarp::terminate::terminate_fpdu;
use crate::mutation::Mutation;
use crate::time::Time;

/// The active side.
#[derive(Clone, Debug, Hash)]
pub struct Initiator {
    wishes: Wishes,
    /// What our request offered, if it was an enhanced one.
    offer: Option<Enhanced>,
    request: Option<Vec<u8>>,
    reply: Vec<u8>,
    deadline: Time,
    finished: bool,
}

/// What the initiator learned.
#[derive(Debug)]
pub enum InitiatorOutcome {
    /// Feed more bytes.
    Pending,
    /// FPDUs follow. `consumed` octets of the last `on_bytes` belonged to the reply; what is
    /// behind them is the start of the FPDU stream.
    Established {
        /// The agreement.
        negotiated: Negotiated,
        /// The application's private data of the reply.
        private_data: Vec<u8>,
        /// Octets of the last input that belonged to the reply.
        consumed: usize,
    },
    /// R=1: the peer's application or stack refused.
    Rejected {
        /// The application's private data of the reply.
        private_data: Vec<u8>,
    },
    /// The peer closed the connection on an enhanced request: connect again with revision 1.
    RetryWithRevision1,
    /// The peer closed the connection without a reply (errno ECONNRESET).
    Closed,
    /// No reply in time (errno ETIMEDOUT).
    TimedOut,
    /// The reply broke the protocol; `terminate` is a Terminate FPDU to be sent before closing,
    /// empty if there is none to send.
    Failed {
        /// Octets to send before closing.
        terminate: Vec<u8>,
        /// Whose fault.
        fault: Fault,
    },
}

impl Initiator {
    /// A connection attempt; the request is the first thing to transmit.
    ///
    /// # Panics
    /// If there is more private data than [`max_private_data`] of the revision in `wishes`.
    pub fn new(now: Time, wishes: Wishes, private_data: &[u8]) -> Self {
        assert!(
            private_data.len() <= max_private_data(wishes.revision),
            "{} octets of private data",
            private_data.len()
        );
        let enhanced = wishes.revision >= 2;
        let offer = enhanced.then(|| Enhanced {
            ird: sendable(wishes.ird),
            // A Read as RTR needs a place among our outstanding reads.
            ord: sendable(wishes.ord.max(u16::from(wishes.peer_to_peer))),
            peer_to_peer: wishes.peer_to_peer,
            rtr_send: false,
            rtr_write: wishes.peer_to_peer,
            rtr_read: wishes.peer_to_peer,
        });
        let frame = MpaFrame {
            kind: MpaKind::Request,
            markers: wishes.markers,
            crc: wishes.crc,
            rejected: false,
            reserved: if enhanced && wishes.rfc7306 {
                OFFERS_RFC7306
            } else {
                0
            },
            revision: wishes.revision.clamp(1, 2),
            enhanced: offer,
            private_data,
        };
        let mut request = Vec::new();
        frame.append_to(&mut request);
        Self {
            deadline: now + wishes.timeout,
            wishes,
            offer,
            request: Some(request),
            reply: Vec::new(),
            finished: false,
        }
    }

    /// The request, once.
    pub fn transmit(&mut self) -> Option<Vec<u8>> {
        self.request.take()
    }

    /// Octets from the peer.
    pub fn on_bytes(&mut self, now: Time, bytes: &[u8]) -> InitiatorOutcome {
        let _ = now;
        if self.finished {
            return InitiatorOutcome::Pending;
        }
        let before = self.reply.len();
        // No more than a reply can have: what follows may be a flood of FPDUs.
        let room = MpaFrame::MAX_LEN - before;
        self.reply
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        let reply = core::mem::take(&mut self.reply);
        let outcome = match MpaFrame::parse(MpaKind::Reply, &reply) {
            Ok(Parsed::NeedMore(_)) => InitiatorOutcome::Pending,
            Ok(Parsed::Complete { value, len }) => {
                let consumed = if self.wishes.mutations.has(Mutation::LosesBehindReply) {
                    bytes.len()
                } else {
                    // `len` exceeds `before`, or the reply would have been complete before.
                    len.saturating_sub(before)
                };
                self.judge(&value, consumed)
            }
            Err(malformed) => failed(malformed.into(), false),
        };
        match outcome {
            InitiatorOutcome::Pending => self.reply = reply,
            _ => self.finished = true,
        }
        outcome
    }

    /// The peer closed (`reset`: by RST).
    pub fn on_eof(&mut self, reset: bool) -> InitiatorOutcome {
        let _ = reset;
        if core::mem::replace(&mut self.finished, true) {
            return InitiatorOutcome::Pending;
        }
        // RFC 6581 §9: a responder that knows revision 1 only hangs up on an enhanced request.
        // Whether by FIN or RST depends on what it had read.
        if self.offer.is_some() && self.reply.is_empty() {
            InitiatorOutcome::RetryWithRevision1
        } else {
            InitiatorOutcome::Closed
        }
    }

    /// Call when `deadline` has passed.
    pub fn on_timeout(&mut self, now: Time) -> InitiatorOutcome {
        if self.finished || now < self.deadline {
            return InitiatorOutcome::Pending;
        }
        self.finished = true;
        InitiatorOutcome::TimedOut
    }

    /// When to call `on_timeout`.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    fn judge(&self, reply: &MpaFrame<'_>, consumed: usize) -> InitiatorOutcome {
        let private_data = reply.private_data.to_vec();
        if reply.revision > 2 {
            let violation = PeerViolation::MpaRevision(reply.revision);
            return failed(violation.into(), reply.markers);
        }
        if reply.rejected {
            return InitiatorOutcome::Rejected { private_data };
        }
        let depths = match (self.offer, reply.enhanced) {
            (Some(offer), Some(answer)) => match self.agree(offer, answer) {
                Ok(depths) => depths,
                Err(violation) => return failed(violation.into(), reply.markers),
            },
            // It did not understand our words, and its application has seen them as private
            // data: start over without them (RFC 6581 §9).
            (Some(_), None) => return InitiatorOutcome::RetryWithRevision1,
            (None, Some(_)) => {
                return failed(Malformed::MpaEnhancedTooShort.into(), reply.markers);
            }
            (None, None) => (self.wishes.ird, self.wishes.ord, None),
        };
        let (ird, ord, rtr) = depths;
        let negotiated = Negotiated {
            crc: self.wishes.crc || reply.crc,
            markers_out: reply.markers,
            markers_in: self.wishes.markers,
            ird,
            ord,
            rtr,
            rfc7306: self.offer.is_some()
                && self.wishes.rfc7306
                && reply.reserved & (OFFERS_RFC7306 | AGREES_RFC7306) == AGREES_RFC7306,
        };
        InitiatorOutcome::Established {
            negotiated,
            private_data,
            consumed,
        }
    }

    /// RFC 6581 §9: our final IRD and ORD, and the RTR kind.
    fn agree(
        &self,
        offer: Enhanced,
        answer: Enhanced,
    ) -> Result<(u16, u16, Option<RtrKind>), PeerViolation> {
        let ird = match answer.ord {
            IRD_ORD_NOT_NEGOTIATED => self.wishes.ird,
            // Beyond what we offered, though it should not be: as siw, serve a few more.
            ord if ord > offer.ird.max(RELAXED_IRD) => return Err(PeerViolation::InsufficientIrd),
            ord => self.wishes.ird.max(ord),
        };
        let ord = match answer.ird {
            IRD_ORD_NOT_NEGOTIATED => offer.ord,
            ird => offer.ord.min(ird),
        };
        // A is the request's; a reply that sets it on its own means nothing.
        if !(offer.peer_to_peer && answer.peer_to_peer) {
            return Ok((ird, ord, None));
        }
        let rtr = if offer.rtr_write && answer.rtr_write {
            RtrKind::Write
        } else if offer.rtr_read && answer.rtr_read {
            RtrKind::Read
        } else {
            return Err(PeerViolation::NoMatchingRtr);
        };
        if rtr == RtrKind::Read && ord == 0 {
            return Err(PeerViolation::InsufficientIrd);
        }
        Ok((ird, ord, Some(rtr)))
    }
}

/// The attempt ends by the peer's fault, which a Terminate tells it. `markers`: it asked for
/// them.
fn failed(fault: Fault, markers: bool) -> InitiatorOutcome {
    InitiatorOutcome::Failed {
        terminate: terminate_fpdu(fault.terminate_code(), markers),
        fault,
    }
}
