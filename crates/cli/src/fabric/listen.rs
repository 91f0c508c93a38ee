//! Listening, and telling where.

use std::fs;
use std::io::{Write, stderr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use softverbs::cm::{CmId, CmOption};

use super::Cm;
use crate::failure::{Failure, Outcome};

/// The identifiers of a server: one address, or all of both families.
#[derive(Debug)]
pub(crate) struct Listeners {
    ids: Vec<CmId>,
    /// Where clients may connect; the unspecified address for everywhere.
    pub(crate) address: SocketAddr,
}

/// Requests that may wait: a client connects its queue pairs one after the other.
const BACKLOG: i32 = 128;

impl Listeners {
    /// Listens at `address`, or everywhere.
    pub(crate) fn new(
        cm: &Cm,
        address: Option<SocketAddr>,
        port: u16,
        options: &[CmOption],
    ) -> Outcome<Self> {
        if let Some(mut address) = address {
            address.set_port(port);
            return Self::one(cm, address, options);
        }
        // An IPv6 wildcard serves IPv4, too; a machine without IPv6 refuses it.
        let both = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
        Self::one(cm, both, options).or_else(|failure| {
            let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
            Self::one(cm, v4, options).map_err(|_| failure)
        })
    }

    fn one(cm: &Cm, address: SocketAddr, options: &[CmOption]) -> Outcome<Self> {
        let id = cm.id(options)?;
        let listen = || {
            id.bind_addr(address)?;
            id.listen(BACKLOG)
        };
        listen().map_err(|error| Failure::run(format!("cannot listen: {error}")))?;
        let address = id.local_addr().unwrap_or(address);
        Ok(Self {
            ids: vec![id],
            address,
        })
    }

    /// Whether `id` is one of these.
    pub(crate) fn contains(&self, id: &CmId) -> bool {
        self.ids.iter().any(|mine| mine.same_as(id))
    }
}

/// Tells users and programs where this server listens: one line on stderr, and the port in a file
/// if that was asked for.
pub(crate) fn announce(address: SocketAddr, port_file: Option<&Path>) -> Outcome<()> {
    // Whoever does not read stderr still gets the service.
    let _ = writeln!(stderr().lock(), "listening on {address}");
    let Some(path) = port_file else { return Ok(()) };
    // Whoever waits for the file must not see it half written.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    fs::write(&temporary, format!("{}\n", address.port()))
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|error| Failure::run(format!("cannot write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_file_appears_whole() {
        let path = std::env::temp_dir().join(format!("softverbs-port-{}", std::process::id()));
        announce("127.0.0.1:4711".parse().unwrap(), Some(&path)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "4711\n");
        fs::remove_file(&path).unwrap();
        let nowhere = Path::new("/no/such/directory/port");
        assert!(announce("127.0.0.1:1".parse().unwrap(), Some(nowhere)).is_err());
    }
}
