//! The operation code of a packet (IBA vol 1 ch 9, BTH).

use std::fmt;

mod table;

/// What a packet is: the service that it belongs to and what it does there. Codes without a name
/// here are kept as they are.
///
/// All that is known of a code is one line of one table; see [`info`](Self::info).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

/// Which transport service a packet belongs to: the top three bits of its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram.
    Rd = 2,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification, which is of no service (IBA annex A17).
    Cnp = 4,
    /// Extended reliable connection (IBA annex A14).
    Xrc = 5,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Rc, Self::Uc, Self::Rd, Self::Ud, Self::Cnp, Self::Xrc];

    /// The name of the field.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Rd => "RD",
            Self::Ud => "UD",
            Self::Cnp => "CNP",
            Self::Xrc => "XRC",
        }
    }

    /// Whether what is lost is sent again.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Rd | Self::Xrc)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a packet does, whichever of its message's packets it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// SEND: to the receive queue.
    Send = 0,
    /// RDMA WRITE: to memory that the request names.
    Write = 1,
    /// RDMA READ request.
    ReadRequest = 2,
    /// RDMA READ response.
    ReadResponse = 3,
    /// Acknowledge, positive or negative.
    Acknowledge = 4,
    /// The answer to an atomic operation.
    AtomicAcknowledge = 5,
    /// Compare and swap.
    CmpSwap = 6,
    /// Fetch and add.
    FetchAdd = 7,
    /// Resynchronisation, of reliable datagrams.
    Resync = 8,
    /// FLUSH: makes earlier writes visible or persistent.
    Flush = 9,
    /// ATOMIC WRITE: eight octets at once.
    AtomicWrite = 10,
    /// Congestion notification (IBA annex A17).
    CongestionNotification = 11,
}

impl Operation {
    /// Whether a responder sends it, in answer to a request.
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge
        )
    }

    /// Whether it carries data between the headers and the ICRC.
    pub const fn has_payload(self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::Write
                | Self::ReadResponse
                | Self::AtomicWrite
                | Self::CongestionNotification
        )
    }

    /// Whether it is one of the two that change 64 bits and return what they were.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd)
    }
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Position {
    /// The first of several.
    First = 0,
    /// Neither first nor last.
    Middle = 1,
    /// The last of several.
    Last = 2,
    /// The whole message.
    Only = 3,
}

impl Position {
    /// Of a packet that does or does not start and end its message.
    pub const fn new(starts: bool, ends: bool) -> Self {
        match (starts, ends) {
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
            (true, true) => Self::Only,
        }
    }

    /// Whether the message starts with this packet.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the message ends with this packet.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What the last packet of a SEND or RDMA WRITE has for the receiver besides the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Extra {
    /// Nothing.
    #[default]
    None = 0,
    /// Immediate data.
    Immediate = 1,
    /// A key to invalidate.
    Invalidate = 2,
}

/// An extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExtensionHeader {
    /// Reliable datagram extended transport header.
    Rdeth = 0,
    /// Datagram extended transport header.
    Deth = 1,
    /// XRC extended transport header.
    Xrceth = 2,
    /// FLUSH extended transport header.
    Feth = 3,
    /// RDMA extended transport header.
    Reth = 4,
    /// Atomic extended transport header.
    AtomicEth = 5,
    /// ACK extended transport header.
    Aeth = 6,
    /// Atomic ACK extended transport header.
    AtomicAckEth = 7,
    /// Immediate data.
    ImmDt = 8,
    /// Invalidate extended transport header.
    Ieth = 9,
}

impl ExtensionHeader {
    /// All of them, in the order in which they follow the BTH: it is the same for every opcode.
    pub const ALL: [Self; 10] = [
        Self::Rdeth,
        Self::Deth,
        Self::Xrceth,
        Self::Feth,
        Self::Reth,
        Self::AtomicEth,
        Self::Aeth,
        Self::AtomicAckEth,
        Self::ImmDt,
        Self::Ieth,
    ];

