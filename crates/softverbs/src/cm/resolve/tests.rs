//! On whatever interfaces this machine has: a loopback interface at least.

use super::*;
use crate::device::{Transport, devices};

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn from_anywhere(dst: &str) -> Result<Resolved> {
    resolve(None, socket(dst))
}

fn from(src: &str, dst: &str) -> Result<Resolved> {
    resolve(Some(socket(src)), socket(dst))
}

/// Addresses that belong to nobody: they are set aside for documentation.
const FOREIGN: [&str; 2] = ["198.51.100.7", "2001:db8:51:100::7"];

fn has_ipv6() -> bool {
    Device::for_address(Ipv6Addr::LOCALHOST.into(), None).is_ok()
}

/// One device for each interface.
fn interfaces() -> Vec<Device> {
    let mut all = devices().unwrap();
    all.retain(|device| device.transport() == Transport::Iwarp);
    all
}

#[test]
fn loopback() {
    let found = from_anywhere("127.0.0.1:9").unwrap();
    assert_eq!(found.src, socket("127.0.0.1:0"));
    assert_eq!(found.dst, socket("127.0.0.1:9"));
    assert!(found.device.is_loopback());

    let found = from("127.1.2.3:77", "127.4.5.6:9").unwrap();
    assert_eq!(found.src, socket("127.1.2.3:77"));
    assert!(found.device.is_loopback());
}

#[test]
fn an_unspecified_destination_is_this_machine() {
    let found = from_anywhere("0.0.0.0:9").unwrap();
    assert_eq!(
        (found.src, found.dst),
        (socket("127.0.0.1:0"), socket("127.0.0.1:9"))
    );
    let found = from("127.0.0.5:0", "0.0.0.0:9").unwrap();
    assert_eq!(
        (found.src, found.dst),
        (socket("127.0.0.5:0"), socket("127.0.0.5:9"))
    );
    if has_ipv6() {
        let found = from_anywhere("[::]:9").unwrap();
        assert_eq!(
            (found.src, found.dst),
            (socket("[::1]:0"), socket("[::1]:9"))
        );
    }
}

#[test]
fn an_unspecified_source_leaves_the_choice_and_keeps_the_port() {
    for src in ["0.0.0.0:5000", "[::]:5000", "[::ffff:0.0.0.0]:5000"] {
        let found = from(src, "127.0.0.1:9").unwrap();
        assert_eq!(found.src, socket("127.0.0.1:5000"), "{src}");
    }
}

#[test]
fn ipv4_in_ipv6_clothes_is_ipv4() {
    let found = from_anywhere("[::ffff:127.0.0.1]:9").unwrap();
    assert_eq!(
        (found.src, found.dst),
        (socket("127.0.0.1:0"), socket("127.0.0.1:9"))
    );
    let found = from("[::ffff:127.0.0.2]:3", "127.0.0.1:9").unwrap();
    assert_eq!(found.src, socket("127.0.0.2:3"));
}

#[test]
fn families_must_match() {
    for (src, dst) in [("[::1]:0", "127.0.0.1:9"), ("127.0.0.1:0", "[::1]:9")] {
        let error = from(src, dst).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        assert!(error.to_string().contains("family"), "{error}");
    }
    // The wildcard of IPv4 is no IPv6 address at all.
    assert_eq!(from("0.0.0.0:0", "[::1]:9").is_ok(), has_ipv6());
}

#[test]
fn every_own_address_leads_to_the_device_that_owns_it() {
    for device in interfaces() {
        for address in device.addresses() {
            let dst = device.socket_addr(*address, 9);
            let src = device.socket_addr(*address, 0);
            let found = resolve(None, dst).unwrap();
            assert_eq!(found.dst, dst);
            if !address.is_loopback() {
                assert_eq!(found.src, src);
                assert!(found.device.same_as(&device), "{address}");
            }
            let found = resolve(Some(device.socket_addr(*address, 7)), dst).unwrap();
            assert_eq!(found.src, device.socket_addr(*address, 7));
            assert!(found.device.same_as(&device), "{address}");

            let bound = check_bind(dst).unwrap().expect("a device");
            assert!(bound.same_as(&device), "{address}");
        }
    }
}

