//! RC and UC: turns requests into packets, and again from the same requests after a loss.
//!
//! Each packet of a message has a sequence number, and so has each response packet that a READ
//! is going to have. `una` is the oldest number without an acknowledge, `next` the one to send,
//! `high` the one that was never sent; going back after a loss sets `next` to `una`.
//!
//! A READ may be asked for in pieces, as the congestion window allows: to the responder each is
//! a READ of its own. Where one piece was cut from another stays cut until it is acknowledged,
//! since a responder repeats no more than what it knows as one READ (see `read_atomic`). A piece
//! that has to go out again is not cut any more, but by a probe.

use std::collections::VecDeque;

use softverbs_wire::ib::{
    AtomicEth, Extra, Headers, Ieth, ImmDt, Opcode, Operation, Position, Reth, Service, Xrceth,
};
use softverbs_wire::num::{Psn, Qpn, VirtualAddress};

use super::batch::{Destination, PacketBatch};
use super::packets::{self, Source};
use super::queue_pair::QueuePair;
use super::recovery::Recovery;
use super::send_queue::{Entry, Progress};
use super::train;
use crate::memory::{Access, Memory, MemoryFault};
use crate::qp_state::{QpState, QpType};
use crate::time::Time;
use crate::wr::{Payload, SendFlags, SendOp, SendRequest, WcStatus};

/// Most packets of a message before an acknowledge is asked for.
const ACK_EVERY: u32 = 16;

/// A READ or atomic that was asked for and not answered, or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Piece {
    /// First response that is missing.
    pub(super) first: Psn,
    /// The number after its last.
    pub(super) end: Psn,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Requester {
    pub(super) una: Psn,
    pub(super) next: Psn,
    pub(super) high: Psn,
    /// Oldest first, without gaps inside a request.
    pieces: VecDeque<Piece>,
    /// Packets since an acknowledge was asked for.
    unasked: u32,
    pub(super) recovery: Recovery,
}

impl Requester {
    pub(super) fn new(first: Psn) -> Self {
        Self {
            una: first,
            next: first,
            high: first,
            pieces: VecDeque::new(),
            unasked: 0,
            recovery: Recovery::new(),
        }
    }

    /// Packets on their way.
    pub(super) fn in_flight(&self) -> u32 {
        u32::try_from(self.next.distance_from(self.una)).unwrap_or(0)
    }

    /// READs and atomics on their way.
    fn asked(&self) -> usize {
        self.pieces
            .iter()
            .take_while(|piece| piece.first.is_before(self.next))
            .count()
    }

    /// The oldest unacknowledged number is `una` now.
    pub(super) fn set_una(&mut self, una: Psn) {
        self.una = una;
        while let Some(piece) = self.pieces.front_mut() {
            if una.is_before(piece.end) {
                if piece.first.is_before(una) {
                    piece.first = una;
                }
                break;
            }
            self.pieces.pop_front();
        }
    }

    /// Up to `wanted` responses from `next` on are asked for; returns how many may be.
    fn cut_piece(&mut self, wanted: u32) -> u32 {
        let first = self.next;
        let end = first.advance(wanted);
        let at = self
            .pieces
            .partition_point(|piece| piece.first.is_before(first));
        match self.pieces.get_mut(at) {
            Some(piece) if piece.first == first => {
                let known = *piece;
                // What goes out again is asked for whole: rxe answers no repetition that begins
                // before an earlier one of the same READ, so after a repetition in pieces the
                // first of them could never be repeated. A probe is alone; there it does not matter.
                if self.recovery.is_probing() && end.is_before(known.end) {
                    piece.end = end;
                    let rest = Piece {
                        first: end,
                        end: known.end,
                    };
                    self.pieces.insert(at + 1, rest);
                    wanted
                } else {
                    u32::try_from(known.end.distance_from(first)).unwrap_or(1)
                }
            }
            following => {
                let end = match following {
                    Some(piece) if piece.first.is_before(end) => piece.first,
                    _ => end,
                };
                self.pieces.insert(at, Piece { first, end });
                u32::try_from(end.distance_from(first)).unwrap_or(1)
            }
        }
    }
}

/// Whether the operation is carried out without the peer.
const fn is_local(op: SendOp) -> bool {
    matches!(op, SendOp::LocalInvalidate(_) | SendOp::BindMw(_))
}

/// Whether the operation is answered with more than an acknowledge.
pub(super) const fn is_answered(op: SendOp) -> bool {
    matches!(
        op,
        SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. }
    )
}

impl QueuePair {
    /// How many packets may be in flight.
    fn flight_limit(&self) -> u32 {
        if self.requester.recovery.is_probing() {
            1
        } else {
            self.window.size()
        }
    }

