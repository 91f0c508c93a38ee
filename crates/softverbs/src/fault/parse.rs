//! Reads plans.

use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use super::kind::{Direction, Kind, Kinds};
use super::plan::{Action, LogTo, Plan, Rule, UNITS, Which};

/// Copies of one packet: more is a flood in which nothing else gets through, and what sends them
/// does nothing else meanwhile.
const MOST_COPIES: u32 = 100;

/// What is wrong with a plan, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    spec: String,
    at: Range<usize>,
    what: String,
}

impl ParseError {
    /// What is wrong, in words.
    pub fn message(&self) -> &str {
        &self.what
    }

    /// The octets of the text that are to blame.
    pub fn place(&self) -> Range<usize> {
        self.at.clone()
    }
}

impl fmt::Display for ParseError {
    /// The reason, the text, and a mark below the place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.spec[..self.at.start].chars().count();
        let marked = self.spec[self.at.clone()].chars().count().max(1);
        writeln!(f, "{}", self.what)?;
        writeln!(f, "    {}", self.spec)?;
        write!(f, "    {:before$}{:^<marked$}", "", "")
    }
}

impl std::error::Error for ParseError {}

/// A part of the text, and where it is.
#[derive(Clone, Copy)]
struct Part<'a> {
    text: &'a str,
    start: usize,
}

type Parsed<T> = Result<T, (Range<usize>, String)>;

impl<'a> Part<'a> {
    fn fail<T>(self, what: impl Into<String>) -> Parsed<T> {
        Err((self.start..self.start + self.text.len(), what.into()))
    }

    fn split_once(self, at: char) -> Option<(Self, Self)> {
        let (left, right) = self.text.split_once(at)?;
        Some(self.halves(left, right))
    }

    fn halves(self, left: &'a str, right: &'a str) -> (Self, Self) {
        let start = self.start + self.text.len() - right.len();
        let left = Self {
            text: left,
            start: self.start,
        };
        (left, Self { text: right, start })
    }

    fn split(self, at: char) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let whole = rest?;
            match whole.split_once(at) {
                Some((first, behind)) => {
                    rest = Some(behind);
                    Some(first)
                }
                None => rest.take(),
            }
        })
    }

    fn trim(self) -> Self {
        let start = self.start + self.text.len() - self.text.trim_start().len();
        Self {
            text: self.text.trim(),
            start,
        }
    }

    fn number<T: FromStr + PartialOrd + From<u8>>(self, what: &str) -> Parsed<T> {
        match self.text.parse() {
            Ok(number) if number >= T::from(1) => Ok(number),
            _ => self.fail(format!("`{}` is not {what}, from 1 on", self.text)),
        }
    }
}

impl Plan {
    /// Reads a plan: rules, separated by commas, and settings.
    ///
    /// ```text
    /// PLAN    = ITEM *( "," ITEM )
    /// ITEM    = RULE | "seed=" NUMBER | "log=stderr" | "log=" FILE
    /// RULE    = [ "in:" | "out:" ] KIND *( "+" KIND ) [ "@" ADDRESS ] [ ":" WHICH ] "=" ACTION
    /// WHICH   = "*" | "first" | N | N "-" [ N ] | "/" N | PERCENT "%" | TIME "-" [ TIME ]
    /// ACTION  = "drop" | "dup" [ ":" N ] | "delay:" TIME [ "-" TIME ] | "reorder" [ ":" N ]
    ///         | "corrupt" [ ":" OCTET ] | "rate:" N [ "K" | "M" | "G" ]
    ///         | "partition" [ ":" TIME ] | "reset" | "split:" N | "log"
    /// ```
    ///
    /// There is a rule, at least one. Kinds are the names of [`Kind`]; an IPv6 address stands in brackets; a time has a unit, `s`,
    /// `ms`, `us` or `ns`. `docs/faults.md` tells what all this means.
    ///
    /// ```
    /// use softverbs::fault::Plan;
    /// let plan = Plan::parse("out:rtu:first=drop,ack:1%=drop,seed=7").unwrap();
    /// assert_eq!(plan.rules.len(), 2);
    /// let error = Plan::parse("rtu:frist=drop").unwrap_err();
    /// assert_eq!(error.place(), 4..9);
    /// ```
    pub fn parse(spec: &str) -> Result<Self, ParseError> {
        let whole = Part {
            text: spec,
            start: 0,
        };
        plan(whole).map_err(|(at, what)| ParseError {
            spec: spec.to_owned(),
            at,
            what,
        })
    }
}

impl FromStr for Plan {
    type Err = ParseError;

    fn from_str(spec: &str) -> Result<Self, ParseError> {
        Self::parse(spec)
    }
}

