//! What the RDMA CM puts into the messages of connection management (IBA annex A11: RDMA IP CM
//! service): service IDs made from ports, and a header with IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::codec::{self, Malformed, Reader, Writer};
use crate::ib::cm::{PrivateData, Req, SidrReq};
use crate::num::ServiceId;

/// A port space of the RDMA CM: ports of different spaces are different services. Numbers without
/// a name here are kept as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortSpace(u16);

impl PortSpace {
    /// `RDMA_PS_IPOIB`: multicast of IP over InfiniBand.
    pub const IPOIB: Self = Self(0x0002);
    /// `RDMA_PS_TCP`: reliable connections.
    pub const TCP: Self = Self(0x0106);
    /// `RDMA_PS_UDP`: datagrams.
    pub const UDP: Self = Self(0x0111);
    /// `RDMA_PS_IB`: any service ID.
    pub const IB: Self = Self(0x013f);

    /// From the number.
    pub const fn new(space: u16) -> Self {
        Self(space)
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IPOIB => f.write_str("RDMA_PS_IPOIB"),
            Self::TCP => f.write_str("RDMA_PS_TCP"),
            Self::UDP => f.write_str("RDMA_PS_UDP"),
            Self::IB => f.write_str("RDMA_PS_IB"),
            Self(space) => write!(f, "port space {space:#06x}"),
        }
    }
}

/// A port in its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServicePort {
    /// The space.
    pub space: PortSpace,
    /// The port.
    pub port: u16,
}

impl ServicePort {
    /// From its parts.
    pub const fn new(space: PortSpace, port: u16) -> Self {
        Self { space, port }
    }

    /// The service ID that stands for it.
    pub const fn service_id(self) -> ServiceId {
        ServiceId::new((self.space.get() as u64) << 16 | self.port as u64)
    }

    /// What a service ID stands for, if it is one of these.
    pub const fn from_service_id(id: ServiceId) -> Option<Self> {
        if id.get() >> 32 != 0 {
            return None;
        }
        Some(Self {
            space: PortSpace::new((id.get() >> 16 & 0xffff) as u16),
            port: (id.get() & 0xffff) as u16,
        })
    }
}

impl From<ServicePort> for ServiceId {
    fn from(port: ServicePort) -> Self {
        port.service_id()
    }
}

impl fmt::Display for ServicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.space, self.port)
    }
}

/// The header at the start of the private data of [`Req`] and [`SidrReq`] (`struct cma_hdr` of
/// Linux).
///
/// ```text
///  0         1                 2      4            20
/// | version | IPV (4) rsv (4) | port | source     | destination |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CmaHeader {
    /// Major version in the high, minor version in the low four bits: 0.
    pub version: u8,
    /// IPV: 4 or 6. Four bits.
    pub ip_version: u8,
    /// The four bits after it.
    pub reserved: u8,
    /// The sender's port.
    pub source_port: u16,
    /// The sender's address; one of IPv4 takes the last four octets.
    pub source: [u8; 16],
    /// The address that the sender wants to be connected to, in the same form.
    pub destination: [u8; 16],
}

impl CmaHeader {
    /// Length of the header.
    pub const LEN: usize = 36;

    /// The version of the header.
    pub const VERSION: u8 = 0;

    /// Length of the consumer's private data in a [`Req`].
    pub const REQ_PRIVATE_DATA_LEN: usize = Req::PRIVATE_DATA_LEN - Self::LEN;

    /// Length of the consumer's private data in a [`SidrReq`].
    pub const SIDR_REQ_PRIVATE_DATA_LEN: usize = SidrReq::PRIVATE_DATA_LEN - Self::LEN;

    /// With addresses of IPv4.
    pub const fn new_v4(source: Ipv4Addr, source_port: u16, destination: Ipv4Addr) -> Self {
        Self {
            version: Self::VERSION,
            ip_version: 4,
            reserved: 0,
            source_port,
            source: last_four(source),
            destination: last_four(destination),
        }
    }

    /// With addresses of IPv6.
    pub const fn new_v6(source: Ipv6Addr, source_port: u16, destination: Ipv6Addr) -> Self {
        Self {
            version: Self::VERSION,
            ip_version: 6,
            reserved: 0,
            source_port,
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// With addresses of one family; of two, there is no such header.
    pub const fn new(source: IpAddr, source_port: u16, destination: IpAddr) -> Option<Self> {
        Some(match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Self::new_v4(source, source_port, destination)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Self::new_v6(source, source_port, destination)
            }
            _ => return None,
        })
    }

    /// The sender's address, if the IP version is one.
    pub const fn source_ip(&self) -> Option<IpAddr> {
        self.ip(self.source)
    }

    /// The recipient's address, if the IP version is one.
    pub const fn destination_ip(&self) -> Option<IpAddr> {
        self.ip(self.destination)
    }

    const fn ip(&self, octets: [u8; 16]) -> Option<IpAddr> {
        match self.ip_version {
            4 => {
                let [.., a, b, c, d] = octets;
                Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
            }
            6 => Some(IpAddr::V6(Ipv6Addr::from_octets(octets))),
            _ => None,
        }
    }

