//! The ports of the RDMA CM over InfiniBand's connection manager: numbers that have nothing to do
//! with those of TCP and UDP.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use softverbs_wire::ib::rdma_cm::{PortSpace as WireSpace, ServicePort};

use crate::cm::PortSpace;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::roce::port::Port;

/// What the kernel uses unless it is told otherwise (`net.ipv4.ip_local_port_range`).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

static TAKEN: Mutex<Option<HashMap<ServicePort, Vec<Place>>>> = Mutex::new(None);

/// An address and whether a wildcard of IPv6 leaves IPv4 to others.
type Place = (IpAddr, bool);

/// A port that an identifier is bound to; it is free again when this is dropped.
#[derive(Debug)]
pub(in crate::cm) struct Bound {
    service: ServicePort,
    place: Place,
}

impl Bound {
    /// Takes the port of `address`, or a free one for port 0.
    pub(in crate::cm) fn take(space: PortSpace, address: SocketAddr, afonly: bool) -> Result<Self> {
        let place = (address.ip(), afonly);
        let port = Port::get(Engine::get()?)?;
        let take = |number: u16| {
            let service = ServicePort::new(wire_space(space), number);
            let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
            let holders = taken.get_or_insert_default().entry(service).or_default();
            let in_use = || Error::AddrInUse {
                address: SocketAddr::new(address.ip(), number),
            };
            if holders.iter().any(|other| overlap(*other, place)) {
                return Err(in_use());
            }
            for (nth, address) in claims(place).enumerate() {
                if let Err(error) = port.take_service(service.service_id(), address) {
                    for claimed in claims(place).take(nth) {
                        port.withdraw_service(service.service_id(), claimed);
                    }
                    return Err(error);
                }
            }
            holders.push(place);
            Ok(Self { service, place })
        };
        if address.port() != 0 {
            return take(address.port());
        }
        const TRIES: u32 = 1000;
        for _ in 0..TRIES {
            match take(ephemeral()?) {
                Err(Error::AddrInUse { .. }) => {}
                other => return other,
            }
        }
        Err(Error::AddrInUse { address })
    }

    pub(in crate::cm) fn service(&self) -> ServicePort {
        self.service
    }

    /// Somebody listens: connect requests come to this process.
    pub(super) fn offer(&self) -> Result<()> {
        let port = Port::get(Engine::get()?)?;
        claims(self.place)
            .try_for_each(|address| port.offer_service(self.service.service_id(), address))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = taken.as_mut()
            && let Some(holders) = taken.get_mut(&self.service)
        {
            if let Some(index) = holders.iter().position(|other| *other == self.place) {
                holders.swap_remove(index);
            }
            if holders.is_empty() {
                taken.remove(&self.service);
            }
        }
        if let Ok(port) = Engine::get().and_then(Port::get) {
            for address in claims(self.place) {
                port.withdraw_service(self.service.service_id(), address);
            }
        }
    }
}

/// A port for the active side, which nobody connects to.
pub(in crate::cm) fn ephemeral() -> Result<u16> {
    let random = random_u32()?;
    let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
    Ok(EPHEMERAL.start() + u16::try_from(random % count).unwrap_or(0))
}

pub(in crate::cm) fn random_u32() -> Result<u32> {
    getrandom::u32().map_err(|_| Error::os("getrandom", libc::EIO))
}

pub(super) fn wire_space(space: PortSpace) -> WireSpace {
    match space {
        PortSpace::Ipoib => WireSpace::IPOIB,
        PortSpace::Ib => WireSpace::IB,
        PortSpace::Tcp => WireSpace::TCP,
        PortSpace::Udp => WireSpace::UDP,
    }
}

/// What other processes may not have: a wildcard of IPv6 is usually one of IPv4, too.
fn claims((address, afonly): Place) -> impl Iterator<Item = IpAddr> {
    let both = address.is_ipv6() && address.is_unspecified() && !afonly;
    let v4 = both.then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    std::iter::once(address).chain(v4)
}

fn overlap(one: Place, other: Place) -> bool {
    let covers = |(wildcard, afonly): Place, address: IpAddr| {
        wildcard.is_unspecified() && wildcard.is_ipv4() == address.is_ipv4()
            || wildcard == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !afonly
    };
    one.0 == other.0 || covers(one, other.0) || covers(other, one.0)
}
