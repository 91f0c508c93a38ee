//! The pair harness of RoCE: two queue pairs and a network between them, in virtual time, that
//! loses, repeats, delays and marks packets as a seed says.
#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    reason = "shared by tests that each use a part of it"
)]
#![allow(unreachable_pub, reason = "a module of several test binaries")]

mod end;
#[path = "../common/memory.rs"]
pub mod memory;
pub mod model;
pub mod responder;

use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use smallvec::smallvec;
use softverbs_proto::memory::{Access, Memory as _};
use softverbs_proto::qp_state::{QpAttrMask, QpState, QpType};
use softverbs_proto::roce::queue_pair::{
    Destination, PacketBatch, PacketFrame, PacketMeta, QpAttributes, QpConfig, QpEvent, QueuePair,
    RecvCompletion, UdDestination,
};
use softverbs_proto::roce::train;
use softverbs_proto::time::Time;
use softverbs_proto::transmit::Piece;
use softverbs_proto::wr::{Completion, Payload, SendFlags, SendOp, SendRequest, Sge, WcStatus};
use softverbs_wire::ib::{
    Aeth, AethKind, Bth, Headers, NakCode, Opcode, Operation, Packet, Syndrome, Trailer,
};
use softverbs_wire::num::{Lkey, Msn24, PathMtu, Pkey, Psn, Qkey, Qpn, Rkey};

pub use end::End;
pub use memory::VecMemory;

pub const A_QPN: Qpn = Qpn::new(0x11);
pub const B_QPN: Qpn = Qpn::new(0x22);
/// First sequence numbers, close to the wrap.
pub const A_PSN: Psn = Psn::new(0x00ff_fff0);
pub const B_PSN: Psn = Psn::new(0x00ff_fffd);
pub const QKEY: Qkey = Qkey::new(0x1234);

/// How long a packet is on its way.
pub const LATENCY: Duration = Duration::from_micros(10);

pub fn micros(micros: u64) -> Time {
    Time::new(Duration::from_micros(micros))
}

/// A small generator of numbers that are random enough (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// What the network does to packets, in percent of all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Network {
    pub drop: usize,
    pub duplicate: usize,
    pub reorder: usize,
    pub mark: usize,
}

impl Network {
    pub const GOOD: Self = Self {
        drop: 0,
        duplicate: 0,
        reorder: 0,
        mark: 0,
    };

    pub fn all(percent: usize) -> Self {
        Self {
            drop: percent,
            duplicate: percent,
            reorder: percent,
            mark: percent,
        }
    }
}

pub fn config(qp_type: QpType, qpn: Qpn) -> QpConfig {
    QpConfig {
        sq_sig_all: false,
        copy_limit: 64,
        ..QpConfig::new(qp_type, qpn, 64)
    }
}

pub fn attributes() -> QpAttributes {
    QpAttributes {
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        qkey: QKEY,
        path_mtu: PathMtu::Mtu1024,
        timeout: 17,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 12,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        ..QpAttributes::default()
    }
}

pub const TO_INIT: QpAttrMask = QpAttrMask::STATE
    .union(QpAttrMask::PKEY_INDEX)
    .union(QpAttrMask::PORT)
    .union(QpAttrMask::ACCESS_FLAGS);
pub const TO_INIT_UD: QpAttrMask = QpAttrMask::STATE
    .union(QpAttrMask::PKEY_INDEX)
    .union(QpAttrMask::PORT)
    .union(QpAttrMask::QKEY);
pub const TO_RTR_UC: QpAttrMask = QpAttrMask::STATE
    .union(QpAttrMask::AV)
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::DEST_QPN)
    .union(QpAttrMask::RQ_PSN);
pub const TO_RTR: QpAttrMask = TO_RTR_UC
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
    .union(QpAttrMask::MIN_RNR_TIMER);
pub const TO_RTS_UC: QpAttrMask = QpAttrMask::STATE.union(QpAttrMask::SQ_PSN);
pub const TO_RTS: QpAttrMask = TO_RTS_UC
    .union(QpAttrMask::TIMEOUT)
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC);

/// The masks to INIT, RTR and RTS.
pub fn masks(qp_type: QpType) -> [QpAttrMask; 3] {
    match qp_type {
        QpType::Rc => [TO_INIT, TO_RTR, TO_RTS],
        QpType::Uc => [TO_INIT, TO_RTR_UC, TO_RTS_UC],
        QpType::Ud => [TO_INIT_UD, QpAttrMask::STATE, TO_RTS_UC],
        QpType::XrcSend => [TO_INIT, TO_RTR_UC, TO_RTS],
        QpType::XrcRecv => [TO_INIT, TO_RTR, TO_RTS_UC.union(QpAttrMask::TIMEOUT)],
    }
}

