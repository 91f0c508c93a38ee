//! One connection of a ping: its queue pair, its buffers, and what completes on it.

use std::time::Duration;

use softverbs::cm::CmId;
use softverbs::{
    Access, CompChannel, Cq, Mr, Qp, QpInitAttr, RecvWr, SendData, SendOp, SendWr, Wc, WcOpcode,
    WcStatus,
};

use super::wire::Buffer;
use crate::deadline::Deadline;
use crate::failure::{Failure, Outcome, silence, why};
use crate::interrupt;

/// Receives: one that is awaited, one to spare.
const RECEIVES: usize = 2;
/// Where the outgoing announcement lies.
const ANNOUNCE: usize = RECEIVES * Buffer::LEN;
/// Where the data begin.
const DATA: usize = 64;

/// A connection, as the ends of a ping use it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: CmId,
    qp: Qp,
    cq: Cq,
    channel: CompChannel,
    mr: Mr,
    size: usize,
    /// What has been received and not been asked for.
    received: Vec<Buffer>,
    /// A Read or a Write has completed.
    moved: bool,
    timeout: Duration,
    /// Ctrl-C ends a wait; otherwise a ping is finished first.
    attentive: bool,
}

/// What a wait ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The peer's announcement.
    Announcement(Buffer),
    /// The peer has disconnected.
    Closed,
}

/// The two data buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// What the client sends.
    Source,
    /// What it gets back; at the server, what it reads and writes back.
    Sink,
}

impl Connection {
    /// Makes the queue pair of a connection that is being set up, its receives posted, with two
    /// buffers of `size` octets.
    pub(super) fn new(id: CmId, size: u32, timeout: Duration, attentive: bool) -> Outcome<Self> {
        let size = size as usize;
        let context = id
            .verbs()
            .ok_or_else(|| Failure::run("the connection has no device"))?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(64, Some(&channel), 0)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = pd.alloc_mr(DATA + 2 * size, access)?;
        let mut attr = QpInitAttr::rc(&cq, &cq);
        attr.cap.max_send_wr = 16;
        attr.cap.max_recv_wr = 2;
        let qp = id.create_qp(&pd, &attr)?;
        let connection = Self {
            id,
            qp,
            cq,
            channel,
            mr,
            size,
            received: Vec::new(),
            moved: false,
            timeout,
            attentive,
        };
        for slot in 0..RECEIVES as u64 {
            connection.post_receive(slot)?;
        }
        Ok(connection)
    }

    fn offset(&self, area: Area) -> usize {
        match area {
            Area::Source => DATA,
            Area::Sink => DATA + self.size,
        }
    }

    /// Fills a buffer.
    pub(super) fn put(&self, area: Area, data: &[u8]) -> Outcome<()> {
        Ok(self.mr.copy_in(self.offset(area), data)?)
    }

    /// The first octets of a buffer.
    pub(super) fn get(&self, area: Area, len: usize) -> Outcome<Vec<u8>> {
        let mut data = vec![0; len];
        self.mr.copy_out(self.offset(area), &mut data)?;
        Ok(data)
    }

    fn post_receive(&self, slot: u64) -> Outcome<()> {
        let sges = [self.mr.sge(receive_offset(slot), Buffer::LEN)];
        Ok(self.qp.post_recv(&RecvWr {
            wr_id: slot,
            sges: &sges,
        })?)
    }

    fn send(&self, octets: [u8; Buffer::LEN]) -> Outcome<()> {
        self.mr.copy_in(ANNOUNCE, &octets)?;
        let sges = [self.mr.sge(ANNOUNCE, Buffer::LEN)];
        Ok(self
            .qp
            .post_send(&SendWr::new(0, SendOp::Send, SendData::Sges(&sges)))?)
    }

    /// Tells the peer where a buffer is.
    pub(super) fn announce(&self, area: Area) -> Outcome<()> {
        let offset = self.offset(area);
        let buffer = Buffer {
            addr: self.mr.addr().wrapping_add(offset as u64),
            rkey: self.mr.rkey(),
            size: u32::try_from(self.size).unwrap_or(u32::MAX),
        };
        self.send(buffer.encode())
    }

