//! From the process that has UDP port 4791 to the others: packets with their addresses, many in
//! one datagram of a Unix socket, which only this user can reach.
//!
//! ```text
//!  0     2        3        4             6      8           12      28       44
//! | len | family | class | source port | ident | interface | local | remote | packet
//! ```
//!
//! A datagram that comes with two descriptors offers a lane: the ring's memory and a socket.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

use smallvec::SmallVec;
use softverbs_proto::time::Time;

use super::Port;
use super::border::{ReceivedFrom, address_of, octets_of};
use super::counters::add;
use super::receive::{Arrival, Burst};
use super::socket::make_room;
use crate::same_host::sys::{receive_descriptors, send_descriptors};

const HEADER: usize = 44;
/// The kernel's default takes twice that.
const MOST: usize = 96 << 10;
/// Datagrams of one burst.
const ROUNDS: usize = 8;
/// Bursts that make up for what its queue can hold.
const ALL_BURSTS: usize = 32;
/// After so many empty polls it is left to epoll.
const IDLE_POLLS: u32 = 64;

/// So long a process is waited for that has no room for its packets.
const PATIENCE: Duration = Duration::from_millis(1);
const NAP: Duration = Duration::from_micros(50);
/// So long it is not done again after it was in vain.
const IMPATIENCE: Duration = Duration::from_millis(100);

fn milliseconds(time: Time) -> u64 {
    u64::try_from(time.since_epoch().as_millis()).unwrap_or(u64::MAX)
}

/// A packet on its way to another process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) arrival: Arrival,
    pub(super) octets: &'a [u8],
}

impl Record<'_> {
    fn append_to(&self, out: &mut Vec<u8>) {
        let Arrival {
            from,
            traffic_class,
            ident,
            ..
        } = self.arrival;
        let len = u16::try_from(self.octets.len()).unwrap_or(0);
        out.extend_from_slice(&len.to_ne_bytes());
        out.push(if from.local.is_ipv6() { 6 } else { 4 });
        out.push(traffic_class);
        out.extend_from_slice(&from.source_port.to_ne_bytes());
        out.extend_from_slice(&ident.to_ne_bytes());
        out.extend_from_slice(&from.interface.to_ne_bytes());
        for address in [from.local, from.remote] {
            out.extend_from_slice(&octets_of(address));
        }
        out.extend_from_slice(&self.octets[..usize::from(len)]);
    }
}

/// The first record of a datagram, and what is behind it.
fn split(octets: &[u8], to_port: u16) -> Option<(Record<'_>, &[u8])> {
    let (header, rest) = octets.split_first_chunk::<HEADER>()?;
    let number = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let (packet, rest) = rest.split_at_checked(usize::from(number(0)))?;
    let address = |at: usize| -> Option<IpAddr> {
        let octets = header.get(at..at + 16)?.try_into().ok()?;
        Some(address_of(header[2], octets))
    };
    let arrival = Arrival {
        from: ReceivedFrom {
            local: address(12)?,
            remote: address(28)?,
            source_port: number(4),
            interface: u32::from_ne_bytes([header[8], header[9], header[10], header[11]]),
        },
        traffic_class: header[3],
        to_port,
        ident: number(6),
        by_lane: false,
    };
    let record = Record {
        arrival,
        octets: packet,
    };
    Some((record, rest))
}

/// Packets to other processes, by their home slots.
#[derive(Debug, Default)]
pub(super) struct Outgoing(SmallVec<[Parcel; 2]>);

#[derive(Debug)]
struct Parcel {
    home: u16,
    octets: Vec<u8>,
    packets: usize,
}

impl Outgoing {
    pub(super) fn push(&mut self, port: &Port, home: u16, record: &Record<'_>) {
        let known = self.0.iter().position(|parcel| parcel.home == home);
        let index = known.unwrap_or_else(|| {
            self.0.push(Parcel {
                home,
                octets: Vec::new(),
                packets: 0,
            });
            self.0.len() - 1
        });
        let parcel = &mut self.0[index];
        if parcel.octets.len() + HEADER + record.octets.len() > MOST {
            parcel.send(port);
        }
        record.append_to(&mut parcel.octets);
        parcel.packets += 1;
    }

    pub(super) fn flush(mut self, port: &Port) {
        for parcel in &mut self.0 {
            parcel.send(port);
        }
    }
}

impl Parcel {
    fn send(&mut self, port: &Port) {
        let path = port.folder.relay(self.home);
        let counters = &port.counters;
        let relay = &port.relay;
        let mut waited = Duration::ZERO;
        let sent = loop {
            match relay.socket.send_to(&self.octets, &path) {
                // Its queue is short: it has ten places on many systems.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if waited >= PATIENCE || relay.is_impatient(port.engine.coarse_now()) {
                        break false;
                    }
                    std::thread::sleep(NAP);
                    waited += NAP;
                }
                // Or it has just died.
                result => break result.is_ok(),
            }
        };
        if waited >= PATIENCE {
            relay.lose_patience(port.engine.coarse_now());
        }
        let counter = if sent {
            &counters.forwarded
        } else {
            &counters.forward_lost
        };
        add(counter, self.packets);
        self.octets.clear();
        self.packets = 0;
    }
}

