//! Turns requests into messages, and takes the answers to reads and atomics.

use std::collections::VecDeque;

use softverbs_wire::ddp::{TaggedHeader, UntaggedHeader};
use softverbs_wire::num::{MessageOffset, Msn, QueueNumber, Rkey, Stag, TaggedOffset};
use softverbs_wire::rdmap::{AtomicRequest, AtomicResponse, Opcode, ReadRequest};

use super::framer::{Framer, Head, Source};
use super::negotiate::RtrKind;
use super::send_queue::{Ticket, parts};
use super::stream::{Stream, StreamEvent};
use super::untagged::immediate_data;
use crate::fault::{Fault, LocalFault, PeerViolation};
use crate::memory::{Access, Memory, MemoryFault};
use crate::transmit::TxBatch;
use crate::wr::{Payload, SendFlags, SendOp, SendRequest, WcStatus};

/// A request whose answer is to come.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum Awaited {
    /// A Read Response. The buffer that it names is one of our own making: `stag` from offset 0,
    /// so that the peer learns no key of ours and a read may have any scatter list.
    Read {
        /// The request; `None` for an RTR frame.
        ticket: Option<Ticket>,
        stag: Stag,
        size: u32,
        received: u64,
    },
    /// An Atomic Response.
    Atomic { ticket: Ticket, request_id: u32 },
}

impl Awaited {
    pub(super) const fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Read { ticket, .. } => *ticket,
            Self::Atomic { ticket, .. } => Some(*ticket),
        }
    }
}

/// How far the request in the middle of transmission is.
#[derive(Clone, Copy, Debug, Hash)]
struct Progress {
    /// Octets of payload that were yielded.
    offset: u64,
    /// All of the RDMA Write was yielded, its immediate data follows.
    immediate: bool,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Requester {
    /// The RTR frame that has to be the first FPDU.
    rtr: Option<RtrKind>,
    progress: Option<Progress>,
    /// Oldest first.
    awaited: VecDeque<Awaited>,
    next_send: Msn,
    next_request: Msn,
    next_atomic_response: Msn,
}

impl Requester {
    pub(super) const fn new() -> Self {
        Self {
            rtr: None,
            progress: None,
            awaited: VecDeque::new(),
            next_send: Msn::FIRST,
            next_request: Msn::FIRST,
            next_atomic_response: Msn::FIRST,
        }
    }

    /// The stream begins with this RTR frame.
    pub(super) const fn begin_with(&mut self, rtr: Option<RtrKind>) {
        self.rtr = rtr;
    }

    /// The RTR frame, as long as it is to be sent.
    pub(super) const fn rtr(&self) -> Option<RtrKind> {
        self.rtr
    }

    /// Whether a request is in the middle of transmission.
    pub(super) const fn is_busy(&self) -> bool {
        self.progress.is_some()
    }

    pub(super) fn has_awaited(&self) -> bool {
        !self.awaited.is_empty()
    }

    pub(super) fn oldest(&self) -> Option<&Awaited> {
        self.awaited.front()
    }

    pub(super) fn oldest_mut(&mut self) -> Option<&mut Awaited> {
        self.awaited.front_mut()
    }

    /// The oldest request has its answer.
    pub(super) fn answered(&mut self) {
        self.awaited.pop_front();
    }

    pub(super) const fn expected_atomic_response(&self) -> Msn {
        self.next_atomic_response
    }

    /// Nothing is sent or awaited any more.
    pub(super) fn stop(&mut self) {
        self.rtr = None;
        self.progress = None;
        self.awaited.clear();
    }

    const fn take_send_msn(&mut self) -> Msn {
        let msn = self.next_send;
        self.next_send = msn.next();
        msn
    }

    const fn take_request_msn(&mut self) -> Msn {
        let msn = self.next_request;
        self.next_request = msn.next();
        msn
    }
}

const fn is_answered(op: SendOp) -> bool {
    matches!(
        op,
        SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. }
    )
}

/// Whether the operation needs a peer with RFC 7306.
pub(super) const fn needs_rfc7306(op: SendOp) -> bool {
    matches!(
        op,
        SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } | SendOp::WriteWithImm { .. }
    )
}

impl Stream {
    /// Whether the connection offers the operation, once it is known what it offers.
    pub(super) fn offers(&self, op: SendOp) -> bool {
        let Some(agreed) = &self.negotiated else {
            return true;
        };
        (agreed.rfc7306 || !needs_rfc7306(op)) && (agreed.ord > 0 || !is_answered(op))
    }

