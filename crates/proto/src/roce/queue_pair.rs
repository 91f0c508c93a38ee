//! One queue pair of RoCEv2: commands, states, the send gate, time and results.
//!
//! # Contract
//!
//! Queries take `&self`. Everything else feeds the queue pair one thing that happened: a command,
//! a packet, room to transmit, a deadline. After each of them ask
//!
//! 1. `poll_event` until it yields nothing: events come before the completions that they make
//!    sense of;
//! 2. `wants_transmit`, and if so `poll_transmit`, whose packets are sent at once;
//! 3. `poll_recv_completion` and `poll_send_completion` until they yield nothing: after the
//!    packets, since a request of an unreliable service completes when its last packet was
//!    yielded, and its memory belongs to the application again when the completion is seen;
//! 4. `deadline`, and call `on_timeout` when it has come.
//!
//! Feeding several packets before `poll_transmit` lets one acknowledge answer them all.
//!
//! Time never goes backwards. A packet that was yielded may be lost on the way, so a full socket
//! is no reason to keep one. Packets come to `on_packet` with a correct ICRC, from the address of
//! the peer (RC, UC), by their destination queue pair number.
//!
//! Receives that no message has taken belong to the owner, who flushes them in the error state.

use std::collections::VecDeque;

use softverbs_wire::ib::Packet;
use softverbs_wire::num::{Gid, PathMtu, Qkey, Qpn};

pub use super::attributes::{ModifyError, QpAttributes};
pub use super::batch::{Destination, PacketBatch, PacketFrame};
use crate::fault::Misuse;
use crate::memory::Memory;
use crate::qp_state::{QpAttrMask, QpState, QpType};
use crate::send_gate::{Opener, SendGate};
use crate::time::Time;
use crate::wr::{Completion, SendRequest, WcStatus};

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// The transport service.
    pub qp_type: QpType,
    /// Our queue pair number.
    pub qpn: Qpn,
    /// Most requests in the send queue.
    pub max_send_wr: u32,
    /// Every send request is signaled.
    pub sq_sig_all: bool,
    /// Payloads of up to this many octets are copied into the scratch buffer instead of gathered.
    pub copy_limit: u32,
    /// Largest payload of a datagram (UD): the port's MTU.
    pub port_mtu: PathMtu,
    /// Most packets in flight (RC), READ responses included; at least 1.
    pub max_window: u32,
}

impl QpConfig {
    /// What most owners want.
    pub const fn new(qp_type: QpType, qpn: Qpn, max_send_wr: u32) -> Self {
        Self {
            qp_type,
            qpn,
            max_send_wr,
            sq_sig_all: false,
            copy_limit: 256,
            port_mtu: PathMtu::Mtu4096,
            max_window: 256,
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdDestination {
    /// The owner's number for the address handle; comes back as [`Destination::Address`].
    pub address: u64,
    /// The queue pair there, [`Qpn::MULTICAST`] for a group.
    pub remote_qpn: Qpn,
    /// The key that lets the datagram in. With the highest bit set, our own key goes instead (IBA vol
    /// 1 ch 10, Q_Key).
    pub remote_qkey: Qkey,
}

/// What the network said about a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketMeta {
    /// The IP header is marked "congestion experienced".
    pub ecn_ce: bool,
    /// The 40 octets that a datagram's receive buffer starts with (UD); see
    /// [`GrhArea`](softverbs_wire::ib::GrhArea).
    pub grh: Option<[u8; 40]>,
}

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdSource {
    /// Its queue pair.
    pub qpn: Qpn,
    /// The first 40 octets of the receive hold the network header.
    pub grh: bool,
}

/// The end of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvCompletion {
    /// As of any work request. The length of a datagram counts the 40 octets before it.
    pub completion: Completion,
    /// Who sent it (UD).
    pub source: Option<UdSource>,
}

/// Why a queue pair went to the error state (UC, UD: or to SQE) by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpFailure {
    /// A send request failed with this status; its completion says so too.
    SendQueue(WcStatus),
    /// The peer touched memory that it may not touch (`IBV_EVENT_QP_ACCESS_ERR`).
    RemoteAccess,
    /// The peer asked for something that cannot be (`IBV_EVENT_QP_REQ_ERR`).
    InvalidRequest,
    /// A receive or a READ of the peer met memory of ours that is not there
    /// (`IBV_EVENT_QP_FATAL`).
    Local,
}

/// What the owner of the queue pair has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// Communication established (`IBV_EVENT_COMM_EST`): the first valid packet came while the
    /// queue pair was in RTR or its gate was held. At most once from RTR on.
    CommEst,
    /// Every request that had begun has completed (SQD, if asked for).
    SqDrained,
    /// The queue pair went to the error state, or a UC or UD one to SQE, not because it was told
    /// to. Once.
    Fatal {
        /// Why.
        cause: QpFailure,
    },
    /// The queue pair will take no more receives: it is in the error state. Of interest with a
    /// shared receive queue only. Once, however the error state was reached.
    LastWqeReached,
}

/// What happened on a queue pair, for diagnosis. Counters wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Request packets sent again.
    pub retransmitted: u64,
    /// Acknowledge timeouts that used up a retry.
    pub timeouts: u64,
    /// Packets sent to find out what was lost, before the acknowledge timeout.
    pub probes: u64,
    /// Times that requests were sent again because an answer told of a loss.
    pub losses: u64,
    /// Requests of the peer that came twice.
    pub duplicates: u64,
    /// Requests of the peer that came too early.
    pub out_of_sequence: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// RNR NAKs that made us wait.
    pub rnr_naks_received: u64,
    /// Congestion notifications sent.
    pub cnps_sent: u64,
    /// Congestion notifications received.
    pub cnps_received: u64,
    /// Packets dropped without an answer.
    pub dropped: u64,
}

