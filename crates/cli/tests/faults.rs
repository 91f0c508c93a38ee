//! `--fault` and `SOFTVERBS_FAULT`: the recipes of docs/faults.md, with real processes.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{Ended, Running, run, softverbs, sv};

fn env(mut command: Command, spec: &str) -> Command {
    command.env("SOFTVERBS_FAULT", spec);
    command
}

/// Ten pings over RoCE; the ends of client and server.
fn pings(server: Command, client: &str, address: &str) -> (Ended, Ended) {
    let (server, port) = Running::serve(server);
    let line = format!("ping {address} -p {port} -C 10 -V --transport roce {client}");
    (sv(&line), server.finish())
}

const SERVER: &str = "ping --server -p 0 --transport roce";

#[test]
fn ping_without_any_rtu() {
    for address in ["127.0.0.1", "::1"] {
        let (client, server) = pings(softverbs(SERVER), "--fault out:rtu=drop", address);
        assert!(
            client.err.contains("fault: out:rtu=drop: 1 of 1 frames"),
            "{client:#?}"
        );
        assert!(client.took.as_secs_f64() < 4.0, "{client:#?}");
        assert!(client.ok().contains("10 pings"));
        server.ok();
    }
}

#[test]
fn an_rtu_that_the_passive_side_does_not_get() {
    for address in ["127.0.0.1", "::1"] {
        let server = env(softverbs(SERVER), "in:rtu=drop,log=stderr");
        let (client, server) = pings(server, "", address);
        assert!(client.ok().contains("10 pings"));
        let words = format!("in rtu from {address}: dropped (in:rtu=drop, match 1): RTU");
        assert!(server.err.contains(&words), "{server:#?}");
        assert!(server.err.contains("fault: in:rtu=drop: 1 of 1"));
        server.ok();
    }
}

/// What is said of a rule in the end: "fault: RULE: DONE of MATCHED frames".
fn counted(err: &str) -> (u64, u64) {
    let counted = err.lines().find(|line| line.starts_with("fault: "));
    let words: Vec<&str> = counted.unwrap().split_whitespace().collect();
    (words[2].parse().unwrap(), words[4].parse().unwrap())
}

#[test]
fn loss_of_all_kinds_of_packets() {
    let line = "send -s 64K -n 300 --check --transport roce --fault data:2%=drop,seed=3";
    let ended = sv(&format!("bw {line}"));
    let (done, matched) = counted(&ended.err);
    assert!(done > 0 && done < matched / 10, "{ended:#?}");
    assert_eq!(common::rows(&ended.ok())[0][1], 300.0);
    sv("lat read -n 200 --check --transport roce --fault packet:1%=dup,ack:5%=delay:1ms").ok();
}

#[test]
fn a_log_in_a_file() {
    let path =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.log", std::process::id()));
    let name = path.to_str().unwrap();
    let fault = format!("--fault cm=log,log={name}");
    let (client, server) = pings(softverbs(SERVER), &fault, "127.0.0.1");
    client.ok();
    server.ok();
    let log = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for words in ["out req to 127.0.0.1: seen", "in rep from", "out rtu to"] {
        assert_eq!(log.matches(words).count(), 1, "{words}: {log}");
    }
}

#[test]
fn a_wrong_plan_is_refused() {
    for command in ["bw", "lat", "ping 127.0.0.1 -C 1"] {
        let ended = sv(&format!("{command} --fault rtu:frist=drop"));
        assert!(
            ended.err.contains("    rtu:frist=drop\n        ^^^^^"),
            "{ended:#?}"
        );
        ended.usage("`frist` is not a choice of frames");
    }
    let nowhere = "--fault any=log,log=/no/such/folder/log";
    sv(&format!("bw {nowhere}")).usage("/no/such/folder/log");
    for transport in ["roce", "iwarp"] {
        let line = format!("ping 127.0.0.1 -p 1 -C 1 --transport {transport}");
        let ended = run(env(softverbs(&line), "rtu=dorp"));
        assert!(
            ended
                .err
                .contains("SOFTVERBS_FAULT: `dorp` is not an action"),
            "{ended:#?}"
        );
        assert_eq!(ended.code, Some(1));
    }
    for command in ["bw", "lat", "ping 127.0.0.1 -C 1", "bw --server -p 0"] {
        sv(&format!("{command} --fault packet:1%=drop")).usage("is about RoCE packets");
        sv(&format!("{command} --fault fpdu:3=reset --transport roce")).usage("about iWARP frames");
    }
    // The option counts more than the environment.
    let line = "ping 127.0.0.1 -p 1 -C 1 --transport roce --fault rtu=drop";
    run(env(softverbs(line), "rtu=dorp")).failed("no server listens there");
}

#[test]
fn a_network_that_stops_for_a_while() {
    for transport in ["iwarp", "roce"] {
        let line = format!("bw write -n 2000 --check --transport {transport}");
        let ended = sv(&format!("{line} --fault any:20ms-120ms=partition"));
        assert_eq!(common::rows(&ended.ok())[0][1], 2000.0);
    }
}

#[test]
fn pieces() {
    sv("lat send -n 200 --check --fault frame=split:7").ok();
    let (server, port) = Running::serve(softverbs("ping --server -p 0"));
    let fault = "--fault mpa-request+mpa-reply=split:1";
    sv(&format!("ping 127.0.0.1 -p {port} -C 3 -V {fault}")).ok();
    server.finish().ok();
}

#[test]
fn streams_that_end_early() {
    for fault in ["--crc --fault fpdu:100=corrupt", "--fault fpdu:100=reset"] {
        let ended = sv(&format!("bw send {fault}"));
        assert_eq!(ended.code, Some(1), "{ended:#?}");
        // What follows it goes out until the peer has been heard.
        let (done, matched) = counted(&ended.err);
        assert!(done == 1 && matched >= 100, "{ended:#?}");
        assert!(ended.took < common::LIMIT / 2, "{ended:#?}");
    }
}
