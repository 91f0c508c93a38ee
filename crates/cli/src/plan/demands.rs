//! What the user of a server insists on.

use super::{Amount, AtomicOp, Connection, Metric, Sizes, Verb, Workload};

/// The options that were given to a server, each of which a client must have too. What was not
/// given is for the client to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demands {
    /// The verb.
    pub(crate) verb: Option<Verb>,
    /// `-A`.
    pub(crate) atomic: Option<AtomicOp>,
    /// `-c`.
    pub(crate) connection: Option<Connection>,
    /// `--mtu`.
    pub(crate) mtu: Option<u16>,
    /// `--imm`.
    pub(crate) imm: bool,
    /// `-s` or `-a`.
    pub(crate) sizes: Option<Sizes>,
    /// `-n` or `-D`.
    pub(crate) amount: Option<Amount>,
    /// `-q`.
    pub(crate) qps: Option<u16>,
    /// `-t`.
    pub(crate) tx_depth: Option<u32>,
    /// `-Q`.
    pub(crate) cq_mod: Option<u16>,
    /// `-I`.
    pub(crate) inline: Option<u16>,
    /// `-m`.
    pub(crate) fpdu: Option<u16>,
    /// `-b`.
    pub(crate) bidirectional: bool,
    /// `--check`.
    pub(crate) check: bool,
}

impl Demands {
    /// Says in one line how the client's workload differs from what the server's user asked for.
    /// `metric` is what the server measures.
    ///
    /// `--crc` is missing here on purpose: the transport uses CRC if either end asks for it.
    pub(crate) fn refuse(&self, metric: Metric, client: &Workload) -> Option<String> {
        if metric != client.metric {
            return Some(format!(
                "this server measures {metric}, the client {}",
                client.metric
            ));
        }
        if let Some(verb) = self.verb.filter(|verb| *verb != client.verb) {
            return Some(format!(
                "this server measures {verb}, the client {}",
                client.verb
            ));
        }
        if let Some(atomic) = self.atomic.filter(|atomic| *atomic != client.atomic) {
            return Some(format!(
                "this server measures {atomic}, the client {}",
                client.atomic
            ));
        }
        if let Some(here) = self.connection.filter(|here| *here != client.connection) {
            return Some(format!(
                "the server has -c {here}, the client -c {}",
                client.connection
            ));
        }
        // How far all sizes go may depend on the path MTU, which the client knows.
        let same = |sizes: &Sizes| match (sizes, client.sizes) {
            (Sizes::UpTo(_), Sizes::UpTo(_)) => true,
            (here, there) => *here == there,
        };
        if let Some(sizes) = self.sizes.filter(|sizes| !same(sizes)) {
            return Some(format!(
                "the server has {sizes}, the client {}",
                client.sizes
            ));
        }
        if let Some(amount) = self.amount.filter(|amount| *amount != client.amount) {
            return Some(format!(
                "the server has {amount}, the client {}",
                client.amount
            ));
        }
        let numbers = [
            ("-q", self.qps.map(u32::from), u32::from(client.qps)),
            // A client whose depth is limited by --check has less than it was told.
            (
                "-t",
                self.tx_depth.filter(|_| !client.check),
                client.tx_depth,
            ),
            (
                "--mtu",
                self.mtu.map(u32::from),
                client.mtu.map_or(0, u32::from),
            ),
            ("-Q", self.cq_mod.map(u32::from), u32::from(client.cq_mod)),
            ("-I", self.inline.map(u32::from), u32::from(client.inline)),
            (
                "-m",
                self.fpdu.map(u32::from),
                client.fpdu.map_or(0, u32::from),
            ),
        ];
        for (option, here, there) in numbers {
            match here {
                Some(here) if here != there && there == 0 => {
                    return Some(format!(
                        "the server has {option} {here}, the client has no {option}"
                    ));
                }
                Some(here) if here != there => {
                    return Some(format!(
                        "the server has {option} {here}, the client {option} {there}"
                    ));
                }
                _ => {}
            }
        }
        let switches = [
            ("-b", self.bidirectional, client.bidirectional),
            ("--imm", self.imm, client.imm),
            ("--check", self.check, client.check),
        ];
        switches
            .into_iter()
            .find(|(_, here, there)| *here && !there)
            .map(|(option, ..)| format!("the server has {option}, the client has not"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::workload::tests::sample;
    use super::*;

    #[test]
    fn without_demands_the_client_rules() {
        let demands = Demands::default();
        for verb in [Verb::Write, Verb::Read, Verb::Send] {
            let client = Workload {
                verb,
                bidirectional: true,
                check: true,
                ..sample()
            };
            assert_eq!(demands.refuse(Metric::Bandwidth, &client), None);
        }
    }

    #[test]
    fn every_demand_is_named_when_it_is_not_met() {
        let none = Demands::default();
        let cases = [
            (
                Demands {
                    verb: Some(Verb::Read),
                    ..none
                },
                "read",
            ),
            (
                Demands {
                    sizes: Some(Sizes::ALL),
                    ..none
                },
                "-a",
            ),
            (
                Demands {
                    amount: Some(Amount::Duration(Duration::from_secs(2))),
                    ..none
                },
                "-D 2",
            ),
            (
                Demands {
                    qps: Some(4),
                    ..none
                },
                "-q 4",
            ),
            (
                Demands {
                    tx_depth: Some(7),
                    ..none
                },
                "-t 7",
            ),
            (
                Demands {
                    cq_mod: Some(5),
                    ..none
                },
                "-Q 5",
            ),
            (
                Demands {
                    inline: Some(32),
                    ..none
                },
                "no -I",
            ),
            (
                Demands {
                    fpdu: Some(512),
                    ..none
                },
                "-m 512",
            ),
            (
                Demands {
                    bidirectional: true,
                    ..none
                },
                "-b",
            ),
            (
                Demands {
                    check: true,
                    ..none
                },
                "--check",
            ),
            (
                Demands {
                    atomic: Some(AtomicOp::CompareSwap),
                    ..none
                },
                "cmp-swap",
            ),
            (
                Demands {
                    connection: Some(Connection::Ud),
                    ..none
                },
                "-c UD",
            ),
            (
                Demands {
                    mtu: Some(1024),
                    ..none
                },
                "--mtu 1024",
            ),
            (Demands { imm: true, ..none }, "--imm"),
        ];
        for (demands, word) in cases {
            let text = demands.refuse(Metric::Bandwidth, &sample()).expect(word);
            assert!(text.contains(word), "{text}");
        }
        let text = none.refuse(Metric::Latency, &sample()).unwrap();
        assert!(text.contains("lat") && text.contains("bw"), "{text}");
    }

    #[test]
    fn met_demands_are_silent() {
        let demands = Demands {
            verb: Some(Verb::Write),
            sizes: Some(Sizes::One(65_536)),
            amount: Some(Amount::Iterations(5000)),
            qps: Some(1),
            tx_depth: Some(128),
            cq_mod: Some(0),
            ..Demands::default()
        };
        assert_eq!(demands.refuse(Metric::Bandwidth, &sample()), None);
    }
}
