//! Shared receive queues.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};

use softverbs_proto::wr::RecvRequest;
use softverbs_wire::num::Qpn;

use crate::async_event::{AsyncElement, AsyncEventKind, AsyncQueue};
use crate::cq::Cq;
use crate::device::limits;
use crate::error::{Error, Result, in_range};
use crate::event_queue::EventCounter;
use crate::recv_queue::RecvQueue;
use crate::wr::RecvWr;
use crate::xrc::{XrcEnd, Xrcd};

/// What a shared receive queue is made with (`struct ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInitAttr {
    /// Comes back from [`Srq::srq_context`].
    pub srq_context: u64,
    /// Room for so many receives.
    pub max_wr: u32,
    /// Room for so many scatter/gather entries in each.
    pub max_sge: u32,
    /// Low watermark to begin with, 0 for none; see [`Srq::modify`].
    pub srq_limit: u32,
}

impl Default for SrqInitAttr {
    fn default() -> Self {
        Self {
            srq_context: 0,
            max_wr: 128,
            max_sge: 4,
            srq_limit: 0,
        }
    }
}

/// What a shared receive queue has (`struct ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Room for so many receives.
    pub max_wr: u32,
    /// Room for so many scatter/gather entries in each.
    pub max_sge: u32,
    /// Low watermark; 0 if none is armed (any more).
    pub srq_limit: u32,
}

/// A receive queue that several queue pairs share. Cloning makes another handle.
#[derive(Clone)]
pub struct Srq {
    inner: Arc<Inner>,
}

struct Inner {
    queue: RecvQueue,
    id: u64,
    context: u64,
    pd_id: u32,
    events: Arc<AsyncQueue>,
    counter: Arc<EventCounter>,
    xrc: Option<XrcEnd>,
    /// The protection domain, and with it all that must not go away before.
    _parent: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            id, pd_id, queue, ..
        } = &*self.inner;
        let (max_wr, max_sge) = (queue.max_wr(), queue.max_sge());
        f.debug_struct("Srq")
            .field("id", id)
            .field("pd_id", pd_id)
            .field("max_wr", &max_wr)
            .field("max_sge", &max_sge)
            .finish_non_exhaustive()
    }
}

