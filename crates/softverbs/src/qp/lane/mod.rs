//! The lane of a connection: what its two ends send each other goes past the kernel when both are
//! processes of one user on one host.
//!
//! A connection that is at work looks for the other end ([`meet`]). When both have the same memory, the
//! octets of the stream, the same that TCP would carry, go by two rings in it ([`pipe`]). Each end goes
//! over when it next sends: it says how many octets it has given TCP, and the other one takes so many
//! there first. The connection stays: its end is the end of the stream, behind what is in the ring.
//!
//! Who sleeps is woken by the socket over which the two have met.
//!
//! [`pipe`]: crate::same_host::pipe

mod at_once;
mod meet;
mod patience;
pub(crate) mod status;

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::EpollFlags;
use smallvec::SmallVec;
use socket2::SockRef;
use softverbs_proto::time::Time;

use self::at_once::{Acquaintance, AtOnce};
use self::meet::Offer;
use self::patience::Patience;
use self::status::{COUNTERS, count};
use super::QpInner;
use super::drive::Connection;
use crate::engine::sources::{Source, Token};
use crate::engine::sys::IoList;
use crate::engine::{Engine, Lookout};
use crate::error::Result;
use crate::per_process::PerProcess;
use crate::same_host::bell::Bell;
use crate::same_host::grants::{Granting, forget};
use crate::same_host::pipe::{Ends, Inlet, Outlet, Pipes};

/// Lanes of a process at most, and connections that wait for their other end: each takes a descriptor,
/// and half a MiB once there is a lane.
const MOST: usize = 64;
/// Calls that have moved octets of a connection before a lane is worth its while.
const CALLS: u32 = 32;
/// After that many more, it is tried again.
const AGAIN: u32 = 4096;
/// Empty looks into the ring between two looks for the end of the connection.
const END_EVERY: u32 = 256;

/// Connections that wait for their other end at most, lest they keep those from it that would find it.
const MOST_WAITING: usize = 16;

