//! Sending by a lane.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use nix::sys::epoll::EpollFlags;
use softverbs_proto::time::Time;
use softverbs_wire::ib::Icrc;

use super::super::border::{PacketSink, SendPath, Sent, octets_of};
use super::super::counters::add;
use super::super::qpns::slot_of;
use super::super::send::Packets;
use super::super::{PRIVATE_V4, PRIVATE_V6, Port};
use super::ring::{AFTER_SOCKETS, MAX_PACKET, Meta, Put, Ring};
use super::{MOST, STUCK};
use crate::engine::sources::{Source, Token};
use crate::engine::{Engine, Set};
use crate::same_host::bell::Bell;
use crate::same_host::placing::Reach;

/// Calls that a path has sent over UDP before a lane is worth its while.
const CALLS: u16 = 32;
/// After that many more, it is tried again.
const AGAIN: u16 = 0x8000;

/// The lane of a path, if it has one.
#[derive(Debug, Default)]
pub(in super::super) struct PathLane {
    /// Calls until it is looked for.
    left: AtomicU16,
    /// Packets have gone over UDP, and none by the lane since.
    by_socket: AtomicBool,
    /// It goes with its receiver, whoever remembers the way there.
    lane: Mutex<Weak<OutLane>>,
}

impl PathLane {
    pub(in super::super) const fn new() -> Self {
        Self {
            left: AtomicU16::new(CALLS),
            by_socket: AtomicBool::new(false),
            lane: Mutex::new(Weak::new()),
        }
    }

    pub(super) fn get(&self) -> Option<Arc<OutLane>> {
        let lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        lane.upgrade()
    }

    fn set(&self, lane: Option<&Arc<OutLane>>) {
        let lane = lane.map_or_else(Weak::new, Arc::downgrade);
        *self.lane.lock().unwrap_or_else(PoisonError::into_inner) = lane;
    }
}

/// What comes of the wish for a lane.
enum Wanted {
    Lane(Arc<OutLane>),
    /// Not now.
    Later,
    /// The receiver does not want one, or there are enough.
    No,
}

/// A lane to another process.
#[derive(Debug)]
pub(super) struct OutLane {
    pub(super) ring: Ring,
    pub(super) bell: Bell,
    /// The first slot of the receiver, and its UDP ports, which tell it from one that had the slot before.
    home: u16,
    ports: [u16; 2],
    token: OnceLock<Token>,
    /// Whether this process may write to the receiver's memory itself.
    pub(super) reach: Mutex<Reach>,
    /// The receiver has gone.
    gone: AtomicBool,
    waiting: Mutex<Vec<Weak<dyn PacketSink>>>,
    any_waiting: AtomicBool,
    /// Since when there has been no room, in milliseconds; 0: there was the last time.
    full_since: AtomicU64,
}

fn milliseconds(time: Time) -> u64 {
    let since = time.since_epoch().as_millis();
    u64::try_from(since).unwrap_or(u64::MAX).max(1)
}

impl OutLane {
    /// Whether packets go by it.
    pub(super) fn is_open(&self) -> bool {
        self.ring.is_accepted() && !self.gone.load(Ordering::Relaxed)
    }

    /// Whether the process with this UDP port is the receiver.
    pub(super) fn leads_to(&self, path: &SendPath, to_port: u16) -> bool {
        self.ports[usize::from(path.remote.is_ipv6())] == to_port
    }

    /// Whether it may be used some day.
    fn may_open(&self) -> bool {
        (self.ring.is_accepted() || self.ring.is_offered()) && !self.gone.load(Ordering::Relaxed)
    }

    /// The receiver has taken nothing for too long.
    fn is_stuck(&self, now: Time) -> bool {
        let now = milliseconds(now);
        let since = self.full_since.load(Ordering::Relaxed);
        if since == 0 {
            self.full_since.store(now, Ordering::Relaxed);
            return false;
        }
        Duration::from_millis(now.saturating_sub(since)) >= STUCK
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Weak<dyn PacketSink>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_awaited(&self) -> bool {
        self.any_waiting.load(Ordering::SeqCst)
    }
}

impl Port {
    /// Sends packets to a process of this host by its lane. Nothing if there is none: over UDP then.
    pub(in super::super) fn send_by_lane(
        &self,
        packets: &impl Packets,
        path: &SendPath,
        to_port: u16,
    ) -> Option<Sent> {
        let sent = self.try_lane(packets, path, to_port);
        if sent.is_none() {
            path.lane.by_socket.store(true, Ordering::Relaxed);
        }
        sent
    }

