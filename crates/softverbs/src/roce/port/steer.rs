//! Which process of this host something is for.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use softverbs_proto::time::Time;
use softverbs_wire::ib::cm::{Mad, Message};
use softverbs_wire::ib::mad::MAD_LEN;
use softverbs_wire::num::{Qpn, ServiceId};

use super::border::SendPath;
use super::folder::SlotOwner;
use super::qpns::slot_of;
use super::{COMM_ID_BITS, Port};

/// So long it is believed who has a slot or an address.
const BELIEVED: Duration = Duration::from_secs(1);
/// The same where it matters: all datagrams of one moment.
const NOW: Duration = Duration::from_millis(1);
/// So long it is believed that nobody has a slot: somebody may just have taken it.
const ABSENCE_BELIEVED: Duration = Duration::from_millis(20);
/// So long it is believed who is in a multicast group.
const GROUP_BELIEVED: Duration = Duration::from_millis(100);

/// What was found out and may have changed.
#[derive(Debug, Default)]
pub(super) struct Findings {
    owners: Mutex<HashMap<u16, (Time, Option<SlotOwner>)>>,
    groups: Mutex<HashMap<IpAddr, (Time, Vec<u16>)>>,
    addresses: Mutex<(Option<Time>, HashSet<IpAddr>)>,
}

fn fresh(found: Time, now: Time, believed: Duration) -> bool {
    now.saturating_since(found) < believed
}

impl Port {
    /// Whether an address is one of this host's.
    pub(crate) fn is_local(&self, address: IpAddr, now: Time) -> bool {
        if address.is_loopback() {
            return true;
        }
        let mut addresses = self
            .findings
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !addresses.0.is_some_and(|found| fresh(found, now, BELIEVED)) {
            *addresses = (Some(now), local_addresses());
        }
        addresses.1.contains(&address)
    }

    /// Who has a slot, if it is not this process's own.
    pub(super) fn owner_of(&self, slot: u16, now: Time) -> Option<SlotOwner> {
        self.owner_within(slot, now, BELIEVED)
    }

    /// The same, as it is at this moment: a datagram that goes to one who has just died is repeated
    /// after seconds only.
    pub(super) fn owner_now(&self, slot: u16, now: Time) -> Option<SlotOwner> {
        self.owner_within(slot, now, NOW)
    }

    fn owner_within(&self, slot: u16, now: Time, believed: Duration) -> Option<SlotOwner> {
        if self.own_slots.has(slot) {
            return Some(self.owner);
        }
        let lock = || {
            let owners = self.findings.owners.lock();
            owners.unwrap_or_else(PoisonError::into_inner)
        };
        match lock().get(&slot) {
            Some(&(found, Some(owner))) if fresh(found, now, believed) => return Some(owner),
            Some(&(found, None)) if fresh(found, now, ABSENCE_BELIEVED.min(believed)) => {
                return None;
            }
            _ => {}
        }
        let owner = self.folder.slot_owner(slot);
        let mut owners = lock();
        // Another thread may have looked later.
        let (found, known) = owners.entry(slot).or_insert((now, owner));
        if *found <= now {
            (*found, *known) = (now, owner);
        }
        owner
    }

    /// The home slots of the other processes in a multicast group.
    pub(super) fn others_in_group(&self, group: IpAddr, now: Time) -> Vec<u16> {
        let mut groups = self
            .findings
            .groups
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((found, slots)) = groups.get(&group)
            && fresh(*found, now, GROUP_BELIEVED)
        {
            return slots.clone();
        }
        let mut slots = self.folder.group_slots(group);
        slots.retain(|slot| !self.own_slots.has(*slot));
        groups.insert(group, (now, slots.clone()));
        slots
    }

    /// The UDP port for packets of a path: that of a process of this host, or the port of all
    /// others.
    pub(super) fn route(&self, path: &SendPath) -> u16 {
        // Milliseconds above, the port below.
        let now = self.engine.coarse_now();
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let known = path.route.load(Ordering::Relaxed);
        if known >> 16 > milliseconds(now.since_epoch()) {
            return u16::try_from(known & 0xffff).unwrap_or(self.public_port);
        }
        let port = self
            .local_route(path.remote, slot_of(path.dest_qpn), now)
            .unwrap_or(self.public_port);
        let until = milliseconds(now.since_epoch() + BELIEVED);
        path.route
            .store(until << 16 | u64::from(port), Ordering::Relaxed);
        port
    }

    fn local_route(&self, remote: IpAddr, slot: u16, now: Time) -> Option<u16> {
        if slot == 0 || remote.is_multicast() || !self.is_local(remote, now) {
            return None;
        }
        let owner = self.owner_of(slot, now)?;
        let port = if remote.is_ipv6() {
            owner.port_v6
        } else {
            owner.port_v4
        };
        (port != 0).then_some(port)
    }

    /// The UDP port for a management datagram.
    pub(super) fn route_mad(&self, remote: IpAddr, mad: &[u8; MAD_LEN]) -> u16 {
        let now = self.engine.coarse_now();
        if !self.is_local(remote, now) {
            return self.public_port;
        }
        let steered = self.steer(mad, remote).and_then(|slot| {
            self.owner_now(slot, now)?;
            self.local_route(remote, slot, now)
        });
        if let Some(port) = steered {
            return port;
        }
        // Nobody's: we say so ourselves. Who has the public port knows no more, and may be going.
        self.local_route(remote, self.home, now)
            .unwrap_or(self.public_port)
    }

    /// Which slot a management datagram to `destination` is for.
    pub(super) fn steer(&self, mad: &[u8; MAD_LEN], destination: IpAddr) -> Option<u16> {
        let mad = Mad::parse(mad).ok()?;
        match mad.message {
            Message::Req(request) => self.service_slot(request.service_id, destination),
            Message::SidrReq(request) => self.service_slot(request.service_id, destination),
            message => {
                let slot = message.remote_comm_id()?.get() >> COMM_ID_BITS;
                u16::try_from(slot).ok().filter(|slot| *slot != 0)
            }
        }
    }

    /// Which slot has a service at an address.
    pub(super) fn service_slot(&self, service: ServiceId, address: IpAddr) -> Option<u16> {
        places(address)
            .into_iter()
            .find_map(|address| self.folder.service_slot(service, address))
    }

    /// Whether somebody who had a service at an address may have it again soon.
    pub(super) fn may_return(&self, service: ServiceId, address: IpAddr) -> bool {
        places(address)
            .into_iter()
            .any(|address| self.folder.remembers_service(service, address))
    }
}

/// Where a service can be that takes requests to an address.
fn places(address: IpAddr) -> [IpAddr; 3] {
    let any = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // Who listens at any address of IPv6 takes IPv4 too.
    [address, any, Ipv6Addr::UNSPECIFIED.into()]
}

/// The addresses of all interfaces.
fn local_addresses() -> HashSet<IpAddr> {
    let Ok(interfaces) = getifaddrs() else {
        return HashSet::new();
    };
    interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            if let Some(v4) = address.as_sockaddr_in() {
                Some(IpAddr::V4(v4.ip()))
            } else {
                address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()))
            }
        })
        .collect()
}

/// The queue pair that a packet is for.
pub(super) fn dest_qpn(packet: &[u8]) -> Option<Qpn> {
    let [high, middle, low] = *packet.get(5..)?.first_chunk()?;
    Some(Qpn::new(u32::from_be_bytes([0, high, middle, low])))
}
