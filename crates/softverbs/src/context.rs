//! An opened device, and protection domains.

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use softverbs_proto::memory::Access;
use softverbs_wire::num::Gid;

use crate::async_event::{AsyncEvent, AsyncQueue};
use crate::comp_channel::CompChannel;
use crate::cq::Cq;
use crate::device::{Device, DeviceAttr, PortAttr};
use crate::engine::Engine;
use crate::error::Result;
use crate::mr::Mr;
use crate::mr_table::MrTable;
use crate::qp::{Qp, QpInitAttr};
use crate::srq::{Srq, SrqInitAttr};
use crate::xrc::XrcEnd;

/// An opened device. Cloning makes another handle of the same.
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

pub(crate) struct ContextInner {
    device: Device,
    pub(crate) engine: &'static Engine,
    pub(crate) regions: Arc<MrTable>,
    pub(crate) async_events: Arc<AsyncQueue>,
    next_pd: AtomicU32,
    next_srq: AtomicU64,
}

impl Context {
    pub(crate) fn open(device: &Device) -> Result<Self> {
        let inner = ContextInner {
            device: device.clone(),
            engine: Engine::get()?,
            regions: Arc::new(MrTable::new()?),
            async_events: Arc::new(AsyncQueue::new()?),
            next_pd: AtomicU32::new(1),
            next_srq: AtomicU64::new(1),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The context that all identifiers of the connection manager share on one device.
    pub fn shared(device: &Device) -> Result<Self> {
        static OPEN: Mutex<Vec<Weak<ContextInner>>> = Mutex::new(Vec::new());
        // Those of a parent process are served by nobody here.
        let engine = Engine::get()?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|context| context.strong_count() > 0);
        let found = open.iter().filter_map(Weak::upgrade).find(|context| {
            context.device.name() == device.name() && std::ptr::eq(context.engine, engine)
        });
        if let Some(inner) = found {
            return Ok(Self { inner });
        }
        let new = Self::open(device)?;
        open.push(Arc::downgrade(&new.inner));
        Ok(new)
    }

    pub(crate) fn inner(&self) -> &Arc<ContextInner> {
        &self.inner
    }

    /// Whether both are handles of one opened device.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The limits of the device; each can be reached.
    pub fn query_device(&self) -> DeviceAttr {
        self.inner.device.attr()
    }

    /// A port's attributes. There is one port: 1. EINVAL for any other.
    pub fn query_port(&self, port: u8) -> Result<PortAttr> {
        self.inner.device.port_attr(port)
    }

    /// An entry of the GID table: one for each address of the interface. EINVAL beyond.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<Gid> {
        self.inner.device.gid(port, index)
    }

    /// An entry of the P_Key table, which has one: 0xffff. EINVAL beyond.
    pub fn query_pkey(&self, port: u8, index: u32) -> Result<u16> {
        self.inner.device.pkey(port, index)
    }

    /// A new protection domain.
    pub fn alloc_pd(&self) -> Result<Pd> {
        let id = self.inner.next_pd.fetch_add(1, Ordering::Relaxed);
        Ok(Pd {
            inner: Arc::new(PdInner {
                id,
                context: self.clone(),
            }),
        })
    }

    /// A channel for completion events.
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        CompChannel::new()
    }

    /// A completion queue of at least `cqe` entries (1 ..= [`DeviceAttr::max_cqe`], else EINVAL).
    /// With a channel it can be armed by [`Cq::req_notify`]. `cq_context` is the application's.
    pub fn create_cq(
        &self,
        cqe: u32,
        channel: Option<&CompChannel>,
        cq_context: u64,
    ) -> Result<Cq> {
        Cq::new(self, cqe, channel, cq_context)
    }

    /// A file descriptor that is readable while asynchronous events are queued. A read of eight
    /// octets waits for the next event, and is to be followed by
    /// [`async_event_after_read`](Self::async_event_after_read).
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.inner.async_events.fd()
    }

    /// Takes the next asynchronous event; waits for one up to `timeout` (`None`: for ever).
    /// `Ok(None)` if there was none in time. Dropping the event acknowledges it.
    pub fn get_async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>> {
        self.inner.async_events.get(timeout)
    }

    /// The event for which the descriptor was [read](Self::async_fd); does not wait. `None`:
    /// somebody else had it meanwhile, or its object is gone: read again.
    pub fn async_event_after_read(&self) -> Option<AsyncEvent> {
        self.inner.async_events.redeem()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context")
            .field(&self.inner.device.name())
            .finish()
    }
}

