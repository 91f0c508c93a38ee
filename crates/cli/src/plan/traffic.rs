//! The plan of `bw` and `lat`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use softverbs::Transport;
use softverbs::fault::Plan as Faults;

use super::{Amount, AtomicOp, Connection, Demands, Metric, Sizes, Verb, Workload};
use crate::args::{BwArgs, LatArgs, TrafficArgs};
use crate::failure::{Failure, Outcome};

/// A measurement, or the serving of measurements.
#[derive(Debug)]
pub(crate) struct TrafficPlan {
    /// Which end this process is.
    pub(crate) role: Role,
    /// What is measured; a server takes the client's instead.
    pub(crate) workload: Workload,
    /// Sleep until completions.
    pub(crate) events: bool,
    /// Which local address to use.
    pub(crate) local: Local,
    /// The transport, if the user chose one.
    pub(crate) transport: Option<Transport>,
    /// Exchange over plain TCP.
    pub(crate) tcp_exchange: bool,
    /// Silence of the peer that ends the run.
    pub(crate) timeout: Duration,
    /// Report as JSON.
    pub(crate) json: bool,
    /// What is to be disturbed.
    pub(crate) fault: Option<Faults>,
}

/// Which end of the connection this process is.
#[derive(Debug)]
pub(crate) enum Role {
    /// The client, and the parent of a server on this machine.
    BothEnds,
    /// Waits for clients.
    Server(ServerPlan),
    /// Connects to a server.
    Client {
        /// Its address or host name.
        host: String,
        /// Its port.
        port: u16,
    },
}

/// What only a server needs.
#[derive(Debug)]
pub(crate) struct ServerPlan {
    /// Port to listen at, 0 for any.
    pub(crate) port: u16,
    /// Serve one client after the other.
    pub(crate) persistent: bool,
    /// How long to wait for a client, if not for ever.
    pub(crate) wait: Option<Duration>,
    /// Where to write the port.
    pub(crate) port_file: Option<PathBuf>,
    /// What its user insists on.
    pub(crate) demands: Demands,
    /// It ends with this process, which has started it.
    pub(crate) parent: Option<i32>,
}

/// Which local address to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// Whatever the route says; a server listens at every address.
    Any,
    /// An address of this device.
    Device(String),
    /// This address.
    Address(IpAddr),
}

/// The largest message: twice this much is registered.
const LARGEST: u64 = 1 << 30;

impl TrafficPlan {
    /// The plan of `bw`.
    pub(crate) fn bandwidth(args: BwArgs) -> Outcome<Self> {
        let (host, asked) = Asked::new(&args.common)?;
        let common = asked.workload(&args.common, Metric::Bandwidth)?;
        let usual = Workload::usual_depth(common.sizes.largest());
        let tx_depth = args.tx_depth.unwrap_or(usual);
        if args.cq_mod.is_some_and(|count| u32::from(count) > tx_depth) {
            return Err(Failure::usage(format!(
                "-Q must not exceed -t, {tx_depth} here: the queue would be full before its first \
                 completion"
            )));
        }
        let workload = Workload {
            qps: args.qps.unwrap_or(1),
            tx_depth,
            cq_mod: args.cq_mod.unwrap_or(0),
            bidirectional: args.bidirectional,
            ..common
        };
        let demands = Demands {
            qps: args.qps,
            tx_depth: args.tx_depth,
            cq_mod: args.cq_mod,
            bidirectional: args.bidirectional,
            ..asked.demands(&args.common)
        };
        Self::finish(args.common, host, workload, demands)
    }

    /// The plan of `lat`.
    pub(crate) fn latency(args: LatArgs) -> Outcome<Self> {
        let common = args.common;
        let (host, asked) = Asked::new(&common)?;
        let workload = asked.workload(&common, Metric::Latency)?;
        let demands = asked.demands(&common);
        let watches = workload.verb == Verb::Write && !workload.takes_receives();
        if common.events && !common.server && watches {
            return Err(Failure::usage(
                "-e does not go with `lat write`: its ends watch memory, which raises no event",
            ));
        }
        Self::finish(common, host, workload, demands)
    }