    /// Length on the wire.
    pub const fn header_len(self) -> usize {
        match self {
            Self::Rdeth => super::Rdeth::LEN,
            Self::Deth => super::Deth::LEN,
            Self::Xrceth => super::Xrceth::LEN,
            Self::Feth => super::Feth::LEN,
            Self::Reth => super::Reth::LEN,
            Self::AtomicEth => super::AtomicEth::LEN,
            Self::Aeth => super::Aeth::LEN,
            Self::AtomicAckEth => super::AtomicAckEth::LEN,
            Self::ImmDt => super::ImmDt::LEN,
            Self::Ieth => super::Ieth::LEN,
        }
    }
}

/// A set of extension headers. Their order is that of [`ExtensionHeader::ALL`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Extensions(u16);

impl Extensions {
    /// No extension header.
    pub const NONE: Self = Self(0);

    /// These too.
    #[must_use]
    pub const fn with(self, header: ExtensionHeader) -> Self {
        Self(self.0 | 1 << header as u8)
    }

    /// Whether `header` is among them.
    pub const fn contains(self, header: ExtensionHeader) -> bool {
        self.0 >> header as u8 & 1 != 0
    }

    /// The headers in their order.
    pub fn iter(self) -> impl Iterator<Item = ExtensionHeader> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let first = ExtensionHeader::ALL.get(rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(*first)
        })
    }

    /// Length of all of them.
    pub const fn header_len(self) -> usize {
        let mut len = 0;
        let mut index = 0;
        while index < ExtensionHeader::ALL.len() {
            let header = ExtensionHeader::ALL[index];
            if self.contains(header) {
                len += header.header_len();
            }
            index += 1;
        }
        len
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// All that an opcode says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// The name in the words of the IBA, with the service before it.
    pub name: &'static str,
    /// The transport service.
    pub service: Service,
    /// What the packet does.
    pub operation: Operation,
    /// Where in its message it stands.
    pub position: Position,
    /// The extension headers that follow the BTH.
    pub extensions: Extensions,
    /// Length of all headers, BTH included.
    pub header_len: usize,
}

impl OpcodeInfo {
    /// Whether a requester sends it. Neither this nor [`is_response`](Self::is_response) is true
    /// of congestion notification.
    pub const fn is_request(&self) -> bool {
        !self.is_response() && !matches!(self.operation, Operation::CongestionNotification)
    }

    /// Whether a responder sends it, in answer to a request.
    pub const fn is_response(&self) -> bool {
        self.operation.is_response()
    }

    /// Whether it carries data between the headers and the ICRC.
    pub const fn has_payload(&self) -> bool {
        self.operation.has_payload()
    }

    /// Whether it carries immediate data.
    pub const fn has_immediate(&self) -> bool {
        self.extensions.contains(ExtensionHeader::ImmDt)
    }

    /// Whether it makes the receiver invalidate a key.
    pub const fn invalidates(&self) -> bool {
        self.extensions.contains(ExtensionHeader::Ieth)
    }

    /// What it has for the receiver besides the payload.
    pub const fn extra(&self) -> Extra {
        if self.has_immediate() {
            Extra::Immediate
        } else if self.invalidates() {
            Extra::Invalidate
        } else {
            Extra::None
        }
    }

    /// Whether the responder takes a receive work request for it: the first packet of a SEND, and
    /// the packet of an RDMA WRITE that has immediate data.
    pub const fn takes_receive(&self) -> bool {
        match self.operation {
            Operation::Send => self.position.starts(),
            Operation::Write => self.has_immediate(),
            _ => false,
        }
    }

    /// Whether the responder completes a receive work request with it.
    pub const fn completes_receive(&self) -> bool {
        match self.operation {
            Operation::Send => self.position.ends(),
            Operation::Write => self.has_immediate(),
            _ => false,
        }
    }
}

