//! Attackers over UDP.

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use softverbs::fault::Kind;
use softverbs::{
    Access, AhAttr, Context, Cq, Device, Pd, Qp, QpAttr, QpAttrMask, QpInitAttr, QpState, RecvWr,
    Transport,
};
use softverbs_wire::codec::Reader;
use softverbs_wire::ib::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, ExtensionHeader, Feth, Headers, Icrc, Ieth, ImmDt,
    Opcode, Packet, Rdeth, Reth, Syndrome, Trailer, Xrceth, pad_count,
};
use softverbs_wire::num::{Psn, Qkey, Qpn, Rkey, VirtualAddress};

use super::common::ALL;
use super::common::faults::Faults;
use super::guarded::Guarded;
use super::{Bystander, LEN, Random, Regions, seeds};

const PORT: u16 = 4791;
const PEER: Qpn = Qpn::new(0x00ab_cdef);
const FIRST: Psn = Psn::new(0xff_fff0);

struct Victim {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
}

/// A queue pair of a connection that was made by hand, whose peer is the attacker.
fn victim() -> Victim {
    let device = Device::for_address(Ipv6Addr::LOCALHOST.into(), None).unwrap();
    let context = device.with_transport(Transport::Roce).open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(256, None, 0).unwrap();
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    let victim = Victim {
        context,
        pd,
        cq,
        qp,
    };
    let index = (0..8)
        .find(|index| {
            victim
                .context
                .query_gid(1, *index)
                .is_ok_and(|gid| gid == Ipv6Addr::LOCALHOST.into())
        })
        .expect("::1 in the GID table");
    let attr = QpAttr {
        qp_state: QpState::Init,
        qp_access_flags: ALL,
        path_mtu: 3,
        dest_qp_num: PEER,
        rq_psn: FIRST.get(),
        ah_attr: AhAttr::new(Ipv6Addr::LOCALHOST.into(), index.try_into().unwrap()),
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        ..QpAttr::default()
    };
    let init = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    victim.qp.modify(&attr, QpAttrMask::STATE | init).unwrap();
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        ..attr
    };
    let rtr = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    victim.qp.modify(&attr, rtr).unwrap();
    victim
}

struct Attacker(UdpSocket, SocketAddrV6);

impl Attacker {
    fn new() -> Self {
        let socket = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        let from = SocketAddrV6::new(
            Ipv6Addr::LOCALHOST,
            socket.local_addr().unwrap().port(),
            0,
            0,
        );
        Self(socket, from)
    }

    fn send(&self, mut headers: Headers, payload: &[u8], random: Option<&mut Random>) {
        let to = SocketAddrV6::new(Ipv6Addr::LOCALHOST, PORT, 0, 0);
        headers.bth.pad_count = pad_count(payload.len());
        let trailer = Trailer::new(payload.len(), [0; 4]);
        let packet = Packet {
            headers,
            payload,
            trailer,
        };
        let mut octets = Vec::new();
        packet.append_to(&mut octets);
        let mut cut = octets.len();
        if let Some(random) = random {
            if random.below(20) == 0 {
                let at = random.below(octets.len());
                octets[at] ^= 1 << random.below(8);
            }
            if random.below(30) == 0 {
                cut = 16 + random.below(octets.len() - 15);
            }
        }
        octets.truncate(cut);
        let sum = octets.len() - 4;
        let icrc = Icrc::of_datagram_v6(self.1, to, &octets);
        octets[sum..].copy_from_slice(&icrc.map_or([0; 4], Icrc::finish));
        self.0.send_to(&octets, to).unwrap();
    }
}

fn attack(regions: &Regions, to: Qpn, near: Psn, random: &mut Random) -> (Headers, Vec<u8>) {
    let region = regions.any(random);
    let key = Rkey::new(regions.key(random, region));
    let len = random.len().min(1024);
    let va = VirtualAddress::new(random.address(region, len));
    let opcode = loop {
        let opcode = Opcode::ALL[random.below(Opcode::ALL.len())];
        if opcode.get() >> 5 == 0 || random.below(40) == 0 {
            break opcode;
        }
    };
    let psn = match random.below(10) {
        0 => Psn::new(random.word()),
        1 => near.advance(u32::MAX - random.word() % 5),
        2 => near.advance(1 + random.word() % 5),
        _ => near,
    };
    let mut headers = Headers::new(Bth::new(opcode, to, psn));
    headers.bth.ack_req = random.below(2) == 0;
    let dma_len = match random.below(4) {
        0 => random.word(),
        _ => u32::try_from(len).unwrap(),
    };
    headers.reth = Some(Reth {
        va,
        rkey: key,
        dma_len,
    });
    headers.atomic_eth = Some(AtomicEth {
        va,
        rkey: key,
        swap_or_add: random.next(),
        compare: 0,
    });
    headers.ieth = Some(Ieth { rkey: key });
    headers.imm_dt = Some(ImmDt([1, 2, 3, 4]));
    headers.aeth = Some(Aeth::new(
        Syndrome::from_bits(random.word().to_le_bytes()[0]),
        Default::default(),
    ));
    headers.atomic_ack_eth = Some(AtomicAckEth { original: 7 });
    let has_payload = opcode.info().is_some_and(|info| info.has_payload());
    (
        only_its_own(headers),
        vec![0xee; if has_payload { len } else { 0 }],
    )
}

