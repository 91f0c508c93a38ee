//! Management datagrams (IBA vol 1 ch 13): 256 octets to QP1, of which 24 are a common header.

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::{Bth, Deth, Headers, Opcode};
use crate::num::{Psn, Qkey, Qpn, TransactionId};

/// Length of every management datagram, header included.
pub const MAD_LEN: usize = 256;

/// Length of what a class puts after the header.
pub const DATA_LEN: usize = MAD_LEN - MadHeader::LEN;

/// The packet headers of a management datagram: from QP1 to QP1, with the key of both. Its
/// receiver does not look at the PSN.
pub const fn gsi_headers(psn: Psn) -> Headers {
    Headers::new(Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, psn))
        .with_deth(Deth::new(Qkey::GSI, Qpn::GSI))
}

/// The common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// BaseVersion: of this header.
    pub base_version: u8,
    /// MgmtClass: whom the datagram is for.
    pub class: MgmtClass,
    /// ClassVersion: of what follows.
    pub class_version: u8,
    /// Method: what to do. The top bit marks a response.
    pub method: Method,
    /// Status of a response.
    pub status: u16,
    /// ClassSpecific.
    pub class_specific: u16,
    /// TransactionID.
    pub transaction_id: TransactionId,
    /// AttributeID: what the class is asked or told.
    pub attribute: AttributeId,
    /// The two octets between the attribute and its modifier.
    pub reserved: u16,
    /// AttributeModifier.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Length of the header.
    pub const LEN: usize = 24;

    /// The version of the header.
    pub const BASE_VERSION: u8 = 1;

    /// Reads the header. Any 24 octets are one.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            base_version: header.u8()?,
            class: MgmtClass::new(header.u8()?),
            class_version: header.u8()?,
            method: Method::new(header.u8()?),
            status: header.u16()?,
            class_specific: header.u16()?,
            transaction_id: TransactionId::new(header.u64()?),
            attribute: AttributeId::new(header.u16()?),
            reserved: header.u16()?,
            attribute_modifier: header.u32()?,
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u8(self.base_version);
        writer.u8(self.class.get());
        writer.u8(self.class_version);
        writer.u8(self.method.get());
        writer.u16(self.status);
        writer.u16(self.class_specific);
        writer.u64(self.transaction_id.get());
        writer.u16(self.attribute.get());
        writer.u16(self.reserved);
        writer.u32(self.attribute_modifier);
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for MadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} transaction {}",
            self.class, self.method, self.attribute, self.transaction_id
        )?;
        if self.status != 0 {
            write!(f, " status {:#06x}", self.status)?;
        }
        Ok(())
    }
}

/// A management class. Numbers without a name here are kept as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MgmtClass(u8);

impl MgmtClass {
    /// Communication management (IBA vol 1 ch 12).
    pub const COMM_MGT: Self = Self(0x07);

    /// From the number.
    pub const fn new(class: u8) -> Self {
        Self(class)
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for MgmtClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::COMM_MGT => f.write_str("CM"),
            Self(class) => write!(f, "class {class:#04x}"),
        }
    }
}

/// A method. Numbers without a name here are kept as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Method(u8);

impl Method {
    /// Asks for an attribute.
    pub const GET: Self = Self(0x01);
    /// Sends a message. All of connection management is this.
    pub const SEND: Self = Self(0x03);
    /// Answers [`GET`](Self::GET).
    pub const GET_RESP: Self = Self(0x81);

    /// From the number.
    pub const fn new(method: u8) -> Self {
        Self(method)
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::GET => f.write_str("Get"),
            Self::SEND => f.write_str("Send"),
            Self::GET_RESP => f.write_str("GetResp"),
            Self(method) => write!(f, "method {method:#04x}"),
        }
    }
}

/// An attribute. What it is depends on the class; those of connection management are in
/// [`cm::attribute`](crate::ib::cm::attribute).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttributeId(u16);

impl AttributeId {
    /// ClassPortInfo, which every class has.
    pub const CLASS_PORT_INFO: Self = Self(0x0001);

    /// From the number.
    pub const fn new(attribute: u16) -> Self {
        Self(attribute)
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attribute {:#06x}", self.0)
    }
}
