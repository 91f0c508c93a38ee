//! The message of the peer in the middle of reception: order of its packets, lengths, placement.
//! Shared by RC and UC, which differ in what they do about a fault.

use softverbs_wire::ib::{OpcodeInfo, Operation, Packet, Position};
use softverbs_wire::num::{Lkey, Rkey};

use super::nak::RequestFault;
use super::packets::scatter;
use super::queue_pair::{QueuePair, RecvCompletion};
use crate::fault::RemoteOperation;
use crate::memory::{Access, Memory, MemoryFault};
use crate::wr::{Completion, RecvRequest, WcOpcode, WcStatus};

/// Longest message (IBA vol 1 ch 9: 2³¹ octets).
pub(super) const MAX_MESSAGE: u32 = 1 << 31;

/// A message of which more packets are to come, or whose packet is being looked at.
#[derive(Clone, Debug, Hash)]
pub(super) enum Message {
    /// A Send and the receive that it fills.
    Send {
        receive: RecvRequest,
        /// What the receive has room for.
        capacity: u64,
        received: u64,
    },
    /// An RDMA Write.
    Write {
        rkey: Rkey,
        addr: u64,
        total: u64,
        received: u64,
    },
}

impl Message {
    const fn operation(&self) -> Operation {
        match self {
            Self::Send { .. } => Operation::Send,
            Self::Write { .. } => Operation::Write,
        }
    }
}

/// Whether a packet of this kind may come now.
pub(super) fn check_order(
    message: Option<&Message>,
    info: &OpcodeInfo,
) -> Result<(), RequestFault> {
    let fits = match message {
        None => info.position.starts(),
        Some(message) => !info.position.starts() && message.operation() == info.operation,
    };
    fits.then_some(()).ok_or(RequestFault::UnexpectedOpcode)
}

/// Whether the payload of a packet, or a train of `count`, is as long as its place in its message wants
/// it: full packets but for the last, which has at least one octet.
pub(super) fn check_payload(
    position: Position,
    len: usize,
    count: u32,
    mtu: usize,
) -> Result<(), RequestFault> {
    let full = count as usize * mtu;
    let fits = match position {
        Position::First | Position::Middle => len == full,
        Position::Last => (full - mtu + 1..=full).contains(&len),
        Position::Only if count > 1 => (full - mtu + 1..=full).contains(&len),
        Position::Only => len <= mtu,
    };
    fits.then_some(()).ok_or(RequestFault::PayloadLength)
}

impl QueuePair {
    /// A packet of a Send, which `check_order` and `check_payload` have passed.
    pub(super) fn receive_send<M: Memory>(
        &mut self,
        memory: &mut M,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
    ) -> Result<(), RequestFault> {
        if info.position.starts() {
            let receive = self.take_receive(memory).ok_or(RequestFault::NotReady)?;
            let capacity = receive.sges.iter().map(|sge| u64::from(sge.length)).sum();
            let checked = check_receive(memory, &receive);
            self.responder.message = Some(Message::Send {
                receive,
                capacity,
                received: 0,
            });
            checked.map_err(RequestFault::Receive)?;
        }
        let Some(Message::Send {
            receive,
            capacity,
            received,
        }) = &mut self.responder.message
        else {
            return Err(RequestFault::UnexpectedOpcode);
        };
        let len = packet.payload.len() as u64;
        if *received + len > *capacity {
            return Err(RequestFault::ReceiveTooShort);
        }
        if len > 0 {
            scatter(memory, &receive.sges, *received, packet.payload)
                .map_err(RequestFault::Receive)?;
        }
        *received += len;
        if !info.position.ends() {
            return Ok(());
        }
        let byte_len = octets(*received);
        let invalidated = packet.headers.ieth.map(|ieth| ieth.rkey);
        if let Some(rkey) = invalidated {
            memory.invalidate(rkey).map_err(RequestFault::Invalidate)?;
        }
        let Some(Message::Send { receive, .. }) = self.responder.message.take() else {
            return Err(RequestFault::UnexpectedOpcode);
        };
        self.received(Completion {
            wr_id: receive.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len,
            imm: immediate(packet),
            invalidated,
            solicited: packet.headers.bth.solicited,
        });
        Ok(())
    }

