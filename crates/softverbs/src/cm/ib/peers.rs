//! The processes of this host that this one is connected with: when one of them ends without a word,
//! as one that is killed does, its connections end as if it had disconnected, which the kernel would
//! do for it.
//!
//! There is a timer while there are such processes, and a look at each of them, not at each
//! connection. Peers on other hosts cost nothing, and only who waits for their answer learns of their
//! end. The same goes for those that there is nothing to judge by: of other users, or of other folders.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nix::sys::epoll::EpollFlags;
use softverbs_proto::cm::params::{Adapter, ConnectionId};
use softverbs_proto::time::Time;
use softverbs_wire::num::CommId;

use super::Manager;
use crate::engine::Engine;
use crate::engine::sources::{Source, Token};
use crate::roce::port::Whereabouts;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After the first look that misses a process comes a second one: what it has sent may still be on
/// its way through the kernel.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// The processes of this host that there are connections with.
#[derive(Debug, Default)]
pub(super) struct Peers {
    watched: Mutex<HashMap<Adapter, Watched>>,
    token: OnceLock<Token>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    /// Of one of the connections; all of them tell the process.
    comm_id: CommId,
    /// It has been found in its place, so that it is of this folder.
    known: bool,
    /// The last look has missed it.
    missed: bool,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, HashMap<Adapter, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    /// Takes note of a look. `false` if there is no use in another one.
    const fn note(&mut self, found: Whereabouts) -> bool {
        match found {
            Whereabouts::Here => (self.known, self.missed) = (true, false),
            Whereabouts::Gone => (self.known, self.missed) = (true, true),
            Whereabouts::Replaced => self.missed = self.known,
            Whereabouts::Unknown => {}
        }
        self.known
    }
}

impl Manager {
    pub(super) fn serve_peers(&'static self) {
        let looks = Arc::new(Looks(self));
        let _ = self.peers.token.set(self.engine.sources.add(looks));
    }

    /// A connection is established.
    pub(super) fn watch_peer(&self, id: ConnectionId) {
        let Some((adapter, comm_id)) = self.lock().endpoint.peer_of(id) else {
            return;
        };
        let address = adapter.address.to_ip();
        let own = adapter.guid == self.port.ca_guid();
        if own || !self.port.is_local(address, self.engine.coarse_now()) {
            return;
        }
        let mut watched = self.peers.lock();
        if watched.is_empty() {
            self.look_again(LOOK_EVERY);
        }
        watched.entry(adapter).or_insert(Watched {
            comm_id,
            known: false,
            missed: false,
        });
    }

    fn look_again(&self, after: Duration) {
        if let Some(&token) = self.peers.token.get() {
            let at = self.engine.now() + after;
            self.engine.set_timer(token, Some(at));
        }
    }

    fn is_connected_with(&self, adapter: Adapter) -> bool {
        let inner = self.lock();
        inner.endpoint.connections_with(adapter).next().is_some()
    }

    fn look_after_peers(&'static self) {
        // Those that come meanwhile set the timer.
        let mut watched = mem::take(&mut *self.peers.lock());
        let mut gone = Vec::new();
        watched.retain(|adapter, peer| {
            let before = peer.missed;
            let keeps = self.is_connected_with(*adapter)
                && peer.note(self.port.whereabouts(peer.comm_id, adapter.guid));
            if keeps && before && peer.missed {
                gone.push(*adapter);
            }
            keeps
        });
        for adapter in &gone {
            watched.remove(adapter);
        }
        let soon = watched.values().any(|peer| peer.missed);
        if !watched.is_empty() {
            self.peers.lock().extend(watched);
            self.look_again(if soon { LAST_WORDS } else { LOOK_EVERY });
        }
        if !gone.is_empty() {
            self.end_connections_with(&gone);
        }
    }

    fn end_connections_with(&'static self, gone: &[Adapter]) {
        // What they have sent before is not lost, a DREQ among it.
        self.port.receive_all(self.engine.now());
        for adapter in gone {
            let connections: Vec<_> = {
                let inner = self.lock();
                inner.endpoint.connections_with(*adapter).collect()
            };
            // One after the other, as DREQs would come.
            for id in connections {
                let _ = self.command(|inner, now| inner.endpoint.on_peer_gone(now, id));
            }
        }
    }
}

/// Looks after the peers.
struct Looks(&'static Manager);

impl Source for Looks {
    fn ready(&self, _: &Engine, _: EpollFlags) {}

    fn timeout(&self, _: &Engine, _: Time) {
        self.0.look_after_peers();
    }
}
