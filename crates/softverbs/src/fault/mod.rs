//! Faults on demand, at the edge of this process: what it sends and receives can be lost, doubled,
//! delayed, overtaken, corrupted, slowed down or cut off.
//!
//! A [`Plan`] says what happens to which frames. It is [installed](install) for the whole process,
//! or read from the environment variable `SOFTVERBS_FAULT` when the first object is made. While
//! none is installed, all of this costs one branch for each packet.
//!
//! ```
//! use softverbs::fault::{self, Direction, Kind, Plan};
//! // Every RTU is lost on its way out, one acknowledge in a hundred on its way in.
//! fault::install(&Plan::parse("out:rtu=drop,in:ack:1%=drop,seed=1").unwrap())?;
//! // ... traffic ...
//! let report = fault::report().expect("installed");
//! assert_eq!(report.rules[0].done, report.seen(Direction::Out, Kind::Rtu));
//! fault::clear();
//! # Ok::<(), softverbs::Error>(())
//! ```
//!
//! | file | role |
//! |---|---|
//! | `kind` | what a frame is |
//! | `plan`, `parse` | rules, written and read |
//! | `judge` | what happens to a frame |
//! | `held` | frames that are held back |
//! | `packet` | kinds of RoCE packets |
//! | `stream` | frames of iWARP in a stream |
//!
//! The edge itself is where the sockets are: `roce/port/edge.rs` for packets,
//! `engine/edge.rs` for streams.

mod held;
mod judge;
mod kind;
mod packet;
mod parse;
mod plan;
mod stream;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Instant;

pub(crate) use self::held::Held;
use self::judge::Judge;
pub(crate) use self::judge::{Frame, Verdict};
pub use self::kind::{Carrier, Direction, Kind, Kinds};
pub(crate) use self::packet::Classified;
pub use self::parse::ParseError;
pub use self::plan::{Action, LogTo, Plan, Rule, Which};
pub(crate) use self::stream::{Found, Lane};
use crate::error::{Error, Result};

/// The environment variable with a plan.
pub const VARIABLE: &str = "SOFTVERBS_FAULT";

/// A plan is installed: all that the path of a packet looks at.
static ARMED: AtomicBool = AtomicBool::new(false);
static INSTALLED: Mutex<Option<Installed>> = Mutex::new(None);

struct Installed {
    judge: Judge,
    since: Instant,
    log: Option<Log>,
}

enum Log {
    Stderr,
    File(File),
}

impl Log {
    fn line(&mut self, line: &str) {
        // Nobody could be told.
        let _ = match self {
            Self::Stderr => std::io::stderr().lock().write_all(line.as_bytes()),
            Self::File(file) => file.write_all(line.as_bytes()),
        };
    }
}

fn installed() -> MutexGuard<'static, Option<Installed>> {
    INSTALLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a plan to work in this process, in place of an earlier one. It begins to count at 0.
///
/// Fails if its log cannot be opened.
pub fn install(plan: &Plan) -> Result<()> {
    let log = match &plan.log {
        None => None,
        Some(LogTo::Stderr) => Some(Log::Stderr),
        Some(LogTo::File(path)) => {
            let file = OpenOptions::new().append(true).create(true).open(path);
            Some(Log::File(file.map_err(|error| {
                Error::invalid("log", format!("{}: {error}", path.display()))
            })?))
        }
    };
    *installed() = Some(Installed {
        judge: Judge::new(plan),
        since: Instant::now(),
        log,
    });
    ARMED.store(true, Ordering::SeqCst);
    // What peers write to this process's memory themselves passes no edge.
    crate::same_host::grants::end_grants();
    Ok(())
}

/// Ends all faults. Frames that are held back still go when their time comes.
pub fn clear() {
    ARMED.store(false, Ordering::Release);
    *installed() = None;
}

/// What an installed plan has seen and done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The rules, in their order.
    pub rules: Vec<RuleReport>,
    seen: Vec<[u64; 2]>,
}

/// What a rule has done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleReport {
    /// The rule.
    pub rule: Rule,
    /// Frames that were of its kinds, direction and address.
    pub matched: u64,
    /// Faults: frames that it acted upon.
    pub done: u64,
}

impl Report {
    /// How many frames of a kind have come to the edge since the plan was installed, lost ones
    /// and those that are held back included.
    pub fn seen(&self, direction: Direction, kind: Kind) -> u64 {
        self.seen[kind as usize][direction as usize]
    }
}

/// What the installed plan has seen and done; nothing if there is none.
pub fn report() -> Option<Report> {
    let installed = installed();
    let judge = &installed.as_ref()?.judge;
    let rules = judge.rules.iter().map(|working| RuleReport {
        rule: working.rule.clone(),
        matched: working.matched,
        done: working.done,
    });
    let seen = Kind::ALL
        .iter()
        .map(|&kind| [Direction::In, Direction::Out].map(|direction| judge.seen(direction, kind)));
    Some(Report {
        rules: rules.collect(),
        seen: seen.collect(),
    })
}

/// Whether a plan is installed.
#[inline]
pub(crate) fn armed() -> bool {
    ARMED.load(Ordering::Relaxed)
}

/// What happens to a frame.
pub(crate) fn judge(frame: &Frame<'_>) -> Verdict {
    let mut guard = installed();
    let Some(Installed { judge, since, log }) = &mut *guard else {
        return Verdict::Pass;
    };
    let elapsed = since.elapsed();
    judge.judge(elapsed, frame, |working, verdict| {
        if let Some(log) = log {
            let mut line = String::with_capacity(160);
            let towards = match frame.direction {
                Direction::In => "from",
                Direction::Out => "to",
            };
            let _ = writeln!(
                line,
                "softverbs[{}]: fault: +{:.6} {} {} {towards} {}: {verdict} ({}, match {}): {}",
                std::process::id(),
                elapsed.as_secs_f64(),
                frame.direction,
                frame.kinds.most_particular(),
                frame.peer,
                working.rule,
                working.matched,
                frame.what,
            );
            log.line(&line);
        }
    })
}

/// A frame that was to be held back was lost, since too many are.
pub(crate) fn overflowed(frame: &Frame<'_>) {
    if let Some(Installed { log: Some(log), .. }) = &mut *installed() {
        let pid = std::process::id();
        let Frame {
            direction, what, ..
        } = frame;
        log.line(&format!(
            "softverbs[{pid}]: fault: {direction}: lost, too many are held back: {what}\n"
        ));
    }
}

/// Installs the plan of the environment, unless the application has installed one. A wrong one is
/// an error each time, and told on stderr once: it must not be overlooked.
pub(crate) fn from_environment() -> Result<()> {
    static TOLD: Once = Once::new();
    let Some(spec) = std::env::var_os(VARIABLE).filter(|spec| !spec.is_empty()) else {
        return Ok(());
    };
    if armed() {
        return Ok(());
    }
    let plan = spec
        .to_str()
        .ok_or_else(|| Error::invalid(VARIABLE, "is not text"))
        .and_then(|spec| {
            Plan::parse(spec).map_err(|error| Error::invalid(VARIABLE, error.to_string()))
        });
    plan.and_then(|plan| install(&plan)).inspect_err(|error| {
        TOLD.call_once(|| {
            let _ = writeln!(std::io::stderr().lock(), "softverbs: {error}");
        });
    })
}
