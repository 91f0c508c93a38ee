//! Queue pairs.
//!
//! `mod.rs` holds the objects and posting, `attr.rs` the attributes and `modify`, `drive.rs` the
//! work on the connection (`receive.rs`: what arrives), `deferred.rs` what is left for the next poll (`left.rs`: how threads agree on it), `memory.rs` what the protocol engine sees of registered memory, and
//! `close.rs` the end.

mod attr;
mod close;
mod deferred;
mod drive;
mod edge;
pub(crate) mod lane;
pub(crate) mod left;
mod memory;
mod receive;
pub(crate) mod registry;
mod watch;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use softverbs_proto::fault::Misuse;
use softverbs_proto::iwarp::stream::{Stream, StreamConfig};
use softverbs_proto::mutation::Mutations;
use softverbs_proto::qp_state::{QpState, QpType};
use softverbs_proto::wr::{Payload, SendRequest};
use softverbs_wire::num::Qpn;

pub use self::attr::QpAttr;
pub(crate) use self::close::Linger;
use self::deferred::Burst;
pub(crate) use self::drive::Connection;
use self::left::Deferred;
pub(crate) use self::left::Visit;
pub(crate) use self::memory::QpMemory;
pub(crate) use self::registry::WeakQp;
use crate::async_event::{AsyncElement, AsyncEventKind};
use crate::context::Pd;
use crate::cq::{Cq, CqInner};
use crate::device::{Transport, limits};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::event_queue::EventCounter;
use crate::mr_table::Domain;
use crate::recv_queue::RecvQueue;
use crate::roce::Roce;
use crate::srq::Srq;
use crate::wr::{RecvWr, SendData, SendWr};
use crate::xrc::Xrcd;

/// Payloads of up to this many octets are copied into the frame: one piece to send is cheaper
/// than three.
const COPY_LIMIT: u32 = 4096;

/// Sizes of a queue pair. What was asked for is what is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Send requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receive requests that may be outstanding (ignored with a shared receive queue).
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive request (ignored with a shared receive queue).
    pub max_recv_sge: u32,
    /// Octets of inline data.
    pub max_inline_data: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        }
    }
}

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpInitAttr<'a> {
    /// The application's value.
    pub qp_context: u64,
    /// Where completions of send requests go.
    pub send_cq: &'a Cq,
    /// Where completions of receive requests go.
    pub recv_cq: &'a Cq,
    /// A shared receive queue instead of its own one.
    pub srq: Option<&'a Srq>,
    /// Sizes.
    pub cap: QpCap,
    /// RC; on RoCE UC, UD and the sending end of XRC, too.
    pub qp_type: QpType,
    /// Treat every send request as signaled.
    pub sq_sig_all: bool,
}

impl<'a> QpInitAttr<'a> {
    /// An unreliable datagram queue pair with the default sizes (RoCE).
    pub fn ud(send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        Self {
            qp_type: QpType::Ud,
            ..Self::rc(send_cq, recv_cq)
        }
    }

    /// A reliable connected queue pair with the default sizes.
    pub fn rc(send_cq: &'a Cq, recv_cq: &'a Cq) -> Self {
        Self {
            qp_context: 0,
            send_cq,
            recv_cq,
            srq: None,
            cap: QpCap::default(),
            qp_type: QpType::Rc,
            sq_sig_all: false,
        }
    }
}

/// A queue pair. Cloning makes another handle of the same; it is destroyed, and its connection
/// closed, when the last handle is dropped (its connection manager id holds one, too).
#[derive(Clone)]
pub struct Qp {
    handle: Arc<Handle>,
}

/// Destroys the queue pair when the application has let go of it, though the engine has not.
struct Handle(Arc<QpInner>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

pub(crate) struct QpInner {
    me: Weak<Self>,
    pub(crate) qp_num: Qpn,
    pub(crate) qp_type: QpType,
    qp_context: u64,
    pub(crate) pd: Pd,
    pub(crate) engine: &'static Engine,
    pub(crate) send_cq: Arc<CqInner>,
    pub(crate) recv_cq: Arc<CqInner>,
    /// Its own receive queue; empty with a shared one.
    rq: RecvQueue,
    pub(crate) srq: Option<Srq>,
    /// Of a receiving end of XRC.
    pub(crate) xrcd: Option<Xrcd>,
    cap: QpCap,
    sq_sig_all: bool,
    counter: Arc<EventCounter>,
    destroyed: Once,
    core: Mutex<Core>,
    /// A copy of `Core::state` for those who do not hold the lock.
    state: AtomicU32,
    deferred: Deferred,
    /// `CqInner::epoch` when something was sent at once.
    pub(crate) sent_epoch: AtomicU64,
    /// Counts how often application threads did the work.
    driven: AtomicU32,
    driven_seen: AtomicU32,
    /// An application thread is at it now.
    worked_on: AtomicBool,
}

/// What the lock of a queue pair protects.
pub(crate) struct Core {
    pub(crate) state: QpState,
    pub(crate) side: Side,
    pub(crate) attr: QpAttr,
    pub(crate) cm: Option<Weak<crate::cm::IdShared>>,
    burst: Burst,
}

/// What a queue pair is on its transport.
#[allow(
    clippy::large_enum_variant,
    reason = "one in an allocation of its own, and no way to lose on the path of a message"
)]
pub(crate) enum Side {
    Iwarp(Iwarp),
    Roce(Roce),
}

