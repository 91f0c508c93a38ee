//! The two ends: the exchange, what each knows of the other, queue pairs and memory.

use std::io::{Read, Write, stderr};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use softverbs::{
    Access, AddressHandle, AhAttr, Context, Cq, Device, Gid, Mr, Pd, Qp, QpAttr, QpAttrMask,
    QpInitAttr, QpState, QpType, Qpn, RecvWr, Rkey, SendData, SendOp, SendWr, Transport, UdAddress,
};

use crate::{Args, BLANK, GRH, LARGEST, Outcome, QKEY, Service, expect, gid_index, octet};

/// The exchange over TCP: each end says a line of 128 octets and reads the other's.
pub(crate) struct Exchange(TcpStream);

impl Exchange {
    pub(crate) const LINE: usize = 128;

    pub(crate) fn new(args: &Args) -> Outcome<Self> {
        let Some(host) = args.connect else {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, args.port))?;
            writeln!(stderr().lock(), "listening on {}", listener.local_addr()?)?;
            return Ok(Self(listener.accept()?.0));
        };
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match TcpStream::connect(SocketAddr::new(host, args.port)) {
                Ok(stream) => return Ok(Self(stream)),
                Err(error) if Instant::now() > end => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    pub(crate) fn swap(&mut self, mine: &str) -> Outcome<String> {
        let mut line = [0; Self::LINE];
        line[..mine.len()].copy_from_slice(mine.as_bytes());
        self.0.write_all(&line)?;
        self.0.read_exact(&mut line)?;
        let text = line.split(|&octet| octet == 0).next().unwrap_or(&[]);
        Ok(String::from_utf8(text.to_vec())?)
    }
}

/// Where the peer is and what of its memory we may use.
pub(crate) struct Peer {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) gid: Gid,
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
    pub(crate) read_only: Rkey,
}

impl Peer {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let mut number = |radix| u128::from_str_radix(words.next()?, radix).ok();
        let (qpn, psn, gid) = (number(16)?, number(16)?, number(16)?);
        let (addr, rkey, read_only) = (number(16)?, number(16)?, number(16)?);
        Some(Self {
            qpn: qpn.try_into().ok()?,
            psn: psn.try_into().ok()?,
            gid: Gid::new(gid.to_be_bytes()),
            addr: addr.try_into().ok()?,
            rkey: Rkey::new(rkey.try_into().ok()?),
            read_only: Rkey::new(read_only.try_into().ok()?),
        })
    }
}

/// A connected queue pair.
pub(crate) struct Lane {
    pub(crate) peer: Peer,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) ah: Option<AddressHandle>,
}

pub(crate) struct Test<'a> {
    pub(crate) args: &'a Args,
    pub(crate) exchange: Exchange,
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) gid_index: u8,
    /// What is sent from here, and where reads go.
    pub(crate) source: Mr,
    /// What the peer reaches.
    pub(crate) target: Mr,
    /// Of the same size, and not writable for the peer.
    pub(crate) read_only: Mr,
    pub(crate) seed: u32,
}

impl<'a> Test<'a> {
    pub(crate) fn open(args: &'a Args) -> Outcome<Self> {
        let device = Device::for_address(args.bind, None)?.with_transport(Transport::Roce);
        let context = device.open()?;
        let gid_index = gid_index(&context, args.bind)?;
        let pd = context.alloc_pd()?;
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        Ok(Self {
            exchange: Exchange::new(args)?,
            source: pd.alloc_mr(LARGEST + GRH, Access::LOCAL_WRITE)?,
            target: pd.alloc_mr(LARGEST + GRH, all)?,
            read_only: pd.alloc_mr(LARGEST, Access::REMOTE_READ)?,
            args,
            context,
            pd,
            gid_index,
            seed: 0,
        })
    }

    /// Both ends have come here; each tells a number.
    pub(crate) fn barrier(&mut self, word: u32) -> Outcome<u32> {
        let mine = format!("{:08x} {word:08x}", self.seed);
        let theirs = self.exchange.swap(&mine)?;
        match theirs.split_once(' ') {
            Some((seed, word)) if seed == &mine[..8] => Ok(u32::from_str_radix(word, 16)?),
            _ => Err(format!("exchange: out of step: {theirs}, not {mine}").into()),
        }
    }

