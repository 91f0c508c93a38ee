//! What the example programs share.

#![allow(dead_code, reason = "every program uses its share")]

use std::io::{Write, stderr};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use softverbs::cm::{CmEvent, EventChannel};
use softverbs::{Context, Cq, Gid, Wc};

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// How long to wait for a completion or an event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Octets of a datagram's receive that hold the network header.
pub(crate) const GRH: usize = 40;

/// The exit status, and why on stderr.
pub(crate) fn exit(name: &str, outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is gone, the exit status still tells.
            let _ = writeln!(stderr().lock(), "{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn expect(condition: bool, otherwise: impl FnOnce() -> String) -> Outcome<()> {
    if condition {
        Ok(())
    } else {
        Err(otherwise().into())
    }
}

pub(crate) fn complete(cq: &Cq) -> Outcome<Wc> {
    let end = Instant::now() + PATIENCE;
    let mut wc = [Wc::default()];
    while cq.poll(&mut wc)? == 0 {
        if Instant::now() > end {
            return Err("no completion in time".into());
        }
    }
    Ok(wc[0])
}

pub(crate) fn complete_well(cq: &Cq, what: &str) -> Outcome<Wc> {
    let wc = complete(cq)?;
    expect(wc.is_success(), || format!("{what}: {:?}", wc.status))?;
    Ok(wc)
}

pub(crate) fn next_event(channel: &EventChannel) -> Outcome<CmEvent> {
    let event = channel.get_event(Some(PATIENCE))?;
    event.ok_or_else(|| "no event in time".into())
}

pub(crate) fn resolve(host: &str, port: u16) -> Outcome<SocketAddr> {
    let mut found = (host, port).to_socket_addrs()?;
    found
        .next()
        .ok_or_else(|| format!("{host} has no address").into())
}

pub(crate) fn to_gid(address: IpAddr) -> Gid {
    Gid::new(match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    })
}

/// Which entry of the GID table an address is.
pub(crate) fn gid_index(context: &Context, address: IpAddr) -> Outcome<u8> {
    let wanted = to_gid(address);
    (0..=u8::MAX)
        .find(|&index| context.query_gid(1, index.into()) == Ok(wanted))
        .ok_or_else(|| format!("the device does not have the address {address}").into())
}
