//! READ responses, results of atomics, and their replay.
//!
//! The peer's requests of these kinds are kept, as many of the latest as it may have outstanding:
//! of a READ where it read, of an atomic its result. A READ that comes again is carried out
//! again, from where the peer wants it; an atomic is not, it gets the result that was kept.
//!
//! Answers go out in the order of their requests. Acknowledges stand in the same queue, since
//! one that overtook a READ response would tell the peer that the response was lost.

use std::collections::VecDeque;

use softverbs_wire::ib::{
    Aeth, AtomicAckEth, Extra, Headers, Opcode, Operation, Packet, Position, Syndrome,
};
use softverbs_wire::num::{Msn24, PathMtu, Psn, Qpn, Rkey};

use super::batch::{Destination, PacketBatch};
use super::inbound::MAX_MESSAGE;
use super::nak::RequestFault;
use super::packets::{self, Source};
use super::queue_pair::QueuePair;
use crate::fault::RemoteOperation;
use crate::memory::{Access, Memory, MemoryFault};

/// A READ of the peer, or what is left to answer of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reading {
    /// First response packet.
    first: Psn,
    rkey: Rkey,
    addr: u64,
    len: u32,
    msn: Msn24,
    /// Whose protection domain the memory is of (XRC).
    srq: Option<Qpn>,
}

/// What the peer gets for a request.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum Answer {
    /// It was carried out, or refused.
    Acknowledge {
        psn: Psn,
        syndrome: Syndrome,
        msn: Msn24,
    },
    /// Response packets; `sent` were yielded.
    Read {
        reading: Reading,
        sent: u32,
        replay: bool,
    },
    /// The result of an atomic.
    Atomic {
        psn: Psn,
        original: u64,
        msn: Msn24,
        replay: bool,
    },
}

/// What is kept for a replay.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum Saved {
    Read(Reading),
    Atomic { psn: Psn, original: u64, msn: Msn24 },
}

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Answers {
    queue: VecDeque<Answer>,
    /// Oldest first.
    saved: VecDeque<Saved>,
}

/// Answers that may wait, besides twice the depth: a peer that repeats itself faster than we may
/// answer gets no more.
const SLACK: usize = 8;

impl Answers {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether nothing waits but the word that requests were carried out.
    pub(super) fn only_acknowledges(&self) -> bool {
        self.queue.iter().all(|answer| {
            matches!(
                answer,
                Answer::Acknowledge {
                    syndrome: Syndrome::ACK,
                    ..
                }
            )
        })
    }

    /// Forgets what is to be sent.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Everything up to `psn` was carried out. One acknowledge speaks for those before it.
    pub(super) fn acknowledge(&mut self, psn: Psn, msn: Msn24) {
        if let Some(Answer::Acknowledge {
            psn: last,
            syndrome: Syndrome::ACK,
            msn: last_msn,
        }) = self.queue.back_mut()
        {
            if last.is_before(psn) {
                *last = psn;
                *last_msn = msn;
            }
            return;
        }
        self.queue.push_back(Answer::Acknowledge {
            psn,
            syndrome: Syndrome::ACK,
            msn,
        });
    }

    pub(super) fn refuse(&mut self, psn: Psn, syndrome: Syndrome, msn: Msn24) {
        // A peer that repeats a request without pause makes one entry.
        if let Some(Answer::Acknowledge {
            psn: last,
            syndrome: last_syndrome,
            ..
        }) = self.queue.back()
            && (*last, *last_syndrome) == (psn, syndrome)
        {
            return;
        }
        self.queue
            .push_back(Answer::Acknowledge { psn, syndrome, msn });
    }

    /// READs and atomics that came once and were not answered.
    fn fresh(&self) -> usize {
        self.queue
            .iter()
            .filter(|answer| {
                matches!(
                    answer,
                    Answer::Read { replay: false, .. } | Answer::Atomic { replay: false, .. }
                )
            })
            .count()
    }

    /// Whether `psn` is the last number of the newest READ or atomic.
    pub(super) fn answered_otherwise(&self, psn: Psn, mtu: PathMtu) -> bool {
        self.saved.back().is_some_and(|saved| match *saved {
            Saved::Atomic { psn: of, .. } => of == psn,
            Saved::Read(reading) => reading.first.advance(mtu.packets(reading.len)) == psn.next(),
        })
    }

    fn save(&mut self, depth: usize, saved: Saved) {
        if self.saved.len() >= depth {
            self.saved.pop_front();
        }
        self.saved.push_back(saved);
    }
}

