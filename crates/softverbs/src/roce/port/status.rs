//! What the port tells a person who asks.

use super::Port;
use crate::engine::Engine;
use crate::error::Result;

/// How RoCEv2 of this process gets on with this host.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RoceStatus {
    /// The process's slot: the high 12 bits of its first queue pair numbers.
    pub slot: u16,
    /// What the kernel can do for the sockets, and whether it does.
    pub offloads: Vec<(String, bool)>,
    /// Who has UDP port 4791, by address family.
    pub port_owners: Vec<PortOwner>,
    /// Octets that wait in the kernel at most until somebody receives them.
    pub receive_room: usize,
    /// What was sent, received and dropped since the process began: names and numbers.
    pub counters: Vec<(&'static str, u64)>,
}

/// Who has UDP port 4791, to which other hosts send.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortOwner {
    /// The address family: `IPv4` or `IPv6`.
    pub family: &'static str,
    /// The owner in words: program and process id, as far as this user may know.
    pub owner: String,
    /// Packets from other hosts do not come here: the port belongs to a program that does not pass
    /// them on. Processes of this user on this host reach each other nevertheless.
    pub stranger: bool,
}

/// The state of RoCEv2 in this process. If nothing has used it so far, it is started.
pub fn roce_status() -> Result<RoceStatus> {
    let port = Port::get(Engine::get()?)?;
    Ok(port.status())
}

impl Port {
    pub(super) fn status(&self) -> RoceStatus {
        RoceStatus {
            slot: self.slot(),
            offloads: self.offloads(),
            port_owners: self.public_owners().into(),
            receive_room: self.receive_room(),
            counters: self.counters().list().into(),
        }
    }
}
