//! The plan of `bw` and `lat`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use softverbs::Transport;
use softverbs::fault::Plan as Faults;

use super::{Amount, Demands, Metric, Sizes, Verb, Workload};
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
        let common = args.common;
        let (verb, host) = split_words(&common.words)?;
        let sizes = sizes(&common)?;
        let amount = amount(&common);
        let tx_depth = args.tx_depth.unwrap_or(128);
        if args.cq_mod.is_some_and(|count| u32::from(count) > tx_depth) {
            return Err(Failure::usage(
                "-Q must not exceed -t: the queue would be full before its first completion",
            ));
        }
        let used_verb = verb.unwrap_or(Verb::Write);
        let workload = Workload {
            metric: Metric::Bandwidth,
            verb: used_verb,
            sizes: sizes.unwrap_or(Sizes::One(65_536)),
            amount: amount.unwrap_or(Amount::Iterations(5000)),
            qps: args.qps.unwrap_or(1),
            tx_depth,
            window: 0,
            slots: 0,
            cq_mod: args.cq_mod.unwrap_or(0),
            inline: inline(&common, used_verb, 0)?,
            fpdu: common.fpdu,
            bidirectional: args.bidirectional,
            check: common.check,
            crc: common.crc,
        };
        let demands = Demands {
            verb,
            sizes,
            amount,
            qps: args.qps,
            tx_depth: args.tx_depth,
            cq_mod: args.cq_mod,
            inline: common.inline,
            fpdu: common.fpdu,
            bidirectional: args.bidirectional,
            check: common.check,
        };
        Self::finish(common, host, workload, demands)
    }

    /// The plan of `lat`.
    pub(crate) fn latency(args: LatArgs) -> Outcome<Self> {
        let common = args.common;
        let (verb, host) = split_words(&common.words)?;
        let sizes = sizes(&common)?;
        let amount = amount(&common);
        let used_verb = verb.unwrap_or(Verb::Send);
        if common.events && !common.server && used_verb == Verb::Write {
            return Err(Failure::usage(
                "-e does not go with `lat write`: its ends watch memory, which raises no event",
            ));
        }
        let workload = Workload {
            metric: Metric::Latency,
            verb: used_verb,
            sizes: sizes.unwrap_or(Sizes::One(8)),
            amount: amount.unwrap_or(Amount::Iterations(1000)),
            qps: 1,
            tx_depth: 1,
            window: 0,
            slots: 0,
            cq_mod: 0,
            inline: inline(&common, used_verb, 64)?,
            fpdu: common.fpdu,
            bidirectional: false,
            check: common.check,
            crc: common.crc,
        };
        let demands = Demands {
            verb,
            sizes,
            amount,
            inline: common.inline,
            fpdu: common.fpdu,
            check: common.check,
            ..Demands::default()
        };
        Self::finish(common, host, workload, demands)
    }

    /// What does not depend on the metric.
    fn finish(
        args: TrafficArgs,
        host: Option<String>,
        workload: Workload,
        demands: Demands,
    ) -> Outcome<Self> {
        let of_device = args.device.as_deref().and_then(|device| {
            let is_roce = device.starts_with("roce_");
            is_roce.then_some(Transport::Roce)
        });
        let transport = args.transport.map(Transport::from).or(of_device);
        if transport == Some(Transport::Roce) && (args.crc || args.fpdu.is_some()) {
            return Err(Failure::usage(
                "--crc and --fpdu are options of iWARP, not of RoCE",
            ));
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
                "neither `{first}` nor `{second}` is a verb: write, read or send"
            ))),
        },
    }
}

/// The sizes that were asked for, if any.
fn sizes(args: &TrafficArgs) -> Outcome<Option<Sizes>> {
    if args.all {
        return Ok(Some(Sizes::All));
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
        (Verb::Read, Some(1..)) if !args.server => Err(Failure::usage(
            "-I does not go with read: its payload comes from the other end",
        )),
        (Verb::Read, _) => Ok(0),
        (_, inline) => Ok(inline.unwrap_or(usual)),
    }
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
