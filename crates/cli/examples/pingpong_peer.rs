//! A counterpart of rdma-core's `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong` and
//! `ibv_srq_pingpong`: queue pairs connected by hand, by their exchange of lines over TCP.
//!
//! ```text
//! pingpong_peer -t rc|uc|ud|srq -b ADDRESS [-c HOST] [-p PORT] [-m MTU] [-s SIZE] [-n COUNT] [-q QPS]
//! ```
//!
//! Exit status 0 if all messages came.

mod support;

use std::io::{Read, Write, stderr, stdout};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use softverbs::{
    Access, AddressHandle, AhAttr, Context, Cq, Device, Gid, Mr, Pd, Qp, QpAttr, QpAttrMask,
    QpInitAttr, QpState, QpType, Qpn, RecvWr, SendData, SendOp, SendWr, Srq, SrqInitAttr,
    Transport, UdAddress,
};

use support::{GRH, Outcome, complete_well, exit, expect, gid_index};

/// Play ping-pong with ibv_rc_pingpong and its kin.
#[derive(Debug, Parser)]
struct Args {
    /// Which of the programs to talk to
    #[arg(short = 't', long, value_enum)]
    service: Service,

    /// The own address
    #[arg(short, long, value_name = "ADDRESS")]
    bind: IpAddr,

    /// The server to connect to; without it, be the server
    #[arg(short = 'c', long, value_name = "HOST")]
    connect: Option<IpAddr>,

    /// Port of the exchange
    #[arg(short, long, default_value_t = 18515)]
    port: u16,

    /// Path MTU
    #[arg(short, long, default_value_t = 1024)]
    mtu: u32,

    /// Octets of a message
    #[arg(short, long, default_value_t = 4096)]
    size: usize,

    /// Messages each way, over all queue pairs
    #[arg(short = 'n', long, default_value_t = 1000)]
    count: u32,

    /// Queue pairs (srq)
    #[arg(short, long, default_value_t = 1)]
    qps: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Service {
    Rc,
    Uc,
    Ud,
    Srq,
}

/// The key of ibv_ud_pingpong.
const QKEY: u32 = 0x1111_1111;
/// ibv_srq_pingpong always says so many lines, whatever its number of queue pairs.
const SRQ_LINES: usize = 256;
/// Receives kept posted.
const DEPTH: u32 = 100;

fn main() -> ExitCode {
    exit("pingpong_peer", run(&Args::parse()))
}

/// Where a queue pair is: one line of the exchange.
#[derive(Clone, Copy)]
struct Dest {
    qpn: u32,
    psn: u32,
    gid: Gid,
}

impl Dest {
    /// "LID:QPN:PSN:GID" and a zero octet.
    const LINE: usize = 52;

    fn write(self, stream: &mut TcpStream) -> Outcome<()> {
        let gid = u128::from_be_bytes(self.gid.get());
        let line = format!("0000:{:06x}:{:06x}:{gid:032x}\0", self.qpn, self.psn);
        Ok(stream.write_all(line.as_bytes())?)
    }

    fn read(stream: &mut TcpStream) -> Outcome<Self> {
        let mut line = [0; Self::LINE];
        stream.read_exact(&mut line)?;
        let text = String::from_utf8_lossy(&line[..Self::LINE - 1]).into_owned();
        let words: Vec<_> = text.split(':').collect();
        let [_lid, qpn, psn, gid] = words[..] else {
            return Err(format!("exchange: {text:?}").into());
        };
        Ok(Self {
            qpn: u32::from_str_radix(qpn, 16)?,
            psn: u32::from_str_radix(psn, 16)?,
            gid: Gid::new(u128::from_str_radix(gid, 16)?.to_be_bytes()),
        })
    }
}

struct Game<'a> {
    args: &'a Args,
    context: Context,
    pd: Pd,
    index: u8,
    cq: Cq,
    srq: Option<Srq>,
    mr: Mr,
    qps: Vec<Qp>,
    ah: Option<(AddressHandle, Qpn)>,
}

