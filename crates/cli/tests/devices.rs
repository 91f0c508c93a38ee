//! `softverbs devices`.

mod common;
#[path = "../../softverbs/tests/common/netns.rs"]
mod netns;

use std::io::Read;
use std::net::UdpSocket;
use std::process::Stdio;

use common::{softverbs, sv};

#[test]
fn the_loopback_device_is_there() {
    let out = sv("devices").ok();
    let line = out
        .lines()
        .find(|line| line.starts_with("iw_lo "))
        .expect(&out);
    for word in ["lo", "iwarp", "active", "127.0.0.1"] {
        assert!(
            line.split_whitespace().any(|cell| cell == word),
            "{word}: {line}"
        );
    }
}

#[test]
fn details() {
    for option in ["-v", "--verbose"] {
        let out = sv(&format!("devices {option}")).ok();
        for word in ["max_qp_wr:", "node_guid:", "max_msg_sz:", "gid[0]:"] {
            assert!(out.contains(word), "{word}: {out}");
        }
    }
}

#[test]
fn json() {
    let out = sv("devices --json -v").ok();
    let devices: Vec<serde_json::Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let lo = devices
        .iter()
        .find(|device| device["interface"] == "lo")
        .expect(&out);
    assert_eq!(
        (&lo["device"], &lo["transport"]),
        (&"iw_lo".into(), &"iwarp".into())
    );
    assert!(lo["details"]["max_qp"].as_u64().unwrap() > 0);
    let short = sv("devices --json").ok();
    assert!(!short.contains("details"), "{short}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut command = softverbs("devices -v");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""));
}

#[test]
fn a_stranger_at_the_port_is_named() {
    if !netns::inside("a_stranger_at_the_port_is_named") {
        return;
    }
    let free = sv("devices -v").ok();
    assert_eq!(
        free.matches("udp_port_4791 (IPv4): this process\n").count(),
        1
    );
    assert_eq!(
        free.matches("udp_port_4791 (IPv6): this process\n").count(),
        1
    );
    // This program is a stranger: it takes the port of one family and passes nothing on.
    let stranger = UdpSocket::bind("0.0.0.0:4791").unwrap();
    let out = sv("devices -v").ok();
    let lines: Vec<&str> = out
        .lines()
        .filter(|line| line.contains("udp_port_4791"))
        .collect();
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let owner = format!("{} (pid {})", name.trim(), std::process::id());
    let consequence = "programs on this machine reach each other, other machines cannot reach them";
    assert_eq!(
        lines,
        [
            format!("    udp_port_4791 (IPv4): {owner}: {consequence}"),
            "    udp_port_4791 (IPv6): this process".to_owned(),
        ]
    );
    let json = sv("devices -v --json").ok();
    let line: serde_json::Value = json
        .lines()
        .find(|line| line.contains("roce_lo"))
        .map(|line| serde_json::from_str(line).unwrap())
        .expect(&json);
    let ports = &line["details"]["udp_port_4791"];
    assert_eq!(
        (
            &ports[0]["owner"],
            &ports[0]["reachable"],
            &ports[1]["reachable"]
        ),
        (&owner.clone().into(), &false.into(), &true.into())
    );
    let doctor = common::run(softverbs("doctor")).out;
    assert!(
        doctor.contains(&owner) && doctor.contains(consequence),
        "{doctor}"
    );
    // And that is so: here programs reach each other.
    sv("bw write -n 50 --check --transport roce").ok();
    drop(stranger);
}
