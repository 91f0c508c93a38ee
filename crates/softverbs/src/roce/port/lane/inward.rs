//! Receiving from a lane.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};

use nix::sys::epoll::EpollFlags;
use softverbs_proto::time::Time;
use softverbs_wire::num::Qpn;

use super::super::Port;
use super::super::border::{ReceivedFrom, address_of};
use super::super::counters::add;
use super::super::receive::{Arrival, Burst};
use super::super::steer::dest_qpn;
use super::MOST;
use super::direct::Grantor;
use super::ring::{AFTER_SOCKETS, Meta, Ring, Taken};
use crate::engine::sources::{Source, Token};
use crate::engine::{BULK, Engine, Set};
use crate::same_host::bell::Bell;
use crate::same_host::grants::{Granting, forget};

/// Slots whose packets are handed on under one lock of their queue pair.
const TOGETHER: u64 = 32;
/// Times that many, before others get their turn and acknowledges go out.
const ROUNDS: usize = 4;
/// Times that, for what was in the ring at one moment.
const ALL_BURSTS: usize = 32;

/// A lane from another process.
#[derive(Debug)]
pub(super) struct InLane {
    pub(super) ring: Ring,
    pub(super) bell: Bell,
    /// Random: by it the sender knows that this is the right process.
    pub(super) proof: u64,
    /// The sender's process, where the kernel tells.
    pub(super) sender: Option<OwnedFd>,
    token: OnceLock<Token>,
    /// The next place, for the thread that receives.
    inbox: Mutex<u64>,
    /// The same, for others.
    place: AtomicU64,
    /// An application thread has looked.
    polled: AtomicBool,
}

impl InLane {
    fn is_ready(&self) -> bool {
        self.ring.is_ready(self.place.load(Ordering::SeqCst))
    }
}

impl Meta {
    fn arrival(&self, to_port: u16) -> Arrival {
        Arrival {
            from: ReceivedFrom {
                local: address_of(self.family, self.local),
                remote: address_of(self.family, self.remote),
                source_port: self.source_port,
                interface: self.interface,
            },
            traffic_class: self.traffic_class,
            to_port,
            ident: 0,
            by_lane: true,
        }
    }

    /// Whether another packet comes from the same place.
    fn is_like(&self, other: &Self) -> bool {
        (self.family, self.traffic_class, self.source_port)
            == (other.family, other.traffic_class, other.source_port)
            && (self.interface, self.flags) == (other.interface, other.flags)
            && self.local == other.local
            && self.remote == other.remote
    }
}

/// Packets of a lane for one queue pair: some of those that were taken.
#[derive(Debug)]
pub(in super::super) struct LaneRun<'a> {
    lane: &'a Arc<InLane>,
    taken: &'a Taken<'a>,
    next: usize,
    end: usize,
}

impl<'a> LaneRun<'a> {
    /// Packets and octets that are left.
    pub(in super::super) fn size(&self) -> (usize, usize) {
        let packets = (self.next..self.end).filter_map(|index| self.taken.get(index));
        packets.fold((0, 0), |(count, octets), (meta, packet)| {
            (count + meta.packets(), octets + packet.len())
        })
    }

    pub(in super::super) const fn grantor(&self) -> Grantor<'a> {
        Grantor(self.lane)
    }

    pub(in super::super) fn first(&self) -> Option<&'a [u8]> {
        Some(self.taken.get(self.next)?.1)
    }

    /// The octets of the next packet or train, and how many packets it is.
    pub(in super::super) fn next(&mut self) -> Option<(&'a [u8], usize)> {
        if self.next >= self.end {
            return None;
        }
        let (meta, octets) = self.taken.get(self.next)?;
        self.next += 1;
        Some((octets, meta.packets()))
    }
}

