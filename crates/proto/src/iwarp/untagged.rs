//! Untagged messages of the peer: Sends, Immediate Data, and the requests and answers that are
//! all header (RFC 5040 §5.4, §5.5; RFC 5041 §5.3; RFC 7306).

use softverbs_wire::codec::Reader;
use softverbs_wire::ddp::UntaggedHeader;
use softverbs_wire::num::{MessageOffset, Msn};
use softverbs_wire::rdmap::{AtomicRequest, AtomicResponse, ImmediateData, Opcode, ReadRequest};

use super::inbound::{Kind, Segment};
use super::negotiate::RtrKind;
use super::stream::{CloseCause, Stream};
use super::terminate;
use crate::fault::{Fault, LocalFault, PeerViolation, RemoteOperation};
use crate::memory::{Access, Memory};
use crate::wr::{Completion, RecvRequest, Sge, WcOpcode, WcStatus};

/// A Send in the middle.
#[derive(Clone, Debug, Hash)]
pub(super) struct Receiving {
    receive: RecvRequest,
    opcode: Opcode,
    /// What the receive has room for.
    capacity: u64,
    received: u64,
    /// How the receive completes if the stream ends now.
    status: WcStatus,
}

impl Receiving {
    fn new(receive: RecvRequest, opcode: Opcode) -> Self {
        let capacity = receive.sges.iter().map(|sge| u64::from(sge.length)).sum();
        Self {
            receive,
            opcode,
            capacity,
            received: 0,
            status: WcStatus::WrFlushErr,
        }
    }

    pub(super) fn sges(&self) -> &[Sge] {
        &self.receive.sges
    }

    pub(super) const fn received(&self) -> u64 {
        self.received
    }
}

impl Stream {
    pub(super) fn check_send<M: Memory>(
        &mut self,
        memory: &mut M,
        header: &UntaggedHeader,
        len: usize,
    ) -> Result<Kind, Fault> {
        check_order(header, self.inbound.next_send)?;
        if self.inbound.message.is_none() {
            check_offset(header, 0)?;
            if self.is_rtr_send(header, len) {
                self.inbound.next_send = self.inbound.next_send.next();
                return Ok(Kind::Nothing);
            }
            self.take_receive(memory, header.control.opcode())?;
        }
        let Some(message) = &self.inbound.message else {
            return Err(PeerViolation::NoReceive.into());
        };
        check_offset(header, message.received)?;
        if message.opcode != header.control.opcode() {
            return Err(PeerViolation::UnexpectedOpcode.into());
        }
        if message.received + len as u64 > message.capacity {
            self.receive_fails(WcStatus::LocLenErr);
            return Err(PeerViolation::MessageTooLong.into());
        }
        Ok(Kind::Message)
    }

    /// RFC 6581 §9: an RTR frame is the first of all, and its Send takes no receive.
    fn is_rtr_send(&self, header: &UntaggedHeader, len: usize) -> bool {
        let rtr = self.negotiated.as_ref().and_then(|agreed| agreed.rtr);
        rtr == Some(RtrKind::Send)
            && !self.is_initiator()
            && !self.inbound.begun
            && len == 0
            && header.control.is_last()
            && header.control.opcode() == Opcode::SEND
    }

    /// Begins a message with the oldest receive.
    fn take_receive<M: Memory>(&mut self, memory: &mut M, opcode: Opcode) -> Result<(), Fault> {
        let receive = memory.take_receive().ok_or(PeerViolation::NoReceive)?;
        let checked = receive
            .sges
            .iter()
            .filter(|sge| sge.length > 0)
            .try_for_each(|sge| memory.check_local(sge, Access::LOCAL_WRITE));
        self.inbound.message = Some(Receiving::new(receive, opcode));
        checked.map_err(|fault| {
            self.receive_fails(WcStatus::LocProtErr);
            LocalFault::Protection(fault)
        })?;
        Ok(())
    }

    /// The receive of the message in the middle is going to complete with this status.
    pub(super) const fn receive_fails(&mut self, status: WcStatus) {
        if let Some(message) = &mut self.inbound.message {
            message.status = status;
        }
    }

    pub(super) fn finish_send<M: Memory>(
        &mut self,
        memory: &mut M,
        segment: Segment,
    ) -> Result<(), Fault> {
        let Some(message) = &mut self.inbound.message else {
            return Ok(());
        };
        message.received += segment.len as u64;
        if !segment.last {
            return Ok(());
        }
        if let Some(key) = segment.invalidates {
            memory.invalidate(key).map_err(|fault| {
                self.receive_fails(WcStatus::RemInvReqErr);
                PeerViolation::Protection {
                    operation: RemoteOperation::Invalidate,
                    fault,
                }
            })?;
        }
        let Some(message) = self.inbound.message.take() else {
            return Ok(());
        };
        self.inbound.next_send = self.inbound.next_send.next();
        self.inbound.written = 0;
        self.recv_completions.push_back(Completion {
            wr_id: message.receive.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: octets(message.received),
            imm: None,
            invalidated: segment.invalidates,
            solicited: message.opcode.is_solicited(),
        });
        Ok(())
    }

