//! The engine's own thread.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use smallvec::SmallVec;

use super::sys::{self, Ready};
use super::{DATA, Engine, WAKE};
use crate::error::{Error, Result};

/// How often the thread looks at neglected connections while application threads poll: also the
/// time after which it takes over when they stop.
pub(crate) const BACK_OFF: Duration = Duration::from_micros(100);

/// The same while they have been polling for [`STEADY`] without a pause: each look takes a core from
/// them for tens of microseconds.
const STEADY_BACK_OFF: Duration = Duration::from_micros(800);
const STEADY: Duration = Duration::from_millis(20);
/// How long the thread looks for more of a stream before it sleeps.
const LOOK_AGAIN: Duration = Duration::from_micros(30);
/// How long it serves streams before it looks after everything else.
const TURN: Duration = Duration::from_millis(1);

/// Its slice of a core: short, so that it preempts threads that spin on memory.
const SLICE: Duration = Duration::from_micros(100);

pub(super) fn start(engine: &'static Engine) -> Result<()> {
    // A thread starts with the signal mask of its maker. Signals are the application's: none of its
    // handlers may run here, where it knows of no thread. Those of a fault of our own stay, since a
    // blocked one would end the process without a word.
    let mut all = SigSet::all();
    for own in [
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGILL,
        Signal::SIGFPE,
        Signal::SIGABRT,
        Signal::SIGTRAP,
    ] {
        all.remove(own);
    }
    let os = Error::from_call::<nix::Error>("pthread_sigmask");
    let before = all.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(&os)?;
    let spawned = std::thread::Builder::new()
        .name("softverbs".into())
        .spawn(|| {
            sys::exact_timers();
            sys::shorten_slice(SLICE);
            engine.run();
        });
    before.thread_set_mask().map_err(os)?;
    spawned.map_err(|error| Error::os("pthread_create", error.raw_os_error().unwrap_or(11)))?;
    Ok(())
}

impl Engine {
    fn run(&self) {
        let mut seen = self.polls.load(Ordering::Relaxed);
        let mut charged = self.now();
        loop {
            let polls = self.polls.load(Ordering::Relaxed);
            let nobody = polls == seen && self.inside.load(Ordering::Relaxed) == 0;
            let in_charge = nobody || self.armed.load(Ordering::SeqCst) > 0;
            seen = polls;
            let timer = || self.next_timer().map(|at| at.saturating_since(self.now()));
            let limit = if in_charge {
                charged = self.now();
                self.take_charge();
                timer()
            } else {
                self.backed_off.store(true, Ordering::SeqCst);
                // A queue armed just before is served without waiting for the tick.
                if self.armed.load(Ordering::SeqCst) > 0 {
                    continue;
                }
                let steady = self.now() - charged > STEADY;
                let tick = if steady { STEADY_BACK_OFF } else { BACK_OFF };
                let wait = timer().map_or(tick, |timer| timer.min(tick));
                let next_look = (self.now() + wait).since_epoch().as_nanos();
                self.next_look
                    .store(u64::try_from(next_look).unwrap_or(0), Ordering::Relaxed);
                Some(wait)
            };
            let mut ready: SmallVec<[Ready; 64]> = SmallVec::new();
            if sys::epoll_wait(self.control.0.as_fd(), &mut ready, limit).is_err() {
                // Only a programming error gets here; do not spin on it.
                std::thread::sleep(Duration::from_millis(10));
            }
            let data = ready.iter().any(|&(token, _)| token == DATA.as_u64());
            if ready.iter().any(|&(token, _)| token == WAKE.as_u64()) {
                let _ = self.wake.read();
            }
            ready.retain(|(token, _)| *token != WAKE.as_u64() && *token != DATA.as_u64());
            self.serve(&ready);
            self.run_timers();
            if in_charge {
                let polled_meanwhile = (self.polls.load(Ordering::Relaxed) != seen
                    || self.inside.load(Ordering::Relaxed) > 0)
                    && self.armed.load(Ordering::SeqCst) == 0;
                if data && !polled_meanwhile {
                    self.serve_stream();
                }
            } else {
                self.flush(true);
                self.cool(false);
                self.serve_neglected();
            }
        }
    }

    /// Serves ready connections. While large amounts arrive it looks again for a moment instead of
    /// sleeping at once: the next octets come before a sleep and a wake-up would be over.
    fn serve_stream(&self) {
        let begin = self.now();
        let mut last = begin;
        self.bulk.store(false, Ordering::Relaxed);
        self.poll_data();
        while self.bulk.load(Ordering::Relaxed) {
            let now = self.now();
            if now - last > LOOK_AGAIN || now - begin > TURN {
                return;
            }
            if self.poll_data() > 0 {
                last = now;
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// From here on `data` wakes the thread.
    fn take_charge(&self) {
        self.backed_off.store(false, Ordering::SeqCst);
        self.flush(true);
        self.cool(true);
        // One-shot: `data` stays ready while its sockets are, and must not keep waking a thread
        // that has decided to leave it to others.
        let mut arm = EpollEvent::new(
            EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT,
            DATA.as_u64(),
        );
        let _ = self.control.modify(&self.data.0, &mut arm);
    }

    /// Serves ready connections that no application thread has served since the last look.
    fn serve_neglected(&self) {
        let mut ready: SmallVec<[Ready; 64]> = SmallVec::new();
        let _ = sys::epoll_wait(self.data.0.as_fd(), &mut ready, Some(Duration::ZERO));
        for (source, readiness) in self.sources.find_all(&ready) {
            if source.neglected() {
                source.ready(self, readiness);
            }
        }
    }
}
