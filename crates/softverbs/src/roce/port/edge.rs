//! The edge: where the packets of this process can be disturbed, on their way out behind the ICRC,
//! on their way in before it is checked. Packets that are forwarded to other processes are those
//! processes' own.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nix::sys::epoll::EpollFlags;
use softverbs_proto::time::Time;

use super::receive::{Arrival, Burst};
use super::send::Outcome;
use super::socket::Sock;
use super::sys::Envelope;
use super::{PRIVATE_V4, PRIVATE_V6, Port};
use crate::engine::Engine;
use crate::engine::sources::{Source, Token};
use crate::fault::{self, Classified, Direction, Frame, Held, Verdict};

/// When a socket has no room for a packet whose fate is decided, it waits this long.
const ROOM_AFTER: Duration = Duration::from_millis(1);

/// Packets that are held back.
#[derive(Debug, Default)]
pub(super) struct Edge {
    outgoing: Mutex<Held<Outgoing>>,
    incoming: Mutex<Held<Incoming>>,
    token: OnceLock<Token>,
    /// Who sets the timer has seen all that others had set it for.
    timer: Mutex<()>,
}

struct Outgoing {
    v6: bool,
    envelope: Envelope,
    octets: Vec<u8>,
}

struct Incoming {
    arrival: Arrival,
    octets: Vec<u8>,
}

impl Edge {
    fn outgoing(&self) -> MutexGuard<'_, Held<Outgoing>> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn incoming(&self) -> MutexGuard<'_, Held<Incoming>> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port {
    /// From here on the engine sends and delivers what was held back.
    pub(super) fn serve_edge(&'static self) {
        let token = self.engine.sources.add(Arc::new(Served(self)));
        let _ = self.edge.token.set(token);
    }

    /// One packet on its way out, while a plan is installed. What is lost or held back counts as
    /// taken.
    #[cold]
    pub(super) fn disturb_sending(
        &self,
        sock: &Sock,
        envelope: &Envelope,
        octets: &[u8],
    ) -> Outcome {
        // What is due goes before it.
        self.send_due(self.engine.now());
        let classified = Classified::new(octets);
        let peer = envelope.to.ip();
        let frame = Frame {
            direction: Direction::Out,
            kinds: classified.kinds,
            peer,
            len: octets.len(),
            what: &classified,
        };
        let now = self.engine.now();
        let held = |octets: &[u8]| Outgoing {
            v6: sock.v6,
            envelope: *envelope,
            octets: octets.to_vec(),
        };
        let (copies, changed) = match fault::judge(&frame) {
            Verdict::Drop => return Outcome::Took,
            Verdict::Delay(time) => {
                let kept = self
                    .edge
                    .outgoing()
                    .until(now + time, octets.len(), held(octets));
                return self.note_held(kept, &frame);
            }
            Verdict::Behind(count) => {
                let behind = (peer, count);
                let kept = self
                    .edge
                    .outgoing()
                    .behind(now, octets.len(), behind, held(octets));
                return self.note_held(kept, &frame);
            }
            Verdict::Duplicate(more) => (more, None),
            Verdict::Corrupt(bit) => {
                let mut changed = octets.to_vec();
                bit.flip(&mut changed);
                (0, Some(changed))
            }
            // The others are of streams.
            _ => (0, None),
        };
        let octets = changed.as_deref().unwrap_or(octets);
        for _ in 0..=copies {
            match self.transmit_undisturbed(sock, envelope, octets, None) {
                Outcome::Took => {}
                // It is not judged again.
                Outcome::Blocked => {
                    let at = now + ROOM_AFTER;
                    let kept = self.edge.outgoing().until(at, octets.len(), held(octets));
                    self.note_held(kept, &frame);
                }
                refused @ Outcome::Refused(_) => return refused,
            }
        }
        self.send_overtaken(peer);
        Outcome::Took
    }

    fn note_held(&self, kept: bool, frame: &Frame<'_>) -> Outcome {
        if !kept {
            fault::overflowed(frame);
        }
        self.set_edge_timer();
        Outcome::Took
    }

    fn set_edge_timer(&self) {
        let timer = self.edge.timer.lock();
        let _one_sets = timer.unwrap_or_else(PoisonError::into_inner);
        let times = [self.edge.outgoing().next(), self.edge.incoming().next()];
        if let Some(&token) = self.edge.token.get() {
            let next = times.into_iter().flatten().min();
            self.engine.set_timer(token, next);
        }
    }

    fn send_due(&self, now: Time) {
        loop {
            // Not in the condition, where the lock would be held meanwhile.
            let due = self.edge.outgoing().due(now);
            let Some(packet) = due else { return };
            self.send_held(&packet);
        }
    }

    fn send_overtaken(&self, peer: IpAddr) {
        let overtaken = self.edge.outgoing().passed(peer);
        for packet in overtaken {
            self.send_held(&packet);
        }
    }

    fn send_held(&self, packet: &Outgoing) {
        let which = if packet.v6 { PRIVATE_V6 } else { PRIVATE_V4 };
        if let Some(sock) = self.socks[which].get() {
            // Without room it is lost, as in the queue of a switch.
            let _ = self.transmit_undisturbed(sock, &packet.envelope, &packet.octets, None);
        }
    }
}

impl Burst<'_> {
    /// Whether packets are to be judged.
    pub(super) fn is_disturbed(&self) -> bool {
        fault::armed() && !self.passed_edge
    }

