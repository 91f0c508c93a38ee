//! What fails: requests that the target refuses, and a peer that dies.

use std::io::{Write, stdout};

use softverbs::{Rkey, SendOp, Wc, WcStatus};

use crate::ends::{Lane, Test};
use crate::{BLANK, LARGEST, Outcome, PATIENCE, complete, expect};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    BadKey,
    OutOfBounds,
    NoPermission,
    ReadBadKey,
    AtomicMisaligned,
    TooLong,
    NoReceive,
}

impl Fault {
    pub(crate) const ALL: [Self; 7] = [
        Self::BadKey,
        Self::OutOfBounds,
        Self::NoPermission,
        Self::ReadBadKey,
        Self::AtomicMisaligned,
        Self::TooLong,
        Self::NoReceive,
    ];

    /// What it must end in, at the initiator. rxe finds a message too long only while it copies,
    /// and calls that an error of its own.
    pub(crate) fn ends(self) -> &'static [WcStatus] {
        match self {
            Self::BadKey | Self::OutOfBounds | Self::NoPermission | Self::ReadBadKey => {
                &[WcStatus::RemAccessErr]
            }
            Self::AtomicMisaligned => &[WcStatus::RemInvReqErr],
            Self::TooLong => &[WcStatus::RemInvReqErr, WcStatus::RemOpErr],
            Self::NoReceive => &[WcStatus::RnrRetryExcErr],
        }
    }
}

impl Test<'_> {
    pub(crate) fn fault(&mut self, fault: Fault, initiator: bool) -> Outcome<()> {
        self.seed += 1;
        let lane = self.connect(2)?;
        if !initiator {
            self.target.copy_in(0, &vec![BLANK; LARGEST])?;
            if fault == Fault::TooLong {
                self.recv(&lane, 0, 2000)?;
            }
        }
        self.barrier(0)?;
        if initiator {
            self.provoke(&lane, fault)?;
        }
        self.barrier(0)?;
        if !initiator {
            if fault == Fault::TooLong {
                let wc = complete(&lane.recv_cq)?;
                let right = wc.status == WcStatus::LocLenErr;
                expect(right, || format!("{fault:?}: ended as {:?}", wc.status))?;
            } else if fault != Fault::OutOfBounds {
                let mut got = vec![0; LARGEST];
                self.target.copy_out(0, &mut got)?;
                let untouched = got.iter().all(|&octet| octet == BLANK);
                expect(untouched, || format!("{fault:?}: wrote all the same"))?;
            }
            // What is still posted is flushed, if the queue pair has failed.
            let mut wc = [Wc::default()];
            let none = lane.recv_cq.poll(&mut wc)? == 0;
            expect(none, || {
                format!("{fault:?}: a completion too many: {:?}", wc[0])
            })?;
        }
        self.barrier(0)?;
        let role = if initiator { "initiator" } else { "target" };
        writeln!(stdout().lock(), "{fault:?}, as {role}: ok")?;
        Ok(())
    }

    pub(crate) fn provoke(&self, lane: &Lane, fault: Fault) -> Outcome<()> {
        let mut remote_addr = lane.peer.addr;
        let mut rkey = lane.peer.rkey;
        let op = match fault {
            Fault::BadKey | Fault::ReadBadKey => {
                rkey = Rkey::new(rkey.get() ^ 0x55);
                match fault {
                    Fault::BadKey => SendOp::Write { remote_addr, rkey },
                    _ => SendOp::Read { remote_addr, rkey },
                }
            }
            Fault::OutOfBounds => {
                remote_addr += LARGEST as u64 - 100;
                SendOp::Write { remote_addr, rkey }
            }
            Fault::NoPermission => {
                rkey = lane.peer.read_only;
                SendOp::Write { remote_addr, rkey }
            }
            Fault::AtomicMisaligned => {
                remote_addr += 4;
                SendOp::FetchAdd {
                    remote_addr,
                    rkey,
                    add: 1,
                }
            }
            Fault::TooLong | Fault::NoReceive => SendOp::Send,
        };
        let atomic = fault == Fault::AtomicMisaligned;
        self.post(lane, op, 0, if atomic { 8 } else { 5000 })?;
        // Another one behind it is flushed.
        self.post(lane, SendOp::Send, 0, 10)?;
        for wanted in [fault.ends(), &[WcStatus::WrFlushErr]] {
            let status = complete(&lane.send_cq)?.status;
            expect(wanted.contains(&status), || {
                format!("{fault:?}: {status:?}, not {wanted:?}")
            })?;
        }
        Ok(())
    }

    /// Writes until that fails and says how, or waits to be killed.
    pub(crate) fn writes(&mut self, write: bool) -> Outcome<()> {
        let lane = self.connect(7)?;
        writeln!(stdout().lock(), "connected")?;
        if !write {
            loop {
                std::thread::sleep(PATIENCE);
            }
        }
        let (remote_addr, rkey) = (lane.peer.addr, lane.peer.rkey);
        let op = SendOp::Write { remote_addr, rkey };
        for _ in 0..16 {
            self.post(&lane, op, 0, 65536)?;
        }
        for done in 0.. {
            let wc = complete(&lane.send_cq)?;
            if !wc.is_success() {
                writeln!(stdout().lock(), "after {done} writes: {:?}", wc.status)?;
                break;
            }
            if done == 32 {
                writeln!(stdout().lock(), "writing")?;
            }
            self.post(&lane, op, 0, 65536)?;
        }
        Ok(())
    }
}
