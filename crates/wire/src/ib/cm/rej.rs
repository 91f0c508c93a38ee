//! REJ: reject (IBA vol 1 ch 12).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::cm::{MessageKind, PrivateData, RejReason};
use crate::ib::mad;
use crate::num::CommId;

/// Refuses a connection, or gives up one that is being set up. The default is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rej {
    /// The sender's name for the connection, or [`CommId::NONE`].
    pub local_comm_id: CommId,
    /// The recipient's name for the connection, or [`CommId::NONE`].
    pub remote_comm_id: CommId,
    /// Which message is rejected.
    pub message: MessageKind,
    /// How many octets of `info` mean something. Seven bits.
    pub info_len: u8,
    /// The reserved bits in their order: six after the message, one after the length.
    pub reserved: u8,
    /// Why.
    pub reason: RejReason,
    /// ARI: what the reason needs to be understood, as the value that would have been accepted.
    pub info: PrivateData<{ Self::INFO_LEN }>,
    /// The consumer's data.
    pub private_data: PrivateData<{ Self::PRIVATE_DATA_LEN }>,
}

impl Rej {
    /// Length of the message.
    pub const LEN: usize = mad::DATA_LEN;

    /// Length of its additional reject information.
    pub const INFO_LEN: usize = 72;

    /// Length of its private data.
    pub const PRIVATE_DATA_LEN: usize = 148;

    /// Reads the message.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut reader = Reader::new(reader.take(Self::LEN)?);
        let local_comm_id = CommId::new(reader.u32()?);
        let remote_comm_id = CommId::new(reader.u32()?);
        let [message, info_len] = reader.array()?;
        Ok(Self {
            local_comm_id,
            remote_comm_id,
            message: MessageKind::new(message >> 6),
            info_len: info_len >> 1,
            reserved: (message & 0x3f) << 1 | info_len & 0x01,
            reason: RejReason::new(reader.u16()?),
            info: PrivateData::parse(&mut reader)?,
            private_data: PrivateData::parse(&mut reader)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.local_comm_id.get());
        writer.u32(self.remote_comm_id.get());
        writer.u8(self.message.get() << 6 | self.reserved >> 1 & 0x3f);
        writer.u8(self.info_len << 1 | self.reserved & 0x01);
        writer.u16(self.reason.get());
        self.info.emit(writer);
        self.private_data.emit(writer);
    }

    /// The octets of the message.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REJ {} to {}: of {}, {} ({})",
            self.local_comm_id,
            self.remote_comm_id,
            self.message,
            self.reason,
            self.reason.get()
        )
    }
}