/// A queue pair over TCP.
pub(crate) struct Iwarp {
    stream: Stream,
    connection: Option<Connection>,
}

impl Core {
    fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.side {
            Side::Iwarp(iwarp) => Some(&mut iwarp.stream),
            Side::Roce(_) => None,
        }
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.side {
            Side::Iwarp(iwarp) => iwarp.connection.as_mut(),
            Side::Roce(_) => None,
        }
    }

    pub(crate) fn roce(&mut self) -> Option<&mut Roce> {
        match &mut self.side {
            Side::Iwarp(_) => None,
            Side::Roce(roce) => Some(roce),
        }
    }

    /// Whether what is posted may leave now.
    fn is_sending(&self) -> bool {
        self.state == QpState::Rts
            && match &self.side {
                Side::Iwarp(iwarp) => iwarp.connection.is_some(),
                Side::Roce(_) => true,
            }
    }
}

impl Qp {
    pub(crate) fn new(pd: &Pd, attr: &QpInitAttr<'_>) -> Result<Self> {
        if attr.qp_type == QpType::XrcRecv {
            return Err(Error::invalid("qp_type", "made by Xrcd::create_qp"));
        }
        Self::in_domain(pd, attr, None)
    }

    pub(crate) fn in_domain(pd: &Pd, attr: &QpInitAttr<'_>, xrcd: Option<&Xrcd>) -> Result<Self> {
        let transport = pd.context().device().transport();
        let cap = check_cap(attr, transport)?;
        for cq in [attr.send_cq, attr.recv_cq] {
            if cq.inner().has_overrun() {
                return Err(Error::invalid("cq", "overrun: completions were lost"));
            }
        }
        let is_xrc = matches!(attr.qp_type, QpType::XrcSend | QpType::XrcRecv);
        let rq = match attr.srq {
            Some(srq) if is_xrc || srq.srq_num().is_some() => {
                return Err(Error::invalid("srq", "XRC names it in each request"));
            }
            _ if is_xrc => RecvQueue::new(0, 0),
            Some(srq) if srq.pd_id() != pd.id() => {
                return Err(Error::invalid(
                    "srq",
                    "belongs to another protection domain",
                ));
            }
            Some(_) => RecvQueue::new(0, 0),
            None => RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge),
        };
        let (qp_num, side) = match transport {
            Transport::Iwarp => (
                next_qp_num(),
                Side::Iwarp(Iwarp {
                    stream: Stream::new(StreamConfig {
                        max_send_wr: cap.max_send_wr,
                        sq_sig_all: attr.sq_sig_all,
                        copy_limit: COPY_LIMIT,
                        mutations: Mutations::NONE,
                    }),
                    connection: None,
                }),
            ),
            Transport::Roce => {
                let roce = Roce::new(pd.context().device(), attr)?;
                (roce.queue_pair.config().qpn, Side::Roce(roce))
            }
        };
        let inner = Arc::new_cyclic(|me| QpInner {
            me: me.clone(),
            qp_num,
            qp_type: attr.qp_type,
            qp_context: attr.qp_context,
            pd: pd.clone(),
            engine: pd.context().inner().engine,
            send_cq: attr.send_cq.inner().clone(),
            recv_cq: attr.recv_cq.inner().clone(),
            rq,
            srq: attr.srq.cloned(),
            xrcd: xrcd.cloned(),
            cap,
            sq_sig_all: attr.sq_sig_all,
            counter: Arc::default(),
            destroyed: Once::new(),
            core: Mutex::new(Core {
                state: QpState::Reset,
                side,
                attr: QpAttr::default(),
                cm: None,
                burst: Burst::default(),
            }),
            state: AtomicU32::new(QpState::Reset as u32),
            deferred: Deferred::new(),
            sent_epoch: AtomicU64::new(u64::MAX),
            driven: AtomicU32::new(0),
            driven_seen: AtomicU32::new(0),
            worked_on: AtomicBool::new(false),
        });
        if transport == Transport::Roce {
            inner.register()?;
        }
        registry::add(&inner);
        inner.send_cq.attach(&inner.me, transport);
        inner.recv_cq.attach(&inner.me, transport);
        Ok(Self {
            handle: Arc::new(Handle(inner)),
        })
    }

    pub(crate) fn inner(&self) -> &Arc<QpInner> {
        &self.handle.0
    }

    /// Its type.
    pub fn qp_type(&self) -> QpType {
        self.inner().qp_type
    }

    /// Its number, unique among the queue pairs of this process (RoCE: of this host address).
    pub fn qp_num(&self) -> Qpn {
        self.inner().qp_num
    }

    /// The application's value.
    pub fn qp_context(&self) -> u64 {
        self.inner().qp_context
    }

    /// Its state now.
    pub fn state(&self) -> QpState {
        self.inner().state()
    }

    /// Destroys the queue pair, whatever other handles there are: nothing is received or sent any
    /// more, and its completions are forgotten. Then takes back its asynchronous events that
    /// nobody has fetched, and waits until those that were fetched are acknowledged. Doing it
    /// again is no error.
    pub fn destroy(&self) {
        let inner = self.inner();
        inner.destroy();
        inner.counter.wait_acked();
    }

    /// Whether both are handles of one queue pair.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.inner(), other.inner())
    }

    /// Posts one send request. Never blocks; what the connection takes at once is sent on this
    /// thread. The rest leaves with the next poll, when the library's thread has seen that none
    /// comes, or when the process ends by `exit` or the end of `main` (not by `_exit` or a signal).
    ///
    /// Allowed from RTR on, which the connection manager reaches when `connect` or `accept`
    /// returns: the request then waits, in order, for the moment that it may be sent. EINVAL in
    /// RESET and INIT; ENOMEM when `max_send_wr` requests are outstanding; EINVAL for more
    /// entries or inline data than the queue pair was created with; EOPNOTSUPP for an operation
    /// that the connection does not offer. Keys and bounds are checked when the request is
    /// carried out: a fault there is a completion with an error.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        self.inner()
            .post_send(std::slice::from_ref(wr))
            .map_err(|(_, error)| error)
    }

    /// Posts several send requests, which may leave together. On an error: the index of the
    /// first one that was refused; those before it are posted.
    pub fn post_send_list(&self, wrs: &[SendWr<'_>]) -> std::result::Result<(), (usize, Error)> {
        self.inner().post_send(wrs)
    }

    /// Posts one receive request. Allowed from INIT on, else EINVAL; ENOMEM when `max_recv_wr`
    /// are outstanding; EINVAL with a shared receive queue.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        self.inner().post_recv(wr)
    }

    /// Posts several receive requests; on an error as [`Qp::post_send_list`].
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> std::result::Result<(), (usize, Error)> {
        wrs.iter()
            .enumerate()
            .try_for_each(|(index, wr)| self.inner().post_recv(wr).map_err(|error| (index, error)))
    }
}

