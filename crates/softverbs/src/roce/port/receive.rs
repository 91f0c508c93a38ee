//! Receiving: split what the kernel put together, check each packet, hand it to its queue pair or
//! to the process that has it.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, TryLockError};

use smallvec::SmallVec;
use softverbs_proto::roce::train;
use softverbs_proto::time::Time;
use softverbs_wire::ib::mad::MAD_LEN;
use softverbs_wire::ib::{Icrc, Ipv4Ident, Opcode, Packet};
use softverbs_wire::num::{Qkey, Qpn};

use super::border::{PacketMeta, PacketSink, ReceivedFrom};
use super::counters::add;
use super::lane::LaneRun;
use super::qpns::slot_of;
use super::relay::{Outgoing, Record};
use super::run::{Run, Together};
use super::send::Ends;
use super::socket::{INBOX, Sock};
use super::steer::dest_qpn;
use super::sys::Inbox;
use super::{PRIVATE_V4, PRIVATE_V6, PUBLIC_V4, Port, RELAY, held};
use crate::engine::{BULK, Engine};

/// Calls of one burst; the acknowledges go out after it.
const ROUNDS: usize = 3;
/// A poll asks for one datagram, since asking in vain for a second costs a part of a round trip;
/// after so many polls in a row that found one, it asks for many.
const HITS: u32 = 2;
/// Where no application waits.
const SOME: usize = 2;
/// A stream ([`BULK`] and more in a datagram, or in several that the kernel put together) is taken in small
/// portions, which are still in the core's cache when they are placed.
const BULK_PORTION: usize = 2;
/// It looks at those that are busy once in so many, a power of two, while lanes bring packets.
const SOCKETS_EVERY: u32 = 4;
/// An application thread looks at all sockets once in so many polls, a power of two.
const ALL_EVERY: u32 = 64;

/// Bursts that make up for what a socket holds, unless it is flooded with small packets.
const ALL_BURSTS: usize = 32;
/// The same when it is: each takes dozens of datagrams, and the smallest take most of a KiB.
const FLOOD_BURSTS: usize = 2048;

/// Where a packet came from and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) from: ReceivedFrom,
    pub(super) traffic_class: u8,
    /// The UDP port that it was sent to.
    pub(super) to_port: u16,
    /// The IPv4 identification to expect.
    pub(super) ident: u16,
    /// It has not been on any wire, and has no ICRC.
    pub(super) by_lane: bool,
}

/// What one burst of packets touches.
pub(super) struct Burst<'a> {
    port: &'a Port,
    now: Time,
    /// Packets for other processes are to be forwarded.
    public: bool,
    sinks: SmallVec<[(Qpn, Arc<dyn PacketSink>); 4]>,
    outgoing: Outgoing,
    packets: usize,
    /// They have passed the edge: nothing disturbs them any more.
    pub(super) passed_edge: bool,
    /// Requests may wait for their listener.
    pub(super) may_hold: bool,
}

impl Port {
    /// Receives what has come, on this thread, unless another one is at it. Returns the number of
    /// packets.
    pub(crate) fn poll(&self, engine: &Engine) -> usize {
        let polls = self.polls.fetch_add(1, Ordering::Relaxed);
        let all = polls.is_multiple_of(ALL_EVERY);
        let mut packets = 0;
        // The engine's thread leaves the sockets alone, however long it takes.
        engine.enter();
        self.offer_lanes();
        packets += self.receive_lanes(true);
        // What the sockets hold waits a moment when there is something already.
        let sockets = packets == 0 || polls.is_multiple_of(SOCKETS_EVERY);
        for which in 0..self.socks.len() {
            let Some(sock) = self.socks[which].get().filter(|_| sockets) else {
                continue;
            };
            if all || sock.is_busy() {
                let got = self.receive(which, true);
                sock.note_poll(engine, got);
                sock.offer_room(engine);
                packets += got;
            }
        }
        if all || self.relay.is_busy() {
            let got = self.receive_relayed();
            self.relay.note_poll(got);
            packets += got;
        }
        self.deliver_mads();
        engine.leave();
        packets
    }