/// The octets of a packet.
pub fn built(mut headers: Headers, payload: &[u8]) -> Vec<u8> {
    headers.bth.pad_count = softverbs_wire::ib::pad_count(payload.len());
    let mut octets = Vec::new();
    let trailer = Trailer::new(payload.len(), [0; 4]);
    Packet {
        headers,
        payload,
        trailer,
    }
    .append_to(&mut octets);
    octets
}

pub fn bth(opcode: Opcode, to: Qpn, psn: Psn) -> Headers {
    Headers::new(Bth::new(opcode, to, psn))
}

/// Two ends and what is on its way between them.
#[derive(Debug)]
pub struct Pair {
    pub a: End,
    pub b: End,
    pub now: Time,
    pub random: Random,
    pub network: Network,
    /// By time of arrival and order of sending: whether to `b`, the octets, the mark.
    on_the_way: BTreeMap<(Time, u64), (bool, Vec<u8>, bool)>,
    sent: u64,
    /// Packets that a test wants to be lost: asked for each packet, `true` if from `a`.
    pub filter: Option<Filter>,
    /// Most packets in flight at once towards either end.
    pub peak: usize,
}

/// Says of a packet, `true` if from `a`, whether it gets through.
type Passes = dyn FnMut(bool, &Headers) -> bool;

/// Decides which packets get through.
pub struct Filter(pub Box<Passes>);

impl core::fmt::Debug for Filter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Filter")
    }
}

impl Pair {
    pub fn reset(qp_type: QpType, network: Network, seed: u64) -> Self {
        Self {
            a: End::new(config(qp_type, A_QPN)),
            b: End::new(config(qp_type, B_QPN)),
            now: Time::ZERO,
            random: Random(seed),
            network,
            on_the_way: BTreeMap::new(),
            sent: 0,
            filter: None,
            peak: 0,
        }
    }

    /// From now on both ends put several packets of a message into one frame, which `parts` says how to
    /// send.
    pub fn with_trains(
        qp_type: QpType,
        network: Network,
        seed: u64,
        parts: Option<Random>,
    ) -> Self {
        let mut pair = Self::reset(qp_type, network, seed);
        for (end, qpn) in [(&mut pair.a, A_QPN), (&mut pair.b, B_QPN)] {
            *end = End::new(QpConfig {
                max_train: train::MOST,
                ..config(qp_type, qpn)
            });
            end.parts.clone_from(&parts);
        }
        pair
    }

    /// Two reliable queue pairs in RTS.
    pub fn new(attributes: QpAttributes, network: Network, seed: u64) -> Self {
        let mut pair = Self::reset(QpType::Rc, network, seed);
        pair.connect(attributes);
        pair
    }

    pub fn good() -> Self {
        Self::new(attributes(), Network::GOOD, 1)
    }

