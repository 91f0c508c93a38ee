//! Both ends on one thread, which polls them in turn: what a message costs in processor time, that
//! of the library's own thread included. No thread waits for another one, so that the figures
//! depend little on what else the machine does.

use std::io::Write;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use softverbs::Transport;

use crate::stats::median;
use crate::{Args, Outcome, ours, raw, udp};

fn cpu_time() -> Outcome<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// Microseconds of processor time for each of `count`.
fn cost(count: usize, work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let before = cpu_time()?;
    work()?;
    Ok((cpu_time()? - before).as_secs_f64() * 1e6 / count as f64)
}

/// Prints the processor time of messages and of writes over a transport, beside that of the raw
/// protocol below it.
pub(crate) fn compare(args: &Args, out: &mut impl Write, transport: Transport) -> Outcome<()> {
    let (mib, iterations, rounds) = (args.mib, args.iterations, args.rounds);
    let (protocol, raw_ping, raw_stream): (_, fn(usize) -> _, fn(usize) -> _) = match transport {
        Transport::Iwarp => ("TCP", raw::ping_alone, raw::stream_alone),
        Transport::Roce => ("UDP", udp::ping_alone, udp::stream_alone),
    };
    let messages = 2 * iterations;
    let mut sends = [Vec::new(), Vec::new()];
    let mut writes = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        sends[0].push(cost(messages, || raw_ping(iterations))?);
        sends[1].push(cost(messages, || ours::ping_alone(transport, iterations))?);
        writes[0].push(cost(mib, || raw_stream(mib))?);
        writes[1].push(cost(mib, || ours::write_alone(transport, mib))?);
    }
    writeln!(
        out,
        "processor time of both ends over {transport}, us (median of {rounds} rounds):"
    )?;
    for (what, figures) in [("8-octet Send", sends), ("1 MiB Write ", writes)] {
        let [raw, ours] = figures.map(median);
        let ratio = ours / raw;
        writeln!(
            out,
            "  {what}   raw {protocol} {raw:8.2}   Softverbs {ours:8.2}   ratio {ratio:.2}"
        )?;
    }
    Ok(())
}
