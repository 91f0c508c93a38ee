//! Completion queues.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

use smallvec::SmallVec;
use softverbs_wire::num::Qpn;

use crate::async_event::{AsyncElement, AsyncEventKind};
use crate::comp_channel::CompChannel;
use crate::context::{Context, ContextInner};
use crate::device::{Transport, limits};
use crate::error::{Error, Result, in_range};
use crate::event_queue::EventCounter;
use crate::qp::left::Waiting;
use crate::qp::{QpInner, Visit};
use crate::roce::port::Port;
use crate::wr::Wc;

/// Destroyed queue pairs whose completions are looked for at once.
const FORGET_TOGETHER: usize = 256;
/// With up to this many queue pairs a poll tries each socket; with more it asks epoll first.
const DIRECT: usize = 4;
/// A poll that finds completions drives the queue pairs every so often nevertheless.
const DRIVE_EVERY: u32 = 8;
/// Empty polls between two looks at connections of other queues.
const OTHERS_EVERY: u32 = 32;
/// Once such a look has found something, so many empty polls look at once: who polls for the end of
/// what arrives elsewhere keeps a core from the engine's thread, and has the time.
const OTHERS_SOON: u32 = 128;
/// After so many empty polls of a thread in a row, of whatever queues, each takes a little longer, and
/// leaves more of the core to its other hyperthread, on which the peer may be at work.
const QUIET: u32 = 1 << 10;
const PAUSES: u32 = 8;
/// The same for who has found nothing for tens of milliseconds: a few microseconds more do not matter.
const VERY_QUIET: u32 = 1 << 16;
const LONG_PAUSES: u32 = 64;
/// Empty polls between two offers of the core to other threads.
const YIELD_EVERY: u32 = 64;

thread_local! {
    /// Empty polls of this thread in a row.
    static EMPTY: Cell<u32> = const { Cell::new(0) };
}

/// An empty poll ends.
fn pause() {
    let empty = EMPTY.get().saturating_add(1);
    EMPTY.set(empty);
    let pauses = if empty > VERY_QUIET {
        LONG_PAUSES
    } else if empty > QUIET {
        PAUSES
    } else {
        0
    };
    (0..pauses).for_each(|_| std::hint::spin_loop());
}

/// A completion queue. Cloning makes another handle of the same.
#[derive(Clone)]
pub struct Cq {
    inner: Arc<CqInner>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Armed {
    #[default]
    No,
    Solicited,
    Any,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Wc>,
    /// Queue pairs that have been destroyed, whose completions may still be among the entries.
    destroyed: Vec<Qpn>,
    armed: Armed,
    /// Only polls of this queue serve its queue pairs, as was said when it was armed.
    apart: bool,
    overrun: bool,
}

impl Queue {
    /// Forgets the completions of a queue pair that is being destroyed: soon, or at the latest before
    /// anybody sees the entries or adds to them. Many that are destroyed one after the other are
    /// looked for together, as a queue holds what was flushed of all of them.
    fn forget(&mut self, qp_num: Qpn) {
        if self.entries.is_empty() {
            return;
        }
        self.destroyed.push(qp_num);
        if self.destroyed.len() >= FORGET_TOGETHER {
            self.settle();
        }
    }

    /// Does so before completions are added, if they need the room or have a number that was taken
    /// again.
    fn settle_before(&mut self, completions: &[Wc], cqe: u32) {
        if self.destroyed.is_empty() {
            return;
        }
        let is_full = self.entries.len() + completions.len() > cqe as usize;
        let again = |wc: &Wc| self.destroyed.contains(&wc.qp_num);
        if is_full || completions.iter().any(again) {
            self.settle();
        }
    }