fn plan(spec: Part<'_>) -> Parsed<Plan> {
    let mut plan = Plan::default();
    let (mut seeded, mut logged) = (false, false);
    for item in spec.split(',') {
        let item = item.trim();
        let Some((left, right)) = item.split_once('=') else {
            return item.fail(if item.text.is_empty() {
                "a rule is missing: KIND[:WHICH]=ACTION".to_owned()
            } else {
                format!("`{}` says no action: KIND[:WHICH]=ACTION", item.text)
            });
        };
        match left.text {
            "seed" => {
                if std::mem::replace(&mut seeded, true) {
                    return item.fail("a second seed");
                }
                let Ok(seed) = right.text.parse() else {
                    return right.fail(format!("`{}` is not a number", right.text));
                };
                plan.seed = seed;
            }
            "log" => {
                if std::mem::replace(&mut logged, true) {
                    return item.fail("a second log");
                }
                plan.log = Some(match right.text {
                    "" => return item.fail("log= wants `stderr` or a file"),
                    "stderr" => LogTo::Stderr,
                    path => LogTo::File(path.into()),
                });
            }
            _ => plan.rules.push(rule(left, right)?),
        }
    }
    if plan.rules.is_empty() {
        return spec.fail("no rule says what is to happen: KIND[:WHICH]=ACTION");
    }
    Ok(plan)
}

fn rule(left: Part<'_>, right: Part<'_>) -> Parsed<Rule> {
    let (direction, left) = match left.split_once(':') {
        Some((part, rest)) if part.text == "in" => (Some(Direction::In), rest),
        Some((part, rest)) if part.text == "out" => (Some(Direction::Out), rest),
        _ => (None, left),
    };
    // The colons of an address are in brackets.
    let outside = left.text.find(']').map_or(0, |at| at + 1);
    let (matched, which) = match left.text[outside..].split_once(':') {
        Some((before, after)) => {
            let (matched, which) = left.halves(&left.text[..outside + before.len()], after);
            (matched, which_of(which)?)
        }
        None => (left, Which::All),
    };
    let (names, peer) = match matched.split_once('@') {
        Some((names, peer)) => (names, Some(address(peer)?)),
        None => (matched, None),
    };
    let action = action_of(right)?;
    let mut kinds = Kinds::default();
    for name in names.split('+') {
        let Some(kind) = Kind::from_name(name.text) else {
            let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            let known = known.join(", ");
            return name.fail(format!("`{}` is not a kind of frame: {known}", name.text));
        };
        if let Some(why) = action.unfit(kind.carrier()) {
            return right.fail(format!("{action} of `{kind}`: {why}"));
        }
        kinds = kinds.with(kind);
    }
    Ok(Rule {
        direction,
        kinds,
        peer,
        which,
        action,
    })
}

fn address(part: Part<'_>) -> Parsed<IpAddr> {
    let inner = part
        .text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let parsed = match inner {
        Some(inner) => inner.parse().map(IpAddr::V6).ok(),
        None => part.text.parse().map(IpAddr::V4).ok(),
    };
    match parsed {
        Some(address) => Ok(address),
        None => part.fail(format!(
            "`{}` is not an address: 192.0.2.1 or [2001:db8::1]",
            part.text
        )),
    }
}

fn which_of(part: Part<'_>) -> Parsed<Which> {
    if let Some(n) = part.text.strip_prefix('/') {
        let (_, n) = part.halves("/", n);
        return Ok(Which::Every(n.number("a number")?));
    }
    if let Some(percent) = part.text.strip_suffix('%') {
        let parts = decimal(percent, 10_000).and_then(|parts| u32::try_from(parts).ok());
        return match parts {
            Some(parts @ 1..=1_000_000) => Ok(Which::Chance(parts)),
            _ => part.fail(format!(
                "`{}` is not a percentage from 0.0001% to 100%",
                part.text
            )),
        };
    }
    match part.text {
        "*" => return Ok(Which::All),
        "first" => return Ok(Which::Numbers(1, Some(1))),
        _ => {}
    }
    let starts_with_digit = part.text.starts_with(|c: char| c.is_ascii_digit());
    if !starts_with_digit {
        return part.fail(format!(
            "`{}` is not a choice of frames: first, 3, 2-5, 7-, /50, 1%, 2s-4s, *",
            part.text
        ));
    }
    let (from, to) = match part.split_once('-') {
        Some((from, to)) => (from, Some(to).filter(|to| !to.text.is_empty())),
        None => (part, Some(part)),
    };
    if from.text.ends_with('s') {
        let start = time(from)?;
        let end = match (part.text.contains('-'), to) {
            (false, _) => return part.fail("a time has a beginning and an end: 2s-4s, or 2s-"),
            (true, None) => None,
            (true, Some(to)) => Some(time(to)?),
        };
        if end.is_some_and(|end| end <= start) {
            return part.fail("the end is not after the beginning");
        }
        return Ok(Which::Time(start, end));
    }
    let first: u64 = from.number("a number of a frame")?;
    let last = match to {
        Some(to) => Some(to.number("a number of a frame")?),
        None => None,
    };
    if last.is_some_and(|last| last < first) {
        return part.fail("the last one comes before the first one");
    }
    Ok(Which::Numbers(first, last))
}

