//! One end of a stream.

use softverbs_wire::num::Rkey;
use softverbs_wire::rsocket::{
    ByteOrder, ConnectData, Control, IomapEntry, IomapSize, Message, RemoteBuffer,
};

use super::iomap::{Iomap, Iomaps, TableFull};
use super::receiver::Receiver;
use super::ring::Pieces;
use super::sender::{Reserved, Sender};
use super::{CONTROLS, Messaging, Payload, Post, TARGETS, Target, TargetList};

/// Registered memory that the peer writes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalMemory {
    /// Its first address.
    pub addr: u64,
    /// The key to it.
    pub rkey: Rkey,
    /// Octets.
    pub len: usize,
}

/// What a stream is made of.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How messages travel.
    pub messaging: Messaging,
    /// Octets of the send buffer: 1 at least.
    pub send_buffer: usize,
    /// Messages of data that may be on their way.
    pub send_slots: u16,
    /// The receive buffer: an even number of octets, 2 at least.
    pub recv_buffer: LocalMemory,
    /// Messages of data that the peer may have on its way. [`Config::receives`] have to be
    /// posted.
    pub credits: u16,
    /// The target list and behind it the table of mapped regions; [`Config::list_len`] octets.
    pub target_list: LocalMemory,
    /// Regions that the peer may map.
    pub iomap_size: IomapSize,
}

impl Config {
    /// Octets of the target list with a table of so many regions.
    pub const fn list_len(iomap_size: IomapSize) -> usize {
        TARGETS as usize * RemoteBuffer::LEN + iomap_size.entries() as usize * IomapEntry::LEN
    }

    /// Receives to post for this many credits: messages about windows and the connection use no
    /// credit, and need a receive nevertheless.
    pub const fn receives(credits: u16) -> u32 {
        credits as u32 + 4 * CONTROLS as u32
    }

    /// Send requests that may be outstanding.
    pub const fn sends(&self) -> u32 {
        let each = match self.messaging {
            Messaging::Immediate => 1,
            Messaging::Sends => 2,
        };
        each * (self.send_slots as u32 + CONTROLS as u32)
    }
}

/// Why a peer's connection data is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is too short, or not that of rsockets.
    #[error("the peer does not speak rsockets")]
    NotRsockets,
    /// Another version of the protocol.
    #[error("the peer speaks version {0} of rsockets")]
    Version(u8),
}

/// Why a stream has ended other than in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The connection is gone and nobody had said so.
    #[error("the connection was lost")]
    Lost,
    /// The peer has sent more than it was allowed to.
    #[error("the peer has overrun the receive buffer")]
    Overrun,
}

/// Which direction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Nothing more is read.
    Read,
    /// Nothing more is sent.
    Write,
    /// Both.
    Both,
}

/// One end of a stream.
#[derive(Debug)]
pub struct Stream {
    config: Config,
    sender: Sender,
    receiver: Receiver,
    iomaps: Iomaps,
    connected: bool,
    /// The peer may still send.
    readable: bool,
    /// We may still send.
    writable: bool,
    /// One of both has said that it is over.
    disconnected: bool,
    failure: Option<Failure>,
    shut_down_writing: bool,
    /// Said as soon as there is a slot for it.
    farewell: Option<Control>,
}

impl Stream {
    /// An end that is not connected yet.
    pub fn new(config: Config) -> Self {
        Self {
            sender: Sender::new(
                config.messaging,
                config.send_buffer,
                config.send_slots,
                CONTROLS,
            ),
            receiver: Receiver::new(config.recv_buffer, config.credits),
            iomaps: Iomaps::new(config.iomap_size.entries()),
            config,
            connected: false,
            readable: true,
            writable: true,
            disconnected: false,
            failure: None,
            shut_down_writing: false,
            farewell: None,
        }
    }

