//! The edge of TCP streams: where what a connection sends and receives can be disturbed. Only
//! connections that are made while a plan is installed have one.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use socket2::SockRef;
use softverbs_proto::time::Time;

use super::sys::IoList;
use crate::fault::{self, Direction, Found, Frame, Lane, Verdict};

/// Octets that a direction holds back before no more are taken.
const MOST: usize = 4 << 20;

/// Both directions of one connection.
#[derive(Debug)]
pub(crate) struct StreamEdge {
    peer: IpAddr,
    outgoing: Lane,
    incoming: Lane,
    /// When what was due was sent last.
    flushed: Time,
    /// How the peer's stream ended.
    end: Option<io::Result<()>>,
}

/// The edge of a connection, if it has one.
pub(crate) type Edge = Option<Box<StreamEdge>>;

/// The edge of a new connection.
pub(crate) fn new(peer: IpAddr) -> Edge {
    fault::armed().then(|| {
        Box::new(StreamEdge {
            peer,
            outgoing: Lane::new(),
            incoming: Lane::new(),
            flushed: Time::ZERO,
            end: None,
        })
    })
}

/// Sends a small frame of the start-up.
pub(crate) fn send(
    edge: &mut Edge,
    now: Time,
    fd: BorrowedFd<'_>,
    octets: &[u8],
) -> io::Result<usize> {
    let Some(edge) = edge else {
        let mut list = IoList::new();
        list.push_out(octets);
        return list.send(fd, false);
    };
    edge.take(now, octets);
    match edge.flush(now, fd) {
        Ok(()) => Ok(octets.len()),
        // It is the edge's to send now.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(octets.len()),
        Err(error) => Err(error),
    }
}

/// Receives during the start-up, and sends what is due.
pub(crate) fn receive(
    edge: &mut Edge,
    now: Time,
    fd: BorrowedFd<'_>,
    room: &mut [u8],
) -> io::Result<usize> {
    let Some(edge) = edge else {
        let mut list = IoList::new();
        list.push_in(room);
        return list.receive(fd);
    };
    match edge.flush(now, fd) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
        _ => {}
    }
    edge.fill(now, fd, room);
    edge.give(now, fd, room)
}

/// The earlier of the edge's moment and another one.
pub(crate) fn earlier(edge: &Edge, other: Option<Time>) -> Option<Time> {
    let Some(edge) = edge else { return other };
    // What was due when TCP took no more waits for room, not for a moment.
    let outgoing = edge.outgoing.next().filter(|at| *at > edge.flushed);
    let moments = [outgoing, edge.incoming.next(), other];
    moments.into_iter().flatten().min()
}

fn judge(peer: IpAddr, direction: Direction) -> impl FnMut(&Found) -> Verdict {
    move |found| {
        fault::judge(&Frame {
            direction,
            kinds: found.kinds,
            peer,
            len: found.len,
            what: found,
        })
    }
}

/// The connection is closed with a reset, as soon as it is closed.
fn reset(fd: BorrowedFd<'_>) -> io::Error {
    // Without it the peer sees a FIN instead.
    let _ = SockRef::from(&fd).set_linger(Some(Duration::ZERO));
    ErrorKind::ConnectionReset.into()
}

impl StreamEdge {
    /// Whether no more may be taken to be sent now.
    pub(crate) const fn is_full(&self) -> bool {
        self.outgoing.waiting() >= MOST
    }

    /// Whether nothing is read for now.
    pub(crate) const fn is_deaf(&self) -> bool {
        self.end.is_some() || self.incoming.waiting() >= MOST
    }

    /// Whether there is something to send now.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.outgoing.is_due(now)
    }

    /// Takes octets to be sent.
    pub(crate) fn take(&mut self, now: Time, octets: &[u8]) {
        let markers = self.incoming.wants_markers;
        let judge = judge(self.peer, Direction::Out);
        self.outgoing.push(now, octets, markers, judge);
    }

    /// Sends what is due. `WouldBlock`: TCP takes no more.
    pub(crate) fn flush(&mut self, now: Time, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.flushed = now;
        while let Some(chunk) = self.outgoing.due(now) {
            if chunk.reset {
                return Err(reset(fd));
            }
            let rest = chunk.rest();
            let most = chunk.split.unwrap_or(rest.len()).min(rest.len());
            let mut list = IoList::new();
            list.push_out(&rest[..most]);
            let sent = list.send(fd, false);
            drop(list);
            match sent {
                Ok(octets) => self.outgoing.went(octets),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads from the socket, once. Whether there may be more.
    pub(crate) fn fill(&mut self, now: Time, fd: BorrowedFd<'_>, stage: &mut [u8]) -> bool {
        if self.is_deaf() {
            return false;
        }
        let mut list = IoList::new();
        list.push_in(stage);
        let got = list.receive(fd);
        drop(list);
        match got {
            Ok(0) => self.end = Some(Ok(())),
            Ok(got) => {
                let markers = self.outgoing.wants_markers;
                let judge = judge(self.peer, Direction::In);
                self.incoming.push(now, &stage[..got], markers, judge);
                return got == stage.len();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return true,
            Err(error) => self.end = Some(Err(error)),
        }
        false
    }

    /// Gives what is due, as a socket would: 0 is the end of the stream.
    pub(crate) fn give(
        &mut self,
        now: Time,
        fd: BorrowedFd<'_>,
        room: &mut [u8],
    ) -> io::Result<usize> {
        // A connection that TCP has given up has no more to give.
        if let Some(Err(error)) = &self.end {
            return Err(error.kind().into());
        }
        let Some(chunk) = self.incoming.due(now) else {
            return match self.end {
                Some(_) if self.incoming.waiting() == 0 => Ok(0),
                _ => Err(ErrorKind::WouldBlock.into()),
            };
        };
        if chunk.reset {
            return Err(reset(fd));
        }
        let rest = chunk.rest();
        let most = rest.len().min(room.len());
        // The receiver sees pieces, too.
        let most = most.min(chunk.split.unwrap_or(most));
        room[..most].copy_from_slice(&rest[..most]);
        self.incoming.went(most);
        Ok(most)
    }

    /// What is to be sent before the end; nothing if it is held for ever.
    pub(crate) fn end(&mut self) -> Option<Vec<u8>> {
        self.outgoing.end()
    }
}