/// Without the extension headers that the opcode does not have.
fn only_its_own(all: Headers) -> Headers {
    let mut headers = Headers::new(all.bth);
    let info = all.bth.opcode.info().unwrap();
    let parse = |octets: &[u8]| Rdeth::parse(&mut Reader::new(octets)).ok();
    for extension in info.extensions.iter() {
        match extension {
            ExtensionHeader::Reth => headers.reth = all.reth,
            ExtensionHeader::AtomicEth => headers.atomic_eth = all.atomic_eth,
            ExtensionHeader::Ieth => headers.ieth = all.ieth,
            ExtensionHeader::ImmDt => headers.imm_dt = all.imm_dt,
            ExtensionHeader::Aeth => headers.aeth = all.aeth,
            ExtensionHeader::AtomicAckEth => headers.atomic_ack_eth = all.atomic_ack_eth,
            ExtensionHeader::Deth => headers.deth = Some(Deth::new(Qkey::new(1), PEER)),
            ExtensionHeader::Rdeth => headers.rdeth = parse(&[0; 4]),
            ExtensionHeader::Xrceth => {
                headers.xrceth = Some(Xrceth {
                    reserved: 0,
                    srq: Qpn::new(1),
                });
            }
            ExtensionHeader::Feth => {
                headers.feth = Feth::parse(&mut Reader::new(&[0; 4])).ok();
            }
        }
    }
    headers
}

#[test]
fn nothing_outside_a_region_is_touched() {
    let _alone = Faults::none();
    let bystander = Bystander::new(Transport::Roce);
    let attacker = Attacker::new();
    let (mut landed, mut ended) = (0, 0);
    for seed in 1..=u64::from(seeds()) {
        let mut random = Random::new(seed);
        let victim = victim();
        let other = victim.context.alloc_pd().unwrap();
        let regions = Regions::new(&victim.pd, &other, &mut random);
        let sink = Guarded::new(&victim.pd, LEN, true, Access::LOCAL_WRITE);
        for wr_id in 0..8 {
            let sges = [sink.mr.sge(random.below(1000), random.below(LEN - 1000))];
            victim.qp.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
        }
        let mut psn = FIRST;
        for word in 1..40_u64 {
            // What came before may have been a right one, or several.
            let reached = (0..6).find(|ahead| {
                let at = psn.advance(*ahead);
                let mut headers =
                    Headers::new(Bth::new(Opcode::RC_WRITE_ONLY, victim.qp.qp_num(), at));
                headers.bth.ack_req = true;
                let headers = headers.with_reth(Reth {
                    va: VirtualAddress::new(regions.open.mr.addr()),
                    rkey: regions.open.mr.rkey(),
                    dma_len: 8,
                });
                attacker.send(headers, &word.to_be_bytes(), None);
                let is_over = || victim.qp.query().qp_state == QpState::Err;
                let end = Instant::now() + Duration::from_millis(200);
                while regions.open.word() != word && !is_over() && Instant::now() < end {
                    sleep(Duration::from_micros(50));
                }
                regions.open.word() == word
            });
            let Some(ahead) = reached else { break };
            psn = psn.advance(ahead + 1);
            landed += 1;
            let (headers, payload) = attack(&regions, victim.qp.qp_num(), psn, &mut random);
            attacker.send(headers, &payload, Some(&mut random));
        }
        ended += u32::from(victim.qp.query().qp_state == QpState::Err);
        regions.check(seed);
        assert!(sink.is_intact_outside(), "{seed}: beside the receives");
        bystander.lives(seed);
        drop(victim.cq);
    }
    let attackers = seeds();
    assert!(landed > 2 * attackers, "{landed} honest Writes landed");
    assert!(ended > attackers / 4, "{ended} of {attackers} were ended");
}

/// Nobody gets more octets out of us than it has sent, and strangers none.
#[test]
fn strangers_get_no_answer() {
    let faults = Faults::install("in:rej=drop");
    let attacker = Attacker::new();
    let victim = victim();
    let mut random = Random::new(1);
    let other = victim.context.alloc_pd().unwrap();
    let regions = Regions::new(&victim.pd, &other, &mut random);
    for number in 0..2000 {
        // Queue pairs that are none, of this process and of others.
        let to = Qpn::new(victim.qp.qp_num().get().wrapping_add(1 + number % 3000) & 0xff_ffff);
        let (headers, payload) = attack(&regions, to, FIRST, &mut random);
        attacker.send(headers, &payload, Some(&mut random));
    }
    sleep(Duration::from_millis(200));
    assert_eq!(faults.sent(Kind::Data), 0);
    regions.check(0);
}
