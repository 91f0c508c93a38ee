//! The engine's own thread.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use smallvec::SmallVec;
use softverbs_proto::time::Time;

use super::sys::{self, Ready};
use super::{DATA, Engine, Lookout, WAKE};
use crate::error::{Error, Result};
use crate::qp::Visit;

/// How often the thread looks at neglected connections while application threads poll: also the
/// time after which it takes over when they stop.
pub(crate) const BACK_OFF: Duration = Duration::from_micros(100);

/// The longest time between two looks: each takes a core from those who poll for tens of
/// microseconds.
const LONG_BACK_OFF: Duration = Duration::from_micros(800);
/// While they have been polling without a pause, the thread looks after this part of that time.
const STEADY_PART: u32 = 4;
/// So often within [`SOON`] the thread finds data that somebody left who polls, and does not leave it
/// to him any more: he waits by reading memory, perhaps, and polls only in between.
const LEFT: usize = 3;
/// Shorter than the slice of a thread that has lost its core: who polls all the time leaves data then.
const SOON: Duration = Duration::from_millis(2);
/// For so long, before it sees whether that has changed.
const DISTRUST: Duration = Duration::from_millis(10);
/// How long the thread looks for more of a stream before it sleeps, at least: as long as it was busy with
/// what came last, since the sender is about as fast, and no longer than the other one.
const LOOK_AGAIN: Duration = Duration::from_micros(30);
const LOOK_AGAIN_MOST: Duration = Duration::from_micros(300);
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
            super::IS_OWN.set(true);
            sys::exact_timers();
            sys::shorten_slice(SLICE);
            engine.run();
        });
    before.thread_set_mask().map_err(os)?;
    spawned.map_err(|error| Error::os("pthread_create", error.raw_os_error().unwrap_or(11)))?;
    Ok(())
}

/// Whether application threads poll.
#[derive(Debug)]
struct Attention {
    /// The count of polls, and since when it has not changed as far as is known.
    seen: u64,
    since: Time,
    /// Nobody polls.
    nobody: bool,
    /// Since when they have been polling without a pause.
    polling: Time,
    /// When data was left last, and the count of polls at the latest time.
    left: [Option<Time>; LEFT],
    left_at: u64,
    /// Until when polls do not count for that reason.
    distrust: Time,
}

impl Attention {
    const fn new(now: Time, polls: u64) -> Self {
        Self {
            seen: polls,
            since: now,
            nobody: true,
            polling: now,
            left: [None; LEFT],
            left_at: polls,
            distrust: now,
        }
    }

    /// What the count of polls says now; `inside` if a thread is at work on a connection. That there
    /// was no poll says something after [`BACK_OFF`] only: the engine's thread may have looked a
    /// moment ago, for another reason.
    fn look(&mut self, now: Time, polls: u64, inside: bool) {
        if inside || polls != self.seen {
            self.seen = polls;
            self.since = now;
            if std::mem::take(&mut self.nobody) {
                self.polling = now;
            }
        } else if now.saturating_since(self.since) >= BACK_OFF {
            self.nobody = true;
        }
    }

    /// Polls do not count: somebody sleeps until the engine's thread wakes him.
    const fn disregard(&mut self, now: Time) {
        self.polling = now;
    }

    /// Data was there that nobody had polled for, and the engine's thread has served it.
    fn left(&mut self, now: Time, polls: u64) {
        // Once for all that came between two polls: somebody who never polls leaves nothing.
        if std::mem::replace(&mut self.left_at, polls) == polls {
            return;
        }
        self.left.rotate_left(1);
        self.left[LEFT - 1] = Some(now);
        if self.left[0].is_some_and(|first| now.saturating_since(first) <= SOON) {
            self.distrust = now + DISTRUST;
            self.left = [None; LEFT];
        }
    }

    /// Whether polls say that data is looked after.
    fn distrusts(&self, now: Time) -> bool {
        now < self.distrust
    }

    /// Time between two looks.
    fn tick(&self, now: Time) -> Duration {
        let steady = now.saturating_since(self.polling) / STEADY_PART;
        steady.clamp(BACK_OFF, LONG_BACK_OFF)
    }
}

impl Engine {
    fn polled(&self) -> (u64, bool) {
        let inside = self.inside.load(Ordering::Relaxed) > 0;
        (self.polls.load(Ordering::Relaxed), inside)
    }

