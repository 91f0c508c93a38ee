//! The verbs objects of a connected stream, and the work on them.

use std::time::Duration;

use softverbs_proto::memory::Access;
use softverbs_proto::rsocket::{
    Config, LocalMemory, Messaging, Payload, Pieces, Post, Stream, TargetList,
};
use softverbs_proto::wr::{SendFlags, SendOp};
use softverbs_wire::rsocket::{
    ByteOrder, ConnectData, IomapEntry, IomapSize, Message, RemoteBuffer,
};

use super::option::Sizes;
use crate::cm::CmId;
use crate::comp_channel::CompChannel;
use crate::context::Pd;
use crate::cq::Cq;
use crate::device::Transport;
use crate::error::{Error, Result};
use crate::mr::Mr;
use crate::qp::{Qp, QpCap, QpInitAttr};
use crate::wr::{RecvWr, SendData, SendWr, Wc};

/// Completions that are taken at once.
const BATCH: usize = 32;
/// Set in the `wr_id` of receives; below it is the index of their place.
const RECEIVE: u64 = 1 << 63;
const SEND: u64 = 0;

/// A connected stream, or one that is to be.
pub(super) struct Endpoint {
    pub(super) stream: Stream,
    pub(super) pd: Pd,
    qp: Qp,
    cq: Cq,
    pub(super) channel: CompChannel,
    armed: bool,
    send_mr: Mr,
    recv_mr: Mr,
    list: List,
    /// Where messages arrive, over iWARP.
    messages: Option<Mr>,
    order: ByteOrder,
    /// The queue pair has failed or was closed.
    broken: bool,
    failure_told: bool,
}

/// The target list and the table of regions, as the protocol sees them.
struct List(Mr);

impl TargetList for List {
    fn target(&mut self, index: u32) -> [u8; RemoteBuffer::LEN] {
        let mut octets = [0; RemoteBuffer::LEN];
        // Inside of the region by its construction; all zero is "nothing there".
        let _ = self.0.copy_out(index as usize * octets.len(), &mut octets);
        octets
    }

    fn clear_target(&mut self, index: u32) {
        let zero = [0; RemoteBuffer::LEN];
        let _ = self.0.copy_in(index as usize * zero.len(), &zero);
    }

    fn region(&mut self, index: u32) -> [u8; IomapEntry::LEN] {
        let mut octets = [0; IomapEntry::LEN];
        let at = Config::list_len(IomapSize::new(0)) + index as usize * octets.len();
        let _ = self.0.copy_out(at, &mut octets);
        octets
    }
}

impl Endpoint {
    /// The objects for the identifier's connection, with all receives posted.
    pub(super) fn create(id: &CmId, sizes: &Sizes) -> Result<Self> {
        let context = id
            .verbs()
            .ok_or_else(|| Error::os("rsocket", libc::ENOTCONN))?;
        // One of its own: keys of one connection open nothing to the peers of others.
        let pd = context.alloc_pd()?;
        let target = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let recv_len = (sizes.recv_buffer / 2).max(1) * 2;
        let send_mr = pd.alloc_mr(sizes.send_buffer.max(1), Access::LOCAL_WRITE)?;
        let recv_mr = pd.alloc_mr(recv_len, target)?;
        let list = pd.alloc_mr(Config::list_len(sizes.iomap_size), target)?;
        let messaging = match id.transport() {
            Transport::Iwarp => Messaging::Sends,
            Transport::Roce => Messaging::Immediate,
        };
        let memory = |mr: &Mr| LocalMemory {
            addr: mr.addr(),
            rkey: mr.rkey(),
            len: mr.len(),
        };
        let config = Config {
            messaging,
            send_buffer: send_mr.len(),
            send_slots: sizes.send_queue,
            recv_buffer: memory(&recv_mr),
            credits: sizes.recv_queue,
            target_list: memory(&list),
            iomap_size: sizes.iomap_size,
        };
        let receives = Config::receives(sizes.recv_queue);
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(config.sends() + receives, Some(&channel), 0)?;
        let cap = QpCap {
            max_send_wr: config.sends(),
            max_recv_wr: receives,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: sizes.inline_data.max(24),
        };
        let attr = QpInitAttr {
            cap,
            ..QpInitAttr::rc(&cq, &cq)
        };
        let qp = id.create_qp(&pd, &attr)?;
        let messages = match messaging {
            Messaging::Immediate => None,
            Messaging::Sends => {
                let len = receives as usize * Message::LEN;
                Some(pd.alloc_mr(len, Access::LOCAL_WRITE)?)
            }
        };
        let endpoint = Self {
            stream: Stream::new(config),
            pd,
            qp,
            cq,
            channel,
            armed: false,
            send_mr,
            recv_mr,
            list: List(list),
            messages,
            order: ByteOrder::default(),
            broken: false,
            failure_told: false,
        };
        for index in 0..receives {
            endpoint.post_receive(index.into())?;
        }
        Ok(endpoint)
    }

    /// What the peer has to know.
    pub(super) fn connect_data(&self) -> Vec<u8> {
        self.stream.connect_data().to_bytes().to_vec()
    }

    /// What the peer says of itself: from now on requests may be posted.
    pub(super) fn connected(&mut self, peer: &ConnectData) {
        self.order = peer.order();
        self.stream.connected(peer);
        self.post_controls();
    }