impl Port {
    /// Another process offers a lane.
    pub(in super::super) fn accept_lane(&self, ring: OwnedFd, bell: OwnedFd) {
        let Ok(ring) = Ring::open(ring.as_fd()) else {
            return;
        };
        let (Some(&port), Ok(bell)) = (self.lanes.port.get(), Bell::new(bell)) else {
            return ring.close();
        };
        let inward = self.lanes.inward.write();
        let mut inward = inward.unwrap_or_else(PoisonError::into_inner);
        if !self.lanes.allowed() || inward.len() >= MOST {
            return ring.close();
        }
        let mut proof = [0; 8];
        if getrandom::fill(&mut proof).is_err() {
            return ring.close();
        }
        let lane = Arc::new(InLane {
            ring,
            sender: bell.process(),
            bell,
            proof: u64::from_ne_bytes(proof),
            token: OnceLock::new(),
            inbox: Mutex::new(0),
            place: AtomicU64::new(0),
            polled: AtomicBool::new(false),
        });
        let source: Arc<dyn Source> = Arc::new(Served {
            port,
            lane: Arc::clone(&lane),
        });
        let token = self.engine.sources.add(source);
        let _ = lane.token.set(token);
        let watched = self
            .engine
            .watch(Set::Data, token, lane.bell.fd(), EpollFlags::EPOLLIN);
        if watched.is_err() {
            self.engine.sources.remove(token);
            return lane.ring.close();
        }
        lane.introduce();
        // Nothing has come: the first packet wakes the engine's thread.
        lane.ring.sleep(|| 0);
        if let Some(sender) = &lane.sender {
            // Its end, though a child may keep its end of the bell.
            let _ = self
                .engine
                .watch(Set::Data, token, sender.as_fd(), EpollFlags::EPOLLIN);
        }
        inward.push(Arc::clone(&lane));
        self.lanes
            .inward_count
            .store(inward.len(), Ordering::SeqCst);
        // Before the first packet comes, so that datagrams stay behind it.
        lane.ring.accept();
    }

    /// Whether packets may come by a lane.
    pub(in super::super) fn has_lanes(&self) -> bool {
        self.lanes.inward_count.load(Ordering::Acquire) > 0
    }

    /// Receives what has come by all lanes, on this thread. `polled` if an application thread will look
    /// again at once. Returns the number of packets.
    pub(in super::super) fn receive_lanes(&self, polled: bool) -> usize {
        if !self.has_lanes() {
            return 0;
        }
        // Another one comes or goes: whoever changes it looks.
        let Ok(lanes) = self.lanes.inward.try_read() else {
            return 0;
        };
        let mut packets = 0;
        for lane in &*lanes {
            if polled {
                lane.polled.store(true, Ordering::Relaxed);
            }
            if lane.is_ready() {
                packets += self.receive_lane(lane);
            }
        }
        packets
    }

    /// Receives what no application thread has looked at since the last call. Whether there was any.
    pub(super) fn receive_neglected_lanes(&self) -> bool {
        if !self.has_lanes() {
            return false;
        }
        let Ok(lanes) = self.lanes.inward.try_read() else {
            return false;
        };
        let mut any = false;
        for lane in &*lanes {
            let polled = lane.polled.swap(false, Ordering::Relaxed);
            if !polled && lane.is_ready() {
                any |= self.receive_lane(lane) > 0;
            }
        }
        any
    }

    /// Receives everything that has come, when other threads are done with it.
    pub(in super::super) fn receive_all_lanes(&self) {
        let lanes = self.lanes.inward.read();
        let lanes = lanes.unwrap_or_else(PoisonError::into_inner);
        for lane in &*lanes {
            self.receive_all_of(lane);
        }
    }

    fn receive_all_of(&self, lane: &Arc<InLane>) {
        for _ in 0..ALL_BURSTS {
            // Who is at it has written down where he is.
            drop(lane.inbox.lock());
            if !lane.is_ready() {
                return;
            }
            self.receive_lane(lane);
        }
    }

    /// Does something as if another thread received from all lanes meanwhile.
    #[cfg(test)]
    pub(in super::super) fn while_receiving_lanes<R>(&self, work: impl FnOnce() -> R) -> R {
        let lanes = self.lanes.inward.read().unwrap();
        let _inboxes: Vec<_> = lanes.iter().map(|lane| lane.inbox.lock()).collect();
        work()
    }

    /// The engine's thread is about to sleep: from now on senders wake it. Whether it may; otherwise
    /// there are packets.
    pub(super) fn await_packets(&self) -> bool {
        if !self.has_lanes() {
            return true;
        }
        let lanes = self.lanes.inward.read();
        let lanes = lanes.unwrap_or_else(PoisonError::into_inner);
        let mut quiet = true;
        for lane in &*lanes {
            quiet &= lane.ring.sleep(|| lane.place.load(Ordering::SeqCst));
        }
        quiet
    }

    /// Receives from a lane, unless another thread is at it.
    fn receive_lane(&self, lane: &Arc<InLane>) -> usize {
        let mut place = match lane.inbox.try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        let mut burst = Burst::new(self, false);
        let (mut packets, mut octets) = (0, 0);
        for _ in 0..ROUNDS {
            let taken = lane.ring.take(&mut place, TOGETHER);
            let slots = taken.slots();
            if slots == 0 {
                break;
            }
            burst.begin_round();
            octets += self.hand_on(&mut burst, lane, &taken);
            packets += taken.packets();
            drop(taken);
            if slots < TOGETHER {
                break;
            }
        }
        if packets == 0 {
            return 0;
        }
        add(&self.counters.lane_in, packets);
        lane.place.store(*place, Ordering::SeqCst);
        if lane.ring.must_offer_room() {
            lane.bell.ring();
        }
        burst.end();
        let next = *place;
        drop(place);
        if octets >= BULK {
            self.engine.bulk.store(true, Ordering::Relaxed);
        }
        // The engine's thread may have looked while this one was at it, and gone to sleep.
        fence(Ordering::SeqCst);
        if !self.engine.is_backed_off() && lane.ring.is_ready(next) {
            self.engine.wake();
        }
        packets
    }