    /// Whether the send queue has a packet to send, or something else to do.
    pub(super) fn request_ready(&self) -> bool {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || !self.gate.is_open() {
            return false;
        }
        let Some(entry) = self.sq.current() else {
            return false;
        };
        match entry.progress {
            Progress::Failed(_) => return false,
            Progress::Queued if self.state == QpState::Sqd => return false,
            Progress::Queued if !self.may_begin(entry) => return false,
            Progress::Queued | Progress::Begun => {}
        }
        !self.config.qp_type.is_reliable() || self.has_room(entry)
    }

    fn may_begin(&self, entry: &Entry) -> bool {
        let request = &entry.request;
        match request.op {
            // What is in flight may have to be sent again, from memory that the key stands for.
            op if is_local(op) || entry.past => self.sq.current_is_oldest(),
            _ => !request.flags.contains(SendFlags::FENCE) || self.requester.pieces.is_empty(),
        }
    }

    /// Whether the window has room for the next packet of `entry`.
    fn has_room(&self, entry: &Entry) -> bool {
        let requester = &self.requester;
        if requester.recovery.is_waiting() {
            return false;
        }
        if is_local(entry.request.op) || entry.past {
            return true;
        }
        let limit = self.flight_limit();
        let room = limit.saturating_sub(requester.in_flight());
        if !is_answered(entry.request.op) {
            return room > 0;
        }
        // Without any it does not wait, it fails.
        let most = usize::from(self.attributes.max_rd_atomic);
        if most != 0 && requester.asked() >= most {
            return false;
        }
        // Not in slivers: each piece costs a request, and a place among the outstanding ones.
        room >= self.left_of(entry).min(limit.div_ceil(4))
    }

    /// Sequence numbers of `entry` that were not sent yet.
    fn left_of(&self, entry: &Entry) -> u32 {
        match entry.progress {
            Progress::Begun => entry.packets - entry.index_of(self.requester.next),
            _ => packets_of(&self.attributes, &entry.request),
        }
    }

    /// One packet of the send queue, or a train of `most` at most, or whatever else its next request needs.
    pub(super) fn transmit_request<M: Memory>(
        &mut self,
        now: Time,
        memory: &mut M,
        out: &mut PacketBatch,
        most: usize,
    ) {
        let Some(entry) = self.sq.current() else {
            return;
        };
        if entry.past {
            if memory.place(&entry.request) {
                self.sq.complete_oldest(WcStatus::Success);
            } else {
                self.sq.keep_current();
            }
            return;
        }
        let failed = |_| WcStatus::LocProtErr;
        let local = match entry.request.op {
            SendOp::LocalInvalidate(key) => Some(memory.invalidate(key).map_err(failed)),
            SendOp::BindMw(bind) => Some(memory.bind(&bind).map_err(|_| WcStatus::MwBindErr)),
            _ => None,
        };
        match local {
            Some(Ok(())) => return self.sq.complete_oldest(WcStatus::Success),
            Some(Err(status)) => return self.sq.fail_current(status),
            None => {}
        }
        if self.config.qp_type == QpType::Ud {
            return self.transmit_datagram(memory, out);
        }
        if entry.progress == Progress::Queued {
            if let Err(status) = self.check_request(memory, &entry.request) {
                return self.sq.fail_current(status);
            }
            let packets = packets_of(&self.attributes, &entry.request);
            self.sq.begin_current(self.requester.next, packets);
        }
        let result = match self.sq.current().map(|entry| entry.request.op) {
            Some(op) if is_answered(op) => self.transmit_asking(now, memory, out),
            _ => self.transmit_payload(now, memory, out, most),
        };
        if result.is_err() {
            self.sq.fail_current(WcStatus::LocProtErr);
        }
    }

    pub(super) fn check_request<M: Memory>(
        &self,
        memory: &M,
        request: &SendRequest,
    ) -> Result<(), WcStatus> {
        let answered = is_answered(request.op);
        if answered && self.attributes.max_rd_atomic == 0 {
            return Err(WcStatus::LocQpOpErr);
        }
        let need = if answered {
            Access::LOCAL_WRITE
        } else {
            Access::empty()
        };
        if let Payload::Sges(sges) = &request.payload {
            for sge in sges.iter().filter(|sge| sge.length > 0) {
                memory
                    .check_local(sge, need)
                    .map_err(|_| WcStatus::LocProtErr)?;
            }
        }
        Ok(())
    }

    /// How many packets of the current request, from number `index` on, go out as one: `most` at most.
    fn train_of(&self, entry: &Entry, index: u32, most: usize) -> u32 {
        if !matches!(entry.request.payload, Payload::Sges(_)) {
            return 1;
        }
        let left = (entry.packets - index).min(self.most_of_train(most));
        if !self.config.qp_type.is_reliable() {
            return left;
        }
        // The last one of a train is the only one that may ask for an acknowledge.
        let room = self
            .flight_limit()
            .saturating_sub(self.requester.in_flight());
        let before_asking = ACK_EVERY.saturating_sub(self.requester.unasked);
        left.min(room).min(before_asking).max(1)
    }

