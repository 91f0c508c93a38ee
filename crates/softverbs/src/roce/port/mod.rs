//! The UDP side of RoCEv2: one port for each process.
//!
//! All RoCEv2 goes to UDP port 4791, of which there is one on a host address, and a host has many
//! processes. So each has UDP ports of its own, from which it sends and at which peers on the same
//! host reach it directly, and a slot: the high 12 bits of its queue pair numbers and of its
//! communication ids, by which packets find it. Whoever has port 4791 receives what comes from
//! other hosts and forwards what is for others; when it goes, another one takes over.
//!
//! | file | role |
//! |---|---|
//! | [`border`] | what passes between the port and those who use it |
//! | `folder` | the folder by which processes find each other |
//! | `qpns` | queue pair numbers, and how they rest |
//! | `socket` | sockets, and how the engine serves them |
//! | `send` | packets together, ICRC, segmentation offload |
//! | `receive` | packets apart, ICRC, delivery |
//! | `run` | packets that came together |
//! | `edge` | where packets can be disturbed |
//! | `lane` | packets between processes of this host, past the kernel |
//! | `mads` | management datagrams behind what was sent before them |
//! | `relay` | forwarding to other processes |
//! | `steer` | which process something is for |
//! | `held` | requests for a service that may come back |
//! | `public` | who has port 4791 |
//! | `presence` | which processes are still there |
//! | `multicast` | groups |
//! | `status` | what it tells a person who asks |
//! | `sys` | the system calls |

mod border;
mod counters;
mod edge;
mod folder;
mod held;
#[allow(unsafe_code, reason = "memory that two processes share: see `ring`")]
mod lane;
mod mads;
mod multicast;
mod owner;
mod presence;
mod public;
mod qpns;
mod receive;
mod relay;
mod run;
mod send;
mod socket;
mod status;
mod steer;
#[allow(unsafe_code, reason = "system calls that take raw addresses")]
mod sys;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use nix::sys::epoll::EpollFlags;
use softverbs_proto::time::Time;
use softverbs_wire::ib::ROCE_PORT;
use softverbs_wire::num::{Guid, PathMtu, Qpn, ServiceId};

pub(crate) use self::border::{GsiSink, PacketMeta, PacketSink, ReceivedFrom, SendPath, Sent};
use self::counters::{CounterValues, Counters};
use self::edge::Edge;
use self::folder::{Folder, Lock, SlotOwner};
use self::held::Held;
pub(crate) use self::lane::Grantor;
use self::lane::Lanes;
use self::mads::Mads;
use self::multicast::Groups;
use self::presence::Presence;
pub(crate) use self::presence::Whereabouts;
use self::public::{Public, TOUCH_EVERY};
use self::qpns::{OwnSlots, Qpns};
use self::relay::Relay;
pub(crate) use self::run::Run;
use self::socket::{Served, Sock};
pub use self::status::{PortOwner, RoceStatus, roce_status};
use self::steer::Findings;
use crate::engine::sources::Token;
use crate::engine::{Engine, Set};
use crate::error::{Error, Result};
use crate::per_process::PerProcess;

/// The low bits of a communication id, which are its maker's to choose. The others are the slot.
const COMM_ID_BITS: u32 = 20;

// The sockets by their numbers. From the private ones everything is sent.
const PRIVATE_V4: usize = 0;
const PRIVATE_V6: usize = 1;
const PUBLIC_V4: usize = 2;
const PUBLIC_V6: usize = 3;
/// The socket for forwarded packets, which is not one of UDP.
const RELAY: usize = 4;

