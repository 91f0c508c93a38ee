//! UDP port 4791: one process has it, and the others take over when it goes.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::PoisonError;
use std::time::Duration;

use super::folder::Lock;
use super::socket::Sock;
use super::status::PortOwner;
use super::{PRIVATE_V4, PRIVATE_V6, PUBLIC_V4, PUBLIC_V6, Port, owner};
use crate::error::{Error, Result};

/// How often a process that does not have the port asks for it.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How often it asks if a stranger has the port.
const ASK_STRANGER_EVERY: Duration = Duration::from_secs(1);

/// How often the files in the folder are made to look used.
pub(super) const TOUCH_EVERY: Duration = Duration::from_secs(3600);

/// Who has the public port of a family.
#[derive(Debug, Default)]
pub(super) enum Public {
    /// Not known yet, or nobody: this kernel does not know the family.
    #[default]
    Nobody,
    /// This process. The lock tells the others.
    Mine(Lock),
    /// Another process with the same folder.
    Ours,
    /// Another process with the same folder had it and is going.
    Changing,
    /// Somebody else, in words.
    Stranger(String),
}

impl Port {
    /// Takes the public ports that are free, and sees to it that this is tried again.
    pub(super) fn claim_public_ports(&'static self) {
        let again = [false, true]
            .into_iter()
            .filter_map(|v6| self.claim_public_port(v6))
            .min();
        if let Some(&token) = self.timer.get() {
            let after = again.unwrap_or(TOUCH_EVERY);
            self.engine
                .set_timer(token, Some(self.engine.now() + after));
        }
    }

    /// Tries to take the public port of a family. When to try again, if it was in vain.
    fn claim_public_port(&'static self, v6: bool) -> Option<Duration> {
        let (private, which) = if v6 {
            (PRIVATE_V6, PUBLIC_V6)
        } else {
            (PRIVATE_V4, PUBLIC_V4)
        };
        // Without the family there is nothing to have.
        self.socks[private].get()?;
        let mut public = self.public(v6);
        if let Public::Mine(lock) = &*public {
            lock.touch();
            return None;
        }
        let Ok(Some(lock)) = self.folder.claim_public(v6) else {
            *public = Public::Ours;
            return Some(ASK_EVERY);
        };
        match Sock::bind(v6, self.public_port) {
            Ok(sock) => {
                *public = Public::Mine(lock);
                drop(public);
                // Fails for want of kernel memory only: polls of the application still receive.
                let _ = self.serve(which, sock);
                None
            }
            // Of a process that dies, the lock may go before the socket.
            Err(_) if matches!(*public, Public::Ours) => {
                *public = Public::Changing;
                Some(ASK_EVERY / 4)
            }
            Err(error) => {
                if !matches!(*public, Public::Stranger(_)) {
                    let who = if error.kind() == ErrorKind::AddrInUse {
                        owner::of_udp_port(self.public_port, v6)
                    } else {
                        error.to_string()
                    };
                    *public = Public::Stranger(who);
                }
                Some(ASK_STRANGER_EVERY)
            }
        }
    }

    fn public(&self, v6: bool) -> std::sync::MutexGuard<'_, Public> {
        self.public[usize::from(v6)]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process or another one of the same folder has the public port.
    #[cfg(test)]
    pub(super) fn public_is_ours(&self, v6: bool) -> bool {
        matches!(
            *self.public(v6),
            Public::Mine(_) | Public::Ours | Public::Changing
        )
    }

    /// Whether packets from `remote` can come here: an error if it is another host, or a multicast
    /// group, and UDP port 4791 belongs to a stranger. To be asked before connecting.
    pub(crate) fn check_reachable(&self, remote: IpAddr) -> Result<()> {
        let now = self.engine.coarse_now();
        if !remote.is_multicast() && self.is_local(remote, now) {
            return Ok(());
        }
        match &*self.public(remote.is_ipv6()) {
            Public::Mine(_) | Public::Ours | Public::Changing => Ok(()),
            Public::Nobody => Err(Error::NoDevice {
                what: format!("{remote}: no UDP sockets of this address family"),
            }),
            Public::Stranger(who) => Err(Error::NoDevice {
                what: format!(
                    "{remote}: UDP port {} of this host belongs to {who}",
                    self.public_port
                ),
            }),
        }
    }

    /// Who has the public ports, by family.
    pub(super) fn public_owners(&self) -> [PortOwner; 2] {
        [("IPv4", false), ("IPv6", true)].map(|(family, v6)| {
            let public = self.public(v6);
            let owner = match &*public {
                Public::Nobody => "nobody".to_owned(),
                Public::Mine(_) => "this process".to_owned(),
                Public::Ours | Public::Changing => "another process of this user".to_owned(),
                Public::Stranger(who) => who.clone(),
            };
            PortOwner {
                family,
                owner,
                stranger: matches!(*public, Public::Stranger(_)),
            }
        })
    }
}
