//! REQ: request for communication (IBA vol 1 ch 12).

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::cm::{Path, PrivateData, TransportService};
use crate::ib::mad;
use crate::num::{
    CommId, Eecn, Guid, Lid, MtuCode, Pkey, Psn, Qkey, Qpn, RetryCount, ServiceId, TimeoutCode,
};

/// Asks for a connection. "Local" and "remote" are from its sender's view. The
/// default is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Req {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The octet after it.
    pub reserved4: u8,
    /// Vendor of the options in the attribute modifier. 24 bits.
    pub vendor_id: u32,
    /// What the sender wants to be connected to.
    pub service_id: ServiceId,
    /// The sender's adapter; with the communication ID or the QPN it tells duplicates and stale
    /// connections.
    pub local_ca_guid: Guid,
    /// The four octets after the GUID.
    pub reserved24: u32,
    /// Q_Key, of datagram services.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// How many RDMA READs and atomics the sender can serve at a time.
    pub responder_resources: u8,
    /// The sender's end-to-end context, of reliable datagrams.
    pub local_eecn: Eecn,
    /// How many RDMA READs and atomics the sender will have outstanding.
    pub initiator_depth: u8,
    /// The recipient's end-to-end context, of reliable datagrams.
    pub remote_eecn: Eecn,
    /// How soon the recipient is to answer.
    pub remote_cm_response_timeout: TimeoutCode,
    /// The kind of connection.
    pub transport_service: TransportService,
    /// Whether the sender's queue pair sends and expects credits.
    pub end_to_end_flow_control: bool,
    /// The PSN of the first packet that the *recipient* sends.
    pub starting_psn: Psn,
    /// How soon the sender will answer.
    pub local_cm_response_timeout: TimeoutCode,
    /// How often the recipient's queue pair is to try again.
    pub retry_count: RetryCount,
    /// The connection's partition.
    pub pkey: Pkey,
    /// The connection's MTU.
    pub path_mtu: MtuCode,
    /// Whether a reliable datagram channel exists already.
    pub rdc_exists: bool,
    /// How often the recipient's queue pair is to try again when the sender's is not ready.
    pub rnr_retry_count: RetryCount,
    /// How often either side repeats a message. Four bits.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// Transport type if the service is [`TransportService::EXTENDED`]. Three bits.
    pub extended_transport: u8,
    /// The path to use.
    pub primary_path: Path,
    /// The path to migrate to; all zeros if there is none.
    pub alternate_path: Path,
    /// The consumer's data.
    pub private_data: PrivateData<{ Self::PRIVATE_DATA_LEN }>,
}

impl Req {
    /// Length of the message.
    pub const LEN: usize = mad::DATA_LEN;

    /// Length of its private data.
    pub const PRIVATE_DATA_LEN: usize = 92;

    /// Reads the message.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut reader = Reader::new(reader.take(Self::LEN)?);
        let local_comm_id = CommId::new(reader.u32()?);
        let reserved4 = reader.u8()?;
        let vendor_id = reader.u24()?;
        let service_id = ServiceId::new(reader.u64()?);
        let local_ca_guid = Guid::new(reader.u64()?);
        let reserved24 = reader.u32()?;
        let local_qkey = Qkey::new(reader.u32()?);
        let local_qpn = Qpn::new(reader.u24()?);
        let responder_resources = reader.u8()?;
        let local_eecn = Eecn::new(reader.u24()?);
        let initiator_depth = reader.u8()?;
        let remote_eecn = Eecn::new(reader.u24()?);
        let remote_response = reader.u8()?;
        let starting_psn = Psn::new(reader.u24()?);
        let local_response = reader.u8()?;
        let pkey = Pkey::new(reader.u16()?);
        let [mtu_and_rnr, retries_and_srq] = reader.array()?;
        Ok(Self {
            local_comm_id,
            reserved4,
            vendor_id,
            service_id,
            local_ca_guid,
            reserved24,
            local_qkey,
            local_qpn,
            responder_resources,
            local_eecn,
            initiator_depth,
            remote_eecn,
            remote_cm_response_timeout: TimeoutCode::new(remote_response >> 3),
            transport_service: TransportService::new(remote_response >> 1),
            end_to_end_flow_control: remote_response & 0x01 != 0,
            starting_psn,
            local_cm_response_timeout: TimeoutCode::new(local_response >> 3),
            retry_count: RetryCount::new(local_response & 0x07),
            pkey,
            path_mtu: MtuCode::new(mtu_and_rnr >> 4),
            rdc_exists: mtu_and_rnr & 0x08 != 0,
            rnr_retry_count: RetryCount::new(mtu_and_rnr & 0x07),
            max_cm_retries: retries_and_srq >> 4,
            srq: retries_and_srq & 0x08 != 0,
            extended_transport: retries_and_srq & 0x07,
            primary_path: Path::parse_req(&mut reader)?,
            alternate_path: Path::parse_req(&mut reader)?,
            private_data: PrivateData::parse(&mut reader)?,
        })
    }

    /// Writes the message.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u32(self.local_comm_id.get());
        writer.u8(self.reserved4);
        writer.u24(self.vendor_id);
        writer.u64(self.service_id.get());
        writer.u64(self.local_ca_guid.get());
        writer.u32(self.reserved24);
        writer.u32(self.local_qkey.get());
        writer.u24(self.local_qpn.get());
        writer.u8(self.responder_resources);
        writer.u24(self.local_eecn.get());
        writer.u8(self.initiator_depth);
        writer.u24(self.remote_eecn.get());
        writer.u8(self.remote_cm_response_timeout.get() << 3
            | self.transport_service.get() << 1
            | u8::from(self.end_to_end_flow_control));
        writer.u24(self.starting_psn.get());
        writer.u8(self.local_cm_response_timeout.get() << 3 | self.retry_count.get());
        writer.u16(self.pkey.get());
        writer.u8(self.path_mtu.get() << 4
            | u8::from(self.rdc_exists) << 3
            | self.rnr_retry_count.get());
        writer.u8(self.max_cm_retries << 4
            | u8::from(self.srq) << 3
            | self.extended_transport & 0x07);
        self.primary_path.emit_req(writer);
        self.alternate_path.emit_req(writer);
        self.private_data.emit(writer);
    }

    /// The octets of the message.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }

    /// Whether there is an alternate path, by the rule of Linux' connection manager for RoCE.
    pub fn has_alternate_path(&self) -> bool {
        self.alternate_path.local_lid != Lid::default()
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REQ {} for service {}: {} QP {} PSN {} MTU {} responder resources {} \
             initiator depth {} retry {} RNR retry {}, {}",
            self.local_comm_id,
            self.service_id,
            self.transport_service,
            self.local_qpn,
            self.starting_psn,
            self.path_mtu,
            self.responder_resources,
            self.initiator_depth,
            self.retry_count,
            self.rnr_retry_count,
            self.primary_path
        )
    }
}