    /// The stream has ended: so has the message in the middle.
    pub(super) fn flush_message(&mut self) {
        if let Some(message) = self.inbound.message.take() {
            self.recv_completions.push_back(Completion {
                wr_id: message.receive.wr_id,
                status: message.status,
                opcode: WcOpcode::Recv,
                byte_len: 0,
                imm: None,
                invalidated: None,
                solicited: false,
            });
        }
    }

    /// A message that is all header.
    pub(super) fn control_message<M: Memory>(
        &mut self,
        memory: &mut M,
        header: &UntaggedHeader,
        body: &mut Reader<'_>,
    ) -> Result<(), Fault> {
        match header.control.opcode() {
            Opcode::READ_REQUEST => {
                let request = ReadRequest::parse(body)?;
                self.offender.request = Some(request);
                check_whole(header, self.responder.expected())?;
                self.read_request(memory, header, &request)
            }
            Opcode::ATOMIC_REQUEST => {
                let request = AtomicRequest::parse(body)?;
                check_whole(header, self.responder.expected())?;
                self.atomic_request(memory, header, &request)
            }
            Opcode::ATOMIC_RESPONSE => {
                let response = AtomicResponse::parse(body)?;
                check_whole(header, self.requester.expected_atomic_response())?;
                self.atomic_response(memory, response)
            }
            Opcode::TERMINATE => {
                self.terminated(header, body.rest());
                Ok(())
            }
            _ => {
                let data = ImmediateData::parse(body)?;
                check_whole(header, self.inbound.next_send)?;
                self.immediate(memory, header, data)
            }
        }
    }

    /// RFC 7306 §6: takes a receive as a Send does, and reports what the RDMA Write before it
    /// wrote.
    fn immediate<M: Memory>(
        &mut self,
        memory: &mut M,
        header: &UntaggedHeader,
        data: ImmediateData,
    ) -> Result<(), Fault> {
        if self.inbound.message.is_some() {
            return Err(PeerViolation::UnexpectedOpcode.into());
        }
        let receive = memory.take_receive().ok_or(PeerViolation::NoReceive)?;
        self.inbound.next_send = self.inbound.next_send.next();
        let written = core::mem::take(&mut self.inbound.written);
        self.recv_completions.push_back(Completion {
            wr_id: receive.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::RecvRdmaWithImm,
            byte_len: octets(written),
            imm: Some(immediate_value(data)),
            invalidated: None,
            solicited: header.control.opcode().is_solicited(),
        });
        Ok(())
    }

    fn terminated(&mut self, header: &UntaggedHeader, body: &[u8]) {
        // A Terminate that is wrong itself ends the stream as well (RFC 5040 §4.8).
        let (code, blame) = terminate::interpret(body);
        let blame = if check_whole(header, Msn::FIRST).is_ok() {
            blame
        } else {
            None
        };
        self.end_with(CloseCause::PeerTerminated(code), None, blame);
    }
}

/// The verbs have 32 bits of immediate data, the wire has 64: they are one number.
pub(super) fn immediate_data(value: u32) -> ImmediateData {
    ImmediateData(u64::from(value).to_be_bytes())
}

fn immediate_value(ImmediateData([_, _, _, _, low @ ..]): ImmediateData) -> u32 {
    u32::from_be_bytes(low)
}

fn octets(len: u64) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Queue and sequence number.
fn check_order(header: &UntaggedHeader, expected: Msn) -> Result<(), PeerViolation> {
    if header.control.opcode().queue() != Some(header.queue) {
        return Err(PeerViolation::WrongQueue);
    }
    // TCP delivers in order: a gap or a repetition is the peer's mistake.
    if header.msn != expected {
        return Err(PeerViolation::MessageSequence);
    }
    Ok(())
}

fn check_offset(header: &UntaggedHeader, expected: u64) -> Result<(), PeerViolation> {
    if u64::from(header.mo.get()) != expected {
        return Err(PeerViolation::MessageOffset);
    }
    Ok(())
}

/// A message of a single segment.
fn check_whole(header: &UntaggedHeader, expected: Msn) -> Result<(), PeerViolation> {
    check_order(header, expected)?;
    if header.mo != MessageOffset::ZERO {
        return Err(PeerViolation::MessageOffset);
    }
    // What would follow has no room any more.
    if !header.control.is_last() {
        return Err(PeerViolation::MessageTooLong);
    }
    Ok(())
}
