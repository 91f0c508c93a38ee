//! What was brought is done, by whoever pumps, and in order.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::pump::Pump;

struct Manager {
    pump: Pump,
    /// What waits, and what was done; under one lock as in the endpoint.
    work: Mutex<(Vec<u32>, Vec<u32>)>,
    inside: AtomicUsize,
}

impl Manager {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            pump: Pump::new(),
            work: Mutex::new((Vec::new(), Vec::new())),
            inside: AtomicUsize::new(0),
        })
    }

    fn bring(&self, what: u32) {
        self.work.lock().unwrap().0.push(what);
    }

    fn drain(&self) {
        assert_eq!(
            self.inside.fetch_add(1, Ordering::AcqRel),
            0,
            "one at a time"
        );
        {
            let mut work = self.work.lock().unwrap();
            let (waiting, done) = &mut *work;
            done.append(waiting);
        }
        self.inside.fetch_sub(1, Ordering::AcqRel);
    }

    fn done(&self) -> Vec<u32> {
        self.work.lock().unwrap().1.clone()
    }
}

fn brings_one(manager: &Arc<Manager>) -> thread::JoinHandle<()> {
    let manager = manager.clone();
    thread::spawn(move || {
        manager.bring(1);
        manager.pump.run(|| manager.drain());
    })
}

#[test]
fn nothing_that_was_brought_is_left_lying() {
    loom::model(|| {
        let manager = Manager::new();
        let other = brings_one(&manager);
        manager.bring(2);
        manager.pump.run(|| manager.drain());
        other.join().unwrap();
        let mut done = manager.done();
        done.sort_unstable();
        assert_eq!(done, [1, 2]);
    });
}

#[test]
fn who_waits_finds_it_done() {
    loom::model(|| {
        let manager = Manager::new();
        let other = brings_one(&manager);
        manager.bring(2);
        manager.pump.run_and_wait(|| manager.drain());
        assert!(manager.done().contains(&2));
        other.join().unwrap();
        assert_eq!(manager.done().len(), 2);
    });
}
