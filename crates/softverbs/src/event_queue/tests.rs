use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::*;

const NO_TIME: Option<Duration> = Some(Duration::ZERO);

fn readable<T>(queue: &EventQueue<T>) -> bool {
    queue.wait(NO_TIME).unwrap()
}

#[test]
fn readable_if_and_only_if_not_empty() {
    let queue = EventQueue::new().unwrap();
    assert!(!readable(&queue));
    queue.push(1);
    queue.push(2);
    assert_eq!(queue.len(), 2);
    assert!(readable(&queue));
    assert_eq!(queue.try_pop(), Some(1));
    assert!(readable(&queue));
    assert_eq!(queue.pop(None).unwrap(), Some(2));
    assert!(!readable(&queue));
    assert_eq!(queue.try_pop(), None);
    assert_eq!(queue.len(), 0);

    (1..=6).for_each(|entry| queue.push(entry));
    assert_eq!(queue.remove_if(|entry| entry % 2 == 0), [2, 4, 6]);
    assert!(readable(&queue));
    assert_eq!(queue.try_pop(), Some(1));
    assert_eq!(queue.remove_if(|_| false), []);
    assert!(readable(&queue));
    assert_eq!(queue.remove_if(|_| true), [3, 5]);
    assert!(!readable(&queue));
    assert_eq!(queue.remove_if(|_| true), []);
    queue.push(7);
    assert!(readable(&queue));
}

#[test]
fn no_further_than_it_must() {
    let queue = EventQueue::new().unwrap();
    (1..=6).for_each(|entry| queue.push(entry));
    let mut looked_at = 0;
    let even = |entry: &i32| {
        looked_at += 1;
        entry % 2 == 0
    };
    assert_eq!(queue.remove_first(2, even), [2, 4]);
    assert_eq!((looked_at, queue.len()), (4, 4));
    assert_eq!(queue.remove_first(0, |_| unreachable!()), []);
    assert_eq!(queue.remove_first(9, |_| true), [1, 3, 5, 6]);
    assert!(!readable(&queue));
}

#[test]
fn waits_as_long_as_it_should() {
    let queue = Arc::new(EventQueue::new().unwrap());
    let begun = Instant::now();
    for micros in [0, 1, 1500, 20_000] {
        let timeout = Duration::from_micros(micros);
        let begun = Instant::now();
        assert_eq!(queue.pop(Some(timeout)).unwrap(), None);
        assert!(begun.elapsed() >= timeout);
    }
    assert!(begun.elapsed() < Duration::from_secs(5));

    for timeout in [None, Some(Duration::MAX), Some(Duration::from_secs(60))] {
        let waiter = {
            let queue = queue.clone();
            thread::spawn(move || queue.pop(timeout).unwrap())
        };
        thread::sleep(Duration::from_millis(5));
        queue.push(5);
        assert_eq!(waiter.join().unwrap(), Some(5));
    }
}

#[test]
fn many_readers_lose_nothing() {
    const READERS: usize = 4;
    const ENTRIES: u64 = 5000;
    let queue = EventQueue::new().unwrap();
    let sum = AtomicU64::new(0);
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                while let Some(entry) = queue.pop(None).unwrap().filter(|entry| *entry > 0) {
                    sum.fetch_add(entry, Ordering::Relaxed);
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for writer in 0..2 {
            let queue = &queue;
            scope.spawn(move || {
                for entry in (1..=ENTRIES).filter(|entry| entry % 2 == writer) {
                    queue.push(entry);
                    if entry % 64 == 0 {
                        // Let the queue run empty now and then, so that readers go to sleep.
                        thread::sleep(Duration::from_micros(100));
                    }
                }
            });
        }
        while taken.load(Ordering::Relaxed) < ENTRIES {
            thread::yield_now();
        }
        (0..READERS).for_each(|_| queue.push(0));
    });
    assert_eq!(sum.load(Ordering::Relaxed), ENTRIES * (ENTRIES + 1) / 2);
    assert!(!readable(&queue));
}

