//! Extended reliable connections (XRC): domains, their shared receive queues and receiving ends.
//!
//! A sending end names, in each request, the shared receive queue at the peer that it is for; the
//! receiving end belongs to a domain, and finds the queue there. So one connection serves all that
//! share the domain. It is shared within a process, by a file's identity; other processes have
//! domains of their own.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use softverbs_proto::qp_state::QpType;
use softverbs_wire::num::Qpn;

use crate::context::{Context, Pd};
use crate::cq::{Cq, CqInner};
use crate::device::Transport;
use crate::error::{Error, Result};
use crate::qp::{Qp, QpCap, QpInitAttr, WeakQp};
use crate::srq::{Srq, SrqInitAttr, WeakSrq};

/// A domain of extended reliable connections (`struct ibv_xrcd`). Cloning makes another handle; it
/// is closed when the last handle and the last object in it are dropped.
#[derive(Clone)]
pub struct Xrcd {
    inner: Arc<Inner>,
    /// What receiving ends that this one makes have for want of their own: their events go to the
    /// context that has opened it.
    pd: Pd,
}

struct Inner {
    /// What receiving ends have for want of their own.
    cq: Cq,
    srqs: Mutex<HashMap<Qpn, WeakSrq>>,
    qps: Mutex<HashMap<Qpn, WeakQp>>,
}

/// A file, and the device that the domain is of.
type Name = (u64, u64, String);

static SHARED: Mutex<Option<HashMap<Name, Weak<Inner>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// Opens a domain (`ibv_open_xrcd`, RoCE). With a file all who open it by the same file share
    /// it, within this process: it is made if `create`, else it has to be there (ENOENT);
    /// `exclusive` demands that it is not (EEXIST). Without a file it is a new one, for which
    /// `create` is required (EINVAL). EOPNOTSUPP over iWARP.
    pub fn open_xrcd(
        &self,
        file: Option<BorrowedFd<'_>>,
        create: bool,
        exclusive: bool,
    ) -> Result<Xrcd> {
        let device = self.device();
        if device.transport() != Transport::Roce {
            return Err(Error::not_supported("xrcd", "iWARP has no XRC"));
        }
        let Some(file) = file else {
            return match create {
                true => Xrcd::new(self),
                false => Err(Error::invalid("oflags", "without a file it has to be made")),
            };
        };
        let file = file
            .try_clone_to_owned()
            .map_err(Error::from_call("fcntl"))?;
        let about = File::from(file)
            .metadata()
            .map_err(Error::from_call("fstat"))?;
        let name = (about.dev(), about.ino(), device.name().to_owned());
        let mut shared = lock(&SHARED);
        let shared = shared.get_or_insert_default();
        shared.retain(|_, domain| domain.strong_count() > 0);
        match shared.get(&name).and_then(Weak::upgrade) {
            Some(_) if create && exclusive => Err(Error::os("open_xrcd", libc::EEXIST)),
            Some(inner) => {
                let pd = self.alloc_pd()?;
                Ok(Xrcd { inner, pd })
            }
            None if !create => Err(Error::os("open_xrcd", libc::ENOENT)),
            None => {
                let new = Xrcd::new(self)?;
                shared.insert(name, Arc::downgrade(&new.inner));
                Ok(new)
            }
        }
    }
}

impl Xrcd {
    fn new(context: &Context) -> Result<Self> {
        Ok(Self {
            inner: Arc::new(Inner {
                cq: context.create_cq(1, None, 0)?,
                srqs: Mutex::default(),
                qps: Mutex::default(),
            }),
            pd: context.alloc_pd()?,
        })
    }

    /// The context that has opened it.
    pub fn context(&self) -> &Context {
        self.pd.context()
    }

    /// Whether both are handles of one domain.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// A receiving end in the state RESET (`IBV_QPT_XRC_RECV`): nothing is posted to it, and what
    /// arrives completes where its shared receive queue says. It is destroyed when the last handle
    /// is dropped, those of [`open_qp`](Self::open_qp) among them. Its asynchronous events come to
    /// the context that has opened this domain.
    pub fn create_qp(&self, qp_context: u64) -> Result<Qp> {
        let attr = QpInitAttr {
            qp_context,
            qp_type: QpType::XrcRecv,
            cap: QpCap {
                max_send_wr: 0,
                max_recv_wr: 0,
                max_send_sge: 0,
                max_recv_sge: 0,
                max_inline_data: 0,
            },
            ..QpInitAttr::rc(&self.inner.cq, &self.inner.cq)
        };
        let qp = Qp::in_domain(&self.pd, &attr, Some(self))?;
        let mut qps = lock(&self.inner.qps);
        qps.retain(|_, known| known.is_alive());
        qps.insert(qp.qp_num(), qp.downgrade());
        Ok(qp)
    }

    /// Another handle of a receiving end of this domain (`ibv_open_qp`). ENOENT if there is none
    /// of this number.
    pub fn open_qp(&self, qp_num: Qpn) -> Result<Qp> {
        let qp = lock(&self.inner.qps).get(&qp_num).and_then(WeakQp::upgrade);
        qp.ok_or(Error::os("open_qp", libc::ENOENT))
    }

    /// The shared receive queue of this number.
    pub(crate) fn srq(&self, number: Qpn) -> Option<Srq> {
        lock(&self.inner.srqs)
            .get(&number)
            .and_then(WeakSrq::upgrade)
    }
}

impl Pd {
    /// A shared receive queue of a domain (`IBV_SRQT_XRC`): what peers send to its
    /// [number](Srq::srq_num) completes in `cq`. EINVAL for objects of different devices.
    pub fn create_xrc_srq(&self, attr: &SrqInitAttr, xrcd: &Xrcd, cq: &Cq) -> Result<Srq> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        const COUNT: u32 = (1 << 24) - 1;
        let device = self.context().device().name();
        if xrcd.context().device().name() != device {
            return Err(Error::invalid("xrcd", "belongs to another device"));
        }
        let number = Qpn::new(1 + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT);
        let end = XrcEnd {
            number,
            xrcd: xrcd.clone(),
            cq: cq.inner().clone(),
        };
        cq.inner().attach(&Weak::new(), Transport::Roce);
        let srq = self.create_srq_of(attr, Some(end))?;
        let mut srqs = lock(&xrcd.inner.srqs);
        srqs.retain(|_, known| known.is_alive());
        srqs.insert(number, srq.downgrade());
        Ok(srq)
    }
}

/// What makes a shared receive queue one of XRC.
pub(crate) struct XrcEnd {
    pub(crate) number: Qpn,
    pub(crate) xrcd: Xrcd,
    pub(crate) cq: Arc<CqInner>,
}

impl fmt::Debug for Xrcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xrcd")
            .field("context", self.context())
            .finish_non_exhaustive()
    }
}
