//! The queue pair that datagrams of one local address use.

use std::io::IoSlice;
use std::net::IpAddr;
use std::time::Duration;

use softverbs_proto::memory::Access;
use softverbs_proto::wr::SendOp;
use softverbs_wire::num::{Gid, Qpn};

use super::super::option::Sizes;
use super::super::stream::errno;
use super::LONGEST;
use crate::cm::{CmId, EventChannel, PortSpace};
use crate::comp_channel::CompChannel;
use crate::context::Pd;
use crate::cq::Cq;
use crate::error::Result;
use crate::mr::Mr;
use crate::qp::{Qp, QpCap, QpInitAttr};
use crate::roce::{AddressHandle, AhAttr};
use crate::wr::{RecvWr, SendData, SendWr, UdAddress, Wc};

/// The Q_Key of RDMA_PS_UDP.
const QKEY: u32 = 0x0123_4567;
/// The network's header in front of a received datagram.
const GRH: usize = 40;
const RECEIVE: u64 = 1 << 63;
const BATCH: usize = 32;

/// The way to a peer's queue pair.
#[derive(Clone)]
pub(super) struct Way {
    ah: AddressHandle,
    pub(super) qpn: Qpn,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Posted,
    NoRoom,
}

pub(super) struct Port {
    pub(super) local: IpAddr,
    /// Octets that one packet carries.
    pub(super) limit: usize,
    sgid_index: u8,
    pd: Pd,
    qp: Qp,
    cq: Cq,
    pub(super) channel: CompChannel,
    armed: bool,
    send_mr: Mr,
    recv_mr: Mr,
    /// Places in the send buffer that are free.
    free: Vec<u16>,
    buffer: Vec<u8>,
    /// Holds the address; dropped last.
    _id: CmId,
}

impl Port {
    pub(super) fn create(local: IpAddr, sizes: &Sizes) -> Result<Self> {
        let id = CmId::new(&EventChannel::new()?, PortSpace::Udp, 0)?;
        id.bind_addr((local, 0).into())?;
        let context = id.verbs().ok_or_else(|| errno("rsocket", libc::ENODEV))?;
        let device = context.device();
        // An address of 127.0.0.0/8 is no entry of its own.
        let addresses = device.addresses();
        let sgid_index = addresses
            .iter()
            .position(|address| *address == local)
            .or_else(|| {
                let family = |address: &IpAddr| address.is_ipv4() == local.is_ipv4();
                addresses.iter().position(family)
            });
        let mtu = context.query_port(1)?.active_mtu.octets();
        let count = |buffer: usize, queue: u16| {
            let fit = u16::try_from(buffer / LONGEST).unwrap_or(u16::MAX);
            fit.clamp(1, queue)
        };
        let sends = count(sizes.send_buffer, sizes.send_queue);
        let receives = count(sizes.recv_buffer, sizes.recv_queue);
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(u32::from(sends) + u32::from(receives), Some(&channel), 0)?;
        let attr = QpInitAttr {
            cap: QpCap {
                max_send_wr: sends.into(),
                max_recv_wr: receives.into(),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            ..QpInitAttr::ud(&cq, &cq)
        };
        let qp = id.create_qp(&pd, &attr)?;
        let send_mr = pd.alloc_mr(usize::from(sends) * LONGEST, Access::LOCAL_WRITE)?;
        let recv_len = usize::from(receives) * (GRH + LONGEST);
        let recv_mr = pd.alloc_mr(recv_len, Access::LOCAL_WRITE)?;
        let port = Self {
            local,
            limit: mtu as usize,
            sgid_index: sgid_index
                .and_then(|index| u8::try_from(index).ok())
                .unwrap_or(0),
            pd,
            qp,
            cq,
            channel,
            armed: false,
            send_mr,
            recv_mr,
            free: (0..sends).rev().collect(),
            buffer: vec![0; GRH + LONGEST],
            _id: id,
        };
        for index in 0..receives {
            port.post_receive(index.into())?;
        }
        Ok(port)
    }

    pub(super) fn qp_num(&self) -> Qpn {
        self.qp.qp_num()
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn way(&self, remote: IpAddr, qpn: Qpn) -> Result<Way> {
        let attr = AhAttr::new(Gid::from(remote), self.sgid_index);
        let ah = self.pd.create_ah(&attr)?;
        Ok(Way { ah, qpn })
    }

    fn post_receive(&self, index: u64) -> Result<()> {
        let at = usize::try_from(index).unwrap_or(0) * (GRH + LONGEST);
        self.qp.post_recv(&RecvWr {
            wr_id: RECEIVE | index,
            sges: &[self.recv_mr.sge(at, GRH + LONGEST)],
        })
    }

    /// Sends one datagram: `header`, then `data`.
    pub(super) fn send(&mut self, header: &[u8], data: &[IoSlice<'_>], way: &Way) -> Result<Sent> {
        let Some(place) = self.free.pop() else {
            return Ok(Sent::NoRoom);
        };
        let start = usize::from(place) * LONGEST;
        let mut len = 0;
        let mut pieces = std::iter::once(header).chain(data.iter().map(|piece| &piece[..]));
        let mut posted = pieces.try_for_each(|piece| {
            let at = start + len;
            len += piece.len();
            self.send_mr.copy_in(at, piece)
        });
        if posted.is_ok() {
            let to = UdAddress {
                ah: &way.ah,
                remote_qpn: way.qpn,
                remote_qkey: QKEY,
            };
            let sges = [self.send_mr.sge(start, len)];
            let wr = SendWr::new(place.into(), SendOp::Send, SendData::Sges(&sges)).to(to);
            posted = self.qp.post_send(&wr);
        }
        if let Err(error) = posted {
            self.free.push(place);
            return Err(error);
        }
        Ok(Sent::Posted)
    }

    /// Hands on what has arrived. `true`: an event of the channel was used up.
    pub(super) fn progress(&mut self, mut on_datagram: impl FnMut(&[u8])) -> bool {
        let mut used = false;
        while let Ok(Some(cq)) = self.channel.get_event(Some(Duration::ZERO)) {
            cq.ack_events(1);
            self.armed = false;
            used = true;
        }
        let mut completions = [Wc::default(); BATCH];
        while let Ok(found @ 1..) = self.cq.poll(&mut completions) {
            for wc in &completions[..found] {
                let index = wc.wr_id & !RECEIVE;
                if wc.wr_id & RECEIVE == 0 {
                    self.free.push(u16::try_from(index).unwrap_or(0));
                    continue;
                }
                let len = wc.byte_len as usize;
                if wc.is_success() && len > GRH && len <= self.buffer.len() {
                    let at = usize::try_from(index).unwrap_or(0) * (GRH + LONGEST);
                    if self.recv_mr.copy_out(at, &mut self.buffer[..len]).is_ok() {
                        on_datagram(&self.buffer[GRH..len]);
                    }
                }
                let _ = self.post_receive(index);
            }
        }
        used
    }

    /// Asks for an event with the next completion, if nobody has. `true`: look again.
    pub(super) fn arm(&mut self) -> Result<bool> {
        if self.armed {
            return Ok(false);
        }
        self.cq.req_notify(false)?;
        self.armed = true;
        Ok(true)
    }
}
