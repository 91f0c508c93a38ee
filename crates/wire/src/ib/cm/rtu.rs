//! RTU: ready to use (IBA vol 1 ch 12).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::cm::PrivateData;
use crate::ib::mad;
use crate::num::CommId;

/// Tells the passive side that the active side is connected. The default is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rtu {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The recipient's name for the connection.
    pub remote_comm_id: CommId,
    /// The consumer's data.
    pub private_data: PrivateData<{ Self::PRIVATE_DATA_LEN }>,
}

impl Rtu {
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

impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RTU {} to {}", self.local_comm_id, self.remote_comm_id)
    }
}
