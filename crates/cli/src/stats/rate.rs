//! Progress of a transfer over time, and its highest rate.

use std::time::Duration;

use super::latency::to_f64;

/// Remembers how far a transfer was at up to [`Self::SAMPLES`] moments, however long it runs: when
/// they are full, every other one is dropped and the distance between them doubles.
#[derive(Debug)]
pub(crate) struct RateMeter {
    samples: Vec<(Duration, u64)>,
    apart: Duration,
}

impl RateMeter {
    const SAMPLES: usize = 1024;

    /// The peak is the highest rate over this part of the run. Shorter moments would show how fast
    /// completions are reported, in batches, not how fast messages get across.
    const PART: u32 = 10;

    /// At the start: nothing done.
    pub(crate) fn new() -> Self {
        Self {
            samples: vec![(Duration::ZERO, 0)],
            apart: Duration::from_micros(1),
        }
    }

    /// Notes that `done` messages were complete at `time` since the start.
    pub(crate) fn record(&mut self, time: Duration, done: u64) {
        let &(last, _) = self.samples.last().expect("the start is always there");
        if time < last + self.apart {
            return;
        }
        if self.samples.len() == Self::SAMPLES {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.apart *= 2;
        }
        self.samples.push((time, done));
    }

    /// Messages a second: the highest rate over a tenth of the run, or a little more.
    pub(crate) fn peak(&self) -> f64 {
        let &(total, _) = self.samples.last().expect("the start is always there");
        let part = total / Self::PART;
        let mut from = 0;
        let mut peak = 0.0_f64;
        for (index, &(end, done)) in self.samples.iter().enumerate() {
            // The latest sample that is at least `part` ago.
            while from < index && end - self.samples[from + 1].0 >= part {
                from += 1;
            }
            let (start, before) = self.samples[from];
            if end > start && end - start >= part {
                peak = peak.max(to_f64(done - before) / (end - start).as_secs_f64());
            }
        }
        peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(value: u64) -> Duration {
        Duration::from_micros(value)
    }

    #[test]
    fn nothing_has_no_rate() {
        assert_eq!(RateMeter::new().peak(), 0.0);
    }

    #[test]
    fn a_steady_rate_is_its_own_peak() {
        let mut meter = RateMeter::new();
        for i in 1..=500 {
            meter.record(micros(10 * i), i);
        }
        assert!((meter.peak() - 1e5).abs() < 1.0, "{}", meter.peak());
    }

    #[test]
    fn a_fast_stretch_counts_if_it_is_long_enough() {
        let mut meter = RateMeter::new();
        // 100 messages at 10 µs, 200 at 2 µs, 100 at 10 µs.
        let mut time = 0;
        for i in 1..=400 {
            time += if (101..=300).contains(&i) { 2 } else { 10 };
            meter.record(micros(time), i);
        }
        assert!((meter.peak() - 5e5).abs() < 1.0, "{}", meter.peak());
        // A batch of completions that are reported at once does not rule.
        let mut meter = RateMeter::new();
        for i in 1..=100 {
            meter.record(micros(10 * i), i + if i > 50 { 5 } else { 0 });
        }
        assert!(meter.peak() <= 1.51e5, "{}", meter.peak());
    }

    #[test]
    fn long_runs_are_thinned_out() {
        let mut meter = RateMeter::new();
        for i in 1..=1_000_000 {
            meter.record(micros(3 * i), i);
        }
        assert!(meter.samples.len() <= RateMeter::SAMPLES);
        assert!((meter.peak() - 1e6 / 3.0).abs() < 1e3, "{}", meter.peak());
    }
}
