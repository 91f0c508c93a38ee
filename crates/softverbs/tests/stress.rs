//! Threads that connect, send, poll, deregister and destroy at the same time.

mod common;

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{ALL, PATIENCE, Setup, equip, expect, listener, pair, resolved};
use softverbs::cm::{CmOption, EventChannel, EventKind};
use softverbs::{QpCap, RecvWr, SendData, SendFlags, SendOp, SendWr, Transport, Wc, WcStatus};

common::over_both! {
    a_storm_of_connections_leaves_nothing_behind,
    destroyed_while_another_thread_waits_for_its_events,
    memory_deregistered_under_running_traffic,
    many_threads_post_to_and_poll_one_connection,
    a_connection_that_nobody_polls_is_served_all_the_same,
}

/// The descriptor counts of one test must not see those of another one.
static ALONE: Mutex<()> = Mutex::new(());

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn a_storm_of_connections_leaves_nothing_behind(transport: Transport) {
    // field B26, B27: connect, send, close, from several threads, in every order.
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let setup = Setup {
        len: 4096,
        ..Setup::over(transport)
    };
    drop(pair(&setup));
    std::thread::sleep(Duration::from_millis(100));
    // A lane between this process and itself takes some, once.
    let before = open_descriptors() + 4;
    let (server_channel, listening, address) = listener(&setup);
    let stop = AtomicBool::new(false);
    let accepted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut servers = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let event = server_channel
                    .get_event(Some(Duration::from_millis(20)))
                    .unwrap();
                let Some(event) = event else { continue };
                match event.kind() {
                    EventKind::ConnectRequest => {
                        let n = accepted.fetch_add(1, Ordering::Relaxed);
                        let id = event.id().clone();
                        drop(event);
                        match n % 7 {
                            0 => drop(id),
                            1 => id.reject(b"no").unwrap(),
                            _ => {
                                let server = equip(&setup, server_channel.clone(), id);
                                server.recv(0, 0, 64);
                                // The client may have gone meanwhile.
                                if server.id.accept(&setup.param).is_ok() {
                                    server.send_inline(1, b"hello", SendFlags::empty());
                                    servers.push(server);
                                }
                            }
                        }
                        if servers.len() > 16 {
                            servers.drain(..8);
                        }
                    }
                    _ => drop(event),
                }
            }
        });
        let clients: Vec<_> = (0..4_u64)
            .map(|seed| {
                let setup = &setup;
                scope.spawn(move || {
                    for n in 0..150_u64 {
                        let (channel, id) = resolved(setup, address);
                        let client = equip(setup, channel, id);
                        client.recv(0, 0, 64);
                        client.id.connect(&setup.param).unwrap();
                        client.send_inline(1, b"hi", SendFlags::empty());
                        match (n + seed) % 5 {
                            0 => {}
                            1 => std::thread::sleep(Duration::from_micros(n * 7)),
                            _ => {
                                let event = common::next_event(&client.channel);
                                let end = matches!(
                                    event.kind(),
                                    EventKind::Established | EventKind::Rejected
                                );
                                assert!(end, "{event:?} {}", event.status());
                                if event.kind() == EventKind::Established && n % 2 == 0 {
                                    client.id.disconnect().unwrap();
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop((listening, server_channel));
    // Closed sockets linger until the other end has closed, too.
    let end = Instant::now() + PATIENCE;
    while open_descriptors() > before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(
        open_descriptors() <= before,
        "{} descriptors, {before} before",
        open_descriptors()
    );
}

fn destroyed_while_another_thread_waits_for_its_events(transport: Transport) {
    // field B102, B103
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let setup = Setup {
        len: 4096,
        ..Setup::over(transport)
    };
    for round in 0..30 {
        let (client, server) = pair(&setup);
        let channel: EventChannel = server.channel.clone();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut kinds = Vec::new();
                while let Some(event) = channel.get_event(Some(Duration::from_millis(30))).unwrap()
                {
                    // Holding the event keeps the destroyer waiting, and the identifier valid.
                    std::thread::sleep(Duration::from_micros(200));
                    assert!(event.id().peer_addr().is_some());
                    kinds.push(event.kind());
                }
                kinds
            });
            if round % 2 == 0 {
                client.id.disconnect().unwrap();
            }
            std::thread::sleep(Duration::from_micros(100 * round));
            server.id.destroy().unwrap();
            let kinds = waiter.join().unwrap();
            assert!(kinds.len() <= 1, "{kinds:?}");
        });
    }
}

fn memory_deregistered_under_running_traffic(transport: Transport) {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    for round in 0..40_u64 {
        let (client, server) = pair(&Setup::over(transport));
        let target = server.pd.alloc_mr(1 << 20, ALL).unwrap();
        let source = client.pd.alloc_mr(1 << 20, ALL).unwrap();
        let write = SendOp::Write {
            remote_addr: target.addr(),
            rkey: target.rkey(),
        };
        let sges = [source.sge(0, 1 << 20)];
        for n in 0..16 {
            client
                .qp
                .post_send(&SendWr::new(n, write, SendData::Sges(&sges)))
                .unwrap();
        }
        std::thread::sleep(Duration::from_micros(round * 40));
        if round % 2 == 0 {
            target.dereg().unwrap();
        } else {
            source.dereg().unwrap();
        }
        drop((target, source));
        // Success up to a point, then one error, then flushed; each exactly once and in order.
        let done = client.completions(16);
        assert!(done.iter().map(|wc| wc.wr_id).eq(0..16));
        let good = done.iter().take_while(|wc| wc.is_success()).count();
        let statuses: Vec<_> = done[good..].iter().map(|wc| wc.status).collect();
        assert!(
            statuses
                .iter()
                .skip(1)
                .all(|status| *status == WcStatus::WrFlushErr),
            "{statuses:?}"
        );
        if let Some(first) = statuses.first() {
            let wanted = [
                WcStatus::LocProtErr,
                WcStatus::WrFlushErr,
                WcStatus::RemAccessErr,
            ];
            assert!(wanted.contains(first), "{first:?}");
        }
    }
}

fn many_threads_post_to_and_poll_one_connection(transport: Transport) {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    const THREADS: u64 = 4;
    const EACH: u64 = 2000;
    let cap = QpCap {
        max_send_wr: 64,
        max_recv_wr: 16_384,
        ..QpCap::default()
    };
    let setup = Setup {
        cap,
        ..Setup::over(transport)
    };
    let (client, server) = pair(&setup);
    // A queue with room for all of it.
    for n in 0..THREADS * EACH {
        let offset = usize::try_from(n % 16_384).unwrap() * 64;
        let sges = [server.mr.sge(offset, 64)];
        server
            .qp
            .post_recv(&RecvWr {
                wr_id: n,
                sges: &sges,
            })
            .unwrap();
    }
    let sent = AtomicUsize::new(0);
    let seen = Mutex::new(HashSet::new());
    let total = usize::try_from(THREADS * EACH).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let client = &client;
            let sent = &sent;
            scope.spawn(move || {
                let mut room = [Wc::default(); 8];
                for n in 0..EACH {
                    let value = (thread * EACH + n).to_ne_bytes();
                    let wr = SendWr::new(n, SendOp::Send, SendData::Inline(&value));
                    while let Err(error) = client.qp.post_send(&wr) {
                        assert_eq!(error.errno(), 12, "{error}");
                        let found = client.cq.poll(&mut room).unwrap();
                        sent.fetch_add(found, Ordering::Relaxed);
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let end = Instant::now() + PATIENCE * 3;
                let mut room = [Wc::default(); 32];
                while seen.lock().unwrap().len() < total {
                    assert!(
                        Instant::now() < end,
                        "{} of {total}",
                        seen.lock().unwrap().len()
                    );
                    let found = server.cq.poll(&mut room).unwrap();
                    let mut seen = seen.lock().unwrap();
                    for wc in &room[..found] {
                        assert!(wc.is_success(), "{wc:?}");
                        let offset = usize::try_from(wc.wr_id % 16_384).unwrap() * 64;
                        let value = u64::from_ne_bytes(server.read(offset, 8).try_into().unwrap());
                        assert!(seen.insert(value), "{value} came twice");
                    }
                }
            });
        }
    });
    let rest = total - sent.load(Ordering::Relaxed);
    assert_eq!(client.completions(rest).len(), rest);
}

fn a_connection_that_nobody_polls_is_served_all_the_same(transport: Transport) {
    // While an application spins on one queue, others are targets of Writes and Reads.
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let setup = Setup::over(transport);
    let (busy_client, _busy_server) = pair(&setup);
    let (client, server) = pair(&setup);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut room = [Wc::default()];
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(busy_client.cq.poll(&mut room).unwrap(), 0);
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        let (remote_addr, rkey) = (server.mr.addr(), server.mr.rkey());
        for n in 0..200 {
            let data = client.fill(0, 5000, n);
            client.post(1, SendOp::Write { remote_addr, rkey }, 0, 5000);
            client.post(2, SendOp::Read { remote_addr, rkey }, 8192, 5000);
            assert!(client.completions(2).iter().all(Wc::is_success));
            assert_eq!(client.read(8192, 5000), data);
        }
        stop.store(true, Ordering::Relaxed);
    });
    client.id.disconnect().unwrap();
    expect(&server.channel, EventKind::Disconnected);
}

#[test]
fn memory_that_others_write_meanwhile_costs_no_connection() {
    // With CRC what is summed is what is on the wire: who writes to the source or the target of a
    // transfer meanwhile gets undefined contents, not a broken connection.
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let setup = Setup {
        client_options: vec![CmOption::Crc(true)],
        ..Setup::default()
    };
    let (client, server) = pair(&setup);
    let (remote_addr, rkey) = (server.mr.addr(), server.mr.rkey());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0_usize;
            while !stop.load(Ordering::Relaxed) {
                n += 8 * 997;
                let offset = n % ((1 << 20) - 8);
                server.mr.copy_in(offset, &n.to_ne_bytes()).unwrap();
                client.mr.copy_in(offset, &n.to_ne_bytes()).unwrap();
            }
        });
        for _ in 0..100 {
            client.post(1, SendOp::Write { remote_addr, rkey }, 0, 1 << 20);
            client.post(2, SendOp::Read { remote_addr, rkey }, 0, 1 << 20);
            let done = client.completions(2);
            if !done.iter().all(Wc::is_success) {
                stop.store(true, Ordering::Relaxed);
                panic!("{done:?}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
