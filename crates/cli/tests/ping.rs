//! `softverbs ping` against itself, and against the rping of rdma-core on the library of this tree.

mod common;

use std::time::Duration;

use common::{Running, softverbs, sv};

fn serve(options: &str) -> (Running, u16) {
    Running::serve(softverbs(&format!("ping --server -p 0 {options}")))
}

#[test]
fn sizes_on_both_address_families() {
    for size in [
        1, 2, 12, 13, 14, 25, 26, 64, 1459, 4096, 4097, 65_535, 65_536,
    ] {
        for address in ["127.0.0.1", "::1"] {
            let (server, port) = serve("-v");
            let out = sv(&format!("ping {address} -p {port} -C 5 -S {size} -V")).ok();
            assert!(out.contains(&format!("5 pings of {size} bytes")), "{out}");
            assert!(out.contains("verified"), "{out}");
            let seen = server.finish().ok();
            assert_eq!(seen.lines().count(), 5, "{seen}");
            assert!(
                seen.lines()
                    .all(|line| line.starts_with("server ping data: ")),
                "{seen}"
            );
        }
    }
}

#[test]
fn data_and_letters_of_rping() {
    let (server, port) = Running::serve(softverbs("ping -s -a 127.0.0.1 -p 0 -v"));
    let line = format!("ping -c -a 127.0.0.1 -I 127.0.0.1 -p {port} -C 3 -S 30 -V -v");
    let out = sv(&line).ok();
    let expect = [
        "ping data: rdma-ping-0: ABCDEFGHIJKLMNOP",
        "ping data: rdma-ping-1: BCDEFGHIJKLMNOPQ",
        "ping data: rdma-ping-2: CDEFGHIJKLMNOPQR",
    ];
    assert_eq!(out.lines().take(3).collect::<Vec<_>>(), expect);
    let seen = server.finish().ok();
    let expect = expect.map(|line| format!("server {line}"));
    assert_eq!(seen.lines().collect::<Vec<_>>(), expect);
}

#[test]
fn steps_are_shown_on_demand() {
    let (server, port) = serve("-d");
    let client = sv(&format!("ping ::1 -p {port} -C 1 -d"));
    assert!(client.err.contains("source announced"), "{client:?}");
    client.ok();
    let server = server.finish();
    assert!(server.err.contains("source read"), "{server:?}");
}

#[test]
fn many_pings() {
    let (server, port) = serve("");
    let out = sv(&format!("ping 127.0.0.1 -p {port} -C 2000 -V")).ok();
    assert!(out.contains("2000 pings"), "{out}");
    server.finish().ok();
}

#[test]
fn a_persistent_server_has_many_clients_at_once() {
    let (server, port) = serve("-P");
    let clients: Vec<Running> = (0..5)
        .map(|_| Running::start(softverbs(&format!("ping ::1 -p {port} -C 100 -V"))))
        .collect();
    for client in clients {
        client.finish().ok();
    }
    sv(&format!("ping ::1 -p {port} -C 1")).ok();
    server.signal("INT");
    server.finish().ok();
}

#[test]
fn without_a_count_ctrl_c_is_the_end() {
    let (server, port) = serve("");
    let client = Running::start(softverbs(&format!("ping ::1 -p {port}")));
    std::thread::sleep(Duration::from_millis(500));
    client.signal("INT");
    let out = client.finish().ok();
    assert!(out.contains("pings of 64 bytes"), "{out}");
    server.finish().ok();
}

#[test]
fn nobody_there() {
    sv("ping 127.0.0.1 -p 1 -C 1").failed("refused");
    sv("ping no.such.host.invalid -C 1").failed("no such host");
}

#[test]
fn a_server_that_is_killed() {
    for address in ["127.0.0.1", "::1"] {
        let (server, port) = serve("");
        let client = Running::start(softverbs(&format!("ping {address} -p {port}")));
        std::thread::sleep(Duration::from_millis(300));
        server.signal("KILL");
        let client = client.finish();
        assert!(client.took < Duration::from_secs(30));
        client.failed("disconnected in the middle");
        drop(server);
    }
}

#[test]
fn somebody_who_speaks_something_else() {
    let (server, port) = Running::serve(softverbs("bw --server -p 0"));
    sv(&format!("ping 127.0.0.1 -p {port} -C 1")).failed("refused by the peer");
    drop(server);
    let (server, port) = serve("");
    sv(&format!("bw 127.0.0.1 -p {port}")).failed("does not speak");
    server.finish().ok();
}

/// rdma-core's program, on the library of this tree.
fn rping(transport: &str, options: &str) -> std::process::Command {
    softverbs(&format!("run --transport {transport} -- rping {options}"))
}

#[test]
fn the_client_of_rdma_core() {
    for transport in ["iwarp", "roce"] {
        for address in ["127.0.0.1", "::1"] {
            let (server, port) = serve(&format!("--transport {transport} -v"));
            let client = format!("-c -a {address} -p {port} -C 3 -S 30 -V -v");
            let out = common::run(rping(transport, &client)).ok();
            assert!(
                out.contains("ping data: rdma-ping-2: CDEFGHIJKLMNOPQR"),
                "{out}"
            );
            let seen = server.finish().ok();
            assert!(
                seen.contains("server ping data: rdma-ping-2: CDEFGHIJKLMNOPQR"),
                "{seen}"
            );
        }
    }
}

#[test]
fn the_server_of_rdma_core() {
    for transport in ["iwarp", "roce"] {
        for address in ["127.0.0.1", "::1"] {
            let free = std::net::TcpListener::bind((address, 0)).unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let options = format!("-s -a {address} -p {port} -C 3 -S 30 -V -v");
            let server = Running::start(rping(transport, &options));
            let line = format!("ping {address} --transport {transport} -p {port} -C 3 -S 30 -V");
            // It does not say when it listens; until then we are refused.
            let end = std::time::Instant::now() + Duration::from_secs(30);
            let mut client = sv(&line);
            while client.code != Some(0) && std::time::Instant::now() < end {
                std::thread::sleep(Duration::from_millis(50));
                client = sv(&line);
            }
            let out = client.ok();
            assert!(out.contains("3 pings of 30 bytes"), "{out}");
            let seen = server.finish().ok();
            assert!(
                seen.contains("server ping data: rdma-ping-2: CDEFGHIJKLMNOPQR"),
                "{seen}"
            );
        }
    }
}