    /// Receives everything that had come to any socket by `now`, and waits for other threads that
    /// are at it: what they hold may not have reached its queue pair yet.
    pub(crate) fn receive_all(&self, now: Time) {
        // Once is enough for all timers that fire together.
        let mut emptied = self.emptied.lock().unwrap_or_else(PoisonError::into_inner);
        if *emptied >= now {
            return;
        }
        let begin = self.engine.now();
        for (which, sock) in self.socks.iter().enumerate() {
            let Some(sock) = sock.get() else { continue };
            let mut inbox = sock.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            let mut left = ALL_BURSTS;
            while left > 0 && !self.burst(which, sock, &mut inbox, SOME).emptied {
                left -= 1;
            }
        }
        self.receive_all_relayed();
        self.receive_all_lanes();
        *emptied = begin;
        drop(emptied);
        self.deliver_all_mads();
    }

    /// Receives what had been sent to this process's own ports before a packet that came by a lane: all
    /// of it, or an unreliable service would lose it.
    pub(super) fn receive_sent_before(&self) {
        for which in [PRIVATE_V4, PRIVATE_V6] {
            let Some(sock) = self.socks[which].get() else {
                continue;
            };
            let mut inbox = sock.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            let mut left = FLOOD_BURSTS;
            while left > 0 && !self.burst(which, sock, &mut inbox, SOME).emptied {
                left -= 1;
            }
        }
    }

    /// Receives from one socket, unless another thread is at it. `polled` if an application thread
    /// will look again at once.
    pub(super) fn receive(&self, which: usize, polled: bool) -> usize {
        debug_assert_ne!(which, RELAY);
        let Some(sock) = self.socks.get(which).and_then(std::sync::OnceLock::get) else {
            return 0;
        };
        let mut inbox = match sock.inbox.try_lock() {
            Ok(inbox) => inbox,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        let most = match (polled, sock.hits()) {
            (true, HITS..) => INBOX,
            (true, _) => 1,
            (false, _) => SOME,
        };
        self.burst(which, sock, &mut inbox, most).packets
    }

    /// Does something as if another thread received at all sockets meanwhile.
    #[cfg(test)]
    pub(crate) fn while_receiving<R>(&self, work: impl FnOnce() -> R) -> R {
        let socks = self.socks.iter().filter_map(std::sync::OnceLock::get);
        let _inboxes: Vec<_> = socks.map(|sock| sock.inbox.lock()).collect();
        self.while_receiving_lanes(work)
    }

    /// One burst, which asks for `most` datagrams first.
    fn burst(
        &self,
        which: usize,
        sock: &Sock,
        inbox: &mut Option<Inbox<INBOX>>,
        mut most: usize,
    ) -> Brought {
        let inbox = inbox.get_or_insert_with(Inbox::new);
        let mut burst = Burst::new(self, which >= PUBLIC_V4);
        let mut found = None;
        let mut emptied = false;
        for _ in 0..ROUNDS {
            let got = match most {
                1 => inbox.receive::<1>(sock.fd()),
                SOME => inbox.receive::<SOME>(sock.fd()),
                _ => inbox.receive::<INBOX>(sock.fd()),
            };
            let got = match got {
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    emptied = true;
                    break;
                }
            };
            found.get_or_insert_with(|| got > usize::from(most == INBOX));
            burst.begin_round();
            let octets: usize = (0..got)
                .map(|index| burst.datagrams(sock, inbox, index))
                .sum();
            if got < most {
                emptied = true;
                break;
            }
            if octets >= got * BULK {
                most = BULK_PORTION;
                self.engine.bulk.store(true, Ordering::Relaxed);
            } else if most == 1 {
                // The next poll takes the next one.
                break;
            } else {
                most = INBOX;
            }
        }
        sock.note_hit(found.unwrap_or(false));
        let packets = burst.end();
        if packets > 0 {
            sock.note_traffic();
        }
        Brought { packets, emptied }
    }
}

