//! RDMA Writes past all queues, between processes of one host: what their sender places itself, and what
//! its target lets it write to. See `port::lane`.
//!
//! A small one is placed by whoever posts it, if nothing is under way: the first one since a poll, since
//! many are faster together. A large one waits until those before it have completed, and is placed then.

use std::sync::atomic::Ordering;

use softverbs_proto::memory::{Access, Memory};
use softverbs_proto::qp_state::{QpState, QpType};
use softverbs_proto::wr::{SendOp, SendRequest};
use softverbs_wire::ib::{Opcode, Packet};
use softverbs_wire::num::Rkey;

use super::Roce;
use crate::qp::{QpInner, QpMemory};
use crate::roce::port::Grantor;
use crate::same_host::grants::end_grants;
use crate::same_host::placing::{SMALL, is_small};

/// Longer ones are sent: whoever ends a grant waits for a write that has begun.
const MOST: u64 = 16 << 20;

/// The key of a write that begins with this packet.
pub(super) fn written_by(packet: &Packet<'_>) -> Option<Rkey> {
    let headers = &packet.headers;
    let reth = headers.reth.as_ref()?;
    let begins = matches!(
        headers.bth.opcode,
        Opcode::RC_WRITE_ONLY | Opcode::RC_WRITE_FIRST
    );
    begins.then_some(reth.rkey)
}

impl Roce {
    /// Nothing that this queue pair has granted may be written to any more.
    pub(crate) fn end_grants(&mut self) {
        if self.passive.take() {
            end_grants();
        }
    }
}

impl QpInner {
    /// Among packets that came together by a lane, a write with this key was the last one to begin, if
    /// one did.
    pub(super) fn note_write(&self, roce: &mut Roce, grantor: &Grantor<'_>, rkey: Option<Rkey>) {
        let Some(rkey) = rkey else { return };
        let ready = matches!(roce.queue_pair.state(), QpState::Rtr | QpState::Rts);
        let attributes = roce.queue_pair.attributes();
        let (may_write, peer) = (attributes.access, attributes.dest_qpn);
        if self.qp_type != QpType::Rc || !ready || !may_write.contains(Access::REMOTE_WRITE) {
            return;
        }
        if roce.passive.note(rkey) {
            let regions = &self.pd.context().inner().regions;
            grantor.grant(regions, self.domain(), [self.qp_num, peer], rkey);
        }
    }

    /// Whether a large write may go past the wire when its turn comes.
    pub(crate) fn may_go_past(&self, roce: &Roce, request: &SendRequest) -> bool {
        let SendOp::Write { remote_addr, rkey } = request.op else {
            return false;
        };
        let len = request.payload.len();
        (SMALL + 1..=MOST).contains(&len)
            && self.qp_type == QpType::Rc
            && roce.early.is_none()
            && roce.path.as_ref().is_some_and(|path| {
                let port = roce.port;
                port.is_granted(path, self.qp_num, rkey, remote_addr, len)
            })
    }

    /// Whether a request is done when this returns: a small write, when nothing is under way and the
    /// target lets this process do it.
    pub(crate) fn writes_at_once(&self, roce: &mut Roce, request: &SendRequest) -> bool {
        let SendOp::Write { remote_addr, rkey } = request.op else {
            return false;
        };
        let len = request.payload.len();
        let Some(path) = roce.path.as_ref().filter(|_| is_small(len)) else {
            return false;
        };
        let queue_pair = &roce.queue_pair;
        let idle = queue_pair.state() == QpState::Rts
            && queue_pair.outstanding() == 0
            // Nor is there one that an acknowledge has just completed, before this one.
            && !queue_pair.has_send_completions()
            && roce.pending.is_empty()
            && roce.early.is_none();
        let first = self.sent_epoch.load(Ordering::Relaxed) != self.send_cq.epoch();
        if self.qp_type != QpType::Rc
            || !idle
            || !first
            || self.send_cq.has_overrun()
            || !(roce.port).is_granted(path, self.qp_num, rkey, remote_addr, len)
            || !QpMemory::new(self)
                .reaching(roce.port, Some(path))
                .place(request)
        {
            return false;
        }
        self.completed_at_once(request, roce.queue_pair.config().sq_sig_all);
        true
    }
}
