//! What plans decide.

use std::collections::HashSet;
use std::time::Duration;

use softverbs_proto::time::Time;
use softverbs_wire::ib::cm::{Mad, Rtu};
use softverbs_wire::ib::mad::gsi_headers;
use softverbs_wire::ib::{Aeth, Bth, Headers, Opcode, Syndrome};
use softverbs_wire::num::{Msn24, Psn, Qpn, RnrTimer, TransactionId};

use crate::fault::judge::{Frame, Judge, Verdict};
use crate::fault::{Classified, Direction, Held, Kind, Kinds, Plan};

const PEER: [u8; 4] = [192, 0, 2, 1];

fn frame(direction: Direction, kinds: &[Kind]) -> Frame<'static> {
    Frame {
        direction,
        kinds: Kinds::of(kinds),
        peer: PEER.into(),
        len: 100,
        what: &"a frame",
    }
}

fn judge(plan: &str) -> Judge {
    Judge::new(&Plan::parse(plan).unwrap())
}

/// What becomes of so many packets of a kind, a millisecond apart.
fn fates(judge: &mut Judge, kind: Kind, count: u64) -> Vec<Verdict> {
    let packet = frame(Direction::Out, &[Kind::Any, Kind::Packet, kind]);
    (0..count)
        .map(|ms| judge.judge(Duration::from_millis(ms), &packet, |_, _| ()))
        .collect()
}

/// The numbers of those that are dropped, from 1 on.
fn dropped(plan: &str, count: u64) -> Vec<usize> {
    let fates = fates(&mut judge(plan), Kind::Ack, count);
    let numbered = (1..).zip(fates);
    let lost = numbered.filter(|(_, fate)| *fate == Verdict::Drop);
    lost.map(|(number, _)| number).collect()
}

#[test]
fn which() {
    assert_eq!(dropped("ack:first=drop", 9), [1]);
    assert_eq!(dropped("ack:3=drop", 9), [3]);
    assert_eq!(dropped("ack:3-5=drop", 9), [3, 4, 5]);
    assert_eq!(dropped("ack:7-=drop", 9), [7, 8, 9]);
    assert_eq!(dropped("ack:/4=drop", 9), [4, 8]);
    assert_eq!(dropped("ack=drop", 3), [1, 2, 3]);
    assert_eq!(dropped("ack:100%=drop", 3), [1, 2, 3]);
    assert_eq!(dropped("rep=drop", 3), [0_usize; 0]);
    // Number n passes at n - 1 ms.
    assert_eq!(dropped("ack:2ms-4ms=drop", 9), [3, 4]);
    assert_eq!(dropped("ack:7ms-=drop", 9), [8, 9]);
    assert_eq!(dropped("ack:3=partition:2ms", 9), [3, 4]);
    assert_eq!(dropped("rep:3=partition,ack:8=partition", 9), [8, 9]);
    assert_eq!(dropped("ack:2ms-4ms=partition", 9), [3, 4]);
    assert_eq!(dropped("ack:/4=partition:2ms", 9), [4, 5, 8, 9]);
}

#[test]
fn chance_is_repeatable_and_fair() {
    let lost = dropped("ack:5%=drop,seed=1", 20_000);
    assert!((800..1200).contains(&lost.len()), "{}", lost.len());
    assert_eq!(dropped("ack:5%=drop,seed=1", 20_000), lost);
    assert_ne!(dropped("ack:5%=drop,seed=2", 20_000), lost);
    // Rules have dice of their own.
    assert_eq!(dropped("ack:5%=drop,rep:1%=drop,seed=1", 20_000), lost);
    let together = dropped("ack:5%=drop,ack:5%=drop,seed=1", 20_000);
    assert!((1750..2150).contains(&together.len()), "{}", together.len());
}

#[test]
fn directions_and_addresses() {
    let mut judge = judge("in:ack=drop,out:rep@192.0.2.1=drop,nak@[::1]=drop");
    let mut fate =
        |direction, kind| judge.judge(Duration::ZERO, &frame(direction, &[kind]), |_, _| ());
    assert_eq!(fate(Direction::In, Kind::Ack), Verdict::Drop);
    assert_eq!(fate(Direction::Out, Kind::Ack), Verdict::Pass);
    assert_eq!(fate(Direction::Out, Kind::Rep), Verdict::Drop);
    assert_eq!(fate(Direction::In, Kind::Rep), Verdict::Pass);
    assert_eq!(fate(Direction::Out, Kind::Nak), Verdict::Pass);
    assert_eq!(judge.seen(Direction::In, Kind::Ack), 1);
    assert_eq!(judge.seen(Direction::Out, Kind::Ack), 1);
    assert_eq!(judge.seen(Direction::Out, Kind::Cnp), 0);
}