    /// Removes the completions of queue pairs that have been destroyed.
    fn settle(&mut self) {
        if self.destroyed.is_empty() {
            return;
        }
        self.destroyed.sort_unstable_by_key(|qp_num| qp_num.get());
        let destroyed = std::mem::take(&mut self.destroyed);
        self.entries.retain(|wc| {
            destroyed
                .binary_search_by_key(&wc.qp_num.get(), |qp_num| qp_num.get())
                .is_err()
        });
    }
}

pub(crate) struct CqInner {
    me: Weak<Self>,
    id: u64,
    counter: Arc<EventCounter>,
    context: Arc<ContextInner>,
    /// Changed under the lock of `queue` only.
    cqe: AtomicU32,
    cq_context: u64,
    channel: Option<CompChannel>,
    queue: Mutex<Queue>,
    /// There may be entries. Written under the lock of `queue`; most polls go no further.
    filled: AtomicBool,
    /// Completion events that are not acknowledged yet.
    comp_events: EventCounter,
    /// Those over iWARP.
    qps: RwLock<Vec<Weak<QpInner>>>,
    /// The port of those over RoCE, once there was one.
    port: OnceLock<&'static Port>,
    /// Changes with every poll: what is posted between two polls may be sent together.
    epoch: AtomicU64,
    since_driven: AtomicU32,
    empty: AtomicU32,
    /// Empty polls that are to look at connections of other queues.
    others_soon: AtomicU32,
    overrun: AtomicBool,
    /// Queue pairs that left something for the next poll.
    deferred: Waiting<Weak<QpInner>>,
}

impl Cq {
    pub(crate) fn new(
        context: &Context,
        cqe: u32,
        channel: Option<&CompChannel>,
        cq_context: u64,
    ) -> Result<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        in_range("cqe", cqe, 1, limits::MAX_CQE)?;
        let inner = Arc::new_cyclic(|me| CqInner {
            me: me.clone(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            counter: Arc::default(),
            context: context.inner().clone(),
            cqe: AtomicU32::new(cqe),
            cq_context,
            channel: channel.cloned(),
            queue: Mutex::default(),
            filled: AtomicBool::new(false),
            comp_events: EventCounter::new(),
            qps: RwLock::default(),
            port: OnceLock::new(),
            epoch: AtomicU64::new(0),
            since_driven: AtomicU32::new(0),
            empty: AtomicU32::new(0),
            others_soon: AtomicU32::new(0),
            overrun: AtomicBool::new(false),
            deferred: Waiting::new(),
        });
        let engine = inner.context.engine;
        engine.add_cq(inner.id, inner.me.clone());
        Ok(Self { inner })
    }

    pub(crate) fn from_inner(inner: Arc<CqInner>) -> Self {
        Self { inner }
    }

    pub(crate) fn inner(&self) -> &Arc<CqInner> {
        &self.inner
    }

    /// The number that asynchronous events name it by.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// The application's value.
    pub fn cq_context(&self) -> u64 {
        self.inner.cq_context
    }

    /// Its capacity in entries.
    pub fn cqe(&self) -> u32 {
        self.inner.cqe()
    }

    /// Changes the capacity (`ibv_resize_cq`). EINVAL beyond the device's limits, and for fewer
    /// entries than there are completions in the queue.
    pub fn resize(&self, cqe: u32) -> Result<()> {
        in_range("cqe", cqe, 1, limits::MAX_CQE)?;
        // What was left for the next poll may complete at once, and needs its room.
        self.inner.context.engine.flush_deferred();
        let mut queue = self.inner.lock();
        queue.settle();
        if queue.entries.len() > cqe as usize {
            return Err(Error::invalid(
                "cqe",
                format!("{} completions are in the queue", queue.entries.len()),
            ));
        }
        self.inner.cqe.store(cqe, Ordering::Relaxed);
        Ok(())
    }

    /// Whether both are handles of one queue.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Takes up to `out.len()` completions, oldest first, and returns how many. Never blocks.
    ///
    /// When the queue is empty, the calling thread does the work of its queue pairs: receives,
    /// places, sends what was left for this moment. Fails with EIO-like `CqErr` after an overrun:
    /// completions have been lost then.
    pub fn poll(&self, out: &mut [Wc]) -> Result<usize> {
        let limit = out.len();
        let mut places = out.iter_mut();
        self.poll_each(limit, |wc| {
            if let Some(place) = places.next() {
                *place = wc;
            }
        })
    }