/// A place among those that a process has.
#[derive(Debug)]
struct Place(&'static AtomicUsize);

static PLACES: AtomicUsize = AtomicUsize::new(0);
static WAITING: AtomicUsize = AtomicUsize::new(0);

impl Place {
    /// One of so many, if not all of them are taken.
    fn take(taken: &'static AtomicUsize, most: usize) -> Option<Self> {
        // Given back when it is dropped.
        let place = Self(taken);
        (taken.fetch_add(1, Ordering::Relaxed) < most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The way that the octets of a connection take.
#[derive(Debug)]
pub(super) struct Way {
    /// Octets of the stream that went and came over TCP.
    sent: u64,
    came: u64,
    /// Calls until a lane is looked for.
    left: u32,
    offer: Option<Arc<Offer>>,
    used: Option<Box<Used>>,
}

/// A lane, for who has the lock of the queue pair.
#[derive(Debug)]
struct Used {
    lane: Arc<Lane>,
    outlet: Outlet,
    inlet: Inlet,
    /// What is sent goes by it.
    outward: bool,
    /// What comes, comes by it.
    inward: bool,
    patience: Patience,
    at_once: AtOnce,
    /// The connection has ended, by a reset or not.
    ended: Option<bool>,
    /// The socket has something to say, which can be its end only.
    look: bool,
    /// Looks that have found nothing.
    empty: u32,
}

/// A lane, for everybody.
#[derive(Debug)]
pub(crate) struct Lane {
    pipes: Arc<Pipes>,
    bell: Bell,
    token: OnceLock<Token>,
    /// The bell is watched.
    watched: AtomicBool,
    /// The sender waits for room.
    waiting: AtomicBool,
    acquaintance: Acquaintance,
    _place: Place,
}

impl Lane {
    fn unwatch(&self, engine: &Engine) {
        if self.watched.swap(false, Ordering::SeqCst) {
            engine.mute(self.bell.fd());
        }
    }

    /// Whether there is something to do for its queue pair.
    fn is_due(&self) -> bool {
        self.pipes.is_ready() || self.waiting.load(Ordering::SeqCst) && self.pipes.has_room()
    }

    /// The engine's thread is about to sleep: from now on the other end wakes it. Whether it may.
    fn may_sleep(&self) -> bool {
        let quiet = self.pipes.sleep();
        quiet && (!self.waiting.load(Ordering::SeqCst) || self.pipes.want_room())
    }

    /// The sender waits for room, or does not any more.
    fn wait(&self, engine: &Engine, wait: bool) {
        self.waiting.store(wait, Ordering::SeqCst);
        // While application threads poll they look themselves; the engine's thread does before it sleeps.
        if wait && !engine.is_backed_off() && !self.pipes.want_room() {
            engine.wake();
        }
    }
}

impl Used {
    fn put(&mut self, list: &IoList<'_>) -> usize {
        let bell = &self.lane.bell;
        self.outlet.put(list, || bell.ring())
    }

    fn take(&mut self, list: &mut IoList<'_>) -> io::Result<usize> {
        let bell = &self.lane.bell;
        self.inlet.take(list, || bell.ring())
    }

    /// Whether nothing has come, and it is not the time to look for the end of the connection.
    fn is_quiet(&mut self) -> bool {
        if !self.inward || self.lane.pipes.is_ready() || self.look || self.ended.is_some() {
            return false;
        }
        self.empty = self.empty.wrapping_add(1);
        !self.empty.is_multiple_of(END_EVERY)
    }

    /// As a reception from a socket: nothing is its end.
    fn receive(
        &mut self,
        list: &mut IoList<'_>,
        socket: BorrowedFd<'_>,
        came: &mut u64,
    ) -> io::Result<usize> {
        if !self.inward {
            if self.lane.pipes.sent_before() != Some(*came) {
                let got = list.receive(socket)?;
                *came += got as u64;
                return Ok(got);
            }
            self.inward = true;
            count(&COUNTERS.inward);
        }
        let got = self.take(list)?;
        if got > 0 {
            return Ok(got);
        }
        if self.ended.is_none() {
            self.look = false;
            self.ended = end_of(socket)?;
        }
        let Some(lost) = self.ended else {
            return Err(ErrorKind::WouldBlock.into());
        };
        // What the other end had put in before it ended the connection.
        match self.take(list)? {
            0 if lost => Err(ErrorKind::ConnectionReset.into()),
            got => Ok(got),
        }
    }
}

/// Whether a connection that brings nothing any more has ended, and by a reset.
fn end_of(socket: BorrowedFd<'_>) -> io::Result<Option<bool>> {
    let mut room = [0];
    let mut list = IoList::new();
    list.push_in(&mut room);
    match list.receive(socket) {
        Ok(0) => Ok(Some(false)),
        // It said that nothing would come.
        Ok(_) => Err(ErrorKind::InvalidData.into()),
        Err(error) if super::drive::is_retry(&error) => Ok(None),
        Err(_) => Ok(Some(true)),
    }
}

/// Whether a connection has not ended for the kernel, which gives nobody else its addresses until then.
fn is_alive(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO) == Ok(0)
}

impl Way {
    /// `came` octets of the stream have come already.
    pub(super) fn new(came: usize) -> Self {
        Self {
            sent: 0,
            came: came as u64,
            left: CALLS,
            offer: None,
            used: None,
        }
    }

    /// Whether there is a lane, which the other end may not have accepted yet.
    pub(super) const fn has_lane(&self) -> bool {
        self.used.is_some()
    }

    /// Whether what is sent goes by a lane.
    pub(super) fn leads_out(&self) -> bool {
        self.outward().is_some()
    }

    fn outward(&self) -> Option<&Lane> {
        let used = self.used.as_ref().filter(|used| used.outward)?;
        Some(&used.lane)
    }

    /// Whether a reception would find nothing.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.used.as_mut().is_some_and(|used| used.is_quiet())
    }

    /// Whether there is room again for who waits for it, by a lane.
    pub(super) fn has_room(&self) -> bool {
        self.outward().is_some_and(|lane| lane.pipes.has_room())
    }

    /// The socket has something to say.
    pub(super) fn look(&mut self) {
        if let Some(used) = &mut self.used {
            used.look = true;
        }
    }

    /// When to ask whether the peer takes something.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.used.as_ref()?.patience.next()
    }

    /// Whether a lane is to be looked for now.
    const fn is_due(&self) -> bool {
        self.left == 0
    }

    /// As [`IoList::receive`].
    pub(super) fn receive(
        &mut self,
        list: &mut IoList<'_>,
        socket: BorrowedFd<'_>,
    ) -> io::Result<usize> {
        let got = match &mut self.used {
            None => {
                let got = list.receive(socket)?;
                self.came += got as u64;
                got
            }
            Some(used) => used.receive(list, socket, &mut self.came)?,
        };
        self.left = self.left.saturating_sub(1);
        Ok(got)
    }

    /// As [`IoList::send`].
    pub(super) fn send(
        &mut self,
        list: &mut IoList<'_>,
        socket: BorrowedFd<'_>,
        end_of_record: bool,
    ) -> io::Result<usize> {
        let took = match &mut self.used {
            Some(used) if used.outward => match used.put(list) {
                0 => return Err(ErrorKind::WouldBlock.into()),
                took => took,
            },
            _ => {
                let took = list.send(socket, end_of_record)?;
                self.sent += took as u64;
                took
            }
        };
        self.left = self.left.saturating_sub(1);
        Ok(took)
    }
}

impl Connection {
    /// Before something is sent: goes over to the lane, if there is one and the other end has it, too.
    pub(super) fn go_over(&mut self, engine: &Engine) {
        let Some(used) = &mut self.way.used else {
            return;
        };
        // The other end's memory is that of the connection with these addresses: this one, as it is there.
        if used.outward || !used.lane.pipes.are_accepted() || !is_alive(self.socket.as_fd()) {
            return;
        }
        self.wait_for_room(engine, false);
        if let Some(used) = &mut self.way.used {
            used.outlet.begin(self.way.sent);
            used.outward = true;
            count(&COUNTERS.outward);
        }
    }

    /// See [`wait_for_room`](Self::wait_for_room). False if it is TCP that takes what is sent.
    pub(super) fn wait_for_lane(&mut self, engine: &Engine, wait: bool) -> bool {
        let used = self.way.used.as_mut().filter(|used| used.outward);
        let Some(used) = used else {
            return false;
        };
        if wait || self.waiting_for_room {
            used.lane.wait(engine, wait);
        }
        if wait {
            let taken = used.lane.pipes.taken();
            used.patience.begin(|| engine.coarse_now(), taken);
        }
        self.waiting_for_room = wait;
        true
    }

    /// Whether the peer has taken nothing by the lane for too long.
    pub(super) fn is_stuck(&mut self, now: Time) -> bool {
        let waits = self.waiting_for_room;
        let used = self.way.used.as_mut();
        used.is_some_and(|used| {
            let taken = used.lane.pipes.taken();
            used.patience.look(now, waits, taken)
        })
    }

    /// The two ends have met: from here on both ways are looked at.
    fn adopt(&mut self, qp: &QpInner, (pipes, outlet, inlet): Ends, bell: OwnedFd, place: Place) {
        let engine = qp.engine;
        let Ok(bell) = Bell::new(bell) else { return };
        let Ok(lanes) = Lanes::get(engine) else {
            return;
        };
        let lane = Arc::new(Lane {
            pipes,
            bell,
            token: OnceLock::new(),
            watched: AtomicBool::new(true),
            waiting: AtomicBool::new(false),
            acquaintance: Acquaintance::new(),
            _place: place,
        });
        let entry = Entry {
            qp: qp.weak(),
            lane: Arc::clone(&lane),
        };
        let token = engine.sources.add(Arc::new(entry.clone()));
        let _ = lane.token.set(token);
        if engine.watch_bell(token, lane.bell.fd()).is_err() {
            engine.sources.remove(token);
            return;
        }
        // It wakes the engine's thread, which may be asleep already.
        lane.pipes.sleep();
        lanes.add(entry);
        count(&COUNTERS.lanes);
        let patience = SockRef::from(&self.socket)
            .tcp_user_timeout()
            .unwrap_or(None);
        // TCP brings nothing any more that epoll need not tell of.
        self.cool(engine);
        self.way.used = Some(Box::new(Used {
            lane,
            outlet,
            inlet,
            outward: false,
            inward: false,
            patience: Patience::new(patience),
            at_once: AtOnce::default(),
            ended: None,
            look: false,
            empty: 0,
        }));
    }

    /// The connection ends, or the other end does not want a lane. What is still to be sent, if it goes by
    /// a lane, goes there.
    pub(super) fn leave_lane(&mut self, engine: &Engine) -> Option<LastOutlet> {
        if let Some(offer) = self.way.offer.take() {
            offer.end(engine);
        }
        let mut used = self.way.used.take()?;
        used.at_once.end();
        let granting: Arc<dyn Granting> = Arc::clone(&used.lane) as _;
        forget(&granting);
        let lane = &used.lane;
        lane.unwatch(engine);
        if let Some(&token) = lane.token.get() {
            engine.sources.remove(token);
        }
        if let Some(lanes) = LANES.existing() {
            lanes.remove(lane);
        }
        used.outward.then_some(LastOutlet {
            lane: used.lane,
            outlet: used.outlet,
        })
    }
}

/// Where the last octets of a stream go.
#[derive(Debug)]
pub(super) struct LastOutlet {
    lane: Arc<Lane>,
    outlet: Outlet,
}

impl LastOutlet {
    /// As [`IoList::send`]. The bell tells of room.
    pub(super) fn send(&mut self, list: &IoList<'_>) -> io::Result<usize> {
        let Self { lane, outlet } = self;
        loop {
            let took = outlet.put(list, || lane.bell.ring());
            if took > 0 {
                return Ok(took);
            }
            if lane.pipes.want_room() {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.lane.bell
    }
}

/// A lane and whose it is.
#[derive(Clone, Debug)]
struct Entry {
    qp: Weak<QpInner>,
    lane: Arc<Lane>,
}

/// The lanes of a process.
#[derive(Debug)]
struct Lanes {
    engine: &'static Engine,
    list: RwLock<Vec<Entry>>,
    count: AtomicUsize,
}

static LANES: PerProcess<Lanes> = PerProcess::new();

impl Lanes {
    fn get(engine: &'static Engine) -> Result<&'static Self> {
        LANES.get_or_try(|| {
            let lanes: &'static Self = Box::leak(Box::new(Self {
                engine,
                list: RwLock::default(),
                count: AtomicUsize::new(0),
            }));
            engine.add_lookout(lanes);
            Ok(lanes)
        })
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Entry>)) {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut list);
        self.count.store(list.len(), Ordering::SeqCst);
    }

    fn add(&self, entry: Entry) {
        self.change(|list| list.push(entry));
    }

    fn remove(&self, lane: &Arc<Lane>) {
        self.change(|list| list.retain(|entry| !Arc::ptr_eq(&entry.lane, lane)));
    }

    /// Serves those that are due. How many there were.
    fn serve(&self, wanted: impl Fn(&QpInner) -> bool) -> usize {
        if self.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        let due = list.iter().filter(|entry| entry.lane.is_due());
        let due: SmallVec<[Arc<QpInner>; 8]> = due.filter_map(|entry| entry.qp.upgrade()).collect();
        // One that is served may go.
        drop(list);
        let mut served = 0;
        for qp in due.iter().filter(|qp| wanted(qp)) {
            served += 1;
            qp.serve(self.engine, false);
        }
        served
    }
}

