//! The server: it reads what the client offers, and writes it back.

use std::io::{Write, stderr, stdout};
use std::path::Path;
use std::thread;

use softverbs::cm::{CmId, ConnParam, EventKind};

use super::connection::{Area, Connection, Heard};
use super::step;
use super::wire::{self, Buffer, MAX_SIZE};
use crate::deadline::Deadline;
use crate::fabric::{Cm, Listeners, Wanted, announce, resolve, show_peer};
use crate::failure::{Failure, Outcome};
use crate::plan::PingPlan;

/// Waits for clients and serves them.
pub(super) fn run(
    plan: &PingPlan,
    bind: Option<&str>,
    persistent: bool,
    port_file: Option<&Path>,
) -> Outcome<()> {
    let cm = Cm::new(plan.timeout, plan.transport)?;
    let address = match bind {
        Some(host) => resolve(host, plan.port)?.into_iter().next(),
        None => None,
    };
    let listeners = Listeners::new(&cm, address, plan.port, &[])?;
    announce(listeners.address, port_file)?;
    if !persistent {
        return serve(plan, request(&cm)?);
    }
    // Clients are served side by side; all end when this function does, since the process ends.
    thread::scope(|scope| {
        loop {
            let id = match request(&cm) {
                Ok(id) => id,
                // The way that a server without end ends.
                Err(Failure::Interrupted) => return Ok(()),
                Err(failure) => return Err(failure),
            };
            scope.spawn(move || {
                if let Err(failure @ Failure::Run(_)) = serve(plan, id) {
                    let _ = writeln!(stderr().lock(), "softverbs: {failure}");
                }
            });
        }
    })
}

/// Waits for a connect request.
fn request(cm: &Cm) -> Outcome<CmId> {
    loop {
        if let Some(event) = cm.next(Deadline::NEVER)?
            && event.kind() == EventKind::ConnectRequest
        {
            return Ok(event.id().clone());
        }
    }
}

/// Serves one client until it disconnects.
fn serve(plan: &PingPlan, id: CmId) -> Outcome<()> {
    let name = show_peer(id.peer_addr());
    // Its events must not end up with those of other clients.
    let cm = Cm::new(plan.timeout, plan.transport)?;
    id.migrate_id(&cm.channel)?;
    let converse = || -> Outcome<()> {
        let mut connection = Connection::new(id.clone(), MAX_SIZE, plan.timeout, true)?;
        id.accept(&ConnParam::default())?;
        let established = Wanted {
            kind: EventKind::Established,
            doing: "accepting",
        };
        cm.wait(&id, established)?;
        step(plan, "connected");
        while answer(plan, &mut connection)? {}
        step(plan, "the client disconnected");
        let _ = id.disconnect();
        Ok(())
    };
    converse().map_err(|failure| failure.while_doing(&name))
}

/// Answers one ping; `false` if the client has disconnected instead.
fn answer(plan: &PingPlan, connection: &mut Connection) -> Outcome<bool> {
    let Heard::Announcement(source) = connection.hear()? else {
        return Ok(false);
    };
    check(source)?;
    connection.read(source)?;
    step(plan, "source read");
    let data = connection.get(Area::Sink, source.size as usize)?;
    if plan.verbose {
        let mut out = stdout().lock();
        writeln!(out, "server ping data: {}", wire::text(&data))?;
        out.flush()?;
    }
    connection.go_ahead()?;
    let Heard::Announcement(sink) = connection.hear()? else {
        return Err(Failure::run(
            "the client disconnected in the middle of a ping",
        ));
    };
    check(sink)?;
    let len = wire::string_len(&data).min(sink.size as usize);
    connection.write(sink, len)?;
    step(plan, "sink written");
    connection.go_ahead()?;
    Ok(true)
}

/// Whether the client's buffer fits.
fn check(buffer: Buffer) -> Outcome<()> {
    if (1..=MAX_SIZE).contains(&buffer.size) {
        return Ok(());
    }
    Err(Failure::run(format!(
        "the client announced a buffer of {} octets; 1 to {MAX_SIZE} are possible",
        buffer.size
    )))
}
