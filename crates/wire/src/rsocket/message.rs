//! The 32 bits that come with every message.

use std::fmt;

use super::memory::ByteOrder;

const OP_SHIFT: u32 = 29;
const DATA_MASK: u32 = (1 << OP_SHIFT) - 1;

const OP_DATA: u32 = 0;
const OP_WINDOW: u32 = 4;
const OP_IOMAP: u32 = 6;
const OP_CONTROL: u32 = 7;

const CONTROL_DISCONNECT: u32 = 0;
const CONTROL_KEEPALIVE: u32 = 1;
const CONTROL_SHUTDOWN: u32 = 2;

/// What has happened: immediate data of an RDMA Write or, where there is none (iWARP), a message
/// of four octets behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// So many octets have been written to where the stream continues.
    Data(u32),
    /// Credits: the number of the first message that may not be sent yet, modulo 2¹⁶. The next
    /// entry of the target list may have been written, too.
    Window(u32),
    /// The entry of this index in the table of mapped regions has been written.
    Iomap(u32),
    /// The connection.
    Control(Control),
    /// A kind that nobody sends, whole.
    Other(u32),
}

/// What a control message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// No more in either direction.
    Disconnect,
    /// Nothing: to see whether the peer is there.
    Keepalive,
    /// No more data from this side.
    Shutdown,
    /// A value that nobody sends.
    Other(u32),
}

impl Message {
    /// Length where it is a message of its own.
    pub const LEN: usize = 4;
    /// The most octets that one message of data can announce.
    pub const MAX_DATA: u32 = DATA_MASK;

    /// From the 32 bits.
    pub const fn new(bits: u32) -> Self {
        let data = bits & DATA_MASK;
        match bits >> OP_SHIFT {
            OP_DATA => Self::Data(data),
            OP_WINDOW => Self::Window(data),
            OP_IOMAP => Self::Iomap(data),
            OP_CONTROL => Self::Control(match data {
                CONTROL_DISCONNECT => Control::Disconnect,
                CONTROL_KEEPALIVE => Control::Keepalive,
                CONTROL_SHUTDOWN => Control::Shutdown,
                other => Control::Other(other),
            }),
            _ => Self::Other(bits),
        }
    }

    /// The 32 bits. Of the numbers inside the low 29 bits count.
    pub const fn get(self) -> u32 {
        let (op, data) = match self {
            Self::Data(octets) => (OP_DATA, octets),
            Self::Window(credits) => (OP_WINDOW, credits),
            Self::Iomap(index) => (OP_IOMAP, index),
            Self::Control(Control::Disconnect) => (OP_CONTROL, CONTROL_DISCONNECT),
            Self::Control(Control::Keepalive) => (OP_CONTROL, CONTROL_KEEPALIVE),
            Self::Control(Control::Shutdown) => (OP_CONTROL, CONTROL_SHUTDOWN),
            Self::Control(Control::Other(other)) => (OP_CONTROL, other),
            Self::Other(bits) => return bits,
        };
        op << OP_SHIFT | (data & DATA_MASK)
    }

    /// From a message of its own; `order` is that of the end that sent it.
    pub const fn from_bytes(octets: [u8; Self::LEN], order: ByteOrder) -> Self {
        Self::new(order.u32(octets))
    }

    /// As a message of its own from an end that keeps numbers in `order`.
    pub const fn to_bytes(self, order: ByteOrder) -> [u8; Self::LEN] {
        order.u32_bytes(self.get())
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(octets) => write!(f, "data of {octets} octets"),
            Self::Window(credits) => write!(f, "credits up to {credits}"),
            Self::Iomap(index) => write!(f, "mapped region {index}"),
            Self::Control(Control::Disconnect) => f.write_str("disconnect"),
            Self::Control(Control::Keepalive) => f.write_str("keep-alive"),
            Self::Control(Control::Shutdown) => f.write_str("shutdown"),
            Self::Control(Control::Other(other)) => write!(f, "control {other}"),
            Self::Other(bits) => write!(f, "message {bits:#010x}"),
        }
    }
}
