//! How fast it is; to be run by hand, with optimisation:
//! `cargo test --release -p softverbs --lib port::tests::speed -- --ignored --nocapture`.
#![allow(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "tells a person"
)]

use std::sync::atomic::AtomicUsize;

use super::*;

/// Counts, and answers if it is told where.
#[derive(Default)]
struct Counter {
    packets: AtomicUsize,
    octets: AtomicUsize,
}

impl PacketSink for Counter {
    fn packet(&self, _: Time, packet: &Packet<'_>, _: &PacketMeta, _: &ReceivedFrom) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.octets
            .fetch_add(packet.payload.len(), Ordering::Relaxed);
    }

    fn burst_end(&self) {}
}

fn counting(port: &Port) -> (Qpn, Arc<Counter>) {
    let counter = Arc::new(Counter::default());
    let qpn = port.alloc_qpn().unwrap();
    let sink: Weak<Counter> = Arc::downgrade(&counter);
    port.register(qpn, sink);
    (qpn, counter)
}

/// What this thread has used of a processor: on a busy machine the better measure.
fn cpu_time() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap())
}

#[test]
#[ignore = "a measurement"]
fn throughput() {
    for (address, offload, len) in [
        (V4, true, 4096),
        (V4, true, 1024),
        (V4, false, 4096),
        (V4, false, 1024),
        (V6, true, 4096),
    ] {
        let folder = TempFolder::new();
        let public = free_port();
        let one = Port::new_for_test(folder.path(), public).unwrap();
        let other = Port::new_for_test(folder.path(), public).unwrap();
        let (qpn, counter) = counting(other);
        for sock in one.socks.iter().filter_map(OnceLock::get) {
            sock.gso.store(offload, Ordering::Relaxed);
        }
        let path = SendPath::new(address, address, qpn);
        let packets = Octets((0..256).map(|psn| packet(qpn, psn, len)).collect());
        let start = Instant::now();
        let mut receiving = Duration::ZERO;
        let (sent, sending) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut sent = 0;
                let mut busy = Duration::ZERO;
                while start.elapsed() < Duration::from_secs(1) {
                    // A window, as a reliable queue pair has it.
                    if sent < counter.packets.load(Ordering::Relaxed) + 1024 {
                        let before = cpu_time();
                        one.send_packets(&packets, &path);
                        busy += cpu_time() - before;
                        sent += packets.0.len();
                    } else {
                        std::thread::yield_now();
                    }
                }
                (sent, busy)
            });
            while start.elapsed() < Duration::from_secs(1) {
                other.engine.note_poll();
                let before = cpu_time();
                if other.poll(other.engine) > 0 {
                    receiving += cpu_time() - before;
                } else {
                    std::thread::yield_now();
                }
            }
            sender.join().unwrap()
        });
        let got = counter.packets.load(Ordering::Relaxed);
        let rate = counter.octets.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        println!(
            "{address} offload {offload} {len}: {:.2} GB/s, {got} of {sent} packets; \
             CPU for one: {:.0} ns to send, {:.0} ns to receive",
            rate / 1e9,
            sending.as_nanos() as f64 / sent as f64,
            receiving.as_nanos() as f64 / got as f64,
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn round_trips() {
    for address in [V4, V6] {
        let folder = TempFolder::new();
        let public = free_port();
        let one = Port::new_for_test(folder.path(), public).unwrap();
        let other = Port::new_for_test(folder.path(), public).unwrap();
        let (there, at_other) = counting(other);
        let (here, at_one) = counting(one);
        let path = SendPath::new(address, address, there);
        let back = SendPath::new(address, address, here);
        let ping = Octets(vec![packet(there, 0, 8)]);
        let pong = Octets(vec![packet(here, 0, 8)]);
        const ROUNDS: usize = 20_000;
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while at_other.packets.load(Ordering::Relaxed) < round {
                        other.engine.note_poll();
                        other.poll(other.engine);
                    }
                    other.send_packets(&pong, &back);
                }
            });
            for round in 1..=ROUNDS {
                one.send_packets(&ping, &path);
                while at_one.packets.load(Ordering::Relaxed) < round {
                    one.engine.note_poll();
                    one.poll(one.engine);
                }
            }
        });
        let half = start.elapsed().as_secs_f64() / ROUNDS as f64 / 2.0;
        println!("{address}: half a round trip {:.2} µs", half * 1e6);
    }
}

/// What putting packets together costs, beside the ICRC alone.
#[test]
#[ignore = "a measurement"]
fn gathering() {
    let ends = send::Ends::new((V4, 1000), (V4, 4791)).unwrap();
    for (what, count) in [("in the cache", 15), ("in memory", 30_000)] {
        let packets = Octets(
            (0..count)
                .map(|psn| packet(Qpn::new(9), psn, 4096))
                .collect(),
        );
        let mut buffer = Buffer::new();
        let (mut done, mut sum) = (0, 0);
        let before = cpu_time();
        while done < 30_000 {
            let first = done % packets.0.len();
            let (gathered, _) = send::gather(&packets, first, true, &ends, &mut buffer);
            done += gathered.packets;
            sum += usize::from(buffer.filled()[0]);
        }
        let together = cpu_time() - before;
        let before = cpu_time();
        for index in 0..30_000 {
            let octets = &packets.0[index % packets.0.len()];
            sum += usize::from(ends.icrc(0, octets).unwrap().finish()[0]);
        }
        let icrc = cpu_time() - before;
        println!("{what}: {together:?} together, {icrc:?} ICRC alone, for 30000 of 4096 ({sum})");
    }
}
