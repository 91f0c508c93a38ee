//! What a measurement found, and the two ways to print it.

mod json;
mod table;

use std::io::{self, Write};

use softverbs::Transport;

use crate::failure::{Failure, Outcome};
use crate::plan::Workload;
use crate::stats::LatencySummary;

/// The figures for one message size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Figures {
    /// Of `bw`.
    Bandwidth(Bandwidth),
    /// Of `lat`, and what was lost where that may be.
    Latency(LatencySummary, Option<Loss>),
}

/// What became of messages that may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Messages that were sent, in all directions.
    pub(crate) sent: u64,
    /// Those that arrived; for latency, those that were answered.
    pub(crate) arrived: u64,
}

impl Loss {
    /// Messages that did not.
    pub(crate) fn lost(self) -> u64 {
        self.sent.saturating_sub(self.arrived)
    }
}

impl Figures {
    /// What was lost, where that may be.
    pub(crate) fn loss(&self) -> Option<Loss> {
        match self {
            Self::Bandwidth(bw) => bw.loss,
            Self::Latency(_, loss) => *loss,
        }
    }

    /// Losses are no failure, but if nothing got through, nothing was measured.
    pub(crate) fn judge(&self) -> Outcome<()> {
        match self.loss() {
            Some(Loss { sent, arrived: 0 }) if sent > 0 => {
                Err(Failure::run(format!("none of {sent} messages arrived")))
            }
            _ => Ok(()),
        }
    }
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
    /// What was lost, where that may be. The average rates are of what arrived.
    pub(crate) loss: Option<Loss>,
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
            loss: None,
        }
    }

    /// Of these messages, so many arrived.
    pub(crate) fn with_loss(mut self, sent: u64, arrived: u64) -> Self {
        use crate::stats::to_f64;
        let part = to_f64(arrived) / to_f64(sent.max(1));
        self.avg_gbps *= part;
        self.msg_rate_mpps *= part;
        self.loss = Some(Loss { sent, arrived });
        self
    }

    /// Both directions at once: the rates add up, the number of messages is that of one.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            iterations: self.iterations,
            peak_gbps: self.peak_gbps + other.peak_gbps,
            avg_gbps: self.avg_gbps + other.avg_gbps,
            msg_rate_mpps: self.msg_rate_mpps + other.msg_rate_mpps,
            loss: self.loss.zip(other.loss).map(|(one, other)| Loss {
                sent: one.sent + other.sent,
                arrived: one.arrived + other.arrived,
            }),
        }
    }
}

/// Prints figures as they become known, one line a message size.
pub(crate) struct Report<W> {
    out: W,
    workload: Workload,
    transport: Transport,
    json: bool,
    started: bool,
}

impl<W: Write> Report<W> {
    /// Prints to `out`, nothing yet.
    pub(crate) fn new(out: W, workload: &Workload, transport: Transport, json: bool) -> Self {
        Self {
            out,
            workload: *workload,
            transport,
            json,
            started: false,
        }
    }

    /// Prints the figures for messages of `bytes` octets.
    pub(crate) fn row(&mut self, bytes: u32, figures: &Figures) -> io::Result<()> {
        if self.json {
            let line = json::line(bytes, &self.workload, self.transport, figures);
            writeln!(self.out, "{line}")?;
        } else {
            if !self.started {
                writeln!(self.out, "{}", table::header(&self.workload))?;
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
    use crate::plan::sample_workload;

    #[test]
    fn what_is_lost_does_not_count() {
        let row = Bandwidth::new(1000, 1000, 1.0, 0.0).with_loss(1000, 250);
        assert!((row.avg_gbps - 0.002).abs() < 1e-9);
        assert_eq!(row.loss.map(Loss::lost), Some(750));
        let both = row.plus(row);
        assert_eq!(both.loss.map(Loss::lost), Some(1500));
        assert!(Figures::Bandwidth(both).judge().is_ok());
        let nothing = Bandwidth::new(7, 1000, 1.0, 0.0).with_loss(7, 0);
        let failure = Figures::Bandwidth(nothing).judge().unwrap_err();
        assert_eq!(failure.to_string(), "none of 7 messages arrived");
    }

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
            let mut report = Report::new(&mut out, &sample_workload(), Transport::Iwarp, json);
            report.row(64, &figures).unwrap();
            report.row(128, &figures).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(print(false).lines().count(), 3);
        assert_eq!(print(false).matches("#bytes").count(), 1);
        assert_eq!(print(true).lines().count(), 2);
    }
}
