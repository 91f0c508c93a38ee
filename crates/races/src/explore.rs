//! Takes every step in every state, on several threads, and remembers which states it has seen.

use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use stateright::{Checker as _, HasDiscoveries, Model, Property};

use crate::replay::{Replay, replay_steps};
use crate::shared::hash_of;
use crate::world::{Log, Violation, World};

/// When to stop before everything was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Threads that work.
    pub threads: usize,
    /// Longest way from the start, in steps.
    pub depth: Option<usize>,
    /// About so many different states.
    pub states: Option<usize>,
    /// About so long.
    pub time: Option<Duration>,
}

/// What was explored, and what is wrong.
#[derive(Clone, Debug)]
pub struct Report {
    /// States that steps led to, those that were known already included.
    pub states: usize,
    /// Different states.
    pub unique: usize,
    /// Longest of the shortest ways to a state, in steps.
    pub depth: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// Everything within the bounds was seen, or a violation found.
    pub complete: bool,
    /// The shortest way to a state that violates a property.
    pub counterexample: Option<Counterexample>,
}

/// A way to a state that violates a property.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// What is wrong at its end.
    pub violation: Violation,
    /// The steps and what is seen in each.
    pub replay: Replay,
}

/// A state and its hash, by which the checker tells states apart.
#[derive(Clone, Debug)]
struct Seen<W> {
    world: W,
    hash: u64,
}

impl<W: World> Seen<W> {
    fn new(world: W) -> Self {
        let hash = hash_of(&world);
        Self { world, hash }
    }
}

impl<W> Hash for Seen<W> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl<W> PartialEq for Seen<W> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

/// The model that the checker sees.
struct Races<W>(W);

impl<W: World> Model for Races<W> {
    type State = Seen<W>;
    type Action = W::Step;

    fn init_states(&self) -> Vec<Seen<W>> {
        vec![Seen::new(self.0.clone())]
    }

    fn actions(&self, state: &Seen<W>, actions: &mut Vec<W::Step>) {
        state.world.steps(actions);
    }

    fn next_state(&self, state: &Seen<W>, step: W::Step) -> Option<Seen<W>> {
        let mut next = state.world.clone();
        next.take(&step, &mut Log::off());
        Some(Seen::new(next))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("no violation", |_, state: &Seen<W>| {
            state.world.violation().is_none()
        })]
    }
}

/// Explores everything that can become of `start`.
pub fn explore<W: World>(start: W, limits: &Limits) -> Report {
    let began = Instant::now();
    let mut builder = Races(start.clone())
        .checker()
        .threads(limits.threads.max(1))
        .finish_when(HasDiscoveries::Any);
    if let Some(depth) = limits.depth {
        builder = builder.target_max_depth(depth);
    }
    if let Some(states) = limits.states {
        builder = builder.target_state_count(states);
    }
    if let Some(time) = limits.time {
        builder = builder.timeout(time);
    }
    let checker = builder.spawn_bfs().join();
    let elapsed = began.elapsed();
    let found = checker.discovery("no violation");
    let counterexample = found.and_then(|path| {
        let steps = path.into_actions();
        let replay = replay_steps(start, &steps);
        let violation = replay.violation.clone()?;
        Some(Counterexample { violation, replay })
    });
    let (states, unique, depth) = (
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
    );
    let cut = limits.depth.is_some_and(|limit| depth >= limit)
        || limits.states.is_some_and(|limit| states >= limit)
        || limits.time.is_some_and(|limit| elapsed >= limit);
    Report {
        states,
        unique,
        depth,
        elapsed,
        complete: counterexample.is_some() || !cut,
        counterexample,
    }
}