#[test]
fn any_own_address_reaches_any_other() {
    let all = interfaces();
    let addresses = || {
        all.iter()
            .flat_map(|device| device.addresses().iter().map(move |ip| (device, *ip)))
    };
    for (device, src) in addresses().filter(|(_, ip)| !is_link_local(*ip)) {
        for (_, dst) in addresses().filter(|(_, ip)| !is_link_local(*ip)) {
            if src.is_ipv4() == dst.is_ipv4() {
                let found = resolve(Some(SocketAddr::new(src, 0)), SocketAddr::new(dst, 9));
                let found = found.unwrap_or_else(|error| panic!("{src} to {dst}: {error}"));
                assert!(found.device.same_as(device), "{src} to {dst}");
                assert_eq!(found.src.ip(), src);
            }
        }
    }
}

#[test]
fn link_local_needs_a_scope_from_somewhere() {
    for dst in ["[fe80::1234]:9", "[ff02::1]:9", "[ff12::1]:9"] {
        let error = from_anywhere(dst).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        assert!(error.to_string().contains("needs a scope"), "{error}");
    }
    assert!(from_anywhere("[fe80::1234%2147483000]:9").is_err());

    for device in interfaces() {
        for own in device.addresses().iter().filter(|ip| is_link_local(**ip)) {
            let scoped = device.socket_addr(*own, 7);
            let found = resolve(Some(scoped), socket("[fe80::1234]:9")).unwrap();
            let scope = device.interface_index();
            assert_eq!(found.dst, socket(&format!("[fe80::1234%{scope}]:9")));
            assert_eq!(found.src, scoped);
            assert!(found.device.same_as(&device));
            // The source address may lack it too if it exists once only.
            if let Ok(found) = resolve(Some(SocketAddr::new(*own, 7)), SocketAddr::new(*own, 9)) {
                assert_eq!(found.src, scoped);
            }
        }
    }
}

#[test]
fn foreign_addresses_are_not_available() {
    for foreign in FOREIGN.map(|text| text.parse::<IpAddr>().unwrap()) {
        let here = SocketAddr::new(foreign, 7);
        let not_available = Error::AddrNotAvailable { address: foreign };
        assert_eq!(not_available.errno(), libc::EADDRNOTAVAIL);
        assert_eq!(check_bind(here).unwrap_err(), not_available);
        assert_eq!(resolve(Some(here), here).unwrap_err(), not_available);
    }
}

#[test]
fn no_way_out_of_the_loopback_device() {
    let error = from("127.0.0.1:0", &format!("{}:9", FOREIGN[0])).unwrap_err();
    assert!(
        [libc::EINVAL, libc::ENETUNREACH].contains(&error.errno()),
        "{error}"
    );
}

#[test]
fn foreign_destinations_are_reached_or_not() {
    for foreign in FOREIGN {
        let dst = SocketAddr::new(foreign.parse().unwrap(), 9);
        match resolve(None, dst) {
            Ok(found) => {
                assert!(!found.src.ip().is_unspecified());
                assert!(found.device.addresses().contains(&found.src.ip()));
                assert_eq!(found.dst, dst);
            }
            Err(Error::Unreachable { address, errno }) => {
                assert_eq!(address, dst);
                let expected = [libc::ENETUNREACH, libc::EADDRNOTAVAIL, libc::EAFNOSUPPORT];
                assert!(expected.contains(&errno), "{errno}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn binding_to_the_wildcard_binds_to_no_device() {
    for wildcard in ["0.0.0.0:7", "[::]:7", "[::ffff:0.0.0.0]:7"] {
        assert!(check_bind(socket(wildcard)).unwrap().is_none());
    }
    for loopback in ["127.0.0.1:7", "127.3.2.1:7", "[::ffff:127.0.0.1]:7"] {
        assert!(check_bind(socket(loopback)).unwrap().unwrap().is_loopback());
    }
}
