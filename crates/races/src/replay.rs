//! A way through the states, step by step: from the explorer, or from a list of words.

use std::fmt;

use crate::world::{Log, Sight, Violation, World};

/// What is seen on a way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Each step in words, and what is seen in it.
    pub steps: Vec<(String, Vec<Sight>)>,
    /// What is wrong at the end, if anything.
    pub violation: Option<Violation>,
    /// What the two ends have come to.
    pub summary: String,
}

/// A step that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchStep {
    /// Which of the list, from 1.
    pub number: usize,
    /// What it says.
    pub step: String,
    /// What could be taken.
    pub possible: Vec<String>,
}

impl fmt::Display for NoSuchStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "step {}, {:?}, is not possible; ",
            self.number, self.step
        )?;
        match &*self.possible {
            [] => f.write_str("nothing is"),
            possible => write!(f, "possible are: {}", possible.join(", ")),
        }
    }
}

impl std::error::Error for NoSuchStep {}

/// A way that is being taken.
struct Way<W> {
    world: W,
    log: Log,
    steps: Vec<(String, Vec<Sight>)>,
}

impl<W: World> Way<W> {
    const fn new(world: W) -> Self {
        Self {
            world,
            log: Log::on(),
            steps: Vec::new(),
        }
    }

    fn take(&mut self, step: &W::Step) {
        let words = self.world.describe(step);
        self.world.take(step, &mut self.log);
        self.steps.push((words, self.log.take()));
    }

    fn end(self) -> Replay {
        Replay {
            violation: self.world.violation().cloned(),
            summary: self.world.summary(),
            steps: self.steps,
        }
    }
}

pub(crate) fn replay_steps<W: World>(world: W, steps: &[W::Step]) -> Replay {
    let mut way = Way::new(world);
    for step in steps {
        way.take(step);
    }
    way.end()
}

/// What follows the steps of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    Stop,
    /// What happens if nothing goes wrong any more, until nothing is left.
    RunOut,
}

/// More steps than any run has that comes to an end.
const ENDLESS: usize = 10_000;

/// Takes the steps that `list` names, one a line, as the explorer prints them. Empty lines and what
/// follows a `#` mean nothing.
///
/// For tests: a list that an exploration printed, and [`Then::RunOut`], make a case of it that stays.
pub fn replay<W: World>(world: W, list: &str, then: Then) -> Result<Replay, NoSuchStep> {
    let mut way = Way::new(world);
    let lines = list
        .lines()
        .map(|line| line.split('#').next().unwrap_or(line).trim())
        .filter(|line| !line.is_empty());
    for (number, line) in lines.enumerate() {
        let mut steps = Vec::new();
        way.world.steps(&mut steps);
        let Some(step) = steps.iter().find(|step| way.world.describe(step) == line) else {
            return Err(NoSuchStep {
                number: number + 1,
                step: line.to_owned(),
                possible: steps.iter().map(|step| way.world.describe(step)).collect(),
            });
        };
        way.take(step);
    }
    if then == Then::RunOut {
        for _ in 0..ENDLESS {
            let Some(step) = way.world.next_step() else {
                break;
            };
            way.take(&step);
        }
    }
    Ok(way.end())
}
