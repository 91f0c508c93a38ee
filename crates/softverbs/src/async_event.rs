//! Asynchronous events: what happens to objects outside of any work request.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use softverbs_wire::num::Qpn;

use crate::error::Result;
use crate::event_queue::{EventCounter, EventQueue};

/// What happened; the values are those of `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names of rdma-core")]
pub enum AsyncEventKind {
    CqErr = 0,
    QpFatal = 1,
    QpReqErr = 2,
    QpAccessErr = 3,
    CommEst = 4,
    SqDrained = 5,
    PathMig = 6,
    PathMigErr = 7,
    DeviceFatal = 8,
    PortActive = 9,
    PortErr = 10,
    LidChange = 11,
    PkeyChange = 12,
    SmChange = 13,
    SrqErr = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    ClientReregister = 17,
    GidChange = 18,
    WqFatal = 19,
}

impl AsyncEventKind {
    /// All kinds, in the order of their values.
    pub const ALL: [Self; 20] = [
        Self::CqErr,
        Self::QpFatal,
        Self::QpReqErr,
        Self::QpAccessErr,
        Self::CommEst,
        Self::SqDrained,
        Self::PathMig,
        Self::PathMigErr,
        Self::DeviceFatal,
        Self::PortActive,
        Self::PortErr,
        Self::LidChange,
        Self::PkeyChange,
        Self::SmChange,
        Self::SrqErr,
        Self::SrqLimitReached,
        Self::QpLastWqeReached,
        Self::ClientReregister,
        Self::GidChange,
        Self::WqFatal,
    ];

    /// The name of the constant, without `IBV_EVENT_`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CqErr => "CQ_ERR",
            Self::QpFatal => "QP_FATAL",
            Self::QpReqErr => "QP_REQ_ERR",
            Self::QpAccessErr => "QP_ACCESS_ERR",
            Self::CommEst => "COMM_EST",
            Self::SqDrained => "SQ_DRAINED",
            Self::PathMig => "PATH_MIG",
            Self::PathMigErr => "PATH_MIG_ERR",
            Self::DeviceFatal => "DEVICE_FATAL",
            Self::PortActive => "PORT_ACTIVE",
            Self::PortErr => "PORT_ERR",
            Self::LidChange => "LID_CHANGE",
            Self::PkeyChange => "PKEY_CHANGE",
            Self::SmChange => "SM_CHANGE",
            Self::SrqErr => "SRQ_ERR",
            Self::SrqLimitReached => "SRQ_LIMIT_REACHED",
            Self::QpLastWqeReached => "QP_LAST_WQE_REACHED",
            Self::ClientReregister => "CLIENT_REREGISTER",
            Self::GidChange => "GID_CHANGE",
            Self::WqFatal => "WQ_FATAL",
        }
    }
}

impl std::fmt::Display for AsyncEventKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What it happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncElement {
    /// A completion queue, by its handle id.
    Cq(u64),
    /// A queue pair.
    Qp(Qpn),
    /// A shared receive queue, by its handle id.
    Srq(u64),
    /// A port of the device.
    Port(u8),
    /// The device as a whole.
    Device,
}

/// An asynchronous event. Dropping it acknowledges it, which whoever destroys its object waits
/// for.
#[derive(Debug)]
pub struct AsyncEvent {
    kind: AsyncEventKind,
    element: AsyncElement,
    counter: Option<Arc<EventCounter>>,
}

impl AsyncEvent {
    /// What happened.
    pub const fn kind(&self) -> AsyncEventKind {
        self.kind
    }

    /// What it happened to.
    pub const fn element(&self) -> AsyncElement {
        self.element
    }

    /// Acknowledges it; the same as dropping it.
    pub fn ack(self) {}
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        if let Some(counter) = &self.counter {
            counter.ack(1);
        }
    }
}

/// The asynchronous events of one context that the application has not fetched yet.
#[derive(Debug)]
pub(crate) struct AsyncQueue(EventQueue<AsyncEvent>);

impl AsyncQueue {
    /// An empty queue.
    pub(crate) fn new() -> Result<Self> {
        EventQueue::new().map(Self)
    }

    /// Queues an event. `counter` is the one of its element, which may not go away before the
    /// event is acknowledged; ports and devices have none.
    pub(crate) fn push(
        &self,
        kind: AsyncEventKind,
        element: AsyncElement,
        counter: Option<&Arc<EventCounter>>,
    ) {
        if let Some(counter) = counter {
            counter.raise();
        }
        self.0.push(AsyncEvent {
            kind,
            element,
            counter: counter.cloned(),
        });
    }

    /// Takes the oldest event; waits for one up to `timeout`, without one for ever.
    pub(crate) fn get(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>> {
        self.0.pop(timeout)
    }

    /// The event for which the descriptor was read.
    pub(crate) fn redeem(&self) -> Option<AsyncEvent> {
        self.0.redeem(|_| ())
    }

    /// Readable if and only if there is an event.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Takes back the events of an element that is being destroyed. Those that the application
    /// already has are outstanding in the element's counter.
    pub(crate) fn forget(&self, element: AsyncElement) {
        drop(self.0.remove_if(|event| event.element == element));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_names_are_those_of_the_c_api() {
        for (value, kind) in (0_u32..).zip(AsyncEventKind::ALL) {
            assert_eq!(kind as u32, value);
        }
        assert_eq!(
            AsyncEventKind::SrqLimitReached.to_string(),
            "SRQ_LIMIT_REACHED"
        );
    }

    #[test]
    fn dropping_acknowledges() {
        let queue = AsyncQueue::new().unwrap();
        let counter = Arc::new(EventCounter::new());
        let element = AsyncElement::Qp(Qpn::new(5));
        queue.push(AsyncEventKind::CommEst, element, Some(&counter));
        assert_eq!(counter.outstanding(), 1);
        let event = queue.get(None).unwrap().unwrap();
        assert_eq!(
            (event.kind(), event.element()),
            (AsyncEventKind::CommEst, element)
        );
        assert!(!counter.wait_acked_timeout(Duration::from_millis(1)));
        event.ack();
        counter.wait_acked();
        assert!(queue.get(Some(Duration::ZERO)).unwrap().is_none());
    }

    #[test]
    fn forgetting_acknowledges_what_was_not_fetched() {
        let queue = AsyncQueue::new().unwrap();
        let (gone, stays) = (AsyncElement::Cq(1), AsyncElement::Cq(2));
        let counter = Arc::new(EventCounter::new());
        queue.push(AsyncEventKind::CqErr, gone, Some(&counter));
        queue.push(AsyncEventKind::CqErr, stays, None);
        queue.push(AsyncEventKind::CqErr, gone, Some(&counter));
        let fetched = queue.get(None).unwrap().unwrap();
        queue.forget(gone);
        assert_eq!(counter.outstanding(), 1);
        drop(fetched);
        counter.wait_acked();
        assert_eq!(queue.get(None).unwrap().unwrap().element(), stays);
        assert!(queue.get(Some(Duration::ZERO)).unwrap().is_none());
    }
}