    /// One packet for this process, while a plan is installed.
    #[cold]
    pub(super) fn disturb(&mut self, arrival: &Arrival, octets: &[u8]) {
        let port = self.port();
        self.deliver_due(port.engine.now());
        let classified = Classified::new(octets);
        let peer = arrival.from.remote;
        let frame = Frame {
            direction: Direction::In,
            kinds: classified.kinds,
            peer,
            len: octets.len(),
            what: &classified,
        };
        let now = port.engine.now();
        let held = || Incoming {
            arrival: *arrival,
            octets: octets.to_vec(),
        };
        match fault::judge(&frame) {
            Verdict::Drop => return,
            Verdict::Delay(time) => {
                let kept = port.edge.incoming().until(now + time, octets.len(), held());
                port.note_held(kept, &frame);
                return;
            }
            Verdict::Behind(count) => {
                let behind = (peer, count);
                let kept = port
                    .edge
                    .incoming()
                    .behind(now, octets.len(), behind, held());
                port.note_held(kept, &frame);
                return;
            }
            Verdict::Duplicate(more) => {
                for _ in 0..=more {
                    self.pass(arrival, octets);
                }
            }
            Verdict::Corrupt(bit) => {
                let mut changed = octets.to_vec();
                bit.flip(&mut changed);
                self.pass(arrival, &changed);
            }
            _ => self.pass(arrival, octets),
        }
        let overtaken = port.edge.incoming().passed(peer);
        for packet in overtaken {
            self.pass(&packet.arrival, &packet.octets);
        }
    }

    /// Beyond the edge.
    fn pass(&mut self, arrival: &Arrival, octets: &[u8]) {
        self.passed_edge = true;
        self.sort(arrival, octets);
        self.passed_edge = false;
    }

    fn deliver_due(&mut self, now: Time) {
        let port = self.port();
        loop {
            let due = port.edge.incoming().due(now);
            let Some(packet) = due else { return };
            self.pass(&packet.arrival, &packet.octets);
        }
    }
}

/// What the engine holds of the edge.
struct Served(&'static Port);

impl Source for Served {
    fn ready(&self, _: &Engine, _: EpollFlags) {}

    fn timeout(&self, _: &Engine, now: Time) {
        let port = self.0;
        port.send_due(now);
        let mut burst = Burst::new(port, false);
        burst.begin_round();
        burst.deliver_due(now);
        burst.end();
        port.deliver_mads();
        port.set_edge_timer();
    }
}
