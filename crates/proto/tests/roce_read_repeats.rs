//! READs that are repeated, towards a responder as Linux's rxe is: of a READ that it remembers it
//! repeats any part, but none that begins before the last part that it has repeated.

mod roce_common;

use std::cell::Cell;
use std::rc::Rc;

use roce_common::*;
use softverbs_proto::wr::WcStatus;
use softverbs_wire::ib::{Headers, Opcode};
use softverbs_wire::num::Psn;

const LEN: usize = 1 << 20;
const MTU: u32 = 1024;

/// A READ that the responder remembers.
struct Remembered {
    first: Psn,
    last: Psn,
    from: u64,
    to: u64,
}

#[derive(Default)]
struct Responder {
    remembered: Vec<Remembered>,
}

impl Responder {
    /// Whether it answers; requests come in order here.
    fn answers(&mut self, headers: &Headers) -> bool {
        let Some(reth) = headers.reth else {
            return true;
        };
        let psn = headers.bth.psn;
        let (from, len) = (reth.va.get(), reth.dma_len);
        let to = from + u64::from(len);
        let known = self
            .remembered
            .iter_mut()
            .find(|read| !psn.is_before(read.first) && !read.last.is_before(psn));
        if let Some(read) = known {
            let answers = from >= read.from && to <= read.to;
            if answers {
                read.from = from;
            }
            return answers;
        }
        let next = self
            .remembered
            .last()
            .map_or(A_PSN, |read| read.last.next());
        if psn == next {
            self.remembered.push(Remembered {
                first: psn,
                last: psn.advance(len.div_ceil(MTU).max(1) - 1),
                from,
                to,
            });
        }
        true
    }
}

#[test]
fn no_repetition_begins_before_an_earlier_one() {
    for seed in 0..40 {
        let mut pair = Pair::new(attributes(), Network::GOOD, seed);
        let content = pattern(2, LEN);
        let zero = vec![0; LEN];
        pair.a.memory.add(1, 0, VecMemory::all_access(), &zero);
        pair.b.memory.add(2, 0, VecMemory::all_access(), &content);
        let (mut responder, mut random) = (Responder::default(), Random(seed));
        let refused = Rc::new(Cell::new(0));
        let repeated = Rc::new(Cell::new(0));
        let (count, seen) = (Rc::clone(&refused), Rc::clone(&repeated));
        pair.lose(move |from_a, headers| {
            if random.chance(2) {
                return true;
            }
            if !from_a || headers.bth.opcode != Opcode::RC_READ_REQUEST {
                return false;
            }
            seen.set(seen.get() + 1);
            let refuses = !responder.answers(headers);
            count.set(count.get() + u32::from(refuses));
            refuses
        });
        for wr_id in 0..3 {
            let half = LEN / 2;
            let at = wr_id * 1000;
            pair.a.post(wr(wr_id, read_op(2, at), sge(1, at, half)));
        }
        pair.run();
        assert!(repeated.get() > 10, "seed {seed}: much was lost");
        assert_eq!(refused.get(), 0, "seed {seed}");
        let done = (0..3).map(|wr_id| (wr_id, WcStatus::Success));
        assert!(pair.a.statuses().into_iter().eq(done), "seed {seed}");
        let end = 2000 + LEN / 2;
        assert_eq!(pair.a.memory.octets(1)[..end], content[..end]);
    }
}
