//! A path of a connection, inside REQ and LAP.

use std::fmt;

use crate::codec::{Malformed, Reader, Writer};
use crate::num::{FlowLabel, Gid, Lid, TimeoutCode};

/// How packets get from one side of a connection to the other (IBA vol 1 ch 12, REQ and LAP). The
/// default is all zeros, which stands for a path that there is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path {
    /// LID of the sender's port.
    pub local_lid: Lid,
    /// LID of the recipient's port.
    pub remote_lid: Lid,
    /// GID of the sender's port.
    pub local_gid: Gid,
    /// GID of the recipient's port.
    pub remote_gid: Gid,
    /// Flow label of the path's packets.
    pub flow_label: FlowLabel,
    /// Rate of the path. Six bits; 0 stands for the port's.
    pub packet_rate: u8,
    /// Traffic class of the path's packets.
    pub traffic_class: u8,
    /// Hop limit of the path's packets.
    pub hop_limit: u8,
    /// Service level. Four bits.
    pub sl: u8,
    /// Whether both ports are in one subnet, so that packets need no GRH.
    pub subnet_local: bool,
    /// How long the recipient's queue pair waits for an acknowledge; 0 is without end.
    pub local_ack_timeout: TimeoutCode,
    /// The reserved bits in their order: six before the rate, three and three at the end.
    pub reserved: u16,
}

impl Path {
    /// Length in either message.
    pub const LEN: usize = 44;

    /// Reads a path of a REQ.
    pub(super) fn parse_req(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let path = Self::parse_addresses(reader)?;
        let word = reader.u32()?;
        let [.., before_rate, _] = (word << 2).to_be_bytes();
        let [.., rate] = word.to_be_bytes();
        Ok(Self {
            flow_label: FlowLabel::new(word >> 12),
            packet_rate: rate & 0x3f,
            traffic_class: reader.u8()?,
            hop_limit: reader.u8()?,
            reserved: u16::from(before_rate & 0x3f) << 6,
            ..path
        }
        .with_end(reader.array()?))
    }

    /// Writes a path of a REQ.
    pub(super) fn emit_req(&self, writer: &mut Writer<'_>) {
        self.emit_addresses(writer);
        let before_rate = u32::from(self.reserved >> 6 & 0x3f);
        writer.u32(
            self.flow_label.get() << 12 | before_rate << 6 | u32::from(self.packet_rate & 0x3f),
        );
        writer.u8(self.traffic_class);
        writer.u8(self.hop_limit);
        writer.bytes(&self.end());
    }

    /// Reads the path of a LAP, which has the rate in another place.
    pub(super) fn parse_lap(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let path = Self::parse_addresses(reader)?;
        let word = reader.u32()?;
        let [_, _, before_class, traffic_class] = word.to_be_bytes();
        let [hop_limit, rate] = reader.array()?;
        Ok(Self {
            flow_label: FlowLabel::new(word >> 12),
            packet_rate: rate & 0x3f,
            traffic_class,
            hop_limit,
            reserved: u16::from(before_class & 0x0f) << 8 | u16::from(rate >> 6) << 6,
            ..path
        }
        .with_end(reader.array()?))
    }

    /// Writes the path of a LAP.
    pub(super) fn emit_lap(&self, writer: &mut Writer<'_>) {
        self.emit_addresses(writer);
        let before_class = u32::from(self.reserved >> 8 & 0x0f);
        writer.u32(self.flow_label.get() << 12 | before_class << 8 | u32::from(self.traffic_class));
        writer.u8(self.hop_limit);
        let [_, before_rate] = (self.reserved & 0xc0).to_be_bytes();
        writer.u8(before_rate | self.packet_rate & 0x3f);
        writer.bytes(&self.end());
    }

    fn parse_addresses(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            local_lid: Lid::new(reader.u16()?),
            remote_lid: Lid::new(reader.u16()?),
            local_gid: Gid::new(reader.array()?),
            remote_gid: Gid::new(reader.array()?),
            ..Self::default()
        })
    }

    fn emit_addresses(&self, writer: &mut Writer<'_>) {
        writer.u16(self.local_lid.get());
        writer.u16(self.remote_lid.get());
        writer.bytes(&self.local_gid.get());
        writer.bytes(&self.remote_gid.get());
    }

    /// The path with the last two octets, which REQ and LAP have in common.
    const fn with_end(mut self, [service, timeout]: [u8; 2]) -> Self {
        self.sl = service >> 4;
        self.subnet_local = service & 0x08 != 0;
        self.local_ack_timeout = TimeoutCode::new(timeout >> 3);
        self.reserved |= (service as u16 & 0x07) << 3 | timeout as u16 & 0x07;
        self
    }

    fn end(&self) -> [u8; 2] {
        let [_, reserved] = (self.reserved & 0x3f).to_be_bytes();
        [
            self.sl << 4 | u8::from(self.subnet_local) << 3 | reserved >> 3,
            self.local_ack_timeout.get() << 3 | reserved & 0x07,
        ]
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} to {} flow {} ACK timeout {}",
            self.local_gid, self.remote_gid, self.flow_label, self.local_ack_timeout
        )
    }
}
