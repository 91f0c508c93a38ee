//! What comes in: messages of data in the receive buffer, and what the peer is lent in exchange.

use std::collections::VecDeque;

use smallvec::SmallVec;
use softverbs_wire::num::Rkey;
use softverbs_wire::rsocket::{ByteOrder, ConnectData, Message, RemoteBuffer};

use super::ring::{Pieces, Ring};
use super::stream::LocalMemory;
use super::{Payload, Post, Target};

/// The peer has written more than it was lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overrun;

#[derive(Debug)]
pub(super) struct Receiver {
    memory: LocalMemory,
    half: usize,
    /// What has arrived and was not read.
    ring: Ring,
    /// Octets of the messages that those came with; the front one may be read in part.
    messages: VecDeque<usize>,
    /// Octets that the peer may still write.
    lent: usize,
    /// Octets that are free and not lent.
    idle: usize,
    /// The half that is lent next.
    next_half: usize,
    credits: u16,
    /// Messages whose credit the peer may have back, modulo 2¹⁶.
    done: u16,
    /// When `done` gets here, credits are given though no window is.
    give_at: u16,
    /// The peer's target list, and the entry of it that is next.
    targets: RemoteBuffer,
    next_target: u32,
    order: ByteOrder,
}

impl Receiver {
    /// `memory.len` must be even and not 0.
    pub(super) fn new(memory: LocalMemory, credits: u16) -> Self {
        let half = memory.len / 2;
        Self {
            memory,
            half,
            ring: Ring::new(memory.len),
            messages: VecDeque::new(),
            lent: half,
            idle: half,
            next_half: half,
            credits,
            done: 0,
            give_at: credits / 2,
            targets: RemoteBuffer::default(),
            next_target: 1,
            order: ByteOrder::default(),
        }
    }

    /// The window that the peer starts with.
    pub(super) fn first_window(&self) -> RemoteBuffer {
        self.window(0)
    }

    pub(super) fn connected(&mut self, peer: &ConnectData) {
        self.targets = peer.target_list;
        self.next_target = 1 % peer.target_list.length;
        self.order = peer.order();
    }

    fn window(&self, at: usize) -> RemoteBuffer {
        RemoteBuffer {
            addr: self.memory.addr + at as u64,
            rkey: Rkey::new(self.memory.rkey.get()),
            length: u32::try_from(self.half).unwrap_or(u32::MAX),
        }
    }

    /// Data has arrived.
    pub(super) fn on_data(&mut self, octets: u32) -> Result<(), Overrun> {
        let octets = usize::try_from(octets).map_err(|_| Overrun)?;
        if octets > self.lent {
            return Err(Overrun);
        }
        if octets == 0 {
            self.on_other();
            return Ok(());
        }
        self.lent -= octets;
        self.ring.add(octets);
        self.messages.push_back(octets);
        Ok(())
    }

    /// A message that used a credit has arrived, and that was all.
    pub(super) fn on_other(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    pub(super) fn available(&self) -> usize {
        self.ring.used()
    }

    pub(super) fn peek(&self, skip: usize, len: usize) -> Pieces {
        let skip = skip.min(self.ring.used());
        self.ring.oldest(skip, len.min(self.ring.used() - skip))
    }

    /// The application has read the oldest `len` octets.
    pub(super) fn consume(&mut self, len: usize) {
        let mut left = len.min(self.ring.used());
        self.ring.release(left);
        self.idle += left;
        while let Some(front) = self.messages.front_mut() {
            if left < *front {
                *front -= left;
                break;
            }
            left -= *front;
            self.messages.pop_front();
            self.done = self.done.wrapping_add(1);
        }
    }

    /// Whether the peer should be given a window or credits.
    pub(super) fn wants_to_give(&self) -> bool {
        // A distance below 2¹⁵ is one that has been reached, more one that lies ahead.
        self.idle >= self.half || self.done.wrapping_sub(self.give_at) < 1 << 15
    }

    /// Gives them.
    pub(super) fn give(&mut self) -> Post {
        self.give_at = self.done.wrapping_add((self.credits / 2).max(1));
        let message = Message::Window(self.done.wrapping_add(self.credits).into());
        if self.idle < self.half {
            return Post {
                payload: Payload::None,
                remote: Target::default(),
                message: Some(message),
            };
        }
        let window = self.window(self.next_half);
        let entry = u64::from(self.next_target) * RemoteBuffer::LEN as u64;
        self.idle -= self.half;
        self.lent += self.half;
        self.next_half = (self.next_half + self.half) % self.ring.size();
        self.next_target = (self.next_target + 1) % self.targets.length;
        Post {
            payload: Payload::Octets(SmallVec::from_slice(&window.to_bytes(self.order))),
            remote: Target {
                addr: self.targets.addr.wrapping_add(entry),
                rkey: self.targets.rkey,
            },
            message: Some(message),
        }
    }
}
