//! Devices: two per IP interface of this machine, one for each transport, and what they say about
//! themselves.

mod attr;
mod choice;
mod identity;
mod sysfs;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use softverbs_wire::num::Gid;

pub(crate) use attr::limits;
pub use attr::{AtomicCap, DeviceAttr, DeviceCapFlags, IbMtu, LinkLayer, PortAttr, PortState};
pub use choice::{chosen_devices, devices_by, transport_of_environment};
pub use identity::Identity;

use crate::error::{Error, Result};

/// The protocol that a device speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// iWARP: RDMAP over DDP over MPA over TCP.
    Iwarp,
    /// RoCEv2: InfiniBand transport over UDP.
    Roce,
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 2] = [Self::Iwarp, Self::Roce];

    /// Its name on command lines and in the environment: `iwarp` or `roce`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iwarp",
            Self::Roce => "roce",
        }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Transport {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|transport| transport.name() == name)
            .ok_or_else(|| Error::invalid("transport", format!("{name:?} is not iwarp or roce")))
    }
}

/// The port that every device has; there are no others.
const PORT: u8 = 1;

/// An RDMA device: an IP interface that is up and has an address, and one of the two transports.
///
/// It describes the interface as it was when [`devices`] looked. Cloning makes another handle.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Interface>,
    transport: Transport,
}

#[derive(Debug, PartialEq, Eq)]
struct Interface {
    /// Of its devices, one for each transport.
    names: [String; 2],
    interface: String,
    index: u32,
    addresses: Vec<IpAddr>,
    mtu: u32,
    mac: Option<[u8; 6]>,
    loopback: bool,
    running: bool,
}

/// All devices: every IP interface that is up and has an address, once for each transport, in the
/// order of the interface indices, those for iWARP first. The loopback interface comes last in each
/// half, so that the first device, which programs take by default, reaches other machines if any
/// does.
pub fn devices() -> Result<Vec<Device>> {
    let entries = getifaddrs().map_err(Error::from_call("getifaddrs"))?;
    let mut interfaces = BTreeMap::<String, Interface>::new();
    for entry in entries {
        // An address with an old-style label ("eth0:1") belongs to the interface before the colon.
        let name = entry.interface_name.split(':').next().unwrap_or_default();
        if name.is_empty() || !entry.flags.contains(InterfaceFlags::IFF_UP) {
            continue;
        }
        let interface = interfaces
            .entry(name.to_owned())
            .or_insert_with(|| Interface::new(name.to_owned(), entry.flags));
        let Some(address) = entry.address else {
            continue;
        };
        if let Some(v4) = address.as_sockaddr_in() {
            interface.add(IpAddr::V4(v4.ip()));
        } else if let Some(v6) = address.as_sockaddr_in6() {
            interface.add(IpAddr::V6(v6.ip()));
        } else if let Some(link) = address.as_link_addr() {
            interface.index = u32::try_from(link.ifindex()).unwrap_or(0);
            interface.mac = link
                .addr()
                .filter(|mac| link.halen() == 6 && *mac != [0; 6]);
        }
    }
    let mut found: Vec<Interface> = interfaces
        .into_values()
        .filter(|interface| !interface.addresses.is_empty())
        .collect();
    for interface in &mut found {
        interface.complete();
    }
    found.sort_by_key(|interface| (interface.loopback, interface.index));
    let found: Vec<_> = found.into_iter().map(Arc::new).collect();
    Ok(Transport::ALL
        .into_iter()
        .flat_map(|transport| {
            found.iter().map(move |interface| Device {
                inner: interface.clone(),
                transport,
            })
        })
        .collect())
}

impl Interface {
    fn new(interface: String, flags: InterfaceFlags) -> Self {
        Self {
            names: [format!("iw_{interface}"), format!("roce_{interface}")],
            interface,
            index: 0,
            addresses: Vec::new(),
            mtu: 0,
            mac: None,
            loopback: flags.contains(InterfaceFlags::IFF_LOOPBACK),
            running: flags.contains(InterfaceFlags::IFF_RUNNING),
        }
    }

    fn add(&mut self, address: IpAddr) {
        if !self.addresses.contains(&address) {
            self.addresses.push(address);
        }
    }

    /// What takes a look at the whole interface.
    fn complete(&mut self) {
        if self.index == 0 {
            self.index = if_nametoindex(self.interface.as_str()).unwrap_or(0);
        }
        // Stable: the kernel's order (primary addresses first) stays within each group.
        self.addresses.sort_by_key(|address| match address {
            IpAddr::V4(_) => 0,
            IpAddr::V6(v6) if !v6.is_unicast_link_local() => 1,
            IpAddr::V6(_) => 2,
        });
        self.mtu = sysfs::mtu(&self.interface, self.index, self.mac).unwrap_or(if self.loopback {
            65_536
        } else {
            1500
        });
    }

    /// Whether this interface owns a (canonical) address.
    fn owns(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) if v4.is_loopback() => self.loopback,
            address => self.addresses.contains(&address),
        }
    }
}

impl Device {
    /// Its name: `iw_` or `roce_`, and the name of the interface.
    pub fn name(&self) -> &str {
        let [iwarp, roce] = &self.inner.names;
        match self.transport {
            Transport::Iwarp => iwarp,
            Transport::Roce => roce,
        }
    }