    /// What it was made of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the peer has to know, for the request or the reply.
    pub fn connect_data(&self) -> ConnectData {
        ConnectData {
            credits: self.config.credits,
            iomap_size: self.config.iomap_size,
            target_list: RemoteBuffer {
                addr: self.config.target_list.addr,
                rkey: self.config.target_list.rkey,
                length: TARGETS,
            },
            window: self.receiver.first_window(),
            // Whatever the order of this host is: it is we who read what the peer writes.
            ..ConnectData::new(ByteOrder::Little)
        }
    }

    /// Reads a peer's connection data; what is behind it does not matter.
    pub fn parse_connect_data(octets: &[u8]) -> Result<ConnectData, Refusal> {
        let data = ConnectData::parse(&mut softverbs_wire::Reader::new(octets))
            .map_err(|_| Refusal::NotRsockets)?;
        if data.version != ConnectData::VERSION {
            return Err(Refusal::Version(data.version));
        }
        if data.target_list.length == 0 {
            return Err(Refusal::NotRsockets);
        }
        Ok(data)
    }

    /// The peer's data is here: requests may be posted.
    pub fn connected(&mut self, peer: &ConnectData) {
        self.sender.connected(peer);
        self.receiver.connected(peer);
        self.iomaps.connected(peer);
        self.connected = true;
    }

    /// A message has arrived. Its receive is to be posted again.
    pub fn on_message(&mut self, message: Message, list: &mut impl TargetList) {
        match message {
            Message::Data(octets) => {
                if self.receiver.on_data(octets).is_err() {
                    self.fail(Failure::Overrun);
                }
            }
            Message::Window(credits) => self.sender.on_window(credits, list),
            Message::Iomap(index) => {
                self.receiver.on_other();
                self.iomaps.on_mapped(index, list);
            }
            Message::Control(Control::Disconnect) => self.disconnect(),
            Message::Control(Control::Shutdown) if self.writable => self.readable = false,
            Message::Control(Control::Shutdown) => self.disconnect(),
            // For others to come, as rdma-core does.
            Message::Control(_) | Message::Other(_) => {}
        }
    }

    /// The oldest [`Post`] has completed.
    pub fn on_sent(&mut self) {
        self.sender.on_sent();
    }

