//! What an FPDU has to satisfy, as a pipeline of small checks, and where its payload goes.
//!
//! Segments with payload pass through `begin` (all checks), `place` (as often as payload comes)
//! and `finish` (what the whole segment brings about). Other messages are handled at once.

use softverbs_wire::codec::{Malformed, Reader};
use softverbs_wire::ddp::{Control, DdpHeader};
use softverbs_wire::mpa::UlpduLength;
use softverbs_wire::num::{Lkey, Msn, Rkey};
use softverbs_wire::rdmap::{AtomicRequest, AtomicResponse, ImmediateData, Opcode, ReadRequest};
use softverbs_wire::terminate::Terminate;

use super::send_queue::parts;
use super::stream::Stream;
use super::terminate::Offender;
use super::{tagged::WriteProgress, untagged::Receiving};
use crate::fault::{Fault, LocalFault, PeerViolation, RemoteOperation};
use crate::memory::{Memory, MemoryFault};
use crate::wr::WcStatus;

/// What kind of segment it is, for whoever collects its octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A header, and payload that has a place.
    Data,
    /// A message of a size that its opcode prescribes.
    Control,
    /// Such a message, but longer.
    TooLong,
}

/// Whose payload the current segment carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// None that is placed.
    Nothing,
    /// An RDMA Write to our memory at `to`.
    Write { key: Lkey, to: u64 },
    /// A Read Response; it goes where the oldest read wants it.
    ReadResponse,
    /// A Send; it goes to the receive that the message took.
    Message,
}

/// The current segment.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Segment {
    pub(super) kind: Kind,
    /// Octets of its payload.
    pub(super) len: usize,
    /// How many of them are placed.
    pub(super) placed: usize,
    /// L: it ends its message.
    pub(super) last: bool,
    /// The key that the message invalidates.
    pub(super) invalidates: Option<Rkey>,
}

/// The peer's messages.
#[derive(Clone, Debug, Hash)]
pub(super) struct Inbound {
    pub(super) segment: Segment,
    /// An RDMA Write in the middle.
    pub(super) write: Option<WriteProgress>,
    /// Octets of the RDMA Write that ended last, if no message has come since.
    pub(super) written: u64,
    /// A Send in the middle.
    pub(super) message: Option<Receiving>,
    /// What the next message of the queue of Sends is numbered.
    pub(super) next_send: Msn,
    /// Whether an FPDU has been accepted.
    pub(super) begun: bool,
}

impl Inbound {
    pub(super) const fn new() -> Self {
        Self {
            segment: Segment {
                kind: Kind::Nothing,
                len: 0,
                placed: 0,
                last: true,
                invalidates: None,
            },
            write: None,
            written: 0,
            message: None,
            next_send: Msn::FIRST,
            begun: false,
        }
    }

    /// Whether a message is in the middle.
    pub(super) const fn is_busy(&self) -> bool {
        self.write.is_some() || self.message.is_some()
    }
}

impl Stream {
    /// What a segment with this control word and length is, if it may be here at all.
    pub(super) fn shape(&self, control: Control, ulpdu_len: u16) -> Result<Shape, Fault> {
        check_versions(control)?;
        self.check_opcode(control)?;
        let Some(body) = usize::from(ulpdu_len).checked_sub(DdpHeader::len_of(control)) else {
            return Err(Malformed::Truncated.into());
        };
        let (least, most) = match control.opcode() {
            Opcode::READ_REQUEST => (ReadRequest::LEN, ReadRequest::LEN),
            Opcode::ATOMIC_REQUEST => (AtomicRequest::LEN, AtomicRequest::LEN),
            Opcode::ATOMIC_RESPONSE => (AtomicResponse::LEN, AtomicResponse::LEN),
            Opcode::IMMEDIATE | Opcode::IMMEDIATE_SE => (ImmediateData::LEN, ImmediateData::LEN),
            Opcode::TERMINATE => (Terminate::LEN, Terminate::MAX_LEN),
            _ => return Ok(Shape::Data),
        };
        if body < least {
            Err(Malformed::Truncated.into())
        } else if body > most {
            Ok(Shape::TooLong)
        } else {
            Ok(Shape::Control)
        }
    }

    fn check_opcode(&self, control: Control) -> Result<(), PeerViolation> {
        let opcode = control.opcode();
        let beyond_rfc5040 = opcode.get() > Opcode::TERMINATE.get();
        let negotiated = self
            .negotiated
            .as_ref()
            .is_some_and(|agreed| agreed.rfc7306);
        if !opcode.is_known()
            || opcode.is_tagged() != control.is_tagged()
            || (beyond_rfc5040 && !negotiated)
        {
            return Err(PeerViolation::UnexpectedOpcode);
        }
        Ok(())
    }

