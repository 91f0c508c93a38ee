//! The base transport header, with which every packet starts (IBA vol 1 ch 9, BTH).
//!
//! ```text
//!  0        1                  2        4                5         8             9
//! | opcode | SE M pad(2) TVer | P_Key  | F B resv6      | dest QP | A resv7     | PSN |
//! ```

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::Opcode;
use crate::num::{Pkey, Psn, Qpn};

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const PAD_SHIFT: u32 = 4;
const PAD: u8 = 0x03;
const TRANSPORT_VERSION: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const RESERVED_6: u8 = 0x3f;
const ACK_REQ: u8 = 0x80;
const RESERVED_7: u8 = 0x7f;

/// The base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// SE: the receiver raises a solicited event when the message completes.
    pub solicited: bool,
    /// M (MigReq): the sender's path migration state is Migrated. Linux' rxe sends it clear,
    /// adapters set.
    pub mig_req: bool,
    /// PadCnt: how many octets after the payload align the packet to 4. Two bits.
    pub pad_count: u8,
    /// TVer: version of the transport headers. Four bits.
    pub transport_version: u8,
    /// The partition.
    pub pkey: Pkey,
    /// F: the packet has met congestion. Variant: not covered by the ICRC.
    pub fecn: bool,
    /// B: packets to this one's destination have met congestion. Variant as F.
    pub becn: bool,
    /// The six bits after F and B. Variant as they are.
    pub reserved6: u8,
    /// The queue pair that the packet is for.
    pub dest_qp: Qpn,
    /// A (AckReq): the responder is to acknowledge.
    pub ack_req: bool,
    /// The seven bits after A.
    pub reserved7: u8,
    /// The packet's sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length of the header.
    pub const LEN: usize = 12;

    /// The transport version of the IBA.
    pub const TRANSPORT_VERSION: u8 = 0;

    /// Where the octet of F, B and the six reserved bits is, which the ICRC takes as ones.
    pub(crate) const VARIANT_OCTET: usize = 4;

    /// A header of the current version in the default partition, all flags clear.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: false,
            pad_count: 0,
            transport_version: Self::TRANSPORT_VERSION,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            reserved6: 0,
            dest_qp,
            ack_req: false,
            reserved7: 0,
            psn,
        }
    }

    /// Reads the header. Any 12 octets are one.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        let opcode = Opcode::new(header.u8()?);
        let flags = header.u8()?;
        let pkey = Pkey::new(header.u16()?);
        let congestion = header.u8()?;
        let dest_qp = Qpn::new(header.u24()?);
        let acknowledge = header.u8()?;
        Ok(Self {
            opcode,
            solicited: flags & SOLICITED != 0,
            mig_req: flags & MIG_REQ != 0,
            pad_count: flags >> PAD_SHIFT & PAD,
            transport_version: flags & TRANSPORT_VERSION,
            pkey,
            fecn: congestion & FECN != 0,
            becn: congestion & BECN != 0,
            reserved6: congestion & RESERVED_6,
            dest_qp,
            ack_req: acknowledge & ACK_REQ != 0,
            reserved7: acknowledge & RESERVED_7,
            psn: Psn::new(header.u24()?),
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.solicited, SOLICITED)
            | flag(self.mig_req, MIG_REQ)
            | (self.pad_count & PAD) << PAD_SHIFT
            | self.transport_version & TRANSPORT_VERSION;
        let [pkey_high, pkey_low] = self.pkey.get().to_be_bytes();
        let congestion =
            flag(self.fecn, FECN) | flag(self.becn, BECN) | self.reserved6 & RESERVED_6;
        let [_, qp_high, qp_middle, qp_low] = self.dest_qp.get().to_be_bytes();
        let acknowledge = flag(self.ack_req, ACK_REQ) | self.reserved7 & RESERVED_7;
        let [_, psn_high, psn_middle, psn_low] = self.psn.get().to_be_bytes();
        // In one piece: every packet has this header.
        writer.bytes(&[
            self.opcode.get(),
            flags,
            pkey_high,
            pkey_low,
            congestion,
            qp_high,
            qp_middle,
            qp_low,
            acknowledge,
            psn_high,
            psn_middle,
            psn_low,
        ]);
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }
}

impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to QP {} PSN {}", self.opcode, self.dest_qp, self.psn)?;
        for (set, name) in [
            (self.solicited, "SE"),
            (self.mig_req, "MigReq"),
            (self.fecn, "FECN"),
            (self.becn, "BECN"),
            (self.ack_req, "AckReq"),
        ] {
            if set {
                write!(f, " {name}")?;
            }
        }
        if self.pad_count != 0 {
            write!(f, " pad {}", self.pad_count)?;
        }
        if self.pkey != Pkey::DEFAULT {
            write!(f, " P_Key {}", self.pkey)?;
        }
        if self.transport_version != Self::TRANSPORT_VERSION {
            write!(f, " TVer {}", self.transport_version)?;
        }
        if (self.reserved6, self.reserved7) != (0, 0) {
            write!(
                f,
                " reserved {:#04x} {:#04x}",
                self.reserved6, self.reserved7
            )?;
        }
        Ok(())
    }
}
