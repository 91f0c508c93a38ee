//! Serves the peer's reads and atomics, in their order (RFC 5040 §5.3, RFC 7306 §5).

use std::collections::VecDeque;

use softverbs_wire::ddp::{TaggedHeader, UntaggedHeader};
use softverbs_wire::num::{MessageOffset, Msn, QueueNumber};
use softverbs_wire::rdmap::{AtomicOp, AtomicRequest, AtomicResponse, Opcode, ReadRequest};

use super::framer::{Head, Source};
use super::requester::{segment_len, tagged};
use super::stream::Stream;
use super::terminate::Offender;
use crate::fault::{Fault, PeerViolation, RemoteOperation};
use crate::memory::{Access, Memory, MemoryFault};
use crate::transmit::TxBatch;

/// A request of the peer that is to be answered.
#[derive(Clone, Copy, Debug, Hash)]
enum Job {
    Read {
        header: UntaggedHeader,
        request: ReadRequest,
    },
    Atomic {
        header: UntaggedHeader,
        request: AtomicRequest,
    },
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Responder {
    /// Oldest first; never more than the agreed IRD.
    jobs: VecDeque<Job>,
    /// Octets of the oldest read that were yielded; `None` before the first FPDU.
    offset: Option<u64>,
    expected: Msn,
    next_atomic_response: Msn,
}

impl Responder {
    pub(super) const fn new() -> Self {
        Self {
            jobs: VecDeque::new(),
            offset: None,
            expected: Msn::FIRST,
            next_atomic_response: Msn::FIRST,
        }
    }

    /// Whether there is something to answer.
    pub(super) fn is_ready(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Whether a response is in the middle of transmission.
    pub(super) const fn is_busy(&self) -> bool {
        self.offset.is_some()
    }

    /// What the next request is numbered.
    pub(super) const fn expected(&self) -> Msn {
        self.expected
    }

    /// Forgets what has not started.
    pub(super) fn finish_current(&mut self) {
        self.jobs.truncate(usize::from(self.is_busy()));
    }

    /// Forgets everything.
    pub(super) fn stop(&mut self) {
        self.jobs.clear();
        self.offset = None;
    }

    fn push(&mut self, ird: u16, job: Job) -> Result<(), PeerViolation> {
        if self.jobs.len() >= usize::from(ird) {
            return Err(PeerViolation::TooManyReads);
        }
        self.expected = self.expected.next();
        self.jobs.push_back(job);
        Ok(())
    }

    fn done(&mut self) {
        self.jobs.pop_front();
        self.offset = None;
    }
}

impl Stream {
    fn ird(&self) -> u16 {
        self.negotiated.as_ref().map_or(0, |agreed| agreed.ird)
    }

    pub(super) fn read_request<M: Memory>(
        &mut self,
        memory: &M,
        header: &UntaggedHeader,
        request: &ReadRequest,
    ) -> Result<(), Fault> {
        // RFC 5040 §5.3: nothing is checked of a read of nothing. The RTR frames of others name
        // arbitrary buffers.
        if request.size > 0 {
            let (stag, to) = (request.source_stag.into(), request.source_to.get());
            memory
                .check_remote(stag, to, request.size.into(), Access::REMOTE_READ)
                .map_err(|fault| refusal(RemoteOperation::Read, fault))?;
        }
        let job = Job::Read {
            header: *header,
            request: *request,
        };
        self.responder.push(self.ird(), job)?;
        Ok(())
    }

    pub(super) fn atomic_request<M: Memory>(
        &mut self,
        memory: &M,
        header: &UntaggedHeader,
        request: &AtomicRequest,
    ) -> Result<(), Fault> {
        if !matches!(request.operation, AtomicOp::FETCH_ADD | AtomicOp::CMP_SWAP) {
            return Err(PeerViolation::UnexpectedOpcode.into());
        }
        if !request.to.get().is_multiple_of(8) {
            return Err(PeerViolation::AtomicAlignment.into());
        }
        memory
            .check_remote(
                request.stag.into(),
                request.to.get(),
                8,
                Access::REMOTE_ATOMIC,
            )
            .map_err(|fault| refusal(RemoteOperation::Atomic, fault))?;
        let job = Job::Atomic {
            header: *header,
            request: *request,
        };
        self.responder.push(self.ird(), job)?;
        Ok(())
    }

    /// One FPDU of the oldest answer.
    pub(super) fn transmit_response<M: Memory>(
        &mut self,
        memory: &mut M,
        out: &mut TxBatch,
    ) -> Result<(), Fault> {
        let Some(&job) = self.responder.jobs.front() else {
            return Ok(());
        };
        match job {
            Job::Read { header, request } => {
                self.transmit_read(memory, out, &request).map_err(|fault| {
                    self.offender = Offender {
                        ulpdu_len: ulpdu_len(ReadRequest::LEN),
                        header: Some(header.into()),
                        request: Some(request),
                    };
                    refusal(RemoteOperation::Read, fault)
                })
            }
            Job::Atomic { header, request } => {
                self.transmit_atomic(memory, out, &request)
                    .map_err(|fault| {
                        self.offender = Offender {
                            ulpdu_len: ulpdu_len(AtomicRequest::LEN),
                            header: Some(header.into()),
                            request: None,
                        };
                        refusal(RemoteOperation::Atomic, fault)
                    })
            }
        }
    }