fn action_of(part: Part<'_>) -> Parsed<Action> {
    let (name, argument) = match part.split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (part, None),
    };
    let bare = |action| match argument {
        Some(argument) => argument.fail(format!("{} takes nothing behind it", name.text)),
        None => Ok(action),
    };
    let one = || argument.map_or(Ok(1), |argument| argument.number("a number"));
    Ok(match name.text {
        "log" => bare(Action::Log)?,
        "drop" => bare(Action::Drop)?,
        "reset" => bare(Action::Reset)?,
        "dup" => match one()? {
            copies @ ..=MOST_COPIES => Action::Duplicate(copies),
            copies => {
                let why = format!("{copies} copies of a packet: {MOST_COPIES} at most");
                return argument.unwrap_or(part).fail(why);
            }
        },
        "reorder" => Action::Reorder(one()?),
        "corrupt" => Action::Corrupt(match argument {
            None => None,
            Some(argument) => match argument.text.parse() {
                Ok(octet) => Some(octet),
                Err(_) => {
                    return argument.fail(format!("`{}` is not an octet's place", argument.text));
                }
            },
        }),
        "split" => match argument {
            Some(argument) => Action::Split(argument.number("a number of octets")?),
            None => return part.fail("split wants octets: split:1"),
        },
        "rate" => match argument {
            Some(argument) => Action::Rate(octets(argument)?),
            None => return part.fail("rate wants octets in a second: rate:10M"),
        },
        "partition" => Action::Partition(argument.map(time).transpose()?),
        "delay" => {
            let Some(argument) = argument else {
                return part.fail("delay wants a time: delay:20ms");
            };
            let (least, most) = match argument.split_once('-') {
                Some((least, most)) => (time(least)?, time(most)?),
                None => {
                    let time = time(argument)?;
                    (time, time)
                }
            };
            if most < least {
                return argument.fail("the longest delay is shorter than the shortest");
            }
            Action::Delay(least, most)
        }
        _ => {
            return name.fail(format!(
                "`{}` is not an action: drop, dup, delay, reorder, corrupt, rate, partition, \
                 reset, split, log",
                name.text
            ));
        }
    })
}

/// A decimal number of a unit that has `parts` parts, in these.
fn decimal(text: &str, parts: u128) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| {
        let fine = (1..=12).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
        fine.then(|| text.parse::<u128>().ok()).flatten()
    };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?.min(12));
    let fraction = digits(fraction)? * parts;
    // What is finer than a part is not known here.
    fraction
        .is_multiple_of(scale)
        .then_some(digits(whole)? * parts + fraction / scale)
}

fn time(part: Part<'_>) -> Parsed<Duration> {
    let wrong = || {
        format!(
            "`{}` is not a time: 2s, 50ms, 1.5ms, 200us, up to a day",
            part.text
        )
    };
    let unit_at = part.text.find(|c: char| c.is_ascii_alphabetic());
    let Some((number, unit)) = unit_at.map(|at| part.text.split_at(at)) else {
        return part.fail(wrong());
    };
    let nanos = UNITS
        .into_iter()
        .find(|(name, _)| *name == unit)
        .and_then(|(_, parts)| decimal(number, parts))
        .and_then(|nanos| u64::try_from(nanos).ok())
        .map(Duration::from_nanos);
    match nanos {
        Some(time) if time <= Duration::from_secs(86_400) => Ok(time),
        _ => part.fail(wrong()),
    }
}

fn octets(part: Part<'_>) -> Parsed<u64> {
    let scaled = [('K', 1_000), ('M', 1_000_000), ('G', 1_000_000_000)]
        .into_iter()
        .find_map(|(name, unit)| Some((part.text.strip_suffix(name)?, unit)));
    let (number, unit) = scaled.unwrap_or((part.text, 1));
    match decimal(number, unit).and_then(|octets| u64::try_from(octets).ok()) {
        Some(octets) if octets > 0 => Ok(octets),
        _ => part.fail(format!(
            "`{}` is not a rate in octets a second: 500K, 10M",
            part.text
        )),
    }
}
