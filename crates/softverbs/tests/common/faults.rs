//! Faults in this process: one plan at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use softverbs::fault::{self, Direction, Kind, Plan, Report};

static ONE: Mutex<()> = Mutex::new(());

/// A plan at work; the other tests of this process wait for its end.
#[derive(Debug)]
pub struct Faults(MutexGuard<'static, ()>);

impl Faults {
    pub fn install(spec: &str) -> Self {
        let faults = Self::none();
        faults.now(spec);
        faults
    }

    /// No faults so far, and none of other tests.
    pub fn none() -> Self {
        Self(ONE.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// These from now on.
    pub fn now(&self, spec: &str) {
        // For a test that fails: each fault on stderr.
        let log = std::env::var_os("SOFTVERBS_TEST_LOG").map_or("", |_| ",log=stderr");
        let spec = &format!("{spec}{log}");
        fault::install(&Plan::parse(spec).unwrap_or_else(|error| panic!("{error}"))).unwrap();
    }

    pub fn report(&self) -> Report {
        fault::report().unwrap()
    }

    /// Frames of a kind that went out.
    pub fn sent(&self, kind: Kind) -> u64 {
        self.report().seen(Direction::Out, kind)
    }

    /// Frames of a kind that came to the edge from outside.
    pub fn received(&self, kind: Kind) -> u64 {
        self.report().seen(Direction::In, kind)
    }

    /// Faults of a rule.
    pub fn done(&self, rule: usize) -> u64 {
        self.report().rules[rule].done
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        fault::clear();
    }
}