impl Port {
    /// A packet, if its ICRC is right.
    pub(super) fn check<'p>(&self, arrival: &Arrival, octets: &'p [u8]) -> Option<Packet<'p>> {
        let counters = &self.counters;
        let Ok(packet) = Packet::parse(octets) else {
            add(&counters.malformed, 1);
            return None;
        };
        if arrival.by_lane {
            return Some(packet);
        }
        let ReceivedFrom {
            local,
            remote,
            source_port,
            ..
        } = arrival.from;
        let ends = Ends::new((remote, source_port), (local, arrival.to_port))?;
        let icrc = ends.icrc(arrival.ident, octets)?;
        if icrc.finish() == packet.trailer.icrc {
            return Some(packet);
        }
        // The identification of IPv4 cannot be seen; which one would explain the ICRC can.
        if local.is_ipv4() && explained(icrc, arrival.ident, packet.trailer.icrc, octets.len()) {
            add(&counters.idents_guessed, 1);
            return Some(packet);
        }
        add(&counters.bad_icrc, 1);
        None
    }
}

/// What one burst brought.
struct Brought {
    packets: usize,
    /// There was no more.
    emptied: bool,
}

impl<'a> Burst<'a> {
    pub(super) fn new(port: &'a Port, public: bool) -> Self {
        Self {
            port,
            now: Time::ZERO,
            public,
            sinks: SmallVec::new(),
            outgoing: Outgoing::default(),
            packets: 0,
            passed_edge: false,
            may_hold: true,
        }
    }

