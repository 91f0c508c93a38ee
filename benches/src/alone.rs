//! Both ends on one thread, which polls them in turn: what a message costs in processor time, of
//! that thread and of the library's own. No thread waits for another one, so that the figures depend
//! little on what else the machine does.

use std::io::Write;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use softverbs::Transport;

use crate::stats::median;
use crate::udp::Style;
use crate::{Args, Outcome, ours, raw, udp};

/// Processor time of this thread, and of all threads.
fn cpu_times() -> Outcome<[Duration; 2]> {
    let mine = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    let all = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok([mine.into(), all.into()])
}

/// Microseconds of processor time for each of some messages, round by round.
#[derive(Default)]
struct Costs {
    mine: Vec<f64>,
    others: Vec<f64>,
}

impl Costs {
    fn add(&mut self, count: usize, work: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
        let before = cpu_times()?;
        work()?;
        let after = cpu_times()?;
        let [mine, all] = [0, 1].map(|n| (after[n] - before[n]).as_secs_f64() * 1e6);
        self.mine.push(mine / count as f64);
        self.others.push((all - mine) / count as f64);
        Ok(())
    }

    /// The medians of both.
    fn typical(self) -> [f64; 2] {
        [median(self.mine), median(self.others)]
    }
}

/// Raw work of some messages, or of some MiB.
type Raw = fn(usize) -> Outcome<()>;

/// Prints the processor time of messages and of writes over a transport, beside that of the raw
/// protocol below it.
pub(crate) fn compare(args: &Args, out: &mut impl Write, transport: Transport) -> Outcome<()> {
    let (mib, iterations, rounds) = (args.mib, args.iterations, args.rounds);
    let (protocol, raw_ping, raw_stream): (_, Raw, Raw) = match transport {
        Transport::Iwarp => ("TCP", raw::ping_alone, raw::stream_alone),
        Transport::Roce => (
            "UDP",
            |iterations| udp::ping_alone(iterations, Style::Connected),
            udp::stream_alone,
        ),
    };
    let messages = 2 * iterations;
    let mut sends: [Costs; 2] = Default::default();
    let mut writes: [Costs; 2] = Default::default();
    for _ in 0..rounds {
        sends[0].add(messages, || raw_ping(iterations))?;
        sends[1].add(messages, || ours::ping_alone(transport, iterations))?;
        writes[0].add(mib, || raw_stream(mib))?;
        writes[1].add(mib, || ours::write_alone(transport, mib))?;
    }
    writeln!(
        out,
        "processor time of both ends over {transport}, us (median of {rounds} rounds):"
    )?;
    for (what, figures) in [("8-octet Send", sends), ("1 MiB Write ", writes)] {
        let [[raw, _], [ours, library]] = figures.map(Costs::typical);
        let ratio = ours / raw;
        writeln!(
            out,
            "  {what}   raw {protocol} {raw:8.2}   Softverbs {ours:8.2} + {library:.2} of the \
             library's thread   ratio {ratio:.2}"
        )?;
    }
    Ok(())
}
