//! The RDMAP operation code (RFC 5040 §4.1, RFC 7306 §4).

use std::fmt;

use crate::num::QueueNumber;

/// What a message is. Codes without a name here are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

impl Opcode {
    /// RDMA Write.
    pub const WRITE: Self = Self(0);
    /// RDMA Read Request.
    pub const READ_REQUEST: Self = Self(1);
    /// RDMA Read Response.
    pub const READ_RESPONSE: Self = Self(2);
    /// Send.
    pub const SEND: Self = Self(3);
    /// Send with Invalidate.
    pub const SEND_INVALIDATE: Self = Self(4);
    /// Send with Solicited Event.
    pub const SEND_SE: Self = Self(5);
    /// Send with Solicited Event and Invalidate.
    pub const SEND_SE_INVALIDATE: Self = Self(6);
    /// Terminate.
    pub const TERMINATE: Self = Self(7);
    /// Immediate Data (RFC 7306).
    pub const IMMEDIATE: Self = Self(8);
    /// Immediate Data with Solicited Event (RFC 7306).
    pub const IMMEDIATE_SE: Self = Self(9);
    /// Atomic Request (RFC 7306).
    pub const ATOMIC_REQUEST: Self = Self(10);
    /// Atomic Response (RFC 7306).
    pub const ATOMIC_RESPONSE: Self = Self(11);

    /// From the low four bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x0f)
    }

    /// The code.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The operation's name, if it has one.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::WRITE => "RDMA Write",
            Self::READ_REQUEST => "RDMA Read Request",
            Self::READ_RESPONSE => "RDMA Read Response",
            Self::SEND => "Send",
            Self::SEND_INVALIDATE => "Send with Invalidate",
            Self::SEND_SE => "Send with SE",
            Self::SEND_SE_INVALIDATE => "Send with SE and Invalidate",
            Self::TERMINATE => "Terminate",
            Self::IMMEDIATE => "Immediate Data",
            Self::IMMEDIATE_SE => "Immediate Data with SE",
            Self::ATOMIC_REQUEST => "Atomic Request",
            Self::ATOMIC_RESPONSE => "Atomic Response",
            _ => return None,
        })
    }

    /// Whether the operation has a name.
    pub const fn is_known(self) -> bool {
        self.name().is_some()
    }

    /// Whether the operation travels in tagged segments.
    pub const fn is_tagged(self) -> bool {
        matches!(self, Self::WRITE | Self::READ_RESPONSE)
    }

    /// The queue of an untagged operation (RFC 5040 §4.1, RFC 7306 §4).
    pub const fn queue(self) -> Option<QueueNumber> {
        Some(match self {
            Self::SEND
            | Self::SEND_INVALIDATE
            | Self::SEND_SE
            | Self::SEND_SE_INVALIDATE
            | Self::IMMEDIATE
            | Self::IMMEDIATE_SE => QueueNumber::SEND,
            Self::READ_REQUEST | Self::ATOMIC_REQUEST => QueueNumber::READ_REQUEST,
            Self::TERMINATE => QueueNumber::TERMINATE,
            Self::ATOMIC_RESPONSE => QueueNumber::ATOMIC_RESPONSE,
            _ => return None,
        })
    }

    /// Whether this is one of the four Sends.
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::SEND | Self::SEND_INVALIDATE | Self::SEND_SE | Self::SEND_SE_INVALIDATE
        )
    }

    /// Whether this is one of the two Immediate Data operations.
    pub const fn is_immediate(self) -> bool {
        matches!(self, Self::IMMEDIATE | Self::IMMEDIATE_SE)
    }

    /// Whether the receiver raises a solicited event.
    pub const fn is_solicited(self) -> bool {
        matches!(
            self,
            Self::SEND_SE | Self::SEND_SE_INVALIDATE | Self::IMMEDIATE_SE
        )
    }

    /// Whether the receiver invalidates a tag.
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SEND_INVALIDATE | Self::SEND_SE_INVALIDATE)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "opcode {:#x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({}: {self})", self.0)
    }
}
