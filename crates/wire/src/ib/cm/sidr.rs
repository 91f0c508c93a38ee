//! SIDR_REQ and SIDR_REP: service ID resolution, for datagrams (IBA vol 1 ch 12).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::cm::{PrivateData, SidrStatus};
use crate::ib::mad;
use crate::num::{CommId, Pkey, Qkey, Qpn, ServiceId};

/// Asks which queue pair serves a service ID. The default is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SidrReq {
    /// The sender's name for the request.
    pub request_id: CommId,
    /// The partition to talk in.
    pub pkey: Pkey,
    /// The two octets after it.
    pub reserved: u16,
    /// What the sender looks for.
    pub service_id: ServiceId,
    /// The consumer's data.
    pub private_data: PrivateData<{ Self::PRIVATE_DATA_LEN }>,
}

impl SidrReq {
    /// Length of the message.
    pub const LEN: usize = mad::DATA_LEN;

    /// Length of its private data.
    pub const PRIVATE_DATA_LEN: usize = 216;

    /// Reads the message.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut reader = Reader::new(reader.take(Self::LEN)?);
        Ok(Self {
            request_id: CommId::new(reader.u32()?),
            pkey: Pkey::new(reader.u16()?),
            reserved: reader.u16()?,
            service_id: ServiceId::new(reader.u64()?),
            private_data: PrivateData::parse(&mut reader)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.request_id.get());
        writer.u16(self.pkey.get());
        writer.u16(self.reserved);
        writer.u64(self.service_id.get());
        self.private_data.emit(writer);
    }

    /// The octets of the message.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SIDR_REQ {} for service {}",
            self.request_id, self.service_id
        )
    }
}

/// Answers [`SidrReq`]. The default is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SidrRep {
    /// The recipient's name for the request.
    pub request_id: CommId,
    /// Whether the rest means something.
    pub status: SidrStatus,
    /// How many octets of `info` mean something.
    pub info_len: u8,
    /// Vendor of the options in the attribute modifier. 24 bits, in two places of the message.
    pub vendor_id: u32,
    /// The queue pair to send to.
    pub qpn: Qpn,
    /// What it serves.
    pub service_id: ServiceId,
    /// The key that it wants to see.
    pub qkey: Qkey,
    /// What the status needs to be understood.
    pub info: PrivateData<{ Self::INFO_LEN }>,
    /// The consumer's data.
    pub private_data: PrivateData<{ Self::PRIVATE_DATA_LEN }>,
}

impl SidrRep {
    /// Length of the message.
    pub const LEN: usize = mad::DATA_LEN;

    /// Length of its additional information.
    pub const INFO_LEN: usize = 72;

    /// Length of its private data.
    pub const PRIVATE_DATA_LEN: usize = 136;

    /// Reads the message.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut reader = Reader::new(reader.take(Self::LEN)?);
        let request_id = CommId::new(reader.u32()?);
        let status = SidrStatus::new(reader.u8()?);
        let info_len = reader.u8()?;
        let vendor_high = reader.u16()?;
        let qpn = Qpn::new(reader.u24()?);
        let vendor_low = reader.u8()?;
        Ok(Self {
            request_id,
            status,
            info_len,
            vendor_id: u32::from(vendor_high) << 8 | u32::from(vendor_low),
            qpn,
            service_id: ServiceId::new(reader.u64()?),
            qkey: Qkey::new(reader.u32()?),
            info: PrivateData::parse(&mut reader)?,
            private_data: PrivateData::parse(&mut reader)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        let [_, vendor_high @ .., vendor_low] = self.vendor_id.to_be_bytes();
        writer.u32(self.request_id.get());
        writer.u8(self.status.get());
        writer.u8(self.info_len);
        writer.bytes(&vendor_high);
        writer.u24(self.qpn.get());
        writer.u8(vendor_low);
        writer.u64(self.service_id.get());
        writer.u32(self.qkey.get());
        self.info.emit(writer);
        self.private_data.emit(writer);
    }

    /// The octets of the message.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for SidrRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SIDR_REP {}: {}, QP {} Q_Key {}",
            self.request_id, self.status, self.qpn, self.qkey
        )
    }
}
