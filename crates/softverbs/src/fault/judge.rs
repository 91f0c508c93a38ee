//! Decides what happens to each frame. No clock, no I/O: the time since the plan was installed
//! comes in, a verdict and what is to be logged come out.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::kind::{Direction, Kind, Kinds};
use super::plan::{Action, Plan, Rule, Which};

/// What rules can know of a frame.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) direction: Direction,
    pub(crate) kinds: Kinds,
    pub(crate) peer: IpAddr,
    /// Octets of the frame.
    pub(crate) len: usize,
    /// For the log.
    pub(crate) what: &'a dyn fmt::Display,
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Drop,
    /// So many copies behind it.
    Duplicate(u32),
    /// So much later.
    Delay(Duration),
    /// Behind so many later ones.
    Behind(u32),
    /// With this bit flipped.
    Corrupt(Bit),
    /// So much later, with all behind it; never, if none (streams).
    Hold(Option<Duration>),
    Reset,
    Split(u32),
}

/// A bit of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bit {
    pub(crate) octet: usize,
    pub(crate) mask: u8,
}

impl Bit {
    /// Flips it, if the frame is that long.
    pub(crate) fn flip(self, octets: &mut [u8]) {
        if let Some(octet) = octets.get_mut(self.octet) {
            *octet ^= self.mask;
        }
    }
}

/// A rule at work.
pub(super) struct Working {
    pub(super) rule: Rule,
    dice: Dice,
    /// Frames that it matched.
    pub(super) matched: u64,
    /// Faults that it made.
    pub(super) done: u64,
    /// When the line is free again (rate).
    free_at: Duration,
    cut: Cut,
}

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    No,
    Until(Option<Duration>),
}

/// A plan at work.
pub(super) struct Judge {
    pub(super) rules: Vec<Working>,
    /// How many frames of each kind passed, by direction.
    seen: [[u64; Kind::ALL.len()]; 2],
}

impl Judge {
    pub(super) fn new(plan: &Plan) -> Self {
        let rules = plan.rules.iter().enumerate();
        Self {
            rules: rules
                .map(|(index, rule)| Working {
                    rule: rule.clone(),
                    dice: Dice::new(plan.seed, index as u64),
                    matched: 0,
                    done: 0,
                    free_at: Duration::ZERO,
                    cut: Cut::No,
                })
                .collect(),
            seen: [[0; Kind::ALL.len()]; 2],
        }
    }

    pub(super) const fn seen(&self, direction: Direction, kind: Kind) -> u64 {
        self.seen[direction as usize][kind as usize]
    }

    /// What happens to a frame. `note` is told of each rule that acts.
    pub(super) fn judge(
        &mut self,
        elapsed: Duration,
        frame: &Frame<'_>,
        mut note: impl FnMut(&Working, &Verdict),
    ) -> Verdict {
        for kind in frame.kinds.iter() {
            self.seen[frame.direction as usize][kind as usize] += 1;
        }
        let stream = frame.kinds.contains(Kind::Frame);
        let mut verdict = Verdict::Pass;
        // Every rule counts every frame that it matches, whatever another one does to it: "the
        // third" does not depend on the other rules.
        for working in &mut self.rules {
            let acts = working.acts(elapsed, frame, stream);
            let Some(fate) = acts else { continue };
            if working.rule.action == Action::Log {
                working.done += 1;
                note(working, &fate);
            } else if verdict == Verdict::Pass && fate != Verdict::Pass {
                working.done += 1;
                note(working, &fate);
                verdict = fate;
            }
        }
        verdict
    }
}

impl Working {
    fn acts(&mut self, elapsed: Duration, frame: &Frame<'_>, stream: bool) -> Option<Verdict> {
        let rule = &self.rule;
        if rule.direction.is_some_and(|only| only != frame.direction)
            || rule.peer.is_some_and(|only| only != frame.peer)
        {
            return None;
        }
        let selected = rule.kinds.intersects(frame.kinds) && {
            self.matched += 1;
            match rule.which {
                Which::All => true,
                Which::Numbers(from, to) => {
                    self.matched >= from && to.is_none_or(|to| self.matched <= to)
                }
                Which::Every(n) => self.matched.is_multiple_of(n),
                Which::Chance(parts) => self.dice.below(1_000_000) < u64::from(parts),
                Which::Time(from, to) => elapsed >= from && to.is_none_or(|to| elapsed < to),
            }
        };
        if let Action::Partition(time) = rule.action {
            return self.partition(elapsed, selected, time, stream);
        }
        selected.then(|| self.fate(elapsed, frame))
    }

