//! Packets that no honest peer sends: never a panic, never an octet where it may not be, every
//! request completed once, and bounded work.

mod effort;
mod roce_common;

use effort::effort;
use roce_common::*;
use softverbs_proto::memory::Access;
use softverbs_proto::qp_state::{QpAttrMask, QpState, QpType};
use softverbs_proto::roce::queue_pair::{PacketMeta, QpAttributes, UdDestination};
use softverbs_proto::wr::SendOp;
use softverbs_wire::codec::Reader;
use softverbs_wire::ib::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, ExtensionHeader, Feth, Headers, Ieth, ImmDt, Opcode,
    Packet, Rdeth, Reth, Syndrome, Xrceth,
};
use softverbs_wire::num::{Msn24, PathMtu, Pkey, Psn, Qkey, Qpn, VirtualAddress};

/// Peers may do everything here.
const OPEN: u32 = 1;
/// Peers may read here.
const READABLE: u32 = 2;
/// Only local requests may write here, and none does.
const PRIVATE: u32 = 3;
/// Of another protection domain.
const FOREIGN: u32 = 4;
/// Receives and READ sinks.
const SINK: u32 = 5;
const LEN: usize = 3000;

fn numbers(random: &mut Random, near: Psn) -> Psn {
    match random.below(8) {
        0 => Psn::new(u32::try_from(random.next() & 0xffff_ffff).unwrap()),
        1 => near.advance(u32::MAX),
        2 => near.advance(1),
        3 => near.advance(u32::try_from(random.below(40)).unwrap()),
        _ => near,
    }
}

fn length(random: &mut Random) -> usize {
    match random.below(6) {
        0 => 0,
        1 => random.below(8),
        2 | 3 => 256,
        4 => random.below(256),
        _ => random.below(600),
    }
}

fn address(random: &mut Random) -> u64 {
    match random.below(5) {
        0 => random.next(),
        1 => u64::MAX - random.next() % 600,
        2 => LEN as u64 - random.next() % 600,
        _ => random.next() % LEN as u64,
    }
}

fn key(random: &mut Random) -> u32 {
    match random.below(4) {
        0 => u32::try_from(random.below(10)).unwrap(),
        1 => READABLE,
        _ => OPEN,
    }
}

/// The shared receive queue that there is.
const SRQ: Xrceth = Xrceth {
    reserved: 0,
    srq: Qpn::new(9),
};

/// Any packet of the table, with values that are near what would be right.
fn packet(random: &mut Random, service: usize, near: Psn, dest: Qpn) -> Vec<u8> {
    let all = Opcode::ALL;
    let opcode = loop {
        let opcode = all[random.below(all.len())];
        // Mostly of the right service.
        let fits = usize::from(opcode.get() >> 5) == service;
        if fits || random.below(60) == 0 {
            break opcode;
        }
    };
    let len = length(random);
    let mut bth = Bth::new(opcode, dest, numbers(random, near));
    bth.ack_req = random.below(2) == 0;
    bth.solicited = random.below(2) == 0;
    bth.fecn = random.below(20) == 0;
    bth.becn = random.below(20) == 0;
    if random.below(50) == 0 {
        bth.pkey = Pkey::new(0x1234);
    }
    let mut headers = Headers::new(bth);
    let info = opcode.info().unwrap();
    for extension in info.extensions.iter() {
        let octets: Vec<u8> = (0..32).map(|_| random.next().to_le_bytes()[0]).collect();
        let mut reader = Reader::new(&octets);
        match extension {
            ExtensionHeader::Rdeth => headers.rdeth = Rdeth::parse(&mut reader).ok(),
            ExtensionHeader::Xrceth => {
                headers.xrceth = match random.below(8) {
                    0 => Xrceth::parse(&mut reader).ok(),
                    _ => Some(SRQ),
                };
            }
            ExtensionHeader::Feth => headers.feth = Feth::parse(&mut reader).ok(),
            ExtensionHeader::Deth => {
                let qkey = if random.below(4) == 0 {
                    Qkey::new(9)
                } else {
                    QKEY
                };
                headers.deth = Some(Deth::new(qkey, Qpn::new(5)));
            }
            ExtensionHeader::Reth => {
                let dma_len = match random.below(4) {
                    0 => u32::try_from(random.next() & 0xffff_ffff).unwrap(),
                    1 => u32::try_from(random.below(2000)).unwrap(),
                    _ => u32::try_from(len).unwrap(),
                };
                headers.reth = Some(Reth {
                    va: VirtualAddress::new(address(random)),
                    rkey: rkey(key(random)),
                    dma_len,
                });
            }
            ExtensionHeader::AtomicEth => {
                headers.atomic_eth = Some(AtomicEth {
                    va: VirtualAddress::new(address(random) & !random.next() & !7),
                    rkey: rkey(key(random)),
                    swap_or_add: random.next(),
                    compare: random.next(),
                });
            }
            ExtensionHeader::Aeth => {
                let bits = match random.below(3) {
                    0 => random.next().to_le_bytes()[0],
                    1 => 0x60,
                    _ => 0x1f,
                };
                let msn = Msn24::new(u32::try_from(random.below(1 << 24)).unwrap());
                headers.aeth = Some(Aeth::new(Syndrome::from_bits(bits), msn));
            }
            ExtensionHeader::AtomicAckEth => {
                headers.atomic_ack_eth = Some(AtomicAckEth {
                    original: random.next(),
                });
            }
            ExtensionHeader::ImmDt => headers.imm_dt = Some(ImmDt([1, 2, 3, 4])),
            ExtensionHeader::Ieth => {
                headers.ieth = Some(Ieth {
                    rkey: rkey(key(random)),
                });
            }
        }
    }
    let has_payload = info.has_payload() || random.below(20) == 0;
    let payload = vec![0xee; if has_payload { len } else { 0 }];
    let mut octets = built(headers, &payload);
    // Now and then octets that are none of this.
    if random.below(10) == 0 {
        let at = random.below(octets.len());
        octets[at] ^= random.next().to_le_bytes()[0];
    }
    octets
}

