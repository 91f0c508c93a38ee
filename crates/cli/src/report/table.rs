//! The columns that every RDMA engineer knows from perftest.

use super::Figures;
use crate::plan::Metric;

/// The columns of `bw`; a figure starts where its title does.
const BANDWIDTH: [&str; 5] = [
    "#bytes",
    "#iterations",
    "BW peak[Gb/sec]",
    "BW average[Gb/sec]",
    "MsgRate[Mpps]",
];

/// The columns of `lat`.
const LATENCY: [&str; 9] = [
    "#bytes",
    "#iterations",
    "t_min[usec]",
    "t_max[usec]",
    "t_typical[usec]",
    "t_avg[usec]",
    "t_stdev[usec]",
    "99% percentile[usec]",
    "99.9% percentile[usec]",
];

/// The line above the figures.
pub(super) fn header(metric: Metric) -> String {
    match metric {
        Metric::Bandwidth => columns(&BANDWIDTH, BANDWIDTH.map(String::from)),
        Metric::Latency => columns(&LATENCY, LATENCY.map(String::from)),
    }
}

/// The figures for one message size.
pub(super) fn line(bytes: u32, figures: &Figures) -> String {
    match figures {
        Figures::Bandwidth(bw) => columns(
            &BANDWIDTH,
            [
                bytes.to_string(),
                bw.iterations.to_string(),
                format!("{:.2}", bw.peak_gbps),
                format!("{:.2}", bw.avg_gbps),
                format!("{:.6}", bw.msg_rate_mpps),
            ],
        ),
        Figures::Latency(lat) => columns(
            &LATENCY,
            [
                bytes.to_string(),
                lat.count.to_string(),
                format!("{:.2}", lat.min),
                format!("{:.2}", lat.max),
                format!("{:.2}", lat.typical),
                format!("{:.2}", lat.avg),
                format!("{:.2}", lat.stdev),
                format!("{:.2}", lat.p99),
                format!("{:.2}", lat.p999),
            ],
        ),
    }
}

/// Sets each cell as wide as its title, with two blanks between and none at the end.
fn columns<const N: usize>(titles: &[&str; N], cells: [String; N]) -> String {
    let mut line = String::new();
    for (title, cell) in titles.iter().zip(cells) {
        let width = title.len();
        line.push_str(&format!(" {cell:<width$} "));
    }
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::super::Bandwidth;
    use super::*;
    use crate::stats::LatencySummary;

    #[test]
    fn bandwidth() {
        let figures = Figures::Bandwidth(Bandwidth {
            iterations: 5000,
            peak_gbps: 40.256,
            avg_gbps: 39.9,
            msg_rate_mpps: 0.076_123_4,
        });
        assert_eq!(
            format!("{}\n{}", header(Metric::Bandwidth), line(65_536, &figures)),
            " #bytes  #iterations  BW peak[Gb/sec]  BW average[Gb/sec]  MsgRate[Mpps]\n \
             65536   5000         40.26            39.90               0.076123"
        );
    }

    #[test]
    fn latency() {
        let figures = Figures::Latency(LatencySummary {
            count: 1000,
            min: 4.5,
            max: 99.125,
            typical: 5.0,
            avg: 5.25,
            stdev: 1.0,
            p99: 9.0,
            p999: 50.0,
        });
        let text = format!("{}\n{}", header(Metric::Latency), line(8, &figures));
        assert_eq!(
            text,
            " #bytes  #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec]  \
             t_stdev[usec]  99% percentile[usec]  99.9% percentile[usec]\n \
             8       1000         4.50         99.12        5.00             5.25         \
             1.00           9.00                  50.00"
        );
    }
}
