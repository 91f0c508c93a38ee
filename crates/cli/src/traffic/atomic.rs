//! Atomic operations: what is asked for, and what has become of it.

use softverbs::SendOp;

use super::endpoint::{Endpoint, Findings};
use super::lane::Lane;
use super::layout::WORD;
use crate::failure::Outcome;
use crate::plan::AtomicOp;

impl Endpoint {
    /// The operation with number `message`. Fetch-and-adds all work on the word of the first lane,
    /// so that the values that were there are the numbers from 0 on, each once. Compare-and-swaps
    /// count in the word of their own lane.
    pub(super) fn atomic(&self, lane: &Lane, index: u16, message: u64) -> SendOp {
        match self.workload.atomic {
            AtomicOp::FetchAdd => {
                let (remote_addr, rkey) = lane.remote(self.layout.atomic(0));
                SendOp::FetchAdd {
                    remote_addr,
                    rkey,
                    add: 1,
                }
            }
            AtomicOp::CompareSwap => {
                let (remote_addr, rkey) = lane.remote(self.layout.atomic(index));
                SendOp::CompareSwap {
                    remote_addr,
                    rkey,
                    compare: message,
                    swap: message + 1,
                }
            }
        }
    }

    /// What an atomic operation has brought back.
    pub(crate) fn old_value(&self, index: u16, message: u64) -> Outcome<u64> {
        let slot = self.slot(message);
        let mut word = [0; WORD];
        self.mr
            .copy_out(self.layout.incoming(index, slot), &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Compares the words that the peer's atomic operations have worked on with the numbers of
    /// operations that it says it sent; its Ends have come.
    pub(crate) fn verify_words(&self, findings: &mut Findings) -> Outcome<()> {
        let lanes = 0..self.workload.qps;
        let counts: Vec<u64> = lanes
            .map(|index| self.peer_count(index))
            .collect::<Outcome<_>>()?;
        let expected = match self.workload.atomic {
            AtomicOp::FetchAdd => vec![counts.iter().sum()],
            AtomicOp::CompareSwap => counts,
        };
        for (index, expected) in (0..).zip(expected) {
            let mut word = [0; WORD];
            self.mr.copy_out(self.layout.atomic(index), &mut word)?;
            let value = u64::from_ne_bytes(word);
            findings.verified += 1;
            if value != expected {
                findings
                    .blame(|| format!("word {index} holds {value} after {expected} operations"));
            }
        }
        Ok(())
    }
}
