//! Latencies of single messages and their summary.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Collects latencies. Memory does not grow with their number: the histogram keeps three digits of
/// each, minimum, maximum, mean and deviation are exact.
#[derive(Debug)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
    min: u64,
    max: u64,
    mean: f64,
    /// Sum of the squared distances from the mean (Welford's method, which does not cancel).
    squares: f64,
}

/// The figures that are reported, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LatencySummary {
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// The median.
    pub(crate) typical: f64,
    pub(crate) avg: f64,
    pub(crate) stdev: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

impl Latencies {
    /// The histogram's upper end, in nanoseconds: an hour.
    const LONGEST: u64 = 3_600_000_000_000;

    /// Without samples.
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, Self::LONGEST, 3)
            .expect("the bounds are in order and three digits are allowed");
        Self {
            histogram,
            min: u64::MAX,
            max: 0,
            mean: 0.0,
            squares: 0.0,
        }
    }

    /// Adds one latency.
    pub(crate) fn record(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(nanos);
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
        let value = to_f64(nanos);
        let distance = value - self.mean;
        self.mean += distance / to_f64(self.histogram.len());
        self.squares += distance * (value - self.mean);
    }

    /// The figures so far; all zero without samples.
    pub(crate) fn summary(&self) -> LatencySummary {
        let count = self.histogram.len();
        if count == 0 {
            return LatencySummary::default();
        }
        let micros = |nanos: u64| to_f64(nanos) / 1e3;
        // A bucket's representative may lie beyond the true extremes.
        let quantile = |q: f64| {
            micros(
                self.histogram
                    .value_at_quantile(q)
                    .clamp(self.min, self.max),
            )
        };
        LatencySummary {
            count,
            min: micros(self.min),
            max: micros(self.max),
            typical: quantile(0.5),
            avg: self.mean / 1e3,
            stdev: (self.squares / to_f64(count)).sqrt() / 1e3,
            p99: quantile(0.99),
            p999: quantile(0.999),
        }
    }
}

/// Counts and times lose nothing that matters as floating-point numbers.
#[expect(
    clippy::cast_precision_loss,
    reason = "53 bits are enough for a report"
)]
pub(crate) fn to_f64(value: u64) -> f64 {
    value as f64
}

/// The nearest whole number; what is not a number or too large ends at the limits.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, which is what is wanted"
)]
pub(crate) fn to_u64(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nanos: impl IntoIterator<Item = u64>) -> LatencySummary {
        let mut latencies = Latencies::new();
        for value in nanos {
            latencies.record(Duration::from_nanos(value));
        }
        latencies.summary()
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= b.abs() * 2e-3
    }

    #[test]
    fn without_samples() {
        assert_eq!(of([]), LatencySummary::default());
    }

    #[test]
    fn one_sample_is_everything() {
        let summary = of([2500]);
        for figure in [
            summary.min,
            summary.max,
            summary.typical,
            summary.avg,
            summary.p99,
            summary.p999,
        ] {
            assert!(close(figure, 2.5), "{summary:?}");
        }
        assert_eq!(summary.stdev, 0.0);
    }

    #[test]
    fn percentiles_of_a_ramp() {
        let summary = of((1..=10_000).map(|i| i * 1000));
        assert_eq!(summary.count, 10_000);
        assert_eq!((summary.min, summary.max), (1.0, 10_000.0));
        assert!(close(summary.typical, 5000.0), "{summary:?}");
        assert!(close(summary.avg, 5000.5), "{summary:?}");
        assert!(close(summary.stdev, 2886.75), "{summary:?}");
        assert!(close(summary.p99, 9900.0), "{summary:?}");
        assert!(close(summary.p999, 9990.0), "{summary:?}");
    }

    #[test]
    fn outliers_show_in_the_tail_and_not_in_the_median() {
        let summary = of((0..1000).map(|i| if i == 0 { 1_000_000 } else { 3000 }));
        assert!(
            close(summary.typical, 3.0) && close(summary.p99, 3.0),
            "{summary:?}"
        );
        assert_eq!(summary.max, 1000.0);
    }

    #[test]
    fn beyond_the_histogram() {
        let summary = of([0, u64::MAX]);
        assert_eq!(summary.min, 0.0);
        assert!(summary.max > 3.6e9);
    }
}
