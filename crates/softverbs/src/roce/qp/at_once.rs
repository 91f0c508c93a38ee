//! RDMA Writes past all queues, between processes of one host: what the sender of a small one places
//! itself, and what its target lets it write to. See `port::lane`.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use softverbs_proto::memory::Access;
use softverbs_proto::qp_state::{QpState, QpType};
use softverbs_proto::wr::{
    Completion, Payload, SendFlags, SendOp, SendRequest, WcOpcode, WcStatus,
};
use softverbs_wire::ib::{Opcode, Packet};
use softverbs_wire::num::Rkey;

use super::Roce;
use crate::engine::Engine;
use crate::mr_table::LastPin;
use crate::qp::QpInner;
use crate::roce::port::{Grantor, MOST_AT_ONCE, end_grants};
use crate::wr::Wc;

/// So many writes to one region, of which the application saw none come, and its peer may go on alone.
const MANY: u8 = 8;

/// What the peer keeps writing to while nobody polls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passive {
    rkey: Option<Rkey>,
    /// Writes that the engine's thread has placed, less those that the application's threads have.
    score: u8,
    /// Something was granted.
    granted: bool,
}

impl Passive {
    /// A write of one packet was placed, on the engine's own thread or on another one. Whether the peer
    /// may go on alone.
    fn note(&mut self, rkey: Rkey, own: bool) -> bool {
        if self.rkey != Some(rkey) {
            self.rkey = Some(rkey);
            self.score = 0;
        }
        self.score = if own {
            (self.score + 1).min(MANY)
        } else {
            self.score.saturating_sub(1)
        };
        self.score == MANY
    }
}

/// The key of a write that is one packet.
pub(super) fn written_by(packet: &Packet<'_>) -> Option<Rkey> {
    let headers = &packet.headers;
    let reth = headers.reth.as_ref()?;
    (headers.bth.opcode == Opcode::RC_WRITE_ONLY).then_some(reth.rkey)
}

impl Roce {
    /// Nothing that this queue pair has granted may be written to any more.
    pub(crate) fn end_grants(&mut self) {
        if std::mem::take(&mut self.passive).granted {
            end_grants();
        }
    }
}

impl QpInner {
    /// The last of some packets that came together by a lane was a write with this key, or none.
    pub(super) fn note_write(&self, roce: &mut Roce, grantor: &Grantor<'_>, rkey: Option<Rkey>) {
        let Some(rkey) = rkey else { return };
        let ready = matches!(roce.queue_pair.state(), QpState::Rtr | QpState::Rts);
        let attributes = roce.queue_pair.attributes();
        let (may_write, peer) = (attributes.access, attributes.dest_qpn);
        if self.qp_type != QpType::Rc || !ready || !may_write.contains(Access::REMOTE_WRITE) {
            return;
        }
        if roce.passive.note(rkey, Engine::is_own_thread()) {
            // A grant that is not ended here is ended with the region.
            roce.passive.granted = true;
            roce.passive.score = 0;
            let regions = &self.pd.context().inner().regions;
            grantor.grant(regions, self.domain(), [self.qp_num, peer], rkey);
        }
    }

    /// Whether a request is done when this returns: a small write, when nothing is under way and the
    /// target lets this process do it. The first one since a poll: many are faster together.
    pub(crate) fn writes_at_once(&self, roce: &mut Roce, request: &SendRequest) -> bool {
        let SendOp::Write { remote_addr, rkey } = request.op else {
            return false;
        };
        let Some(path) = roce.path.as_ref() else {
            return false;
        };
        if self.qp_type != QpType::Rc || !roce.port.has_grants(path) {
            return false;
        }
        let len = usize::try_from(request.payload.len()).unwrap_or(usize::MAX);
        let queue_pair = &mut roce.queue_pair;
        let idle = queue_pair.state() == QpState::Rts
            && queue_pair.outstanding() == 0
            // Nor is there one that an acknowledge has just completed, before this one.
            && !queue_pair.has_send_completions()
            && roce.pending.is_empty()
            && roce.early.is_none();
        let first = self.sent_epoch.load(Ordering::Relaxed) != self.send_cq.epoch();
        // Some kernels copy fewer than eight octets one by one, which whoever reads them would see.
        let whole = len == 1 || (8..=MOST_AT_ONCE).contains(&len);
        if !whole || !idle || !first || self.send_cq.has_overrun() {
            return false;
        }
        let mut copied = SmallVec::<[u8; 256]>::new();
        let octets = match &request.payload {
            Payload::Inline(data) => &data[..],
            Payload::Sges(sges) => {
                let memory = LastPin::new(&self.pd.context().inner().regions);
                copied.resize(len, 0);
                let mut rest = &mut copied[..];
                for sge in sges.iter().filter(|sge| sge.length > 0) {
                    let (room, behind) = rest.split_at_mut(sge.length as usize);
                    rest = behind;
                    let (len, domain) = (sge.length.into(), self.domain());
                    let copy = memory.with(sge.lkey.get(), |pin| {
                        pin.check_local(sge.addr, len, Access::empty(), domain)?;
                        pin.copy_out(sge.addr, room, domain)
                    });
                    if copy.is_err() {
                        // Its completion will say so.
                        return false;
                    }
                }
                &copied[..]
            }
        };
        if !roce
            .port
            .write_at_once(path, self.qp_num, rkey, remote_addr, octets)
        {
            return false;
        }
        self.sent_epoch
            .store(self.send_cq.epoch(), Ordering::Relaxed);
        if roce.queue_pair.config().sq_sig_all || request.flags.contains(SendFlags::SIGNALED) {
            let completion = Completion {
                wr_id: request.wr_id,
                status: WcStatus::Success,
                opcode: WcOpcode::RdmaWrite,
                byte_len: u32::try_from(len).unwrap_or(0),
                imm: None,
                invalidated: None,
                solicited: false,
            };
            self.send_cq
                .push(&[Wc::new(&completion, self.qp_num)], false);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_polls_grants_nothing() {
        let (one, other) = (Rkey::new(1), Rkey::new(2));
        let mut passive = Passive::default();
        for _ in 0..100 {
            assert!(!passive.note(one, true) && !passive.note(one, false));
        }
        for _ in 1..MANY {
            assert!(!passive.note(one, true));
        }
        assert!(!passive.note(other, true), "another region");
        for _ in 1..MANY {
            assert!(!passive.note(one, true));
        }
        assert!(passive.note(one, true));
    }
}
