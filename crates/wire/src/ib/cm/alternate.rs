//! LAP and APR: load alternate path, and its response (IBA vol 1 ch 12).
//!
//! Linux ignores both on RoCE ports.

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::cm::{ApStatus, Path, PrivateData};
use crate::ib::mad;
use crate::num::{CommId, Qpn, TimeoutCode};

/// Offers a path to migrate to. The default is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lap {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The recipient's name for the connection.
    pub remote_comm_id: CommId,
    /// The four octets after them.
    pub reserved8: u32,
    /// The *recipient's* queue pair.
    pub remote_qpn: Qpn,
    /// How soon the recipient is to answer.
    pub remote_cm_response_timeout: TimeoutCode,
    /// The three bits after it.
    pub reserved15: u8,
    /// The four octets before the path.
    pub reserved16: u32,
    /// The path.
    pub alternate_path: Path,
    /// The consumer's data.
    pub private_data: PrivateData<{ Self::PRIVATE_DATA_LEN }>,
}

impl Lap {
    /// Length of the message.
    pub const LEN: usize = mad::DATA_LEN;

    /// Length of its private data.
    pub const PRIVATE_DATA_LEN: usize = 168;

    /// Reads the message.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut reader = Reader::new(reader.take(Self::LEN)?);
        let local_comm_id = CommId::new(reader.u32()?);
        let remote_comm_id = CommId::new(reader.u32()?);
        let reserved8 = reader.u32()?;
        let remote_qpn = Qpn::new(reader.u24()?);
        let timeout = reader.u8()?;
        Ok(Self {
            local_comm_id,
            remote_comm_id,
            reserved8,
            remote_qpn,
            remote_cm_response_timeout: TimeoutCode::new(timeout >> 3),
            reserved15: timeout & 0x07,
            reserved16: reader.u32()?,
            alternate_path: Path::parse_lap(&mut reader)?,
            private_data: PrivateData::parse(&mut reader)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.local_comm_id.get());
        writer.u32(self.remote_comm_id.get());
        writer.u32(self.reserved8);
        writer.u24(self.remote_qpn.get());
        writer.u8(self.remote_cm_response_timeout.get() << 3 | self.reserved15 & 0x07);
        writer.u32(self.reserved16);
        self.alternate_path.emit_lap(writer);
        self.private_data.emit(writer);
    }

    /// The octets of the message.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LAP {} to {}: QP {}, {}",
            self.local_comm_id, self.remote_comm_id, self.remote_qpn, self.alternate_path
        )
    }
}

/// Answers [`Lap`]. The default is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apr {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The recipient's name for the connection.
    pub remote_comm_id: CommId,
    /// How many octets of `info` mean something.
    pub info_len: u8,
    /// What became of the path.
    pub status: ApStatus,
    /// The two octets after it.
    pub reserved: u16,
    /// What the status needs to be understood.
    pub info: PrivateData<{ Self::INFO_LEN }>,
    /// The consumer's data.
    pub private_data: PrivateData<{ Self::PRIVATE_DATA_LEN }>,
}

impl Apr {
    /// Length of the message.
    pub const LEN: usize = mad::DATA_LEN;

    /// Length of its additional information.
    pub const INFO_LEN: usize = 72;

    /// Length of its private data.
    pub const PRIVATE_DATA_LEN: usize = 148;

    /// Reads the message.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut reader = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            local_comm_id: CommId::new(reader.u32()?),
            remote_comm_id: CommId::new(reader.u32()?),
            info_len: reader.u8()?,
            status: ApStatus::new(reader.u8()?),
            reserved: reader.u16()?,
            info: PrivateData::parse(&mut reader)?,
            private_data: PrivateData::parse(&mut reader)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.local_comm_id.get());
        writer.u32(self.remote_comm_id.get());
        writer.u8(self.info_len);
        writer.u8(self.status.get());
        writer.u16(self.reserved);
        self.info.emit(writer);
        self.private_data.emit(writer);
    }

    /// The octets of the message.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Apr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "APR {} to {}: {}",
            self.local_comm_id, self.remote_comm_id, self.status
        )
    }
}