impl Device {
    /// Opens the device. Every call gives a context of its own.
    pub fn open(&self) -> Result<Context> {
        Context::open(self)
    }
}

/// A protection domain: memory, queue pairs and shared receive queues that may be used together.
#[derive(Clone)]
pub struct Pd {
    inner: Arc<PdInner>,
}

pub(crate) struct PdInner {
    id: u32,
    context: Context,
}

impl Pd {
    pub(crate) fn id(&self) -> u32 {
        self.inner.id
    }

    /// What keeps it from going away.
    pub(crate) fn parent(&self) -> Arc<dyn Any + Send + Sync> {
        self.inner.clone()
    }

    /// The device that it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Whether both are handles of one protection domain.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Registers `len` octets of new zeroed memory, which the region owns.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<Mr> {
        let regions = &self.context().inner().regions;
        Mr::register_owned(regions, self.inner.id, self.inner.clone(), len, access)
    }

    /// Registers memory of the application. Any size and alignment; nothing is pinned.
    ///
    /// EINVAL for access flags that contradict each other and for ranges that wrap around.
    ///
    /// # Safety
    /// Until the region is deregistered, which is when [`Mr::dereg`] returns or the last handle
    /// has been dropped:
    /// * the memory stays allocated;
    /// * it is written and read by this library and by peers at any time that the access flags
    ///   and posted requests allow, so no Rust reference to it may be alive meanwhile, other
    ///   than a shared one while nobody can write.
    pub unsafe fn reg_mr(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mr> {
        let regions = &self.context().inner().regions;
        // SAFETY: the caller keeps the contract above, which is the callee's.
        unsafe {
            Mr::register_raw(
                regions,
                self.inner.id,
                self.inner.clone(),
                addr,
                len,
                access,
            )
        }
    }

    /// As [`reg_mr`](Self::reg_mr), with an address of the caller's choice that stands for `addr`
    /// in work requests and for peers (`ibv_reg_mr_iova`).
    ///
    /// # Safety
    /// As for `reg_mr`.
    pub unsafe fn reg_mr_iova(
        &self,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr> {
        let regions = &self.context().inner().regions;
        let parent = self.inner.clone();
        // SAFETY: the caller keeps the contract above, which is the callee's.
        unsafe { Mr::register_raw_iova(regions, self.inner.id, parent, addr, len, iova, access) }
    }

    /// A shared receive queue.
    pub fn create_srq(&self, attr: &SrqInitAttr) -> Result<Srq> {
        self.create_srq_of(attr, None)
    }

    pub(crate) fn create_srq_of(&self, attr: &SrqInitAttr, xrc: Option<XrcEnd>) -> Result<Srq> {
        let context = self.context().inner();
        let id = context.next_srq.fetch_add(1, Ordering::Relaxed);
        Srq::create(
            self.inner.id,
            self.inner.clone(),
            id,
            context.async_events.clone(),
            attr,
            xrc,
        )
    }

    /// A queue pair in the state RESET; it is moved to INIT by [`Qp::modify`] or the connection
    /// manager ([`CmId::create_qp`](crate::cm::CmId::create_qp)).
    pub fn create_qp(&self, attr: &QpInitAttr<'_>) -> Result<Qp> {
        Qp::new(self, attr)
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pd").field(&self.inner.id).finish()
    }
}