    /// Whether the request in the middle goes on, or the next one may start.
    pub(super) fn request_ready(&self) -> bool {
        if self.requester.is_busy() {
            return true;
        }
        if !self.is_receiving() || !self.gate.is_open() || self.local_fault.is_some() {
            return false;
        }
        let Some(request) = self.sq.next() else {
            return false;
        };
        if request.flags.contains(SendFlags::FENCE) && self.requester.has_awaited() {
            return false;
        }
        // One that can never be sent is not made to wait: it fails.
        let ord = self
            .negotiated
            .as_ref()
            .map_or(0, |agreed| usize::from(agreed.ord));
        !is_answered(request.op) || ord == 0 || self.requester.awaited.len() < ord
    }

    /// Most gather elements that the next FPDU of the send queue takes.
    pub(super) fn request_pieces(&self) -> usize {
        match self.sq.next().map(|request| &request.payload) {
            Some(Payload::Sges(sges)) => sges.len() + 2,
            _ => 2,
        }
    }

    /// RFC 6581 §9: the RTR frame, before any other FPDU.
    pub(super) fn transmit_rtr<M: Memory>(&mut self, memory: &M, out: &mut TxBatch, kind: RtrKind) {
        self.requester.rtr = None;
        // Some hardware does not take STag 0, so it is 1 as everyone's.
        let (stag, to) = (Stag::new(1), TaggedOffset::new(0));
        let head = match kind {
            RtrKind::Write => tagged(Opcode::WRITE, true, stag, to),
            RtrKind::Send => {
                let msn = self.requester.take_send_msn();
                untagged(Opcode::SEND, true, msn, 0, Stag::new(0))
            }
            RtrKind::Read => {
                let msn = self.requester.take_request_msn();
                self.requester.awaited.push_back(Awaited::Read {
                    ticket: None,
                    stag,
                    size: 0,
                    received: 0,
                });
                let request = ReadRequest {
                    sink_stag: stag,
                    sink_to: to,
                    size: 0,
                    source_stag: stag,
                    source_to: to,
                };
                read_request(msn, &request)
            }
        };
        // Without payload there is nothing to fail.
        let _ = self.tx.emit(memory, out, &head, Source::None);
        self.establish();
    }

    /// One FPDU of the send queue, or whatever else its next request needs.
    pub(super) fn transmit_request<M: Memory>(&mut self, memory: &mut M, out: &mut TxBatch) {
        let progress = match self.requester.progress {
            Some(progress) => progress,
            None => {
                let Some(request) = self.sq.next() else {
                    return;
                };
                if let Err(fault) = self.check_request(memory, request) {
                    return self.request_fails(fault);
                }
                Progress {
                    offset: 0,
                    immediate: false,
                }
            }
        };
        let Some(request) = self.sq.next() else {
            return;
        };
        let result = match request.op {
            SendOp::LocalInvalidate(key) => memory.invalidate(key).map(|()| {
                self.sq.next_done(WcStatus::Success);
            }),
            SendOp::BindMw(bind) => {
                match memory.bind(&bind) {
                    Ok(()) => self.sq.next_done(WcStatus::Success),
                    Err(fault) => self.request_fails(LocalFault::Bind(fault)),
                }
                return;
            }
            op if is_answered(op) => self.transmit_asking(memory, out),
            _ if progress.immediate => self.transmit_immediate(memory, out),
            _ => self.transmit_payload(memory, out, progress),
        };
        if let Err(fault) = result {
            self.request_fails(LocalFault::Protection(fault));
        }
    }

    fn check_request<M: Memory>(
        &self,
        memory: &M,
        request: &SendRequest,
    ) -> Result<(), LocalFault> {
        // Posted before anyone knew.
        if !self.offers(request.op) {
            return Err(LocalFault::NotSupported);
        }
        let need = if is_answered(request.op) {
            Access::LOCAL_WRITE
        } else {
            Access::empty()
        };
        if let Payload::Sges(sges) = &request.payload {
            for sge in sges.iter().filter(|sge| sge.length > 0) {
                memory.check_local(sge, need)?;
            }
        }
        Ok(())
    }

    /// The request cannot go on. Those before it still may complete; with it the stream ends.
    fn request_fails(&mut self, fault: LocalFault) {
        self.requester.progress = None;
        self.local_fault = Some(fault);
        self.sq.next_done(fault.wc_status());
    }

