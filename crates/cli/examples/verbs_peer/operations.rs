//! Every operation, as its initiator and as its target.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use softverbs::{Access, Mr, Qpn, Rkey, SendOp, WcOpcode};

use crate::ends::{Lane, Test};
use crate::{BLANK, CHUNKS, GRH, Outcome, PATIENCE, Service, complete_well, expect, octet, to_gid};

const WRITABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    Pipe,
}

impl Op {
    pub(crate) fn of(service: Service) -> &'static [Self] {
        use Op::*;
        match service {
            Service::Rc => &[
                Send,
                SendImm,
                SendInv,
                Write,
                WriteImm,
                Read,
                CompareSwap,
                FetchAdd,
                Pipe,
            ],
            Service::Uc => &[Send, SendImm, Write, WriteImm, Pipe],
            Service::Ud => &[Send, SendImm, Pipe],
        }
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    pub(crate) fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInv)
    }
}

impl Test<'_> {
    pub(crate) fn operations(&mut self) -> Outcome<()> {
        let lane = self.connect(7)?;
        let (mut done, mut octets) = (0, 0);
        for &size in &self.args.sizes {
            for direction in 0..2 {
                for &op in Op::of(self.args.service) {
                    let size = match op {
                        Op::Pipe => size / CHUNKS * CHUNKS,
                        _ if op.is_atomic() => 8,
                        _ => size,
                    };
                    self.seed += 1;
                    if (direction == 0) == self.args.connect.is_some() {
                        self.initiator(&lane, op, size)?;
                    } else {
                        self.target(&lane, op, size)?;
                    }
                    done += 1;
                    octets += size;
                }
            }
        }
        writeln!(stdout().lock(), "operations: {done}, octets: {octets}")?;
        Ok(())
    }

    pub(crate) fn target(&mut self, lane: &Lane, op: Op, size: usize) -> Outcome<()> {
        let (head, name) = (self.head(), format!("{op:?}"));
        self.target.copy_in(0, &vec![BLANK; head + size + 8])?;
        let mut window = None;
        match op {
            Op::Read => self.target.copy_in(0, &self.data(size))?,
            Op::CompareSwap | Op::FetchAdd => {
                self.target.copy_in(0, &self.word(0).to_ne_bytes())?;
            }
            Op::SendInv => window = Some(self.pd.alloc_mr(size + 8, WRITABLE)?),
            Op::WriteImm => self.recv(lane, 0, 0)?,
            Op::Pipe => {
                for i in 0..CHUNKS {
                    self.recv(lane, (size / CHUNKS + head) * i, head + size / CHUNKS)?;
                }
            }
            Op::Send | Op::SendImm | Op::Write => {}
        }
        if op.is_send() {
            self.recv(lane, 0, head + size + 8)?;
        }
        let key = window.as_ref().map(Mr::rkey);
        self.barrier(key.map_or(0, Rkey::get))?;
        if op.is_send() || op == Op::WriteImm {
            let wc = complete_well(&lane.recv_cq, &name)?;
            let (opcode, imm) = match op {
                Op::WriteImm => (WcOpcode::RecvRdmaWithImm, true),
                _ => (WcOpcode::Recv, op == Op::SendImm),
            };
            let imm = imm.then_some(0xcafe_0000 + self.seed);
            let right = wc.opcode == opcode
                && wc.byte_len as usize == head + size
                && wc.imm == imm
                && wc.invalidated_rkey == key;
            expect(right, || format!("{name}: {wc:?}"))?;
            if head > 0 {
                let from = wc.src_qp.map(Qpn::get);
                expect(wc.grh && from == Some(lane.peer.qpn), || {
                    format!("{name}: {wc:?}")
                })?;
                let mut address = [0; 4];
                self.target.copy_out(GRH - 4, &mut address)?;
                let own = to_gid(self.args.bind).get();
                expect(own.ends_with(&address), || {
                    format!("{name}: another destination in the header: {address:?}")
                })?;
            }
            self.verify(&self.target, head, size, &name)?;
        }
        if op == Op::Pipe {
            for i in 0..CHUNKS {
                let (wc, chunk) = (complete_well(&lane.recv_cq, &name)?, size / CHUNKS);
                expect(wc.byte_len as usize == head + chunk, || {
                    format!("{name}: {wc:?}")
                })?;
                let mut got = vec![0; chunk];
                self.target.copy_out(chunk * i + (i + 1) * head, &mut got)?;
                let right = (0..chunk).all(|j| got[j] == octet(self.seed, chunk * i + j));
                expect(right, || format!("{name}: message {i} has other data"))?;
            }
        }
        self.barrier(0)?;
        let mut word = [0; 8];
        self.target.copy_out(0, &mut word)?;
        let word = u64::from_ne_bytes(word);
        match op {
            Op::Write => {
                // UC's initiator does not know when its message arrives, and the barrier may
                // overtake it.
                let end = Instant::now() + PATIENCE;
                while self.args.service == Service::Uc
                    && self.verify(&self.target, 0, size, &name).is_err()
                    && Instant::now() < end
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.verify(&self.target, 0, size, &name)
            }
            Op::CompareSwap => expect(word == self.word(1), || format!("{name}: {word:x}")),
            Op::FetchAdd => {
                let sum = self.word(0).wrapping_add(self.word(1).wrapping_mul(2));
                expect(word == sum, || format!("{name}: {word:x}, not {sum:x}"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn initiator(&mut self, lane: &Lane, op: Op, size: usize) -> Outcome<()> {
        let key = Rkey::new(self.barrier(0)?);
        if op == Op::Pipe {
            self.pipe(lane, size)?;
            self.barrier(0)?;
            return Ok(());
        }
        let name = format!("{op:?}");
        self.source.copy_in(0, &vec![BLANK; size + 8])?;
        if op != Op::Read {
            self.source.copy_in(0, &self.data(size))?;
        }
        let (remote_addr, rkey) = (lane.peer.addr, lane.peer.rkey);
        let imm = 0xcafe_0000 + self.seed;
        let (zero, one, two) = (self.word(0), self.word(1), self.word(2));
        let compare_swap = |swap| SendOp::CompareSwap {
            remote_addr,
            rkey,
            compare: zero,
            swap,
        };
        let add = SendOp::FetchAdd {
            remote_addr,
            rkey,
            add: one,
        };
        // With what an atomic operation returns. The second comparison fails: the word has changed.
        let (requests, opcode) = match op {
            Op::Send => (vec![(SendOp::Send, 0)], WcOpcode::Send),
            Op::SendImm => (vec![(SendOp::SendWithImm(imm), 0)], WcOpcode::Send),
            Op::SendInv => (vec![(SendOp::SendWithInvalidate(key), 0)], WcOpcode::Send),
            Op::Write => (
                vec![(SendOp::Write { remote_addr, rkey }, 0)],
                WcOpcode::RdmaWrite,
            ),
            Op::WriteImm => {
                let write = SendOp::WriteWithImm {
                    remote_addr,
                    rkey,
                    imm,
                };
                (vec![(write, 0)], WcOpcode::RdmaWrite)
            }
            Op::Read => (
                vec![(SendOp::Read { remote_addr, rkey }, 0)],
                WcOpcode::RdmaRead,
            ),
            Op::CompareSwap => {
                let requests = vec![(compare_swap(one), zero), (compare_swap(two), one)];
                (requests, WcOpcode::CompSwap)
            }
            Op::FetchAdd => (
                vec![(add, zero), (add, zero.wrapping_add(one))],
                WcOpcode::FetchAdd,
            ),
            Op::Pipe => unreachable!("has a function of its own"),
        };
        for (request, returned) in requests {
            self.post(lane, request, 0, size)?;
            let wc = complete_well(&lane.send_cq, &name)?;
            expect(wc.opcode == opcode, || format!("{name}: {wc:?}"))?;
            if op.is_atomic() {
                let mut got = [0; 8];
                self.source.copy_out(0, &mut got)?;
                let got = u64::from_ne_bytes(got);
                expect(got == returned, || {
                    format!("{name}: got {got:x}, not {returned:x}")
                })?;
            }
        }
        if op == Op::Read {
            self.verify(&self.source, 0, size, &name)?;
        }
        self.barrier(0)?;
        Ok(())
    }

    /// Sends in a row; over RC each is read back right behind it.
    pub(crate) fn pipe(&self, lane: &Lane, size: usize) -> Outcome<()> {
        let (chunk, reads) = (size / CHUNKS, self.args.service == Service::Rc);
        let (remote_addr, rkey) = (lane.peer.addr, lane.peer.rkey);
        self.source.copy_in(0, &self.data(size))?;
        for i in 0..CHUNKS {
            self.post(lane, SendOp::Send, chunk * i, chunk)?;
            if reads {
                let remote_addr = remote_addr + (chunk * i) as u64;
                let read = SendOp::Read { remote_addr, rkey };
                self.post(lane, read, size + chunk * i, chunk)?;
            }
        }
        for _ in 0..if reads { 2 * CHUNKS } else { CHUNKS } {
            complete_well(&lane.send_cq, "pipe")?;
        }
        let mut got = vec![0; size];
        self.source.copy_out(size, &mut got)?;
        expect(!reads || got == self.data(size), || {
            "pipe: read back other data".into()
        })
    }
}