    fn run(&self) {
        let mut looked = self.now();
        let mut attention = Attention::new(looked, self.polls.load(Ordering::Relaxed));
        loop {
            self.answer_last_call();
            let now = self.now();
            let (polls, inside) = self.polled();
            attention.look(now, polls, inside);
            let distrusts = attention.distrusts(now);
            let in_charge = attention.nobody || distrusts || self.is_awaited();
            let mut seen = false;
            let limit = if in_charge {
                attention.disregard(now);
                seen = !self.take_charge();
                if seen || self.deferred.rings() {
                    // This thread has left something itself, for after the others' turn.
                    Some(Duration::ZERO)
                } else {
                    self.next_timer().map(|at| at.saturating_since(self.now()))
                }
            } else {
                self.backed_off.store(true, Ordering::SeqCst);
                // A queue armed just before is served without waiting for the tick.
                if self.is_awaited() {
                    continue;
                }
                let look = looked + attention.tick(now);
                // Before the timers are read: who sets one later finds out when it will be seen.
                self.note_next_look(look);
                let wake = self.next_timer().map_or(look, |timer| timer.min(look));
                self.note_next_look(wake);
                Some(wake.saturating_since(self.now()))
            };
            let mut ready: SmallVec<[Ready; 64]> = SmallVec::new();
            if sys::epoll_wait(self.control.0.as_fd(), &mut ready, limit).is_err() {
                // Only a programming error gets here; do not spin on it.
                std::thread::sleep(Duration::from_millis(10));
            }
            let data = seen || ready.iter().any(|&(token, _)| token == DATA.as_u64());
            if ready.iter().any(|&(token, _)| token == WAKE.as_u64()) {
                let _ = self.wake.read();
            }
            ready.retain(|(token, _)| *token != WAKE.as_u64() && *token != DATA.as_u64());
            self.serve(&ready);
            self.run_timers();
            let now = self.now();
            if in_charge {
                let (polls, inside) = self.polled();
                let polled_meanwhile = polls != attention.seen || inside;
                if data && (!polled_meanwhile || distrusts || self.is_awaited()) {
                    let served = self.serve_stream() > 0;
                    if served && !polled_meanwhile && !self.is_awaited() {
                        attention.left(now, polls);
                    }
                }
            } else if now.saturating_since(looked) >= BACK_OFF {
                // Not more often: who was polled since a moment ago only is not neglected otherwise.
                looked = now;
                self.flush(Visit::Look);
                self.cool(false);
                if self.serve_neglected() {
                    attention.left(now, self.polls.load(Ordering::Relaxed));
                }
            }
        }
    }

    fn note_next_look(&self, at: Time) {
        let nanos = u64::try_from(at.since_epoch().as_nanos()).unwrap_or(0);
        // SeqCst, as the timers' lock is for those who set one and read this.
        self.next_look.store(nanos, Ordering::SeqCst);
    }

    /// Serves ready connections, and returns how many there were. While large amounts arrive it looks
    /// again for a moment instead of sleeping at once: the next octets come before a sleep and a
    /// wake-up would be over.
    fn serve_stream(&self) -> usize {
        let begin = self.now();
        self.bulk.store(false, Ordering::Relaxed);
        let served = self.poll_data();
        let mut last = self.now();
        let patience = |busy: Duration| busy.clamp(LOOK_AGAIN, LOOK_AGAIN_MOST);
        let mut again = patience(last - begin);
        while self.bulk.load(Ordering::Relaxed) {
            let now = self.now();
            if now - last > again || now - begin > TURN {
                break;
            }
            if self.poll_data() > 0 {
                last = self.now();
                again = patience(last - now);
            } else {
                std::hint::spin_loop();
            }
        }
        served
    }

    /// From here on `data` wakes the thread, and so do the lookouts, unless there is something already:
    /// then this is false.
    fn take_charge(&self) -> bool {
        self.backed_off.store(false, Ordering::SeqCst);
        self.flush(Visit::InCharge);
        self.cool(true);
        // One-shot: `data` stays ready while its sockets are, and must not keep waking a thread
        // that has decided to leave it to others.
        let mut arm = EpollEvent::new(
            EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT,
            DATA.as_u64(),
        );
        let _ = self.control.modify(&self.data.0, &mut arm);
        let quiet = |all: bool, lookout: &'static dyn Lookout| lookout.may_sleep() && all;
        self.lookouts().into_iter().fold(true, quiet)
    }

