//! REP: reply to a request for communication (IBA vol 1 ch 12).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::cm::PrivateData;
use crate::ib::mad;
use crate::num::{CommId, Eecn, Guid, Psn, Qkey, Qpn, RetryCount, TimeoutCode};

/// Accepts a connection. The default is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rep {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The recipient's, from its REQ.
    pub remote_comm_id: CommId,
    /// Q_Key, of datagram services.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// Vendor of the options in the attribute modifier. 24 bits, in three places of the message.
    pub vendor_id: u32,
    /// The sender's end-to-end context, of reliable datagrams.
    pub local_eecn: Eecn,
    /// The PSN of the first packet that the *recipient* sends.
    pub starting_psn: Psn,
    /// How many RDMA READs and atomics the sender can serve at a time.
    pub responder_resources: u8,
    /// How many RDMA READs and atomics the sender will have outstanding.
    pub initiator_depth: u8,
    /// How long the sender's adapter takes to acknowledge.
    pub target_ack_delay: TimeoutCode,
    /// What became of the alternate path: 0 accepted, 1 not supported, 2 rejected. Two bits.
    pub failover_accepted: u8,
    /// Whether the sender's queue pair sends and expects credits.
    pub end_to_end_flow_control: bool,
    /// How often the recipient's queue pair is to try again when the sender's is not ready.
    pub rnr_retry_count: RetryCount,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The four bits after it.
    pub reserved: u8,
    /// The sender's adapter.
    pub local_ca_guid: Guid,
    /// The consumer's data.
    pub private_data: PrivateData<{ Self::PRIVATE_DATA_LEN }>,
}

impl Rep {
    /// Length of the message.
    pub const LEN: usize = mad::DATA_LEN;

    /// Length of its private data.
    pub const PRIVATE_DATA_LEN: usize = 196;

    /// Reads the message.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut reader = Reader::new(reader.take(Self::LEN)?);
        let local_comm_id = CommId::new(reader.u32()?);
        let remote_comm_id = CommId::new(reader.u32()?);
        let local_qkey = Qkey::new(reader.u32()?);
        let local_qpn = Qpn::new(reader.u24()?);
        let vendor_high = reader.u8()?;
        let local_eecn = Eecn::new(reader.u24()?);
        let vendor_middle = reader.u8()?;
        let starting_psn = Psn::new(reader.u24()?);
        let vendor_low = reader.u8()?;
        let responder_resources = reader.u8()?;
        let initiator_depth = reader.u8()?;
        let [delay_and_failover, rnr_and_srq] = reader.array()?;
        Ok(Self {
            local_comm_id,
            remote_comm_id,
            local_qkey,
            local_qpn,
            vendor_id: u32::from_be_bytes([0, vendor_high, vendor_middle, vendor_low]),
            local_eecn,
            starting_psn,
            responder_resources,
            initiator_depth,
            target_ack_delay: TimeoutCode::new(delay_and_failover >> 3),
            failover_accepted: delay_and_failover >> 1 & 0x03,
            end_to_end_flow_control: delay_and_failover & 0x01 != 0,
            rnr_retry_count: RetryCount::new(rnr_and_srq >> 5),
            srq: rnr_and_srq & 0x10 != 0,
            reserved: rnr_and_srq & 0x0f,
            local_ca_guid: Guid::new(reader.u64()?),
            private_data: PrivateData::parse(&mut reader)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        let [_, vendor_high, vendor_middle, vendor_low] = self.vendor_id.to_be_bytes();
        writer.u32(self.local_comm_id.get());
        writer.u32(self.remote_comm_id.get());
        writer.u32(self.local_qkey.get());
        writer.u24(self.local_qpn.get());
        writer.u8(vendor_high);
        writer.u24(self.local_eecn.get());
        writer.u8(vendor_middle);
        writer.u24(self.starting_psn.get());
        writer.u8(vendor_low);
        writer.u8(self.responder_resources);
        writer.u8(self.initiator_depth);
        writer.u8(self.target_ack_delay.get() << 3
            | (self.failover_accepted & 0x03) << 1
            | u8::from(self.end_to_end_flow_control));
        writer.u8(self.rnr_retry_count.get() << 5 | u8::from(self.srq) << 4 | self.reserved & 0x0f);
        writer.u64(self.local_ca_guid.get());
        self.private_data.emit(writer);
    }

    /// The octets of the message.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REP {} to {}: QP {} PSN {} responder resources {} initiator depth {} RNR retry {} \
             ACK delay {}",
            self.local_comm_id,
            self.remote_comm_id,
            self.local_qpn,
            self.starting_psn,
            self.responder_resources,
            self.initiator_depth,
            self.rnr_retry_count,
            self.target_ack_delay
        )
    }
}
