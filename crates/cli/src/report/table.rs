//! The columns that every RDMA engineer knows from perftest.

use super::Figures;
use crate::plan::{Metric, Workload};

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

/// Further columns where messages may be lost.
const LOSS: [&str; 3] = ["#sent", "#arrived", "#lost"];

/// Least width of a column whose title is short.
const NUMBER: usize = 10;

/// The line above the figures.
pub(super) fn header(workload: &Workload) -> String {
    let mut titles = match workload.metric {
        Metric::Bandwidth => BANDWIDTH.to_vec(),
        Metric::Latency => LATENCY.to_vec(),
    };
    if !workload.is_reliable() {
        titles.extend(LOSS);
    }
    columns(&titles, titles.iter().copied().map(String::from))
}

/// The figures for one message size.
pub(super) fn line(bytes: u32, figures: &Figures) -> String {
    let (mut titles, mut cells) = match figures {
        Figures::Bandwidth(bw) => (
            BANDWIDTH.to_vec(),
            vec![
                bytes.to_string(),
                bw.iterations.to_string(),
                format!("{:.2}", bw.peak_gbps),
                format!("{:.2}", bw.avg_gbps),
                format!("{:.6}", bw.msg_rate_mpps),
            ],
        ),
        Figures::Latency(lat, loss) => (
            LATENCY.to_vec(),
            vec![
                bytes.to_string(),
                loss.map_or(lat.count, |loss| loss.sent).to_string(),
                format!("{:.2}", lat.min),
                format!("{:.2}", lat.max),
                format!("{:.2}", lat.typical),
                format!("{:.2}", lat.avg),
                format!("{:.2}", lat.stdev),
                format!("{:.2}", lat.p99),
                format!("{:.2}", lat.p999),
            ],
        ),
    };
    if let Some(loss) = figures.loss() {
        titles.extend(LOSS);
        cells.extend([loss.sent, loss.arrived, loss.lost()].map(|count| count.to_string()));
    }
    columns(&titles, cells)
}

/// Sets each cell as wide as its title, with two blanks between and none at the end.
fn columns(titles: &[&str], cells: impl IntoIterator<Item = String>) -> String {
    let mut line = String::new();
    for (title, cell) in titles.iter().zip(cells) {
        let width = if LOSS.contains(title) {
            NUMBER
        } else {
            title.len()
        };
        line.push_str(&format!(" {cell:<width$} "));
    }
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::super::{Bandwidth, Loss};
    use super::*;
    use crate::plan::{Connection, sample_workload};
    use crate::stats::LatencySummary;

    #[test]
    fn bandwidth() {
        let figures = Figures::Bandwidth(Bandwidth {
            iterations: 5000,
            peak_gbps: 40.256,
            avg_gbps: 39.9,
            msg_rate_mpps: 0.076_123_4,
            loss: None,
        });
        assert_eq!(
            format!("{}\n{}", header(&sample_workload()), line(65_536, &figures)),
            " #bytes  #iterations  BW peak[Gb/sec]  BW average[Gb/sec]  MsgRate[Mpps]\n \
             65536   5000         40.26            39.90               0.076123"
        );
    }

    #[test]
    fn latency() {
        let summary = LatencySummary {
            count: 1000,
            min: 4.5,
            max: 99.125,
            typical: 5.0,
            avg: 5.25,
            stdev: 1.0,
            p99: 9.0,
            p999: 50.0,
        };
        let workload = Workload {
            metric: Metric::Latency,
            ..sample_workload()
        };
        let figures = Figures::Latency(summary, None);
        let text = format!("{}\n{}", header(&workload), line(8, &figures));
        assert_eq!(
            text,
            " #bytes  #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec]  \
             t_stdev[usec]  99% percentile[usec]  99.9% percentile[usec]\n \
             8       1000         4.50         99.12        5.00             5.25         \
             1.00           9.00                  50.00"
        );
    }

    #[test]
    fn losses() {
        let figures = Figures::Bandwidth(Bandwidth {
            iterations: 5000,
            peak_gbps: 1.0,
            avg_gbps: 1.0,
            msg_rate_mpps: 0.5,
            loss: Some(Loss {
                sent: 5000,
                arrived: 4990,
            }),
        });
        let workload = Workload {
            connection: Connection::Uc,
            ..sample_workload()
        };
        assert_eq!(
            format!("{}\n{}", header(&workload), line(64, &figures)),
            " #bytes  #iterations  BW peak[Gb/sec]  BW average[Gb/sec]  MsgRate[Mpps]  \
             #sent       #arrived    #lost\n \
             64      5000         1.00             1.00                0.500000       \
             5000        4990        10"
        );
    }
}
