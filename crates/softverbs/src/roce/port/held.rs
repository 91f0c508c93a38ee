//! Requests for a service whose listener has just gone, which wait for the next one.
//!
//! A server that takes one connection, closes its listener and listens again at the same port is not
//! there for a moment, in which its client may be faster. While the process that had the service is
//! alive, whoever would refuse such a request keeps it for a while instead, and hands it to the
//! listener that comes; the refusal is late by no more than that.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nix::sys::epoll::EpollFlags;
use softverbs_proto::time::Time;
use softverbs_wire::ib::cm::{Mad, Message};
use softverbs_wire::ib::mad::MAD_LEN;
use softverbs_wire::num::ServiceId;

use super::Port;
use super::folder::Lock;
use super::receive::{Arrival, Burst};
use super::send::Ends;
use crate::engine::Engine;
use crate::engine::sources::{Source, Token};

/// So long after its listener a service may come back.
const MAY_RETURN: Duration = Duration::from_secs(5);
/// So long a request waits for that: a part of the time after which its sender would repeat it.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Services that are remembered, and requests that wait, at most.
const MOST_FORMER: usize = 64;
const MOST_WAITING: usize = 1024;

/// What waits, and what this process had.
#[derive(Debug, Default)]
pub(super) struct Held {
    inner: Mutex<Inner>,
    token: OnceLock<Token>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Services that this process offered, and until when they may come back.
    former: HashMap<(ServiceId, IpAddr), (Time, Lock)>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    until: Time,
    service: ServiceId,
    /// As if it had come to the public port, from which it can be forwarded.
    arrival: Arrival,
    octets: Vec<u8>,
}

impl Waiting {
    /// What it waits for: a service at an address.
    const fn wanted(&self) -> (ServiceId, IpAddr) {
        (self.service, self.arrival.from.local)
    }
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn serve(&self, token: Token) {
        let _ = self.token.set(token);
    }

    fn arm(&self, engine: &Engine, inner: &Inner, now: Time) {
        let next = if inner.waiting.is_empty() {
            inner.former.values().map(|(until, _)| *until).min()
        } else {
            Some(now + LOOK_EVERY)
        };
        if let Some(&token) = self.token.get() {
            engine.set_timer(token, next);
        }
    }
}

/// The service that a datagram asks for.
pub(super) fn service_of(mad: &[u8; MAD_LEN]) -> Option<ServiceId> {
    match Mad::parse(mad).ok()?.message {
        Message::Req(request) => Some(request.service_id),
        Message::SidrReq(request) => Some(request.service_id),
        _ => None,
    }
}

impl Port {
    /// This process does not offer a service any more, for now.
    pub(super) fn retire(&self, service: ServiceId, address: IpAddr) {
        let now = self.engine.now();
        let until = now + MAY_RETURN;
        let key = (service, address);
        let mut inner = self.held.lock();
        if let Some((known, _)) = inner.former.get_mut(&key) {
            *known = until;
        } else if inner.former.len() < MOST_FORMER {
            drop(inner);
            let lock = self.folder.remember_service(service, address);
            inner = self.held.lock();
            if let Ok(Some(lock)) = lock {
                inner.former.insert(key, (until, lock));
            }
        }
        self.held.arm(self.engine, &inner, now);
    }

    /// Keeps a request that nobody takes, or that is for another process and came to a private port.
    /// False if it is to be answered now.
    pub(super) fn hold(
        &self,
        service: ServiceId,
        found: bool,
        arrival: &Arrival,
        octets: &[u8],
    ) -> bool {
        let from = arrival.from;
        if !found && !self.may_return(service, from.local) {
            return false;
        }
        let Some(ends) = Ends::new(
            (from.remote, from.source_port),
            (from.local, self.public_port),
        ) else {
            return false;
        };
        let arrival = Arrival {
            to_port: self.public_port,
            ident: 0,
            by_lane: false,
            ..*arrival
        };
        let mut octets = octets.to_vec();
        ends.seal(arrival.ident, &mut octets);
        let now = self.engine.now();
        let mut inner = self.held.lock();
        if inner.waiting.len() >= MOST_WAITING {
            return false;
        }
        inner.waiting.push(Waiting {
            until: now + PATIENCE,
            service,
            arrival,
            octets,
        });
        self.held.arm(self.engine, &inner, now);
        true
    }

    /// Hands on what has found its listener, and what has waited for long enough.
    fn look_after_held(&self, now: Time) {
        let mut inner = self.held.lock();
        let gone: Vec<_> = inner
            .former
            .extract_if(|_, (until, _)| *until <= now)
            .collect();
        for (_, (_, lock)) in gone {
            lock.remove();
        }
        let wanted: HashSet<_> = inner.waiting.iter().map(Waiting::wanted).collect();
        drop(inner);
        // Once for each service, however many wait for it, and while nobody waits for us.
        let decided: HashSet<_> = wanted
            .into_iter()
            .filter(|&(service, local)| {
                self.service_slot(service, local).is_some() || !self.may_return(service, local)
            })
            .collect();
        let mut inner = self.held.lock();
        let done: Vec<_> = inner
            .waiting
            .extract_if(.., |request| {
                request.until <= now || decided.contains(&request.wanted())
            })
            .collect();
        self.held.arm(self.engine, &inner, now);
        drop(inner);
        if done.is_empty() {
            return;
        }
        let mut burst = Burst::new(self, true);
        burst.begin_round();
        burst.may_hold = false;
        for request in &done {
            burst.sort(&request.arrival, &request.octets);
        }
        burst.end();
        self.deliver_mads();
    }
}

/// Looks after what waits.
pub(super) struct Looks(pub(super) &'static Port);

impl Source for Looks {
    fn ready(&self, _: &Engine, _: EpollFlags) {}

    fn timeout(&self, _: &Engine, now: Time) {
        self.0.look_after_held(now);
    }
}