    /// What does not depend on the metric.
    fn finish(
        args: TrafficArgs,
        host: Option<String>,
        workload: Workload,
        demands: Demands,
    ) -> Outcome<Self> {
        let transport = transport(&args)?;
        if let Some(transport) = transport {
            workload.check_transport(transport)?;
        }
        let role = match (host, args.server) {
            (Some(host), true) => {
                return Err(Failure::usage(format!(
                    "--server waits for clients and takes no address (`{host}`); to listen at one address use --bind"
                )));
            }
            (Some(_), false) if args.port == 0 => {
                return Err(Failure::usage(
                    "a client needs the port of its server, not 0",
                ));
            }
            (Some(host), false) => Role::Client {
                host,
                port: args.port,
            },
            (None, true) => Role::Server(ServerPlan {
                port: args.port,
                persistent: args.persistent,
                wait: args.wait,
                port_file: args.port_file,
                demands,
                parent: args.parent,
            }),
            (None, false) => Role::BothEnds,
        };
        Ok(Self {
            role,
            workload: workload.resolve(),
            events: args.events,
            local: match (args.device, args.bind) {
                (Some(device), _) => Local::Device(device),
                (None, Some(address)) => Local::Address(address),
                (None, None) => Local::Any,
            },
            transport,
            tcp_exchange: args.tcp_exchange,
            timeout: args.timeout,
            json: args.json,
            fault: args.fault,
        })
    }
}

/// What `bw` and `lat` were asked for alike.
struct Asked {
    verb: Option<Verb>,
    sizes: Option<Sizes>,
    amount: Option<Amount>,
    connection: Option<Connection>,
    atomic: Option<AtomicOp>,
}

impl Asked {
    /// From the arguments; the address of the server comes beside it.
    fn new(args: &TrafficArgs) -> Outcome<(Option<String>, Self)> {
        let (verb, host) = split_words(&args.words)?;
        let asked = Self {
            verb,
            sizes: sizes(args)?,
            amount: amount(args),
            connection: args.connection.map(Connection::from),
            atomic: args.atomic_type.map(AtomicOp::from),
        };
        Ok((host, asked))
    }

    /// The measurement, without what only bandwidth has.
    fn workload(&self, args: &TrafficArgs, metric: Metric) -> Outcome<Workload> {
        let connection = self.connection.unwrap_or_default();
        let usual = match (metric, connection) {
            (_, Connection::Ud) | (Metric::Latency, _) => Verb::Send,
            (Metric::Bandwidth, _) => Verb::Write,
        };
        let verb = self.verb.unwrap_or(usual);
        check_connection(connection, verb)?;
        self.check_atomic(args, verb)?;
        if args.imm && verb != Verb::Send && verb != Verb::Write {
            return Err(Failure::usage(format!(
                "--imm does not go with {verb}: Sends and Writes carry immediate data"
            )));
        }
        let (bandwidth, latency) = ((5000, 0), (1000, 64));
        let (iterations, usual_inline) = match metric {
            Metric::Bandwidth => bandwidth,
            Metric::Latency => latency,
        };
        let usual_size = match (metric, connection) {
            _ if verb == Verb::Atomic => 8,
            (Metric::Latency, _) => 8,
            (Metric::Bandwidth, Connection::Ud) => args.mtu.unwrap_or(1024).into(),
            (Metric::Bandwidth, _) => 65_536,
        };
        let sizes = match self.sizes {
            None => Sizes::One(usual_size),
            // The port says how much a packet holds; until it is known, what was asked for.
            Some(Sizes::UpTo(_)) if connection == Connection::Ud => {
                Sizes::UpTo(args.mtu.unwrap_or(4096).into())
            }
            Some(sizes) => sizes,
        };
        if let Some(mtu) = args.mtu
            && connection == Connection::Ud
        {
            Workload::check_datagram(sizes.largest(), mtu)?;
        }
        Ok(Workload {
            metric,
            verb,
            atomic: self.atomic.unwrap_or_default(),
            connection,
            mtu: args.mtu,
            imm: args.imm,
            sizes,
            amount: self.amount.unwrap_or(Amount::Iterations(iterations)),
            qps: 1,
            tx_depth: 1,
            window: 0,
            slots: 0,
            cq_mod: 0,
            inline: inline(args, verb, usual_inline)?,
            fpdu: args.fpdu,
            bidirectional: false,
            check: args.check,
            crc: args.crc,
        })
    }

    fn check_atomic(&self, args: &TrafficArgs, verb: Verb) -> Outcome<()> {
        if verb != Verb::Atomic {
            // A server may leave the verb to its clients.
            if self.atomic.is_some() && !(args.server && self.verb.is_none()) {
                return Err(Failure::usage(format!(
                    "-A goes with the verb atomic, not with {verb}"
                )));
            }
            return Ok(());
        }
        match self.sizes {
            None | Some(Sizes::One(8)) => Ok(()),
            Some(sizes) => Err(Failure::usage(format!(
                "an atomic operation has 8 octets: no {sizes}"
            ))),
        }
    }

