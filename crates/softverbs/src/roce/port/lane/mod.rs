//! Lanes: what two processes of one host send each other, past the kernel.
//!
//! A process that keeps sending to another one offers it a ring in shared memory ([`ring`]), through
//! the Unix socket that also takes forwarded packets, which only this user can reach. Once the other
//! one looks at it, the packets of queue pairs go by that way: the same packets, with two copies
//! instead of four, no system call while both are at work, and no ICRC, since there is no wire. A lane
//! leads one way; answers have another one. Management datagrams go over UDP.
//!
//! With the ring comes one end of a pair of sockets, for who sleeps: the sender wakes a receiver that
//! has said so, the receiver a sender that waits for room, and the end of either process closes it.
//!
//! Where anything is missing for it (another user, another folder, a kernel without sealed memory, a
//! plan of `fault` that wants to see packets on a wire) packets go over UDP as ever. What was sent
//! over UDP before the first packet of a lane is received before it.

mod direct;
mod inward;
mod outward;
mod ring;

use std::collections::HashMap;
#[cfg(test)]
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use nix::sys::epoll::EpollFlags;
use softverbs_proto::time::Time;

pub(crate) use self::direct::Grantor;
use self::inward::InLane;
pub(super) use self::inward::LaneRun;
use self::outward::OutLane;
pub(super) use self::outward::PathLane;
#[cfg(test)]
pub(super) use self::ring::SLOTS;
use super::Port;
use crate::engine::sources::{Source, Token};
use crate::engine::{Engine, Lookout};
use crate::error::Result;
use crate::fault;
use crate::same_host::SameHost;

/// Lanes of each direction at most: each takes a descriptor and half a MiB.
const MOST: usize = 64;
/// A receiver that takes nothing for so long, though the ring is full, is not waited for: packets of an
/// unreliable service are lost, as in a full socket. A reliable one finds out by its own timers.
const STUCK: Duration = Duration::from_millis(100);

/// The lanes of a process.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    way: SameHost,
    /// By the slot of the process that they lead to.
    outward: RwLock<HashMap<u16, Arc<OutLane>>>,
    inward: RwLock<Vec<Arc<InLane>>>,
    /// How many of the latter there are.
    inward_count: AtomicUsize,
    /// Of the former: those that somebody waits for.
    awaited: AtomicUsize,
    /// The port that they belong to, which is served by this token.
    port: OnceLock<&'static Port>,
    token: OnceLock<Token>,
    /// The timer is set.
    timer: AtomicBool,
    /// How many have been offered.
    offers: AtomicUsize,
    /// One opens them at a time. Those that did not want one: their first slots and their ports.
    opening: Mutex<HashMap<u16, [u16; 2]>>,
}

impl Lanes {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            way: SameHost::of_environment()?,
            ..Self::default()
        })
    }

    /// Whether packets may take a lane now.
    fn allowed(&self) -> bool {
        self.way == SameHost::Memory && !fault::armed()
    }

    /// How many lanes there are: to others, from others.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let outward = self.outward.read().unwrap_or_else(PoisonError::into_inner);
        let open = outward.values().filter(|lane| lane.is_open()).count();
        (open, self.inward_count.load(Ordering::Relaxed))
    }

    /// Those that did not want a lane.
    #[cfg(test)]
    pub(super) fn refusals(&self) -> usize {
        self.opening.lock().unwrap().len()
    }

    /// Lanes that have been offered.
    #[cfg(test)]
    pub(super) fn offers(&self) -> usize {
        self.offers.load(Ordering::Relaxed)
    }

    fn outward(&self) -> Vec<Arc<OutLane>> {
        let outward = self.outward.read().unwrap_or_else(PoisonError::into_inner);
        outward.values().cloned().collect()
    }
}

impl Port {
    /// From here on the engine looks at the lanes.
    pub(super) fn serve_lanes(&'static self) {
        let token = self.engine.sources.add(Arc::new(Timer(self)));
        let _ = self.lanes.token.set(token);
        let _ = self.lanes.port.set(self);
        self.engine.add_lookout(self);
    }
}

/// Those who wait for room do not wait for ever.
struct Timer(&'static Port);

impl Source for Timer {
    fn ready(&self, _: &Engine, _: EpollFlags) {}

    fn timeout(&self, _: &Engine, now: Time) {
        self.0.give_up_waiting(now);
    }
}

impl Lookout for Port {
    fn look(&self) -> usize {
        self.offer_lanes();
        let packets = self.receive_lanes(false);
        self.deliver_mads();
        packets
    }

    fn look_at_neglected(&self) -> bool {
        self.offer_lanes();
        let any = self.receive_neglected_lanes();
        self.deliver_mads();
        any
    }

    fn may_sleep(&self) -> bool {
        self.await_room();
        self.await_packets()
    }
}
