//! The plan of `ping`.

use std::path::PathBuf;
use std::time::Duration;

use softverbs::Transport;
use softverbs::fault::Plan as Faults;

use crate::args::PingArgs;
use crate::failure::{Failure, Outcome};

/// A ping, or the serving of pings.
#[derive(Debug)]
pub(crate) struct PingPlan {
    /// Which end this process is.
    pub(crate) role: PingRole,
    /// The transport, if the user chose one.
    pub(crate) transport: Option<Transport>,
    /// Port of the server.
    pub(crate) port: u16,
    /// Octets of one ping.
    pub(crate) size: u32,
    /// Pings, if not without end.
    pub(crate) count: Option<u64>,
    /// Compare what comes back.
    pub(crate) verify: bool,
    /// Print the data.
    pub(crate) verbose: bool,
    /// Print the steps.
    pub(crate) debug: bool,
    /// Silence of the peer that ends the run.
    pub(crate) timeout: Duration,
    /// What is to be disturbed.
    pub(crate) fault: Option<Faults>,
}

/// Which end of the connection this process is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PingRole {
    /// Waits for clients.
    Server {
        /// Listen at this address only.
        bind: Option<String>,
        /// Serve one client after the other.
        persistent: bool,
        /// Where to write the port.
        port_file: Option<PathBuf>,
    },
    /// Pings a server.
    Client {
        /// Its address or host name.
        host: String,
        /// Source address.
        source: Option<String>,
    },
}

impl PingPlan {
    /// Resolves the arguments.
    pub(crate) fn new(args: PingArgs) -> Outcome<Self> {
        let size = u32::try_from(args.size)
            .ok()
            .filter(|size| (1..=crate::ping::MAX_SIZE).contains(size))
            .ok_or_else(|| Failure::usage("the size of a ping is 1 octet to 64 KiB"))?;
        // clap does not insist on --server here: it takes ADDRESS for a reason not to.
        if !args.server && (args.persistent || args.port_file.is_some()) {
            return Err(Failure::usage("-P and --port-file are options of a server"));
        }
        let role = if args.server {
            PingRole::Server {
                bind: args.address,
                persistent: args.persistent,
                port_file: args.port_file,
            }
        } else {
            let host = match (args.host, args.address) {
                (Some(host), None) | (None, Some(host)) => host,
                (Some(host), Some(address)) if host == address => host,
                (Some(_), Some(_)) => {
                    return Err(Failure::usage(
                        "two addresses to ping: give one, as ADDRESS or with -a",
                    ));
                }
                (None, None) => {
                    return Err(Failure::usage(
                        "no address to ping; to wait for pings use --server",
                    ));
                }
            };
            if args.port == 0 {
                return Err(Failure::usage(
                    "a client needs the port of its server, not 0",
                ));
            }
            PingRole::Client {
                host,
                source: args.source,
            }
        };
        Ok(Self {
            role,
            transport: args.transport.map(Transport::from),
            port: args.port,
            size,
            count: (args.count > 0).then_some(args.count),
            verify: args.verify,
            verbose: args.verbose,
            debug: args.debug,
            timeout: args.timeout,
            fault: args.fault,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn plan(line: &str) -> Outcome<PingPlan> {
        let words = ["softverbs", "ping"]
            .into_iter()
            .chain(line.split_whitespace());
        match Args::try_parse_from(words) {
            Ok(Args {
                command: Command::Ping(args),
            }) => PingPlan::new(args),
            Ok(_) => panic!("not a ping"),
            Err(error) => Err(Failure::usage(error.to_string())),
        }
    }

    #[test]
    fn client_defaults() {
        let plan = plan("192.0.2.1").unwrap();
        assert_eq!(
            plan.role,
            PingRole::Client {
                host: "192.0.2.1".into(),
                source: None
            }
        );
        assert_eq!((plan.port, plan.size, plan.count), (7174, 64, None));
        assert!(!plan.verify && !plan.verbose && !plan.debug);
        assert_eq!(plan.timeout, Duration::from_secs(10));
    }

    #[test]
    fn letters_of_rping() {
        let plan = plan("-c -a ::1 -I ::2 -p 9 -S 64K -C 3 -V -v -d --timeout 2").unwrap();
        assert_eq!(
            plan.role,
            PingRole::Client {
                host: "::1".into(),
                source: Some("::2".into())
            }
        );
        assert_eq!((plan.port, plan.size, plan.count), (9, 65_536, Some(3)));
        assert!(plan.verify && plan.verbose && plan.debug);
        assert_eq!(plan.timeout, Duration::from_secs(2));
    }

    #[test]
    fn long_names() {
        let plan = plan(
            "--client --address h --source s --port 9 --size 5 --count 3 --verify --verbose --debug",
        )
        .unwrap();
        assert_eq!(
            plan.role,
            PingRole::Client {
                host: "h".into(),
                source: Some("s".into())
            }
        );
        assert_eq!((plan.port, plan.size, plan.count), (9, 5, Some(3)));
        assert!(plan.verify && plan.verbose && plan.debug);
    }

    #[test]
    fn server() {
        for line in [
            "-s -P -a 0.0.0.0 -p 0 --port-file f",
            "--server --persistent --address 0.0.0.0 -p 0 --port-file f",
        ] {
            let plan = plan(line).unwrap();
            assert_eq!(
                plan.role,
                PingRole::Server {
                    bind: Some("0.0.0.0".into()),
                    persistent: true,
                    port_file: Some("f".into())
                }
            );
        }
    }

    #[test]
    fn what_does_not_fit_together() {
        for line in [
            "",
            "-s -c",
            "-s 192.0.2.1",
            "192.0.2.1 -a 192.0.2.2",
            "192.0.2.1 -S 0",
            "192.0.2.1 -S 65537",
            "192.0.2.1 -p 0",
            "192.0.2.1 -P",
            "192.0.2.1 --port-file f",
            "-s -I 192.0.2.1",
        ] {
            assert!(matches!(plan(line), Err(Failure::Usage(_))), "{line}");
        }
    }
}
