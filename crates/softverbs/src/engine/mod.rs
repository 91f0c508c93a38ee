//! The engine: sockets, progress and timers of this process.
//!
//! *Whoever waits, works.* Connections are driven by the threads that post to them and poll their
//! completion queues. The engine's own thread serves what has no such caller: set-up of
//! connections, a passive target of one-sided operations, armed completion queues, timers. While
//! application threads poll it backs off, looks at what they neglect every
//! [`BACK_OFF`](thread::BACK_OFF), and takes over when they stop.
//!
//! Two epoll sets: `data` holds the sockets of connected queue pairs and may be waited on by any
//! thread; `control` holds everything else, and `data` itself, armed only while the engine's
//! thread is in charge.

pub(crate) mod edge;
mod exit;
pub(crate) mod sources;
#[allow(unsafe_code, reason = "system calls that take raw addresses")]
pub(crate) mod sys;
pub(crate) mod thread;
mod timers;

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};
use nix::time::{ClockId, clock_gettime};
use smallvec::SmallVec;
use softverbs_proto::time::Time;

use self::exit::LastCall;
use self::sources::{Sources, Token};
use self::sys::Ready;
use self::timers::Timers;
use crate::cq::CqInner;
use crate::error::{Error, Result};
use crate::per_process::PerProcess;
use crate::qp::Visit;
use crate::qp::left::Bell;
use crate::same_host::SameHost;

/// Octets received at once that make a stream of it: see `Engine::bulk`.
pub(crate) const BULK: usize = 16 << 10;

const WAKE: Token = Token::reserved(0);
const DATA: Token = Token::reserved(1);

thread_local! {
    /// This is the engine's own thread.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Which epoll set a socket belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// Served by the engine's thread only.
    Control,
    /// Served by whichever thread waits.
    Data,
}

/// Something that threads look at: memory that other processes write to, which tells only who has said
/// that he sleeps.
pub(crate) trait Lookout: fmt::Debug + Send + Sync {
    /// Serves what there is. Returns how much it was.
    fn look(&self) -> usize;

    /// The engine's thread looks while application threads poll: serves what none of them has looked at
    /// since the last time. Whether there was any.
    fn look_at_neglected(&self) -> bool;

    /// The engine's thread is about to sleep, and is woken from now on. False if it may not: there is
    /// something already.
    fn may_sleep(&self) -> bool;

    /// The process is about to end. Whether something waits for others, who may be about to let it go.
    fn waits(&self) -> bool {
        false
    }
}

static ENGINE: PerProcess<Engine> = PerProcess::new();

/// The one engine of a process.
#[derive(Debug)]
pub(crate) struct Engine {
    control: Epoll,
    data: Epoll,
    wake: EventFd,
    pub(crate) sources: Sources,
    timers: Mutex<Timers>,
    /// Changes whenever an application thread polls.
    polls: AtomicU64,
    /// Posts that could have been gathered, had this thread known that somebody polls.
    untold: AtomicU32,
    /// Application threads that are at work on a connection now, in a long system call perhaps.
    inside: AtomicUsize,
    /// Completion queues that wait for a notification.
    armed: AtomicUsize,
    /// Those of them that polls of other queues do not serve.
    armed_apart: AtomicUsize,
    /// The count of polls when the last one was armed.
    armed_at: AtomicU64,
    /// Application threads poll; the engine's thread leaves the data to them.
    backed_off: AtomicBool,
    /// When it looks again nevertheless, in nanoseconds.
    next_look: AtomicU64,
    /// All completion queues, by number.
    cqs: RwLock<HashMap<u64, Weak<CqInner>>>,
    /// One of them has queue pairs that wait for a poll.
    deferred: Bell,
    /// The process is about to end.
    last_call: LastCall,
    /// What is looked at, since nothing tells of it while somebody is awake.
    lookouts: RwLock<Vec<&'static dyn Lookout>>,
    /// Sources that are polled so often that epoll need not watch them.
    hot: Mutex<Vec<Token>>,
    /// Large amounts were received: set by connections, read by the engine's thread.
    pub(crate) bulk: AtomicBool,
    /// Sockets in `data`.
    connections: AtomicUsize,
    /// What goes between processes of this host.
    pub(crate) same_host: SameHost,
}

