//! What an unreliable connection does differently: nothing is acknowledged, a message that lacks a
//! packet is forgotten, and so is one that cannot be carried out.

use softverbs_wire::ib::{OpcodeInfo, Operation, Packet};

use super::inbound::{Message, check_order, check_payload};
use super::nak::RequestFault;
use super::queue_pair::{QpFailure, QueuePair};
use crate::memory::Memory;
use crate::qp_state::QpState;
use crate::wr::WcStatus;

impl QueuePair {
    /// A packet of the peer on an unreliable connection, or a train of `count`.
    pub(super) fn on_unreliable<M: Memory>(
        &mut self,
        memory: &mut M,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        count: u32,
    ) {
        let receives = matches!(
            self.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        );
        if !receives {
            self.counters.dropped += 1;
            return;
        }
        let psn = packet.headers.bth.psn;
        if psn != self.responder.expected {
            self.counters.out_of_sequence += 1;
            self.forget_message();
        }
        self.responder.expected = psn.advance(count);
        if info.position.starts() {
            // One that has not ended never will.
            self.forget_message();
        }
        match self.execute_unreliable(memory, packet, info, count) {
            Ok(()) => {
                if info.position.ends() {
                    self.responder.msn = self.responder.msn.next();
                }
            }
            Err(fault @ RequestFault::Receive(_)) => {
                self.fail_receive(fault.receive_status());
                self.fail(QpFailure::Local, None);
            }
            // The rest of the message finds no beginning, and is dropped as well.
            Err(_) => {
                self.counters.dropped += 1;
                self.forget_message();
            }
        }
    }

    fn execute_unreliable<M: Memory>(
        &mut self,
        memory: &mut M,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        count: u32,
    ) -> Result<(), RequestFault> {
        check_order(self.responder.message.as_ref(), info)?;
        self.heard_of_peer();
        let mtu = self.attributes.mtu();
        check_payload(info.position, packet.payload.len(), count, mtu)?;
        match info.operation {
            Operation::Send => self.receive_send(memory, packet, info),
            Operation::Write => self.receive_write(memory, packet, info),
            _ => Err(RequestFault::Unsupported),
        }
    }

    /// The message in the middle is given up; the next one gets its receive.
    fn forget_message(&mut self) {
        if let Some(Message::Send { receive, .. }) = self.responder.message.take() {
            self.responder.spare = Some(receive);
        }
    }

    /// All packets of the oldest request were yielded, which is all that there is to wait for.
    pub(super) fn message_yielded(&mut self) {
        let una = self.requester.next;
        self.requester.set_una(una);
        self.requester.high = una;
        self.sq.complete_oldest(WcStatus::Success);
    }
}
