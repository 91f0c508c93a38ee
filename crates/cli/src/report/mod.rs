//! What a measurement found, and the two ways to print it.

mod json;
mod table;

use std::io::{self, Write};

use crate::plan::{Metric, Verb};
use crate::stats::LatencySummary;

/// The figures for one message size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Figures {
    /// Of `bw`.
    Bandwidth(Bandwidth),
    /// Of `lat`.
    Latency(LatencySummary),
}

/// Decimal gigabits of payload a second, and millions of messages a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bandwidth {
    /// Messages in one direction.
    pub(crate) iterations: u64,
    /// The highest rate over a tenth of the run.
    pub(crate) peak_gbps: f64,
    /// The rate over the whole run.
    pub(crate) avg_gbps: f64,
    /// Messages.
    pub(crate) msg_rate_mpps: f64,
}

impl Bandwidth {
    /// From `messages` of `size` octets in `seconds`, and the highest rate in octets a second.
    pub(crate) fn new(messages: u64, size: u32, seconds: f64, peak: f64) -> Self {
        use crate::stats::to_f64;
        // A clock that stood still must not print infinity.
        let seconds = seconds.max(1e-9);
        let avg_gbps = to_f64(messages) * f64::from(size) * 8e-9 / seconds;
        Self {
            iterations: messages,
            peak_gbps: (peak * 8e-9).max(avg_gbps),
            avg_gbps,
            msg_rate_mpps: to_f64(messages) * 1e-6 / seconds,
        }
    }

    /// Both directions at once: the rates add up, the number of messages is that of one.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            iterations: self.iterations,
            peak_gbps: self.peak_gbps + other.peak_gbps,
            avg_gbps: self.avg_gbps + other.avg_gbps,
            msg_rate_mpps: self.msg_rate_mpps + other.msg_rate_mpps,
        }
    }
}

/// Prints figures as they become known, one line a message size.
pub(crate) struct Report<W> {
    out: W,
    metric: Metric,
    verb: Verb,
    json: bool,
    started: bool,
}

impl<W: Write> Report<W> {
    /// Prints to `out`, nothing yet.
    pub(crate) fn new(out: W, metric: Metric, verb: Verb, json: bool) -> Self {
        Self {
            out,
            metric,
            verb,
            json,
            started: false,
        }
    }

    /// Prints the figures for messages of `bytes` octets.
    pub(crate) fn row(&mut self, bytes: u32, figures: &Figures) -> io::Result<()> {
        if self.json {
            writeln!(self.out, "{}", json::line(bytes, self.verb, figures))?;
        } else {
            if !self.started {
                writeln!(self.out, "{}", table::header(self.metric))?;
            }
            writeln!(self.out, "{}", table::line(bytes, figures))?;
        }
        self.started = true;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_in_decimal_gigabits_of_payload() {
        let row = Bandwidth::new(1_000_000, 1000, 2.0, 0.0);
        assert_eq!(
            (row.avg_gbps, row.peak_gbps, row.msg_rate_mpps),
            (4.0, 4.0, 0.5)
        );
        let both = row.plus(Bandwidth::new(500_000, 1000, 1.0, 1e9));
        assert_eq!(
            (both.iterations, both.avg_gbps, both.peak_gbps),
            (1_000_000, 8.0, 12.0)
        );
        assert!(Bandwidth::new(1, 1, 0.0, 0.0).avg_gbps.is_finite());
    }

    #[test]
    fn the_header_is_printed_once_and_not_in_json() {
        let figures = Figures::Bandwidth(Bandwidth::new(10, 64, 1.0, 0.0));
        let print = |json| {
            let mut out = Vec::new();
            let mut report = Report::new(&mut out, Metric::Bandwidth, Verb::Write, json);
            report.row(64, &figures).unwrap();
            report.row(128, &figures).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(print(false).lines().count(), 3);
        assert_eq!(print(false).matches("#bytes").count(), 1);
        assert_eq!(print(true).lines().count(), 2);
    }
}