    /// Hands on packets that were taken. How many octets it was.
    fn hand_on(&self, burst: &mut Burst<'_>, lane: &Arc<InLane>, taken: &Taken<'_>) -> usize {
        let mut octets = 0;
        let mut index = 0_usize;
        while let Some((meta, packet)) = taken.get(index) {
            if meta.flags & AFTER_SOCKETS != 0 {
                self.receive_sent_before();
            }
            let to = dest_qpn(packet);
            let mut end = index + 1;
            if to.is_some_and(|qpn| qpn != Qpn::GSI) {
                while let Some((other, more)) = taken.get(end)
                    && other.is_like(meta)
                    && dest_qpn(more) == to
                {
                    end += 1;
                }
            }
            let arrival = meta.arrival(self.private_port(meta.family == 6));
            let run = LaneRun {
                lane,
                taken,
                next: index,
                end,
            };
            octets += burst.by_lane(&arrival, run);
            index = end;
        }
        octets
    }

    /// The sender has gone. What it had sent is received.
    fn remove_inward(&self, lane: &Arc<InLane>) {
        self.receive_all_of(lane);
        let inward = self.lanes.inward.write();
        let mut inward = inward.unwrap_or_else(PoisonError::into_inner);
        let before = inward.len();
        inward.retain(|known| !Arc::ptr_eq(known, lane));
        self.lanes
            .inward_count
            .store(inward.len(), Ordering::Release);
        let was_there = inward.len() < before;
        drop(inward);
        // No packet of it is being handed on any more, which could earn it a grant.
        let granting: Arc<dyn Granting> = Arc::clone(lane) as _;
        forget(&granting);
        if was_there {
            self.engine.unwatch(Set::Data, lane.bell.fd());
            if let Some(sender) = &lane.sender {
                self.engine.unwatch(Set::Data, sender.as_fd());
            }
            if let Some(&token) = lane.token.get() {
                self.engine.sources.remove(token);
            }
        }
    }
}

/// A lane as the engine sees it.
struct Served {
    port: &'static Port,
    lane: Arc<InLane>,
}

impl Source for Served {
    fn ready(&self, engine: &Engine, _: EpollFlags) {
        let there = self.lane.bell.hush();
        engine.bell_heard();
        if there && !self.lane.sender_has_gone() {
            self.port.receive_lane(&self.lane);
        } else {
            self.port.remove_inward(&self.lane);
        }
        self.port.deliver_mads();
    }

    fn timeout(&self, _: &Engine, _: Time) {}

    fn neglected(&self) -> bool {
        let lane = &self.lane;
        !lane.bell.hush()
            || lane.sender_has_gone()
            || lane.is_ready() && !lane.polled.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use softverbs_wire::ib::Packet;

    use super::super::super::tests::{self, Octets};
    use super::super::ring::{MAX_PACKET, SLOTS};
    use super::*;
    use crate::roce::port::{PacketMeta, PacketSink, SendPath};

    /// Octets as they come from a generator of pseudo-random numbers.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn fill(&mut self, octets: &mut [u8]) {
            for chunk in octets.chunks_mut(8) {
                let word = self.next().to_ne_bytes();
                chunk.copy_from_slice(&word[..chunk.len()]);
            }
        }

