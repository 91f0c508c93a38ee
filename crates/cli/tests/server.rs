//! What a server does beyond one measurement: several clients, telling its port, insisting.

mod common;

use std::time::{Duration, Instant};

use common::{Running, rows, softverbs, sv};

#[test]
fn a_persistent_server_serves_one_client_after_the_other() {
    for exchange in ["", "--tcp-exchange"] {
        for name in ["--persistent", "--serve-forever"] {
            let (server, port) =
                Running::serve(softverbs(&format!("bw --server -p 0 {name} {exchange}")));
            for line in [
                "bw -n 10",
                "bw send -q 3 -n 10",
                "bw read -b -n 5 --check",
                "bw -a -n 2",
            ] {
                sv(&format!("{line} 127.0.0.1 -p {port} {exchange}")).ok();
            }
            // A client that it does not like, and one that dies, do not end it.
            sv(&format!("lat 127.0.0.1 -p {port} {exchange}")).failed("measures bw");
            let client = Running::start(softverbs(&format!(
                "bw -D 60 127.0.0.1 -p {port} {exchange}"
            )));
            std::thread::sleep(Duration::from_millis(300));
            client.signal("KILL");
            drop(client);
            sv(&format!("bw -n 10 ::1 -p {port} {exchange}")).ok();
            server.signal("INT");
            let ended = server.finish();
            assert_eq!(ended.err.matches("served").count(), 5, "{ended:#?}");
            ended.ok();
        }
    }
}

#[test]
fn a_busy_server_turns_others_away() {
    let (server, port) = Running::serve(softverbs("bw --server -p 0"));
    let first = Running::start(softverbs(&format!("bw -D 2 127.0.0.1 -p {port}")));
    std::thread::sleep(Duration::from_millis(500));
    // It waits until the server is done, which then is gone.
    let second = sv(&format!("bw -n 10 127.0.0.1 -p {port}"));
    assert_eq!(second.code, Some(1), "{second:?}");
    first.finish().ok();
    server.finish().ok();
}

#[test]
fn the_port_in_a_file() {
    for (index, line) in [
        "bw --server",
        "lat --server",
        "bw --server --tcp-exchange",
        "ping -s",
    ]
    .iter()
    .enumerate()
    {
        let file = std::env::temp_dir().join(format!("sv-port-{}-{index}", std::process::id()));
        let command = softverbs(&format!("{line} -p 0 --port-file {}", file.display()));
        let (server, port) = Running::serve(command);
        // The line on stderr comes first.
        let deadline = Instant::now() + common::LIMIT;
        while !file.exists() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{port}\n"));
        std::fs::remove_file(&file).unwrap();
        drop(server);
    }
}

#[test]
fn demands_that_are_met() {
    let options = "-s 4K -n 20 -q 2 -t 16 -Q 4 -I 32 -m 1000 -b --check --crc";
    let (server, port) = Running::serve(softverbs(&format!("bw --server send -p 0 {options}")));
    let out = sv(&format!("bw send {options} ::1 -p {port}")).ok();
    assert_eq!(rows(&out)[0][..2], [4096.0, 40.0]);
    server.finish().ok();
}