/// One queue pair, from RESET on. See the module for the contract.
#[derive(Debug)]
pub struct QueuePair {
    config: QpConfig,
    state: QpState,
    attributes: QpAttributes,
    gate: SendGate,
    groups: Vec<Gid>,
    events: VecDeque<QpEvent>,
    recv_completions: VecDeque<RecvCompletion>,
    counters: QpCounters,
}

impl QueuePair {
    /// A queue pair in RESET. Its gate is open.
    pub fn new(config: QpConfig) -> Self {
        Self {
            config,
            state: QpState::Reset,
            attributes: QpAttributes::default(),
            gate: SendGate::Open { by: Opener::Role },
            groups: Vec::new(),
            events: VecDeque::new(),
            recv_completions: VecDeque::new(),
            counters: QpCounters::default(),
        }
    }

    // ---- commands ----

    /// Sets the attributes in `mask` and goes to `to`, by the table of
    /// [`qp_state`](crate::qp_state). To change attributes only, `to` is the present state.
    pub fn modify(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        mask: QpAttrMask,
        to: QpState,
    ) -> Result<(), ModifyError> {
        let _ = now;
        let transition = (self.state, to);
        self.attributes
            .apply(self.config.qp_type, transition, attributes, mask)?;
        self.state = to;
        Ok(())
    }

    /// Queues a request (RC, UC). Allowed from RTR on: it goes out in RTS, when the gate is open.
    /// In SQE and in the error state it is flushed.
    pub fn post_send(&mut self, request: SendRequest) -> Result<(), Misuse> {
        let _ = request;
        Err(Misuse::State)
    }

    /// Queues a datagram (UD).
    pub fn post_send_to(
        &mut self,
        request: SendRequest,
        destination: UdDestination,
    ) -> Result<(), Misuse> {
        let _ = (request, destination);
        Err(Misuse::State)
    }

    /// Holds the gate: requests wait until [`open_gate`](Self::open_gate), or until the first
    /// valid packet of the peer. For the passive side of a connection, before RTR. Without effect
    /// once the peer was heard of.
    pub fn hold_gate(&mut self) {
        self.gate = SendGate::CLOSED;
    }

    /// The connection manager knows that the peer listens. True if this opened the gate.
    pub fn open_gate(&mut self) -> bool {
        self.gate.open(Opener::ReadyToUse)
    }

    /// The queue pair goes to the error state, whatever state it is in but RESET: everything is
    /// flushed.
    pub fn abort(&mut self) {}

    /// Joins a multicast group (UD). False if it was a member. Which packets are the group's is
    /// the owner's to find out: see [`is_attached`](Self::is_attached).
    pub fn attach_mcast(&mut self, group: Gid) -> Result<bool, Misuse> {
        if self.config.qp_type != QpType::Ud {
            return Err(Misuse::NotSupported);
        }
        let joins = !self.is_attached(group);
        if joins {
            self.groups.push(group);
        }
        Ok(joins)
    }

    /// Leaves a multicast group. False if it was no member.
    pub fn detach_mcast(&mut self, group: Gid) -> bool {
        let before = self.groups.len();
        self.groups.retain(|member| *member != group);
        self.groups.len() < before
    }

    /// Whether datagrams to the group are for this queue pair too.
    pub fn is_attached(&self, group: Gid) -> bool {
        self.groups.contains(&group)
    }

    // ---- receive ----

    /// A packet for this queue pair. Nothing that is in it does harm; what may not be placed is
    /// refused before its first octet is.
    pub fn on_packet<M: Memory>(
        &mut self,
        now: Time,
        memory: &mut M,
        packet: &Packet<'_>,
        meta: &PacketMeta,
    ) {
        let _ = (now, memory, packet, meta);
    }

    // ---- transmit ----

    /// Whether `poll_transmit` would do something.
    pub fn wants_transmit(&self) -> bool {
        false
    }

    /// Appends up to `max_packets` packets to `out`. Also carries out local requests whose turn
    /// has come.
    pub fn poll_transmit<M: Memory>(
        &mut self,
        now: Time,
        memory: &mut M,
        out: &mut PacketBatch,
        max_packets: usize,
    ) {
        let _ = (now, memory, out, max_packets);
    }

    // ---- time ----

    /// When to call `on_timeout`.
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    /// A deadline has passed.
    pub fn on_timeout(&mut self, now: Time) {
        let _ = now;
    }

    // ---- results ----

    /// The next completion of the send queue, in the order of posting.
    pub fn poll_send_completion(&mut self) -> Option<Completion> {
        None
    }

    /// The next completion of the receive queue.
    pub fn poll_recv_completion(&mut self) -> Option<RecvCompletion> {
        self.recv_completions.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.events.pop_front()
    }

    /// The present state.
    pub const fn state(&self) -> QpState {
        self.state
    }

    /// Whether the send queue is draining (SQD).
    pub const fn is_draining(&self) -> bool {
        false
    }

    /// The present attributes.
    pub const fn attributes(&self) -> &QpAttributes {
        &self.attributes
    }

    /// What it was created with.
    pub const fn config(&self) -> &QpConfig {
        &self.config
    }

    /// Requests in the send queue that have not completed.
    pub fn outstanding(&self) -> usize {
        0
    }

    /// Whether the send gate is open.
    pub const fn gate_is_open(&self) -> bool {
        self.gate.is_open()
    }

    /// What happened so far.
    pub const fn counters(&self) -> &QpCounters {
        &self.counters
    }
}