    /// As [`poll`](Self::poll), with a function that gets each of up to `limit` completions, while
    /// the queue is locked: it must not use the queue.
    pub fn poll_each(&self, limit: usize, mut put: impl FnMut(Wc)) -> Result<usize> {
        let cq = &*self.inner;
        if cq.overrun.load(Ordering::Relaxed) {
            return Err(Error::invalid("cq", "overrun: completions were lost"));
        }
        let engine = cq.context.engine;
        engine.note_poll();
        cq.epoch.store(
            cq.epoch.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        cq.flush_deferred(Visit::Poll);
        let found = cq.take(limit, &mut put);
        if found > 0 {
            cq.empty.store(0, Ordering::Relaxed);
            EMPTY.set(0);
            let since = cq.since_driven.load(Ordering::Relaxed) + 1;
            cq.since_driven.store(since, Ordering::Relaxed);
            if since < DRIVE_EVERY {
                return Ok(found);
            }
            cq.drive(0);
            return Ok(found);
        }
        let empty = cq.empty.load(Ordering::Relaxed).wrapping_add(1);
        cq.empty.store(empty, Ordering::Relaxed);
        cq.drive(empty);
        let found = cq.take(limit, &mut put);
        if found > 0 {
            EMPTY.set(0);
            return Ok(found);
        }
        if empty.is_multiple_of(YIELD_EVERY) {
            std::thread::yield_now();
        }
        pause();
        Ok(found)
    }

    /// Arms the queue: the next completion (with `solicited_only`: the next one of a solicited
    /// message, or of a failure) puts one event on its channel. Completions that are in the
    /// queue already do not count: poll once more after arming. Without a channel it has no
    /// effect.
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        let cq = &*self.inner;
        if cq.channel.is_none() {
            return Ok(());
        }
        // Over RoCE the sockets are those of all queue pairs.
        let streams = cq.qps.read().unwrap_or_else(PoisonError::into_inner);
        let apart = cq.port.get().is_none() || !streams.is_empty();
        drop(streams);
        let mut queue = cq.lock();
        let before = queue.armed;
        queue.armed = match (before, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            (_, true) => Armed::Solicited,
        };
        if before == Armed::No {
            queue.apart = apart;
        }
        drop(queue);
        if before == Armed::No {
            cq.context.engine.arm(apart);
        } else {
            cq.context.engine.await_again();
        }
        // What was left for the next poll may be what the application now sleeps for.
        cq.context.engine.flush_deferred();
        Ok(())
    }

    /// Acknowledges `n` events that [`CompChannel::get_event`] returned for this queue.
    pub fn ack_events(&self, n: u32) {
        self.inner.comp_events.ack(n.into());
    }

    /// Events put on the channel and not yet acknowledged.
    pub fn unacked_events(&self) -> u64 {
        self.inner.comp_events.outstanding()
    }

    /// Takes back the events of this queue that nobody has fetched, completion events and asynchronous
    /// ones, and waits until those that were fetched are acknowledged: what C programs expect of
    /// destroying it, so that an event never names a queue that has gone.
    pub fn settle_events(&self) {
        let cq = &*self.inner;
        if let Some(channel) = &cq.channel {
            cq.comp_events.ack(channel.forget(cq));
        }
        cq.context.async_events.forget(AsyncElement::Cq(cq.id));
        cq.comp_events.wait_acked();
        cq.counter.wait_acked();
    }
}

impl CqInner {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cqe(&self) -> u32 {
        self.cqe.load(Ordering::Relaxed)
    }

    fn take(&self, limit: usize, put: impl FnMut(Wc)) -> usize {
        if !self.filled.load(Ordering::Acquire) {
            return 0;
        }
        let mut queue = self.lock();
        queue.settle();
        let count = limit.min(queue.entries.len());
        queue.entries.drain(..count).for_each(put);
        self.filled
            .store(!queue.entries.is_empty(), Ordering::Release);
        count
    }

    /// Does the work of the queue pairs of this queue, on the calling thread.
    fn drive(&self, empty: u32) {
        self.since_driven.store(0, Ordering::Relaxed);
        let engine = self.context.engine;
        let others = empty % OTHERS_EVERY == OTHERS_EVERY - 1;
        if others {
            // The queues of some queue pairs are perhaps never polled.
            engine.flush_deferred();
        }
        if let Some(port) = self.port.get() {
            port.poll(engine);
        }
        let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
        if qps.len() > DIRECT {
            drop(qps);
            engine.poll_data();
            return;
        }
        let mine: SmallVec<[Arc<QpInner>; DIRECT]> = qps.iter().filter_map(Weak::upgrade).collect();
        drop(qps);
        for qp in &mine {
            qp.drive();
        }
        let soon = self.others_soon.load(Ordering::Relaxed);
        if (others || soon > 0) && engine.connections() > mine.len() {
            let soon = match engine.poll_data() {
                0 => soon.saturating_sub(1),
                _ => OTHERS_SOON,
            };
            self.others_soon.store(soon, Ordering::Relaxed);
        }
    }

    /// A queue pair of this queue has left something for its next poll.
    pub(crate) fn defer(&self, qp: Weak<QpInner>) {
        self.deferred.push(qp);
        self.context.engine.note_deferred();
    }