    /// Reads the header.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Reader::new(reader.take(Self::LEN)?);
        let [version, ip_version] = header.array()?;
        Ok(Self {
            version,
            ip_version: ip_version >> 4,
            reserved: ip_version & 0x0f,
            source_port: header.u16()?,
            source: header.array()?,
            destination: header.array()?,
        })
    }

    /// Writes the header.
    pub fn emit(&self, writer: &mut Writer<'_>) {
        writer.u8(self.version);
        writer.u8(self.ip_version << 4 | self.reserved & 0x0f);
        writer.u16(self.source_port);
        writer.bytes(&self.source);
        writer.bytes(&self.destination);
    }

    /// The octets of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        codec::emitted(|writer| self.emit(writer))
    }

    /// The private data that starts with this header, if it has room for the consumer's.
    pub fn join<const N: usize>(&self, consumer: &[u8]) -> Option<PrivateData<N>> {
        let mut octets = [0; N];
        let (header, rest) = octets.split_first_chunk_mut::<{ Self::LEN }>()?;
        *header = self.to_bytes();
        rest.get_mut(..consumer.len())?.copy_from_slice(consumer);
        Some(PrivateData::from_array(octets))
    }

    /// The header that private data starts with, and the consumer's part.
    pub fn split<const N: usize>(data: &PrivateData<N>) -> Result<(Self, &[u8]), Malformed> {
        let mut reader = Reader::new(data.as_array());
        let header = Self::parse(&mut reader)?;
        Ok((header, reader.rest()))
    }
}

const fn last_four(address: Ipv4Addr) -> [u8; 16] {
    let [a, b, c, d] = address.octets();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}

impl fmt::Display for CmaHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.source_ip(), self.destination_ip()) {
            (Some(source), Some(destination)) => {
                write!(f, "{source} port {} to {destination}", self.source_port)
            }
            _ => write!(f, "IP version {}", self.ip_version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ib::tests::layout::layout;

    #[test]
    fn service_ids() {
        let port = ServicePort::new(PortSpace::TCP, 7174);
        assert_eq!(port.service_id(), ServiceId::new(0x0106_1c06));
        assert_eq!(ServiceId::from(port), port.service_id());
        for (space, id) in [
            (PortSpace::TCP, 0x0106_0001),
            (PortSpace::UDP, 0x0111_0001),
            (PortSpace::IPOIB, 0x0002_0001),
            (PortSpace::IB, 0x013f_0001),
            (PortSpace::new(0xffff), 0xffff_0001),
        ] {
            let (id, port) = (ServiceId::new(id), ServicePort::new(space, 1));
            assert_eq!(port.service_id(), id);
            assert_eq!(ServicePort::from_service_id(id), Some(port));
        }
        for id in [1 << 32, u64::MAX] {
            assert_eq!(ServicePort::from_service_id(ServiceId::new(id)), None);
        }
        assert_eq!(port.to_string(), "RDMA_PS_TCP port 7174");
        let unknown = ServicePort::new(PortSpace::new(7), 1);
        assert_eq!(unknown.to_string(), "port space 0x0007 port 1");
    }

    #[test]
    fn header() {
        let zero = Reader::all(&[0; CmaHeader::LEN], CmaHeader::parse).unwrap();
        layout!(CmaHeader, CmaHeader::LEN, zero, {
            version = 0xff, [0 0] 8;
            ip_version = 15, [1 0] 4;
            reserved = 15, [1 4] 4;
            source_port = u16::MAX, [2 0] 16;
            source = [0xff; 16], [4 0] 128;
            destination = [0xff; 16], [20 0] 128;
        });
        assert_eq!((zero.source_ip(), zero.destination_ip()), (None, None));
        assert_eq!(zero.to_string(), "IP version 0");
    }

    #[test]
    fn addresses() {
        let v4 = |last| Ipv4Addr::new(10, 77, 0, last);
        let v6 = |last| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last);
        let header = CmaHeader::new_v4(v4(3), 0xe3c7, v4(2));
        assert_eq!(header.to_bytes()[..4], [0x00, 0x40, 0xe3, 0xc7]);
        assert_eq!(
            header.source,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 77, 0, 3]
        );
        assert_eq!(header.source_ip(), Some(v4(3).into()));
        assert_eq!(header.destination_ip(), Some(v4(2).into()));
        assert_eq!(header.to_string(), "10.77.0.3 port 58311 to 10.77.0.2");
        let same = CmaHeader::new(v4(3).into(), 0xe3c7, v4(2).into());
        assert_eq!(same, Some(header));

        let header = CmaHeader::new_v6(v6(3), 1, v6(2));
        assert_eq!(header.to_bytes()[..4], [0x00, 0x60, 0, 1]);
        assert_eq!(header.source_ip(), Some(v6(3).into()));
        assert_eq!(header.destination_ip(), Some(v6(2).into()));
        assert_eq!(CmaHeader::new(v6(3).into(), 1, v6(2).into()), Some(header));

        assert_eq!(CmaHeader::new(v4(3).into(), 1, v6(2).into()), None);
        assert_eq!(CmaHeader::new(v6(3).into(), 1, v4(2).into()), None);
    }

    #[test]
    fn in_private_data() {
        let header = CmaHeader::new_v4(Ipv4Addr::LOCALHOST, 1, Ipv4Addr::LOCALHOST);
        assert_eq!(CmaHeader::REQ_PRIVATE_DATA_LEN, 56);
        assert_eq!(CmaHeader::SIDR_REQ_PRIVATE_DATA_LEN, 180);
        let data: PrivateData<92> = header.join(b"hello").unwrap();
        let (again, consumer) = CmaHeader::split(&data).unwrap();
        assert_eq!(again, header);
        assert_eq!(consumer.len(), 56);
        assert_eq!(consumer[..5], *b"hello");
        assert_eq!(consumer[5..], [0; 51]);
        assert!(header.join::<92>(&[1; 56]).is_some());
        assert_eq!(header.join::<92>(&[1; 57]), None);
        assert_eq!(header.join::<35>(&[]), None);
        assert!(header.join::<36>(&[]).is_some());
        let short = PrivateData::<35>::default();
        assert_eq!(CmaHeader::split(&short), Err(Malformed::Truncated));
    }
}
