//! What must hold of both sides together: always, and when nothing is left to happen.

use softverbs_proto::qp_state::QpState;

use super::conn::{Conn, Socket};
use super::world::IwarpWorld;
use crate::end::{self, Result, ensure};
use crate::world::{Property, Side, Violation};

/// What is wrong in this state, if anything.
pub(super) fn check(world: &IwarpWorld) -> Option<Violation> {
    if world.is_at_rest() {
        at_rest(world).err()
    } else {
        None
    }
}

/// The connection at the other end, if there is one.
fn partner<'a>(world: &'a IwarpWorld, side: Side, conn: &Conn) -> Option<&'a Conn> {
    let others = &world.host(side.peer()).conns;
    others.iter().find(|other| other.link == conn.link)
}

fn at_rest(world: &IwarpWorld) -> Result {
    let somebody_ended_it = Side::BOTH
        .into_iter()
        .flat_map(|side| &world.host(side).conns)
        .any(|conn| conn.app.ended_it);
    for side in Side::BOTH {
        for conn in &world.host(side).conns {
            if conn.app.is_over() {
                let explained = world.is_disturbed() || somebody_ended_it;
                ensure(explained, Property::DeadEnd, side, || {
                    "the connection failed, and nothing explains it".to_owned()
                })?;
                over(world, side, conn)?;
            } else {
                end::connected(
                    side,
                    &conn.app,
                    partner(world, side, conn).map(|peer| &peer.app),
                )?;
            }
        }
    }
    Ok(())
}

/// A connection that is over: everything has completed, nothing is left.
fn over(world: &IwarpWorld, side: Side, conn: &Conn) -> Result {
    let app = &conn.app;
    ensure(
        app.told_end || app.forgotten,
        Property::DeadEnd,
        side,
        || "the connection is over, and nobody says so".to_owned(),
    )?;
    let closed = matches!(conn.socket, Socket::Closed);
    ensure(
        closed && world.tcp().is_closed(conn.link, side),
        Property::Leak,
        side,
        || {
            format!(
                "the connection is over, its socket is not: {:?}",
                conn.socket
            )
        },
    )?;
    if let Some(qp) = &conn.qp {
        ensure(
            app.completed == app.posted && qp.stream.outstanding() == 0,
            Property::Completion,
            side,
            || format!("{} of {} sends have completed", app.completed, app.posted),
        )?;
        ensure(qp.state == QpState::Err, Property::Leak, side, || {
            format!("the connection is over, the queue pair in {}", qp.state)
        })?;
    }
    // What TCP has taken arrives, unless the receiver does not want it any more.
    let Some(peer) = partner(world, side, conn) else {
        return Ok(());
    };
    ensure(
        world.is_disturbed() || peer.app.ended_it || peer.app.received >= app.succeeded,
        Property::Completion,
        side,
        || {
            format!(
                "{} sends succeeded, {} arrived",
                app.succeeded, peer.app.received
            )
        },
    )
}

pub(super) fn summary(world: &IwarpWorld) -> String {
    let apps = |side: Side| {
        world
            .host(side)
            .conns
            .iter()
            .map(move |conn| (side, &conn.app))
    };
    end::summary(Side::BOTH.into_iter().flat_map(apps))
}
