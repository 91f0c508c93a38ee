//! Two processes that share a lane: who sleeps is woken, and nobody writes by a grant that has ended.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use super::board::{Board, Granted};
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
