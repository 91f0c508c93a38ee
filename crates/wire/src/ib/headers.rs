//! All headers of a packet: the BTH and what its opcode adds.

use std::fmt;

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, ExtensionHeader as Kind, Extensions, Feth, Ieth,
    ImmDt, Opcode, PacketError, Rdeth, Reth, Xrceth,
};

/// The headers of a packet. Which of the optional ones are there is decided by the opcode: see
/// [`OpcodeInfo::extensions`](crate::ib::OpcodeInfo::extensions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The base transport header.
    pub bth: Bth,
    /// Of reliable datagrams.
    pub rdeth: Option<Rdeth>,
    /// Of datagrams.
    pub deth: Option<Deth>,
    /// Of extended reliable connections.
    pub xrceth: Option<Xrceth>,
    /// Of FLUSH requests.
    pub feth: Option<Feth>,
    /// Of RDMA requests.
    pub reth: Option<Reth>,
    /// Of atomic requests.
    pub atomic_eth: Option<AtomicEth>,
    /// Of acknowledges and most READ responses.
    pub aeth: Option<Aeth>,
    /// Of atomic acknowledges.
    pub atomic_ack_eth: Option<AtomicAckEth>,
    /// Immediate data.
    pub imm_dt: Option<ImmDt>,
    /// Of SENDs that invalidate.
    pub ieth: Option<Ieth>,
}

impl Headers {
    /// The longest headers that an opcode of the table has.
    pub const MAX_LEN: usize = {
        let mut max = 0;
        let mut index = 0;
        while index < Opcode::ALL.len() {
            if let Some(info) = Opcode::ALL[index].info()
                && info.header_len > max
            {
                max = info.header_len;
            }
            index += 1;
        }
        max
    };