    fn demands(&self, args: &TrafficArgs) -> Demands {
        Demands {
            verb: self.verb,
            atomic: self.atomic,
            connection: self.connection,
            mtu: args.mtu,
            imm: args.imm,
            sizes: self.sizes,
            amount: self.amount,
            inline: args.inline,
            fpdu: args.fpdu,
            check: args.check,
            ..Demands::default()
        }
    }
}

/// Refuses operations that a service has not got.
fn check_connection(connection: Connection, verb: Verb) -> Outcome<()> {
    let has = match connection {
        Connection::Rc => return Ok(()),
        Connection::Uc if matches!(verb, Verb::Write | Verb::Send) => return Ok(()),
        Connection::Ud if verb == Verb::Send => return Ok(()),
        Connection::Uc => "write and send",
        Connection::Ud => "send",
    };
    Err(Failure::usage(format!(
        "-c {connection} does not go with {verb}: it has {has} only"
    )))
}

/// The transport that was asked for, by its name, by that of a device, or by what only one has.
fn transport(args: &TrafficArgs) -> Outcome<Option<Transport>> {
    let of_device = args.device.as_deref().and_then(|device| {
        let named = [("roce_", Transport::Roce), ("iw_", Transport::Iwarp)];
        let named = named.into_iter().find(|(name, _)| device.starts_with(name));
        named.map(|(_, transport)| transport)
    });
    let by_name = args.transport.map(Transport::from);
    if let (Some(named), Some(of_device)) = (by_name, of_device)
        && named != of_device
    {
        return Err(Failure::usage(format!(
            "-d {} is a device of the transport {}, not of {}",
            args.device.as_deref().unwrap_or_default(),
            of_device.name(),
            named.name()
        )));
    }
    let unreliable = args.connection.map(Connection::from).unwrap_or_default() != Connection::Rc;
    let implied = (unreliable || args.mtu.is_some()).then_some(Transport::Roce);
    Ok(by_name.or(of_device).or(implied))
}

/// Tells the verb from the address: a verb is what has the name of one. The first place is its
/// usual one.
fn split_words(words: &[String]) -> Outcome<(Option<Verb>, Option<String>)> {
    match words {
        [] => Ok((None, None)),
        [word] => Ok(match Verb::parse(word) {
            Some(verb) => (Some(verb), None),
            None => (None, Some(word.clone())),
        }),
        [first, second, ..] => match (Verb::parse(first), Verb::parse(second)) {
            (Some(verb), _) => Ok((Some(verb), Some(second.clone()))),
            (None, Some(verb)) => Ok((Some(verb), Some(first.clone()))),
            (None, None) => Err(Failure::usage(format!(
                "neither `{first}` nor `{second}` is a verb: write, read, send or atomic"
            ))),
        },
    }
}

/// The sizes that were asked for, if any.
fn sizes(args: &TrafficArgs) -> Outcome<Option<Sizes>> {
    if args.all {
        return Ok(Some(Sizes::ALL));
    }
    args.size
        .map(|size| match u32::try_from(size) {
            Ok(octets) if (1..=LARGEST).contains(&size) => Ok(Sizes::One(octets)),
            _ => Err(Failure::usage("the size of a message is 1 octet to 1 GiB")),
        })
        .transpose()
}

/// The length of the run that was asked for, if any.
fn amount(args: &TrafficArgs) -> Option<Amount> {
    // Whole milliseconds travel to the peer; the arguments exclude less than one.
    let whole = |time: Duration| Duration::from_secs_f64((time.as_secs_f64() * 1e3).round() / 1e3);
    args.duration
        .map(|time| Amount::Duration(whole(time)))
        .or_else(|| args.iters.map(Amount::Iterations))
}

/// The largest message to hand over inline.
fn inline(args: &TrafficArgs, verb: Verb, usual: u16) -> Outcome<u16> {
    match (verb, args.inline) {
        (Verb::Read | Verb::Atomic, Some(1..)) if !args.server => Err(Failure::usage(format!(
            "-I does not go with {verb}: its payload comes from the other end"
        ))),
        (Verb::Read | Verb::Atomic, _) => Ok(0),
        (_, inline) => Ok(inline.unwrap_or(usual)),
    }
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
