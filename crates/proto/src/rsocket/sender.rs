//! What goes out: how much, where to, and what is still on its way.

use std::collections::VecDeque;

use softverbs_wire::num::Rkey;
use softverbs_wire::rsocket::{ByteOrder, ConnectData, Message, RemoteBuffer};

use super::ring::{Pieces, Ring};
use super::{Messaging, Payload, Post, TARGETS, Target, TargetList};

/// With less than this left in the send buffer, nothing is sent until there is more again.
const LOW_WATER: usize = 2048;
/// Credits that are left alone over iWARP, where a message that finds no receive ends the
/// connection: messages about windows use none, and need a receive, too.
const SPARE: u16 = 4;

/// Room for data, until it is committed. There can be one at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "room that is not committed stays where it is"]
pub struct Reserved {
    pieces: Pieces,
}

impl Reserved {
    /// Where in the send buffer the octets have to be.
    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }
}

/// A posted request, in the order of completion.
#[derive(Clone, Copy, Debug)]
enum Sent {
    /// Data: octets of the send buffer.
    Data(usize),
    /// Windows and the connection.
    Control,
}

#[derive(Debug)]
pub(super) struct Sender {
    messaging: Messaging,
    ring: Ring,
    /// Requests of data that may be posted.
    slots: u16,
    /// Requests of control that may be posted.
    controls: u16,
    posted: VecDeque<Sent>,
    /// The window in use, and those that come after it.
    window: Target,
    window_left: usize,
    later: VecDeque<RemoteBuffer>,
    next_target: u32,
    /// Messages sent, and the first number that may not be sent, modulo 2¹⁶.
    sent: u16,
    limit: u16,
    spare: u16,
}

impl Sender {
    pub(super) fn new(messaging: Messaging, buffer: usize, slots: u16, controls: u16) -> Self {
        Self {
            messaging,
            ring: Ring::new(buffer),
            slots,
            controls,
            posted: VecDeque::new(),
            window: Target::default(),
            window_left: 0,
            later: VecDeque::new(),
            next_target: 1 % TARGETS,
            sent: 0,
            limit: 0,
            spare: 0,
        }
    }

    pub(super) fn connected(&mut self, peer: &ConnectData) {
        self.limit = peer.credits;
        self.spare = match self.messaging {
            Messaging::Sends if peer.credits >= 4 * SPARE => SPARE,
            _ => 0,
        };
        self.take_window(peer.window);
    }

    /// Credits, and perhaps a window, have come.
    pub(super) fn on_window(&mut self, credits: u32, list: &mut impl TargetList) {
        let [low, high, ..] = credits.to_le_bytes();
        self.limit = u16::from_le_bytes([low, high]);
        // The peer writes entries in turn, and this one not again before its window is used up.
        // It may be writing at this moment, behind the message that is being looked at: then the
        // entry waits for the message that follows it.
        let mut entry = || {
            let octets = list.target(self.next_target);
            // Our own list is in our own order.
            RemoteBuffer::parse(&mut softverbs_wire::Reader::new(&octets), ByteOrder::Little).ok()
        };
        let Some(window) = entry().filter(|window| window.length > 0) else {
            return;
        };
        if entry() != Some(window) {
            return;
        }
        list.clear_target(self.next_target);
        self.next_target = (self.next_target + 1) % TARGETS;
        if self.window_left == 0 && self.later.is_empty() {
            self.take_window(window);
        } else {
            self.later.push_back(window);
        }
    }

    fn take_window(&mut self, window: RemoteBuffer) {
        self.window = Target {
            addr: window.addr,
            rkey: Rkey::new(window.rkey.get()),
        };
        self.window_left = usize::try_from(window.length).unwrap_or(usize::MAX);
    }

    fn has_credit(&self) -> bool {
        let left = self.limit.wrapping_sub(self.sent);
        // Above 2¹⁵ it is a limit that lies behind.
        left > self.spare && left < 1 << 15
    }

    fn has_room(&self) -> bool {
        self.slots > 0 && self.ring.free() >= LOW_WATER.min(self.ring.size())
    }

    pub(super) fn can_send(&self) -> bool {
        self.has_room() && self.has_credit() && self.window_left > 0
    }

    pub(super) fn can_send_control(&self) -> bool {
        self.controls > 0
    }

    pub(super) fn can_write(&self) -> bool {
        self.has_room()
    }

    pub(super) fn can_announce(&self) -> bool {
        self.slots > 0 && self.has_credit()
    }

    /// The most that may be sent as one message now.
    pub(super) fn room(&self) -> usize {
        self.window_left
            .min(self.ring.free())
            .min(Message::MAX_DATA as usize)
    }

    pub(super) fn reserve(&self, len: usize) -> Reserved {
        Reserved {
            pieces: self.ring.next(len.min(self.ring.free())),
        }
    }

    fn on_data(&mut self, len: usize, payload: Payload) -> Post {
        debug_assert!(len <= self.window_left);
        let remote = self.window;
        self.window.addr = self.window.addr.wrapping_add(len as u64);
        self.window_left -= len;
        if self.window_left == 0
            && let Some(window) = self.later.pop_front()
        {
            self.take_window(window);
        }
        self.sent = self.sent.wrapping_add(1);
        Post {
            payload,
            remote,
            message: Some(Message::Data(u32::try_from(len).unwrap_or(u32::MAX))),
        }
    }

    fn post(&mut self, ring: usize) {
        self.slots = self.slots.saturating_sub(1);
        self.ring.add(ring);
        self.posted.push_back(Sent::Data(ring));
    }

    pub(super) fn commit(&mut self, reserved: Reserved) -> Post {
        let len = reserved.pieces.len();
        self.post(len);
        self.on_data(len, Payload::Buffer(reserved.pieces))
    }

    pub(super) fn commit_inline(&mut self, len: usize) -> Post {
        self.post(0);
        self.on_data(len, Payload::Caller(u32::try_from(len).unwrap_or(u32::MAX)))
    }

    /// A write of reserved octets to `remote`, which the peer is not told of.
    pub(super) fn commit_to(&mut self, reserved: Reserved, remote: Target) -> Post {
        self.post(reserved.pieces.len());
        Post {
            payload: Payload::Buffer(reserved.pieces),
            remote,
            message: None,
        }
    }

    /// A write of other octets, with a message that uses a credit.
    pub(super) fn announce(&mut self, octets: &[u8], remote: Target, message: Message) -> Post {
        self.post(0);
        self.sent = self.sent.wrapping_add(1);
        Post {
            payload: Payload::Octets(octets.into()),
            remote,
            message: Some(message),
        }
    }

    /// Accounts for a request of control.
    pub(super) fn post_control(&mut self) {
        self.controls = self.controls.saturating_sub(1);
        self.posted.push_back(Sent::Control);
    }

    /// The oldest request has completed.
    pub(super) fn on_sent(&mut self) {
        match self.posted.pop_front() {
            Some(Sent::Data(octets)) => {
                self.slots += 1;
                self.ring.release(octets);
            }
            Some(Sent::Control) => self.controls += 1,
            None => debug_assert!(false, "a completion of nothing"),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.posted.is_empty()
    }
}