#[test]
fn an_edge_for_every_push() {
    let queue = EventQueue::new().unwrap();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let interest = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 1);
    epoll.add(queue.fd(), interest).unwrap();
    let edges = || {
        let mut events = [EpollEvent::empty(); 2];
        epoll.wait(&mut events, EpollTimeout::ZERO).unwrap()
    };
    assert_eq!(edges(), 0);
    queue.push(1);
    assert_eq!(edges(), 1);
    assert_eq!(edges(), 0);
    // Not taken yet: the next one is an edge all the same.
    queue.push(2);
    assert_eq!(edges(), 1);
    assert_eq!(queue.try_pop(), Some(1));
    assert_eq!(queue.try_pop(), Some(2));
    queue.push(3);
    assert_eq!(edges(), 1);
}

#[test]
fn a_reader_of_the_descriptor_blocks_nobody() {
    let queue = EventQueue::new().unwrap();
    queue.push(1);
    let mut counter = [0; 8];
    nix::unistd::read(queue.fd(), &mut counter).unwrap();
    assert_eq!(queue.pop(None).unwrap(), Some(1));
    queue.push(2);
    assert!(readable(&queue));
}

fn read<T>(queue: &EventQueue<T>) {
    let mut one = [0; 8];
    nix::unistd::read(queue.fd(), &mut one).unwrap();
    assert_eq!(u64::from_ne_bytes(one), 1);
}

#[test]
fn each_read_is_redeemed_for_an_entry() {
    let queue = EventQueue::new().unwrap();
    (1..=3).for_each(|entry| queue.push(entry));
    read(&queue);
    assert!(readable(&queue));
    read(&queue);
    assert_eq!(queue.redeem(|_| ()), Some(1));
    assert_eq!(queue.redeem(|entry| assert_eq!(*entry, 2)), Some(2));
    assert!(readable(&queue));
    // Taken away between the read and its redemption, in both ways.
    read(&queue);
    assert_eq!(queue.try_pop(), Some(3));
    assert_eq!(queue.redeem(|_| ()), None);
    queue.push(4);
    read(&queue);
    assert_eq!(queue.remove_if(|_| true), [4]);
    assert_eq!(queue.redeem(|_| ()), None);
    assert!(!readable(&queue));
}

#[test]
fn readers_and_poppers_lose_nothing_together() {
    const ENTRIES: u64 = 3000;
    let queue = EventQueue::new().unwrap();
    let sum = AtomicU64::new(0);
    let got = |entry: u64| {
        sum.fetch_add(entry, Ordering::Relaxed);
        entry > 0
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    read(&queue);
                    // Entries of 0 end it.
                    if queue.redeem(|_| ()).is_some_and(|entry| !got(entry)) {
                        break;
                    }
                }
            });
            scope.spawn(|| while queue.pop(None).unwrap().is_some_and(got) {});
        }
        for entry in 1..=ENTRIES {
            queue.push(entry);
            if entry % 8 == 0 {
                for entry in queue.remove_if(|entry| entry % 2 == 0) {
                    got(entry);
                }
            }
            if entry % 64 == 0 {
                thread::sleep(Duration::from_micros(100));
            }
        }
        (0..4).for_each(|_| queue.push(0));
    });
    assert_eq!(sum.load(Ordering::Relaxed), ENTRIES * (ENTRIES + 1) / 2);
    assert!(!readable(&queue));
}

#[test]
fn timeouts_are_rounded_up() {
    let millis = |timeout| i32::from(poll_timeout(Some(timeout)));
    assert_eq!(millis(Duration::ZERO), 0);
    assert_eq!(millis(Duration::from_nanos(1)), 1);
    assert_eq!(millis(Duration::from_micros(1001)), 2);
    assert_eq!(millis(Duration::MAX), i32::MAX);
    assert_eq!(poll_timeout(None), PollTimeout::NONE);
}

#[test]
fn acknowledgements_are_waited_for() {
    let counter = EventCounter::new();
    counter.wait_acked();
    (0..3).for_each(|_| counter.raise());
    assert!(counter.ack(2));
    assert_eq!(counter.outstanding(), 1);
    assert!(!counter.wait_acked_timeout(Duration::from_millis(2)));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| counter.wait_acked());
        thread::sleep(Duration::from_millis(5));
        assert!(!waiter.is_finished());
        assert!(counter.ack(1));
    });
    assert!(counter.wait_acked_timeout(Duration::ZERO));
    // More acknowledgements than events: refused, and no harm for the next ones.
    assert!(!counter.ack(1));
    counter.raise();
    assert_eq!(counter.outstanding(), 1);
}