impl QueuePair {
    /// Whether another READ or atomic is within what was agreed on.
    fn check_depth(&self) -> Result<(), RequestFault> {
        let depth = usize::from(self.attributes.max_dest_rd_atomic);
        (self.responder.answers.fresh() < depth)
            .then_some(())
            .ok_or(RequestFault::TooManyReads)
    }

    /// A READ request; returns how many sequence numbers it takes.
    pub(super) fn execute_read<M: Memory>(
        &mut self,
        memory: &M,
        packet: &Packet<'_>,
    ) -> Result<u32, RequestFault> {
        let reth = packet.headers.reth.ok_or(RequestFault::Unsupported)?;
        if !packet.payload.is_empty() {
            return Err(RequestFault::PayloadLength);
        }
        if !self.attributes.access.contains(Access::REMOTE_READ) {
            return Err(RequestFault::NotPermitted);
        }
        self.check_depth()?;
        if reth.dma_len > MAX_MESSAGE {
            return Err(RequestFault::MessageLength);
        }
        if reth.dma_len > 0 {
            memory
                .check_remote(
                    reth.rkey,
                    reth.va.get(),
                    reth.dma_len.into(),
                    Access::REMOTE_READ,
                )
                .map_err(|fault| RequestFault::Protection {
                    operation: RemoteOperation::Read,
                    fault,
                })?;
        }
        // A READ counts before its response is sent.
        self.responder.msn = self.responder.msn.next();
        let reading = Reading {
            first: packet.headers.bth.psn,
            rkey: reth.rkey,
            addr: reth.va.get(),
            len: reth.dma_len,
            msn: self.responder.msn,
            srq: self.responder.srq,
        };
        let depth = usize::from(self.attributes.max_dest_rd_atomic);
        self.responder.answers.save(depth, Saved::Read(reading));
        self.responder.answers.queue.push_back(Answer::Read {
            reading,
            sent: 0,
            replay: false,
        });
        Ok(self.attributes.path_mtu.packets(reading.len))
    }

    /// An atomic request.
    pub(super) fn execute_atomic<M: Memory>(
        &mut self,
        memory: &mut M,
        packet: &Packet<'_>,
        operation: Operation,
    ) -> Result<(), RequestFault> {
        let request = packet.headers.atomic_eth.ok_or(RequestFault::Unsupported)?;
        if !packet.payload.is_empty() {
            return Err(RequestFault::PayloadLength);
        }
        if !self.attributes.access.contains(Access::REMOTE_ATOMIC) {
            return Err(RequestFault::NotPermitted);
        }
        self.check_depth()?;
        let addr = request.va.get();
        if addr % 8 != 0 {
            return Err(RequestFault::Misaligned);
        }
        let protection = |fault| RequestFault::Protection {
            operation: RemoteOperation::Atomic,
            fault,
        };
        memory
            .check_remote(request.rkey, addr, 8, Access::REMOTE_ATOMIC)
            .map_err(protection)?;
        let mut update = |before: u64| match operation {
            Operation::FetchAdd => before.wrapping_add(request.swap_or_add),
            _ if before == request.compare => request.swap_or_add,
            _ => before,
        };
        let original = memory
            .atomic(request.rkey, addr, &mut update)
            .map_err(protection)?;
        self.responder.msn = self.responder.msn.next();
        let (psn, msn) = (packet.headers.bth.psn, self.responder.msn);
        let depth = usize::from(self.attributes.max_dest_rd_atomic);
        let answers = &mut self.responder.answers;
        answers.save(depth, Saved::Atomic { psn, original, msn });
        answers.queue.push_back(Answer::Atomic {
            psn,
            original,
            msn,
            replay: false,
        });
        Ok(())
    }

    /// A READ or atomic that was carried out before. Nothing if it is none that was kept.
    pub(super) fn replay(&mut self, packet: &Packet<'_>) -> Option<()> {
        let limit = 2 * usize::from(self.attributes.max_dest_rd_atomic) + SLACK;
        if self.responder.answers.queue.len() >= limit {
            return None;
        }
        let psn = packet.headers.bth.psn;
        let mtu = self.attributes.mtu() as u64;
        let path_mtu = self.attributes.path_mtu;
        let answer = self
            .responder
            .answers
            .saved
            .iter()
            .find_map(|saved| match *saved {
                Saved::Atomic {
                    psn: of,
                    original,
                    msn,
                } => (of == psn && packet.headers.atomic_eth.is_some()).then_some(Answer::Atomic {
                    psn,
                    original,
                    msn,
                    replay: true,
                }),
                Saved::Read(reading) => {
                    let reth = packet.headers.reth?;
                    let index = u32::try_from(psn.distance_from(reading.first)).ok()?;
                    let offset = u64::from(index) * mtu;
                    // The peer resumes at the packet that it lacks, within what it had asked for.
                    let within = index < path_mtu.packets(reading.len)
                        && reth.rkey == reading.rkey
                        && reth.va.get() == reading.addr.wrapping_add(offset)
                        && offset + u64::from(reth.dma_len) <= u64::from(reading.len);
                    within.then_some(Answer::Read {
                        reading: Reading {
                            first: psn,
                            addr: reth.va.get(),
                            len: reth.dma_len,
                            ..reading
                        },
                        sent: 0,
                        replay: true,
                    })
                }
            })?;
        self.responder.answers.queue.push_back(answer);
        Some(())
    }

