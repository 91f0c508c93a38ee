//! From what users write to socket addresses.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use softverbs::Device;

use crate::failure::{Failure, Outcome};
use crate::plan::Local;

/// The addresses of a host, with a port. Scopes (`fe80::1%eth0`) are understood.
pub(crate) fn resolve(host: &str, port: u16) -> Outcome<Vec<SocketAddr>> {
    // Brackets as in URLs are a common habit with IPv6.
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    if let Some((host, port)) = with_port(host) {
        return Err(Failure::usage(format!(
            "the port stands by itself: {host} -p {port}"
        )));
    }
    let found: Vec<SocketAddr> = (bare, port)
        .to_socket_addrs()
        .map_err(|error| Failure::run(format!("{host}: no such host ({error})")))?
        .collect();
    if found.is_empty() {
        return Err(Failure::run(format!(
            "{host}: no such host (it has no address)"
        )));
    }
    Ok(found)
}

/// Takes `host:port` and `[address]:port` apart.
fn with_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    // A bare IPv6 address has more colons.
    let fits = !host.is_empty() && (bracketed || !host.contains(':'));
    Some((host, port.parse().ok()?)).filter(|_| fits)
}

/// The local address to use, if the user chose one; of a device, one of the family of `peer`.
pub(crate) fn device_address(
    local: &Local,
    peer: Option<SocketAddr>,
) -> Outcome<Option<SocketAddr>> {
    match local {
        Local::Any => Ok(None),
        Local::Address(address) => Ok(Some(with_scope(*address)?)),
        Local::Device(name) => {
            let devices = softverbs::devices()?;
            let device = devices
                .iter()
                .find(|device| device.name() == name || device.interface() == name);
            let Some(device) = device else {
                let names: Vec<&str> = devices.iter().map(Device::name).collect();
                return Err(Failure::run(format!(
                    "no device is called `{name}`; there are {}",
                    names.join(", ")
                )));
            };
            let suits = |address: &&IpAddr| {
                peer.is_none_or(|peer| peer.ip().to_canonical().is_ipv4() == address.is_ipv4())
            };
            match device.addresses().iter().find(suits) {
                Some(address) => Ok(Some(device.socket_addr(*address, 0))),
                None => Err(Failure::run(format!(
                    "{name} has no address of the peer's family"
                ))),
            }
        }
    }
}

/// An address as users know it: IPv4 that came in over an IPv6 socket is still IPv4.
pub(crate) fn show(address: SocketAddr) -> String {
    match address.ip().to_canonical() {
        ip if ip == address.ip() => address.to_string(),
        ip => SocketAddr::new(ip, address.port()).to_string(),
    }
}

/// The address of a peer, for messages about it.
pub(crate) fn show_peer(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "somebody".to_owned(), show)
}

/// A link-local address needs the interface it is on.
fn with_scope(address: IpAddr) -> Outcome<SocketAddr> {
    let link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    if !link_local {
        return Ok(SocketAddr::new(address, 0));
    }
    Ok(Device::for_address(address, None)?.socket_addr(address, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        assert_eq!(
            resolve("127.0.0.1", 5).unwrap(),
            ["127.0.0.1:5".parse().unwrap()]
        );
        assert_eq!(resolve("::1", 5).unwrap(), ["[::1]:5".parse().unwrap()]);
        assert_eq!(resolve("[::1]", 5).unwrap(), ["[::1]:5".parse().unwrap()]);
        assert!(!resolve("localhost", 5).unwrap().is_empty());
        assert!(matches!(
            resolve("no.such.host.invalid", 5),
            Err(Failure::Run(_))
        ));
    }

    #[test]
    fn a_port_behind_the_host_is_no_host() {
        for (text, parts) in [
            ("127.0.0.1:18515", Some(("127.0.0.1", 18515))),
            ("[::1]:5", Some(("[::1]", 5))),
            ("node:5", Some(("node", 5))),
            ("::1", None),
            ("fe80::1:5", None),
            ("node:x", None),
            (":5", None),
        ] {
            assert_eq!(with_port(text), parts, "{text}");
        }
        assert!(matches!(resolve("node:5", 1), Err(Failure::Usage(_))));
    }

    #[test]
    fn mapped_addresses_are_shown_as_ipv4() {
        for (address, text) in [
            ("[::ffff:192.0.2.1]:5", "192.0.2.1:5"),
            ("192.0.2.1:5", "192.0.2.1:5"),
            ("[fe80::1%2]:5", "[fe80::1%2]:5"),
        ] {
            assert_eq!(show(address.parse().unwrap()), text);
        }
    }

    #[test]
    fn a_device_by_its_name_or_its_interface() {
        for name in ["iw_lo", "lo"] {
            let local = Local::Device(name.into());
            let found = device_address(&local, None).unwrap().unwrap();
            assert!(found.ip().is_loopback(), "{found}");
        }
        let Err(Failure::Run(text)) = device_address(&Local::Device("iw_none".into()), None) else {
            panic!("found a device that is not there");
        };
        assert!(text.contains("iw_none") && text.contains("iw_lo"), "{text}");
        assert_eq!(device_address(&Local::Any, None).unwrap(), None);
    }
}
