//! The attributes that name the messages (IBA vol 1 ch 16, communication management attributes).

use crate::ib::mad::AttributeId;

/// Request for communication: [`Req`](super::Req).
pub const REQ: AttributeId = AttributeId::new(0x0010);
/// Message receipt acknowledgement: [`Mra`](super::Mra).
pub const MRA: AttributeId = AttributeId::new(0x0011);
/// Reject: [`Rej`](super::Rej).
pub const REJ: AttributeId = AttributeId::new(0x0012);
/// Reply: [`Rep`](super::Rep).
pub const REP: AttributeId = AttributeId::new(0x0013);
/// Ready to use: [`Rtu`](super::Rtu).
pub const RTU: AttributeId = AttributeId::new(0x0014);
/// Request for disconnection: [`Dreq`](super::Dreq).
pub const DREQ: AttributeId = AttributeId::new(0x0015);
/// Reply to it: [`Drep`](super::Drep).
pub const DREP: AttributeId = AttributeId::new(0x0016);
/// Service ID resolution request: [`SidrReq`](super::SidrReq).
pub const SIDR_REQ: AttributeId = AttributeId::new(0x0017);
/// Service ID resolution response: [`SidrRep`](super::SidrRep).
pub const SIDR_REP: AttributeId = AttributeId::new(0x0018);
/// Load alternate path: [`Lap`](super::Lap).
pub const LAP: AttributeId = AttributeId::new(0x0019);
/// Alternate path response: [`Apr`](super::Apr).
pub const APR: AttributeId = AttributeId::new(0x001a);