fn check_cap(attr: &QpInitAttr<'_>, transport: Transport) -> Result<QpCap> {
    let mut cap = attr.cap;
    if attr.qp_type != QpType::Rc && transport == Transport::Iwarp {
        return Err(Error::not_supported(
            "qp_type",
            "iWARP has reliable connections only",
        ));
    }
    if attr.srq.is_some() {
        // Not used, so not judged either.
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let checks = [
        ("max_send_wr", cap.max_send_wr, limits::MAX_QP_WR),
        ("max_recv_wr", cap.max_recv_wr, limits::MAX_QP_WR),
        ("max_send_sge", cap.max_send_sge, limits::MAX_SGE),
        ("max_recv_sge", cap.max_recv_sge, limits::MAX_SGE),
        (
            "max_inline_data",
            cap.max_inline_data,
            limits::MAX_INLINE_DATA,
        ),
    ];
    for (what, asked, most) in checks {
        if asked > most {
            return Err(Error::invalid(what, "exceeds the device's limit"));
        }
    }
    Ok(cap)
}

/// Numbers go up and around, so that one is not reused soon.
fn next_qp_num() -> Qpn {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 0x11;
    const COUNT: u32 = (1 << 24) - 0x100;
    Qpn::new(FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT)
}

impl QpInner {
    pub(crate) fn transport(&self) -> Transport {
        self.pd.context().device().transport()
    }

    /// On whose behalf it uses memory.
    pub(crate) fn domain(&self) -> Domain {
        Domain {
            pd: self.pd.id(),
            qp: self.qp_num.get(),
        }
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        self.me.clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the application what happened to the queue pair outside of any request.
    pub(crate) fn raise(&self, kind: AsyncEventKind) {
        let events = &self.pd.context().inner().async_events;
        events.push(kind, AsyncElement::Qp(self.qp_num), Some(&self.counter));
    }

    pub(crate) fn state(&self) -> QpState {
        QpState::from_value(self.state.load(Ordering::Acquire)).unwrap_or(QpState::Err)
    }

    pub(crate) fn set_state(&self, core: &mut Core, state: QpState) {
        core.state = state;
        self.state.store(state as u32, Ordering::Release);
        // What the peer may write to itself depends on the state.
        core.end_grants();
    }

    fn post_send(&self, wrs: &[SendWr<'_>]) -> std::result::Result<(), (usize, Error)> {
        let mut core = self.lock();
        if matches!(core.state, QpState::Reset | QpState::Init)
            && !core.roce().is_some_and(|roce| roce.takes_early())
        {
            return Err((0, Misuse::State.into()));
        }
        let mut result = Ok(());
        for (index, wr) in wrs.iter().enumerate() {
            let posted = self
                .send_request(wr)
                .and_then(|request| match &mut core.side {
                    Side::Iwarp(iwarp) => {
                        if wrs.len() == 1 && self.places_at_once(iwarp, &request) {
                            return Ok(());
                        }
                        iwarp.stream.post_send(request).map_err(Error::from)
                    }
                    Side::Roce(roce) => {
                        if wrs.len() == 1 && self.writes_at_once(roce, &request) {
                            return Ok(());
                        }
                        if self.may_go_past(roce, &request) {
                            return Ok(roce.queue_pair.post_send_past(request)?);
                        }
                        roce.post_send(request, wr, self.pd.id())
                    }
                });
            if let Err(error) = posted {
                result = Err((index, error));
                break;
            }
        }
        self.after_post(core, u32::try_from(wrs.len()).unwrap_or(u32::MAX));
        result
    }

    /// Sends at once, or leaves it to the next poll: the first request after a poll goes out at
    /// once, those behind it together.
    fn after_post(&self, mut core: MutexGuard<'_, Core>, posted: u32) {
        if core.waits_for_room() {
            // TCP has just refused more; whoever hears that it takes more again sends this, too.
            return;
        }
        if !self.qp_type.is_reliable() && self.deferred.is_any() {
            // It has had its turn, and goes on with the next poll.
            return;
        }
        if core.is_sending() {
            let epoch = self.send_cq.epoch();
            let first = self.sent_epoch.load(Ordering::Relaxed) != epoch;
            let engine = self.engine;
            if core
                .burst
                .waits(first, posted, |behind| engine.gathers(behind))
            {
                drop(core);
                self.again();
                return;
            }
            self.sent_epoch.store(epoch, Ordering::Relaxed);
        }
        self.takes_along(&mut core);
        self.at_work(|| self.transmit(&mut core));
    }

    fn send_request(&self, wr: &SendWr<'_>) -> Result<SendRequest> {
        let payload = match wr.data {
            SendData::Sges(sges) => {
                if sges.len() > self.cap.max_send_sge as usize {
                    return Err(Misuse::TooManySges.into());
                }
                Payload::Sges(sges.iter().copied().collect())
            }
            SendData::Inline(data) => {
                if data.len() > self.cap.max_inline_data as usize {
                    return Err(Misuse::TooMuchInline.into());
                }
                Payload::Inline(data.iter().copied().collect())
            }
        };
        if payload.len() > u64::from(limits::MAX_MSG_SZ) {
            return Err(Misuse::MessageTooLong.into());
        }
        Ok(SendRequest {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags,
            payload,
        })
    }

    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        if self.srq.is_some() || matches!(self.qp_type, QpType::XrcSend | QpType::XrcRecv) {
            return Err(Error::invalid(
                "srq",
                "receives are posted to the shared receive queue",
            ));
        }
        if self.state() == QpState::Reset {
            return Err(Misuse::State.into());
        }
        self.rq.post(wr)?;
        if self.state() == QpState::Err {
            // Posting is allowed, and completes at once.
            let mut core = self.lock();
            if core.state == QpState::Err {
                self.flush_receives(&mut core);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("qp_num", &self.qp_num())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for QpInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("qp_num", &self.qp_num)
            .finish_non_exhaustive()
    }
}
