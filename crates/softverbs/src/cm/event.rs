//! Events of the connection manager and the channels that deliver them.

use std::ffi::CStr;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use softverbs_wire::num::Qpn;

use super::CmId;
use super::id::IdShared;
use crate::error::Result;
use crate::event_queue::EventQueue;
use crate::roce::AhAttr;

/// What happened; the values are those of `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names of rdma-core")]
pub enum EventKind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    RouteError = 3,
    ConnectRequest = 4,
    ConnectResponse = 5,
    ConnectError = 6,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    DeviceRemoval = 11,
    MulticastJoin = 12,
    MulticastError = 13,
    AddrChange = 14,
    TimewaitExit = 15,
}

impl EventKind {
    /// All kinds, in the order of their values.
    pub const ALL: [Self; 16] = [
        Self::AddrResolved,
        Self::AddrError,
        Self::RouteResolved,
        Self::RouteError,
        Self::ConnectRequest,
        Self::ConnectResponse,
        Self::ConnectError,
        Self::Unreachable,
        Self::Rejected,
        Self::Established,
        Self::Disconnected,
        Self::DeviceRemoval,
        Self::MulticastJoin,
        Self::MulticastError,
        Self::AddrChange,
        Self::TimewaitExit,
    ];

    /// The name that rdma-core gives it.
    pub const fn name(self) -> &'static str {
        match self.c_name().to_str() {
            Ok(name) => name,
            Err(_) => "",
        }
    }

    /// The same for C.
    pub const fn c_name(self) -> &'static CStr {
        match self {
            Self::AddrResolved => c"RDMA_CM_EVENT_ADDR_RESOLVED",
            Self::AddrError => c"RDMA_CM_EVENT_ADDR_ERROR",
            Self::RouteResolved => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
            Self::RouteError => c"RDMA_CM_EVENT_ROUTE_ERROR",
            Self::ConnectRequest => c"RDMA_CM_EVENT_CONNECT_REQUEST",
            Self::ConnectResponse => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
            Self::ConnectError => c"RDMA_CM_EVENT_CONNECT_ERROR",
            Self::Unreachable => c"RDMA_CM_EVENT_UNREACHABLE",
            Self::Rejected => c"RDMA_CM_EVENT_REJECTED",
            Self::Established => c"RDMA_CM_EVENT_ESTABLISHED",
            Self::Disconnected => c"RDMA_CM_EVENT_DISCONNECTED",
            Self::DeviceRemoval => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
            Self::MulticastJoin => c"RDMA_CM_EVENT_MULTICAST_JOIN",
            Self::MulticastError => c"RDMA_CM_EVENT_MULTICAST_ERROR",
            Self::AddrChange => c"RDMA_CM_EVENT_ADDR_CHANGE",
            Self::TimewaitExit => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        }
    }
}

/// Use the most that the device, or the peer's offer, allows.
pub const MAX_DEPTH: u8 = 0xff;

/// Parameters of a connection, named as in `struct rdma_conn_param`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// The application's own octets for the peer. iWARP carries up to 251, exactly.
    pub private_data: Vec<u8>,
    /// Reads and atomics that the peer may have outstanding. [`MAX_DEPTH`]: the most.
    pub responder_resources: u8,
    /// Reads and atomics that we may have outstanding. [`MAX_DEPTH`]: the most.
    pub initiator_depth: u8,
    /// Hardware flow control is available.
    pub flow_control: bool,
    /// Retries after time-outs (InfiniBand).
    pub retry_count: u8,
    /// Retries after receiver-not-ready (InfiniBand).
    pub rnr_retry_count: u8,
    /// The queue pair uses a shared receive queue. Asked only of identifiers without a queue pair.
    pub srq: bool,
    /// Queue pair number: in events the peer's (RoCE), in calls the application's own queue pair
    /// for an identifier that has none.
    pub qp_num: Qpn,
    /// In the `Established` of a datagram identifier: where datagrams go.
    pub ud: Option<UdParam>,
}

/// Where datagrams go (`struct rdma_ud_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdParam {
    /// The way to the peer's port, for [`Pd::create_ah`](crate::Pd::create_ah).
    pub ah_attr: AhAttr,
    /// The queue pair there.
    pub qp_num: Qpn,
    /// The key that it wants to see.
    pub qkey: u32,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: MAX_DEPTH,
            initiator_depth: MAX_DEPTH,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qp_num: Qpn::new(0),
            ud: None,
        }
    }
}

impl ConnParam {
    /// The default parameters with private data.
    pub fn with_private_data(private_data: impl Into<Vec<u8>>) -> Self {
        Self {
            private_data: private_data.into(),
            ..Self::default()
        }
    }
}

/// An event. Dropping it acknowledges it; whoever destroys its identifier (of a connect request:
/// the listener) waits for that.
pub struct CmEvent {
    id: CmId,
    listen_id: Option<CmId>,
    kind: EventKind,
    status: i32,
    param: ConnParam,
    consumer_reject: bool,
    /// Whose unacknowledged events this counts among.
    counted: Arc<IdShared>,
}