    pub fn connect(&mut self, attributes: QpAttributes) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.a.to(state, &of_a(attributes));
            self.b.to(state, &of_b(attributes));
        }
    }

    /// Packets that `filter` refuses are lost.
    pub fn lose(&mut self, mut loses: impl FnMut(bool, &Headers) -> bool + 'static) {
        let passes = move |from_a: bool, headers: &Headers| !loses(from_a, headers);
        self.filter = Some(Filter(Box::new(passes)));
    }

    fn send(&mut self, to_b: bool, octets: Vec<u8>) {
        let headers = Packet::parse(&octets).unwrap().headers;
        if let Some(Filter(passes)) = &mut self.filter
            && !passes(to_b, &headers)
        {
            return;
        }
        if self.random.chance(self.network.drop) {
            return;
        }
        let copies = 1 + usize::from(self.random.chance(self.network.duplicate));
        for _ in 0..copies {
            let mut arrival = self.now + LATENCY;
            if self.random.chance(self.network.reorder) {
                arrival = arrival + Duration::from_nanos(self.random.next() % 60_000);
            }
            let mark = self.random.chance(self.network.mark);
            self.sent += 1;
            self.on_the_way
                .insert((arrival, self.sent), (to_b, octets.clone(), mark));
        }
        self.peak = self.peak.max(self.on_the_way.len());
    }

    fn transmit(&mut self) {
        loop {
            let mut moved = false;
            for to_b in [true, false] {
                let end = if to_b { &mut self.a } else { &mut self.b };
                if end.qp.wants_transmit() {
                    moved = true;
                    for (destination, octets) in end.transmit(self.now) {
                        assert_eq!(destination, Destination::Peer);
                        self.send(to_b, octets);
                    }
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn next_time(&self) -> Option<Time> {
        let arrival = self
            .on_the_way
            .first_key_value()
            .map(|((time, _), _)| *time);
        [arrival, self.a.qp.deadline(), self.b.qp.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Transmits, and goes on to what happens next, if that is not after `until`.
    pub fn step(&mut self, until: Time) -> bool {
        self.transmit();
        let Some(next) = self.next_time().filter(|next| *next <= until) else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.on_the_way.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to_b, octets, ecn_ce) = entry.remove();
            let end = if to_b { &mut self.b } else { &mut self.a };
            let meta = PacketMeta {
                ecn_ce,
                ..PacketMeta::default()
            };
            end.feed(self.now, &octets, &meta);
        }
        for end in [&mut self.a, &mut self.b] {
            if end
                .qp
                .deadline()
                .is_some_and(|deadline| deadline <= self.now)
            {
                end.qp.on_timeout(self.now);
                end.drain();
            }
        }
        true
    }

    /// Runs until nothing happens any more.
    pub fn run(&mut self) {
        self.run_until(Time::new(Duration::from_secs(100_000)));
    }

    pub fn run_until(&mut self, until: Time) {
        let mut steps = 0;
        while self.step(until) {
            steps += 1;
            assert!(steps < 2_000_000, "never comes to rest");
        }
        self.a.memory.assert_canaries();
        self.b.memory.assert_canaries();
    }

    /// Both are still connected.
    pub fn assert_connected(&self) {
        assert_eq!(self.a.qp.state(), QpState::Rts, "{:?}", self.a.events);
        assert_eq!(self.b.qp.state(), QpState::Rts, "{:?}", self.b.events);
    }
}

pub fn of_a(attributes: QpAttributes) -> QpAttributes {
    QpAttributes {
        dest_qpn: B_QPN,
        sq_psn: A_PSN,
        rq_psn: B_PSN,
        ..attributes
    }
}

pub fn of_b(attributes: QpAttributes) -> QpAttributes {
    QpAttributes {
        dest_qpn: A_QPN,
        sq_psn: B_PSN,
        rq_psn: A_PSN,
        ..attributes
    }
}

pub fn sge(key: u32, addr: u64, len: usize) -> Sge {
    Sge {
        addr,
        length: u32::try_from(len).unwrap(),
        lkey: Lkey::new(key),
    }
}

pub fn rkey(key: u32) -> Rkey {
    Rkey::new(key)
}

/// A signaled request with one scatter/gather entry.
pub fn wr(wr_id: u64, op: SendOp, sge: Sge) -> SendRequest {
    SendRequest {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(smallvec![sge]),
    }
}

pub fn inline(wr_id: u64, op: SendOp, data: &[u8]) -> SendRequest {
    SendRequest {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        payload: Payload::Inline(data.iter().copied().collect()),
    }
}

pub fn with_flags(request: SendRequest, flags: SendFlags) -> SendRequest {
    SendRequest {
        flags: request.flags | flags,
        ..request
    }
}

pub fn read_op(key: u32, remote_addr: u64) -> SendOp {
    SendOp::Read {
        remote_addr,
        rkey: rkey(key),
    }
}

pub fn write_op(key: u32, remote_addr: u64) -> SendOp {
    SendOp::Write {
        remote_addr,
        rkey: rkey(key),
    }
}

pub fn fetch_add(key: u32, remote_addr: u64, add: u64) -> SendOp {
    SendOp::FetchAdd {
        remote_addr,
        rkey: rkey(key),
        add,
    }
}

pub fn statuses(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions
        .iter()
        .map(|completion| (completion.wr_id, completion.status))
        .collect()
}

/// Octets that differ from place to place.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let octet = |at: usize| at.to_le_bytes()[0];
    (0..len)
        .map(|at| octet(at).wrapping_mul(31) ^ octet(at >> 8) ^ octet(at >> 16) ^ seed)
        .collect()
}

/// Kind of the acknowledge in the headers.
pub fn kind(headers: &Headers) -> AethKind {
    headers.aeth.expect("an acknowledge").syndrome.kind()
}

pub fn nak(code: NakCode) -> AethKind {
    AethKind::Nak { code }
}

pub fn is_ack(headers: &Headers) -> bool {
    matches!(kind(headers), AethKind::Ack { .. })
}
