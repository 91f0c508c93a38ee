//! RDMA Writes past the ring: what their sender places itself in the memory of the peer's process, and what
//! the peer may write to in this one. See `same_host::grants`.
//!
//! A target that waits by reading its memory never calls the library, and its engine's thread would have
//! to find a core for each write. So there a small write is placed by whoever posts it, if nothing is under way:
//! the peer has done everything that was put into the ring. Large ones go by the ring, which is as fast.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use softverbs_proto::qp_state::QpState;
use softverbs_proto::wr::{Completion, SendFlags, SendOp, SendRequest, WcOpcode, WcStatus};
use softverbs_wire::num::Rkey;

use super::status::{COUNTERS, count};
use super::{Lane, Used, Way};
use crate::engine::Engine;
use crate::mr_table::{Domain, MrTable};
use crate::qp::{Connection, Core, Iwarp, QpInner, QpMemory, Side};
use crate::same_host::bell::has_ended;
use crate::same_host::board::{Board, Process};
use crate::same_host::grants::{Granting, Passive, end_grants, grant};
use crate::same_host::placing::{Reach, is_small};
use crate::same_host::sys::open_process;
use crate::wr::Wc;

/// A lane is of one queue pair at each end.
const QPNS: [u32; 2] = [0; 2];

/// What the peer's process has to know of this one, and this one of it, while there are grants.
#[derive(Debug)]
pub(super) struct Known {
    /// Random: by it the sender knows that this is the right process.
    proof: u64,
    /// The sender's process, where the kernel tells.
    sender: Option<OwnedFd>,
}

/// See [`Known`].
pub(super) type Acquaintance = OnceLock<Option<Known>>;

/// Both directions of writes that go past the ring, for who has the lock of the queue pair.
#[derive(Debug, Default)]
pub(super) struct AtOnce {
    passive: Passive,
    reach: Reach,
    /// The receiver's process.
    receiver: Option<OwnedFd>,
}

impl Granting for Lane {
    fn board(&self) -> &Board {
        self.pipes.granted()
    }

    fn writer_has_gone(&self) -> bool {
        let known = self.acquaintance.get().and_then(Option::as_ref);
        has_ended(&self.bell, known.and_then(|known| known.sender.as_ref()))
    }
}

impl Lane {
    /// Tells the sender how to reach this process. Whether it could.
    fn introduce(&self) -> bool {
        let known = self.acquaintance.get_or_init(|| {
            let mut proof = [0; 8];
            getrandom::fill(&mut proof).ok()?;
            Some(Known {
                proof: u64::from_ne_bytes(proof),
                sender: self.bell.process(),
            })
        });
        let Some(Known { proof, .. }) = known else {
            return false;
        };
        self.pipes.granted().introduce(Process {
            pid: std::process::id(),
            proof_at: std::ptr::from_ref(proof).addr() as u64,
            proof: *proof,
        });
        true
    }
}

impl AtOnce {
    /// Ends what the peer may write to. Whether there was anything.
    pub(super) fn end(&mut self) -> bool {
        let any = self.passive.take();
        if any {
            end_grants();
        }
        any
    }
}

impl Used {
    /// What has come is in its place. Of small writes that came, the last one was to the region with this
    /// key.
    fn done(&mut self, written: Option<Rkey>, regions: &MrTable, domain: Domain) {
        if !self.inward {
            return;
        }
        self.inlet.finish();
        let Some(rkey) = written else { return };
        let passive = &mut self.at_once.passive;
        if !Engine::is_own_thread() {
            // Who polls receives from the ring in less time than a write past it takes.
            passive.disregard();
        } else if passive.note(rkey) && self.lane.introduce() {
            let lane = std::sync::Arc::clone(&self.lane) as _;
            grant(&lane, regions, domain, QPNS, rkey);
        }
    }

    /// Places a write, if the peer lets this process do it, and has done everything else.
    fn place(&mut self, memory: &QpMemory<'_>, request: &SendRequest) -> bool {
        let SendOp::Write { remote_addr, rkey } = request.op else {
            return false;
        };
        let (pipes, len) = (&self.lane.pipes, request.payload.len());
        let board = pipes.granting();
        if !self.outward
            || !board.has_any()
            || !pipes.is_done()
            || board.find(QPNS, rkey.get(), remote_addr, len).is_none()
        {
            return false;
        }
        let Some(octets) = memory.gather(request) else {
            return false;
        };
        let AtOnce {
            reach, receiver, ..
        } = &mut self.at_once;
        if *reach == Reach::Unknown {
            // Before its proof is read: it is that process from then on.
            let pid = i32::try_from(board.process().pid).unwrap_or(0);
            *receiver = open_process(pid).ok();
        }
        let gone = || has_ended(&self.lane.bell, receiver.as_ref());
        reach.place(board, gone, QPNS, (rkey.get(), remote_addr), &octets)
    }
}

impl Way {
    /// See [`Used::done`].
    pub(in crate::qp) fn done(&mut self, memory: &QpMemory<'_>, receives: bool) {
        if let Some(used) = &mut self.used {
            let written = memory.take_written().filter(|_| receives);
            used.done(written, memory.regions(), memory.domain());
        }
    }
}

impl Connection {
    fn place(&mut self, memory: &QpMemory<'_>, request: &SendRequest) -> bool {
        let idle = !self.waiting_for_room && self.batch.is_empty();
        let used = self.way.used.as_mut().filter(|_| idle);
        used.is_some_and(|used| used.place(memory, request))
    }
}

impl Core {
    /// Nothing that this queue pair has granted may be written to any more.
    pub(in crate::qp) fn end_grants(&mut self) {
        match &mut self.side {
            Side::Iwarp(iwarp) => {
                let connection = iwarp.connection.as_mut();
                if let Some(used) = connection.and_then(|of| of.way.used.as_mut()) {
                    used.at_once.end();
                }
            }
            Side::Roce(roce) => roce.end_grants(),
        }
    }
}

impl QpInner {
    /// Whether a request is done when this returns: a small write, when nothing is under way and the peer
    /// lets this process do it. The first one since a poll: many are faster together.
    pub(in crate::qp) fn places_at_once(&self, iwarp: &mut Iwarp, request: &SendRequest) -> bool {
        let Iwarp { stream, connection } = iwarp;
        let Some(connection) = connection.as_mut().filter(|of| of.way.leads_out()) else {
            return false;
        };
        let epoch = self.send_cq.epoch();
        if !matches!(request.op, SendOp::Write { .. })
            || !is_small(request.payload.len())
            || self.state() != QpState::Rts
            || !stream.is_idle()
            || self.sent_epoch.load(Ordering::Relaxed) == epoch
            || self.send_cq.has_overrun()
            || !connection.place(&QpMemory::new(self), request)
        {
            return false;
        }
        count(&COUNTERS.placed);
        self.completed_at_once(request, self.sq_sig_all);
        true
    }

    /// A write has been placed.
    pub(crate) fn completed_at_once(&self, request: &SendRequest, all_signaled: bool) {
        self.sent_epoch
            .store(self.send_cq.epoch(), Ordering::Relaxed);
        if all_signaled || request.flags.contains(SendFlags::SIGNALED) {
            let completion = Completion {
                wr_id: request.wr_id,
                status: WcStatus::Success,
                opcode: WcOpcode::RdmaWrite,
                byte_len: u32::try_from(request.payload.len()).unwrap_or(0),
                imm: None,
                invalidated: None,
                solicited: false,
            };
            self.send_cq
                .push(&[Wc::new(&completion, self.qp_num)], false);
        }
    }
}