#[test]
fn the_first_rule_that_selects_decides_and_all_count() {
    let mut judge = judge("ack=log,ack:2=drop,ack:2-3=dup:2,ack:3-4=delay:5ms");
    let mut told = Vec::new();
    let packet = frame(Direction::Out, &[Kind::Ack]);
    let fates: Vec<Verdict> = (0..4)
        .map(|_| {
            judge.judge(Duration::ZERO, &packet, |working, verdict| {
                told.push((working.rule.to_string(), *verdict));
            })
        })
        .collect();
    let delayed = Verdict::Delay(Duration::from_millis(5));
    let expected = [Verdict::Pass, Verdict::Drop, Verdict::Duplicate(2), delayed];
    assert_eq!(fates, expected);
    assert_eq!(told.len(), 7);
    let matched: Vec<u64> = judge.rules.iter().map(|rule| rule.matched).collect();
    let done: Vec<u64> = judge.rules.iter().map(|rule| rule.done).collect();
    assert_eq!((matched, done), (vec![4; 4], vec![4, 1, 1, 1]));
}

#[test]
fn delays_are_between_the_two() {
    let mut judge = judge("ack=delay:1ms-3ms");
    let mut seen = HashSet::new();
    for fate in fates(&mut judge, Kind::Ack, 1000) {
        let Verdict::Delay(time) = fate else {
            panic!("{fate}");
        };
        assert!((1_000..=3_000).contains(&time.as_micros()), "{time:?}");
        seen.insert(time.as_micros() / 500);
    }
    assert!(seen.len() >= 4, "{seen:?}");
}

#[test]
fn a_bit_anywhere_or_in_one_octet() {
    let mut places = HashSet::new();
    for fate in fates(&mut judge("ack=corrupt"), Kind::Ack, 10_000) {
        let Verdict::Corrupt(bit) = fate else {
            panic!("{fate}");
        };
        let mut octets = [0; 100];
        bit.flip(&mut octets);
        assert_eq!(
            octets.iter().map(|octet| octet.count_ones()).sum::<u32>(),
            1
        );
        places.insert((bit.octet, bit.mask));
    }
    assert!(places.len() > 790, "{}", places.len());
    let fate = fates(&mut judge("ack=corrupt:7"), Kind::Ack, 1)[0];
    let Verdict::Corrupt(bit) = fate else {
        panic!("{fate}");
    };
    let mut octets = [0; 9];
    bit.flip(&mut octets);
    assert_eq!(octets, [0, 0, 0, 0, 0, 0, 0, 1, 0]);
    bit.flip(&mut octets[..3]);
}

#[test]
fn a_rate_spaces_frames_out() {
    // 100 octets a frame, a frame a millisecond, room for one in two milliseconds.
    let delays = fates(&mut judge("ack=rate:50K"), Kind::Ack, 5);
    let ms = |ms| Verdict::Delay(Duration::from_millis(ms));
    assert_eq!(delays, [Verdict::Pass, ms(1), ms(2), ms(3), ms(4)]);
    let delays = fates(&mut judge("ack=rate:100K"), Kind::Ack, 5);
    assert_eq!(delays, [Verdict::Pass; 5]);
}

#[test]
fn streams_stand_still() {
    let mut judge = judge("fpdu:2=partition:5ms,any:first=delay:1ms");
    let fpdu = frame(Direction::In, &[Kind::Any, Kind::Frame, Kind::Fpdu]);
    let mut fate = |ms| judge.judge(Duration::from_millis(ms), &fpdu, |_, _| ());
    assert_eq!(fate(0), Verdict::Delay(Duration::from_millis(1)));
    assert_eq!(fate(1), Verdict::Hold(Some(Duration::from_millis(5))));
    assert_eq!(fate(3), Verdict::Hold(Some(Duration::from_millis(3))));
    assert_eq!(fate(6), Verdict::Pass);
}