/// A packet as it should be, so that the others meet a queue pair in all of its states.
fn honest(random: &mut Random, qp_type: QpType, psn: Psn) -> Vec<u8> {
    let len = random.below(257);
    let reth = Reth {
        va: VirtualAddress::new(0),
        rkey: rkey(OPEN),
        dma_len: u32::try_from(len).unwrap(),
    };
    let only = |opcode| {
        let mut headers = bth(opcode, B_QPN, psn);
        headers.bth.ack_req = true;
        headers
    };
    let headers = match qp_type {
        QpType::Rc => only(Opcode::RC_WRITE_ONLY).with_reth(reth),
        QpType::Uc => only(Opcode::UC_WRITE_ONLY).with_reth(reth),
        QpType::Ud => only(Opcode::UD_SEND_ONLY).with_deth(Deth::new(QKEY, Qpn::new(5))),
        QpType::XrcSend | QpType::XrcRecv => {
            let mut headers = only(Opcode::XRC_WRITE_ONLY);
            headers.xrceth = Some(SRQ);
            headers.with_reth(reth)
        }
    };
    built(headers, &vec![0xdd; len])
}

fn victim(qp_type: QpType, random: &mut Random) -> End {
    let attributes = QpAttributes {
        path_mtu: PathMtu::Mtu256,
        max_rd_atomic: 3,
        max_dest_rd_atomic: u8::try_from(random.below(4)).unwrap(),
        access: Access::from_bits_truncate(u32::try_from(random.below(16)).unwrap())
            | Access::REMOTE_WRITE,
        retry_cnt: 7,
        ..attributes()
    };
    let mut pair = Pair::reset(qp_type, Network::GOOD, 1);
    pair.connect(attributes);
    let mut end = pair.b;
    let memory = &mut end.memory;
    memory.add(OPEN, 0, VecMemory::all_access(), &pattern(1, LEN));
    memory.add(READABLE, 0, Access::REMOTE_READ, &pattern(2, LEN));
    memory.add(PRIVATE, 0, Access::LOCAL_WRITE, &pattern(3, LEN));
    memory.add(FOREIGN, 0, VecMemory::all_access(), &pattern(4, LEN));
    memory.region_mut(FOREIGN).our_pd = false;
    memory.region_mut(PRIVATE).can_invalidate = false;
    memory.add(SINK, 0, Access::LOCAL_WRITE, &[0; LEN]);
    for wr_id in 0..20 {
        end.memory
            .post_receive(wr_id, [sge(SINK, random.next() % 1000, random.below(2000))]);
    }
    end
}