    /// Sends what was left for a poll.
    pub(crate) fn flush_deferred(&self, visit: Visit) {
        let mut todo: SmallVec<[Weak<QpInner>; 8]> = SmallVec::new();
        self.deferred.take(&mut todo);
        for qp in todo {
            if let Some(qp) = qp.upgrade() {
                qp.flush_deferred(self, visit);
            }
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(crate) fn attach(&self, qp: &Weak<QpInner>, transport: Transport) {
        if transport == Transport::Roce {
            if let Ok(port) = Port::get(self.context.engine) {
                let _ = self.port.set(port);
            }
            return;
        }
        let mut qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        // Send and receive queue may be the same.
        if !qps.last().is_some_and(|last| last.ptr_eq(qp)) {
            qps.push(qp.clone());
        }
    }

    pub(crate) fn detach(&self, qp: &Weak<QpInner>) {
        let mut qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        qps.retain(|known| !known.ptr_eq(qp));
    }

    /// Adds completions; `solicited` if one of them came with a solicited event.
    pub(crate) fn push(&self, completions: &[Wc], solicited: bool) {
        let mut queue = self.lock();
        queue.settle_before(completions, self.cqe());
        let room = (self.cqe() as usize).saturating_sub(queue.entries.len());
        let overrun = room < completions.len();
        let first = overrun && !queue.overrun;
        queue.overrun |= overrun;
        queue
            .entries
            .extend(&completions[..completions.len().min(room)]);
        self.filled.store(true, Ordering::Release);
        let notify = match queue.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited || completions.iter().any(|wc| !wc.is_success()),
        };
        if notify {
            queue.armed = Armed::No;
            if let Some(channel) = &self.channel {
                self.comp_events.raise();
                channel.notify(self.me.clone());
            }
        }
        let apart = queue.apart;
        drop(queue);
        if notify {
            self.context.engine.disarm(apart);
        }
        if first {
            self.overrun.store(true, Ordering::Relaxed);
            let element = AsyncElement::Cq(self.id);
            let events = &self.context.async_events;
            events.push(AsyncEventKind::CqErr, element, Some(&self.counter));
        }
    }

    pub(crate) fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// Forgets the completions of a queue pair that is being destroyed.
    pub(crate) fn forget(&self, qp_num: Qpn) {
        self.lock().forget(qp_num);
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.context.engine.remove_cq(self.id);
        let queue = self.lock();
        let (is_armed, apart) = (queue.armed != Armed::No, queue.apart);
        drop(queue);
        if is_armed {
            self.context.engine.disarm(apart);
        }
        self.context.async_events.forget(AsyncElement::Cq(self.id));
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("id", &self.inner.id)
            .field("cqe", &self.inner.cqe())
            .field("entries", &self.inner.lock().entries.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CqInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(qp: u32) -> Wc {
        Wc {
            qp_num: Qpn::new(qp),
            ..Wc::default()
        }
    }

    fn numbers(queue: &Queue) -> Vec<u32> {
        queue.entries.iter().map(|wc| wc.qp_num.get()).collect()
    }

    #[test]
    fn what_is_forgotten_is_never_seen() {
        let mut queue = Queue::default();
        queue.forget(Qpn::new(9));
        assert!(queue.destroyed.is_empty(), "there is nothing to look for");
        queue.entries.extend([1, 2, 3, 2, 1].map(of));
        queue.forget(Qpn::new(2));
        queue.forget(Qpn::new(1));
        queue.settle();
        assert_eq!((numbers(&queue), queue.destroyed.len()), (vec![3], 0));
    }

    #[test]
    fn a_number_that_is_taken_again_keeps_its_new_completions() {
        let mut queue = Queue::default();
        queue.entries.extend([1, 2].map(of));
        queue.forget(Qpn::new(1));
        queue.settle_before(&[of(2)], 8);
        assert_eq!(queue.destroyed.len(), 1, "not yet");
        queue.settle_before(&[of(1)], 8);
        queue.entries.push_back(of(1));
        queue.settle();
        assert_eq!(numbers(&queue), [2, 1]);
    }

    #[test]
    fn room_of_what_is_forgotten_counts() {
        let mut queue = Queue::default();
        queue.entries.extend([1, 2].map(of));
        queue.forget(Qpn::new(1));
        queue.settle_before(&[of(2)], 2);
        assert_eq!(numbers(&queue), [2]);
    }

    #[test]
    fn many_are_looked_for_together() {
        let mut queue = Queue::default();
        let qps = (0..).take(FORGET_TOGETHER);
        queue.entries.extend(qps.clone().map(of));
        for qp in qps.skip(1) {
            queue.forget(Qpn::new(qp));
        }
        assert_eq!(queue.entries.len(), FORGET_TOGETHER);
        queue.forget(Qpn::new(0));
        assert!(queue.entries.is_empty());
    }
}