    /// How many packets go out as one, `most` at most, if all of them are full.
    pub(super) fn most_of_train(&self, most: usize) -> u32 {
        let limit = self.config.copy_limit as usize;
        // What is copied into the scratch buffer is not taken apart.
        if limit >= self.attributes.mtu() {
            return 1;
        }
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        self.config.max_train.min(train::MOST).min(most).max(1)
    }

    /// The next packets of a Send or RDMA Write.
    fn transmit_payload<M: Memory>(
        &mut self,
        now: Time,
        memory: &M,
        out: &mut PacketBatch,
        most: usize,
    ) -> Result<(), MemoryFault> {
        let Some(entry) = self.sq.current() else {
            return Ok(());
        };
        let reliable = self.config.qp_type.is_reliable();
        let mtu = self.attributes.mtu();
        let psn = self.requester.next;
        let index = entry.index_of(psn);
        let count = self.train_of(entry, index, most);
        let position = Position::new(index == 0, index + count == entry.packets);
        let offset = u64::from(index) * mtu as u64;
        let total = entry.request.payload.len();
        let full = mtu * count as usize;
        let len = usize::try_from(total - offset).map_or(full, |left| left.min(full));
        let fills = self.requester.in_flight() + count >= self.flight_limit();
        let unasked = self.requester.unasked + count;
        let asks = reliable && (position.ends() || fills || unasked >= ACK_EVERY);
        let mut headers = message_headers(&entry.request, self.service(), position, total);
        headers.bth.dest_qp = self.attributes.dest_qpn;
        headers.bth.psn = psn;
        headers.bth.ack_req = asks;
        headers.xrceth = self.xrceth(entry);
        let source = match &entry.request.payload {
            Payload::Sges(sges) => Source::Local { sges, offset, len },
            Payload::Inline(data) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                Source::Inline(data.get(start..start + len).unwrap_or(&[]))
            }
        };
        packets::emit_train(
            memory,
            out,
            self.config.copy_limit,
            Destination::Peer,
            headers,
            source,
            (count, mtu),
        )?;
        if reliable {
            self.requester.unasked = if asks { 0 } else { unasked };
            self.packets_sent(now, count, count, asks);
        } else {
            self.requester.next = psn.advance(count);
        }
        if position.ends() {
            self.sq.advance();
            if !reliable {
                self.message_yielded();
            }
        }
        Ok(())
    }

    /// A READ or atomic request.
    fn transmit_asking<M: Memory>(
        &mut self,
        now: Time,
        memory: &M,
        out: &mut PacketBatch,
    ) -> Result<(), MemoryFault> {
        let Some(entry) = self.sq.current() else {
            return Ok(());
        };
        let psn = self.requester.next;
        let room = self
            .flight_limit()
            .saturating_sub(self.requester.in_flight());
        let left = self.left_of(entry);
        let count = self.requester.cut_piece(left.min(room.max(1)));
        let ends = count == left;
        let new = |operation| {
            let opcode = Opcode::find(self.service(), operation, Position::Only, Extra::None);
            let mut bth = packets::bth(
                opcode.unwrap_or(Opcode::RC_READ_REQUEST),
                self.attributes.dest_qpn,
                psn,
            );
            bth.ack_req = true;
            let mut headers = Headers::new(bth);
            headers.xrceth = self.xrceth(entry);
            headers
        };
        let atomic = |va, rkey, swap_or_add, compare| AtomicEth {
            va: VirtualAddress::new(va),
            rkey,
            swap_or_add,
            compare,
        };
        let headers = match entry.request.op {
            SendOp::FetchAdd {
                remote_addr,
                rkey,
                add,
            } => new(Operation::FetchAdd).with_atomic_eth(atomic(remote_addr, rkey, add, 0)),
            SendOp::CompareSwap {
                remote_addr,
                rkey,
                compare,
                swap,
            } => new(Operation::CmpSwap).with_atomic_eth(atomic(remote_addr, rkey, swap, compare)),
            SendOp::Read { remote_addr, rkey } => {
                let mtu = self.attributes.mtu() as u64;
                let offset = u64::from(entry.index_of(psn)) * mtu;
                let len = (entry.request.payload.len() - offset).min(u64::from(count) * mtu);
                new(Operation::ReadRequest).with_reth(Reth {
                    va: VirtualAddress::new(remote_addr.wrapping_add(offset)),
                    rkey,
                    dma_len: u32::try_from(len).unwrap_or(u32::MAX),
                })
            }
            _ => return Ok(()),
        };
        packets::emit(
            memory,
            out,
            self.config.copy_limit,
            Destination::Peer,
            headers,
            Source::None,
        )?;
        self.requester.unasked = 0;
        self.packets_sent(now, count, 1, true);
        if ends {
            self.sq.advance();
        }
        Ok(())
    }

    /// The service whose opcodes our packets have.
    pub(super) const fn service(&self) -> Service {
        match self.config.qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
        }
    }

    /// The header that requests of XRC have, with the queue that they are for.
    fn xrceth(&self, entry: &Entry) -> Option<Xrceth> {
        (self.config.qp_type == QpType::XrcSend).then_some(Xrceth {
            reserved: 0,
            srq: entry.destination.remote_qpn,
        })
    }
}

