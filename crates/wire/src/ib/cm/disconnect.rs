//! DREQ and DREP: request for disconnection, and its reply (IBA vol 1 ch 12).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::cm::PrivateData;
use crate::ib::mad;
use crate::num::{CommId, Qpn};

/// Ends a connection. The default is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The recipient's name for the connection.
    pub remote_comm_id: CommId,
    /// The *recipient's* queue pair, which must be the connection's.
    pub remote_qpn: Qpn,
    /// The octet after it.
    pub reserved: u8,
    /// The consumer's data.
    pub private_data: PrivateData<{ Self::PRIVATE_DATA_LEN }>,
}

impl Dreq {
    /// Length of the message.
    pub const LEN: usize = mad::DATA_LEN;

    /// Length of its private data.
    pub const PRIVATE_DATA_LEN: usize = 220;

    /// Reads the message.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut reader = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            local_comm_id: CommId::new(reader.u32()?),
            remote_comm_id: CommId::new(reader.u32()?),
            remote_qpn: Qpn::new(reader.u24()?),
            reserved: reader.u8()?,
            private_data: PrivateData::parse(&mut reader)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.local_comm_id.get());
        writer.u32(self.remote_comm_id.get());
        writer.u24(self.remote_qpn.get());
        writer.u8(self.reserved);
        self.private_data.emit(writer);
    }

    /// The octets of the message.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Dreq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DREQ {} to {}: QP {}",
            self.local_comm_id, self.remote_comm_id, self.remote_qpn
        )
    }
}

/// Confirms the end of a connection. The default is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drep {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The recipient's name for the connection.
    pub remote_comm_id: CommId,
    /// The consumer's data.
    pub private_data: PrivateData<{ Self::PRIVATE_DATA_LEN }>,
}

impl Drep {
    /// Length of the message.
    pub const LEN: usize = mad::DATA_LEN;

    /// Length of its private data.
    pub const PRIVATE_DATA_LEN: usize = 224;

    /// Reads the message.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut reader = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            local_comm_id: CommId::new(reader.u32()?),
            remote_comm_id: CommId::new(reader.u32()?),
            private_data: PrivateData::parse(&mut reader)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.local_comm_id.get());
        writer.u32(self.remote_comm_id.get());
        self.private_data.emit(writer);
    }

    /// The octets of the message.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Drep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DREP {} to {}", self.local_comm_id, self.remote_comm_id)
    }
}