    /// Name of its interface.
    pub fn interface(&self) -> &str {
        &self.inner.interface
    }

    /// Index of its interface, which is also the scope of its link-local addresses.
    pub fn interface_index(&self) -> u32 {
        self.inner.index
    }

    /// The protocol that it speaks.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The device of the same interface for a transport.
    #[must_use]
    pub fn with_transport(&self, transport: Transport) -> Self {
        Self {
            inner: self.inner.clone(),
            transport,
        }
    }

    /// The addresses of its interface: IPv4, then IPv6, then link-local IPv6; at least one.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.inner.addresses
    }

    /// MTU of its interface.
    pub fn mtu(&self) -> u32 {
        self.inner.mtu
    }

    /// Whether it has this address.
    pub(crate) fn owns(&self, address: IpAddr) -> bool {
        self.inner.owns(address.to_canonical())
    }

    /// Whether this is the loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.inner.loopback
    }

    /// Whether its interface can carry traffic: it has a carrier, for one thing.
    pub fn is_running(&self) -> bool {
        self.inner.running
    }

    /// Whether both are handles of the same device.
    pub fn same_as(&self, other: &Self) -> bool {
        self.inner.index == other.inner.index && self.name() == other.name()
    }

    /// The device for iWARP that owns a local address. Every address of 127.0.0.0/8 belongs to the loopback
    /// interface. A link-local address may exist on several interfaces; `scope` says which one is
    /// meant. [`with_transport`](Self::with_transport) leads to the one for the other transport.
    pub fn for_address(address: IpAddr, scope: Option<u32>) -> Result<Self> {
        owner(devices()?, address, scope)
    }

    /// The device for iWARP of an interface.
    pub fn for_interface_index(index: u32) -> Result<Self> {
        devices()?
            .into_iter()
            .find(|device| device.inner.index == index)
            .ok_or_else(|| Error::NoDevice {
                what: format!("interface index {index}"),
            })
    }

    /// The loopback device.
    pub(crate) fn loopback() -> Result<Self> {
        devices()?
            .into_iter()
            .find(Self::is_loopback)
            .ok_or_else(|| Error::NoDevice {
                what: "the loopback interface".to_owned(),
            })
    }

    /// The socket address of one of this device's addresses: with the scope if it is link-local.
    pub fn socket_addr(&self, address: IpAddr, port: u16) -> SocketAddr {
        match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddrV6::new(v6, port, 0, self.inner.index).into()
            }
            address => SocketAddr::new(address, port),
        }
    }

    /// An entry of the GID table, which holds the addresses in the order of
    /// [`addresses`](Self::addresses): entry 0 is one that other machines can reach if there is
    /// such an address.
    pub(crate) fn gid(&self, port: u8, index: u32) -> Result<Gid> {
        check_port(port)?;
        let table = &self.inner.addresses;
        table
            .get(index as usize)
            .copied()
            .map(Gid::from)
            .ok_or_else(|| {
                Error::invalid(
                    "index",
                    format!("{index} is not in the GID table of {}", table.len()),
                )
            })
    }

    /// An entry of the partition key table, which holds the default key only.
    pub(crate) fn pkey(&self, port: u8, index: u32) -> Result<u16> {
        check_port(port)?;
        if index == 0 {
            Ok(0xffff)
        } else {
            Err(Error::invalid(
                "index",
                format!("{index} is not in the P_Key table of 1"),
            ))
        }
    }

    /// A number of this device's own that stays the same: from its MAC address if it has one.
    pub fn node_guid(&self) -> u64 {
        match self.inner.mac {
            Some([a, b, c, d, e, f]) => u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]),
            None => sysfs::machine_hash(&self.inner.interface) | 1,
        }
    }
}

/// Finds the owner of an address among `devices`.
fn owner(devices: Vec<Device>, address: IpAddr, scope: Option<u32>) -> Result<Device> {
    let address = address.to_canonical();
    let scope = scope.filter(|scope| *scope != 0 && is_link_local(address));
    let mut owners = devices.into_iter().filter(|device| {
        device.transport == Transport::Iwarp
            && device.inner.owns(address)
            && scope.is_none_or(|scope| scope == device.inner.index)
    });
    let Some(first) = owners.next() else {
        return Err(match (address, scope) {
            (IpAddr::V6(v6), Some(scope)) => Error::NoDevice {
                what: format!("{v6}%{scope}"),
            },
            _ => Error::NoDevice {
                what: address.to_string(),
            },
        });
    };
    if is_link_local(address) && owners.next().is_some() {
        let why = format!("{address} exists on several interfaces: a scope must say which");
        return Err(Error::invalid("address", why));
    }
    Ok(first)
}

/// Whether an address means something on its own link only, and so needs a scope.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Refuses ports that no device has.
pub(crate) fn check_port(port: u8) -> Result<()> {
    if port == PORT {
        Ok(())
    } else {
        Err(Error::invalid(
            "port_num",
            format!("{port} is not 1, the only port"),
        ))
    }
}

#[cfg(test)]
mod tests;
