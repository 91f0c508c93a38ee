//! Events with time limits, and connecting.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use softverbs::Transport;
use softverbs::cm::{CmEvent, CmId, CmOption, ConnParam, EventChannel, EventKind, PortSpace};

use crate::deadline::Deadline;
use crate::exchange::Message;
use crate::failure::{Failure, Outcome};
use crate::interrupt;

/// `errno` values that connections end with.
mod errno {
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EPROTO: i32 = 71;
    pub(super) const ECONNRESET: i32 = 104;
    pub(super) const ETIMEDOUT: i32 = 110;
    pub(super) const ECONNREFUSED: i32 = 111;
}

/// The (negated) reason of a rejection by InfiniBand's connection manager: nobody listens.
const NO_SUCH_SERVICE: i32 = -8;

/// An event channel, and the limit of patience.
#[derive(Debug)]
pub(crate) struct Cm {
    /// Delivers the events of all identifiers of one end.
    pub(crate) channel: EventChannel,
    /// How long a peer may take to answer.
    pub(crate) timeout: Duration,
    /// The transport, if the user chose one.
    transport: Option<Transport>,
}

/// What is waited for, in words for the user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The event.
    pub(crate) kind: EventKind,
    /// As in "no answer while connecting".
    pub(crate) doing: &'static str,
}

impl Cm {
    /// A channel of its own.
    pub(crate) fn new(timeout: Duration, transport: Option<Transport>) -> Outcome<Self> {
        Ok(Self {
            channel: EventChannel::new()?,
            timeout,
            transport,
        })
    }

    /// A new identifier with these options, and with time limits that suit the user's.
    pub(crate) fn id(&self, options: &[CmOption]) -> Outcome<CmId> {
        let id = CmId::new(&self.channel, PortSpace::Tcp, 0)?;
        if let Some(transport) = self.transport {
            id.set_option(CmOption::Transport(transport))?;
        }
        id.set_option(CmOption::ConnectTimeout(self.timeout))?;
        id.set_option(CmOption::ReplyTimeout(self.timeout))?;
        // A peer that vanished is given up after about three times the idle time.
        let idle = (self.timeout / 3).max(Duration::from_secs(1));
        id.set_option(CmOption::Keepalive(Some(idle)))?;
        for option in options {
            id.set_option(*option)?;
        }
        Ok(id)
    }

    /// The next event before the deadline.
    pub(crate) fn next(&self, deadline: Deadline) -> Outcome<Option<CmEvent>> {
        loop {
            interrupt::check()?;
            if let Some(event) = self.channel.get_event(Some(deadline.slice()))? {
                return Ok(Some(event));
            }
            if deadline.passed() {
                return Ok(None);
            }
        }
    }

    /// Waits for the next event of `id`. Events of other identifiers are not expected meanwhile,
    /// and dropped.
    fn next_of(&self, id: &CmId, doing: &str) -> Outcome<CmEvent> {
        let deadline = Deadline::after(self.timeout);
        while let Some(event) = self.next(deadline)? {
            if event.id().same_as(id) {
                return Ok(event);
            }
        }
        Err(Failure::run(format!(
            "no answer within {} s (--timeout) while {doing}",
            self.timeout.as_secs_f64(),
        )))
    }

    /// Waits for an event of `id`. Any other event of it is a failure.
    pub(crate) fn wait(&self, id: &CmId, wanted: Wanted) -> Outcome<CmEvent> {
        let event = self.next_of(id, wanted.doing)?;
        if event.kind() == wanted.kind {
            return Ok(event);
        }
        Err(unwanted(&event, wanted.doing))
    }
}

/// A connection that is being set up from this end.
#[derive(Debug)]
pub(crate) struct Dial<'a> {
    cm: &'a Cm,
    /// Identifier with a route; queue pairs are made on it before [`connect`](Self::connect).
    pub(crate) id: CmId,
}

impl<'a> Dial<'a> {
    /// Finds the way to `peer`.
    pub(crate) fn resolve(
        cm: &'a Cm,
        peer: SocketAddr,
        source: Option<SocketAddr>,
        options: &[CmOption],
    ) -> Outcome<Self> {
        let id = cm.id(options)?;
        id.resolve_addr(source, peer, cm.timeout)?;
        let resolved = Wanted {
            kind: EventKind::AddrResolved,
            doing: "resolving the address",
        };
        cm.wait(&id, resolved)?;
        id.resolve_route(cm.timeout)?;
        let routed = Wanted {
            kind: EventKind::RouteResolved,
            doing: "resolving the route",
        };
        cm.wait(&id, routed)?;
        Ok(Self { cm, id })
    }

    /// Connects.
    pub(crate) fn connect(&self, param: &ConnParam) -> Outcome<()> {
        self.id.connect(param)?;
        let established = Wanted {
            kind: EventKind::Established,
            doing: "connecting",
        };
        self.cm.wait(&self.id, established).map(drop)
    }

    /// Connects with a message of the exchange and returns the server's answer, which came with
    /// its accept, or is a refusal that came with its reject.
    pub(crate) fn ask(&self, question: &Message) -> Outcome<Message> {
        self.id
            .connect(&ConnParam::with_private_data(question.encode()))?;
        let event = self.cm.next_of(&self.id, "connecting")?;
        match (event.kind(), Message::decode(event.private_data())) {
            (EventKind::Established, Ok(answer)) => Ok(answer),
            (EventKind::Established, Err(error)) => Err(Failure::run(error.to_string())),
            (EventKind::Rejected, Ok(refusal @ Message::Refuse(_))) => Ok(refusal),
            _ => Err(unwanted(&event, "connecting")),
        }
    }
}

/// An event that means failure, in words for the user.
pub(crate) fn unwanted(event: &CmEvent, doing: &str) -> Failure {
    if let Ok(Message::Refuse(reason)) = Message::decode(event.private_data()) {
        return Failure::run(format!("refused by the peer: {reason}"));
    }
    let timed_out = event.status() == -errno::ETIMEDOUT;
    Failure::run(match (event.kind(), event.status().saturating_neg()) {
        (EventKind::Rejected, _) if event.is_consumer_reject() => {
            "the peer rejected the connection".to_owned()
        }
        (EventKind::Rejected, errno::ECONNREFUSED | NO_SUCH_SERVICE) => {
            let transport = event.id().transport();
            format!("connection refused: no server listens there over {transport} (--transport)")
        }
        (EventKind::Rejected, errno::ECONNRESET) | (EventKind::Disconnected, _) => {
            format!("the peer closed the connection while {doing}")
        }
        (EventKind::Unreachable | EventKind::ConnectError, _) if timed_out => {
            format!("no answer from the peer while {doing}")
        }
        (EventKind::ConnectError, errno::EINVAL | errno::EPROTO) => {
            format!(
                "the peer does not answer as an iWARP peer does, while {doing} (a server with \
                 --tcp-exchange wants it at both ends)"
            )
        }
        (EventKind::Unreachable, status) => {
            format!(
                "the peer cannot be reached: {}",
                io::Error::from_raw_os_error(status)
            )
        }
        (kind, _) => format!("{} (status {}) while {doing}", kind.name(), event.status()),
    })
}