    pub(super) const fn port(&self) -> &'a Port {
        self.port
    }

    /// Packets have come: this is the moment. Exact, since round trips are measured by it.
    pub(super) fn begin_round(&mut self) {
        self.now = self.port.engine.now();
    }

    /// Everybody has their packets: acknowledges may go out. Returns how many there were.
    pub(super) fn end(self) -> usize {
        for (_, sink) in &self.sinks {
            sink.burst_end();
        }
        self.outgoing.flush(self.port);
        self.packets
    }

    /// What one call of the kernel brought from one sender. How many octets it was.
    fn datagrams(&mut self, sock: &Sock, inbox: &Inbox<INBOX>, index: usize) -> usize {
        let counters = &self.port.counters;
        let Some((received, octets)) = inbox.get(index) else {
            add(&counters.malformed, 1);
            return 0;
        };
        if octets.is_empty() || received.truncated {
            add(&counters.malformed, 1);
            return octets.len();
        }
        let mut arrival = Arrival {
            from: ReceivedFrom {
                local: received.to,
                remote: received.from.ip(),
                source_port: received.from.port(),
                interface: received.interface,
            },
            traffic_class: received.traffic_class,
            to_port: sock.port,
            ident: 0,
            by_lane: false,
        };
        if octets.len() > received.segment {
            let packets = octets.len().div_ceil(received.segment);
            add(&counters.coalesced_in, packets);
        }
        let mut rest = octets;
        while !rest.is_empty() {
            let (together, packets) = self.together(&arrival, rest, received.segment);
            if packets > 1 {
                self.run(&arrival, &rest[..together], received.segment, packets);
            } else {
                self.packet(&arrival, &rest[..together]);
            }
            rest = &rest[together..];
            let ident = u16::try_from(packets).unwrap_or(0);
            arrival.ident = arrival.ident.wrapping_add(ident);
        }
        octets.len()
    }

    /// Octets and packets at the front of a datagram that are for the same queue pair of this process
    /// and can be handed to it together; otherwise the first packet.
    fn together(&self, arrival: &Arrival, octets: &[u8], segment: usize) -> (usize, usize) {
        let mut packets = octets.chunks(segment);
        let first = packets.next().unwrap_or_default();
        let to = dest_qpn(first).filter(|qpn| {
            *qpn != Qpn::GSI
                && self.port.own_slots.has(slot_of(*qpn))
                && !arrival.from.local.is_multicast()
                && !self.is_disturbed()
        });
        let more = packets.take_while(|packet| to.is_some() && dest_qpn(packet) == to);
        more.fold((first.len(), 1), |(len, count), packet| {
            (len + packet.len(), count + 1)
        })
    }

    /// Packets for one queue pair of this process.
    fn run(&mut self, arrival: &Arrival, octets: &[u8], segment: usize, packets: usize) {
        self.packets += packets;
        add(&self.port.counters.packets_in, packets);
        let packets = Together::Datagrams { octets, segment };
        self.run_to(dest_qpn(octets), arrival, packets);
    }

    fn run_to(&mut self, to: Option<Qpn>, arrival: &Arrival, packets: Together<'_>) {
        let mut run = Run {
            port: self.port,
            arrival: *arrival,
            packets,
        };
        let now = self.now;
        match to.and_then(|qpn| self.sink_of(qpn)) {
            Some(sink) => sink.packets(now, &mut run, &arrival.from),
            None => {
                let orphans = std::iter::from_fn(|| run.next()).count();
                add(&self.port.counters.no_queue_pair, orphans);
            }
        }
    }

    /// Packets of a lane for one queue pair. How many octets it was.
    pub(super) fn by_lane(&mut self, arrival: &Arrival, mut run: LaneRun<'_>) -> usize {
        let (count, octets) = run.size();
        let Some(first) = run.first() else { return 0 };
        let to = dest_qpn(first);
        let ours = to.is_some_and(|qpn| self.port.own_slots.has(slot_of(qpn)));
        if ours && to != Some(Qpn::GSI) && !self.is_disturbed() {
            self.packets += count;
            add(&self.port.counters.packets_in, count);
            self.run_to(to, arrival, Together::Lane(run));
            return octets;
        }
        while let Some((octets, count)) = run.next() {
            if octets.is_empty() {
            } else if count == 1 {
                self.by_lane_alone(arrival, octets);
            } else {
                self.take_apart(arrival, octets, count);
            }
        }
        octets
    }

    /// A train that nobody takes as one.
    pub(super) fn take_apart(&mut self, arrival: &Arrival, octets: &[u8], count: usize) {
        let packets = Packet::parse(octets).ok().and_then(|whole| {
            let count = u32::try_from(count)
                .ok()
                .filter(|count| *count <= train::MOST)?;
            let mtu = train::mtu_of(whole.payload.len(), count)?;
            Some((whole, count, mtu))
        });
        let Some((whole, count, mtu)) = packets else {
            add(&self.port.counters.malformed, 1);
            return;
        };
        for index in 0..count {
            let mut packet = Vec::new();
            train::packet(&whole, count, index, mtu).append_to(&mut packet);
            self.by_lane_alone(arrival, &packet);
        }
    }

    /// A packet of a lane that is not handed on with others.
    fn by_lane_alone(&mut self, arrival: &Arrival, octets: &[u8]) {
        if !self.is_disturbed() {
            return self.packet(arrival, octets);
        }
        // As it would have come by a wire.
        let from = arrival.from;
        let ends = Ends::new(
            (from.remote, from.source_port),
            (from.local, arrival.to_port),
        );
        let mut sealed = octets.to_vec();
        if let Some(ends) = ends {
            ends.seal(0, &mut sealed);
        }
        let by_lane = false;
        self.packet(
            &Arrival {
                by_lane,
                ..*arrival
            },
            &sealed,
        );
    }

    /// One packet.
    pub(super) fn packet(&mut self, arrival: &Arrival, octets: &[u8]) {
        self.packets += 1;
        let counters = &self.port.counters;
        add(&counters.packets_in, 1);
        self.sort(arrival, octets);
    }

    /// Hands a packet to whom it is for.
    pub(super) fn sort(&mut self, arrival: &Arrival, octets: &[u8]) {
        let counters = &self.port.counters;
        let Some(qpn) = dest_qpn(octets) else {
            add(&counters.malformed, 1);
            return;
        };
        if arrival.from.local.is_multicast() {
            self.for_group(arrival, octets);
        } else if qpn == Qpn::GSI {
            self.for_gsi(arrival, octets);
        } else if self.port.own_slots.has(slot_of(qpn)) {
            if self.is_disturbed() {
                self.disturb(arrival, octets);
            } else if let Some(packet) = self.check(arrival, octets) {
                self.deliver(qpn, &packet, arrival, octets.len());
            }
        } else if !self.forward(slot_of(qpn), arrival, octets) {
            add(&counters.not_ours, 1);
        }
    }

    /// A packet with the right ICRC.
    fn check<'p>(&self, arrival: &Arrival, octets: &'p [u8]) -> Option<Packet<'p>> {
        self.port.check(arrival, octets)
    }

    fn deliver(&mut self, qpn: Qpn, packet: &Packet<'_>, arrival: &Arrival, len: usize) {
        let now = self.now;
        match self.sink_of(qpn) {
            Some(sink) => {
                let meta = PacketMeta {
                    len,
                    packets: 1,
                    traffic_class: arrival.traffic_class,
                };
                sink.packet(now, packet, &meta, &arrival.from);
            }
            None => add(&self.port.counters.no_queue_pair, 1),
        }
    }

    /// Who takes the packets for a queue pair of this process.
    fn sink_of(&mut self, qpn: Qpn) -> Option<&Arc<dyn PacketSink>> {
        // The last one first: packets come in runs.
        let known = self.sinks.iter().rposition(|(of, _)| *of == qpn);
        if known.is_none() {
            self.sinks.push((qpn, self.port.sink(qpn)?));
        }
        let (_, sink) = match known {
            Some(index) => self.sinks.get(index)?,
            None => self.sinks.last()?,
        };
        Some(sink)
    }

    fn for_group(&mut self, arrival: &Arrival, octets: &[u8]) {
        let group = arrival.from.local;
        if self.public && !self.passed_edge {
            for slot in self.port.others_in_group(group, self.now) {
                self.forward(slot, arrival, octets);
            }
        }
        let members = self.port.members(group);
        if members.is_empty() {
            return;
        }
        if self.is_disturbed() {
            self.disturb(arrival, octets);
        } else if let Some(packet) = self.check(arrival, octets) {
            for qpn in members {
                self.deliver(qpn, &packet, arrival, octets.len());
            }
        }
    }

    fn for_gsi(&mut self, arrival: &Arrival, octets: &[u8]) {
        let Some(packet) = self.check(arrival, octets) else {
            return;
        };
        let headers = &packet.headers;
        let mad: Option<&[u8; MAD_LEN]> = packet
            .payload
            .try_into()
            .ok()
            .filter(|_| headers.bth.opcode == Opcode::UD_SEND_ONLY)
            .filter(|_| headers.deth.is_some_and(|deth| deth.qkey == Qkey::GSI));
        let Some(mad) = mad else {
            add(&self.port.counters.malformed, 1);
            return;
        };
        if !self.passed_edge {
            let slot = self.port.steer(mad, arrival.from.local);
            let others = slot.filter(|slot| !self.port.own_slots.has(*slot));
            if let Some(slot) = others
                && self.port.owner_now(slot, self.now).is_some()
                && self.forward(slot, arrival, octets)
            {
                return;
            }
            if (slot.is_none() || others.is_some())
                && self.may_hold
                && let Some(service) = held::service_of(mad)
                && self.port.hold(service, slot.is_some(), arrival, octets)
            {
                return;
            }
        }
        // What is nobody's is answered here.
        if self.is_disturbed() {
            self.disturb(arrival, octets);
            return;
        }
        self.port.take_mad(self.now, &arrival.from, mad);
    }

    /// Hands a packet to the process that has a slot. Whether there is one.
    fn forward(&mut self, slot: u16, arrival: &Arrival, octets: &[u8]) -> bool {
        if !self.public {
            return false;
        }
        let Some(owner) = self.port.owner_of(slot, self.now) else {
            return false;
        };
        let record = Record {
            arrival: *arrival,
            octets,
        };
        self.outgoing.push(self.port, owner.home, &record);
        true
    }
}

/// Whether an IPv4 identification other than the expected one explains an ICRC.
fn explained(icrc: Icrc, expected: u16, received: [u8; Icrc::LEN], len: usize) -> bool {
    icrc.explain(Ipv4Ident::new(expected), received, len)
        .is_some()
}