/// Room for one datagram.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    octets: Vec<u8>,
    control: Vec<u8>,
}

/// Where a process takes forwarded packets, and forwards them from.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) socket: UnixDatagram,
    inbox: Mutex<Inbox>,
    idle: AtomicU32,
    /// Until then (milliseconds) nobody is waited for.
    impatient_until: AtomicU64,
}

impl Relay {
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        // One of a process that had the slot before.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => (),
        }
        let socket = UnixDatagram::bind(path)?;
        socket.set_nonblocking(true)?;
        make_room(socket.as_fd());
        Ok(Self {
            socket,
            inbox: Mutex::default(),
            idle: AtomicU32::new(IDLE_POLLS),
            impatient_until: AtomicU64::new(0),
        })
    }

    /// Whether an application thread that polls should look here itself.
    pub(super) fn is_busy(&self) -> bool {
        self.idle.load(Ordering::Relaxed) < IDLE_POLLS
    }

    #[cfg(test)]
    pub(super) fn lock_inbox(&self) -> std::sync::MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap()
    }

    /// A process did not take its packets in time: for a while, no others wait for it.
    fn lose_patience(&self, now: Time) {
        let until = milliseconds(now + IMPATIENCE);
        self.impatient_until.store(until, Ordering::Relaxed);
    }

    fn is_impatient(&self, now: Time) -> bool {
        milliseconds(now) < self.impatient_until.load(Ordering::Relaxed)
    }

    pub(super) fn note_poll(&self, got: usize) {
        if got == 0 {
            let idle = self.idle.load(Ordering::Relaxed).saturating_add(1);
            self.idle.store(idle, Ordering::Relaxed);
        }
    }
}

impl Port {
    /// Receives what another process has forwarded, unless another thread is at it.
    pub(super) fn receive_relayed(&self) -> usize {
        let mut inbox = match self.relay.inbox.try_lock() {
            Ok(inbox) => inbox,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        self.relayed_burst(&mut inbox)
    }

    /// Receives all that other processes have forwarded, when other threads are done with it.
    pub(super) fn receive_all_relayed(&self) {
        let inbox = self.relay.inbox.lock();
        let mut inbox = inbox.unwrap_or_else(PoisonError::into_inner);
        let mut left = ALL_BURSTS;
        while left > 0 && self.relayed_burst(&mut inbox) > 0 {
            left -= 1;
        }
    }

    /// Offers a lane to the process with this first slot.
    pub(super) fn send_offer(
        &self,
        home: u16,
        ring: BorrowedFd<'_>,
        bell: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let path = self.folder.relay(home);
        // Octets that are no record, for those who do not know lanes.
        let octets = self.home.to_ne_bytes();
        send_descriptors(
            self.relay.socket.as_fd(),
            Some(&path),
            &octets,
            &[ring, bell],
        )
    }

    fn relayed_burst(&self, inbox: &mut Inbox) -> usize {
        inbox.octets.resize(MOST, 0);
        let mut burst = Burst::new(self, false);
        for _ in 0..ROUNDS {
            let Inbox { octets, control } = inbox;
            let socket = self.relay.socket.as_fd();
            let Ok((len, with)) = receive_descriptors(socket, octets, control) else {
                break;
            };
            if let Ok([ring, bell]) = <[OwnedFd; 2]>::try_from(with) {
                self.accept_lane(ring, bell);
                continue;
            }
            burst.begin_round();
            let mut octets = &octets[..len];
            while let Some((record, rest)) = split(octets, self.public_port) {
                octets = rest;
                burst.packet(&record.arrival, record.octets);
            }
        }
        let packets = burst.end();
        if packets > 0 {
            add(&self.counters.forwarded_in, packets);
            self.relay.idle.store(0, Ordering::Relaxed);
        }
        packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record<'a>(local: &str, remote: &str, octets: &'a [u8]) -> Record<'a> {
        Record {
            arrival: Arrival {
                from: ReceivedFrom {
                    local: local.parse().unwrap(),
                    remote: remote.parse().unwrap(),
                    source_port: 0xc123,
                    interface: 7,
                },
                traffic_class: 0xa3,
                to_port: 4791,
                ident: 0x1234,
                by_lane: false,
            },
            octets,
        }
    }

    #[test]
    fn records_come_back() {
        let records = [
            record("10.0.0.1", "10.0.0.2", b"first"),
            record("fe80::1", "2001:db8::2", b""),
            record("224.1.2.3", "10.0.0.2", b"the third"),
        ];
        let mut octets = Vec::new();
        for record in &records {
            record.append_to(&mut octets);
        }
        let mut rest = octets.as_slice();
        for record in &records {
            let (got, behind) = split(rest, 4791).unwrap();
            assert_eq!(format!("{got:?}"), format!("{record:?}"));
            rest = behind;
        }
        assert!(rest.is_empty() && split(rest, 4791).is_none());
        for len in 0..HEADER + 5 {
            assert!(split(&octets[..len], 4791).is_none());
        }
    }
}