fn post(end: &mut End, random: &mut Random, wr_id: u64) {
    let local = sge(SINK, random.next() % 1000, random.below(2000));
    match end.qp.config().qp_type {
        QpType::Rc => {
            let request = match random.below(4) {
                0 => wr(wr_id, SendOp::Send, local),
                1 => wr(wr_id, write_op(7, 0), local),
                2 => wr(wr_id, read_op(7, 0), local),
                _ => wr(wr_id, fetch_add(7, 0, 1), sge(SINK, 8, 8)),
            };
            end.post(request);
        }
        QpType::Uc => end.post(wr(wr_id, SendOp::Send, local)),
        QpType::Ud => {
            let request = wr(wr_id, SendOp::Send, sge(SINK, 0, 100));
            end.qp
                .post_send_to(request, UdDestination::default())
                .unwrap();
        }
        QpType::XrcSend | QpType::XrcRecv => unreachable!("sends nothing here"),
    }
}

fn attack(qp_type: QpType, service: usize) {
    let mut kinds = std::collections::HashMap::new();
    let (mut accepted, mut died) = (0, 0);
    for seed in 0..600 * u64::from(effort()) {
        let mut random = Random(seed);
        let mut end = victim(qp_type, &mut random);
        let mut posted = 0;
        let mut now = micros(1);
        // Where a right packet would be, as well as one can tell from outside.
        let mut expected = A_PSN;
        for _ in 0..200 {
            if qp_type != QpType::XrcRecv && posted < 30 && random.below(4) == 0 {
                post(&mut end, &mut random, posted);
                posted += 1;
            }
            let near = if random.below(3) == 0 {
                B_PSN.advance(u32::try_from(random.below(8)).unwrap())
            } else {
                expected
            };
            let octets = if random.below(3) > 0 {
                honest(&mut random, qp_type, expected)
            } else {
                packet(&mut random, service, near, B_QPN)
            };
            let meta = PacketMeta {
                packets: match random.below(4) {
                    0 => u32::try_from(random.below(20)).unwrap(),
                    _ => 1,
                },
                ecn_ce: random.below(10) == 0,
                grh: (random.below(2) == 0).then_some([0; 40]),
            };
            end.feed(now, &octets, &meta);
            now = now + core::time::Duration::from_micros(random.next() % 100);
            if end.qp.deadline().is_some_and(|deadline| deadline <= now) {
                end.qp.on_timeout(now);
            }
            // A READ of 2³¹ octets is legal: it is not our business to wait for its end.
            end.transmit(now);
            for (_, headers) in end.record.drain(..) {
                if let Some(aeth) = headers.aeth {
                    *kinds.entry(aeth.syndrome.bits()).or_insert(0) += 1;
                    if aeth.syndrome == Syndrome::ACK {
                        expected = headers.bth.psn.next();
                        accepted += 1;
                    }
                }
            }
            end.memory.assert_canaries();
            if end.qp.state() == QpState::Err {
                died += 1;
                break;
            }
        }
        assert_eq!(end.memory.octets(PRIVATE), pattern(3, LEN), "seed {seed}");
        assert_eq!(end.memory.octets(FOREIGN), pattern(4, LEN), "seed {seed}");
        assert_eq!(end.memory.octets(READABLE), pattern(2, LEN), "seed {seed}");
        end.qp.abort();
        end.drain();
        let order: Vec<u64> = end.sent.iter().map(|done| done.wr_id).collect();
        assert_eq!(order, (0..posted).collect::<Vec<_>>(), "seed {seed}");
        let receives = end.received.len() + end.memory.receives.len();
        assert_eq!(receives, 20, "seed {seed}: each once");
        assert_eq!(end.qp.deadline(), None);
    }
    if qp_type.is_reliable() {
        assert!(accepted > 1000 && died > 100, "{accepted} {died}");
        for bits in [0x1f, 0x60, 0x61, 0x62] {
            assert!(kinds.contains_key(&bits), "{bits:#x} in {kinds:?}");
        }
    }
}

#[test]
fn reliable() {
    attack(QpType::Rc, 0);
}

#[test]
fn unreliable() {
    attack(QpType::Uc, 1);
}

#[test]
fn receiving_ends_of_xrc() {
    attack(QpType::XrcRecv, 5);
}

#[test]
fn datagrams() {
    attack(QpType::Ud, 3);
}

