//! RDMA verbs and RDMA connection management in software, in user space.
//!
//! No RDMA hardware, no kernel module, no root: the real wire protocols, iWARP over TCP and RoCEv2
//! over UDP, over ordinary sockets. It talks to another process of this crate and to the Linux
//! kernel's own drivers (siw, rxe). Objects and calls carry the names of rdma-core: [`Context`],
//! [`Pd`], [`Mr`], [`Cq`], [`Qp`], and the RDMA connection manager in [`cm`]. Which transport an
//! identifier uses is an option ([`cm::CmOption::Transport`]); nothing else differs.
//!
//! # An echo
//!
//! ```
//! use softverbs::cm::{CmId, ConnParam, PortSpace};
//! use softverbs::{Access, QpInitAttr, RecvWr, SendData, SendOp, SendWr, Wc};
//!
//! /// One end: a completion queue, a queue pair and some registered memory.
//! fn equip(id: &CmId) -> softverbs::Result<(softverbs::Cq, softverbs::Qp, softverbs::Mr)> {
//!     let context = id.verbs().expect("known after resolving, and in a connect request");
//!     let pd = context.alloc_pd()?;
//!     let cq = context.create_cq(16, None, 0)?;
//!     let qp = id.create_qp(&pd, &QpInitAttr::rc(&cq, &cq))?;
//!     let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
//!     // Posted before the connection is up: whatever comes first finds a place.
//!     qp.post_recv(&RecvWr { wr_id: 1, sges: &[mr.sge(0, 64)] })?;
//!     Ok((cq, qp, mr))
//! }
//!
//! fn wait(cq: &softverbs::Cq) -> softverbs::Result<Wc> {
//!     let mut wc = [Wc::default()];
//!     while cq.poll(&mut wc)? == 0 {} // whoever waits, works: polling drives the connection
//!     assert!(wc[0].is_success(), "{:?}", wc[0]);
//!     Ok(wc[0])
//! }
//!
//! // The passive side, in a thread here; another process is the same.
//! let listener = CmId::new_sync(PortSpace::Tcp)?;
//! listener.bind_addr("127.0.0.1:0".parse().unwrap())?;
//! listener.listen(8)?;
//! let address = listener.local_addr().unwrap();
//! let server = std::thread::spawn(move || -> softverbs::Result<()> {
//!     let id = listener.get_request()?;
//!     let (cq, qp, mr) = equip(&id)?;
//!     id.accept(&ConnParam::default())?;
//!     let len = wait(&cq)?.byte_len as usize;
//!     qp.post_send(&SendWr::new(2, SendOp::Send, SendData::Sges(&[mr.sge(0, len)])))?;
//!     wait(&cq)?;
//!     Ok(())
//! });
//!
//! // The active side.
//! let id = CmId::new_sync(PortSpace::Tcp)?;
//! id.resolve_addr(None, address, std::time::Duration::from_secs(2))?;
//! id.resolve_route(std::time::Duration::from_secs(2))?;
//! let (cq, qp, mr) = equip(&id)?;
//! id.connect(&ConnParam::default())?;
//! qp.post_send(&SendWr::new(2, SendOp::Send, SendData::Inline(b"hello")))?;
//! wait(&cq)?; // the send
//! assert_eq!(wait(&cq)?.byte_len, 5); // its echo
//! let mut echo = [0; 5];
//! mr.copy_out(0, &mut echo)?;
//! assert_eq!(&echo, b"hello");
//! server.join().unwrap()?;
//! # Ok::<(), softverbs::Error>(())
//! ```
//!
//! # Threads and progress
//!
//! Every object may be used from any thread. Polling a completion queue does the work of its
//! connections on the calling thread; a background thread, started with the first object, does
//! what has no caller: connection set-up, a passive target of reads and writes, armed completion
//! queues, time-outs.
//!
//! # Memory
//!
//! [`Pd::alloc_mr`] registers memory that the region owns, and everything about it is safe;
//! [`Pd::reg_mr`] registers memory of the application, under a contract. Nothing is pinned.
//! A region may be deregistered while traffic runs: requests that still need it fail.
//!
//! # When may I send?
//!
//! As soon as [`connect`](cm::CmId::connect) or [`accept`](cm::CmId::accept) has returned. The
//! request waits in its queue, in order, until the peer may receive it.

#![deny(unsafe_code)]

mod async_event;
pub mod cm;
mod comp_channel;
#[allow(unsafe_code, reason = "reg_mr passes the caller's promise on")]
mod context;
mod cq;
mod device;
mod engine;
mod error;
mod event_queue;
pub mod fault;
#[allow(unsafe_code, reason = "owns the memory of regions")]
mod mr;
#[allow(
    unsafe_code,
    reason = "registered memory: see the SAFETY arguments there"
)]
mod mr_table;
mod mw;
#[allow(unsafe_code, reason = "a pointer to what is never freed")]
mod per_process;
mod qp;
mod recv_queue;
mod roce;
pub mod rsocket;
mod same_host;
mod srq;
mod sync;
mod wr;
mod xrc;

pub use self::async_event::{AsyncElement, AsyncEvent, AsyncEventKind};
pub use self::comp_channel::CompChannel;
pub use self::context::{Context, Pd};
pub use self::cq::Cq;
pub use self::device::{
    AtomicCap, Device, DeviceAttr, DeviceCapFlags, IbMtu, Identity, LinkLayer, PortAttr, PortState,
    Transport, chosen_devices, devices, devices_by, transport_of_environment,
};
pub use self::error::{Error, ErrorKind, Result};
pub use self::mr::{Mr, Rereg};
pub use self::mr_table::MwType;
pub use self::mw::{Mw, MwBindInfo, inc_rkey};
pub use self::qp::lane::status::{IwarpStatus, iwarp_status};
pub use self::qp::{Qp, QpAttr, QpCap, QpInitAttr};
pub use self::roce::port::{PortOwner, RoceStatus, roce_status};
pub use self::roce::{AddressHandle, AhAttr, GlobalRoute};
pub use self::same_host::SameHost;
pub use self::srq::{Srq, SrqAttr, SrqInitAttr};
pub use self::wr::{RecvWr, SendData, SendWr, UdAddress, Wc};
pub use self::xrc::Xrcd;
pub use softverbs_proto::memory::Access;
pub use softverbs_proto::qp_state::{QpAttrMask, QpState, QpType};
pub use softverbs_proto::wr::{BindMw, SendFlags, SendOp, Sge, WcOpcode, WcStatus};
pub use softverbs_wire::num::{Gid, Lkey, Qpn, Rkey};