    /// A BTH alone. The extension headers of its opcode are for the caller to set.
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            rdeth: None,
            deth: None,
            xrceth: None,
            feth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack_eth: None,
            imm_dt: None,
            ieth: None,
        }
    }

    /// The same with this datagram header.
    #[must_use]
    pub const fn with_deth(mut self, deth: Deth) -> Self {
        self.deth = Some(deth);
        self
    }

    /// The same with this RDMA header.
    #[must_use]
    pub const fn with_reth(mut self, reth: Reth) -> Self {
        self.reth = Some(reth);
        self
    }

    /// The same with this atomic header.
    #[must_use]
    pub const fn with_atomic_eth(mut self, atomic_eth: AtomicEth) -> Self {
        self.atomic_eth = Some(atomic_eth);
        self
    }

    /// The same with this acknowledge header.
    #[must_use]
    pub const fn with_aeth(mut self, aeth: Aeth) -> Self {
        self.aeth = Some(aeth);
        self
    }

    /// The same with this result of an atomic operation.
    #[must_use]
    pub const fn with_atomic_ack_eth(mut self, atomic_ack_eth: AtomicAckEth) -> Self {
        self.atomic_ack_eth = Some(atomic_ack_eth);
        self
    }

    /// The same with this immediate data.
    #[must_use]
    pub const fn with_imm_dt(mut self, imm_dt: ImmDt) -> Self {
        self.imm_dt = Some(imm_dt);
        self
    }

    /// The same with this key to invalidate.
    #[must_use]
    pub const fn with_ieth(mut self, ieth: Ieth) -> Self {
        self.ieth = Some(ieth);
        self
    }

    /// Reads the headers. An opcode that the table does not have and a transport version other
    /// than 0 are refused, for nobody knows what follows such a BTH.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, PacketError> {
        let mut ahead = reader.clone();
        let bth = Bth::parse(&mut ahead)?;
        if bth.transport_version != Bth::TRANSPORT_VERSION {
            return Err(PacketError::TransportVersion);
        }
        let info = bth.opcode.info().ok_or(PacketError::UnknownOpcode)?;
        if reader.remaining() < info.header_len {
            return Err(Malformed::Truncated.into());
        }
        let mut headers = Self::new(bth);
        for kind in info.extensions.iter() {
            headers.read(kind, &mut ahead)?;
        }
        *reader = ahead;
        Ok(headers)
    }

    /// Reads one extension header.
    fn read(&mut self, kind: Kind, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        match kind {
            Kind::Rdeth => self.rdeth = Some(Rdeth::parse(reader)?),
            Kind::Deth => self.deth = Some(Deth::parse(reader)?),
            Kind::Xrceth => self.xrceth = Some(Xrceth::parse(reader)?),
            Kind::Feth => self.feth = Some(Feth::parse(reader)?),
            Kind::Reth => self.reth = Some(Reth::parse(reader)?),
            Kind::AtomicEth => self.atomic_eth = Some(AtomicEth::parse(reader)?),
            Kind::Aeth => self.aeth = Some(Aeth::parse(reader)?),
            Kind::AtomicAckEth => self.atomic_ack_eth = Some(AtomicAckEth::parse(reader)?),
            Kind::ImmDt => self.imm_dt = Some(ImmDt::parse(reader)?),
            Kind::Ieth => self.ieth = Some(Ieth::parse(reader)?),
        }
        Ok(())
    }

    /// Writes the headers that are there.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        debug_assert!(
            self.bth
                .opcode
                .info()
                .is_none_or(|info| info.extensions == self.extensions()),
            "{} with the extension headers {:?}",
            self.bth.opcode,
            self.extensions()
        );
        self.bth.emit(writer);
        if let Some(rdeth) = &self.rdeth {
            rdeth.emit(writer);
        }
        if let Some(deth) = &self.deth {
            deth.emit(writer);
        }
        if let Some(xrceth) = &self.xrceth {
            xrceth.emit(writer);
        }
        if let Some(feth) = &self.feth {
            feth.emit(writer);
        }
        if let Some(reth) = &self.reth {
            reth.emit(writer);
        }
        if let Some(atomic_eth) = &self.atomic_eth {
            atomic_eth.emit(writer);
        }
        if let Some(aeth) = &self.aeth {
            aeth.emit(writer);
        }
        if let Some(atomic_ack_eth) = &self.atomic_ack_eth {
            atomic_ack_eth.emit(writer);
        }
        if let Some(imm_dt) = &self.imm_dt {
            imm_dt.emit(writer);
        }
        if let Some(ieth) = &self.ieth {
            ieth.emit(writer);
        }
    }

    /// Appends the headers to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        codec::append(out, self.header_len(), |writer| self.emit(writer));
    }

    /// Which extension headers are there.
    pub const fn extensions(&self) -> Extensions {
        let mut extensions = Extensions::NONE;
        let mut index = 0;
        while index < Kind::ALL.len() {
            let header = Kind::ALL[index];
            if self.has(header) {
                extensions = extensions.with(header);
            }
            index += 1;
        }
        extensions
    }

    const fn has(&self, header: Kind) -> bool {
        match header {
            Kind::Rdeth => self.rdeth.is_some(),
            Kind::Deth => self.deth.is_some(),
            Kind::Xrceth => self.xrceth.is_some(),
            Kind::Feth => self.feth.is_some(),
            Kind::Reth => self.reth.is_some(),
            Kind::AtomicEth => self.atomic_eth.is_some(),
            Kind::Aeth => self.aeth.is_some(),
            Kind::AtomicAckEth => self.atomic_ack_eth.is_some(),
            Kind::ImmDt => self.imm_dt.is_some(),
            Kind::Ieth => self.ieth.is_some(),
        }
    }

    /// Length of these headers on the wire.
    pub const fn header_len(&self) -> usize {
        Bth::LEN + self.extensions().header_len()
    }
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bth.fmt(f)?;
        after_comma(f, self.rdeth.as_ref())?;
        after_comma(f, self.deth.as_ref())?;
        after_comma(f, self.xrceth.as_ref())?;
        after_comma(f, self.feth.as_ref())?;
        after_comma(f, self.reth.as_ref())?;
        after_comma(f, self.atomic_eth.as_ref())?;
        after_comma(f, self.aeth.as_ref())?;
        after_comma(f, self.atomic_ack_eth.as_ref())?;
        after_comma(f, self.imm_dt.as_ref())?;
        after_comma(f, self.ieth.as_ref())
    }
}

fn after_comma(f: &mut fmt::Formatter<'_>, header: Option<&impl fmt::Display>) -> fmt::Result {
    header.map_or(Ok(()), |header| write!(f, ", {header}"))
}
