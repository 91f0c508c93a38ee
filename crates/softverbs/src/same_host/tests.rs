//! What is granted, and until when.

use std::sync::atomic::{AtomicBool, Ordering};

use super::board::{Board, GRANTS, Granted};

const GRANTED: Granted = Granted {
    qpn: 7,
    peer: 9,
    rkey: 0x1234,
    addr: 1000,
    len: 100,
    base: 0x5000,
};

#[test]
fn only_what_is_granted_is_found() {
    let board = Board::new();
    assert!(!board.has_any() && board.find([7, 9], 0x1234, 1000, 8).is_none());
    assert!(board.grant(1, &GRANTED));
    assert!(board.has_any() && board.has(&GRANTED));
    let place = |qpn, rkey, addr, len| {
        let found = board.find([qpn, 9], rkey, addr, len);
        found.map(|found| found.place)
    };
    assert_eq!(place(7, 0x1234, 1000, 100), Some(0x5000));
    assert_eq!(place(7, 0x1234, 1099, 1), Some(0x5000 + 99));
    assert!(
        board.find([7, 8], 0x1234, 1000, 8).is_none(),
        "a former peer"
    );
    for (qpn, rkey, addr, len) in [
        (8, 0x1234, 1000, 8),
        (7, 0x1235, 1000, 8),
        (7, 0x1234, 999, 8),
        (7, 0x1234, 1000, 101),
        (7, 0x1234, 1099, 2),
        (7, 0x1234, 1101, 0),
        (7, 0x1234, u64::MAX, 1),
        (7, 0x1234, 1000, u64::MAX),
    ] {
        assert_eq!(
            place(qpn, rkey, addr, len),
            None,
            "{qpn} {rkey} {addr} {len}"
        );
    }
}

#[test]
fn there_are_enough_grants_some_time() {
    let board = Board::new();
    for serial in 1..=GRANTS as u64 {
        assert!(board.grant(serial, &GRANTED));
    }
    assert!(!board.grant(99, &GRANTED));
    board.end();
    assert!(!board.has_any() && board.find([7, 9], 0x1234, 1000, 8).is_none());
    assert!(board.grant(100, &GRANTED));
}

#[test]
fn what_has_ended_is_not_entered() {
    let board = Board::new();
    assert!(board.grant(1, &GRANTED));
    let found = board.find([7, 9], 0x1234, 1000, 8).unwrap();
    assert!(board.enter(&found));
    assert_eq!(board.written(), Some(0x1234));
    board.leave();
    assert_eq!(board.written(), None);
    board.end();
    assert!(!board.enter(&found) && board.written().is_none());
    // The same place again, but another grant.
    assert!(board.grant(2, &GRANTED));
    assert!(!board.enter(&found));
}

/// After `end`, and when nobody writes, nobody will.
#[test]
fn who_ends_grants_is_safe() {
    let (board, valid, done) = (Board::new(), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if let Some(found) = board.find([7, 9], 0x1234, 1000, 8)
                    && board.enter(&found)
                {
                    let is_valid = valid.load(Ordering::SeqCst);
                    done.fetch_or(!is_valid, Ordering::Relaxed);
                    board.leave();
                    assert!(is_valid, "written after the end");
                }
            }
        });
        for serial in 1..50_000 {
            if done.load(Ordering::Relaxed) {
                break;
            }
            valid.store(true, Ordering::SeqCst);
            assert!(board.grant(serial, &GRANTED));
            board.end();
            while board.written().is_some() {
                std::hint::spin_loop();
            }
            valid.store(false, Ordering::SeqCst);
        }
        done.store(true, Ordering::Relaxed);
    });
}