    fn transmit_read<M: Memory>(
        &mut self,
        memory: &M,
        out: &mut TxBatch,
        request: &ReadRequest,
    ) -> Result<(), MemoryFault> {
        let offset = self.responder.offset.unwrap_or(0);
        let left = u64::from(request.size) - offset;
        let (len, last) = segment_len(&self.tx, TaggedHeader::LEN, left);
        let to = softverbs_wire::num::TaggedOffset::new(request.sink_to.get().wrapping_add(offset));
        let head = tagged(Opcode::READ_RESPONSE, last, request.sink_stag, to);
        let addr = request.source_to.get().wrapping_add(offset);
        let source = Source::Remote {
            key: request.source_stag.into(),
            addr,
            len,
        };
        self.tx.emit(memory, out, &head, source)?;
        if last {
            self.responder.done();
        } else {
            self.responder.offset = Some(offset + len as u64);
        }
        Ok(())
    }

    /// Carries the operation out when its turn comes, so that reads before it see the old value.
    fn transmit_atomic<M: Memory>(
        &mut self,
        memory: &mut M,
        out: &mut TxBatch,
        request: &AtomicRequest,
    ) -> Result<(), MemoryFault> {
        let (key, addr) = (request.stag.into(), request.to.get());
        memory.check_remote(key, addr, 8, Access::REMOTE_ATOMIC)?;
        let original = memory.atomic(key, addr, &mut |value| apply(request, value))?;
        let header = UntaggedHeader::new(
            Opcode::ATOMIC_RESPONSE,
            true,
            QueueNumber::ATOMIC_RESPONSE,
            self.responder.next_atomic_response,
            MessageOffset::ZERO,
        );
        let response = AtomicResponse {
            request_id: request.request_id,
            original,
        };
        let head = Head::new(|writer| {
            header.emit(writer);
            response.emit(writer);
        });
        self.tx.emit(memory, out, &head, Source::None)?;
        self.responder.next_atomic_response = self.responder.next_atomic_response.next();
        self.responder.done();
        Ok(())
    }
}

const fn refusal(operation: RemoteOperation, fault: MemoryFault) -> Fault {
    Fault::Peer(PeerViolation::Protection { operation, fault })
}

fn ulpdu_len(body: usize) -> u16 {
    u16::try_from(UntaggedHeader::LEN + body).unwrap_or(u16::MAX)
}

/// What an atomic operation makes of a value (RFC 7306 §5.1).
const fn apply(request: &AtomicRequest, value: u64) -> u64 {
    let operand = request.add_or_swap;
    let mask = request.add_or_swap_mask;
    if request.operation.get() == AtomicOp::CMP_SWAP.get() {
        if (request.compare ^ value) & request.compare_mask != 0 {
            value
        } else {
            value & !mask | operand & mask
        }
    } else {
        // A bit of the mask stops the carry out of its place: add without those places, where
        // then only a carry into them appears, and put them in by exclusive or.
        (value & !mask).wrapping_add(operand & !mask) ^ (value ^ operand) & mask
    }
}

#[cfg(test)]
mod tests {
    use softverbs_wire::num::{Stag, TaggedOffset};

    use super::*;

    fn add(mask: u64, operand: u64, value: u64) -> u64 {
        let mut request = AtomicRequest::fetch_add(1, Stag::new(1), TaggedOffset::new(0), operand);
        request.add_or_swap_mask = mask;
        apply(&request, value)
    }

    /// Bit by bit, as the RFC describes it.
    fn slow_add(mask: u64, operand: u64, value: u64) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let total = (value >> bit & 1) + (operand >> bit & 1) + carry;
            sum |= (total & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { total >> 1 };
        }
        sum
    }

    #[test]
    fn fetch_add_is_plain_without_a_mask() {
        assert_eq!(add(0, 1, u64::MAX), 0);
        assert_eq!(add(0, u64::MAX, 5), 4);
    }

    #[test]
    fn fetch_add_stops_carries_at_the_mask() {
        let fields = 0x8000_8000_8000_8000;
        assert_eq!(
            add(fields, 0x0001_0001_0001_0001, 0xffff_0000_7fff_8000),
            0x0001_8000_8001
        );
        let samples = [
            0,
            1,
            u64::MAX,
            0x8000_0000_0000_0000,
            0x0123_4567_89ab_cdef,
            0xfedc_ba98_7654_3210,
            0x7fff_ffff_8000_0000,
            0x5555_aaaa_3333_cccc,
        ];
        for mask in samples {
            for operand in samples {
                for value in samples {
                    let expected = slow_add(mask, operand, value);
                    assert_eq!(
                        add(mask, operand, value),
                        expected,
                        "{mask:#x} {operand:#x} {value:#x}"
                    );
                }
            }
        }
    }

    #[test]
    fn compare_swap_looks_at_and_stores_masked_bits() {
        let mut request =
            AtomicRequest::cmp_swap(1, Stag::new(1), TaggedOffset::new(0), 0x1122, 0xaabb);
        assert_eq!(apply(&request, 0x1122), 0xaabb);
        assert_eq!(apply(&request, 0x1123), 0x1123);
        request.compare_mask = 0xff00;
        request.add_or_swap_mask = 0x00ff;
        assert_eq!(apply(&request, 0x1199), 0x11bb);
        assert_eq!(apply(&request, 0x1299), 0x1299);
    }
}
