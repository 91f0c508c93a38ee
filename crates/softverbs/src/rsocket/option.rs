//! Options of sockets.

use std::time::Duration;

use softverbs_wire::rsocket::IomapSize;

/// Sizes of a stream's buffers and queues. They are fixed when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) send_buffer: usize,
    pub(super) recv_buffer: usize,
    pub(super) send_queue: u16,
    pub(super) recv_queue: u16,
    pub(super) inline_data: u32,
    pub(super) iomap_size: IomapSize,
}

/// Less than this a queue does not have.
const LEAST_QUEUE: u16 = 16;
/// Most entries of a queue: a device has up to 32,768, and over iWARP a message takes two.
const MOST_QUEUE: u16 = 16_000;
/// Most octets of inline data.
const MOST_INLINE: u32 = 1024;
/// Least octets of a send buffer.
const LEAST_SEND_BUFFER: usize = 4096;
/// Most octets of a buffer: half of it has to fit into 29 bits.
const MOST_BUFFER: usize = 1 << 29;

impl Default for Sizes {
    /// rdma-core's.
    fn default() -> Self {
        Self {
            send_buffer: 1 << 17,
            recv_buffer: 1 << 17,
            send_queue: 384,
            recv_queue: 384,
            inline_data: 64,
            iomap_size: IomapSize::new(0),
        }
    }
}

/// An option and its value, for [`RSocket::set_option`](super::RSocket::set_option).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RSockOpt {
    /// SO_REUSEADDR: bind to a port whose former connections still linger. Before `bind`.
    ReuseAddr(bool),
    /// SO_RCVBUF in octets; doubled, as the kernel does. Before `connect` and `accept`.
    RecvBuffer(usize),
    /// SO_SNDBUF in octets; doubled, as the kernel does. Before `connect` and `accept`.
    SendBuffer(usize),
    /// SO_LINGER: how long closing may wait for what is still to be delivered (default: 10 s).
    /// `None`: the default.
    Linger(Option<Duration>),
    /// SO_KEEPALIVE: ask now and then whether the peer is still there.
    Keepalive(bool),
    /// TCP_KEEPIDLE: after how long a silence. EINVAL for less than 1 s.
    KeepaliveIdle(Duration),
    /// SO_OOBINLINE: kept, without effect: there is no urgent data.
    OobInline(bool),
    /// TCP_NODELAY: kept, without effect: nothing is ever held back.
    NoDelay(bool),
    /// IPV6_V6ONLY: an IPv6 wildcard does not accept IPv4. Before `bind`.
    V6Only(bool),
    /// RDMA_SQSIZE: messages of data that may be on their way (16 ..= 16,000).
    SendQueue(u32),
    /// RDMA_RQSIZE: messages of data that the peer may have on its way (16 ..= 16,000).
    RecvQueue(u32),
    /// RDMA_INLINE: up to how many octets are sent without the send buffer.
    Inline(u32),
    /// RDMA_IOMAPSIZE: regions that the peer may map.
    IomapSize(u32),
}

/// What a socket was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) sizes: Sizes,
    pub(super) reuse_addr: bool,
    pub(super) linger: Option<Duration>,
    pub(super) keepalive: bool,
    pub(super) keepalive_idle: Duration,
    pub(super) oob_inline: bool,
    pub(super) no_delay: bool,
    pub(super) v6_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sizes: Sizes::default(),
            reuse_addr: false,
            linger: None,
            keepalive: false,
            keepalive_idle: Duration::from_secs(7200),
            oob_inline: false,
            no_delay: false,
            v6_only: false,
        }
    }
}

fn queue(entries: u32) -> u16 {
    u16::try_from(entries)
        .unwrap_or(u16::MAX)
        .clamp(LEAST_QUEUE, MOST_QUEUE)
}

impl Options {
    /// Keeps a value. `false`: it is none that there may be.
    pub(super) fn keep(&mut self, option: RSockOpt) -> bool {
        let sizes = &mut self.sizes;
        match option {
            RSockOpt::ReuseAddr(on) => self.reuse_addr = on,
            RSockOpt::RecvBuffer(octets) => {
                sizes.recv_buffer = octets.saturating_mul(2).clamp(2, MOST_BUFFER);
            }
            RSockOpt::SendBuffer(octets) => {
                let doubled = octets.saturating_mul(2);
                sizes.send_buffer = doubled.clamp(LEAST_SEND_BUFFER, MOST_BUFFER);
            }
            RSockOpt::Linger(limit) => self.linger = limit,
            RSockOpt::Keepalive(on) => self.keepalive = on,
            RSockOpt::KeepaliveIdle(idle) if idle < Duration::from_secs(1) => return false,
            RSockOpt::KeepaliveIdle(idle) => self.keepalive_idle = idle,
            RSockOpt::OobInline(on) => self.oob_inline = on,
            RSockOpt::NoDelay(on) => self.no_delay = on,
            RSockOpt::V6Only(on) => self.v6_only = on,
            RSockOpt::SendQueue(entries) => sizes.send_queue = queue(entries),
            RSockOpt::RecvQueue(entries) => sizes.recv_queue = queue(entries),
            RSockOpt::Inline(octets) => sizes.inline_data = octets.min(MOST_INLINE),
            RSockOpt::IomapSize(entries) => {
                let entries = u16::try_from(entries).unwrap_or(u16::MAX);
                sizes.iomap_size = IomapSize::at_most(entries);
            }
        }
        true
    }
}

/// Names an option whose value is asked for, by
/// [`RSocket::option`](super::RSocket::option).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "see RSockOpt")]
pub enum RSockOptName {
    ReuseAddr,
    RecvBuffer,
    SendBuffer,
    Linger,
    Keepalive,
    KeepaliveIdle,
    OobInline,
    NoDelay,
    V6Only,
    SendQueue,
    RecvQueue,
    Inline,
    IomapSize,
}

impl Options {
    /// The value of an option. Buffers are as large as they are: twice of what was set.
    pub(super) fn value(&self, name: RSockOptName) -> RSockOpt {
        let sizes = &self.sizes;
        match name {
            RSockOptName::ReuseAddr => RSockOpt::ReuseAddr(self.reuse_addr),
            RSockOptName::RecvBuffer => RSockOpt::RecvBuffer(sizes.recv_buffer),
            RSockOptName::SendBuffer => RSockOpt::SendBuffer(sizes.send_buffer),
            RSockOptName::Linger => RSockOpt::Linger(self.linger),
            RSockOptName::Keepalive => RSockOpt::Keepalive(self.keepalive),
            RSockOptName::KeepaliveIdle => RSockOpt::KeepaliveIdle(self.keepalive_idle),
            RSockOptName::OobInline => RSockOpt::OobInline(self.oob_inline),
            RSockOptName::NoDelay => RSockOpt::NoDelay(self.no_delay),
            RSockOptName::V6Only => RSockOpt::V6Only(self.v6_only),
            RSockOptName::SendQueue => RSockOpt::SendQueue(sizes.send_queue.into()),
            RSockOptName::RecvQueue => RSockOpt::RecvQueue(sizes.recv_queue.into()),
            RSockOptName::Inline => RSockOpt::Inline(sizes.inline_data),
            RSockOptName::IomapSize => RSockOpt::IomapSize(sizes.iomap_size.entries().into()),
        }
    }
}