    /// One packet of the oldest answer, or a train of `most` at most.
    pub(super) fn transmit_answer<M: Memory>(
        &mut self,
        memory: &mut M,
        out: &mut PacketBatch,
        most: usize,
    ) {
        let Some(&answer) = self.responder.answers.queue.front() else {
            return;
        };
        let dest_qpn = self.attributes.dest_qpn;
        let (headers, source, count, last) = match answer {
            Answer::Acknowledge { psn, syndrome, msn } => {
                let bth = packets::bth(self.answer(Operation::Acknowledge), dest_qpn, psn);
                let headers = Headers::new(bth).with_aeth(Aeth::new(syndrome, msn));
                (headers, Source::None, 1, true)
            }
            Answer::Atomic {
                psn, original, msn, ..
            } => {
                let operation = Operation::AtomicAcknowledge;
                let bth = packets::bth(self.answer(operation), dest_qpn, psn);
                let headers = Headers::new(bth)
                    .with_aeth(Aeth::new(Syndrome::ACK, msn))
                    .with_atomic_ack_eth(AtomicAckEth { original });
                (headers, Source::None, 1, true)
            }
            Answer::Read { reading, sent, .. } => self.read_response(&reading, sent, most),
        };
        let limit = self.config.copy_limit;
        let selected = match answer {
            Answer::Read { reading, .. } => reading.srq.is_none_or(|srq| memory.select_srq(srq)),
            _ => true,
        };
        let yielded = if selected {
            let train = (count, self.attributes.mtu());
            packets::emit_train(
                memory,
                out,
                limit,
                Destination::Peer,
                headers,
                source,
                train,
            )
        } else {
            Err(MemoryFault::WrongPd)
        };
        if let Err(fault) = yielded {
            // The region went away in the middle of the READ.
            self.responder.answers.clear();
            let fault = RequestFault::Protection {
                operation: RemoteOperation::Read,
                fault,
            };
            return self.refuse(headers.bth.psn, fault);
        }
        match self.responder.answers.queue.front_mut() {
            Some(Answer::Read { sent, .. }) if !last => *sent += count,
            _ => {
                self.responder.answers.queue.pop_front();
            }
        }
    }

    /// The opcode of an answer in a single packet.
    fn answer(&self, operation: Operation) -> Opcode {
        let opcode = Opcode::find(self.service(), operation, Position::Only, Extra::None);
        opcode.unwrap_or(Opcode::RC_ACKNOWLEDGE)
    }

    fn read_response(
        &self,
        reading: &Reading,
        sent: u32,
        most: usize,
    ) -> (Headers, Source<'static>, u32, bool) {
        let mtu = self.attributes.mtu();
        let packets = self.attributes.path_mtu.packets(reading.len);
        let count = (packets - sent).min(self.most_of_train(most));
        let last = sent + count >= packets;
        let offset = u64::from(sent) * mtu as u64;
        let left = u64::from(reading.len).saturating_sub(offset);
        let full = mtu * count as usize;
        let len = usize::try_from(left).map_or(full, |left| left.min(full));
        let position = Position::new(sent == 0, last);
        let service = self.service();
        let opcode = Opcode::find(service, Operation::ReadResponse, position, Extra::None);
        let bth = packets::bth(
            opcode.unwrap_or(Opcode::RC_READ_RESPONSE_ONLY),
            self.attributes.dest_qpn,
            reading.first.advance(sent),
        );
        let mut headers = Headers::new(bth);
        if position != Position::Middle {
            headers = headers.with_aeth(Aeth::new(Syndrome::ACK, reading.msn));
        }
        let source = Source::Remote {
            key: reading.rkey,
            addr: reading.addr.wrapping_add(offset),
            len,
        };
        (headers, source, count, last)
    }
}
