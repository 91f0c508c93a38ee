//! What a frame is, as far as rules can ask for it.

use std::fmt;

/// Which way a frame passes the edge of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

impl Direction {
    /// `in` or `out`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What carries a kind of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// A UDP datagram of RoCEv2.
    Datagram,
    /// A TCP stream of iWARP.
    Stream,
    /// Either of them.
    Both,
}

macro_rules! kinds {
    ($($name:ident $carrier:ident $word:literal $what:literal;)*) => {
        /// A kind of frame. A frame is of several kinds at once: an RTU is also a
        /// [`Cm`](Kind::Cm), a [`Packet`](Kind::Packet) and an [`Any`](Kind::Any).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $(#[doc = $what] $name,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in a rule.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// What carries it.
            pub const fn carrier(self) -> Carrier {
                match self {
                    $(Self::$name => Carrier::$carrier,)*
                }
            }
        }
    };
}

kinds! {
    Any Both "any" "Everything: RoCE packets and iWARP frames.";
    Packet Datagram "packet" "Every RoCE packet.";
    Cm Datagram "cm" "Every datagram to the connection manager (QP1).";
    Req Datagram "req" "CM: connect request.";
    Mra Datagram "mra" "CM: message receipt acknowledgement.";
    Rej Datagram "rej" "CM: reject.";
    Rep Datagram "rep" "CM: reply.";
    Rtu Datagram "rtu" "CM: ready to use.";
    Dreq Datagram "dreq" "CM: disconnect request.";
    Drep Datagram "drep" "CM: disconnect reply.";
    SidrReq Datagram "sidr-req" "CM: service ID resolution request.";
    SidrRep Datagram "sidr-rep" "CM: service ID resolution reply.";
    Lap Datagram "lap" "CM: load alternate path.";
    Apr Datagram "apr" "CM: alternate path response.";
    Data Datagram "data" "Every packet of a queue pair, requests and responses: what is not `cm`.";
    Request Datagram "request" "Every packet of a requester.";
    Message Datagram "message" "The first packet of each request message.";
    Send Datagram "send" "SEND, any packet of it, datagrams included.";
    Write Datagram "write" "RDMA WRITE, any packet of it.";
    ReadRequest Datagram "read-request" "RDMA READ request.";
    Atomic Datagram "atomic" "Request of an atomic operation.";
    Response Datagram "response" "Every packet of a responder.";
    ReadResponse Datagram "read-response" "RDMA READ response, any packet of it.";
    AtomicAck Datagram "atomic-ack" "Response to an atomic operation.";
    Ack Datagram "ack" "Acknowledge, positive.";
    Nak Datagram "nak" "Acknowledge, negative; RNR NAKs too.";
    Rnr Datagram "rnr" "RNR NAK.";
    Cnp Datagram "cnp" "Congestion notification.";
    Frame Stream "frame" "Every iWARP frame: MPA start-up frames and FPDUs.";
    MpaRequest Stream "mpa-request" "MPA request frame.";
    MpaReply Stream "mpa-reply" "MPA reply frame.";
    Fpdu Stream "fpdu" "FPDU, Terminate too.";
    Terminate Stream "terminate" "FPDU with a Terminate message.";
}

impl Kind {
    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Kinds(u64);

impl Kinds {
    /// Those of a list.
    pub const fn of(list: &[Kind]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < list.len() {
            bits |= 1 << list[index] as u8;
            index += 1;
        }
        Self(bits)
    }

    /// With one more.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }

    /// Whether a kind is in it.
    pub const fn contains(self, kind: Kind) -> bool {
        self.0 >> kind as u8 & 1 != 0
    }

    /// Whether the sets have a kind in common.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The kinds, from general to particular.
    pub fn iter(self) -> impl Iterator<Item = Kind> {
        Kind::ALL
            .iter()
            .copied()
            .filter(move |kind| self.contains(*kind))
    }

    /// The most particular kind.
    pub fn most_particular(self) -> Kind {
        self.iter().last().unwrap_or(Kind::Any)
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for kind in self.iter() {
            write!(f, "{separator}{kind}")?;
            separator = "+";
        }
        Ok(())
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kinds({self})")
    }
}
