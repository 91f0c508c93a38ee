//! TCP listeners that may come back.
//!
//! A program that serves one connection, closes its listener and listens again (perftest with `-R`) has
//! clients that connect in between. Its listening socket stays for a moment, so that they wait in TCP's
//! queue and are there for the next listener of this process at the same address, instead of being
//! refused. Over RoCE `roce::port::held` does the same. Listeners that nobody ever came to are closed at
//! once.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::epoll::EpollFlags;
use socket2::Socket;
use softverbs_proto::time::Time;

use crate::engine::Engine;
use crate::engine::sources::{Source, Token};
use crate::error::Result;
use crate::per_process::PerProcess;

/// How long a socket stays; who has connected to it by then is reset.
const MAY_RETURN: Duration = Duration::from_secs(1);
/// Sockets at most; a program that closes more listeners than that at once does not reopen them.
const MOST: usize = 8;

struct Listening {
    socket: Socket,
    local: SocketAddr,
    afonly: bool,
    until: Time,
}

/// Those of a process.
struct Kept {
    sockets: Mutex<Vec<Listening>>,
    token: Token,
}

static KEPT: PerProcess<Kept> = PerProcess::new();

impl Kept {
    fn get(engine: &'static Engine) -> Result<&'static Self> {
        KEPT.get_or_try(|| {
            let token = engine.sources.add(Arc::new(Expiry));
            Ok(Box::leak(Box::new(Self {
                sockets: Mutex::default(),
                token,
            })))
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Listening>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the socket of a listener that is closed. False if it is to be closed, too.
pub(super) fn keep(engine: &'static Engine, socket: &Socket, afonly: bool) -> bool {
    let local = socket.local_addr().ok().and_then(|local| local.as_socket());
    let (Some(local), Ok(kept), Ok(socket)) = (local, Kept::get(engine), socket.try_clone()) else {
        return false;
    };
    let mut sockets = kept.lock();
    if sockets.len() >= MOST {
        return false;
    }
    let until = engine.now() + MAY_RETURN;
    sockets.push(Listening {
        socket,
        local,
        afonly,
        until,
    });
    let first = sockets.iter().map(|kept| kept.until).min();
    engine.set_timer(kept.token, first);
    true
}

/// The socket of a listener that had this address, if it is kept. Others with the same port are closed:
/// they would be in the way.
pub(super) fn take(address: SocketAddr, afonly: bool) -> Option<Socket> {
    if address.port() == 0 {
        return None;
    }
    let kept = KEPT.existing()?;
    let mut sockets = kept.lock();
    let same = sockets
        .iter()
        .position(|kept| (kept.local, kept.afonly) == (address, afonly));
    let found = same.map(|index| sockets.swap_remove(index).socket);
    sockets.retain(|kept| kept.local.port() != address.port());
    found
}

/// Closes those whose time is over.
struct Expiry;

impl Source for Expiry {
    fn ready(&self, _: &Engine, _: EpollFlags) {}

    fn timeout(&self, engine: &Engine, now: Time) {
        let Some(kept) = KEPT.existing() else { return };
        let mut sockets = kept.lock();
        sockets.retain(|kept| kept.until > now);
        let first = sockets.iter().map(|kept| kept.until).min();
        engine.set_timer(kept.token, first);
    }
}