        fn meta(&mut self) -> Meta {
            let mut octets = [0; 44];
            self.fill(&mut octets);
            let [len, flags, source_port] =
                [0, 2, 4].map(|at| u16::from_ne_bytes([octets[at], octets[at + 1]]));
            let (mut local, mut remote) = ([0; 16], [0; 16]);
            local.copy_from_slice(&octets[12..28]);
            remote.copy_from_slice(&octets[28..44]);
            let number = |at: usize| u16::from_ne_bytes([octets[at], octets[at + 1]]);
            Meta {
                len: match octets[6] % 4 {
                    0 => u32::from(len) << (octets[6] / 4 % 16),
                    _ => u32::from(len % 100),
                },
                packets: number(12) >> (number(14) % 16),
                slots: number(16) >> (number(18) % 16),
                family: octets[7] % 8,
                traffic_class: octets[8],
                source_port,
                flags,
                interface: 0,
                local,
                remote,
            }
        }
    }

    /// Takes whatever comes.
    struct Anything;

    impl PacketSink for Anything {
        fn packet(&self, _: Time, packet: &Packet<'_>, _: &PacketMeta, _: &ReceivedFrom) {
            let len = packet.payload.len() as u64;
            assert!(len <= SLOTS * (MAX_PACKET as u64 + 64), "the ring ends");
        }

        fn burst_end(&self) {}
    }

    /// Whoever offers a lane may be another version of this library, or none: what it puts in is checked
    /// as if it came from a network, and other lanes go on.
    #[test]
    fn what_is_no_packet_does_no_harm() {
        let (_folder, one, other) = tests::traffic::two_ports();
        let (qpn, got) = tests::queue_pair(other);
        let anything = Arc::new(Anything);
        let victim = other.alloc_qpn().unwrap();
        let sink: Weak<Anything> = Arc::downgrade(&anything);
        other.register(victim, sink);
        let (ring, file) = Ring::create().unwrap();
        let (bell, theirs) = Bell::pair().unwrap();
        other.accept_lane(file, theirs);
        assert!(ring.is_accepted());
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
        let mut packets = 0;
        for _ in 0..200 * SLOTS {
            let meta = noise.meta();
            let to_us = noise.next().is_multiple_of(2);
            packets += meta.packets() as u64;
            tests::wait_until("room", || {
                other.poll(other.engine);
                ring.put_anything(meta, |octets| {
                    noise.fill(octets);
                    // What may be a packet, and the queue pair that it names.
                    if let Some(bth) = octets.first_chunk_mut::<12>().filter(|_| to_us) {
                        bth[0] %= 0x18;
                        bth[1] &= 0x30;
                        bth[5..8].copy_from_slice(&victim.get().to_be_bytes()[1..]);
                    }
                })
            });
        }
        tests::wait_until("all of them", || {
            other.poll(other.engine);
            other.counters().lane_in == packets
        });
        let counters = other.counters();
        assert!(counters.malformed > 0 && counters.not_ours > 0);
        // The right one is there, and what it gets is what an honest peer sends.
        let path = SendPath::new(tests::V4, tests::V4, qpn);
        let packets = Octets(vec![tests::packet(qpn, 5, 8)]);
        tests::wait_until("packets of another lane", || {
            one.send_packets(&packets, &path);
            one.counters().lane_out > 0
        });
        tests::wait_until("packets", || got.count() > 0);
        assert!(got.numbers().iter().all(|number| *number == 5));
        // Not a word when it goes.
        drop(bell);
        tests::wait_until("the end of a lane", || other.lanes.counts().1 == 1);
    }

    /// An application thread that serves all sockets may hear the bell that was to wake the engine's thread.
    /// That one wishes for it again at once, and not when a timer of its own happens to wake it.
    #[test]
    fn who_sleeps_is_woken_though_another_one_has_heard_the_bell() {
        const ALONE: &str = "SOFTVERBS_TEST_ALONE";
        const ROUNDS: u32 = 30;
        if std::env::var_os(ALONE).is_none() {
            // In a process of its own: other tests wake the thread, too.
            let name = std::thread::current().name().unwrap().to_owned();
            let exe = std::env::current_exe().unwrap();
            let mut alone = std::process::Command::new(exe);
            let alone = alone.args(["--exact", &name]).env(ALONE, "1").output();
            let alone = alone.unwrap();
            assert!(alone.status.success(), "{alone:?}");
            return;
        }
        let (_folder, _one, other) = tests::traffic::two_ports();
        let (ring, file) = Ring::create().unwrap();
        let (_bell, theirs) = Bell::pair().unwrap();
        other.accept_lane(file, theirs);
        let lane = Arc::clone(&other.lanes.inward.read().unwrap()[0]);
        let port = other.lanes.port.get().unwrap();
        let served = Served { port, lane };
        let sleeps = || {
            let begin = std::time::Instant::now();
            tests::wait_until("a sleep", || ring.is_asleep());
            begin.elapsed()
        };
        let [mut heard, mut woken] = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            sleeps();
            // As a sender does, whose bell is heard by this thread.
            assert!(ring.must_wake());
            served.ready(other.engine, EpollFlags::EPOLLIN);
            heard.push(sleeps());
            assert!(ring.must_wake());
            other.engine.wake();
            woken.push(sleeps());
        }
        let [heard, woken] = [&mut heard, &mut woken].map(|times| {
            times.sort_unstable();
            times[times.len() / 2]
        });
        assert!(heard < 20 * woken, "{heard:?}, {woken:?}");
    }
}