    /// Serves ready connections that no application thread has served since the last look, and says
    /// whether there were any.
    fn serve_neglected(&self) -> bool {
        let mut ready: SmallVec<[Ready; 64]> = SmallVec::new();
        let _ = sys::epoll_wait(self.data.0.as_fd(), &mut ready, Some(Duration::ZERO));
        let mut any = false;
        for lookout in self.lookouts() {
            any |= lookout.look_at_neglected();
        }
        for (source, readiness) in self.sources.find_all(&ready) {
            if source.neglected() {
                any = true;
                source.ready(self, readiness);
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::new(Duration::from_micros(micros))
    }

    #[test]
    fn no_poll_says_something_after_a_while_only() {
        let mut attention = Attention::new(at(0), 5);
        assert!(attention.nobody, "until somebody polls");
        attention.look(at(1000), 6, false);
        assert!(!attention.nobody);
        // Woken for other reasons, sooner than a thread that polls comes back.
        for early in [1001, 1050, 1099] {
            attention.look(at(early), 6, false);
            assert!(!attention.nobody);
        }
        attention.look(at(1100), 6, false);
        assert!(attention.nobody);
        attention.look(at(1101), 6, false);
        assert!(attention.nobody, "still");
        attention.look(at(1102), 6, true);
        assert!(!attention.nobody, "a thread is at work");
    }

    #[test]
    fn who_polls_only_in_between_is_not_left_alone() {
        let mut attention = Attention::new(at(0), 0);
        // Polls, and leaves what comes then; three times.
        let leaves = |attention: &mut Attention, begin: u64, apart: u64| {
            for n in 1..=3 {
                let (now, polls) = (at(begin + n * apart), begin + n);
                assert!(!attention.distrusts(now), "before {n}");
                attention.left(now, polls);
                // More that comes before the next poll says nothing new.
                attention.left(now, polls);
            }
            attention.distrusts(at(begin + 3 * apart))
        };
        assert!(leaves(&mut attention, 0, 150));
        assert!(attention.distrusts(at(10_449)));
        assert!(!attention.distrusts(at(10_450)), "for a time");
        assert!(leaves(&mut attention, 10_450, 1000), "it goes on");
        assert!(!leaves(&mut attention, 30_000, 1001), "now and then");
    }

    #[test]
    fn who_never_polls_is_not_distrusted() {
        let mut attention = Attention::new(at(0), 7);
        for now in (0..10_000).step_by(200) {
            attention.left(at(now), 7);
            assert!(!attention.distrusts(at(now)));
        }
    }

    #[test]
    fn who_goes_on_to_poll_does_not_sleep() {
        let engine = Engine::new().unwrap();
        let poll = |times: u32| (0..times).for_each(|_| engine.note_poll());
        poll(1000);
        assert!(!engine.is_awaited());
        engine.arm(false);
        // It looks once more for what came before, some entries perhaps.
        poll(64);
        assert!(engine.is_awaited());
        poll(1);
        assert!(!engine.is_awaited());
        engine.await_again();
        assert!(engine.is_awaited());
        // Another one, which polls of other queues do not serve.
        engine.arm(true);
        poll(1000);
        assert!(engine.is_awaited());
        engine.disarm(true);
        assert!(!engine.is_awaited());
        engine.await_again();
        assert!(engine.is_awaited());
        engine.disarm(false);
        assert!(!engine.is_awaited());
    }

    #[test]
    fn who_only_sends_is_heard_of() {
        let engine: &'static Engine = Box::leak(Box::new(Engine::new().unwrap()));
        start(engine).unwrap();
        // It is in charge, and sleeps since nothing arrives.
        std::thread::sleep(Duration::from_millis(200));
        let begin = engine.now();
        while !engine.is_backed_off() {
            assert!(engine.now() - begin < Duration::from_secs(30));
            engine.note_poll();
            for behind in 1..4 {
                engine.gathers(behind);
            }
        }
    }

    #[test]
    fn looks_less_often_at_those_who_poll_without_a_pause() {
        let mut attention = Attention::new(at(0), 0);
        let mut ticks = Vec::new();
        for poll in 1..=4_u64 {
            let now = at(poll * 400);
            attention.look(now, poll, false);
            ticks.push(attention.tick(now).as_micros());
        }
        assert_eq!(ticks, [100, 100, 200, 300]);
        attention.look(at(6000), 5, false);
        assert_eq!(attention.tick(at(6000)), LONG_BACK_OFF);
        attention.look(at(6100), 5, false);
        attention.look(at(6150), 6, false);
        assert_eq!(attention.tick(at(6200)), BACK_OFF, "after a pause");
    }
}
