//! `softverbs devices`.

mod common;

use std::io::Read;
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