    pub(crate) fn connect(&mut self, rnr_retry: u8) -> Outcome<Lane> {
        let send_cq = self.context.create_cq(256, None, 0)?;
        let recv_cq = self.context.create_cq(256, None, 0)?;
        let service = self.args.service;
        let mut init = QpInitAttr::rc(&send_cq, &recv_cq);
        init.qp_type = match service {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
        };
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (64, 64);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (4, 4);
        let qp = self.pd.create_qp(&init)?;
        let attr = QpAttr {
            qp_state: QpState::Init,
            qkey: QKEY,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
        let last = match service {
            Service::Ud => QpAttrMask::QKEY,
            _ => QpAttrMask::ACCESS_FLAGS,
        };
        qp.modify(&attr, mask | last)?;

        let psn = qp.qp_num().get().wrapping_mul(2_654_435_761) & 0xff_ffff;
        let gid = self.context.query_gid(1, self.gid_index.into())?;
        let theirs = self.exchange.swap(&format!(
            "{:06x} {psn:06x} {:032x} {:016x} {:08x} {:08x}",
            qp.qp_num().get(),
            u128::from_be_bytes(gid.get()),
            self.target.addr(),
            self.target.rkey().get(),
            self.read_only.rkey().get(),
        ))?;
        let peer = Peer::parse(&theirs).ok_or_else(|| format!("exchange: {theirs}"))?;
        let way = AhAttr::new(peer.gid, self.gid_index);
        let rtr = QpAttr {
            qp_state: QpState::Rtr,
            path_mtu: self.args.mtu.ilog2() - 7,
            dest_qp_num: Qpn::new(peer.qpn),
            rq_psn: peer.psn,
            max_dest_rd_atomic: 8,
            min_rnr_timer: 12,
            ah_attr: way,
            ..QpAttr::default()
        };
        let rts = QpAttr {
            qp_state: QpState::Rts,
            sq_psn: psn,
            timeout: 16,
            retry_cnt: 7,
            rnr_retry,
            max_rd_atomic: 8,
            ..QpAttr::default()
        };
        let (mut to_rtr, mut to_rts) = (QpAttrMask::STATE, QpAttrMask::STATE | QpAttrMask::SQ_PSN);
        if service != Service::Ud {
            to_rtr |=
                QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
        }
        if service == Service::Rc {
            to_rtr |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
            to_rts |= QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::MAX_QP_RD_ATOMIC;
        }
        qp.modify(&rtr, to_rtr)?;
        qp.modify(&rts, to_rts)?;
        let ah = match service {
            Service::Ud => Some(self.pd.create_ah(&way)?),
            _ => None,
        };
        self.barrier(0)?;
        Ok(Lane {
            peer,
            send_cq,
            recv_cq,
            qp,
            ah,
        })
    }

    /// How many octets of a datagram's receive hold the network header.
    pub(crate) fn head(&self) -> usize {
        match self.args.service {
            Service::Ud => GRH,
            _ => 0,
        }
    }

    pub(crate) fn data(&self, size: usize) -> Vec<u8> {
        (0..size).map(|i| octet(self.seed, i)).collect()
    }

    pub(crate) fn word(&self, n: u32) -> u64 {
        0x0123_4567_89ab_cdef_u64.wrapping_mul(u64::from(self.seed * 8 + n + 1))
    }

    /// Expects the data of this step there, and nothing behind them.
    pub(crate) fn verify(&self, mr: &Mr, skip: usize, size: usize, what: &str) -> Outcome<()> {
        let mut got = vec![0; size + 1];
        mr.copy_out(skip, &mut got)?;
        for (i, &got) in got[..size].iter().enumerate() {
            let wanted = octet(self.seed, i);
            if got != wanted {
                let text = format!("{what} of {size}: octet {i} is {got:02x}, not {wanted:02x}");
                return Err(text.into());
            }
        }
        expect(got[size] == BLANK, || {
            format!("{what} of {size}: wrote beyond its end")
        })
    }

    pub(crate) fn recv(&self, lane: &Lane, at: usize, size: usize) -> Outcome<()> {
        let sges = [self.target.sge(at, size)];
        let sges = if size == 0 { &[][..] } else { &sges[..] };
        Ok(lane.qp.post_recv(&RecvWr { wr_id: 0, sges })?)
    }

    pub(crate) fn post(&self, lane: &Lane, op: SendOp, at: usize, size: usize) -> Outcome<()> {
        // In two pieces, where there are two octets.
        let first = if matches!(op, SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. }) {
            0
        } else {
            size / 2
        };
        let sges = [
            self.source.sge(at, first),
            self.source.sge(at + first, size - first),
        ];
        let wr = SendWr::new(0, op, SendData::Sges(&sges[usize::from(first == 0)..]));
        let wr = match &lane.ah {
            Some(ah) => wr.to(UdAddress {
                ah,
                remote_qpn: Qpn::new(lane.peer.qpn),
                remote_qkey: QKEY,
            }),
            None => wr,
        };
        Ok(lane.qp.post_send(&wr)?)
    }
}
