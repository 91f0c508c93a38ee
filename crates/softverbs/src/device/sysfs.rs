//! What the kernel says about an interface in files. Nothing here fails: without the file the
//! value is unknown.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

/// The number that stands in a file.
fn number<T: FromStr>(path: PathBuf) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn class_net(interface: &str, attribute: &str) -> PathBuf {
    PathBuf::from("/sys/class/net")
        .join(interface)
        .join(attribute)
}

/// Whether sysfs shows this very interface. It shows those of the network namespace in which it
/// was mounted, and in a container that may be another one's.
fn is_ours(interface: &str, index: u32, mac: Option<[u8; 6]>) -> bool {
    let same_mac = mac.is_none_or(|mac| {
        let mac = mac.map(|octet| format!("{octet:02x}")).join(":");
        fs::read_to_string(class_net(interface, "address"))
            .is_ok_and(|address| address.trim() == mac)
    });
    same_mac && number(class_net(interface, "ifindex")) == Some(index)
}

/// MTU of an interface.
pub(super) fn mtu(interface: &str, index: u32, mac: Option<[u8; 6]>) -> Option<u32> {
    let mtu = if is_ours(interface, index, mac) {
        number(class_net(interface, "mtu"))
    } else {
        // Under /proc/sys/net everybody sees their own namespace. IPv6 takes over the MTU of the
        // interface unless told otherwise.
        number(
            PathBuf::from("/proc/sys/net/ipv6/conf")
                .join(interface)
                .join("mtu"),
        )
    };
    mtu.filter(|mtu| *mtu > 0)
}

/// Speed of an interface in Mbit/s.
pub(super) fn speed(interface: &str, index: u32, mac: Option<[u8; 6]>) -> Option<u32> {
    if is_ours(interface, index, mac) {
        // Virtual interfaces say -1, or nothing.
        number::<i64>(class_net(interface, "speed"))
            .and_then(|speed| u32::try_from(speed).ok())
            .filter(|speed| *speed > 0)
    } else {
        None
    }
}

/// A number that belongs to this machine and to `name`, and stays the same.
pub(super) fn machine_hash(name: &str) -> u64 {
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    // FNV-1a.
    machine
        .trim()
        .bytes()
        .chain([0])
        .chain(name.bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, octet| {
            (hash ^ u64::from(octet)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}