/// The port of a process.
pub(crate) struct Port {
    engine: &'static Engine,
    folder: Folder,
    /// 4791, but for tests.
    public_port: u16,
    /// The first slot.
    home: u16,
    owner: SlotOwner,
    guid: Guid,
    /// `None` where files cannot be locked so: others do not notice the end of this process.
    presence: Option<Presence>,
    own_slots: OwnSlots,
    qpns: Mutex<Qpns>,
    socks: [OnceLock<Sock>; 4],
    relay: Relay,
    lanes: Lanes,
    mads: Mads,
    public: [Mutex<Public>; 2],
    timer: OnceLock<Token>,
    /// When the files in the folder last were made to look used.
    touched: Mutex<Time>,
    sinks: RwLock<HashMap<Qpn, Weak<dyn PacketSink>>>,
    gsi: RwLock<Option<Arc<dyn GsiSink>>>,
    gsi_psn: AtomicU32,
    groups: Groups,
    services: Mutex<HashMap<(ServiceId, IpAddr), Service>>,
    held: Held,
    findings: Findings,
    polls: AtomicU32,
    /// Everything that had come by then has been received.
    emptied: Mutex<Time>,
    counters: Counters,
    edge: Edge,
}

/// A service that this process has taken.
struct Service {
    lock: Lock,
    offered: bool,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port")
            .field("home", &self.home)
            .field("socks", &self.socks)
            .finish_non_exhaustive()
    }
}

impl Port {
    /// The port of this process; made at the first call.
    pub(crate) fn get(engine: &'static Engine) -> Result<&'static Self> {
        static PORT: PerProcess<Port> = PerProcess::new();
        PORT.get_or_try(|| Self::start(engine, Folder::of_user()?, ROCE_PORT))
    }

    /// One more port in this process, with a folder and a public port of its own choice.
    #[cfg(test)]
    pub(crate) fn new_for_test(
        folder: &std::path::Path,
        public_port: u16,
    ) -> Result<&'static Self> {
        Self::start(Engine::get()?, Folder::open(folder)?, public_port)
    }

