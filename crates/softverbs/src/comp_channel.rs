//! Completion channels.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::cq::{Cq, CqInner};
use crate::error::Result;
use crate::event_queue::EventQueue;

/// A channel that tells of completions in armed completion queues.
#[derive(Clone, Debug)]
pub struct CompChannel {
    events: Arc<EventQueue<Weak<CqInner>>>,
}

impl CompChannel {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            events: Arc::new(EventQueue::new()?),
        })
    }

    /// Readable while events are queued; for poll, select and epoll (level or edge triggered). A
    /// read of eight octets waits for the next event, and is to be followed by
    /// [`event_after_read`](Self::event_after_read).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// Takes the next event: the queue that was notified. Waits up to `timeout` (`None`: for
    /// ever); `Ok(None)` if there was none in time. Every event is to be acknowledged with
    /// [`Cq::ack_events`].
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<Option<Cq>> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let Some(cq) = self.events.pop(left)? else {
                return Ok(None);
            };
            // A queue that was dropped since has no use for its event.
            if let Some(cq) = cq.upgrade() {
                return Ok(Some(Cq::from_inner(cq)));
            }
        }
    }

    /// The event for which the descriptor was [read](Self::fd); does not wait. `None`: somebody
    /// else had it meanwhile, or its queue is gone: read again.
    pub fn event_after_read(&self) -> Option<Cq> {
        self.events.redeem(|_| ())?.upgrade().map(Cq::from_inner)
    }

    pub(crate) fn notify(&self, cq: Weak<CqInner>) {
        self.events.push(cq);
    }

    /// Takes back the events of a queue; how many there were.
    pub(crate) fn forget(&self, cq: &CqInner) -> u64 {
        let of_queue = |event: &Weak<CqInner>| std::ptr::eq(event.as_ptr(), cq);
        self.events.remove_if(of_queue).len() as u64
    }
}