    /// Tells the peer to go on.
    pub(super) fn go_ahead(&self) -> Outcome<()> {
        self.send(Buffer::default().encode())
    }

    /// Reads all of the peer's buffer into the sink.
    pub(super) fn read(&mut self, from: Buffer) -> Outcome<()> {
        let op = SendOp::Read {
            remote_addr: from.addr,
            rkey: from.rkey,
        };
        self.transfer(op, from.size as usize)
    }

    /// Writes the first octets of the sink into the peer's buffer.
    pub(super) fn write(&mut self, to: Buffer, len: usize) -> Outcome<()> {
        self.transfer(
            SendOp::Write {
                remote_addr: to.addr,
                rkey: to.rkey,
            },
            len,
        )
    }

    fn transfer(&mut self, op: SendOp, len: usize) -> Outcome<()> {
        let sges = [self.mr.sge(self.offset(Area::Sink), len)];
        self.moved = false;
        self.qp
            .post_send(&SendWr::new(0, op, SendData::Sges(&sges)))?;
        let deadline = Deadline::after(self.timeout);
        while !self.moved {
            if !self.progress(deadline)? && !self.moved {
                return Err(Failure::run(
                    "the peer disconnected in the middle of a ping",
                ));
            }
        }
        Ok(())
    }

    /// Waits for the peer's announcement.
    pub(super) fn hear(&mut self) -> Outcome<Heard> {
        let deadline = Deadline::after(self.timeout);
        loop {
            if !self.received.is_empty() {
                return Ok(Heard::Announcement(self.received.remove(0)));
            }
            if !self.progress(deadline)? && self.received.is_empty() {
                return Ok(Heard::Closed);
            }
        }
    }

    /// Waits for completions and takes them; `false` once the connection has ended.
    fn progress(&mut self, deadline: Deadline) -> Outcome<bool> {
        if self.attentive {
            interrupt::check()?;
        }
        if let Some(open) = self.take()? {
            return Ok(open);
        }
        self.cq.req_notify(false)?;
        // What came before the queue was armed raises no event.
        if let Some(open) = self.take()? {
            return Ok(open);
        }
        if let Some(cq) = self.channel.get_event(Some(deadline.slice()))? {
            cq.ack_events(1);
        } else if deadline.passed() {
            return Err(silence(self.timeout));
        }
        Ok(true)
    }

    /// Takes what has completed; `None` if nothing has.
    fn take(&mut self) -> Outcome<Option<bool>> {
        let mut completions = [Wc::default(); 8];
        let count = self.cq.poll(&mut completions)?;
        let mut open = true;
        for wc in &completions[..count] {
            match (wc.status, wc.opcode) {
                (WcStatus::WrFlushErr, _) => open = false,
                (WcStatus::Success, WcOpcode::RdmaRead | WcOpcode::RdmaWrite) => self.moved = true,
                (WcStatus::Success, WcOpcode::Recv) => self.receive(wc)?,
                (WcStatus::Success, _) => {}
                (status, _) => {
                    return Err(Failure::run(format!("a request failed: {}", why(status))));
                }
            }
        }
        Ok((count > 0).then_some(open))
    }

    fn receive(&mut self, wc: &Wc) -> Outcome<()> {
        if wc.byte_len as usize != Buffer::LEN {
            return Err(Failure::run(format!(
                "the peer sent {} octets where rping sends {}: it speaks something else",
                wc.byte_len,
                Buffer::LEN
            )));
        }
        let mut octets = [0; Buffer::LEN];
        self.mr.copy_out(receive_offset(wc.wr_id), &mut octets)?;
        self.received.push(Buffer::decode(octets));
        self.post_receive(wc.wr_id)
    }
}

fn receive_offset(slot: u64) -> usize {
    usize::try_from(slot).unwrap_or(0) * Buffer::LEN
}
