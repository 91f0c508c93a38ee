//! RC: takes acknowledges, READ responses, results of atomics.

use softverbs_wire::ib::{AethKind, NakCode, OpcodeInfo, Operation, Packet};
use softverbs_wire::num::Psn;

use super::packets::scatter;
use super::queue_pair::QueuePair;
use super::requester::is_answered;
use super::send_queue::Progress;
use crate::memory::Memory;
use crate::qp_state::QpState;
use crate::time::Time;
use crate::wr::{Payload, SendOp, WcStatus};

impl QueuePair {
    /// A response of the peer. One that answers nothing in flight is an old one.
    pub(super) fn on_response<M: Memory>(
        &mut self,
        now: Time,
        memory: &mut M,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        count: u32,
    ) {
        let psn = packet.headers.bth.psn;
        let requester = &self.requester;
        let is_current = !psn.is_before(requester.una) && psn.is_before(requester.high);
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || !is_current {
            self.counters.dropped += 1;
            return;
        }
        match info.operation {
            Operation::Acknowledge => self.on_acknowledge(now, packet),
            Operation::ReadResponse => self.on_read_response(now, memory, packet, count),
            _ => self.on_atomic_acknowledge(now, memory, packet),
        }
    }

    fn on_acknowledge(&mut self, now: Time, packet: &Packet<'_>) {
        let psn = packet.headers.bth.psn;
        let Some(aeth) = packet.headers.aeth else {
            return;
        };
        match aeth.syndrome.kind() {
            AethKind::Ack { .. } => {
                if !self.acknowledged(now, psn.next()) {
                    // The responder is past a READ or atomic whose answer did not arrive.
                    self.lost(now);
                }
            }
            AethKind::RnrNak { timer } => {
                if self.acknowledged(now, psn) {
                    self.receiver_not_ready(now, timer);
                } else {
                    self.lost(now);
                }
            }
            AethKind::Nak {
                code: NakCode::PSN_SEQUENCE_ERROR,
            } => {
                self.acknowledged(now, psn);
                self.lost(now);
            }
            AethKind::Nak { code } => {
                self.acknowledged(now, psn);
                self.refused(psn, code);
            }
            AethKind::Reserved(_) => {}
        }
    }

    /// The peer has everything before `upto`. False if a READ or atomic before it lacks its
    /// answer; then what is before that is acknowledged.
    fn acknowledged(&mut self, now: Time, upto: Psn) -> bool {
        let before = self.requester.una;
        while self.requester.una.is_before(upto) {
            let Some(entry) = self.sq.oldest() else {
                break;
            };
            if entry.progress != Progress::Begun || is_answered(entry.request.op) {
                break;
            }
            let end = entry.end();
            if upto.is_before(end) {
                self.requester.set_una(upto);
            } else {
                self.requester.set_una(end);
                self.sq.complete_oldest(WcStatus::Success);
            }
        }
        self.progressed(now, before);
        !self.requester.una.is_before(upto)
    }

    fn on_read_response<M: Memory>(
        &mut self,
        now: Time,
        memory: &mut M,
        packet: &Packet<'_>,
        count: u32,
    ) {
        let psn = packet.headers.bth.psn;
        let refuses = packet
            .headers
            .aeth
            .is_some_and(|aeth| !matches!(aeth.syndrome.kind(), AethKind::Ack { .. }));
        if refuses {
            self.counters.dropped += 1;
            return;
        }
        // It implies that what is before it has arrived.
        if !self.acknowledged(now, psn) {
            return self.lost(now);
        }
        let Some(entry) = self.sq.oldest() else {
            return;
        };
        let (SendOp::Read { .. }, Payload::Sges(sges)) = (entry.request.op, &entry.request.payload)
        else {
            self.counters.dropped += 1;
            return;
        };
        let mtu = self.attributes.mtu() as u64;
        let offset = u64::from(entry.index_of(psn)) * mtu;
        let expected = (entry.request.payload.len() - offset).min(mtu * u64::from(count));
        if packet.payload.len() as u64 != expected {
            return self.sq.fail_oldest(WcStatus::BadRespErr);
        }
        if scatter(memory, sges, offset, packet.payload).is_err() {
            return self.sq.fail_oldest(WcStatus::LocProtErr);
        }
        self.answered(now, psn, count);
    }

    fn on_atomic_acknowledge<M: Memory>(&mut self, now: Time, memory: &mut M, packet: &Packet<'_>) {
        let psn = packet.headers.bth.psn;
        let Some(result) = packet.headers.atomic_ack_eth else {
            return;
        };
        if !self.acknowledged(now, psn) {
            return self.lost(now);
        }
        let Some(entry) = self.sq.oldest() else {
            return;
        };
        let (SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. }, Payload::Sges(sges)) =
            (entry.request.op, &entry.request.payload)
        else {
            self.counters.dropped += 1;
            return;
        };
        // The word as the host has it, as `Memory::atomic` does.
        if scatter(memory, sges, 0, &result.original.to_ne_bytes()).is_err() {
            return self.sq.fail_oldest(WcStatus::LocProtErr);
        }
        self.answered(now, psn, 1);
    }

    /// The answers of the oldest request from `psn` on, `count` packets, have arrived.
    fn answered(&mut self, now: Time, psn: Psn, count: u32) {
        let before = self.requester.una;
        let after = psn.advance(count);
        self.requester.set_una(after);
        if self.sq.oldest().is_some_and(|entry| entry.end() == after) {
            self.sq.complete_oldest(WcStatus::Success);
        }
        self.progressed(now, before);
    }
}