    fn post_receive(&self, index: u64) -> Result<()> {
        let place = self.messages.as_ref().map(|mr| {
            let at = usize::try_from(index).unwrap_or(0) * Message::LEN;
            mr.sge(at, Message::LEN)
        });
        self.qp.post_recv(&RecvWr {
            wr_id: RECEIVE | index,
            sges: place.as_slice(),
        })
    }

    /// Posts what the protocol wants; `caller` is the payload that goes inline.
    pub(super) fn post(&mut self, post: &Post, caller: &[u8]) {
        if self.post_or_fail(post, caller).is_err() {
            // The queue pair is no more in a state to send: its end is on its way to us.
            self.broken = true;
        }
    }

    fn post_or_fail(&self, post: &Post, caller: &[u8]) -> Result<()> {
        let sges;
        let data = match &post.payload {
            Payload::None => SendData::Sges(&[]),
            Payload::Caller(len) => SendData::Inline(&caller[..*len as usize]),
            Payload::Octets(octets) => SendData::Inline(octets),
            Payload::Buffer(Pieces { first, second }) => {
                sges = [
                    self.send_mr.sge(first.start, first.len()),
                    self.send_mr.sge(second.start, second.len()),
                ];
                SendData::Sges(&sges[..1 + usize::from(!second.is_empty())])
            }
        };
        let (remote_addr, rkey) = (post.remote.addr, post.remote.rkey);
        let write = SendOp::Write { remote_addr, rkey };
        let Some(message) = post.message else {
            return self.qp.post_send(&SendWr::new(SEND, write, data));
        };
        if self.messages.is_none() {
            let imm = message.get();
            let write = SendOp::WriteWithImm {
                remote_addr,
                rkey,
                imm,
            };
            return self.qp.post_send(&SendWr::new(SEND, write, data));
        }
        let octets = message.to_bytes(ByteOrder::Little);
        let send = SendWr::new(SEND, SendOp::Send, SendData::Inline(&octets));
        if post.payload == Payload::None {
            return self.qp.post_send(&send);
        }
        // Its completion is covered by that of the message.
        let write = SendWr::new(SEND, write, data).with_flags(SendFlags::empty());
        self.qp
            .post_send_list(&[write, send])
            .map_err(|(_, error)| error)
    }

    fn post_controls(&mut self) {
        while let Some(post) = self.stream.next_control() {
            self.post(&post, &[]);
        }
    }

    /// Takes what has completed, drives the connection, gives windows and credits. `true`: an
    /// event of the channel was used up, so those who wait for it have to look for themselves.
    pub(super) fn progress(&mut self) -> bool {
        let mut used = false;
        while let Ok(Some(cq)) = self.channel.get_event(Some(Duration::ZERO)) {
            cq.ack_events(1);
            self.armed = false;
            used = true;
        }
        let mut completions = [Wc::default(); BATCH];
        loop {
            match self.cq.poll(&mut completions) {
                Ok(0) => break,
                Ok(found) => completions[..found].iter().for_each(|wc| self.take(wc)),
                Err(_) => {
                    self.broken = true;
                    break;
                }
            }
            self.post_controls();
        }
        if self.broken {
            self.stream.on_lost();
        }
        self.post_controls();
        used
    }

    fn take(&mut self, wc: &Wc) {
        if !wc.is_success() {
            self.broken = true;
            return;
        }
        if wc.wr_id & RECEIVE == 0 {
            self.stream.on_sent();
            return;
        }
        let index = wc.wr_id & !RECEIVE;
        let message = match (&self.messages, wc.imm) {
            (None, Some(imm)) => Some(Message::new(imm)),
            (Some(mr), _) if wc.byte_len as usize == Message::LEN => {
                let mut octets = [0; Message::LEN];
                let at = usize::try_from(index).unwrap_or(0) * Message::LEN;
                let copied = mr.copy_out(at, &mut octets);
                copied
                    .ok()
                    .map(|()| Message::from_bytes(octets, self.order))
            }
            // Something that is not rsockets'.
            _ => None,
        };
        if let Some(message) = message {
            self.stream.on_message(message, &mut self.list);
        }
        if self.post_receive(index).is_err() {
            self.broken = true;
        }
    }

    /// The connection manager says that the connection has ended.
    pub(super) fn on_disconnected(&mut self) {
        self.progress();
        self.broken = true;
        self.stream.on_lost();
    }

    /// The application has read so many octets.
    pub(super) fn consume(&mut self, len: usize) {
        self.stream.consume(len);
        self.post_controls();
    }

    /// Whether the stream has failed since this was asked last.
    pub(super) fn take_new_failure(&mut self) -> bool {
        let failed = self.stream.failure().is_some();
        !std::mem::replace(&mut self.failure_told, failed) && failed
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Asks for an event with the next completion, if nobody has. Look again afterwards.
    /// `true`: so that is to be done.
    pub(super) fn arm(&mut self) -> Result<bool> {
        if self.armed {
            return Ok(false);
        }
        self.cq.req_notify(false)?;
        self.armed = true;
        Ok(true)
    }

    pub(super) fn send_buffer(&self) -> Mr {
        self.send_mr.clone()
    }

    pub(super) fn recv_buffer(&self) -> Mr {
        self.recv_mr.clone()
    }
}
