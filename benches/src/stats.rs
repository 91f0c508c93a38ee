//! Medians.

use std::time::Duration;

/// The median of some figures.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Half round trips of several rounds.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    means: Vec<f64>,
    medians: Vec<f64>,
}

impl Latency {
    /// Adds a round: its round trips.
    pub(crate) fn add(&mut self, round_trips: Vec<Duration>) {
        let half: Vec<f64> = round_trips
            .iter()
            .map(|t| t.as_secs_f64() * 1e6 / 2.0)
            .collect();
        self.means
            .push(half.iter().sum::<f64>() / half.len() as f64);
        self.medians.push(median(half));
    }

    /// The median of the rounds' means, in microseconds.
    pub(crate) fn mean(&self) -> f64 {
        median(self.means.clone())
    }

    /// The median of the rounds' medians, in microseconds.
    pub(crate) fn typical(&self) -> f64 {
        median(self.medians.clone())
    }
}