/// Octets without any sense, in every state.
#[test]
fn noise() {
    let mut random = Random(7);
    for qp_type in QpType::ALL {
        for steps in 0..4 {
            let mut end = End::new(config(qp_type, B_QPN));
            for (state, _) in [QpState::Init, QpState::Rtr, QpState::Rts]
                .into_iter()
                .zip(0..steps)
            {
                end.to(state, &of_b(attributes()));
            }
            for _ in 0..2000 {
                let len = random.below(120);
                let mut octets: Vec<u8> =
                    (0..len).map(|_| random.next().to_le_bytes()[0]).collect();
                if let [opcode, flags, ..] = &mut octets[..] {
                    // XRC is beyond the services that there were first.
                    *opcode &= if len.is_multiple_of(4) { 0xbf } else { 0x7f };
                    *flags &= 0x30;
                }
                end.feed(micros(1), &octets, &PacketMeta::default());
                end.transmit(micros(1));
            }
            end.qp
                .modify(micros(2), &attributes(), QpAttrMask::STATE, QpState::Reset)
                .unwrap();
        }
    }
}

/// The shortest packets, cut anywhere, are no packets (B58).
#[test]
fn runts_are_no_packets() {
    let headers = bth(Opcode::RC_WRITE_ONLY, B_QPN, A_PSN).with_reth(Reth {
        va: VirtualAddress::new(0),
        rkey: rkey(OPEN),
        dma_len: 0,
    });
    let whole = built(headers, &[]);
    for len in 0..whole.len() {
        assert!(Packet::parse(&whole[..len]).is_err(), "{len}");
    }
}

/// Acknowledges of packets that were never sent change nothing.
#[test]
fn ghosts_are_ignored() {
    let mut pair = Pair::good();
    pair.a.memory.add(SINK, 0, Access::LOCAL_WRITE, &[0; LEN]);
    for (wr_id, op) in [SendOp::Send, read_op(9, 0)].into_iter().enumerate() {
        pair.a.post(wr(wr_id as u64, op, sge(SINK, 0, 8)));
    }
    pair.a.transmit_all(pair.now);
    let ghosts = [2, 3, 100, u32::MAX, 0x0080_0000].map(|ahead| A_PSN.advance(ahead));
    for psn in ghosts {
        for bits in [0x1f, 0x20, 0x60, 0x61, 0x62, 0x63, 0x40, 0xff] {
            let aeth = Aeth::new(Syndrome::from_bits(bits), Default::default());
            let headers = bth(Opcode::RC_ACKNOWLEDGE, A_QPN, psn).with_aeth(aeth);
            pair.a.inject(pair.now, headers, &[]);
        }
        let aeth = Aeth::new(Syndrome::ACK, Default::default());
        let response = bth(Opcode::RC_READ_RESPONSE_ONLY, A_QPN, psn).with_aeth(aeth);
        pair.a.inject(pair.now, response, &[1; 8]);
    }
    assert_eq!(pair.a.sent, []);
    assert_eq!(pair.a.qp.state(), QpState::Rts);
    assert_eq!(pair.a.memory.octets(SINK), [0; LEN]);
    // A response where a Send was: dropped, and it does not complete the Send.
    let aeth = Aeth::new(Syndrome::ACK, Default::default());
    let response = bth(Opcode::RC_READ_RESPONSE_ONLY, A_QPN, A_PSN).with_aeth(aeth);
    pair.a.inject(pair.now, response, &[1; 8]);
    assert_eq!(pair.a.sent, []);
    assert_eq!(pair.a.memory.octets(SINK), [0; LEN]);
}

/// A response of another length than asked for is not placed.
#[test]
fn a_response_of_the_wrong_length_ends_the_connection() {
    for len in [0, 4, 12, 1024] {
        let mut pair = Pair::good();
        pair.a.memory.add(SINK, 0, Access::LOCAL_WRITE, &[0; LEN]);
        pair.a.post(wr(1, read_op(9, 0), sge(SINK, 0, 8)));
        pair.a.transmit_all(pair.now);
        let aeth = Aeth::new(Syndrome::ACK, Default::default());
        let response = bth(Opcode::RC_READ_RESPONSE_ONLY, A_QPN, A_PSN).with_aeth(aeth);
        pair.a.inject(pair.now, response, &vec![1; len]);
        let status = softverbs_proto::wr::WcStatus::BadRespErr;
        assert_eq!(pair.a.statuses(), [(1, status)]);
        assert_eq!(pair.a.memory.octets(SINK), [0; LEN]);
    }
}
