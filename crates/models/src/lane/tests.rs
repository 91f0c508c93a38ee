//! Two processes that share a lane: who sleeps or waits is woken, and nobody writes by a grant that has ended.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use super::board::{Board, Granted};
use super::flow::Flow;
use super::wake::Wish;

const GRANTED: Granted = Granted {
    qpn: 7,
    peer: 9,
    rkey: 0x1234,
    addr: 1000,
    len: 100,
    base: 0x5000,
};

/// A sender that puts something in and a receiver that goes to sleep: it has seen that, or is woken.
#[test]
fn who_sleeps_is_woken() {
    loom::model(|| {
        let shared = Arc::new((Wish::new(), AtomicUsize::new(0), AtomicBool::new(false)));
        let sender = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (wish, packets, woken) = &*shared;
                for packet in 1..=2 {
                    packets.store(packet, Ordering::Release);
                    if wish.take() {
                        woken.store(true, Ordering::Release);
                    }
                }
            }
        });
        let (wish, packets, woken) = &*shared;
        wish.make();
        let seen = packets.load(Ordering::Acquire);
        sender.join().unwrap();
        assert!(
            seen == 2 || woken.load(Ordering::Acquire),
            "sleeps for ever"
        );
    });
}

/// A receiver ends its grants, waits for the writer, and uses the memory for something else.
#[test]
fn nobody_writes_when_the_end_has_been_waited_for() {
    loom::model(|| {
        let board = Arc::new(Board::new());
        let ours = Arc::new(AtomicBool::new(false));
        assert!(board.grant(1, &GRANTED));
        let writer = thread::spawn({
            let (board, ours) = (Arc::clone(&board), Arc::clone(&ours));
            move || {
                if let Some(found) = board.find([7, 9], 0x1234, 1000, 8)
                    && board.enter(&found)
                {
                    assert!(!ours.load(Ordering::Relaxed), "written afterwards");
                    board.leave();
                }
            }
        });
        board.end();
        let mut turns = 0;
        while board.written().is_some() {
            crate::sync::wait(&mut turns);
        }
        ours.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
}

/// The place of a grant is taken by another one while somebody looks at it: nobody writes by a mixture.
#[test]
fn a_grant_is_of_one_piece() {
    const OTHER: Granted = Granted {
        base: 0x9000,
        ..GRANTED
    };
    loom::model(|| {
        let board = Arc::new(Board::new());
        assert!(board.grant(1, &GRANTED));
        let writer = thread::spawn({
            let board = Arc::clone(&board);
            move || {
                let found = board.find([7, 9], 0x1234, 1000, 8)?;
                let entered = board.enter(&found);
                board.leave();
                entered.then_some((found.serial(), found.place))
            }
        });
        board.end();
        assert!(board.grant(2, &OTHER));
        if let Some(by) = writer.join().unwrap() {
            assert!(by == (1, 0x5000) || by == (2, 0x9000), "{by:?}");
        }
    });
}

/// A sender goes over to a ring, and a receiver that finds something there knows what goes before it.
/// Whoever sleeps is woken.
#[test]
fn a_receiver_that_sleeps_hears_of_octets() {
    loom::model(|| {
        let shared = Arc::new((Flow::new(), AtomicBool::new(false)));
        let sender = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (flow, woken) = &*shared;
                flow.begin(5);
                for tail in [3, 8] {
                    if flow.pass_on(tail) {
                        woken.store(true, Ordering::Release);
                    }
                }
            }
        });
        let (flow, woken) = &*shared;
        if flow.is_ready() {
            assert_eq!(flow.sent_before(), Some(5));
        }
        let taken = flow.tail();
        flow.give_back(taken, 8);
        let sleeps = flow.sleep();
        sender.join().unwrap();
        assert!(
            taken == 8 || !sleeps || woken.load(Ordering::Acquire),
            "sleeps for ever"
        );
    });
}

/// A sender that has filled a ring and waits for room: it has seen that there is some, or is woken.
#[test]
fn a_sender_that_waits_hears_of_room() {
    const SIZE: u64 = 8;
    loom::model(|| {
        let shared = Arc::new((Flow::new(), AtomicBool::new(false)));
        shared.0.pass_on(SIZE);
        let receiver = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (flow, woken) = &*shared;
                for head in [1, 4, SIZE] {
                    if flow.give_back(head, SIZE) {
                        woken.store(true, Ordering::Release);
                    }
                }
            }
        });
        let (flow, woken) = &*shared;
        let waits = flow.want_room(SIZE);
        receiver.join().unwrap();
        assert!(!waits || woken.load(Ordering::Acquire), "waits for ever");
        assert!(flow.has_room(SIZE));
    });
}