    /// The next FPDU of a Send or RDMA Write.
    fn transmit_payload<M: Memory>(
        &mut self,
        memory: &M,
        out: &mut TxBatch,
        progress: Progress,
    ) -> Result<(), MemoryFault> {
        let Some(request) = self.sq.next() else {
            return Ok(());
        };
        let op = request.op;
        let offset = progress.offset;
        let left = request.payload.len() - offset;
        let header_len = match op {
            SendOp::Write { .. } | SendOp::WriteWithImm { .. } => TaggedHeader::LEN,
            _ => UntaggedHeader::LEN,
        };
        let (len, last) = segment_len(&self.tx, header_len, left);
        let head = match op {
            SendOp::Write { remote_addr, rkey }
            | SendOp::WriteWithImm {
                remote_addr, rkey, ..
            } => {
                let to = TaggedOffset::new(remote_addr.wrapping_add(offset));
                tagged(Opcode::WRITE, last, rkey.into(), to)
            }
            _ => {
                let (opcode, invalidates) = send_opcode(request);
                let mo = u32::try_from(offset).unwrap_or(u32::MAX);
                untagged(opcode, last, self.requester.next_send, mo, invalidates)
            }
        };
        let source = match &request.payload {
            Payload::Sges(sges) => Source::Local { sges, offset, len },
            Payload::Inline(data) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                Source::Inline(data.get(start..start + len).unwrap_or(&[]))
            }
        };
        self.tx.emit(memory, out, &head, source)?;
        let immediate = last && matches!(op, SendOp::WriteWithImm { .. });
        if last && !immediate {
            if header_len == UntaggedHeader::LEN {
                self.requester.take_send_msn();
            }
            self.request_yielded();
        } else {
            self.sq.start_next();
            self.requester.progress = Some(Progress {
                offset: offset + len as u64,
                immediate,
            });
        }
        Ok(())
    }

    fn transmit_immediate<M: Memory>(
        &mut self,
        memory: &M,
        out: &mut TxBatch,
    ) -> Result<(), MemoryFault> {
        let Some(&SendRequest {
            op: SendOp::WriteWithImm { imm, .. },
            flags,
            ..
        }) = self.sq.next()
        else {
            return Ok(());
        };
        let opcode = if flags.contains(SendFlags::SOLICITED) {
            Opcode::IMMEDIATE_SE
        } else {
            Opcode::IMMEDIATE
        };
        let header = UntaggedHeader::new(
            opcode,
            true,
            QueueNumber::SEND,
            self.requester.next_send,
            MessageOffset::ZERO,
        );
        let head = Head::new(|writer| {
            header.emit(writer);
            immediate_data(imm).emit(writer);
        });
        self.tx.emit(memory, out, &head, Source::None)?;
        self.requester.take_send_msn();
        self.request_yielded();
        Ok(())
    }

    /// All of the request in the middle was yielded.
    fn request_yielded(&mut self) {
        self.requester.progress = None;
        self.sq.next_yielded(self.tx.position());
    }

    /// A Read or Atomic Request.
    fn transmit_asking<M: Memory>(
        &mut self,
        memory: &M,
        out: &mut TxBatch,
    ) -> Result<(), MemoryFault> {
        let Some(request) = self.sq.next() else {
            return Ok(());
        };
        let ticket = self.sq.next_ticket();
        let msn = self.requester.next_request;
        // Any number does for both names; this one differs from those of its neighbours.
        let request_id = msn.get();
        let atomic = |make: &dyn Fn(u32) -> AtomicRequest| {
            let header = UntaggedHeader::new(
                Opcode::ATOMIC_REQUEST,
                true,
                QueueNumber::READ_REQUEST,
                msn,
                MessageOffset::ZERO,
            );
            let head = Head::new(|writer| {
                header.emit(writer);
                make(request_id).emit(writer);
            });
            (head, Awaited::Atomic { ticket, request_id })
        };
        let at = |rkey: Rkey, addr| (Stag::from(rkey), TaggedOffset::new(addr));
        let (head, awaited) = match request.op {
            SendOp::FetchAdd {
                remote_addr,
                rkey,
                add,
            } => {
                let (stag, to) = at(rkey, remote_addr);
                atomic(&|id| AtomicRequest::fetch_add(id, stag, to, add))
            }
            SendOp::CompareSwap {
                remote_addr,
                rkey,
                compare,
                swap,
            } => {
                let (stag, to) = at(rkey, remote_addr);
                atomic(&|id| AtomicRequest::cmp_swap(id, stag, to, compare, swap))
            }
            SendOp::Read { remote_addr, rkey } => {
                let (source_stag, source_to) = at(rkey, remote_addr);
                let stag = Stag::new(request_id);
                let size = u32::try_from(request.payload.len()).unwrap_or(u32::MAX);
                let sink_to = TaggedOffset::new(0);
                let read = ReadRequest {
                    sink_stag: stag,
                    sink_to,
                    size,
                    source_stag,
                    source_to,
                };
                let awaited = Awaited::Read {
                    ticket: Some(ticket),
                    stag,
                    size,
                    received: 0,
                };
                (read_request(msn, &read), awaited)
            }
            _ => return Ok(()),
        };
        self.tx.emit(memory, out, &head, Source::None)?;
        self.requester.take_request_msn();
        self.requester.awaited.push_back(awaited);
        self.sq.next_awaits();
        Ok(())
    }

    /// RFC 7306 §5.2: answers come in the order of the requests, those of reads among them.
    pub(super) fn atomic_response<M: Memory>(
        &mut self,
        memory: &mut M,
        response: AtomicResponse,
    ) -> Result<(), Fault> {
        let Some(&Awaited::Atomic { ticket, request_id }) = self.requester.oldest() else {
            return Err(PeerViolation::UnexpectedResponse.into());
        };
        if response.request_id != request_id {
            return Err(PeerViolation::UnexpectedResponse.into());
        }
        let original = response.original.to_ne_bytes();
        if let Some(SendRequest {
            payload: Payload::Sges(sges),
            ..
        }) = self.sq.get(ticket)
        {
            let mut rest = &original[..];
            let written = parts(sges, 0, original.len()).try_for_each(|(key, addr, len)| {
                let (here, after) = rest.split_at(len);
                rest = after;
                memory.write(key, addr, here)
            });
            written.map_err(|fault| {
                self.read_fails(LocalFault::Protection(fault));
                LocalFault::Protection(fault)
            })?;
        }
        self.requester.next_atomic_response = self.requester.next_atomic_response.next();
        self.requester.answered();
        self.sq.complete(ticket, WcStatus::Success);
        Ok(())
    }

    /// Tells the owner, once, that the connection is established.
    pub(super) fn establish(&mut self) {
        if !core::mem::replace(&mut self.established, true) {
            self.events.push_back(StreamEvent::Established);
        }
    }
}

