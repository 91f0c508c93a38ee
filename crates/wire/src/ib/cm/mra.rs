//! MRA: message receipt acknowledgement (IBA vol 1 ch 12).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::cm::{MessageKind, PrivateData};
use crate::ib::mad;
use crate::num::{CommId, TimeoutCode};

/// Tells that a message has arrived and that its answer takes longer than agreed. The default is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mra {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The recipient's name for the connection.
    pub remote_comm_id: CommId,
    /// Which message has arrived.
    pub message: MessageKind,
    /// How long the answer takes at most, from now on.
    pub service_timeout: TimeoutCode,
    /// The reserved bits in their order: six after the message, three after the time.
    pub reserved: u16,
    /// The consumer's data.
    pub private_data: PrivateData<{ Self::PRIVATE_DATA_LEN }>,
}

impl Mra {
    /// Length of the message.
    pub const LEN: usize = mad::DATA_LEN;

    /// Length of its private data.
    pub const PRIVATE_DATA_LEN: usize = 222;

    /// Reads the message.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut reader = Reader::new(reader.take(Self::LEN)?);
        let local_comm_id = CommId::new(reader.u32()?);
        let remote_comm_id = CommId::new(reader.u32()?);
        let [message, timeout] = reader.array()?;
        Ok(Self {
            local_comm_id,
            remote_comm_id,
            message: MessageKind::new(message >> 6),
            service_timeout: TimeoutCode::new(timeout >> 3),
            reserved: u16::from(message & 0x3f) << 3 | u16::from(timeout & 0x07),
            private_data: PrivateData::parse(&mut reader)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.local_comm_id.get());
        writer.u32(self.remote_comm_id.get());
        let [_, after_message] = (self.reserved >> 3 & 0x3f).to_be_bytes();
        let [_, after_timeout] = (self.reserved & 0x07).to_be_bytes();
        writer.u8(self.message.get() << 6 | after_message);
        writer.u8(self.service_timeout.get() << 3 | after_timeout);
        self.private_data.emit(writer);
    }

    /// The octets of the message.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MRA {} to {}: of {}, answer within {}",
            self.local_comm_id, self.remote_comm_id, self.message, self.service_timeout
        )
    }
}