    fn try_lane(&self, packets: &impl Packets, path: &SendPath, to_port: u16) -> Option<Sent> {
        if to_port == self.public_port || !self.lanes.allowed() {
            return None;
        }
        let mut known = path.lane.get();
        let v6 = path.remote.is_ipv6();
        let left = path.lane.left.load(Ordering::Relaxed);
        if known.is_none() && left == CALLS {
            // Another path may have one already.
            known = self.known_lane(path);
            path.lane.set(known.as_ref());
        }
        let Some(lane) = known else {
            let left = left.saturating_sub(1);
            path.lane.left.store(left, Ordering::Relaxed);
            if left == 0 {
                match self.lane_to(path) {
                    Wanted::Lane(lane) => path.lane.set(Some(&lane)),
                    Wanted::Later => path.lane.left.store(CALLS, Ordering::Relaxed),
                    Wanted::No => path.lane.left.store(AGAIN, Ordering::Relaxed),
                }
            }
            return None;
        };
        if !lane.is_open() || !lane.leads_to(path, to_port) {
            if !lane.may_open() || !lane.leads_to(path, to_port) {
                let after = if lane.ring.is_closed() { AGAIN } else { CALLS };
                path.lane.left.store(after, Ordering::Relaxed);
                path.lane.set(None);
            }
            return None;
        }
        if path.local.is_unspecified() {
            return None;
        }
        let sock = self.socks[if v6 { PRIVATE_V6 } else { PRIVATE_V4 }].get()?;
        let meta = Meta {
            family: if v6 { 6 } else { 4 },
            traffic_class: path.traffic_class,
            source_port: sock.port,
            interface: path.interface,
            local: octets_of(path.remote),
            remote: octets_of(path.local),
            ..Meta::default()
        };
        Some(self.put_packets(&lane, packets, &meta, path))
    }

    fn put_packets(
        &self,
        lane: &OutLane,
        packets: &impl Packets,
        meta: &Meta,
        path: &SendPath,
    ) -> Sent {
        let by_socket = &path.lane.by_socket;
        let counters = &self.counters;
        let mut took = 0;
        let sent = loop {
            if took == packets.count() {
                break Sent::Took(took);
            }
            if packets.len_of(took, 1) + Icrc::LEN > MAX_PACKET {
                // Longer than the largest path MTU: no network would take it.
                add(&counters.too_big, 1);
                took += 1;
                continue;
            }
            let together = packets.together(took);
            let flags = if by_socket.load(Ordering::Relaxed) {
                AFTER_SOCKETS
            } else {
                0
            };
            let meta = Meta { flags, ..*meta };
            // A packet fits a slot, so that as many as there are slots fit, too.
            let fits = |slots: u32| {
                let count = together.min(slots);
                (count, packets.len_of(took, count) + Icrc::LEN)
            };
            let put = lane.ring.put(meta, together, fits, |count, room| {
                if let Some((octets, icrc)) = room.split_last_chunk_mut::<{ Icrc::LEN }>() {
                    *icrc = [0; Icrc::LEN];
                    packets.write(took, count, octets)?;
                }
                Ok(())
            });
            if put != Put::Full && flags != 0 {
                by_socket.store(false, Ordering::Relaxed);
            }
            match put {
                Put::Done(count) => {
                    if lane.full_since.load(Ordering::Relaxed) != 0 {
                        lane.full_since.store(0, Ordering::Relaxed);
                    }
                    took += count as usize;
                }
                Put::Failed(fault) => break Sent::Gone { took, fault },
                Put::Full if !path.reliable && lane.is_stuck(self.engine.coarse_now()) => {
                    add(&counters.lane_lost, packets.count() - took);
                    took = packets.count();
                }
                Put::Full if took == 0 => break Sent::Blocked,
                Put::Full => break Sent::Took(took),
            }
        };
        match sent {
            Sent::Blocked => add(&counters.blocked, 1),
            Sent::Took(count) | Sent::Gone { took: count, .. } => {
                add(&counters.packets_out, count);
                add(&counters.lane_out, count);
            }
            Sent::Lost { .. } => {}
        }
        if lane.ring.must_wake() {
            lane.bell.ring();
        }
        sent
    }