/// How much of the `left` octets of a message the next segment carries, and whether it is the
/// last.
pub(super) fn segment_len(tx: &Framer, header_len: usize, left: u64) -> (usize, bool) {
    let most = tx.max_payload(header_len);
    match usize::try_from(left) {
        Ok(left) if left <= most => (left, true),
        _ => (most, false),
    }
}

fn send_opcode(request: &SendRequest) -> (Opcode, Stag) {
    let solicited = request.flags.contains(SendFlags::SOLICITED);
    match request.op {
        SendOp::SendWithInvalidate(rkey) if solicited => (Opcode::SEND_SE_INVALIDATE, rkey.into()),
        SendOp::SendWithInvalidate(rkey) => (Opcode::SEND_INVALIDATE, rkey.into()),
        _ if solicited => (Opcode::SEND_SE, Stag::new(0)),
        _ => (Opcode::SEND, Stag::new(0)),
    }
}

pub(super) fn tagged(opcode: Opcode, last: bool, stag: Stag, to: TaggedOffset) -> Head {
    let header = TaggedHeader::new(opcode, last, stag, to);
    Head::new(|writer| header.emit(writer))
}

/// A segment of a Send.
fn untagged(opcode: Opcode, last: bool, msn: Msn, mo: u32, invalidates: Stag) -> Head {
    let mo = MessageOffset::new(mo);
    let mut header = UntaggedHeader::new(opcode, last, QueueNumber::SEND, msn, mo);
    header.invalidate_stag = invalidates;
    Head::new(|writer| header.emit(writer))
}

fn read_request(msn: Msn, request: &ReadRequest) -> Head {
    let header = UntaggedHeader::new(
        Opcode::READ_REQUEST,
        true,
        QueueNumber::READ_REQUEST,
        msn,
        MessageOffset::ZERO,
    );
    Head::new(|writer| {
        header.emit(writer);
        request.emit(writer);
    })
}
