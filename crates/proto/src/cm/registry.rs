//! All connections of an endpoint, by each of their names.

use std::collections::{BTreeMap, BTreeSet};

use softverbs_wire::num::{CommId, Gid, Guid, Qpn};

use super::connection::{Connection, Role};
use super::params::{Adapter, PathAddress};
use super::state::State;
use crate::time::Time;

/// A peer's name for a connection. The address is in it so that nobody can pretend to be the
/// adapter of somebody else.
type RemoteId = (Gid, Guid, u32);

/// A peer's queue pair.
type RemoteQp = (Gid, Guid, Qpn);

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Registry {
    connections: BTreeMap<u32, Connection>,
    by_remote_id: BTreeMap<RemoteId, u32>,
    by_remote_qp: BTreeMap<RemoteQp, u32>,
    /// Resolutions that peers asked for, by address and request ID.
    by_request_id: BTreeMap<(Gid, u32), u32>,
    deadlines: BTreeSet<(Time, u32)>,
    half_open: BTreeMap<Gid, usize>,
    half_open_total: usize,
}

impl Registry {
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.connections.contains_key(&id)
    }

    pub(super) fn get(&self, id: u32) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// For everything but the state and the names.
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Connection> {
        self.connections.get_mut(&id)
    }

    /// The connection with this name of ours, if the peer's address is the connection's.
    pub(super) fn of_peer(&self, id: CommId, address: PathAddress) -> Option<(u32, &Connection)> {
        let connection = self.get(id.get())?;
        (connection.address.remote == address.remote).then_some((id.get(), connection))
    }

    /// The connection that both sides call so.
    pub(super) fn by_both(
        &self,
        local: CommId,
        remote: CommId,
        address: PathAddress,
    ) -> Option<(u32, &Connection)> {
        self.of_peer(local, address)
            .filter(|(_, connection)| connection.remote_comm_id == remote)
    }

    pub(super) fn by_remote_id(&self, address: PathAddress, guid: Guid, id: CommId) -> Option<u32> {
        self.by_remote_id
            .get(&(address.remote, guid, id.get()))
            .copied()
    }

    pub(super) fn by_remote_qp(&self, address: PathAddress, guid: Guid, qpn: Qpn) -> Option<u32> {
        self.by_remote_qp.get(&(address.remote, guid, qpn)).copied()
    }

    /// The connections whose peers' queue pairs are of this adapter, and no others'.
    pub(super) fn of_adapter(&self, adapter: Adapter) -> impl Iterator<Item = u32> {
        let at = |qpn| (adapter.address, adapter.guid, qpn);
        self.by_remote_qp
            .range(at(Qpn::new(0))..=at(Qpn::MULTICAST))
            .map(|(_, id)| *id)
    }

    pub(super) fn by_request_id(&self, address: PathAddress, id: CommId) -> Option<u32> {
        self.by_request_id.get(&(address.remote, id.get())).copied()
    }

    /// How many requests of the peer are half open, and how many of all peers.
    pub(super) fn half_open(&self, peer: Gid) -> (usize, usize) {
        (
            self.half_open.get(&peer).copied().unwrap_or(0),
            self.half_open_total,
        )
    }

    /// Adds a connection under a free name, and under its peer's names as far as they are known.
    pub(super) fn insert(&mut self, id: u32, connection: Connection) {
        if connection.state.is_half_open() {
            self.count_half_open(connection.address.remote);
        }
        let known = connection.remote_comm_id != CommId::NONE;
        self.connections.insert(id, connection);
        if known {
            self.file(id);
        }
    }

    /// The peer told its names.
    pub(super) fn identify(&mut self, id: u32, remote_id: CommId, guid: Guid, qpn: Qpn) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.remote_comm_id = remote_id;
            connection.remote_ca_guid = guid;
            connection.remote_qpn = qpn;
            self.file(id);
        }
    }

    fn file(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let remote_id = connection.remote_comm_id.get();
        let (gid, guid) = (connection.address.remote, connection.remote_ca_guid);
        if matches!(connection.role, Role::Asked(_)) {
            self.by_request_id.insert((gid, remote_id), id);
        } else {
            self.by_remote_id.insert((gid, guid, remote_id), id);
            self.by_remote_qp
                .insert((gid, guid, connection.remote_qpn), id);
        }
    }

    /// The peer uses its names for something else now.
    pub(super) fn forget_names(&mut self, id: u32) {
        self.forget_qp(id);
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let (gid, remote_id) = (connection.address.remote, connection.remote_comm_id.get());
        remove_own(
            &mut self.by_remote_id,
            &(gid, connection.remote_ca_guid, remote_id),
            id,
        );
        remove_own(&mut self.by_request_id, &(gid, remote_id), id);
    }

    fn forget_qp(&mut self, id: u32) {
        if let Some(connection) = self.connections.get(&id) {
            let key = (
                connection.address.remote,
                connection.remote_ca_guid,
                connection.remote_qpn,
            );
            remove_own(&mut self.by_remote_qp, &key, id);
        }
    }

    /// Changes a connection's state; [`State::Idle`] removes it.
    pub(super) fn set_state(&mut self, id: u32, next: State) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let before = connection.state;
        let peer = connection.address.remote;
        connection.state = next;
        if before.is_half_open() && !next.is_half_open() {
            self.uncount_half_open(peer);
        }
        if !next.holds_remote_qp() {
            self.forget_qp(id);
        }
        if next == State::Idle {
            self.forget_names(id);
            self.set_deadline(id, None);
            self.connections.remove(&id);
        }
    }

    fn count_half_open(&mut self, peer: Gid) {
        *self.half_open.entry(peer).or_default() += 1;
        self.half_open_total += 1;
    }

    fn uncount_half_open(&mut self, peer: Gid) {
        if let Some(count) = self.half_open.get_mut(&peer) {
            *count -= 1;
            self.half_open_total -= 1;
            if *count == 0 {
                self.half_open.remove(&peer);
            }
        }
    }

    pub(super) fn set_deadline(&mut self, id: u32, deadline: Option<Time>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if let Some(before) = core::mem::replace(&mut connection.deadline, deadline) {
            self.deadlines.remove(&(before, id));
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, id));
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// A connection whose deadline has come; the deadline is gone then.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<u32> {
        let (deadline, id) = *self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        self.set_deadline(id, None);
        Some(id)
    }

    /// How many entries there are beside the connections: 0 when there are no connections.
    pub(super) fn index_entries(&self) -> usize {
        self.by_remote_id.len()
            + self.by_remote_qp.len()
            + self.by_request_id.len()
            + self.deadlines.len()
            + self.half_open.len()
            + self.half_open_total
    }
}

/// Removes an entry unless a newer connection has taken it.
fn remove_own<K: Ord>(index: &mut BTreeMap<K, u32>, key: &K, id: u32) {
    if index.get(key) == Some(&id) {
        index.remove(key);
    }
}
