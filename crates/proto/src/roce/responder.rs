//! RC: what the peer asks for. A pipeline of checks, each of which may refuse: sequence number,
//! order inside the message, operation, payload length, resources, memory; then the request is
//! carried out and acknowledged. Nothing is placed before all checks have passed.

use softverbs_wire::ib::{NakCode, OpcodeInfo, Operation, Packet, Syndrome};
use softverbs_wire::num::{Msn24, Psn, Qpn};

use super::inbound::{Message, check_order, check_payload};
use super::nak::RequestFault;
use super::queue_pair::QueuePair;
use super::read_atomic::Answers;
use crate::memory::Memory;
use crate::qp_state::{QpState, QpType};
use crate::wr::RecvRequest;

#[derive(Clone, Debug, Hash)]
pub(super) struct Responder {
    /// The sequence number of the next request packet.
    pub(super) expected: Psn,
    /// Messages carried out.
    pub(super) msn: Msn24,
    pub(super) message: Option<Message>,
    /// A receive that an unreliable message took and did not use.
    pub(super) spare: Option<RecvRequest>,
    /// The shared receive queue that the message in the middle, or the last one, is for (XRC).
    pub(super) srq: Option<Qpn>,
    /// The peer was told that `expected` is missing, or that it has to wait with it.
    gap_told: bool,
    pub(super) answers: Answers,
}

impl Responder {
    pub(super) fn new(expected: Psn) -> Self {
        Self {
            expected,
            msn: Msn24::ZERO,
            message: None,
            spare: None,
            srq: None,
            gap_told: false,
            answers: Answers::default(),
        }
    }
}

impl QueuePair {
    /// A request of the peer on a reliable connection, of `count` packets.
    pub(super) fn on_request<M: Memory>(
        &mut self,
        memory: &mut M,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        count: u32,
    ) {
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            self.counters.dropped += 1;
            return;
        }
        let bth = &packet.headers.bth;
        match bth.psn.distance_from(self.responder.expected) {
            0 => match self.execute(memory, packet, info, count) {
                Ok(packets) => {
                    self.responder.expected = bth.psn.advance(packets);
                    self.responder.gap_told = false;
                    let asks =
                        bth.ack_req && matches!(info.operation, Operation::Send | Operation::Write);
                    if asks {
                        self.acknowledge();
                    }
                }
                Err(fault) => self.refuse(bth.psn, fault),
            },
            1.. => self.out_of_sequence(),
            _ => self.duplicate(packet, info),
        }
    }

    /// Carries out a request that is in its order; returns how many sequence numbers it takes.
    fn execute<M: Memory>(
        &mut self,
        memory: &mut M,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        count: u32,
    ) -> Result<u32, RequestFault> {
        check_order(self.responder.message.as_ref(), info)?;
        self.heard_of_peer();
        if self.config.qp_type == QpType::XrcRecv {
            self.select_srq(memory, packet)?;
        }
        if info.has_payload() {
            let mtu = self.attributes.mtu();
            check_payload(info.position, packet.payload.len(), count, mtu)?;
        }
        match info.operation {
            Operation::Send => self.receive_send(memory, packet, info)?,
            Operation::Write => self.receive_write(memory, packet, info)?,
            Operation::ReadRequest => return self.execute_read(memory, packet),
            Operation::CmpSwap | Operation::FetchAdd => {
                self.execute_atomic(memory, packet, info.operation)?;
                return Ok(1);
            }
            _ => return Err(RequestFault::Unsupported),
        }
        if info.position.ends() {
            self.responder.msn = self.responder.msn.next();
        }
        Ok(count)
    }

    /// IBA annex A14: each request packet names the shared receive queue that it is for.
    fn select_srq<M: Memory>(
        &mut self,
        memory: &mut M,
        packet: &Packet<'_>,
    ) -> Result<(), RequestFault> {
        let srq = packet.headers.xrceth.ok_or(RequestFault::Unsupported)?.srq;
        if self.responder.message.is_some() && self.responder.srq != Some(srq) {
            return Err(RequestFault::UnexpectedOpcode);
        }
        if !memory.select_srq(srq) {
            return Err(RequestFault::NoSrq);
        }
        self.responder.srq = Some(srq);
        Ok(())
    }

    /// Everything before `expected` was carried out.
    fn acknowledge(&mut self) {
        let responder = &mut self.responder;
        // The number before it: all ones is minus one in 24 bits.
        let last = responder.expected.advance(u32::MAX);
        responder.answers.acknowledge(last, responder.msn);
    }

    /// Of a repeated Send or Write. Not with the number of a READ or atomic: should the answer of
    /// that be lost or overtaken, rxe takes the acknowledge for it, and the READ for complete.
    fn acknowledge_again(&mut self, psn: Psn) {
        let responder = &mut self.responder;
        let last = responder.expected.advance(u32::MAX);
        let path_mtu = self.attributes.path_mtu;
        if responder.answers.answered_otherwise(last, path_mtu) {
            responder.answers.acknowledge(psn, responder.msn);
        } else {
            self.acknowledge();
        }
    }

    /// The peer is told, and if the fault is one for good, the connection ends.
    pub(super) fn refuse(&mut self, psn: Psn, fault: RequestFault) {
        if fault == RequestFault::NotReady {
            self.counters.rnr_naks_sent += 1;
            // What follows in the same burst is not worth another word.
            self.responder.gap_told = true;
        }
        if let Some(syndrome) = fault.syndrome(self.attributes.rnr_timer()) {
            let msn = self.responder.msn;
            self.responder.answers.refuse(psn, syndrome, msn);
        }
        if let Some(failure) = fault.failure() {
            self.fail_receive(fault.receive_status());
            self.fail(failure, None);
        }
    }

    /// Something before the packet was lost: it is said once, until the missing one is here.
    fn out_of_sequence(&mut self) {
        self.counters.out_of_sequence += 1;
        if core::mem::replace(&mut self.responder.gap_told, true) {
            return;
        }
        let responder = &mut self.responder;
        responder.answers.refuse(
            responder.expected,
            Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR),
            responder.msn,
        );
    }

    /// A request that was carried out before: its answer was lost, or the network repeated it.
    fn duplicate(&mut self, packet: &Packet<'_>, info: &OpcodeInfo) {
        self.counters.duplicates += 1;
        match info.operation {
            Operation::Send | Operation::Write => self.acknowledge_again(packet.headers.bth.psn),
            Operation::ReadRequest | Operation::CmpSwap | Operation::FetchAdd
                if self.replay(packet).is_some() => {}
            _ => self.counters.dropped += 1,
        }
    }
}
