//! Options of `softverbs races`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::parse_seconds;

/// Explore every order in which messages, timers and applications can meet
///
/// Drives the protocol state machines of both ends, and a network between them that loses, doubles
/// and reorders (RoCE) or cuts, joins and resets streams (iWARP), through all interleavings up to a
/// bound. Opens no socket. What is wrong is printed
/// as a ladder diagram and as a list of steps.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RacesArgs {
    /// Scenarios to explore; all of them if none is named
    #[arg(value_name = "SCENARIO")]
    pub(crate) scenarios: Vec<String>,

    /// One more scenario
    #[arg(short, long = "scenario", value_name = "SCENARIO")]
    pub(crate) more: Vec<String>,

    /// List the scenarios and their bounds
    #[arg(short, long)]
    pub(crate) list: bool,

    /// RoCE: packets that are lost in one run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=16))]
    pub(crate) drops: Option<u8>,

    /// RoCE: packets that arrive twice in one run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=16))]
    pub(crate) duplicates: Option<u8>,

    /// RoCE: packets that overtake another in one run: a number, or `any`
    #[arg(long, value_name = "N", value_parser = parse_count_or_any)]
    pub(crate) reorders: Option<CountOrAny>,

    /// iWARP: connections that the network resets in one run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=16))]
    pub(crate) resets: Option<u8>,

    /// iWARP: reads in one run that get less than all that is on its way: a number, or `any`
    #[arg(long, value_name = "N", value_parser = parse_count_or_any)]
    pub(crate) splits: Option<CountOrAny>,

    /// Timers that fire in one run although something else could happen
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=16))]
    pub(crate) timers: Option<u8>,

    /// Stop at this many steps from the start
    #[arg(long, value_name = "STEPS", value_parser = parse_count)]
    pub(crate) depth: Option<usize>,

    /// Stop after about so many states: each thread looks at the limit only once it has gone on from
    /// another 1500, so that small numbers are exceeded
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) states: Option<usize>,

    /// Stop each scenario after about so long
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) timeout: Option<Duration>,

    /// Threads that explore; as many as there are processors if not given
    #[arg(short, long, value_name = "N", value_parser = parse_count)]
    pub(crate) threads: Option<usize>,

    /// Take the steps of a file (`-`: standard input) instead, one a line, as a violation prints
    /// them; then what happens if nothing goes wrong any more
    #[arg(long, value_name = "FILE", conflicts_with_all = ["depth", "states", "timeout", "threads", "list"])]
    pub(crate) replay: Option<PathBuf>,

    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  softverbs races                              all scenarios, each within its bounds
  softverbs races ib-data --drops 2            one of them, with more losses
  softverbs races iwarp-rtr --splits any       one whose reads end at any octet
  softverbs races ib-data --replay steps.txt   one way through it, as a ladder

Exit status: 0 no violation, 1 a violation, 2 wrong usage.";

/// A bound, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountOrAny(pub(crate) Option<u8>);

fn parse_count_or_any(text: &str) -> Result<CountOrAny, String> {
    if text == "any" {
        return Ok(CountOrAny(None));
    }
    match text.parse() {
        Ok(count @ 0..=16) => Ok(CountOrAny(Some(count))),
        _ => Err(format!("`{text}` is neither 0 to 16 nor `any`")),
    }
}

fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..) => Ok(count),
        _ => Err(format!("`{text}` is not a number from 1 on")),
    }
}