/// How many sequence numbers a request takes.
fn packets_of(attributes: &super::attributes::QpAttributes, request: &SendRequest) -> u32 {
    let len = u32::try_from(request.payload.len()).unwrap_or(u32::MAX);
    match request.op {
        SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => 1,
        _ => attributes.path_mtu.packets(len),
    }
}

/// The headers of a packet of a Send or RDMA Write, but for the numbers of the BTH.
pub(super) fn message_headers(
    request: &SendRequest,
    service: Service,
    position: Position,
    total: u64,
) -> Headers {
    let write = match request.op {
        SendOp::Write { remote_addr, rkey }
        | SendOp::WriteWithImm {
            remote_addr, rkey, ..
        } => Some((remote_addr, rkey)),
        _ => None,
    };
    let immediate = match request.op {
        SendOp::SendWithImm(imm) | SendOp::WriteWithImm { imm, .. } => Some(imm),
        _ => None,
    };
    let invalidates = match request.op {
        SendOp::SendWithInvalidate(rkey) => Some(rkey),
        _ => None,
    };
    let extra = match (position.ends(), immediate, invalidates) {
        (true, Some(_), _) => Extra::Immediate,
        (true, _, Some(_)) => Extra::Invalidate,
        _ => Extra::None,
    };
    let operation = if write.is_some() {
        Operation::Write
    } else {
        Operation::Send
    };
    let opcode = Opcode::find(service, operation, position, extra);
    debug_assert!(opcode.is_some(), "{service} has no {operation:?} {extra:?}");
    let mut headers = Headers::new(packets::bth(
        opcode.unwrap_or(Opcode::RC_SEND_ONLY),
        Qpn::default(),
        Psn::default(),
    ));
    let tells = write.is_none() || immediate.is_some();
    headers.bth.solicited =
        position.ends() && tells && request.flags.contains(SendFlags::SOLICITED);
    if let Some((remote_addr, rkey)) = write
        && position.starts()
    {
        headers = headers.with_reth(Reth {
            va: VirtualAddress::new(remote_addr),
            rkey,
            dma_len: u32::try_from(total).unwrap_or(u32::MAX),
        });
    }
    match extra {
        Extra::Immediate => {
            let imm = immediate.unwrap_or_default();
            headers.with_imm_dt(ImmDt(imm.to_be_bytes()))
        }
        Extra::Invalidate => headers.with_ieth(Ieth {
            rkey: invalidates.unwrap_or_default(),
        }),
        Extra::None => headers,
    }
}

/// The lists of the pieces, for tests.
#[cfg(test)]
impl Requester {
    fn piece_list(&self) -> Vec<(u32, u32)> {
        self.pieces
            .iter()
            .map(|piece| (piece.first.get(), piece.end.get()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(requester: &mut Requester, wanted: u32) -> u32 {
        let count = requester.cut_piece(wanted);
        requester.next = requester.next.advance(count);
        count
    }

    #[test]
    fn cuts_stay_until_they_are_acknowledged() {
        let start = 0x00ff_fffc;
        let psn = |at: u32| Psn::new(start + at).get();
        let mut requester = Requester::new(Psn::new(start));
        assert_eq!(asks(&mut requester, 4), 4);
        assert_eq!(asks(&mut requester, 6), 6);
        assert_eq!(
            requester.piece_list(),
            [(psn(0), psn(4)), (psn(4), psn(10))]
        );
        assert_eq!(requester.asked(), 2);
        requester.set_una(Psn::new(start + 2));
        requester.next = requester.una;
        assert_eq!(requester.asked(), 0);
        assert_eq!(asks(&mut requester, 8), 2, "not over the cut at 4");
        assert_eq!(asks(&mut requester, 1), 6, "whole, up to the end at 10");
        assert_eq!(
            requester.piece_list(),
            [(psn(2), psn(4)), (psn(4), psn(10))]
        );
        requester.set_una(Psn::new(start + 10));
        assert!(requester.piece_list().is_empty());
        assert_eq!(asks(&mut requester, 100), 100);
    }
}
