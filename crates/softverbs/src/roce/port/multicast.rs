//! Multicast groups: packets to them come to the public port, and from there to all members.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError, RwLock};

use smallvec::SmallVec;
use socket2::InterfaceIndexOrAddress;
use softverbs_wire::num::Qpn;

use super::folder::Lock;
use super::{PRIVATE_V4, PRIVATE_V6, Port};
use crate::error::{Error, Result};

/// A group on an interface.
type Place = (IpAddr, u32);

/// The groups of this process.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// One entry for each time that a queue pair has joined.
    joined: Mutex<HashMap<Place, Vec<Qpn>>>,
    locks: Mutex<HashMap<IpAddr, Lock>>,
    /// Each queue pair once.
    members: RwLock<HashMap<IpAddr, SmallVec<[Qpn; 4]>>>,
}

impl Port {
    /// Packets to a multicast group that come in by an interface (0: as the routing table says)
    /// are for `qpn` too from now on.
    pub(crate) fn join(&self, group: IpAddr, interface: u32, qpn: Qpn) -> Result<()> {
        if !group.is_multicast() {
            return Err(Error::invalid(
                "multicast group",
                format!("{group} is not one"),
            ));
        }
        self.check_reachable(group)?;
        let groups = &self.groups;
        let mut joined = groups.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let queue_pairs = joined.entry((group, interface)).or_default();
        if queue_pairs.is_empty() {
            // That the host is a member suffices: the public port's socket, whoever has it, gets
            // the packets of all groups that any socket has joined.
            self.change_membership(group, interface, true)?;
        }
        queue_pairs.push(qpn);
        let mut locks = groups.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if !locks.contains_key(&group)
            && let Some(lock) = self.folder.join_group(group, self.home)?
        {
            locks.insert(group, lock);
        }
        drop(locks);
        self.update_members(group, &joined);
        Ok(())
    }

    /// Ends [`join`](Self::join).
    pub(crate) fn leave(&self, group: IpAddr, interface: u32, qpn: Qpn) {
        let groups = &self.groups;
        let mut joined = groups.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue_pairs) = joined.get_mut(&(group, interface)) else {
            return;
        };
        let Some(index) = queue_pairs.iter().position(|of| *of == qpn) else {
            return;
        };
        queue_pairs.swap_remove(index);
        if queue_pairs.is_empty() {
            joined.remove(&(group, interface));
            // Fails only if the interface has gone, and the membership with it.
            let _ = self.change_membership(group, interface, false);
        }
        if !joined.keys().any(|(of, _)| *of == group) {
            let lock = groups
                .locks
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&group);
            if let Some(lock) = lock {
                lock.remove();
            }
        }
        self.update_members(group, &joined);
    }

    fn update_members(&self, group: IpAddr, joined: &HashMap<Place, Vec<Qpn>>) {
        let mut queue_pairs: SmallVec<[Qpn; 4]> = joined
            .iter()
            .filter(|((of, _), _)| *of == group)
            .flat_map(|(_, queue_pairs)| queue_pairs.iter().copied())
            .collect();
        queue_pairs.sort_unstable();
        queue_pairs.dedup();
        let mut members = self
            .groups
            .members
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if queue_pairs.is_empty() {
            members.remove(&group);
        } else {
            members.insert(group, queue_pairs);
        }
    }

    /// See [`Lock::touch`].
    pub(super) fn touch_groups(&self) {
        let locks = &self.groups.locks;
        let locks = locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.values().for_each(Lock::touch);
    }

    /// The queue pairs of this process in a group.
    pub(super) fn members(&self, group: IpAddr) -> SmallVec<[Qpn; 4]> {
        self.groups
            .members
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&group)
            .cloned()
            .unwrap_or_default()
    }

    fn change_membership(&self, group: IpAddr, interface: u32, join: bool) -> Result<()> {
        let which = if group.is_ipv6() {
            PRIVATE_V6
        } else {
            PRIVATE_V4
        };
        let sock = self.socks[which]
            .get()
            .ok_or(Error::os("setsockopt", libc::EAFNOSUPPORT))?;
        let options = sock.options();
        let index = InterfaceIndexOrAddress::Index(interface);
        match (group, join) {
            (IpAddr::V4(group), true) => options.join_multicast_v4_n(&group, &index),
            (IpAddr::V4(group), false) => options.leave_multicast_v4_n(&group, &index),
            (IpAddr::V6(group), true) => options.join_multicast_v6(&group, interface),
            (IpAddr::V6(group), false) => options.leave_multicast_v6(&group, interface),
        }
        .map_err(Error::from_call("setsockopt"))
    }
}