    /// A packet of an RDMA Write, which `check_order` and `check_payload` have passed.
    pub(super) fn receive_write<M: Memory>(
        &mut self,
        memory: &mut M,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
    ) -> Result<(), RequestFault> {
        if !self.attributes.access.contains(Access::REMOTE_WRITE) {
            return Err(RequestFault::NotPermitted);
        }
        let (rkey, start, total, received) = match (&self.responder.message, packet.headers.reth) {
            (_, Some(reth)) => (reth.rkey, reth.va.get(), u64::from(reth.dma_len), 0),
            (
                &Some(Message::Write {
                    rkey,
                    addr,
                    total,
                    received,
                }),
                None,
            ) => (rkey, addr, total, received),
            _ => return Err(RequestFault::UnexpectedOpcode),
        };
        let len = packet.payload.len() as u64;
        let left = total - received;
        let fits = if info.position.ends() {
            len == left
        } else {
            len < left
        };
        if !fits || total > MAX_MESSAGE.into() {
            return Err(RequestFault::MessageLength);
        }
        // With immediate data a receive goes with it: it has to be there before anything is placed,
        // for without it the packet comes again.
        let receive = match info.has_immediate() {
            true => Some(self.take_receive(memory).ok_or(RequestFault::NotReady)?),
            false => None,
        };
        if let Err(fault) = place(memory, rkey, start, total, received, packet.payload) {
            if receive.is_some() {
                // It was not used.
                self.responder.spare = receive;
            }
            return Err(RequestFault::Protection {
                operation: RemoteOperation::Write,
                fault,
            });
        }
        if !info.position.ends() {
            self.responder.message = Some(Message::Write {
                rkey,
                addr: start,
                total,
                received: received + len,
            });
            return Ok(());
        }
        self.responder.message = None;
        if let Some(receive) = receive {
            self.received(Completion {
                wr_id: receive.wr_id,
                status: WcStatus::Success,
                opcode: WcOpcode::RecvRdmaWithImm,
                byte_len: octets(total),
                imm: immediate(packet),
                invalidated: None,
                solicited: packet.headers.bth.solicited,
            });
        }
        Ok(())
    }

    /// The oldest receive: one that an unreliable message left behind, or a new one.
    pub(super) fn take_receive<M: Memory>(&mut self, memory: &mut M) -> Option<RecvRequest> {
        self.responder
            .spare
            .take()
            .or_else(|| memory.take_receive())
    }

    pub(super) fn received(&mut self, completion: Completion) {
        self.recv_completions.push_back(RecvCompletion {
            completion,
            source: None,
            srq: self.responder.srq,
        });
    }

    /// The message in the middle is over; its receive completes with `status`.
    pub(super) fn fail_receive(&mut self, status: WcStatus) {
        if let Some(Message::Send { receive, .. }) = self.responder.message.take() {
            self.received(failed_receive(&receive, status));
        }
        if let Some(receive) = self.responder.spare.take() {
            self.received(failed_receive(&receive, WcStatus::WrFlushErr));
        }
    }
}

pub(super) const fn failed_receive(receive: &RecvRequest, status: WcStatus) -> Completion {
    Completion {
        wr_id: receive.wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        imm: None,
        invalidated: None,
        solicited: false,
    }
}

pub(super) fn check_receive<M: Memory>(
    memory: &M,
    receive: &RecvRequest,
) -> Result<(), MemoryFault> {
    receive
        .sges
        .iter()
        .filter(|sge| sge.length > 0)
        .try_for_each(|sge| memory.check_local(sge, Access::LOCAL_WRITE))
}

/// The whole buffer is checked before its first octet is placed, and each part of it again, since
/// a region may go away in between. Without any octet there is nothing to check.
fn place<M: Memory>(
    memory: &mut M,
    rkey: Rkey,
    start: u64,
    total: u64,
    received: u64,
    data: &[u8],
) -> Result<(), MemoryFault> {
    if data.is_empty() {
        return Ok(());
    }
    let (addr, len) = match received {
        0 => (start, total),
        // The sum does not wrap: the whole was checked.
        _ => (start.wrapping_add(received), data.len() as u64),
    };
    memory.check_remote(rkey, addr, len, Access::REMOTE_WRITE)?;
    memory.write(Lkey::new(rkey.get()), addr, data)
}

pub(super) fn immediate(packet: &Packet<'_>) -> Option<u32> {
    packet
        .headers
        .imm_dt
        .map(|imm| u32::from_be_bytes(imm.to_bytes()))
}

pub(super) fn octets(len: u64) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