    /// A whole ULPDU, whose CRC was checked.
    pub(super) fn ulpdu<M: Memory>(
        &mut self,
        memory: &mut M,
        length: UlpduLength,
        ulpdu: &[u8],
    ) -> Result<(), Fault> {
        self.offender = Offender {
            ulpdu_len: length.get(),
            ..Offender::default()
        };
        let mut reader = Reader::new(ulpdu);
        let control = Control::parse(&mut reader.clone())?;
        let shape = self.shape(control, length.get())?;
        let header = DdpHeader::parse(&mut reader)?;
        self.offender.header = Some(header);
        match (shape, header) {
            (Shape::Data, header) => {
                let payload = reader.rest();
                self.begin(memory, header, payload.len())?;
                self.place(memory, payload)?;
                self.finish(memory)
            }
            (Shape::Control, DdpHeader::Untagged(header)) => {
                self.control_message(memory, &header, &mut reader)?;
                self.fpdu_accepted();
                Ok(())
            }
            (Shape::Control | Shape::TooLong, _) => Err(PeerViolation::MessageTooLong.into()),
        }
    }

    /// Checks a segment with `len` octets of payload; after it they may be placed.
    pub(super) fn begin<M: Memory>(
        &mut self,
        memory: &mut M,
        header: DdpHeader,
        len: usize,
    ) -> Result<(), Fault> {
        let control = header.control();
        let opcode = control.opcode();
        let (kind, invalidates) = match header {
            DdpHeader::Tagged(header) if opcode == Opcode::WRITE => {
                (self.check_write(memory, &header, len)?, None)
            }
            DdpHeader::Tagged(header) => (self.check_read_response(&header, len)?, None),
            DdpHeader::Untagged(header) => {
                let kind = self.check_send(memory, &header, len)?;
                (
                    kind,
                    opcode.invalidates().then(|| header.invalidate_stag.into()),
                )
            }
        };
        let last = control.is_last();
        self.inbound.segment = Segment {
            kind,
            len,
            placed: 0,
            last,
            invalidates,
        };
        Ok(())
    }

    /// Octets of payload of the segment that was begun last.
    pub const fn segment_len(&self) -> usize {
        self.inbound.segment.len
    }

    /// The memory of the next `len` octets of the current segment's payload.
    pub(super) fn for_each_place<E>(
        &self,
        len: usize,
        mut place: impl FnMut(Lkey, u64, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let placed = self.inbound.segment.placed as u64;
        let (sges, offset) = match self.inbound.segment.kind {
            Kind::Nothing => return Ok(()),
            Kind::Write { key, to } => return place(key, to.wrapping_add(placed), len),
            Kind::Message => match &self.inbound.message {
                Some(message) => (message.sges(), message.received()),
                None => return Ok(()),
            },
            Kind::ReadResponse => match self.read_sink() {
                Some(sink) => sink,
                None => return Ok(()),
            },
        };
        parts(sges, offset + placed, len).try_for_each(|(key, addr, len)| place(key, addr, len))
    }

    /// Places payload of the current segment.
    pub(super) fn place<M: Memory>(&mut self, memory: &mut M, payload: &[u8]) -> Result<(), Fault> {
        if payload.is_empty() {
            return Ok(());
        }
        let mut rest = payload;
        let placed = self.for_each_place(payload.len(), |key, addr, len| {
            let (here, after) = rest.split_at(len);
            rest = after;
            memory.write(key, addr, here)
        });
        placed.map_err(|fault| self.placement_fault(fault))?;
        self.advance_placed(payload.len());
        Ok(())
    }

    /// Payload of the current segment has been placed.
    pub(super) const fn advance_placed(&mut self, octets: usize) {
        self.inbound.segment.placed += octets;
    }

    /// Memory that had been checked is not there any more.
    pub(super) fn placement_fault(&mut self, fault: MemoryFault) -> Fault {
        match self.inbound.segment.kind {
            Kind::Nothing | Kind::Write { .. } => PeerViolation::Protection {
                operation: RemoteOperation::Write,
                fault,
            }
            .into(),
            Kind::Message => {
                self.receive_fails(WcStatus::LocProtErr);
                LocalFault::Protection(fault).into()
            }
            Kind::ReadResponse => {
                self.read_fails(LocalFault::Protection(fault));
                LocalFault::Protection(fault).into()
            }
        }
    }

    /// All payload of the current segment is placed and its CRC is right.
    pub(super) fn finish<M: Memory>(&mut self, memory: &mut M) -> Result<(), Fault> {
        let segment = self.inbound.segment;
        match segment.kind {
            Kind::Nothing => {}
            Kind::Write { .. } => self.finish_write(segment),
            Kind::ReadResponse => self.finish_read_response(segment)?,
            Kind::Message => self.finish_send(memory, segment)?,
        }
        self.fpdu_accepted();
        Ok(())
    }
}

fn check_versions(control: Control) -> Result<(), PeerViolation> {
    if control.ddp_version() != Control::DDP_VERSION {
        return Err(PeerViolation::DdpVersion {
            tagged: control.is_tagged(),
        });
    }
    if control.rdmap_version() != Control::RDMAP_VERSION {
        return Err(PeerViolation::RdmapVersion);
    }
    Ok(())
}