impl CmEvent {
    /// The identifier; for a connect request the new one. Clone it to keep it: a request whose
    /// last handle is dropped is rejected.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// The listening identifier that a connect request came to.
    pub fn listen_id(&self) -> Option<&CmId> {
        self.listen_id.as_ref()
    }

    /// What happened.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// 0, a negative `errno`, or (InfiniBand) a positive reason.
    pub fn status(&self) -> i32 {
        self.status
    }

    /// Whether the peer answered and refused, rather than nobody being there: its application, or
    /// its stack for want of something (`rdma_is_consumer_reject`).
    pub fn is_consumer_reject(&self) -> bool {
        self.consumer_reject
    }

    /// What the peer sent.
    pub fn param(&self) -> &ConnParam {
        &self.param
    }

    /// The peer's private data.
    pub fn private_data(&self) -> &[u8] {
        &self.param.private_data
    }
}

impl Drop for CmEvent {
    fn drop(&mut self) {
        self.counted.unacked.ack(1);
    }
}

impl fmt::Debug for CmEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmEvent")
            .field("kind", &self.kind)
            .field("status", &self.status)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// An event that waits in a channel.
pub(super) struct Queued {
    pub(super) id: Arc<IdShared>,
    /// Connect requests: the only handle of the new identifier.
    pub(super) request: Option<CmId>,
    pub(super) listen_id: Option<Arc<IdShared>>,
    /// Connect requests: the place in the listener's backlog, given back when it is fetched.
    #[allow(dead_code, reason = "held for its destructor")]
    pub(super) backlog: Option<BacklogPlace>,
    pub(super) kind: EventKind,
    pub(super) status: i32,
    pub(super) param: ConnParam,
    /// A rejection that the peer sent.
    pub(super) consumer_reject: bool,
}

/// One of the connect requests that a listener may have waiting.
pub(super) struct BacklogPlace(Arc<AtomicUsize>);

impl BacklogPlace {
    /// A place, if fewer than `limit` are taken.
    pub(super) fn take(waiting: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                (taken < limit).then_some(taken + 1)
            })
            .ok()?;
        Some(Self(waiting.clone()))
    }
}

impl Drop for BacklogPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Delivers the events of any number of identifiers.
#[derive(Clone)]
pub struct EventChannel {
    queue: Arc<EventQueue<Queued>>,
}

impl EventChannel {
    /// A new channel. Fails with EMFILE if no file descriptor is left.
    pub fn new() -> Result<Self> {
        Ok(Self {
            queue: Arc::new(EventQueue::new()?),
        })
    }

    /// Readable while events are queued; for poll, select and epoll (level or edge triggered). A
    /// read of eight octets waits for the next event, and is to be followed by
    /// [`event_after_read`](Self::event_after_read).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }

    /// Takes the next event; waits for one up to `timeout` (`None`: for ever). `Ok(None)` if
    /// there was none in time.
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let Some(queued) = self.queue.pop_noting(left, Queued::count)? else {
                return Ok(None);
            };
            // An identifier that was destroyed meanwhile has no events any more.
            if let Some(event) = queued.fetch() {
                return Ok(Some(event));
            }
        }
    }

    /// The event for which the descriptor was [read](Self::fd); does not wait. `None`: somebody
    /// else had it meanwhile, or its identifier is gone: read again.
    pub fn event_after_read(&self) -> Option<CmEvent> {
        self.queue.redeem(Queued::count)?.fetch()
    }

    pub(super) fn push(&self, event: Queued) {
        // Before it is there: the count is never too small.
        event.counted().queued.fetch_add(1, Ordering::Relaxed);
        self.queue.push(event);
    }

    /// Takes the events back that count among those of an identifier.
    pub(super) fn remove_of(&self, id: &IdShared) -> Vec<Queued> {
        let most = id.queued.load(Ordering::Relaxed);
        let is_of = |event: &Queued| std::ptr::eq(Arc::as_ptr(event.counted()), id);
        let removed = self.queue.remove_first(most, is_of);
        id.queued.fetch_sub(removed.len(), Ordering::Relaxed);
        removed
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel")
            .field("queued", &self.queue.len())
            .finish()
    }
}

impl Queued {
    /// Whose unacknowledged events it counts among: a connect request is one of the listener's, so
    /// that the new identifier can be destroyed before it is acknowledged.
    fn counted(&self) -> &Arc<IdShared> {
        self.listen_id.as_ref().unwrap_or(&self.id)
    }

    /// Before it can be missed: whoever destroys the identifier either takes the event back or waits
    /// for it.
    fn count(&self) {
        self.counted().unacked.raise();
        self.counted().queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// After [`count`](Self::count).
    fn fetch(self) -> Option<CmEvent> {
        let counted = self.counted().clone();
        let id = match self.request {
            Some(id) => Some(id),
            None => self.id.handle(),
        };
        let Some(id) = id else {
            counted.unacked.ack(1);
            return None;
        };
        let listen_id = self.listen_id.as_ref().and_then(|id| id.handle());
        Some(CmEvent {
            id,
            listen_id,
            kind: self.kind,
            status: self.status,
            param: self.param,
            consumer_reject: self.consumer_reject,
            counted,
        })
    }
}