impl Srq {
    /// Makes a queue in the protection domain `pd_id`, which `parent` keeps alive. `id` names it
    /// in `events`.
    pub(crate) fn create(
        pd_id: u32,
        parent: Arc<dyn Any + Send + Sync>,
        id: u64,
        events: Arc<AsyncQueue>,
        attr: &SrqInitAttr,
        xrc: Option<XrcEnd>,
    ) -> Result<Self> {
        in_range("max_wr", attr.max_wr, 1, limits::MAX_SRQ_WR)?;
        in_range("max_sge", attr.max_sge, 0, limits::MAX_SRQ_SGE)?;
        in_range("srq_limit", attr.srq_limit, 0, attr.max_wr)?;
        let queue = RecvQueue::new(attr.max_wr, attr.max_sge);
        queue.arm(attr.srq_limit);
        let counter = Arc::new(EventCounter::new());
        let context = attr.srq_context;
        let inner = Inner {
            queue,
            id,
            context,
            pd_id,
            events,
            counter,
            xrc,
            _parent: parent,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Posts a receive.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        Ok(self.inner.queue.post(wr)?)
    }

    /// Posts receives in order. On an error, says which one was refused; those before it are
    /// posted.
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> std::result::Result<(), (usize, Error)> {
        for (index, wr) in wrs.iter().enumerate() {
            self.post_recv(wr).map_err(|error| (index, error))?;
        }
        Ok(())
    }

    /// Changes the room for receives (`IBV_SRQ_MAX_WR`); a low watermark beyond it is lowered.
    /// EINVAL beyond the device's limits, and for fewer than are posted.
    pub fn resize(&self, max_wr: u32) -> Result<()> {
        in_range("max_wr", max_wr, 1, limits::MAX_SRQ_WR)?;
        if !self.inner.queue.resize(max_wr) {
            return Err(Error::invalid("max_wr", "more receives are posted"));
        }
        Ok(())
    }

    /// Arms the low watermark: as soon as fewer than `srq_limit` receives are left, the event
    /// [`SrqLimitReached`](AsyncEventKind::SrqLimitReached) is raised, once. 0 disarms.
    pub fn modify(&self, srq_limit: u32) -> Result<()> {
        in_range("srq_limit", srq_limit, 0, self.inner.queue.max_wr())?;
        self.inner.queue.arm(srq_limit);
        Ok(())
    }

    /// Its present attributes.
    pub fn query(&self) -> SrqAttr {
        let queue = &self.inner.queue;
        SrqAttr {
            max_wr: queue.max_wr(),
            max_sge: queue.max_sge(),
            srq_limit: queue.limit(),
        }
    }

    /// The value it was made with.
    pub fn srq_context(&self) -> u64 {
        self.inner.context
    }

    /// The number that names it in [`AsyncElement::Srq`].
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// The number by which peers name it (XRC; `ibv_get_srq_num`).
    pub fn srq_num(&self) -> Option<Qpn> {
        self.inner.xrc.as_ref().map(|xrc| xrc.number)
    }

    /// The domain that it belongs to (XRC).
    pub fn xrcd(&self) -> Option<Xrcd> {
        self.inner.xrc.as_ref().map(|xrc| xrc.xrcd.clone())
    }

    /// Where what arrives completes (XRC).
    pub fn cq(&self) -> Option<Cq> {
        let xrc = self.inner.xrc.as_ref()?;
        Some(Cq::from_inner(xrc.cq.clone()))
    }

    pub(crate) fn downgrade(&self) -> WeakSrq {
        WeakSrq(Arc::downgrade(&self.inner))
    }

    /// How many of its events are not acknowledged yet, fetched or not. C programs expect that
    /// destroying the queue waits for this to be none.
    pub fn unacked_events(&self) -> u64 {
        self.inner.counter.outstanding()
    }

    /// Takes back its events that nobody has fetched, and waits until those that were fetched are
    /// acknowledged.
    pub fn settle_events(&self) {
        self.inner.events.forget(AsyncElement::Srq(self.inner.id));
        self.inner.counter.wait_acked();
    }

    /// Whether both handles are of the same queue.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The protection domain it belongs to.
    pub(crate) fn pd_id(&self) -> u32 {
        self.inner.pd_id
    }

    /// Takes the oldest receive; raises the event if that reaches the limit.
    pub(crate) fn take(&self) -> Option<RecvRequest> {
        let taken = self.inner.queue.take()?;
        if taken.limit_reached {
            let Inner {
                events,
                id,
                counter,
                ..
            } = &*self.inner;
            let element = AsyncElement::Srq(*id);
            events.push(AsyncEventKind::SrqLimitReached, element, Some(counter));
        }
        Some(taken.request)
    }
}

/// Leads to a shared receive queue as long as it exists.
pub(crate) struct WeakSrq(Weak<Inner>);

impl WeakSrq {
    pub(crate) fn upgrade(&self) -> Option<Srq> {
        Some(Srq {
            inner: self.0.upgrade()?,
        })
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.events.forget(AsyncElement::Srq(self.id));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use softverbs_proto::fault::Misuse;
    use softverbs_proto::wr::Sge;

    use super::*;

    fn srq(attr: &SrqInitAttr) -> Result<(Srq, Arc<AsyncQueue>)> {
        let events = Arc::new(AsyncQueue::new()?);
        Srq::create(1, Arc::new(()), 7, events.clone(), attr, None).map(|srq| (srq, events))
    }

    #[test]
    fn says_which_attribute_is_wrong() {
        let wrong = |attr: SrqInitAttr| srq(&attr).unwrap_err().to_string();
        let fine = SrqInitAttr::default();
        assert_eq!(
            wrong(SrqInitAttr { max_wr: 0, ..fine }),
            format!("max_wr: 0 is not in the range 1 to {}", limits::MAX_SRQ_WR)
        );
        assert!(
            wrong(SrqInitAttr {
                max_sge: 1000,
                ..fine
            })
            .starts_with("max_sge: 1000")
        );
        assert!(
            wrong(SrqInitAttr {
                srq_limit: 129,
                ..fine
            })
            .starts_with("srq_limit: 129")
        );
    }

    #[test]
    fn reaching_the_limit_raises_one_event() {
        let (srq, events) = srq(&SrqInitAttr {
            srq_limit: 2,
            ..Default::default()
        })
        .unwrap();
        let wrs = [1, 2, 3].map(|wr_id| RecvWr { wr_id, sges: &[] });
        srq.post_recv_list(&wrs).unwrap();
        let none = Some(Duration::ZERO);
        assert_eq!(srq.take().unwrap().wr_id, 1);
        assert!(events.get(none).unwrap().is_none());
        assert_eq!(srq.query().srq_limit, 2);
        assert_eq!(srq.take().unwrap().wr_id, 2);
        assert_eq!(srq.query().srq_limit, 0);
        let event = events.get(none).unwrap().unwrap();
        assert_eq!(event.kind(), AsyncEventKind::SrqLimitReached);
        assert_eq!(event.element(), AsyncElement::Srq(7));
        assert_eq!(srq.unacked_events(), 1);
        drop(event);
        assert_eq!(srq.unacked_events(), 0);
        assert_eq!(srq.take().unwrap().wr_id, 3);
        assert!(events.get(none).unwrap().is_none());
    }

    #[test]
    fn a_list_says_which_one_was_refused() {
        let (srq, _) = srq(&SrqInitAttr {
            max_wr: 2,
            max_sge: 1,
            ..Default::default()
        })
        .unwrap();
        let wr = RecvWr {
            wr_id: 0,
            sges: &[Sge::default()],
        };
        let (index, error) = srq.post_recv_list(&[wr; 3]).unwrap_err();
        assert_eq!((index, error), (2, Error::Misuse(Misuse::QueueFull)));
        assert_eq!(srq.inner.queue.len(), 2);
    }

    #[test]
    fn destroying_it_takes_its_events_back() {
        let (srq, events) = srq(&SrqInitAttr {
            srq_limit: 1,
            ..Default::default()
        })
        .unwrap();
        srq.post_recv(&RecvWr {
            wr_id: 1,
            sges: &[],
        })
        .unwrap();
        srq.take().unwrap();
        drop(srq);
        assert!(events.get(Some(Duration::ZERO)).unwrap().is_none());
    }
}
