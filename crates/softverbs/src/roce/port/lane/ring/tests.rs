use std::convert::Infallible;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;

use super::*;

fn put(ring: &Ring, octets: &[u8]) -> Put<Infallible> {
    let fit = |_| (1, octets.len());
    ring.put(Meta::default(), 1, fit, |_, room| {
        room.copy_from_slice(octets);
        Ok(())
    })
}

/// Both ends, as two processes have them.
fn pair() -> (Ring, Ring) {
    let (sender, file) = Ring::create().unwrap();
    let receiver = Ring::open(file.as_fd()).unwrap();
    (sender, receiver)
}

fn all(receiver: &Ring, place: &mut u64) -> Vec<Vec<u8>> {
    let taken = receiver.take(place, SLOTS);
    (0..)
        .map_while(|index| Some(taken.get(index)?.1.to_vec()))
        .collect()
}

#[test]
fn packets_come_out_in_their_order() {
    let (sender, receiver) = pair();
    let mut place = 0;
    assert!(!receiver.is_ready(place));
    for round in 0..300_u64 {
        let long = vec![7; MAX_PACKET];
        assert_eq!(put(&sender, &round.to_ne_bytes()), Put::Done(1));
        assert_eq!(put(&sender, &long), Put::Done(1));
        assert!(receiver.is_ready(place));
        let got = all(&receiver, &mut place);
        assert_eq!(got, [round.to_ne_bytes().to_vec(), long]);
    }
    assert_eq!(place, 600);
}

/// Trains and packets in turn: each is in one piece, wherever the ring ends.
#[test]
fn trains_have_slots_that_follow_each_other() {
    const PART: usize = 4096 + 12;
    let (sender, receiver) = pair();
    let mut place = 0;
    let (mut sent, mut got) = (0_u64, 0_u64);
    let mut lens = [0; 17];
    for round in 0..2000_u32 {
        let most = 1 + (round.wrapping_mul(0x9e37_79b9) >> 28);
        let fit = |slots: u32| {
            let packets = most.min(slots);
            (packets, packets as usize * PART)
        };
        let put = sender.put(Meta::default(), most, fit, |packets, room: &mut [u8]| {
            assert_eq!(room.len(), packets as usize * PART);
            for part in room.chunks_mut(PART) {
                part.fill(sent.to_le_bytes()[0]);
                sent += 1;
            }
            Ok::<_, ()>(())
        });
        let full = match put {
            Put::Done(packets) => {
                lens[packets as usize] += 1;
                false
            }
            Put::Full => true,
            Put::Failed(()) => unreachable!(),
        };
        if full || round % 3 == 0 {
            let taken = receiver.take(&mut place, 1 + u64::from(round % 40));
            let mut packets = 0;
            for index in 0.. {
                let Some((meta, octets)) = taken.get(index) else {
                    break;
                };
                assert_eq!(octets.len(), meta.packets() * PART);
                packets += meta.packets();
                for part in octets.chunks(PART) {
                    assert!(part.iter().all(|octet| *octet == got.to_le_bytes()[0]));
                    got += 1;
                }
            }
            assert_eq!(taken.packets(), packets);
            assert_eq!(taken.slots(), packets as u64);
        }
    }
    assert!(sent > 4000 && got + SLOTS >= sent);
    // Of every length, and cut at the end of the ring and where it was full.
    assert!(lens[1..].iter().all(|count| *count > 10), "{lens:?}");
}

#[test]
fn a_full_ring_takes_no_more() {
    let (sender, receiver) = pair();
    let mut place = 0;
    for _ in 0..3 {
        for octet in 0..SLOTS {
            assert!(sender.has_room());
            assert_eq!(put(&sender, &octet.to_ne_bytes()), Put::Done(1));
        }
        assert!(!sender.has_room());
        assert_eq!(put(&sender, b"one more"), Put::Full);
        drop(receiver.take(&mut place, 1));
        assert_eq!(put(&sender, b"one more"), Put::Done(1));
        assert_eq!(put(&sender, b"two more"), Put::Full);
        let got = all(&receiver, &mut place);
        assert_eq!(got.len() as u64, SLOTS);
        assert_eq!(got.last().unwrap(), b"one more");
    }
}

#[test]
fn what_cannot_be_written_is_no_packet() {
    let (sender, receiver) = pair();
    let put_nothing = sender.put(Meta::default(), 1, |_| (1, 5), |_, _| Err("gone"));
    assert_eq!(put_nothing, Put::Failed("gone"));
    assert_eq!(put(&sender, b"behind"), Put::Done(1));
    let got = all(&receiver, &mut 0);
    assert_eq!(got, [b"".to_vec(), b"behind".to_vec()]);
}

#[test]
fn who_sleeps_is_woken_once() {
    let (sender, receiver) = pair();
    assert!(!sender.must_wake());
    assert!(receiver.sleep(|| 0));
    assert!(sender.must_wake());
    assert!(!sender.must_wake());
    assert_eq!(put(&sender, b"x"), Put::Done(1));
    assert!(!receiver.sleep(|| 0), "there is a packet");
    assert!(!sender.want_room(), "there is room");
    assert!(receiver.must_offer_room());
    assert!(!receiver.must_offer_room());
}

#[test]
fn nothing_but_a_ring_is_opened() {
    let (_memory, other) = Shared::create(RING_LEN).unwrap();
    assert!(Ring::open(other.as_fd()).is_err(), "another layout");
    let (_memory, short) = Shared::create(RING_LEN - 1).unwrap();
    assert!(Ring::open(short.as_fd()).is_err(), "too short");
}

/// Several threads put in, one takes out: everything once, that of each thread in its order.
#[test]
fn threads() {
    const EACH: u64 = 20_000;
    const THREADS: u64 = 3;
    let (sender, receiver) = pair();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (sender, done) = (&sender, &done);
            scope.spawn(move || {
                let mut number = 0;
                while number < EACH && !done.load(Ordering::Relaxed) {
                    let octets = (thread << 32 | number).to_ne_bytes().repeat(1 + 20);
                    match put(sender, &octets) {
                        Put::Done(_) => number += 1,
                        _ => std::thread::yield_now(),
                    }
                }
            });
        }
        let mut next = [0; 3];
        let mut place = 0;
        while place < THREADS * EACH {
            let taken = receiver.take(&mut place, 32);
            for index in 0.. {
                let Some((_, octets)) = taken.get(index) else {
                    break;
                };
                let word = octets.first_chunk().unwrap();
                assert_eq!(octets, word.repeat(1 + 20));
                let word = u64::from_ne_bytes(*word);
                let thread = usize::try_from(word >> 32).unwrap();
                // Ends the threads when it fails.
                let expected = next[thread];
                done.store(word & 0xffff_ffff != expected, Ordering::Relaxed);
                assert_eq!(word & 0xffff_ffff, expected);
                next[thread] += 1;
            }
            if taken.slots() == 0 {
                drop(taken);
                std::thread::yield_now();
            }
        }
    });
}