impl Engine {
    /// The engine of this process; its thread is started at the first call.
    pub(crate) fn get() -> Result<&'static Self> {
        ENGINE.get_or_try(|| {
            crate::fault::from_environment()?;
            // Known to others only once its thread runs: nothing would be served without.
            let engine: &'static Self = Box::leak(Box::new(Self::new()?));
            thread::start(engine)?;
            exit::expect();
            Ok(engine)
        })
    }

    /// The same, if there is one.
    fn existing() -> Option<&'static Self> {
        ENGINE.existing()
    }

    fn new() -> Result<Self> {
        let os = |call: &'static str| move |errno: nix::Error| Error::os(call, errno as i32);
        let control = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os("epoll_create1"))?;
        let data = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os("epoll_create1"))?;
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(os("eventfd"))?;
        control
            .add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE.as_u64()))
            .map_err(os("epoll_ctl"))?;
        control
            .add(&data.0, EpollEvent::new(EpollFlags::empty(), DATA.as_u64()))
            .map_err(os("epoll_ctl"))?;
        Ok(Self {
            control,
            data,
            wake,
            sources: Sources::default(),
            timers: Mutex::default(),
            polls: AtomicU64::new(0),
            untold: AtomicU32::new(0),
            inside: AtomicUsize::new(0),
            armed: AtomicUsize::new(0),
            armed_apart: AtomicUsize::new(0),
            armed_at: AtomicU64::new(0),
            backed_off: AtomicBool::new(false),
            next_look: AtomicU64::new(0),
            cqs: RwLock::default(),
            deferred: Bell::new(),
            last_call: LastCall::default(),
            lookouts: RwLock::default(),
            hot: Mutex::default(),
            bulk: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            same_host: SameHost::of_environment()?,
        })
    }

    /// Descriptors that connections of strangers may take: a part of what the process may open, so
    /// that the application can go on opening its own.
    pub(crate) fn strangers_share() -> usize {
        const MOST: u64 = 4096;
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        usize::try_from((limit / 8).min(MOST)).unwrap_or(0)
    }

    /// The present moment.
    pub(crate) fn now(&self) -> Time {
        clock(ClockId::CLOCK_MONOTONIC)
    }

    /// The present moment as of the kernel's last tick, a few milliseconds ago at most; cheap.
    pub(crate) fn coarse_now(&self) -> Time {
        clock(ClockId::CLOCK_MONOTONIC_COARSE)
    }

    fn set(&self, set: Set) -> &Epoll {
        match set {
            Set::Control => &self.control,
            Set::Data => &self.data,
        }
    }

    /// Watches a socket; `interest` is level-triggered.
    pub(crate) fn watch(
        &self,
        set: Set,
        token: Token,
        fd: BorrowedFd<'_>,
        interest: EpollFlags,
    ) -> Result<()> {
        self.set(set)
            .add(fd, EpollEvent::new(interest, token.as_u64()))
            .map_err(|errno| Error::os("epoll_ctl", errno as i32))?;
        if set == Set::Data {
            self.connections.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Watches what wakes this process, which is no connection, as sockets of [`Set::Data`].
    pub(crate) fn watch_bell(&self, token: Token, fd: BorrowedFd<'_>) -> Result<()> {
        self.data
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token.as_u64()))
            .map_err(|errno| Error::os("epoll_ctl", errno as i32))
    }

    /// Changes what a watched socket is watched for.
    pub(crate) fn rewatch(&self, set: Set, token: Token, fd: BorrowedFd<'_>, interest: EpollFlags) {
        let mut event = EpollEvent::new(interest, token.as_u64());
        // Cannot fail for a socket that is in the set.
        let _ = self.set(set).modify(fd, &mut event);
    }

    /// Stops watching; to be called before the socket is closed.
    pub(crate) fn unwatch(&self, set: Set, fd: BorrowedFd<'_>) {
        // A muted data socket is not in the set.
        let _ = self.set(set).delete(fd);
        if set == Set::Data {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes a data socket out of the set for a while; a bell for ever.
    pub(crate) fn mute(&self, fd: BorrowedFd<'_>) {
        let _ = self.data.delete(fd);
    }

    /// Puts a data socket back into the set.
    pub(crate) fn unmute(&self, token: Token, fd: BorrowedFd<'_>, interest: EpollFlags) {
        // Fails only for want of kernel memory; the connection is then served by polls alone.
        let _ = self.data.add(fd, EpollEvent::new(interest, token.as_u64()));
    }

    /// Sockets of connected queue pairs.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Sets (or clears) the one timer of a source.
    pub(crate) fn set_timer(&self, token: Token, at: Option<Time>) {
        let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = timers.set(token, at);
        drop(timers);
        // A thread that has backed off looks again very soon anyway, mostly before the timer. SeqCst
        // pairs with `take_charge`, after which it looks for timers: either it sees this one, or
        // this sees that it is in charge.
        let sleeps_longer = || {
            let next_look = Duration::from_nanos(self.next_look.load(Ordering::SeqCst));
            at.is_some_and(|at| at.since_epoch() < next_look)
        };
        if earlier && (!self.backed_off.load(Ordering::SeqCst) || sleeps_longer()) {
            self.wake();
        }
    }

    fn next_timer(&self) -> Option<Time> {
        self.timers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next()
    }

    fn run_timers(&self) {
        let now = self.now();
        loop {
            let due = self
                .timers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_due(now);
            let Some(token) = due else { return };
            if let Some(source) = self.sources.find(token) {
                source.timeout(self, now);
            }
        }
    }

    /// Whether this is the engine's own thread.
    pub(crate) fn is_own_thread() -> bool {
        IS_OWN.get()
    }

    /// Makes the engine's thread look again at what there is to do.
    pub(crate) fn wake(&self) {
        // It looks at everything before it sleeps.
        if IS_OWN.get() {
            return;
        }
        // Fails only if the counter is full, and then the thread is awake anyway.
        let _ = self.wake.write(1);
    }

    /// A bell of `same_host` has been heard. If an application thread has done that, the engine's, which
    /// sleeps until it rings, perhaps, has to wish for it again.
    pub(crate) fn bell_heard(&self) {
        if !self.is_backed_off() {
            self.wake();
        }
    }

    /// An application thread polls: it does the work now.
    pub(crate) fn note_poll(&self) {
        // Lost increments are harmless: any change will do.
        self.polls.store(
            self.polls.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    /// An application thread begins to work on a connection.
    pub(crate) fn enter(&self) {
        self.inside.fetch_add(1, Ordering::Relaxed);
    }

    /// It is done.
    pub(crate) fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::Relaxed);
    }

    /// A completion queue was armed: from now on nobody may be polling. `apart`: only its own polls
    /// serve its queue pairs.
    pub(crate) fn arm(&self, apart: bool) {
        if apart {
            self.armed_apart.fetch_add(1, Ordering::SeqCst);
        }
        self.armed.fetch_add(1, Ordering::SeqCst);
        self.await_again();
    }

    /// The same for one that is armed already: who has polled since sleeps now, perhaps.
    pub(crate) fn await_again(&self) {
        let polls = self.polls.load(Ordering::Relaxed);
        self.armed_at.store(polls, Ordering::SeqCst);
        if self.backed_off.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// A completion queue was notified or has gone.
    pub(crate) fn disarm(&self, apart: bool) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
        if apart {
            self.armed_apart.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether somebody sleeps until a completion queue is notified. Not who has polled much since the
    /// last one was armed, and so goes on with another queue, unless that does not serve all of them.
    fn is_awaited(&self) -> bool {
        const MUCH: u64 = 64;
        let since = || {
            let polls = self.polls.load(Ordering::Relaxed);
            polls.wrapping_sub(self.armed_at.load(Ordering::SeqCst))
        };
        self.armed.load(Ordering::SeqCst) > 0
            && (self.armed_apart.load(Ordering::SeqCst) > 0 || since() <= MUCH)
    }

    /// Whether application threads poll, so that work left for the next poll is done soon.
    pub(crate) fn is_backed_off(&self) -> bool {
        self.backed_off.load(Ordering::SeqCst)
    }

    /// The same for an application thread that posts, behind the first post since its last poll and
    /// `behind` requests.
    pub(crate) fn gathers(&self, behind: u32) -> bool {
        const MANY: u32 = 128;
        const TELL_EVERY: u32 = 64;
        if self.is_backed_off() {
            // On a slow machine so many requests take longer than the time without a poll after which the
            // engine's thread takes over, and behind them comes a poll.
            if behind < MANY {
                self.note_poll();
            }
            return true;
        }
        // In charge, the thread sleeps until something arrives: it never hears of the polls of who
        // only sends.
        if !self.is_awaited() {
            let untold = self.untold.fetch_add(1, Ordering::Relaxed);
            if untold % TELL_EVERY == TELL_EVERY - 1 {
                self.wake();
            }
        }
        false
    }

    /// Knows a completion queue from now on, for its queue pairs that wait for a poll.
    pub(crate) fn add_cq(&self, id: u64, cq: Weak<CqInner>) {
        self.cqs
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, cq);
    }

    /// The queue has gone.
    pub(crate) fn remove_cq(&self, id: u64) {
        self.cqs
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&id);
    }

    /// A completion queue has a queue pair that waits for a poll. If the engine stopped backing off
    /// meanwhile, its thread does the work here and now.
    pub(crate) fn note_deferred(&self) {
        // Either `take_charge` hears the bell, or we see that it is in charge.
        self.deferred.ring();
        if !self.backed_off.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Epoll is not to watch this source while application threads poll it. `false` if the engine
    /// has just stopped backing off.
    pub(crate) fn add_hot(&self, token: Token) -> bool {
        self.hot
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(token);
        // Either `cool` finds it, or this sees why it did not.
        self.backed_off.load(Ordering::SeqCst)
    }

    /// Watches again all hot sources, or those that nobody polls any more.
    fn cool(&self, all: bool) {
        let mut hot = self.hot.lock().unwrap_or_else(PoisonError::into_inner);
        if hot.is_empty() {
            return;
        }
        let before = std::mem::take(&mut *hot);
        drop(hot);
        let mut still = Vec::new();
        for token in before {
            let Some(source) = self.sources.find(token) else {
                continue;
            };
            if all || source.neglected() {
                source.cool(self);
            } else {
                still.push(token);
            }
        }
        if !still.is_empty() {
            self.hot
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .append(&mut still);
        }
    }

    /// An application thread comes by: it sends what was left for a poll of any queue.
    pub(crate) fn flush_deferred(&self) {
        self.flush(Visit::Poll);
    }

    fn flush(&self, visit: Visit) {
        if !self.deferred.silence() {
            return;
        }
        // The last handle of a queue may be dropped here, which takes the lock again.
        let cqs: SmallVec<[Arc<CqInner>; 8]> = self
            .cqs
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        for cq in cqs {
            cq.flush_deferred(visit);
        }
    }

    /// From here on this is looked at, too.
    pub(crate) fn add_lookout(&self, lookout: &'static dyn Lookout) {
        let lookouts = self.lookouts.write();
        lookouts
            .unwrap_or_else(PoisonError::into_inner)
            .push(lookout);
    }

    fn lookouts(&self) -> SmallVec<[&'static dyn Lookout; 4]> {
        let lookouts = self.lookouts.read();
        let lookouts = lookouts.unwrap_or_else(PoisonError::into_inner);
        lookouts.iter().copied().collect()
    }

    /// Serves connections that are ready, on the calling thread. Returns how many there were.
    pub(crate) fn poll_data(&self) -> usize {
        let lookouts = self.lookouts();
        let seen: usize = lookouts.iter().map(|lookout| lookout.look()).sum();
        let mut ready: SmallVec<[Ready; 64]> = SmallVec::new();
        // An error cannot be cured here; the next call meets it again.
        let _ = sys::epoll_wait(self.data.0.as_fd(), &mut ready, Some(Duration::ZERO));
        self.serve(&ready);
        seen + ready.len()
    }

    fn serve(&self, ready: &[Ready]) {
        if ready.is_empty() {
            return;
        }
        for (source, readiness) in self.sources.find_all(ready) {
            source.ready(self, readiness);
        }
    }
}

fn clock(id: ClockId) -> Time {
    // Cannot fail for a clock that every kernel has.
    let time = clock_gettime(id).map(Duration::from).unwrap_or_default();
    Time::new(time)
}
