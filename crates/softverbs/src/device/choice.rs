//! The devices that the environment leaves to choose from.

use std::net::IpAddr;
use std::str::FromStr;

use super::{Device, Transport, devices};
use crate::error::{Error, Result};

/// Name of the variable that chooses the transport; also the default of the RDMA CM.
const TRANSPORT: &str = "SOFTVERBS_TRANSPORT";
/// Name of the variable that chooses interfaces by their addresses.
const ADDRESSES: &str = "SOFTVERBS_ADDR";

/// Which devices a program is to see that does not choose by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Choice {
    transport: Option<Transport>,
    addresses: Vec<IpAddr>,
}

/// The devices that the environment chooses, for programs that do not choose by themselves:
///
/// * `SOFTVERBS_TRANSPORT`: `iwarp` or `roce`; those of this transport only (`both`, as nothing: all);
/// * `SOFTVERBS_ADDR`: addresses with commas between them; only interfaces that own one of them, in
///   this order.
///
/// Those for RoCEv2 come first: programs take the first device if they are not told better, and such
/// as exchange addresses by themselves cannot use iWARP. It is an error if a variable cannot be
/// understood, or if an address belongs to no interface of this machine.
pub fn chosen_devices() -> Result<Vec<Device>> {
    let value = |name| std::env::var(name).unwrap_or_default();
    Choice::parse(&value(TRANSPORT), &value(ADDRESSES))?.of(devices()?)
}

/// The devices that [`chosen_devices`] returns where the environment says the same: those of one
/// transport, if it is given, and of interfaces that own one of the addresses, if there are any.
pub fn devices_by(transport: Option<Transport>, addresses: &[IpAddr]) -> Result<Vec<Device>> {
    let addresses = addresses.to_vec();
    let choice = Choice {
        transport,
        addresses,
    };
    choice.of(devices()?)
}

/// The transport that `SOFTVERBS_TRANSPORT` names; none if it is not set, or says `both`.
///
/// An error if it says something else.
pub fn transport_of_environment() -> Result<Option<Transport>> {
    transport_of(&std::env::var(TRANSPORT).unwrap_or_default())
}

fn transport_of(value: &str) -> Result<Option<Transport>> {
    match value {
        "" | "both" => Ok(None),
        name => match Transport::from_str(name) {
            Ok(transport) => Ok(Some(transport)),
            Err(_) => {
                let why = format!("{name:?} is not iwarp, roce or both");
                Err(Error::invalid(TRANSPORT, why))
            }
        },
    }
}

impl Choice {
    fn parse(transport: &str, addresses: &str) -> Result<Self> {
        let transport = transport_of(transport)?;
        let addresses = addresses
            .split(',')
            .map(str::trim)
            .filter(|address| !address.is_empty())
            .map(|address| {
                address
                    .parse()
                    .map_err(|_| Error::invalid(ADDRESSES, format!("{address:?} is no IP address")))
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            transport,
            addresses,
        })
    }

    fn of(&self, mut devices: Vec<Device>) -> Result<Vec<Device>> {
        devices.sort_by_key(|device| device.transport != Transport::Roce);
        let transport = |device: &Device| self.transport.is_none_or(|t| t == device.transport);
        if self.addresses.is_empty() {
            return Ok(devices.into_iter().filter(transport).collect());
        }
        let mut chosen = Vec::<Device>::new();
        for address in &self.addresses {
            let owners: Vec<_> = devices
                .iter()
                .filter(|device| device.inner.owns(address.to_canonical()))
                .collect();
            if owners.is_empty() {
                return Err(Error::NoDevice {
                    what: address.to_string(),
                });
            }
            for owner in owners {
                if transport(owner) && !chosen.iter().any(|device| device.same_as(owner)) {
                    chosen.push(owner.clone());
                }
            }
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::some_devices;
    use super::*;

    fn names(transport: &str, addresses: &str) -> Result<Vec<String>> {
        let both = some_devices()
            .into_iter()
            .flat_map(|device| Transport::ALL.map(|transport| device.with_transport(transport)))
            .collect();
        let chosen = Choice::parse(transport, addresses)?.of(both)?;
        Ok(chosen.iter().map(|device| device.name().into()).collect())
    }

    #[test]
    fn without_a_choice_all() {
        let all = [
            "roce_nic-a",
            "roce_nic-b",
            "roce_lo",
            "iw_nic-a",
            "iw_nic-b",
            "iw_lo",
        ];
        assert_eq!(names("", "").unwrap(), all);
        assert_eq!(names("", " , ").unwrap().len(), 6);
    }

    #[test]
    fn by_transport() {
        let expected = ["roce_nic-a", "roce_nic-b", "roce_lo"];
        assert_eq!(names("roce", "").unwrap(), expected);
        assert_eq!(names("both", "").unwrap(), names("", "").unwrap());
    }

    #[test]
    fn by_address_in_the_order_given() {
        let expected = ["iw_lo", "iw_nic-a"];
        assert_eq!(
            names("iwarp", "127.3.2.1, fd00::1,10.0.0.1").unwrap(),
            expected
        );
        let expected = ["roce_nic-b", "iw_nic-b"];
        assert_eq!(names("", "::ffff:10.1.0.1").unwrap(), expected);
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let error = names("rdma", "").unwrap_err().to_string();
        assert!(
            error.contains("SOFTVERBS_TRANSPORT: \"rdma\" is not iwarp, roce or both"),
            "{error}"
        );
        let error = names("", "10.0.0.1,eth0").unwrap_err().to_string();
        assert!(error.contains("SOFTVERBS_ADDR: \"eth0\""), "{error}");
        let error = names("", "10.9.9.9").unwrap_err();
        assert_eq!(error.errno(), libc::ENODEV);
        assert!(error.to_string().contains("10.9.9.9"), "{error}");
    }
}