/// The table of opcodes: code, name of the constant, what the packet is, name in words.
macro_rules! opcodes {
    ($($code:literal $name:ident = $service:ident $operation:ident $position:ident
       [$($extension:ident)*] $words:literal;)*) => {
        impl Opcode {
            $(#[doc = concat!($words, ": ", $code, ".")] pub const $name: Self = Self($code);)*

            /// All codes that have a name.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }

        /// One line for each code, in the order of [`Opcode::ALL`].
        const ROWS: [OpcodeInfo; Opcode::ALL.len()] = [$(table::row(
            $words,
            Service::$service,
            Operation::$operation,
            Position::$position,
            Extensions::NONE$(.with(ExtensionHeader::$extension))*,
        ),)*];
    };
}

opcodes! {
    // reliable connection
    0x00 RC_SEND_FIRST = Rc Send First [] "RC SEND First";
    0x01 RC_SEND_MIDDLE = Rc Send Middle [] "RC SEND Middle";
    0x02 RC_SEND_LAST = Rc Send Last [] "RC SEND Last";
    0x03 RC_SEND_LAST_IMMEDIATE = Rc Send Last [ImmDt] "RC SEND Last with Immediate";
    0x04 RC_SEND_ONLY = Rc Send Only [] "RC SEND Only";
    0x05 RC_SEND_ONLY_IMMEDIATE = Rc Send Only [ImmDt] "RC SEND Only with Immediate";
    0x06 RC_WRITE_FIRST = Rc Write First [Reth] "RC RDMA WRITE First";
    0x07 RC_WRITE_MIDDLE = Rc Write Middle [] "RC RDMA WRITE Middle";
    0x08 RC_WRITE_LAST = Rc Write Last [] "RC RDMA WRITE Last";
    0x09 RC_WRITE_LAST_IMMEDIATE = Rc Write Last [ImmDt] "RC RDMA WRITE Last with Immediate";
    0x0a RC_WRITE_ONLY = Rc Write Only [Reth] "RC RDMA WRITE Only";
    0x0b RC_WRITE_ONLY_IMMEDIATE = Rc Write Only [Reth ImmDt] "RC RDMA WRITE Only with Immediate";
    0x0c RC_READ_REQUEST = Rc ReadRequest Only [Reth] "RC RDMA READ Request";
    0x0d RC_READ_RESPONSE_FIRST = Rc ReadResponse First [Aeth] "RC RDMA READ response First";
    0x0e RC_READ_RESPONSE_MIDDLE = Rc ReadResponse Middle [] "RC RDMA READ response Middle";
    0x0f RC_READ_RESPONSE_LAST = Rc ReadResponse Last [Aeth] "RC RDMA READ response Last";
    0x10 RC_READ_RESPONSE_ONLY = Rc ReadResponse Only [Aeth] "RC RDMA READ response Only";
    0x11 RC_ACKNOWLEDGE = Rc Acknowledge Only [Aeth] "RC Acknowledge";
    0x12 RC_ATOMIC_ACKNOWLEDGE = Rc AtomicAcknowledge Only [Aeth AtomicAckEth] "RC ATOMIC Acknowledge";
    0x13 RC_CMP_SWAP = Rc CmpSwap Only [AtomicEth] "RC CmpSwap";
    0x14 RC_FETCH_ADD = Rc FetchAdd Only [AtomicEth] "RC FetchAdd";
    0x16 RC_SEND_LAST_INVALIDATE = Rc Send Last [Ieth] "RC SEND Last with Invalidate";
    0x17 RC_SEND_ONLY_INVALIDATE = Rc Send Only [Ieth] "RC SEND Only with Invalidate";
    0x1c RC_FLUSH = Rc Flush Only [Feth Reth] "RC FLUSH";
    0x1d RC_ATOMIC_WRITE = Rc AtomicWrite Only [Reth] "RC ATOMIC WRITE";
    // unreliable connection
    0x20 UC_SEND_FIRST = Uc Send First [] "UC SEND First";
    0x21 UC_SEND_MIDDLE = Uc Send Middle [] "UC SEND Middle";
    0x22 UC_SEND_LAST = Uc Send Last [] "UC SEND Last";
    0x23 UC_SEND_LAST_IMMEDIATE = Uc Send Last [ImmDt] "UC SEND Last with Immediate";
    0x24 UC_SEND_ONLY = Uc Send Only [] "UC SEND Only";
    0x25 UC_SEND_ONLY_IMMEDIATE = Uc Send Only [ImmDt] "UC SEND Only with Immediate";
    0x26 UC_WRITE_FIRST = Uc Write First [Reth] "UC RDMA WRITE First";
    0x27 UC_WRITE_MIDDLE = Uc Write Middle [] "UC RDMA WRITE Middle";
    0x28 UC_WRITE_LAST = Uc Write Last [] "UC RDMA WRITE Last";
    0x29 UC_WRITE_LAST_IMMEDIATE = Uc Write Last [ImmDt] "UC RDMA WRITE Last with Immediate";
    0x2a UC_WRITE_ONLY = Uc Write Only [Reth] "UC RDMA WRITE Only";
    0x2b UC_WRITE_ONLY_IMMEDIATE = Uc Write Only [Reth ImmDt] "UC RDMA WRITE Only with Immediate";
    // reliable datagram
    0x40 RD_SEND_FIRST = Rd Send First [Rdeth Deth] "RD SEND First";
    0x41 RD_SEND_MIDDLE = Rd Send Middle [Rdeth Deth] "RD SEND Middle";
    0x42 RD_SEND_LAST = Rd Send Last [Rdeth Deth] "RD SEND Last";
    0x43 RD_SEND_LAST_IMMEDIATE = Rd Send Last [Rdeth Deth ImmDt] "RD SEND Last with Immediate";
    0x44 RD_SEND_ONLY = Rd Send Only [Rdeth Deth] "RD SEND Only";
    0x45 RD_SEND_ONLY_IMMEDIATE = Rd Send Only [Rdeth Deth ImmDt] "RD SEND Only with Immediate";
    0x46 RD_WRITE_FIRST = Rd Write First [Rdeth Deth Reth] "RD RDMA WRITE First";
    0x47 RD_WRITE_MIDDLE = Rd Write Middle [Rdeth Deth] "RD RDMA WRITE Middle";
    0x48 RD_WRITE_LAST = Rd Write Last [Rdeth Deth] "RD RDMA WRITE Last";
    0x49 RD_WRITE_LAST_IMMEDIATE = Rd Write Last [Rdeth Deth ImmDt] "RD RDMA WRITE Last with Immediate";
    0x4a RD_WRITE_ONLY = Rd Write Only [Rdeth Deth Reth] "RD RDMA WRITE Only";
    0x4b RD_WRITE_ONLY_IMMEDIATE = Rd Write Only [Rdeth Deth Reth ImmDt] "RD RDMA WRITE Only with Immediate";
    0x4c RD_READ_REQUEST = Rd ReadRequest Only [Rdeth Deth Reth] "RD RDMA READ Request";
    0x4d RD_READ_RESPONSE_FIRST = Rd ReadResponse First [Rdeth Aeth] "RD RDMA READ response First";
    0x4e RD_READ_RESPONSE_MIDDLE = Rd ReadResponse Middle [Rdeth] "RD RDMA READ response Middle";
    0x4f RD_READ_RESPONSE_LAST = Rd ReadResponse Last [Rdeth Aeth] "RD RDMA READ response Last";
    0x50 RD_READ_RESPONSE_ONLY = Rd ReadResponse Only [Rdeth Aeth] "RD RDMA READ response Only";
    0x51 RD_ACKNOWLEDGE = Rd Acknowledge Only [Rdeth Aeth] "RD Acknowledge";
    0x52 RD_ATOMIC_ACKNOWLEDGE = Rd AtomicAcknowledge Only [Rdeth Aeth AtomicAckEth] "RD ATOMIC Acknowledge";
    0x53 RD_CMP_SWAP = Rd CmpSwap Only [Rdeth Deth AtomicEth] "RD CmpSwap";
    0x54 RD_FETCH_ADD = Rd FetchAdd Only [Rdeth Deth AtomicEth] "RD FetchAdd";
    0x55 RD_RESYNC = Rd Resync Only [Rdeth Deth] "RD RESYNC";
    // unreliable datagram
    0x64 UD_SEND_ONLY = Ud Send Only [Deth] "UD SEND Only";
    0x65 UD_SEND_ONLY_IMMEDIATE = Ud Send Only [Deth ImmDt] "UD SEND Only with Immediate";
    // congestion notification (IBA annex A17)
    0x81 CNP = Cnp CongestionNotification Only [] "CNP";
    // extended reliable connection (IBA annex A14)
    0xa0 XRC_SEND_FIRST = Xrc Send First [Xrceth] "XRC SEND First";
    0xa1 XRC_SEND_MIDDLE = Xrc Send Middle [Xrceth] "XRC SEND Middle";
    0xa2 XRC_SEND_LAST = Xrc Send Last [Xrceth] "XRC SEND Last";
    0xa3 XRC_SEND_LAST_IMMEDIATE = Xrc Send Last [Xrceth ImmDt] "XRC SEND Last with Immediate";
    0xa4 XRC_SEND_ONLY = Xrc Send Only [Xrceth] "XRC SEND Only";
    0xa5 XRC_SEND_ONLY_IMMEDIATE = Xrc Send Only [Xrceth ImmDt] "XRC SEND Only with Immediate";
    0xa6 XRC_WRITE_FIRST = Xrc Write First [Xrceth Reth] "XRC RDMA WRITE First";
    0xa7 XRC_WRITE_MIDDLE = Xrc Write Middle [Xrceth] "XRC RDMA WRITE Middle";
    0xa8 XRC_WRITE_LAST = Xrc Write Last [Xrceth] "XRC RDMA WRITE Last";
    0xa9 XRC_WRITE_LAST_IMMEDIATE = Xrc Write Last [Xrceth ImmDt] "XRC RDMA WRITE Last with Immediate";
    0xaa XRC_WRITE_ONLY = Xrc Write Only [Xrceth Reth] "XRC RDMA WRITE Only";
    0xab XRC_WRITE_ONLY_IMMEDIATE = Xrc Write Only [Xrceth Reth ImmDt] "XRC RDMA WRITE Only with Immediate";
    0xac XRC_READ_REQUEST = Xrc ReadRequest Only [Xrceth Reth] "XRC RDMA READ Request";
    0xad XRC_READ_RESPONSE_FIRST = Xrc ReadResponse First [Aeth] "XRC RDMA READ response First";
    0xae XRC_READ_RESPONSE_MIDDLE = Xrc ReadResponse Middle [] "XRC RDMA READ response Middle";
    0xaf XRC_READ_RESPONSE_LAST = Xrc ReadResponse Last [Aeth] "XRC RDMA READ response Last";
    0xb0 XRC_READ_RESPONSE_ONLY = Xrc ReadResponse Only [Aeth] "XRC RDMA READ response Only";
    0xb1 XRC_ACKNOWLEDGE = Xrc Acknowledge Only [Aeth] "XRC Acknowledge";
    0xb2 XRC_ATOMIC_ACKNOWLEDGE = Xrc AtomicAcknowledge Only [Aeth AtomicAckEth] "XRC ATOMIC Acknowledge";
    0xb3 XRC_CMP_SWAP = Xrc CmpSwap Only [Xrceth AtomicEth] "XRC CmpSwap";
    0xb4 XRC_FETCH_ADD = Xrc FetchAdd Only [Xrceth AtomicEth] "XRC FetchAdd";
    0xb6 XRC_SEND_LAST_INVALIDATE = Xrc Send Last [Xrceth Ieth] "XRC SEND Last with Invalidate";
    0xb7 XRC_SEND_ONLY_INVALIDATE = Xrc Send Only [Xrceth Ieth] "XRC SEND Only with Invalidate";
}

impl Opcode {
    /// From the code.
    pub const fn new(code: u8) -> Self {
        Self(code)
    }

    /// The code.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// What the code says, if it has a name.
    pub const fn info(self) -> Option<&'static OpcodeInfo> {
        table::INFO[self.0 as usize].as_ref()
    }

    /// The code of a packet of this kind, if there is one: not every service has every operation.
    pub const fn find(
        service: Service,
        operation: Operation,
        position: Position,
        extra: Extra,
    ) -> Option<Self> {
        table::find(service, operation, position, extra)
    }

    /// The operation's name, if it has one.
    pub const fn name(self) -> Option<&'static str> {
        match self.info() {
            Some(info) => Some(info.name),
            None => None,
        }
    }

    /// Whether the code has a name.
    pub const fn is_known(self) -> bool {
        self.info().is_some()
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({:#04x}: {self})", self.0)
    }
}

#[cfg(test)]
mod tests;