    /// The connection is gone. All messages that came before have been reported.
    pub fn on_lost(&mut self) {
        if !self.disconnected {
            self.fail(Failure::Lost);
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.disconnect();
    }

    fn disconnect(&mut self) {
        self.disconnected = true;
        self.readable = false;
        self.writable = false;
    }

    /// Whether it is connected and neither end has said that it is over.
    pub fn is_connected(&self) -> bool {
        self.connected && !self.disconnected
    }

    /// Whether it was connected and is over.
    pub fn is_disconnected(&self) -> bool {
        self.disconnected
    }

    /// Whether the peer may still send.
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether this end may still send.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether this end has said that it sends no more.
    pub fn has_shut_down_writing(&self) -> bool {
        self.shut_down_writing
    }

    /// Why it has failed.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Octets that have arrived and were not read.
    pub fn available(&self) -> usize {
        self.receiver.available()
    }

    /// Where in the receive buffer up to `len` of them are, `skip` octets from the first.
    pub fn peek(&self, skip: usize, len: usize) -> Pieces {
        self.receiver.peek(skip, len)
    }

    /// The oldest `len` of them have been read.
    pub fn consume(&mut self, len: usize) {
        self.receiver.consume(len);
    }

    /// Whether data may be sent now.
    pub fn can_send(&self) -> bool {
        self.connected && self.writable && self.sender.can_send()
    }

    /// Whether octets may be written to a mapped region now.
    pub fn can_write(&self) -> bool {
        self.connected && self.writable && self.sender.can_write()
    }

    /// Room in the send buffer for one message of up to `len` octets; `None` while
    /// [`can_send`](Self::can_send) says no.
    pub fn reserve(&self, len: usize) -> Option<Reserved> {
        (self.can_send() && len > 0).then(|| self.sender.reserve(len.min(self.sender.room())))
    }

    /// The octets are in the send buffer.
    pub fn commit(&mut self, reserved: Reserved) -> Post {
        self.sender.commit(reserved)
    }

    /// One message of `len` octets that go inline, if they may be sent now, and at once.
    pub fn send_inline(&mut self, len: usize) -> Option<Post> {
        (self.can_send() && len <= self.sender.room()).then(|| self.sender.commit_inline(len))
    }

    /// Where `offset` of the peer's mapped regions is, and how many octets may be written there.
    pub fn find_region(&self, offset: u64) -> Option<(Target, usize)> {
        self.iomaps.find(offset)
    }

    /// Room in the send buffer for a write of up to `len` octets to a mapped region; `None` while
    /// [`can_write`](Self::can_write) says no.
    pub fn reserve_write(&self, len: usize) -> Option<Reserved> {
        (self.can_write() && len > 0).then(|| self.sender.reserve(len))
    }

    /// The octets are in the send buffer, and go to `remote`.
    pub fn commit_write(&mut self, reserved: Reserved, remote: Target) -> Post {
        self.sender.commit_to(reserved, remote)
    }

    /// Maps a region for the peer; returns its entry in the peer's table. The peer hears of it
    /// with the next [`next_region`](Self::next_region).
    pub fn map_region(&mut self, region: &Iomap) -> Result<u32, TableFull> {
        self.iomaps.map(region)
    }

    /// Takes a mapped region back. Its key is to be made invalid by the caller.
    pub fn unmap_region(&mut self, index: u32) {
        self.iomaps.unmap(index);
    }

    /// Whether the peer has to be told of mapped regions. That comes before data.
    pub fn has_region_news(&self) -> bool {
        self.iomaps.has_news()
    }

    /// Whether the peer may be told now.
    pub fn can_tell_region(&self) -> bool {
        self.connected && self.writable && self.sender.can_announce()
    }

    /// Tells the peer of the next mapped region, if that may be sent now.
    pub fn next_region(&mut self) -> Option<Post> {
        if !self.can_tell_region() {
            return None;
        }
        let (index, octets, place) = self.iomaps.next()?;
        Some(self.sender.announce(&octets, place, Message::Iomap(index)))
    }

    /// The next post that the application did not ask for: windows, credits, the farewell. To be
    /// asked for after everything else, until there is none.
    pub fn next_control(&mut self) -> Option<Post> {
        if !self.connected || !self.sender.can_send_control() {
            return None;
        }
        if let Some(farewell) = self.farewell.take() {
            self.sender.post_control();
            return Some(message(Message::Control(farewell)));
        }
        if !self.is_connected() || !self.receiver.wants_to_give() {
            return None;
        }
        self.sender.post_control();
        Some(self.receiver.give())
    }

    /// A post that the peer does not notice, but whose failure is noticed here.
    pub fn keepalive(&mut self) -> Option<Post> {
        if !self.is_connected() || !self.sender.can_send_control() {
            return None;
        }
        self.sender.post_control();
        Some(Post {
            payload: Payload::None,
            remote: Target::default(),
            message: None,
        })
    }

    /// Ends a direction. The peer hears of it with [`next_control`](Self::next_control).
    pub fn shutdown(&mut self, how: Shutdown) {
        if !self.is_connected() {
            return;
        }
        let had = (self.readable, self.writable);
        self.shut_down_writing |= how != Shutdown::Read;
        self.readable &= how == Shutdown::Write;
        self.writable &= how == Shutdown::Read;
        if had == (self.readable, self.writable) || self.writable {
            return;
        }
        if self.readable {
            self.farewell = Some(Control::Shutdown);
        } else {
            self.farewell = Some(Control::Disconnect);
            self.disconnected = true;
        }
    }

    /// Whether everything that was to be said has been said and delivered.
    pub fn is_drained(&self) -> bool {
        self.farewell.is_none() && self.sender.is_idle()
    }
}

fn message(message: Message) -> Post {
    Post {
        payload: Payload::None,
        remote: Target::default(),
        message: Some(message),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