fn packet(opcode: Opcode, aeth: Option<Syndrome>) -> Vec<u8> {
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(0x1234), Psn::new(1)));
    headers.aeth = aeth.map(|syndrome| Aeth::new(syndrome, Msn24::new(1)));
    let mut octets = Vec::new();
    headers.append_to(&mut octets);
    octets.extend([0; 4]);
    octets
}

#[test]
fn kinds_of_packets() {
    let cases: [(Opcode, Option<Syndrome>, &str); 9] = [
        (
            Opcode::RC_SEND_FIRST,
            None,
            "any+packet+data+request+message+send",
        ),
        (Opcode::RC_SEND_MIDDLE, None, "any+packet+data+request+send"),
        (Opcode::RC_WRITE_LAST, None, "any+packet+data+request+write"),
        (
            Opcode::UC_SEND_ONLY,
            None,
            "any+packet+data+request+message+send",
        ),
        (
            Opcode::RC_READ_RESPONSE_MIDDLE,
            None,
            "any+packet+data+response+read-response",
        ),
        (Opcode::CNP, None, "any+packet+data+cnp"),
        (
            Opcode::RC_ACKNOWLEDGE,
            Some(Syndrome::ACK),
            "any+packet+data+response+ack",
        ),
        (
            Opcode::RC_ACKNOWLEDGE,
            Some(Syndrome::rnr_nak(RnrTimer::new(1))),
            "any+packet+data+response+nak+rnr",
        ),
        (Opcode::new(0x1f), None, "any+packet"),
    ];
    for (opcode, aeth, expected) in cases {
        let octets = packet(opcode, aeth);
        assert_eq!(Classified::new(&octets).kinds.to_string(), expected);
    }
    assert_eq!(Classified::new(&[1, 2, 3]).kinds.to_string(), "any+packet");
}

#[test]
fn kinds_of_datagrams_to_the_connection_manager() {
    let mut octets = Vec::new();
    gsi_headers(Psn::new(1)).append_to(&mut octets);
    let headers = octets.len();
    octets.extend(Mad::new(TransactionId::new(1), Rtu::default()).to_bytes());
    octets.extend([0; 4]);
    let classified = Classified::new(&octets);
    assert_eq!(classified.kinds.to_string(), "any+packet+cm+rtu");
    assert_eq!(classified.kinds.most_particular(), Kind::Rtu);
    assert!(classified.to_string().starts_with("RTU"), "{classified}");
    octets[headers] ^= 0xff;
    assert_eq!(Classified::new(&octets).kinds.to_string(), "any+packet+cm");
}

#[test]
fn held_frames_go_in_order_of_time() {
    let at = |ms| Time::new(Duration::from_millis(ms));
    let (here, there) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let mut held = Held::default();
    assert!(held.until(at(30), 10, 'c'));
    assert!(held.until(at(10), 10, 'a'));
    assert!(held.until(at(10), 10, 'b'));
    assert!(held.behind(at(0), 10, (here, 2), 'x'));
    assert!(held.behind(at(0), 10, (there, 1), 'y'));
    assert_eq!(held.next(), Some(at(10)));
    assert_eq!(held.due(at(9)), None);
    assert_eq!(held.due(at(10)), Some('a'));
    assert_eq!(held.due(at(10)), Some('b'));
    assert_eq!(held.due(at(10)), None);
    assert_eq!(held.passed(here), []);
    assert_eq!(held.passed(here), ['x']);
    assert_eq!(held.passed(here), []);
    // If nobody comes, it goes by itself.
    assert_eq!(held.next(), Some(at(20)));
    assert_eq!(held.due(at(20)), Some('y'));
    assert_eq!(held.passed(there), []);
    assert_eq!(held.due(at(30)), Some('c'));
    assert_eq!(held.next(), None);
}

#[test]
fn there_is_an_end_to_holding_back() {
    let mut held = Held::default();
    let mut kept = 0;
    while held.until(Time::ZERO, 1 << 20, ()) {
        kept += 1;
    }
    assert_eq!(kept, 64);
    assert_eq!(held.due(Time::ZERO), Some(()));
    assert!(held.until(Time::ZERO, 1 << 20, ()));
}
