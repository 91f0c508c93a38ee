//! The exchange over Sends, on a queue pair that carries nothing else.

use std::collections::VecDeque;
use std::time::Duration;

use softverbs::cm::CmId;
use softverbs::{
    Access, CompChannel, Cq, Mr, Qp, QpInitAttr, RecvWr, SendData, SendOp, SendWr, Wc, WcStatus,
};

use super::wire::MAX_LEN;
use super::{Message, lost};
use crate::deadline::Deadline;
use crate::failure::{Failure, Outcome, silence};
use crate::interrupt;

/// Receives that are posted. The ends take turns, so that two would do.
const RECEIVES: usize = 8;

/// The offset of the buffer for outgoing messages, behind those for incoming ones.
const OUTGOING: usize = RECEIVES * MAX_LEN;

/// `wr_id` of a Send; a receive has the number of its buffer.
const SEND: u64 = u64::MAX;

/// A queue pair that carries the exchange.
#[derive(Debug)]
pub(crate) struct CmControl {
    /// Its connection.
    pub(crate) id: CmId,
    qp: Qp,
    cq: Cq,
    channel: CompChannel,
    mr: Mr,
    /// Buffers with messages that nobody has asked for yet, and their lengths.
    arrived: VecDeque<(u64, u32)>,
    sending: bool,
    /// A request has failed. What arrived before that still counts.
    broken: bool,
}

impl CmControl {
    /// Makes the queue pair of a connection that is being set up, its receives posted.
    pub(crate) fn new(id: CmId) -> Outcome<Self> {
        let context = id
            .verbs()
            .ok_or_else(|| Failure::run("the connection has no device"))?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(64, Some(&channel), 0)?;
        let mr = pd.alloc_mr(OUTGOING + MAX_LEN, Access::LOCAL_WRITE)?;
        let mut attr = QpInitAttr::rc(&cq, &cq);
        attr.cap.max_send_wr = 4;
        attr.cap.max_recv_wr = 8;
        let qp = id.create_qp(&pd, &attr)?;
        let control = Self {
            id,
            qp,
            cq,
            channel,
            mr,
            arrived: VecDeque::new(),
            sending: false,
            broken: false,
        };
        for slot in 0..RECEIVES as u64 {
            control.post_receive(slot)?;
        }
        Ok(control)
    }

    fn post_receive(&self, slot: u64) -> Outcome<()> {
        let offset = usize::try_from(slot).unwrap_or(0) * MAX_LEN;
        let sges = [self.mr.sge(offset, MAX_LEN)];
        self.qp.post_recv(&RecvWr {
            wr_id: slot,
            sges: &sges,
        })?;
        Ok(())
    }

    pub(super) fn send(&mut self, message: &Message) -> Outcome<()> {
        // One buffer serves, since an answer comes between any two messages; but for the last.
        let deadline = Deadline::after(Duration::from_secs(1));
        while self.sending && !self.broken && !deadline.passed() {
            self.progress(deadline)?;
        }
        let octets = message.encode();
        self.mr.copy_in(OUTGOING, &octets)?;
        let sges = [self.mr.sge(OUTGOING, octets.len())];
        self.qp
            .post_send(&SendWr::new(SEND, SendOp::Send, SendData::Sges(&sges)))?;
        self.sending = true;
        Ok(())
    }

    pub(super) fn receive(&mut self, timeout: Duration) -> Outcome<Message> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some((slot, len)) = self.arrived.pop_front() {
                let mut octets = [0; MAX_LEN];
                let octets = &mut octets[..MAX_LEN.min(len as usize)];
                self.mr
                    .copy_out(usize::try_from(slot).unwrap_or(0) * MAX_LEN, octets)?;
                self.post_receive(slot)?;
                return Message::decode(octets).map_err(|error| Failure::run(error.to_string()));
            }
            if self.broken {
                return Err(lost());
            }
            if deadline.passed() {
                return Err(silence(timeout));
            }
            self.progress(deadline)?;
        }
    }

    /// Waits for completions and takes them.
    fn progress(&mut self, deadline: Deadline) -> Outcome<()> {
        interrupt::check()?;
        if self.take()? {
            return Ok(());
        }
        self.cq.req_notify(false)?;
        // What came before the queue was armed raises no event.
        if self.take()? {
            return Ok(());
        }
        if let Some(cq) = self.channel.get_event(Some(deadline.slice()))? {
            cq.ack_events(1);
        }
        Ok(())
    }

    fn take(&mut self) -> Outcome<bool> {
        let mut completions = [Wc::default(); RECEIVES];
        let count = self.cq.poll(&mut completions)?;
        for wc in &completions[..count] {
            if wc.status != WcStatus::Success {
                self.broken = true;
            } else if wc.wr_id == SEND {
                self.sending = false;
            } else {
                self.arrived.push_back((wc.wr_id, wc.byte_len));
            }
        }
        Ok(count > 0)
    }

    /// Waits until the last message has left, then disconnects.
    pub(super) fn close(mut self) {
        let deadline = Deadline::after(Duration::from_secs(1));
        while self.sending && !self.broken && !deadline.passed() && self.progress(deadline).is_ok()
        {
        }
        // The peer may have been faster.
        let _ = self.id.disconnect();
    }
}
