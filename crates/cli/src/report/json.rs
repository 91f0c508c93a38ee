//! One object a line, for programs.

use serde::Serialize;

use super::Figures;
use crate::plan::Verb;

#[derive(Serialize)]
struct BandwidthLine {
    metric: &'static str,
    verb: String,
    bytes: u32,
    iterations: u64,
    bw_peak_gbps: f64,
    bw_avg_gbps: f64,
    msg_rate_mpps: f64,
}

#[derive(Serialize)]
struct LatencyLine {
    metric: &'static str,
    verb: String,
    bytes: u32,
    iterations: u64,
    t_min_us: f64,
    t_max_us: f64,
    t_typical_us: f64,
    t_avg_us: f64,
    t_stdev_us: f64,
    p99_us: f64,
    p999_us: f64,
}

/// The object for one message size.
pub(super) fn line(bytes: u32, verb: Verb, figures: &Figures) -> String {
    let verb = verb.to_string();
    let line = match figures {
        Figures::Bandwidth(bw) => serde_json::to_string(&BandwidthLine {
            metric: "bw",
            verb,
            bytes,
            iterations: bw.iterations,
            bw_peak_gbps: bw.peak_gbps,
            bw_avg_gbps: bw.avg_gbps,
            msg_rate_mpps: bw.msg_rate_mpps,
        }),
        Figures::Latency(lat) => serde_json::to_string(&LatencyLine {
            metric: "lat",
            verb,
            bytes,
            iterations: lat.count,
            t_min_us: lat.min,
            t_max_us: lat.max,
            t_typical_us: lat.typical,
            t_avg_us: lat.avg,
            t_stdev_us: lat.stdev,
            p99_us: lat.p99,
            p999_us: lat.p999,
        }),
    };
    line.expect("numbers and names are always JSON")
}

#[cfg(test)]
mod tests {
    use super::super::Bandwidth;
    use super::*;
    use crate::stats::LatencySummary;

    #[test]
    fn keys_and_values() {
        let figures = Figures::Bandwidth(Bandwidth {
            iterations: 10,
            peak_gbps: 2.5,
            avg_gbps: 2.0,
            msg_rate_mpps: 0.25,
        });
        assert_eq!(
            line(64, Verb::Write, &figures),
            r#"{"metric":"bw","verb":"write","bytes":64,"iterations":10,"bw_peak_gbps":2.5,"bw_avg_gbps":2.0,"msg_rate_mpps":0.25}"#
        );
        let figures = Figures::Latency(LatencySummary {
            count: 10,
            min: 1.5,
            ..LatencySummary::default()
        });
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
}
