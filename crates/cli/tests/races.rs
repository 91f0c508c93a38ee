//! `softverbs races`: what it prints and how it ends.

mod common;

use std::fs;

use common::sv;

#[test]
fn explores_and_counts() {
    let out = sv("races ib-data --drops 1 --duplicates 0 --timers 0 --threads 2 --json").ok();
    let line: serde_json::Value = serde_json::from_str(&out).expect("one line of JSON");
    assert_eq!(line["scenario"], "ib-data");
    assert_eq!(line["violation"], serde_json::Value::Null);
    assert_eq!(line["explored"]["complete"], true);
    assert!(
        line["explored"]["unique_states"].as_u64() > Some(200),
        "{out}"
    );
    let text = sv("races ib-data --drops 0 --duplicates 0 --timers 0").ok();
    assert!(
        text.contains("any reordering") && text.contains("complete"),
        "{text}"
    );
    let out = sv("races iwarp-rtr --resets 0 --splits 1 --timers 0 --threads 2 --json").ok();
    let line: serde_json::Value = serde_json::from_str(&out).expect("one line of JSON");
    assert_eq!(
        (&line["splits"], &line["drops"]),
        (&1.into(), &serde_json::Value::Null)
    );
    assert!(
        line["explored"]["unique_states"].as_u64() > Some(1000),
        "{out}"
    );
    let cut = sv("races ib-data --depth 5").ok();
    assert!(cut.contains("stopped at a limit"), "{cut}");
}

#[test]
fn lists_scenarios() {
    let out = sv("races --list").ok();
    assert!(
        out.contains("ib-destroy") && out.contains("1 drops"),
        "{out}"
    );
}

#[test]
fn replays_steps_as_a_ladder() {
    let path = std::env::temp_dir().join(format!("softverbs-races-{}", std::process::id()));
    let line = |scenario: &str| format!("races {scenario} --replay {}", path.display());
    fs::write(
        &path,
        "passive gets REQ # so it begins\n\npassive accept\nactive misses REP\n",
    )
    .expect("a file for steps");
    let out = sv(&line("ib-data")).ok();
    assert!(out.contains("X---------- REP ------------|"), "{out}");
    assert!(out.contains("hears ESTABLISHED"), "{out}");
    fs::write(&path, "active gets RTU").expect("a file for steps");
    sv(&line("ib-data")).failed("possible are: passive gets REQ");
    fs::write(&path, "passive reads MPA request\npassive accept\n").expect("a file for steps");
    let out = sv(&line("iwarp-rtr")).ok();
    assert!(
        out.contains("- MPA request -") && out.contains("- READ REQUEST -"),
        "{out}"
    );
    assert_eq!(sv(&line("")).code, Some(2));
    fs::remove_file(&path).expect("the file is there");
}

#[test]
fn refuses_what_makes_no_sense() {
    for line in [
        "races nothing",
        "races --drops 99",
        "races --reorders some",
        "races --states 0",
    ] {
        assert_eq!(sv(line).code, Some(2), "{line}");
    }
}
