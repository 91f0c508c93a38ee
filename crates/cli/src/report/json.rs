//! One object a line, for programs.

use serde::Serialize;
use softverbs::Transport;

use super::Figures;
use crate::plan::{Verb, Workload};

/// What is measured, and how.
#[derive(Serialize)]
struct Line<F> {
    metric: &'static str,
    verb: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic: Option<String>,
    transport: &'static str,
    connection: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_mtu: Option<u16>,
    imm: bool,
    bytes: u32,
    iterations: u64,
    #[serde(flatten)]
    figures: F,
    #[serde(flatten)]
    loss: Option<LossKeys>,
}

#[derive(Serialize)]
struct BandwidthKeys {
    bw_peak_gbps: f64,
    bw_avg_gbps: f64,
    msg_rate_mpps: f64,
}

#[derive(Serialize)]
struct LatencyKeys {
    t_min_us: f64,
    t_max_us: f64,
    t_typical_us: f64,
    t_avg_us: f64,
    t_stdev_us: f64,
    p99_us: f64,
    p999_us: f64,
}

#[derive(Serialize)]
struct LossKeys {
    sent: u64,
    arrived: u64,
    lost: u64,
}

/// The object for one message size.
pub(super) fn line(
    bytes: u32,
    workload: &Workload,
    transport: Transport,
    figures: &Figures,
) -> String {
    let line = match figures {
        Figures::Bandwidth(bw) => {
            let keys = BandwidthKeys {
                bw_peak_gbps: bw.peak_gbps,
                bw_avg_gbps: bw.avg_gbps,
                msg_rate_mpps: bw.msg_rate_mpps,
            };
            let line = Line::new(bytes, bw.iterations, workload, transport, figures, keys);
            serde_json::to_string(&line)
        }
        Figures::Latency(lat, loss) => {
            let keys = LatencyKeys {
                t_min_us: lat.min,
                t_max_us: lat.max,
                t_typical_us: lat.typical,
                t_avg_us: lat.avg,
                t_stdev_us: lat.stdev,
                p99_us: lat.p99,
                p999_us: lat.p999,
            };
            let iterations = loss.map_or(lat.count, |loss| loss.sent);
            let line = Line::new(bytes, iterations, workload, transport, figures, keys);
            serde_json::to_string(&line)
        }
    };
    line.expect("numbers and names are always JSON")
}

impl<F> Line<F> {
    fn new(
        bytes: u32,
        iterations: u64,
        workload: &Workload,
        transport: Transport,
        all: &Figures,
        figures: F,
    ) -> Self {
        let atomic = (workload.verb == Verb::Atomic).then(|| workload.atomic.to_string());
        Self {
            metric: match all {
                Figures::Bandwidth(_) => "bw",
                Figures::Latency(..) => "lat",
            },
            verb: workload.verb.to_string(),
            atomic,
            transport: transport.name(),
            connection: workload.connection.to_string(),
            path_mtu: workload.mtu,
            imm: workload.carries_imm(),
            bytes,
            iterations,
            figures,
            loss: all.loss().map(|loss| LossKeys {
                sent: loss.sent,
                arrived: loss.arrived,
                lost: loss.lost(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bandwidth, Loss};
    use super::*;
    use crate::plan::{AtomicOp, Connection, sample_workload};
    use crate::stats::LatencySummary;

    #[test]
    fn keys_and_values() {
        let figures = Figures::Bandwidth(Bandwidth {
            iterations: 10,
            peak_gbps: 2.5,
            avg_gbps: 2.0,
            msg_rate_mpps: 0.25,
            loss: None,
        });
        let line = |bytes, verb, figures: &_| {
            let workload = Workload {
                verb,
                ..sample_workload()
            };
            line(bytes, &workload, Transport::Iwarp, figures)
        };
        assert_eq!(
            line(64, Verb::Write, &figures),
            r#"{"metric":"bw","verb":"write","transport":"iwarp","connection":"RC","imm":false,"bytes":64,"iterations":10,"bw_peak_gbps":2.5,"bw_avg_gbps":2.0,"msg_rate_mpps":0.25}"#
        );
        let summary = LatencySummary {
            count: 10,
            min: 1.5,
            ..LatencySummary::default()
        };
        let figures = Figures::Latency(summary, None);
        let value: serde_json::Value =
            serde_json::from_str(&line(8, Verb::Read, &figures)).unwrap();
        assert_eq!(value["t_min_us"], 1.5);
        assert_eq!(value["iterations"], 10);
        for key in [
            "t_max_us",
            "t_typical_us",
            "t_avg_us",
            "t_stdev_us",
            "p99_us",
            "p999_us",
        ] {
            assert_eq!(value[key], 0.0, "{key}");
        }
    }

    #[test]
    fn what_may_be_lost_and_what_is_operated_on() {
        let workload = Workload {
            verb: Verb::Send,
            connection: Connection::Ud,
            mtu: Some(1024),
            ..sample_workload()
        };
        let loss = Loss {
            sent: 10,
            arrived: 8,
        };
        let figures = Figures::Latency(LatencySummary::default(), Some(loss));
        let text = line(8, &workload, Transport::Roce, &figures);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (
                &value["transport"],
                &value["connection"],
                &value["path_mtu"]
            ),
            (&"roce".into(), &"UD".into(), &1024.into())
        );
        assert_eq!(
            (&value["sent"], &value["arrived"], &value["lost"]),
            (&10.into(), &8.into(), &2.into())
        );
        assert_eq!(
            (&value["iterations"], &value["imm"]),
            (&10.into(), &true.into())
        );
        let workload = Workload {
            verb: Verb::Atomic,
            atomic: AtomicOp::CompareSwap,
            ..sample_workload()
        };
        let text = line(8, &workload, Transport::Roce, &figures);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["verb"], &value["atomic"]),
            (&"atomic".into(), &"cmp-swap".into())
        );
    }
}