    fn known_lane(&self, path: &SendPath) -> Option<Arc<OutLane>> {
        let outward = self.lanes.outward.read();
        let outward = outward.unwrap_or_else(PoisonError::into_inner);
        if outward.is_empty() {
            return None;
        }
        let owner = self.owner_of(slot_of(path.dest_qpn), self.engine.coarse_now())?;
        let lane = outward.get(&owner.home).filter(|lane| lane.is_open())?;
        Some(Arc::clone(lane))
    }

    /// The lane to the process at the end of a path, which is offered one if there is none.
    fn lane_to(&self, path: &SendPath) -> Wanted {
        let slot = slot_of(path.dest_qpn);
        let Some(owner) = self.owner_of(slot, self.engine.coarse_now()) else {
            return Wanted::Later;
        };
        let ports = [owner.port_v4, owner.port_v6];
        let opening = self.lanes.opening.lock();
        let mut opening = opening.unwrap_or_else(PoisonError::into_inner);
        let outward = || {
            let outward = self.lanes.outward.read();
            outward.unwrap_or_else(PoisonError::into_inner)
        };
        let known = outward().get(&owner.home).cloned();
        match known {
            Some(lane) if lane.ports == ports && lane.may_open() => return Wanted::Lane(lane),
            Some(lane) => {
                // The engine's thread removes it; this one holds a queue pair.
                lane.gone.store(true, Ordering::SeqCst);
                self.look_for_room_after(Duration::ZERO);
                return Wanted::Later;
            }
            None => {}
        }
        // One that did not want one does not want another one.
        if opening.get(&owner.home) == Some(&ports) || outward().len() >= MOST {
            return Wanted::No;
        }
        opening.remove(&owner.home);
        self.offer_lane(owner.home, ports)
            .map_or(Wanted::Later, Wanted::Lane)
    }

    fn offer_lane(&self, home: u16, ports: [u16; 2]) -> Option<Arc<OutLane>> {
        let (ring, file) = Ring::create().ok()?;
        let (bell, theirs) = Bell::pair().ok()?;
        let lane = Arc::new(OutLane {
            ring,
            bell,
            home,
            ports,
            token: OnceLock::new(),
            reach: Mutex::default(),
            gone: AtomicBool::new(false),
            waiting: Mutex::default(),
            any_waiting: AtomicBool::new(false),
            full_since: AtomicU64::new(0),
        });
        let &port = self.lanes.port.get()?;
        // Before anything else: its queue may be full for a moment.
        self.send_offer(home, file.as_fd(), theirs.as_fd()).ok()?;
        self.lanes.offers.fetch_add(1, Ordering::Relaxed);
        let source: Arc<dyn Source> = Arc::new(Served {
            port,
            lane: Arc::clone(&lane),
        });
        let token = self.engine.sources.add(source);
        let _ = lane.token.set(token);
        let outward = self.lanes.outward.write();
        outward
            .unwrap_or_else(PoisonError::into_inner)
            .insert(home, Arc::clone(&lane));
        // Without it the end of the receiver shows in the answers that do not come.
        let _ = self
            .engine
            .watch(Set::Data, token, lane.bell.fd(), EpollFlags::EPOLLIN);
        Some(lane)
    }

    /// The receiver has gone, or has another lane. Who waits for room in it goes on over UDP.
    fn remove_outward(&self, lane: &Arc<OutLane>) {
        lane.gone.store(true, Ordering::SeqCst);
        if lane.ring.is_closed() {
            let opening = self.lanes.opening.lock();
            let mut refused = opening.unwrap_or_else(PoisonError::into_inner);
            refused.insert(lane.home, lane.ports);
        }
        let outward = self.lanes.outward.write();
        let mut outward = outward.unwrap_or_else(PoisonError::into_inner);
        if outward
            .get(&lane.home)
            .is_some_and(|known| Arc::ptr_eq(known, lane))
        {
            outward.remove(&lane.home);
            drop(outward);
            self.engine.unwatch(Set::Data, lane.bell.fd());
            if let Some(&token) = lane.token.get() {
                self.engine.sources.remove(token);
            }
        } else {
            drop(outward);
        }
        self.tell_waiting(lane);
    }