    fn partition(
        &mut self,
        elapsed: Duration,
        selected: bool,
        time: Option<Duration>,
        stream: bool,
    ) -> Option<Verdict> {
        let over = match self.cut {
            Cut::No => true,
            Cut::Until(until) => until.is_some_and(|until| elapsed >= until),
        };
        if over {
            self.cut = Cut::No;
            if !selected {
                return None;
            }
            let until = match (time, self.rule.which) {
                (Some(time), _) => Some(elapsed + time),
                (None, Which::Time(_, end)) => end,
                (None, _) => None,
            };
            self.cut = Cut::Until(until);
        }
        let Cut::Until(until) = self.cut else {
            return None;
        };
        Some(if stream {
            Verdict::Hold(until.map(|until| until.saturating_sub(elapsed)))
        } else {
            Verdict::Drop
        })
    }

    fn fate(&mut self, elapsed: Duration, frame: &Frame<'_>) -> Verdict {
        match self.rule.action {
            Action::Log | Action::Partition(_) => Verdict::Pass,
            Action::Drop => Verdict::Drop,
            Action::Duplicate(copies) => Verdict::Duplicate(copies),
            Action::Delay(least, most) => {
                let spread = u64::try_from((most - least).as_nanos()).unwrap_or(u64::MAX);
                let more = self.dice.below(spread.saturating_add(1));
                Verdict::Delay(least + Duration::from_nanos(more))
            }
            Action::Reorder(count) => Verdict::Behind(count),
            Action::Corrupt(octet) => {
                let bits = self.dice.below((frame.len.max(1) * 8) as u64);
                let place = usize::try_from(bits / 8).unwrap_or(0);
                Verdict::Corrupt(match octet {
                    Some(octet) => Bit {
                        octet: octet as usize,
                        mask: 1,
                    },
                    None => Bit {
                        octet: place,
                        mask: 1 << (bits % 8),
                    },
                })
            }
            Action::Rate(octets) => {
                let start = self.free_at.max(elapsed);
                let nanos = frame.len as u128 * 1_000_000_000 / u128::from(octets);
                let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                self.free_at = start.saturating_add(takes);
                if start > elapsed {
                    Verdict::Delay(start - elapsed)
                } else {
                    Verdict::Pass
                }
            }
            Action::Reset => Verdict::Reset,
            Action::Split(octets) => Verdict::Split(octets),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("seen"),
            Self::Drop => f.write_str("dropped"),
            Self::Duplicate(copies) => write!(f, "{copies} more"),
            Self::Delay(time) => write!(f, "delayed {time:?}"),
            Self::Behind(count) => write!(f, "held back for {count}"),
            Self::Corrupt(bit) => write!(f, "octet {} ^ {:#04x}", bit.octet, bit.mask),
            Self::Hold(Some(until)) => write!(f, "held {until:?}"),
            Self::Hold(None) => f.write_str("held for ever"),
            Self::Reset => f.write_str("connection reset"),
            Self::Split(octets) => write!(f, "in pieces of {octets}"),
        }
    }
}

/// Repeatable chance: splitmix64.
struct Dice(u64);

impl Dice {
    /// Each rule has its own, so that what it does depends on the frames that it matches alone.
    const fn new(seed: u64, rule: u64) -> Self {
        let mut dice = Self(seed ^ rule.wrapping_mul(0xd134_2543_de82_ef95));
        // Seeds that differ in one bit must not begin alike.
        dice.next();
        Self(dice.next())
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    const fn below(&mut self, limit: u64) -> u64 {
        ((self.next() as u128 * limit as u128) >> 64) as u64
    }
}
