//! What must hold of both sides together: always, and when nothing is left to happen.

use softverbs_proto::qp_state::QpState;

use super::host::Conn;
use super::world::IbWorld;
use crate::app::Phase;
use crate::end::{self, Result, ensure};
use crate::world::{Property, Side, Violation};

/// What is wrong in this state, if anything.
pub(super) fn check(world: &IbWorld) -> Option<Violation> {
    always(world)
        .and_then(|()| {
            if world.is_at_rest() {
                at_rest(world)
            } else {
                Ok(())
            }
        })
        .err()
}

/// The connection at the other end, if there is one.
fn partner<'a>(world: &'a IbWorld, side: Side, conn: &Conn) -> Option<&'a Conn> {
    world.host(side.peer()).conns.iter().find(|other| {
        Some(other.qpn) == conn.remote_qpn && other.remote_qpn.is_none_or(|qpn| qpn == conn.qpn)
    })
}

fn always(world: &IbWorld) -> Result {
    for side in Side::BOTH {
        for conn in &world.host(side).conns {
            let app = &conn.app;
            let arrived = partner(world, side, conn).map_or(0, |peer| peer.app.received);
            ensure(app.succeeded <= arrived, Property::Completion, side, || {
                format!("{} sends succeeded, {arrived} arrived", app.succeeded)
            })?;
            let knows = app.phase != Phase::Establishing || app.ended_it;
            ensure(
                app.received == 0 || knows || !conn.notes.is_empty(),
                Property::Told,
                side,
                || "data arrived, and nobody says that the connection is established".to_owned(),
            )?;
        }
    }
    Ok(())
}

/// Whether an application ended something.
fn somebody_ended_it(world: &IbWorld) -> bool {
    Side::BOTH
        .into_iter()
        .flat_map(|side| &world.host(side).conns)
        .any(|conn| conn.app.ended_it)
}

fn at_rest(world: &IbWorld) -> Result {
    let bounds = world.scenario().bounds;
    let lost = bounds.drops + bounds.timers;
    let must_connect = lost <= world.scenario().retries && !somebody_ended_it(world);
    for side in Side::BOTH {
        let host = world.host(side);
        for conn in &host.conns {
            if conn.app.is_over() {
                ensure(!must_connect, Property::DeadEnd, side, || {
                    "the connection failed, and nothing explains it".to_owned()
                })?;
                over(side, conn)?;
            } else {
                end::connected(
                    side,
                    &conn.app,
                    partner(world, side, conn).map(|peer| &peer.app),
                )?;
            }
        }
        let all_over = host.conns.iter().all(|conn| conn.app.is_over());
        ensure(!all_over || host.cm.is_idle(), Property::Leak, side, || {
            format!(
                "all is over, and the connection manager keeps something: {:?}",
                host.cm
            )
        })?;
    }
    Ok(())
}

/// A connection that is over: everything has completed, nothing is left.
fn over(side: Side, conn: &Conn) -> Result {
    let app = &conn.app;
    let Some(qp) = &conn.qp else { return Ok(()) };
    ensure(
        app.completed == app.posted && qp.outstanding() == 0,
        Property::Completion,
        side,
        || format!("{} of {} sends have completed", app.completed, app.posted),
    )?;
    let ended = matches!(qp.state(), QpState::Err | QpState::Init);
    ensure(ended, Property::Leak, side, || {
        format!("the connection is over, the queue pair in {}", qp.state())
    })
}

pub(super) fn summary(world: &IbWorld) -> String {
    let apps = |side: Side| {
        world
            .host(side)
            .conns
            .iter()
            .map(move |conn| (side, &conn.app))
    };
    end::summary(Side::BOTH.into_iter().flat_map(apps))
}
