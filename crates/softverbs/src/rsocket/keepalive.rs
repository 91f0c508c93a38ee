//! Asking now and then whether silent peers are still there: a write of nothing, which the peer
//! does not notice, and which fails if there is none. One thread does it for all sockets, while
//! there are any that want it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;

use super::stream::{Phase, StreamSocket};

struct Entry {
    socket: Weak<StreamSocket>,
    due: Instant,
}

#[derive(Default)]
struct Service {
    entries: Vec<Entry>,
    running: bool,
}

static SERVICE: Mutex<Service> = Mutex::new(Service {
    entries: Vec::new(),
    running: false,
});
static CHANGED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Service> {
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters a connected socket that has the option on, and moves one whose idle time has changed.
pub(super) fn consider(socket: &Arc<StreamSocket>) {
    let Some(idle) = wanted(socket) else { return };
    let Some(due) = Instant::now().checked_add(idle) else {
        return;
    };
    let mut service = lock();
    let me = Arc::downgrade(socket);
    match service
        .entries
        .iter_mut()
        .find(|entry| entry.socket.ptr_eq(&me))
    {
        Some(entry) => entry.due = due,
        None => service.entries.push(Entry { socket: me, due }),
    }
    if !service.running {
        let thread = std::thread::Builder::new().name("rsocket-keepalive".to_owned());
        // Without a thread nobody asks; the transport notices most losses by itself.
        service.running = thread.spawn(run).is_ok();
    }
    drop(service);
    CHANGED.notify_one();
}

/// The idle time of a socket that wants to be asked after.
fn wanted(socket: &StreamSocket) -> Option<Duration> {
    let state = socket.lock();
    let wants = state.options.keepalive && state.phase == Phase::Connected;
    wants.then_some(state.options.keepalive_idle)
}

fn run() {
    // Signals are for the application's threads.
    let _ = SigSet::all().thread_block();
    let mut service = lock();
    loop {
        let now = Instant::now();
        let due: Vec<Arc<StreamSocket>> = service
            .entries
            .iter()
            .filter(|entry| entry.due <= now)
            .filter_map(|entry| entry.socket.upgrade())
            .collect();
        if !due.is_empty() {
            // Sockets have locks of their own, under which `consider` is never called.
            drop(service);
            for socket in &due {
                socket.send_keepalive();
            }
            let next: Vec<Option<Duration>> = due.iter().map(|socket| wanted(socket)).collect();
            service = lock();
            for (socket, idle) in due.iter().zip(next) {
                let me = Arc::downgrade(socket);
                let again = idle.and_then(|idle| now.checked_add(idle));
                service.entries.retain_mut(|entry| {
                    if !entry.socket.ptr_eq(&me) {
                        return true;
                    }
                    if let Some(again) = again {
                        entry.due = again;
                    }
                    again.is_some()
                });
            }
        }
        service
            .entries
            .retain(|entry| entry.socket.strong_count() > 0);
        let Some(next) = service.entries.iter().map(|entry| entry.due).min() else {
            service.running = false;
            return;
        };
        let wait = next.saturating_duration_since(Instant::now());
        service = CHANGED
            .wait_timeout(service, wait)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

impl StreamSocket {
    fn send_keepalive(&self) {
        let mut state = self.lock();
        if let Some(endpoint) = &mut state.endpoint
            && let Some(post) = endpoint.stream.keepalive()
        {
            endpoint.post(&post, &[]);
        }
        self.progress(&mut state);
    }
}
