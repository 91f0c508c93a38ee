//! What must hold of two connected sides whatever carries their connection, and how it is said.

use core::fmt;

use crate::app::{App, Phase};
use crate::world::{Property, Side, Violation};

pub(crate) type Result = core::result::Result<(), Violation>;

pub(crate) fn ensure(
    holds: bool,
    property: Property,
    side: Side,
    what: impl FnOnce() -> String,
) -> Result {
    if holds {
        return Ok(());
    }
    Err(Violation {
        property,
        side: Some(side),
        what: what(),
    })
}

/// A connection that is not over when nothing is left to happen: so is its other end, and everything
/// has arrived.
pub(crate) fn connected(side: Side, app: &App, peer: Option<&App>) -> Result {
    ensure(
        app.phase == Phase::Established,
        Property::DeadEnd,
        side,
        || format!("{:?} for ever", app.phase),
    )?;
    ensure(
        peer.is_some_and(|peer| peer.phase == Phase::Established),
        Property::DeadEnd,
        side,
        || "connected, and the other side is not".to_owned(),
    )?;
    let arrived = peer.map_or(0, |peer| peer.received);
    ensure(
        app.succeeded == app.posted && arrived == app.posted,
        Property::DeadEnd,
        side,
        || {
            format!(
                "{} sends posted, {arrived} arrived, {} completed",
                app.posted, app.completed
            )
        },
    )
}

pub(crate) fn summary<'a>(apps: impl Iterator<Item = (Side, &'a App)>) -> String {
    let words: Vec<_> = apps
        .map(|(side, app)| {
            format!(
                "{side}: {:?}, {} posted, {} completed, {} received",
                app.phase, app.posted, app.completed, app.received
            )
        })
        .collect();
    words.join("; ")
}

/// Which connection, if it is not the only one of most runs.
pub(crate) struct Of(pub(crate) u8);

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            number => write!(f, " of connection {number}"),
        }
    }
}