    /// After [`Sent::Blocked`] on a path with a lane: `sink` is told when it may try again. False if
    /// that is not what it waits for.
    pub(in super::super) fn wait_for_lane(
        &self,
        path: &SendPath,
        sink: &Weak<dyn PacketSink>,
    ) -> bool {
        let Some(lane) = path.lane.get().filter(|lane| lane.is_open()) else {
            return false;
        };
        let mut waiting = lane.waiting();
        // Who says that it has gone tells those that wait behind this.
        if lane.gone.load(Ordering::SeqCst) {
            return false;
        }
        waiting.push(Weak::clone(sink));
        if !lane.any_waiting.swap(true, Ordering::SeqCst) {
            self.lanes.awaited.fetch_add(1, Ordering::SeqCst);
        }
        drop(waiting);
        // While application threads poll they look themselves; the engine's thread says so before it
        // sleeps.
        let room = !self.engine.is_backed_off() && !lane.ring.want_room();
        let after = if room { Duration::ZERO } else { STUCK };
        self.look_for_room_after(after);
        true
    }

    fn look_for_room_after(&self, after: Duration) {
        let Some(&token) = self.lanes.token.get() else {
            return;
        };
        if !self.lanes.timer.swap(true, Ordering::SeqCst) || after.is_zero() {
            let at = self.engine.now() + after;
            self.engine.set_timer(token, Some(at));
        }
    }

    /// Those who wait for room and may try again.
    pub(in super::super) fn offer_lanes(&self) {
        if self.lanes.awaited.load(Ordering::Relaxed) == 0 {
            return;
        }
        for lane in self.lanes.outward() {
            if lane.is_awaited() && lane.ring.has_room() {
                self.tell_waiting(&lane);
            }
        }
    }

    /// The engine's thread is about to sleep: from now on receivers tell it of room.
    pub(super) fn await_room(&self) {
        if self.lanes.awaited.load(Ordering::SeqCst) == 0 {
            return;
        }
        for lane in self.lanes.outward() {
            if lane.is_awaited() && !lane.ring.want_room() {
                self.tell_waiting(&lane);
            }
        }
    }

    /// Those who have waited for so long that their packets are lost, find out.
    pub(super) fn give_up_waiting(&self, now: Time) {
        self.lanes.timer.store(false, Ordering::SeqCst);
        for lane in self.lanes.outward() {
            if lane.gone.load(Ordering::SeqCst) {
                self.remove_outward(&lane);
            } else if lane.is_awaited() && (lane.ring.has_room() || lane.is_stuck(now)) {
                self.tell_waiting(&lane);
            }
        }
        if self.lanes.awaited.load(Ordering::SeqCst) > 0 {
            self.look_for_room_after(STUCK);
        }
    }

    fn tell_waiting(&self, lane: &OutLane) {
        let mut waiting = lane.waiting();
        if !lane.any_waiting.swap(false, Ordering::SeqCst) {
            return;
        }
        self.lanes.awaited.fetch_sub(1, Ordering::SeqCst);
        let told = std::mem::take(&mut *waiting);
        drop(waiting);
        for sink in told {
            if let Some(sink) = sink.upgrade() {
                sink.room();
            }
        }
    }
}

/// A lane as the engine sees it.
struct Served {
    port: &'static Port,
    lane: Arc<OutLane>,
}

impl Source for Served {
    fn ready(&self, engine: &Engine, _: EpollFlags) {
        let there = self.lane.bell.hush();
        engine.bell_heard();
        if !there {
            self.port.remove_outward(&self.lane);
        } else if self.lane.ring.has_room() {
            self.port.tell_waiting(&self.lane);
        }
    }

    fn timeout(&self, _: &Engine, _: Time) {}
}
