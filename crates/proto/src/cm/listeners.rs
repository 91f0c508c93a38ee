//! Who listens for which service ID.

use core::net::IpAddr;

use softverbs_wire::ib::cm::PrivateData;
use softverbs_wire::ib::rdma_cm::{CmaHeader, PortSpace, ServicePort};
use softverbs_wire::num::ServiceId;

use super::params::{Listen, ListenToken};

/// Why nobody takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoListener {
    /// Nobody listens for the service.
    Service,
    /// Somebody does, but not on that address.
    Address,
}

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Listeners(Vec<(ListenToken, Listen)>);

impl Listeners {
    /// Adds a listener, unless the token or the very same service and address is taken.
    pub(super) fn add(&mut self, token: ListenToken, mut listen: Listen) -> bool {
        listen.service_id = ServiceId::new(listen.service_id.get() & listen.mask);
        let taken = self
            .0
            .iter()
            .any(|(other, there)| *other == token || *there == listen);
        if !taken {
            self.0.push((token, listen));
        }
        !taken
    }

    pub(super) fn remove(&mut self, token: ListenToken) -> bool {
        let before = self.0.len();
        self.0.retain(|(other, _)| *other != token);
        self.0.len() != before
    }

    /// Who takes a request for `service_id` that names `destination`. A listener with an address
    /// comes before one without, one for fewer services before one for more.
    pub(super) fn find(
        &self,
        service_id: ServiceId,
        destination: Option<IpAddr>,
    ) -> Result<ListenToken, NoListener> {
        let mut service = false;
        self.0
            .iter()
            .filter(|(_, listen)| service_id.get() & listen.mask == listen.service_id.get())
            .inspect(|_| service = true)
            .filter(|(_, listen)| listen.address.is_none() || listen.address == destination)
            .max_by_key(|(_, listen)| (listen.address.is_some(), listen.mask.count_ones()))
            .map(|(token, _)| *token)
            .ok_or(())
            .map_err(|()| {
                if service {
                    NoListener::Address
                } else {
                    NoListener::Service
                }
            })
    }
}

/// Splits the private data of a request for `service_id` into the RDMA CM's header, if there is
/// one, and the application's data. `None` if there should be one and is not.
///
/// All ports of the RDMA CM have it, but for those of `RDMA_PS_IB`, which `AF_IB` uses without.
pub(super) fn split_private_data<const N: usize>(
    service_id: ServiceId,
    data: &PrivateData<N>,
) -> Option<(Option<CmaHeader>, Vec<u8>)> {
    let space = ServicePort::from_service_id(service_id).map(|port| port.space);
    let header = CmaHeader::split(data).ok().filter(|(header, _)| {
        header.version == CmaHeader::VERSION && header.destination_ip().is_some()
    });
    match (space, header) {
        (
            Some(PortSpace::TCP | PortSpace::UDP | PortSpace::IPOIB | PortSpace::IB),
            Some((header, consumer)),
        ) => Some((Some(header), consumer.to_vec())),
        (Some(PortSpace::TCP | PortSpace::UDP | PortSpace::IPOIB), None) => None,
        _ => Some((None, data.as_array().to_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(port: u16, address: Option<&str>) -> Listen {
        Listen::port(
            ServicePort::new(PortSpace::TCP, port),
            address.map(|address| address.parse().unwrap()),
        )
    }

    #[test]
    fn the_most_particular_listener_gets_it() {
        let mut listeners = Listeners::default();
        let space = Listen {
            service_id: ServicePort::new(PortSpace::TCP, 0).service_id(),
            mask: !0xffff,
            address: None,
        };
        assert!(listeners.add(ListenToken(1), space));
        assert!(listeners.add(ListenToken(2), port(7, None)));
        assert!(listeners.add(ListenToken(3), port(7, Some("10.0.0.1"))));
        assert!(!listeners.add(ListenToken(4), port(7, None)), "taken");
        assert!(!listeners.add(ListenToken(1), port(8, None)), "same token");
        let find = |number: u16, address: &str| {
            let service_id = ServicePort::new(PortSpace::TCP, number).service_id();
            listeners.find(service_id, Some(address.parse().unwrap()))
        };
        assert_eq!(find(7, "10.0.0.1"), Ok(ListenToken(3)));
        assert_eq!(find(7, "10.0.0.2"), Ok(ListenToken(2)));
        assert_eq!(find(9, "10.0.0.1"), Ok(ListenToken(1)));
    }

    #[test]
    fn says_whether_the_service_or_the_address_is_missing() {
        let mut listeners = Listeners::default();
        assert!(listeners.add(ListenToken(3), port(7, Some("10.0.0.1"))));
        let service = |number| ServicePort::new(PortSpace::TCP, number).service_id();
        let other = Some("10.0.0.2".parse().unwrap());
        assert_eq!(listeners.find(service(7), other), Err(NoListener::Address));
        assert_eq!(listeners.find(service(7), None), Err(NoListener::Address));
        assert_eq!(listeners.find(service(8), other), Err(NoListener::Service));
        assert!(listeners.remove(ListenToken(3)));
        assert!(!listeners.remove(ListenToken(3)));
        assert_eq!(listeners.find(service(7), other), Err(NoListener::Service));
    }

    #[test]
    fn only_ports_of_the_rdma_cm_have_its_header() {
        let header = CmaHeader::new_v4([10, 0, 0, 1].into(), 5, [10, 0, 0, 2].into());
        let with: PrivateData<92> = header.join(b"hello").unwrap();
        let split = |service_id: u64, data| split_private_data(ServiceId::new(service_id), data);
        for port in [0x0106_1c06, 0x0111_0000, 0x013f_0001] {
            let (found, data) = split(port, &with).unwrap();
            assert_eq!(found, Some(header));
            assert_eq!((data.len(), &data[..6]), (56, &b"hello\0"[..]));
        }
        for other in [0x0200_0000, 0x1_0106_1c06] {
            let (found, data) = split(other, &with).unwrap();
            assert_eq!((found, data.len()), (None, 92));
        }
        let without = PrivateData::from_array([0xff; 92]);
        assert_eq!(split(0x0106_1c06, &without), None);
        assert_eq!(split(0x013f_0001, &without), Some((None, vec![0xff; 92])));
    }
}
