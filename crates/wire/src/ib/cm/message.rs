//! Any message, and the datagram that carries it.

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::PacketError;
use crate::ib::cm::{Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq, attribute};
use crate::ib::mad::{AttributeId, MAD_LEN, MadHeader, Method, MgmtClass};
use crate::num::{CommId, TransactionId};

/// The messages: variant, attribute, IBA name.
macro_rules! messages {
    ($($name:ident = $attribute:ident, $words:literal;)*) => {
        /// A message of a connection manager.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Message {
            $(#[doc = concat!($words, ".")] $name($name),)*
        }

        impl Message {
            /// Reads the message that `attribute` names.
            pub fn parse(
                attribute: AttributeId,
                reader: &mut Reader<'_>,
            ) -> Result<Self, PacketError> {
                Ok(match attribute {
                    $(attribute::$attribute => Self::$name($name::parse(reader)?),)*
                    _ => return Err(PacketError::UnknownAttribute),
                })
            }

            /// Writes the message.
            pub fn emit(&self, writer: &mut Writer<'_>) {
                match self {
                    $(Self::$name(message) => message.emit(writer),)*
                }
            }

            /// The attribute that names it.
            pub const fn attribute(&self) -> AttributeId {
                match self {
                    $(Self::$name(_) => attribute::$attribute,)*
                }
            }

            /// The IBA name of the message.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $words,)*
                }
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        })*

        impl fmt::Display for Message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name(message) => message.fmt(f),)*
                }
            }
        }
    };
}

messages! {
    Req = REQ, "REQ";
    Mra = MRA, "MRA";
    Rej = REJ, "REJ";
    Rep = REP, "REP";
    Rtu = RTU, "RTU";
    Dreq = DREQ, "DREQ";
    Drep = DREP, "DREP";
    SidrReq = SIDR_REQ, "SIDR_REQ";
    SidrRep = SIDR_REP, "SIDR_REP";
    Lap = LAP, "LAP";
    Apr = APR, "APR";
}

impl Message {
    /// The name that the sender has for the connection or request; nothing in an answer to a
    /// service ID resolution.
    pub const fn local_comm_id(&self) -> Option<CommId> {
        Some(match self {
            Self::Req(message) => message.local_comm_id,
            Self::Mra(message) => message.local_comm_id,
            Self::Rej(message) => message.local_comm_id,
            Self::Rep(message) => message.local_comm_id,
            Self::Rtu(message) => message.local_comm_id,
            Self::Dreq(message) => message.local_comm_id,
            Self::Drep(message) => message.local_comm_id,
            Self::SidrReq(message) => message.request_id,
            Self::SidrRep(_) => return None,
            Self::Lap(message) => message.local_comm_id,
            Self::Apr(message) => message.local_comm_id,
        })
    }

    /// The name that the recipient has for the connection or request; nothing in what starts one.
    pub const fn remote_comm_id(&self) -> Option<CommId> {
        Some(match self {
            Self::Req(_) | Self::SidrReq(_) => return None,
            Self::Mra(message) => message.remote_comm_id,
            Self::Rej(message) => message.remote_comm_id,
            Self::Rep(message) => message.remote_comm_id,
            Self::Rtu(message) => message.remote_comm_id,
            Self::Dreq(message) => message.remote_comm_id,
            Self::Drep(message) => message.remote_comm_id,
            Self::SidrRep(message) => message.request_id,
            Self::Lap(message) => message.remote_comm_id,
            Self::Apr(message) => message.remote_comm_id,
        })
    }
}

/// A management datagram with a message of a connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// The common header. Its attribute is that of the message, whatever it says.
    pub header: MadHeader,
    /// The message.
    pub message: Message,
}

impl Mad {
    /// Length of the datagram.
    pub const LEN: usize = MAD_LEN;

    /// Version of the messages.
    pub const CLASS_VERSION: u8 = 2;

    /// A datagram without options.
    pub fn new(transaction_id: TransactionId, message: impl Into<Message>) -> Self {
        let message = message.into();
        Self {
            header: MadHeader {
                base_version: MadHeader::BASE_VERSION,
                class: MgmtClass::COMM_MGT,
                class_version: Self::CLASS_VERSION,
                method: Method::SEND,
                status: 0,
                class_specific: 0,
                transaction_id,
                attribute: message.attribute(),
                reserved: 0,
                attribute_modifier: 0,
            },
            message,
        }
    }

    /// Reads the payload of a datagram to QP1. Other classes, other versions and other methods
    /// than sending are refused.
    pub fn parse(payload: &[u8]) -> Result<Self, PacketError> {
        let mut reader = Reader::new(payload);
        let header = MadHeader::parse(&mut reader)?;
        let expected = Self::new(header.transaction_id, Rtu::default()).header;
        if (header.base_version, header.class, header.class_version)
            != (
                expected.base_version,
                expected.class,
                expected.class_version,
            )
            || header.method != expected.method
        {
            return Err(PacketError::MadClass);
        }
        let message = Message::parse(header.attribute, &mut reader)?;
        if !reader.is_empty() {
            return Err(Malformed::TrailingOctets.into());
        }
        Ok(Self { header, message })
    }

    /// Writes the datagram.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        MadHeader {
            attribute: self.message.attribute(),
            ..self.header
        }
        .emit(writer);
        self.message.emit(writer);
    }

    /// The octets of the datagram.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, transaction {}",
            self.message, self.header.transaction_id
        )
    }
}
