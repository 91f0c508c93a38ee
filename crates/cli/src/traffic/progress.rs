//! The progress bar of long runs, on a terminal only.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::plan::{Amount, Workload};

/// Shows how far a round is, once it has lasted long enough for anyone to wonder.
#[derive(Debug)]
pub(crate) struct Progress {
    on: bool,
    label: String,
    /// Messages or milliseconds.
    total: u64,
    timed: bool,
    next: Duration,
    bar: Option<ProgressBar>,
}

/// Runs that are shorter have no bar.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks at the bar.
const REFRESH: Duration = Duration::from_millis(100);

impl Progress {
    /// For one round of messages of `size` octets.
    pub(crate) fn new(workload: &Workload, size: u32) -> Self {
        let (total, timed) = match workload.amount {
            Amount::Iterations(count) => (count.saturating_mul(workload.qps.into()), false),
            Amount::Duration(time) => (millis(time), true),
        };
        Self {
            on: stderr().is_terminal(),
            label: format!("{} {} {size}", workload.metric, workload.verb),
            total,
            timed,
            next: PATIENCE,
            bar: None,
        }
    }

    /// Shows nothing, for an end that nobody watches.
    pub(crate) fn hidden() -> Self {
        Self {
            on: false,
            label: String::new(),
            total: 0,
            timed: false,
            next: PATIENCE,
            bar: None,
        }
    }

    /// `done` messages are complete after `elapsed`.
    pub(crate) fn update(&mut self, done: u64, elapsed: Duration) {
        if !self.on || elapsed < self.next {
            return;
        }
        self.next = elapsed + REFRESH;
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}% {eta}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::with_draw_target(Some(self.total), ProgressDrawTarget::stderr())
                .with_style(style)
                .with_message(self.label.clone())
        });
        bar.set_position(if self.timed { millis(elapsed) } else { done });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
