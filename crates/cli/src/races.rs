//! `softverbs races`: explores interleavings of the protocol state machines.

use std::fs;
use std::io::{Read, Write, stdin, stdout};
use std::path::Path;
use std::thread::available_parallelism;

use serde::Serialize;
use softverbs_races::bounds::Bounds;
use softverbs_races::explore::{Limits, Report};
use softverbs_races::ladder::Ladder;
use softverbs_races::replay::{Replay, Then};
use softverbs_races::scenario::{ALL, Scenario};
use softverbs_races::world::Violation;

use crate::args::RacesArgs;
use crate::failure::{Failure, Outcome};

/// One line of JSON.
#[derive(Serialize)]
struct Line {
    scenario: &'static str,
    #[serde(flatten)]
    network: NetworkLine,
    timers: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    explored: Option<Explored>,
    violation: Option<ViolationLine>,
}

/// Bounds of the network; any number of what is null.
#[derive(Serialize)]
#[serde(untagged)]
enum NetworkLine {
    Datagrams {
        drops: u8,
        duplicates: u8,
        reorders: Option<u8>,
    },
    Streams {
        resets: u8,
        splits: Option<u8>,
    },
}

#[derive(Serialize)]
struct Explored {
    states: usize,
    unique_states: usize,
    depth: usize,
    seconds: f64,
    complete: bool,
}

#[derive(Serialize)]
struct ViolationLine {
    property: String,
    side: Option<String>,
    what: String,
    steps: Vec<String>,
}

impl ViolationLine {
    fn new(violation: &Violation, replay: &Replay) -> Self {
        Self {
            property: violation.property.to_string(),
            side: violation.side.map(|side| side.to_string()),
            what: violation.what.clone(),
            steps: replay.steps.iter().map(|(step, _)| step.clone()).collect(),
        }
    }
}

/// Explores, replays or lists.
pub(crate) fn run(args: &RacesArgs) -> Outcome<()> {
    let scenarios = scenarios(args)?;
    if args.list {
        return list(&scenarios, args);
    }
    if let Some(file) = &args.replay {
        let [scenario] = *scenarios else {
            return Err(Failure::usage("--replay needs one scenario"));
        };
        return replay(scenario, file, args);
    }
    let limits = Limits {
        threads: args
            .threads
            .or_else(|| available_parallelism().ok().map(Into::into))
            .unwrap_or(1),
        depth: args.depth,
        states: args.states,
        time: args.timeout,
    };
    let mut violated = Vec::new();
    for scenario in scenarios {
        let bounds = bounds(scenario, args);
        let report = scenario.explore(bounds, &limits);
        if report.counterexample.is_some() {
            violated.push(scenario.name);
        }
        show(scenario, bounds, &report, args.json)?;
    }
    match &*violated {
        [] => Ok(()),
        names => Err(Failure::run(format!("violated: {}", names.join(", ")))),
    }
}

fn scenarios(args: &RacesArgs) -> Outcome<Vec<&'static Scenario>> {
    let names = args.scenarios.iter().chain(&args.more);
    let found: Vec<_> = names
        .map(|name| {
            Scenario::find(name).ok_or_else(|| {
                let all: Vec<_> = ALL.iter().map(|scenario| scenario.name).collect();
                Failure::usage(format!(
                    "no scenario `{name}`; there are {}",
                    all.join(", ")
                ))
            })
        })
        .collect::<Outcome<_>>()?;
    Ok(if found.is_empty() {
        ALL.iter().collect()
    } else {
        found
    })
}

fn bounds(scenario: &Scenario, args: &RacesArgs) -> Bounds {
    let usual = scenario.bounds;
    Bounds {
        drops: args.drops.unwrap_or(usual.drops),
        duplicates: args.duplicates.unwrap_or(usual.duplicates),
        reorders: args.reorders.map_or(usual.reorders, |reorders| reorders.0),
        resets: args.resets.unwrap_or(usual.resets),
        splits: args.splits.map_or(usual.splits, |splits| splits.0),
        timers: args.timers.unwrap_or(usual.timers),
    }
}

fn line(scenario: &Scenario, bounds: Bounds) -> Line {
    let network = if scenario.is_of_streams() {
        NetworkLine::Streams {
            resets: bounds.resets,
            splits: bounds.splits,
        }
    } else {
        NetworkLine::Datagrams {
            drops: bounds.drops,
            duplicates: bounds.duplicates,
            reorders: bounds.reorders,
        }
    };
    Line {
        scenario: scenario.name,
        network,
        timers: bounds.timers,
        explored: None,
        violation: None,
    }
}

fn print(line: &Line) -> Outcome<()> {
    let text =
        serde_json::to_string(line).map_err(|error| Failure::run(format!("JSON: {error}")))?;
    writeln!(stdout().lock(), "{text}")?;
    Ok(())
}

fn list(scenarios: &[&Scenario], args: &RacesArgs) -> Outcome<()> {
    for scenario in scenarios {
        let bounds = bounds(scenario, args);
        if args.json {
            print(&line(scenario, bounds))?;
        } else {
            let mut out = stdout().lock();
            writeln!(out, "{:16} {}", scenario.name, scenario.about)?;
            writeln!(out, "{:16} {}", "", scenario.words(&bounds))?;
        }
    }
    Ok(())
}

fn show(scenario: &Scenario, bounds: Bounds, report: &Report, json: bool) -> Outcome<()> {
    let found = report.counterexample.as_ref();
    if json {
        let explored = Explored {
            states: report.states,
            unique_states: report.unique,
            depth: report.depth,
            seconds: report.elapsed.as_secs_f64(),
            complete: report.complete,
        };
        return print(&Line {
            explored: Some(explored),
            violation: found.map(|found| ViolationLine::new(&found.violation, &found.replay)),
            ..line(scenario, bounds)
        });
    }
    let mut out = stdout().lock();
    let verdict = match (found, report.complete) {
        (Some(_), _) => "violated",
        (None, true) => "complete",
        (None, false) => "stopped at a limit",
    };
    let words = scenario.words(&bounds);
    writeln!(out, "{} ({words}): {verdict}", scenario.name)?;
    writeln!(
        out,
        "    {} states, {} unique, depth {}, {:.1} s",
        report.states,
        report.unique,
        report.depth,
        report.elapsed.as_secs_f64()
    )?;
    if let Some(found) = found {
        writeln!(out, "\n{}", Ladder(&found.replay))?;
        writeln!(out, "{}\n\nsteps:", found.replay.summary)?;
        for (step, _) in &found.replay.steps {
            writeln!(out, "{step}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn replay(scenario: &Scenario, file: &Path, args: &RacesArgs) -> Outcome<()> {
    let read = if file == Path::new("-") {
        let mut text = String::new();
        stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(file)
    };
    let text = read.map_err(|error| Failure::run(format!("{}: {error}", file.display())))?;
    let bounds = bounds(scenario, args);
    let replay = scenario
        .replay(bounds, &text, Then::RunOut)
        .map_err(|error| Failure::run(format!("{}: {error}", file.display())))?;
    let violation = replay.violation.as_ref();
    if args.json {
        print(&Line {
            violation: violation.map(|violation| ViolationLine::new(violation, &replay)),
            ..line(scenario, bounds)
        })?;
    } else {
        writeln!(stdout().lock(), "{}{}", Ladder(&replay), replay.summary)?;
    }
    match violation {
        None => Ok(()),
        Some(violation) => Err(Failure::run(violation.to_string())),
    }
}