impl Lookout for Lanes {
    fn look(&self) -> usize {
        self.serve(|_| true)
    }

    fn look_at_neglected(&self) -> bool {
        self.serve(QpInner::neglected) > 0
    }

    fn may_sleep(&self) -> bool {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        let quiet = |all: bool, entry: &Entry| entry.lane.may_sleep() && all;
        list.iter().fold(true, quiet)
    }

    fn waits(&self) -> bool {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        let mut lanes = list.iter().map(|entry| &entry.lane);
        lanes.any(|lane| lane.waiting.load(Ordering::SeqCst))
    }
}

/// What the bell tells.
impl Source for Entry {
    fn ready(&self, engine: &Engine, _: EpollFlags) {
        let there = self.lane.bell.hush();
        engine.bell_heard();
        if !there {
            self.lane.unwatch(engine);
        }
        let Some(qp) = self.qp.upgrade() else { return };
        if there {
            qp.serve(engine, false);
        } else if self.lane.pipes.withdraw() {
            qp.forget_lane(&self.lane);
        }
    }

    fn timeout(&self, _: &Engine, _: Time) {}

    fn neglected(&self) -> bool {
        // The engine's thread looks at lanes before it asks.
        !self.lane.bell.hush()
    }
}

impl QpInner {
    /// The other end does not want a lane.
    fn forget_lane(&self, lane: &Arc<Lane>) {
        let mut core = self.lock();
        if let Some(connection) = core.connection()
            && let Some(used) = &connection.way.used
            && Arc::ptr_eq(&used.lane, lane)
        {
            connection.leave_lane(self.engine);
        }
    }
}