    /// A port lives as long as its process.
    fn start(engine: &'static Engine, folder: Folder, public_port: u16) -> Result<&'static Self> {
        let v4 = Sock::bind(false, 0);
        // A kernel may have no IPv6, and a namespace no IPv4.
        let v6 = Sock::bind(true, 0);
        if let (Err(error), Err(_)) = (&v4, &v6) {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            return Err(Error::os("bind", errno));
        }
        let lanes = Lanes::new()?;
        let (home, mut lock) = folder.take_slot()?;
        let owner = SlotOwner {
            port_v4: v4.as_ref().map_or(0, |sock| sock.port),
            port_v6: v6.as_ref().map_or(0, |sock| sock.port),
            home,
        };
        let relay = Relay::bind(&folder.relay(home)).map_err(Error::from_call("bind"))?;
        Folder::describe_slot(&mut lock, owner)?;
        let guid = random_guid()?;
        let presence = Presence::show(&folder.presence(home), guid).ok();
        let own_slots = OwnSlots::new();
        own_slots.add(home);
        let mut qpns = Qpns::default();
        qpns.add_slot(home, lock);
        let port: &'static Self = Box::leak(Box::new(Self {
            engine,
            folder,
            public_port,
            home,
            owner,
            guid,
            presence,
            own_slots,
            qpns: Mutex::new(qpns),
            socks: [const { OnceLock::new() }; 4],
            relay,
            lanes,
            mads: Mads::default(),
            public: Default::default(),
            timer: OnceLock::new(),
            touched: Mutex::new(engine.now()),
            sinks: RwLock::default(),
            gsi: RwLock::default(),
            gsi_psn: AtomicU32::new(0),
            groups: Groups::default(),
            services: Mutex::default(),
            held: Held::default(),
            findings: Findings::default(),
            polls: AtomicU32::new(0),
            emptied: Mutex::new(Time::ZERO),
            counters: Counters::default(),
            edge: Edge::default(),
        }));
        port.serve_edge();
        port.serve_lanes();
        for (which, sock) in [(PRIVATE_V4, v4), (PRIVATE_V6, v6)] {
            if let Ok(sock) = sock {
                port.serve(which, sock)?;
            }
        }
        let token = engine.sources.add(Arc::new(Served { port, which: RELAY }));
        let relay = std::os::fd::AsFd::as_fd(&port.relay.socket);
        engine.watch(Set::Data, token, relay, EpollFlags::EPOLLIN)?;
        let _ = port.timer.set(token);
        port.held
            .serve(engine.sources.add(Arc::new(held::Looks(port))));
        port.claim_public_ports();
        Ok(port)
    }

    /// Puts a socket to use.
    fn serve(&'static self, which: usize, sock: Sock) -> Result<()> {
        let token = self
            .engine
            .sources
            .add(Arc::new(Served { port: self, which }));
        let sock = self.socks[which].get_or_init(|| sock);
        let _ = sock.token.set(token);
        self.engine
            .watch(Set::Data, token, sock.fd(), EpollFlags::EPOLLIN)
    }

    /// The UDP port of a family from which this process sends; 0 if it has none.
    const fn private_port(&self, v6: bool) -> u16 {
        if v6 {
            self.owner.port_v6
        } else {
            self.owner.port_v4
        }
    }

    /// A queue pair number of this process. It leads packets here.
    pub(crate) fn alloc_qpn(&self) -> Result<Qpn> {
        let mut qpns = self.qpns.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.engine.coarse_now();
        if let Some(qpn) = qpns.alloc(now) {
            return Ok(qpn);
        }
        match self.folder.take_slot() {
            Ok((slot, mut lock)) => {
                Folder::describe_slot(&mut lock, self.owner)?;
                self.own_slots.add(slot);
                qpns.add_slot(slot, lock);
                qpns.alloc(now)
            }
            Err(_) => qpns.alloc_any(),
        }
        .ok_or(Error::Limit {
            what: "RoCEv2 queue pairs on this host",
            limit: 1 << 24,
        })
    }

    /// Gives a number back; it rests before it is used again.
    pub(crate) fn free_qpn(&self, qpn: Qpn) {
        let now = self.engine.coarse_now();
        self.qpns
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .free(now, qpn);
    }

    /// The slot of this process among those of this user on this host: the high 12 bits of its
    /// first 4096 queue pair numbers.
    pub(crate) const fn slot(&self) -> u16 {
        self.home
    }

    /// What the communication ids of this process must start with: the slot in the high 12 bits;
    /// the low 20 are free.
    pub(crate) fn comm_id_prefix(&self) -> u32 {
        u32::from(self.home) << COMM_ID_BITS
    }

    /// Unique for each instance of this port.
    pub(crate) const fn ca_guid(&self) -> Guid {
        self.guid
    }

    /// Packets for `qpn` go to `sink` from now on.
    pub(crate) fn register(&self, qpn: Qpn, sink: Weak<dyn PacketSink>) {
        self.sinks
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(qpn, sink);
    }

    /// No packets for `qpn` any more, but for those that are being delivered right now.
    pub(crate) fn unregister(&self, qpn: Qpn) {
        self.sinks
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&qpn);
    }

    fn sink(&self, qpn: Qpn) -> Option<Arc<dyn PacketSink>> {
        self.sinks
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&qpn)?
            .upgrade()
    }

    /// The connection manager. This process answers for its host as long as it has port 4791, whether
    /// it connects itself or not: at the first datagram for nobody, one is started.
    fn gsi(&self) -> Option<Arc<dyn GsiSink>> {
        let current = || {
            let gsi = self.gsi.read().unwrap_or_else(PoisonError::into_inner);
            gsi.clone()
        };
        current().or_else(|| {
            // The ports of tests are not the one that it uses.
            if self.public_port == ROCE_PORT {
                let _ = crate::cm::answer_over_roce();
            }
            current()
        })
    }

    /// Who takes datagrams to QP1.
    pub(crate) fn set_gsi(&self, sink: Arc<dyn GsiSink>) {
        *self.gsi.write().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    /// Takes a service at `address` (at any, if it is the unspecified one), for which nobody listens
    /// yet. `AddrInUse` if somebody has it.
    pub(crate) fn take_service(&self, service: ServiceId, address: IpAddr) -> Result<()> {
        let in_use = || {
            // The low 16 bits of a service of the RDMA CM are its port.
            let port = u16::try_from(service.get() & 0xffff).unwrap_or(0);
            Error::AddrInUse {
                address: SocketAddr::new(address, port),
            }
        };
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if services.contains_key(&(service, address)) {
            return Err(in_use());
        }
        let lock = self
            .folder
            .take_service(service, address)?
            .ok_or_else(in_use)?;
        let offered = false;
        services.insert((service, address), Service { lock, offered });
        Ok(())
    }

    /// Requests for a service that was taken are for this process from now on.
    pub(crate) fn offer_service(&self, service: ServiceId, address: IpAddr) -> Result<()> {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = services.get_mut(&(service, address)) {
            taken.lock.offer(self.home)?;
            taken.offered = true;
        }
        Ok(())
    }

    /// Ends [`take_service`](Self::take_service).
    pub(crate) fn withdraw_service(&self, service: ServiceId, address: IpAddr) {
        let taken = self
            .services
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&(service, address));
        if let Some(taken) = taken {
            if taken.offered {
                self.retire(service, address);
            }
            taken.lock.remove();
        }
    }

    /// Makes the files of this process look used, every now and then.
    fn touch_files(&self, now: Time) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_since(*touched) < TOUCH_EVERY {
            return;
        }
        *touched = now;
        drop(touched);
        let qpns = self.qpns.lock().unwrap_or_else(PoisonError::into_inner);
        qpns.locks().for_each(Lock::touch);
        drop(qpns);
        self.presence.iter().for_each(Presence::touch);
        let services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        services.values().for_each(|taken| taken.lock.touch());
        drop(services);
        self.touch_groups();
    }

    /// A queue pair dropped a packet that does not come from its peer.
    pub(crate) fn note_not_from_peer(&self) {
        counters::add(&self.counters.not_from_peer, 1);
    }

    /// A queue pair dropped packets that it has no use for.
    pub(crate) fn note_no_use(&self, packets: u64) {
        if packets > 0 {
            self.counters.no_use.fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// What the port has done so far.
    fn counters(&self) -> CounterValues {
        let mut values = self.counters.snapshot();
        // The kernel counts these.
        for sock in self.socks.iter().filter_map(OnceLock::get) {
            values.no_room += u64::from(sys::drops(sock.fd()));
        }
        values
    }

    /// Octets that wait in the kernel at most until somebody receives them, its bookkeeping
    /// included. A window that is larger than a part of this overruns a peer on a host like this.
    pub(crate) fn receive_room(&self) -> usize {
        self.socks
            .iter()
            .filter_map(|sock| sock.get()?.options().recv_buffer_size().ok())
            .min()
            .unwrap_or(0)
    }

    /// Most packets in flight to a peer like us: a part of what its socket holds while it is not
    /// scheduled. Where the system allows more room, more than a peer takes in one turn does not help.
    pub(crate) fn window(&self, mtu: PathMtu) -> u32 {
        /// Queue pairs that may fill it at once, the kernel's bookkeeping included.
        const SHARES: usize = 4;
        let packets = self.receive_room() / (SHARES * mtu.octets());
        u32::try_from(packets.clamp(16, 256)).unwrap_or(16)
    }

    /// What the kernel does for the sockets, in words.
    fn offloads(&self) -> Vec<(String, bool)> {
        let mut list = Vec::new();
        for sock in self.socks[..PUBLIC_V4].iter().filter_map(OnceLock::get) {
            let family = if sock.v6 { "IPv6" } else { "IPv4" };
            let mut put = |what: &str, works| list.push((format!("{family} {what}"), works));
            put("segmentation offload", sock.gso.load(Ordering::Relaxed));
            put("receive coalescing", sock.gro);
            if sock.v6 {
                put("datagrams without checksum", sock.no_checksum);
            }
        }
        list
    }
}

/// An EUI-64 that its bits call locally administered and of one device.
fn random_guid() -> Result<Guid> {
    let mut octets = [0; 8];
    getrandom::fill(&mut octets)
        .map_err(|error| Error::os("getrandom", error.raw_os_error().unwrap_or(libc::EIO)))?;
    octets[0] = octets[0] & !0x03 | 0x02;
    Ok(Guid::new(u64::from_be_bytes(octets)))
}

#[cfg(test)]
mod tests;
