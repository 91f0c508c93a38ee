//! The command over RoCE, with real processes: what depends on the transport.

mod common;

use std::time::Duration;

use common::{Running, pair, rows, softverbs, sv};

#[test]
fn every_verb_on_both_address_families() {
    for metric in ["bw", "lat"] {
        for verb in ["write", "read", "send"] {
            for address in ["127.0.0.1", "::1"] {
                let line = format!("{verb} -s 4K -n 200 --check --transport roce");
                let (out, _) = pair(metric, "--transport roce", &line, address);
                assert_eq!(rows(&out)[0][..2], [4096.0, 200.0]);
            }
        }
    }
}

#[test]
fn both_ends_all_sizes_on_several_queue_pairs() {
    let rows = rows(&sv("bw send -a -n 3 -q 2 -b --check --transport roce").ok());
    assert_eq!(rows.len(), 23);
    assert!(rows.iter().all(|row| row[1] == 6.0));
}

#[test]
fn exchange_over_tcp() {
    let rows = rows(&sv("bw write -n 100 --tcp-exchange --transport roce").ok());
    assert_eq!(rows[0][..2], [65_536.0, 100.0]);
}

#[test]
fn pings() {
    for size in [1, 64, 4096, 65_536] {
        let (server, port) = Running::serve(softverbs("ping --server -p 0 --transport roce"));
        let line = format!("ping 127.0.0.1 -p {port} -C 20 -S {size} -V --transport roce");
        let out = sv(&line).ok();
        assert!(out.contains(&format!("20 pings of {size} bytes")), "{out}");
        server.finish().ok();
    }
}

#[test]
fn the_device_tells_the_transport() {
    let rows = rows(&sv("bw write -n 50 -d roce_lo").ok());
    assert_eq!(rows[0][1], 50.0);
}

#[test]
fn a_server_of_the_other_transport_is_not_found() {
    let (server, port) = Running::serve(softverbs("bw --server -p 0 --bind 127.0.0.1"));
    let line = format!("bw -n 5 127.0.0.1 -p {port} --transport roce");
    sv(&line).failed("no server listens there");
    sv(&format!("bw -n 5 127.0.0.1 -p {port}")).ok();
    server.finish().ok();
}

#[test]
fn a_port_is_taken_in_every_family() {
    let (server, port) = Running::serve(softverbs("bw --server -p 0 --transport roce"));
    sv(&format!("bw --server -p {port} --transport roce")).failed("in use");
    server.signal("INT");
    std::thread::sleep(Duration::from_millis(100));
    drop(server);
}

#[test]
fn options_of_iwarp() {
    for option in ["--crc", "-m 1000"] {
        let ended = sv(&format!("bw --transport roce {option}"));
        assert_eq!(ended.code, Some(2), "{ended:?}");
    }
}