fn run(args: &Args) -> Outcome<()> {
    let device = Device::for_address(args.bind, None)?.with_transport(Transport::Roce);
    let context = device.open()?;
    let pd = context.alloc_pd()?;
    let srq = if args.service == Service::Srq {
        let attr = SrqInitAttr {
            max_wr: 4 * DEPTH,
            ..SrqInitAttr::default()
        };
        Some(pd.create_srq(&attr)?)
    } else {
        None
    };
    let mut game = Game {
        index: gid_index(&context, args.bind)?,
        cq: context.create_cq(8 * DEPTH, None, 0)?,
        mr: pd.alloc_mr(2 * (GRH + args.size), Access::LOCAL_WRITE)?,
        srq,
        args,
        context,
        pd,
        qps: Vec::new(),
        ah: None,
    };
    let qps = if args.service == Service::Srq {
        args.qps
    } else {
        1
    };
    for _ in 0..qps {
        let qp = game.create_qp()?;
        game.qps.push(qp);
    }
    for _ in 0..if game.srq.is_some() { 4 * DEPTH } else { DEPTH } {
        game.recv()?;
    }
    game.exchange()?;
    game.play()?;
    writeln!(stdout().lock(), "all well")?;
    Ok(())
}

impl Game<'_> {
    fn head(&self) -> usize {
        if self.args.service == Service::Ud {
            GRH
        } else {
            0
        }
    }

    fn create_qp(&self) -> Outcome<Qp> {
        let mut init = QpInitAttr::rc(&self.cq, &self.cq);
        init.qp_type = match self.args.service {
            Service::Rc | Service::Srq => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
        };
        init.srq = self.srq.as_ref();
        init.cap.max_recv_wr = DEPTH;
        let qp = self.pd.create_qp(&init)?;
        let attr = QpAttr {
            qp_state: QpState::Init,
            qkey: QKEY,
            qp_access_flags: Access::empty(),
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
        let last = match self.args.service {
            Service::Ud => QpAttrMask::QKEY,
            _ => QpAttrMask::ACCESS_FLAGS,
        };
        qp.modify(&attr, mask | last)?;
        Ok(qp)
    }

    fn recv(&self) -> Outcome<()> {
        let sges = [self.mr.sge(0, self.head() + self.args.size)];
        let wr = RecvWr {
            wr_id: 1,
            sges: &sges,
        };
        match &self.srq {
            Some(srq) => srq.post_recv(&wr)?,
            None => self.qps[0].post_recv(&wr)?,
        }
        Ok(())
    }

    /// What goes out is not where the receives are.
    fn send(&self, qp: &Qp) -> Outcome<()> {
        let sges = [self.mr.sge(GRH + self.args.size, self.args.size)];
        let wr = SendWr::new(2, SendOp::Send, SendData::Sges(&sges));
        let wr = match &self.ah {
            Some((ah, remote_qpn)) => wr.to(UdAddress {
                ah,
                remote_qpn: *remote_qpn,
                remote_qkey: QKEY,
            }),
            None => wr,
        };
        Ok(qp.post_send(&wr)?)
    }

    fn psn(qp: &Qp) -> u32 {
        qp.qp_num().get().wrapping_mul(2_654_435_761) & 0xff_ffff
    }

    fn connect(&mut self, theirs: &[Dest]) -> Outcome<()> {
        for (qp, peer) in self.qps.iter().zip(theirs) {
            let way = AhAttr::new(peer.gid, self.index);
            let rtr = QpAttr {
                qp_state: QpState::Rtr,
                path_mtu: self.args.mtu.ilog2() - 7,
                dest_qp_num: Qpn::new(peer.qpn),
                rq_psn: peer.psn,
                max_dest_rd_atomic: 1,
                min_rnr_timer: 12,
                ah_attr: way,
                ..QpAttr::default()
            };
            let rts = QpAttr {
                qp_state: QpState::Rts,
                sq_psn: Self::psn(qp),
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic: 1,
                ..QpAttr::default()
            };
            let mut to_rtr = QpAttrMask::STATE;
            let mut to_rts = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
            if qp.qp_type() == QpType::Ud {
                self.ah = Some((self.pd.create_ah(&way)?, Qpn::new(peer.qpn)));
            } else {
                to_rtr |= QpAttrMask::AV
                    | QpAttrMask::PATH_MTU
                    | QpAttrMask::DEST_QPN
                    | QpAttrMask::RQ_PSN;
            }
            if qp.qp_type() == QpType::Rc {
                to_rtr |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
                to_rts |= QpAttrMask::TIMEOUT
                    | QpAttrMask::RETRY_CNT
                    | QpAttrMask::RNR_RETRY
                    | QpAttrMask::MAX_QP_RD_ATOMIC;
            }
            qp.modify(&rtr, to_rtr)?;
            qp.modify(&rts, to_rts)?;
        }
        Ok(())
    }

    /// The client speaks first. The server is connected before it answers, the client before it
    /// says that it is done.
    fn exchange(&mut self) -> Outcome<()> {
        let gid = self.context.query_gid(1, self.index.into())?;
        let lines = if self.srq.is_some() { SRQ_LINES } else { 1 };
        let mine: Vec<Dest> = (0..lines)
            .map(|i| match self.qps.get(i) {
                Some(qp) => Dest {
                    qpn: qp.qp_num().get(),
                    psn: Self::psn(qp),
                    gid,
                },
                None => Dest {
                    qpn: 0,
                    psn: 0,
                    gid: Gid::new([0; 16]),
                },
            })
            .collect();
        let say = |stream: &mut TcpStream| mine.iter().try_for_each(|dest| dest.write(stream));
        let hear = |stream: &mut TcpStream| -> Outcome<Vec<Dest>> {
            (0..lines).map(|_| Dest::read(stream)).collect()
        };
        if let Some(host) = self.args.connect {
            let mut stream = TcpStream::connect((host, self.args.port))?;
            say(&mut stream)?;
            let theirs = hear(&mut stream)?;
            self.connect(&theirs)?;
            stream.write_all(b"done\0")?;
        } else {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.args.port))?;
            writeln!(stderr().lock(), "listening on {}", listener.local_addr()?)?;
            let (mut stream, _) = listener.accept()?;
            let theirs = hear(&mut stream)?;
            self.connect(&theirs)?;
            say(&mut stream)?;
            let mut done = [0; 5];
            stream.read_exact(&mut done)?;
            expect(&done == b"done\0", || format!("exchange: {done:?}"))?;
        }
        Ok(())
    }

    /// Each message is answered with one, and the client begins.
    fn play(&self) -> Outcome<()> {
        let client = self.args.connect.is_some();
        if client {
            for qp in &self.qps {
                self.send(qp)?;
            }
        }
        let (mut sent, mut received) = (0, 0);
        // Per queue pair: whether a send has yet to complete, and whether a message has yet to come.
        let mut lanes = vec![(client, true); self.qps.len()];
        while sent < self.args.count || received < self.args.count {
            let wc = complete_well(&self.cq, "a message")?;
            let lane = self.qps.iter().position(|qp| qp.qp_num() == wc.qp_num);
            let lane = lane.ok_or("a completion of an unknown queue pair")?;
            let (sending, waiting) = &mut lanes[lane];
            if wc.opcode.is_recv() {
                let right = wc.byte_len as usize == self.head() + self.args.size;
                expect(right, || format!("a message of {} octets", wc.byte_len))?;
                received += 1;
                *waiting = false;
                self.recv()?;
            } else {
                sent += 1;
                *sending = false;
            }
            if sent < self.args.count && !*sending && !*waiting {
                (*sending, *waiting) = (true, true);
                self.send(&self.qps[lane])?;
            }
        }
        writeln!(stdout().lock(), "{received} messages received, {sent} sent")?;
        Ok(())
    }
}
