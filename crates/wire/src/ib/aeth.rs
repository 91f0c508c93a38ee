//! The header of acknowledges (IBA vol 1 ch 9, AETH).
//!
//! ```text
//!  0          1
//! | syndrome | MSN (24) |
//! ```

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::num::{Msn24, RnrTimer};

/// ACK extended transport header: how far a responder has come, or what stops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Acknowledge or the reason of its opposite.
    pub syndrome: Syndrome,
    /// How many messages the responder has completed.
    pub msn: Msn24,
}

impl Aeth {
    /// Length of the header.
    pub const LEN: usize = 4;

    /// From its parts.
    pub const fn new(syndrome: Syndrome, msn: Msn24) -> Self {
        Self { syndrome, msn }
    }

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            syndrome: Syndrome::from_bits(header.u8()?),
            msn: Msn24::new(header.u24()?),
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u8(self.syndrome.bits());
        writer.u24(self.msn.get());
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MSN {}", self.syndrome, self.msn)
    }
}

const KIND_SHIFT: u32 = 5;
const KIND_ACK: u8 = 0b000;
const KIND_RNR_NAK: u8 = 0b001;
const KIND_NAK: u8 = 0b011;
const VALUE: u8 = 0x1f;

/// The first octet of an AETH, with every bit as received; [`kind`](Self::kind) is its meaning.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Syndrome(u8);

impl Syndrome {
    /// An acknowledge that says nothing of credits, as Linux' rxe sends them.
    pub const ACK: Self = Self::ack(CreditCode::NONE);

    /// A positive acknowledge.
    pub const fn ack(credits: CreditCode) -> Self {
        Self(KIND_ACK << KIND_SHIFT | credits.get())
    }

    /// No receive work request was there: try again after a time.
    pub const fn rnr_nak(timer: RnrTimer) -> Self {
        Self(KIND_RNR_NAK << KIND_SHIFT | timer.get())
    }

    /// A negative acknowledge.
    pub const fn nak(code: NakCode) -> Self {
        Self(KIND_NAK << KIND_SHIFT | code.get())
    }

    /// From the bits on the wire.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The bits on the wire.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// What the bits mean.
    pub const fn kind(self) -> AethKind {
        let value = self.0 & VALUE;
        match self.0 >> KIND_SHIFT {
            KIND_ACK => AethKind::Ack {
                credits: CreditCode::new(value),
            },
            KIND_RNR_NAK => AethKind::RnrNak {
                timer: RnrTimer::new(value),
            },
            KIND_NAK => AethKind::Nak {
                code: NakCode::new(value),
            },
            _ => AethKind::Reserved(self.0),
        }
    }
}

impl From<AethKind> for Syndrome {
    fn from(kind: AethKind) -> Self {
        match kind {
            AethKind::Ack { credits } => Self::ack(credits),
            AethKind::RnrNak { timer } => Self::rnr_nak(timer),
            AethKind::Nak { code } => Self::nak(code),
            AethKind::Reserved(bits) => Self(bits),
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            AethKind::Ack { credits } => write!(f, "ACK {credits}"),
            AethKind::RnrNak { timer } => write!(f, "RNR NAK timer {timer}"),
            AethKind::Nak { code } => write!(f, "NAK {code}"),
            AethKind::Reserved(bits) => write!(f, "reserved syndrome {bits:#04x}"),
        }
    }
}

impl fmt::Debug for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Syndrome({:#04x}: {self})", self.0)
    }
}

/// The meaning of a [`Syndrome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AethKind {
    /// Everything up to the packet's PSN has arrived.
    Ack {
        /// How many more messages the responder has receive work requests for.
        credits: CreditCode,
    },
    /// Receiver not ready: no receive work request for the message of this PSN.
    RnrNak {
        /// How long to leave the responder alone.
        timer: RnrTimer,
    },
    /// The packet with this PSN was not accepted.
    Nak {
        /// Why.
        code: NakCode,
    },
    /// A whole syndrome that has no meaning yet.
    Reserved(u8),
}

/// Why a responder did not accept a packet, in five bits. Codes without a name here are kept as
/// they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NakCode(u8);

impl NakCode {
    /// A packet before this one is missing: send again from the PSN of the acknowledge.
    pub const PSN_SEQUENCE_ERROR: Self = Self(0);
    /// The request cannot be: unexpected opcode, length, or an operation that is not allowed.
    pub const INVALID_REQUEST: Self = Self(1);
    /// The key, the bounds or the rights of the memory forbid it.
    pub const REMOTE_ACCESS_ERROR: Self = Self(2);
    /// The responder failed in a way of its own.
    pub const REMOTE_OPERATIONAL_ERROR: Self = Self(3);
    /// The reliable datagram request cannot be.
    pub const INVALID_RD_REQUEST: Self = Self(4);

    /// From the low five bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & VALUE)
    }

    /// The code.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The code's name, if it has one.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::PSN_SEQUENCE_ERROR => "PSN sequence error",
            Self::INVALID_REQUEST => "invalid request",
            Self::REMOTE_ACCESS_ERROR => "remote access error",
            Self::REMOTE_OPERATIONAL_ERROR => "remote operational error",
            Self::INVALID_RD_REQUEST => "invalid RD request",
            _ => return None,
        })
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "code {:#04x}", self.0),
        }
    }
}

/// End-to-end flow control credits, in five bits that index a table (IBA vol 1 ch 9, AETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreditCode(u8);

impl CreditCode {
    /// The acknowledge says nothing of credits.
    pub const NONE: Self = Self(VALUE);

    /// From the low five bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & VALUE)
    }

    /// The code.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// How many messages more the responder is ready for; nothing if the code says nothing.
    pub const fn credits(self) -> Option<u32> {
        Some(match self.0 {
            0..=3 => self.0 as u32,
            // From 4 on, 2ⁿ and the middle between it and the next take turns.
            VALUE => return None,
            code => {
                let power = 1 << (code / 2);
                if code % 2 == 0 {
                    power
                } else {
                    power + power / 2
                }
            }
        })
    }
}

impl fmt::Display for CreditCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.credits() {
            Some(credits) => write!(f, "credits {credits}"),
            None => f.write_str("without credits"),
        }
    }
}
