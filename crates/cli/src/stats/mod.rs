//! From samples to the figures of a report.

mod latency;
mod rate;

pub(crate) use latency::{Latencies, LatencySummary, to_f64, to_u64};
pub(crate) use rate::RateMeter;
