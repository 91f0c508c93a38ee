//! Peers that break the rules, on real sockets and real memory: regions lie between pages that
//! nobody may touch. What exactly a peer is told is tested in `crates/proto/tests`
//! (`hostile.rs`, `roce_hostile.rs`); here, that nothing outside a region is read or written, that
//! what peers may not write stays as it was, and that other connections do not notice.
//!
//! `SOFTVERBS_SEEDS` sets the number of attackers, 60 for each transport unless set.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/guarded.rs"]
mod guarded;
mod iwarp;
mod roce;

use std::time::{Duration, Instant};

use common::{ALL, End, PATIENCE, Setup, pair};
use guarded::Guarded;
use softverbs::{Access, Pd, SendFlags, Transport};

/// Of each region; no multiple of anything.
const LEN: usize = 2999;

fn seeds() -> u32 {
    std::env::var("SOFTVERBS_SEEDS").map_or(60, |text| text.parse().expect("a number"))
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from((self.next() >> 16) % end as u64).unwrap()
    }

    fn word(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).unwrap()
    }

    /// An address in, at the edge of, or far from a region, for an access of `len` octets.
    fn address(&mut self, of: &Guarded, len: usize) -> u64 {
        let (start, end) = (of.mr.addr(), of.mr.addr() + LEN as u64);
        let little = self.next() % 18;
        match self.below(24) {
            0 => self.next(),
            1 => u64::MAX - self.next() % 600,
            2 => start.wrapping_sub(self.next() % 4200),
            3 => end + self.next() % 4200,
            4..7 => start - little,
            // The last octets are beyond the end, by a few.
            7..12 => end - len as u64 + little,
            _ => start + self.next() % (LEN.saturating_sub(len) as u64 + 1),
        }
    }

    fn len(&mut self) -> usize {
        match self.below(8) {
            0 => 0,
            1 => 1 + self.below(8),
            2 => LEN,
            3 => self.below(1500),
            _ => self.below(100),
        }
    }
}

/// What peers find: all of it is theirs, readable only, not theirs, of another domain.
struct Regions {
    open: Guarded,
    readable: Guarded,
    private: Guarded,
    foreign: Guarded,
}

impl Regions {
    fn new(pd: &Pd, other: &Pd, random: &mut Random) -> Self {
        let mut at_end = || random.below(2) == 0;
        Self {
            open: Guarded::new(pd, LEN, at_end(), ALL),
            readable: Guarded::new(pd, LEN, at_end(), Access::REMOTE_READ),
            private: Guarded::new(pd, LEN, at_end(), Access::LOCAL_WRITE),
            foreign: Guarded::new(other, LEN, at_end(), ALL),
        }
    }

    fn any(&self, random: &mut Random) -> &Guarded {
        match random.below(12) {
            0 => &self.readable,
            1 => &self.private,
            2 => &self.foreign,
            _ => &self.open,
        }
    }

    /// A region's key, or nobody's.
    fn key(&self, random: &mut Random, of: &Guarded) -> u32 {
        match random.below(20) {
            0 => random.word(),
            1 => of.mr.rkey().get() ^ 1 << random.below(32),
            _ => of.mr.rkey().get(),
        }
    }

    fn check(&self, seed: u64) {
        for (name, region) in [
            ("open", &self.open),
            ("readable", &self.readable),
            ("private", &self.private),
            ("foreign", &self.foreign),
        ] {
            assert!(region.is_intact_outside(), "{seed}: beside {name}");
        }
        assert!(self.readable.is_zero(), "{seed}: readable");
        assert!(self.private.is_zero(), "{seed}: private");
        assert!(self.foreign.is_zero(), "{seed}: foreign");
    }
}

/// A connection of others, which goes on.
struct Bystander(End, End);

impl Bystander {
    fn new(transport: Transport) -> Self {
        let (client, server) = pair(&Setup::over(transport));
        Self(client, server)
    }

    fn lives(&self, round: u64) {
        let data = round.to_be_bytes();
        self.1.recv(round, 0, 64);
        self.0.send_inline(round, &data, SendFlags::SIGNALED);
        self.0.success();
        self.1.success();
        assert_eq!(self.1.read(0, 8), data);
    }
}

/// Whether `what` is so before PATIENCE is over.
fn soon(mut what: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while !what() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    true
}
