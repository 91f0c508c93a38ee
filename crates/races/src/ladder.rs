//! A way through the states as a ladder: the active side on the left, the passive one on the right,
//! time goes down.

use std::fmt;

use crate::replay::Replay;
use crate::world::{Side, Sight};

/// Columns of each side.
const SIDE: usize = 34;
/// Columns between them.
const MIDDLE: usize = 28;

/// Draws a way.
#[derive(Clone, Copy, Debug)]
pub struct Ladder<'a>(pub &'a Replay);

impl fmt::Display for Ladder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>SIDE$} {:MIDDLE$} passive", "active", "")?;
        for (_, sights) in &self.0.steps {
            for sight in sights {
                line(f, sight)?;
            }
        }
        if let Some(violation) = &self.0.violation {
            writeln!(f, "violation: {violation}")?;
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, sight: &Sight) -> fmt::Result {
    match sight {
        Sight::Local {
            side: Side::Active,
            text,
        } => {
            writeln!(f, "{text:>SIDE$} |{:MIDDLE$}|", "")
        }
        Sight::Local {
            side: Side::Passive,
            text,
        } => {
            writeln!(f, "{:SIDE$} |{:MIDDLE$}| {text}", "", "")
        }
        Sight::Sent { from, label } => {
            let text = format!("sends {label}");
            match from {
                Side::Active => writeln!(f, "{text:>SIDE$} |-{:1$}|", "", MIDDLE - 1),
                Side::Passive => writeln!(f, "{:SIDE$} |{:2$}-| {text}", "", "", MIDDLE - 1),
            }
        }
        Sight::Arrived { to, label, again } => {
            let label = if *again {
                format!("{label} (1st copy)")
            } else {
                label.clone()
            };
            arrow(f, *to, &label, false)
        }
        Sight::Lost { to, label } => arrow(f, *to, label, true),
    }
}

fn arrow(f: &mut fmt::Formatter<'_>, to: Side, label: &str, lost: bool) -> fmt::Result {
    let shown = format!(" {label} ");
    let body = format!("{shown:-^0$}", MIDDLE - 2);
    let tip = match (to, lost) {
        (Side::Passive, false) => format!("-{body}>"),
        (Side::Passive, true) => format!("-{body}X"),
        (Side::Active, false) => format!("<{body}-"),
        (Side::Active, true) => format!("X{body}-"),
    };
    writeln!(f, "{:SIDE$} |{tip}|", "")
}
