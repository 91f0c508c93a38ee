//! rdma-core's ping-pong programs, as the distribution has them. They exchange addresses by
//! themselves, which iWARP has no use for.

mod common;

use common::pair::succeed;
use common::{Started, finished, with_softverbs};

/// Every run checks what it received where the program can (`-c`).
fn ping_pong(program: &str, variants: &[&str]) {
    for variant in variants {
        let [server, client] = succeed(program, &format!("-d roce_lo -g 0 -n 200 {variant}"));
        for told in [server, client] {
            assert!(told.contains("200 iters in"), "{program} {variant}: {told}");
        }
    }
}

#[test]
fn reliable_connections() {
    // Events; time stamps and with them the extended queue; the extended queue pair; large messages.
    ping_pong(
        "ibv_rc_pingpong",
        &[
            "-c",
            "-c -e",
            "-c -t",
            "-c -N",
            "-c -t -N",
            "-c -s 1000000 -m 4096",
        ],
    );
}

#[test]
fn unreliable_connections() {
    ping_pong("ibv_uc_pingpong", &["-c", "-c -e"]);
}

#[test]
fn datagrams() {
    ping_pong("ibv_ud_pingpong", &["-c", "-c -e"]);
}

#[test]
fn shared_receive_queues() {
    ping_pong("ibv_srq_pingpong", &["-c", "-c -e -q 4"]);
}

#[test]
fn extended_reliable_connections() {
    for events in ["", "-e"] {
        succeed(
            "ibv_xsrq_pingpong",
            &format!("-d roce_lo -g 0 -n 50 {events}"),
        );
    }
}

#[test]
fn without_a_gid_there_is_no_way_over_roce() {
    let output = finished(with_softverbs("ibv_rc_pingpong").args(["-d", "no_such_device"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("IB device no_such_device not found"));
}

#[test]
fn asynchronous_events_are_waited_for() {
    let mut watch = with_softverbs("ibv_asyncwatch");
    watch
        .stdout(std::process::Stdio::null())
        .args(["-d", "roce_lo"]);
    let mut watch = Started::start(&mut watch);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let ended = watch.has_ended();
    assert!(!ended, "there are no events, so that it waits for one");
}
