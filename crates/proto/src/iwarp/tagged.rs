//! Tagged segments of the peer: RDMA Write and Read Response (RFC 5040 §5.2, §5.3; RFC 5041 §5.2).

use softverbs_wire::ddp::TaggedHeader;
use softverbs_wire::num::{Lkey, Stag};

use super::inbound::{Kind, Segment};
use super::requester::Awaited;
use super::stream::Stream;
use crate::fault::{Fault, LocalFault, PeerViolation, RemoteOperation};
use crate::memory::{Access, Memory};
use crate::wr::{Payload, Sge, WcStatus};

/// An RDMA Write in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WriteProgress {
    stag: Stag,
    /// Where the next segment has to begin.
    next: u64,
    /// Octets so far.
    len: u64,
}

impl Stream {
    pub(super) fn check_write<M: Memory>(
        &mut self,
        memory: &M,
        header: &TaggedHeader,
        len: usize,
    ) -> Result<Kind, Fault> {
        let to = header.to.get();
        let octets = len as u64;
        // RFC 5040 §5.2.1: the STag of a zero-length message means nothing, nor does its TO.
        if len > 0 {
            if let Some(write) = self.inbound.write {
                continues(&write, header)?;
            }
            memory
                .check_remote(header.stag.into(), to, octets, Access::REMOTE_WRITE)
                .map_err(|fault| PeerViolation::Protection {
                    operation: RemoteOperation::Write,
                    fault,
                })?;
        }
        Ok(Kind::Write {
            key: Lkey::new(header.stag.get()),
            to,
        })
    }

    pub(super) fn finish_write(&mut self, segment: Segment) {
        let Kind::Write { key, to } = segment.kind else {
            return;
        };
        let len = segment.len as u64;
        let before = self.inbound.write.take();
        let total = before.map_or(0, |write| write.len) + len;
        if segment.last {
            self.inbound.written = total;
        } else {
            self.inbound.write = match before {
                // It has not said yet where it goes.
                _ if total == 0 => None,
                Some(write) if len == 0 => Some(write),
                _ => {
                    let next = to.wrapping_add(len);
                    Some(WriteProgress {
                        stag: Stag::new(key.get()),
                        next,
                        len: total,
                    })
                }
            };
        }
    }

    /// RFC 5040 §5.3: a response names the buffer of its request, which is the oldest one.
    pub(super) fn check_read_response(
        &self,
        header: &TaggedHeader,
        len: usize,
    ) -> Result<Kind, Fault> {
        let Some(Awaited::Read {
            stag,
            size,
            received,
            ..
        }) = self.requester.oldest()
        else {
            return Err(PeerViolation::UnexpectedResponse.into());
        };
        let after = received + len as u64;
        if len > 0 {
            if header.stag != *stag {
                return Err(PeerViolation::ResponseStag.into());
            }
            if header.to.get() != *received || after > u64::from(*size) {
                return Err(PeerViolation::ResponseBounds.into());
            }
        }
        if header.control.is_last() && after < u64::from(*size) {
            return Err(PeerViolation::ResponseShort.into());
        }
        Ok(Kind::ReadResponse)
    }

    pub(super) fn finish_read_response(&mut self, segment: Segment) -> Result<(), Fault> {
        let Some(Awaited::Read {
            ticket, received, ..
        }) = self.requester.oldest_mut()
        else {
            return Err(PeerViolation::UnexpectedResponse.into());
        };
        *received += segment.len as u64;
        if segment.last {
            let ticket = *ticket;
            self.requester.answered();
            if let Some(ticket) = ticket {
                self.sq.complete(ticket, WcStatus::Success);
            }
        }
        Ok(())
    }

    /// Where the rest of the oldest read goes: its scatter list, and how much of it is filled.
    pub(super) fn read_sink(&self) -> Option<(&[Sge], u64)> {
        let Some(Awaited::Read {
            ticket: Some(ticket),
            received,
            ..
        }) = self.requester.oldest()
        else {
            return None;
        };
        match &self.sq.get(*ticket)?.payload {
            Payload::Sges(sges) => Some((sges, *received)),
            Payload::Inline(_) => None,
        }
    }

    /// The sink of the oldest read or atomic has gone.
    pub(super) fn read_fails(&mut self, fault: LocalFault) {
        if let Some(ticket) = self.requester.oldest().and_then(Awaited::ticket) {
            self.sq.complete(ticket, fault.wc_status());
        }
    }
}

/// Segments of one RDMA Write follow each other in its buffer. Nothing else may come between
/// them that is an RDMA Write (RFC 5041 §5.3).
fn continues(write: &WriteProgress, header: &TaggedHeader) -> Result<(), PeerViolation> {
    if write.stag != header.stag {
        return Err(PeerViolation::WriteStag);
    }
    if write.next != header.to.get() {
        return Err(PeerViolation::WriteOffset);
    }
    Ok(())
}
