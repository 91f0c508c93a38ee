//! `softverbs bw` over loopback: every verb and every option, with real processes.

mod common;

use common::{pair, rows, sv};

const VERBS: [&str; 3] = ["write", "read", "send"];

/// Runs both ends and checks the only row.
fn one_row(line: &str, bytes: f64, iterations: f64) {
    let rows = rows(&sv(line).ok());
    assert_eq!(rows.len(), 1, "{line}");
    let row = &rows[0];
    assert_eq!(row.len(), 5, "{line}");
    assert_eq!((row[0], row[1]), (bytes, iterations), "{line}");
    assert!(
        row[2] >= row[3] && row[3] >= 0.0 && row[4] > 0.0,
        "{line}: {row:?}"
    );
}

#[test]
fn write_is_the_default() {
    one_row("bw -n 500", 65_536.0, 500.0);
}

#[test]
fn every_verb_on_both_address_families() {
    for verb in VERBS {
        for address in ["127.0.0.1", "::1", "localhost"] {
            let (out, err) = pair("bw", "", &format!("{verb} -s 4K -n 300"), address);
            assert_eq!(rows(&out)[0][..2], [4096.0, 300.0]);
            assert!(err.contains(&format!("bw {verb} -s 4096 -n 300")), "{err}");
        }
    }
}

#[test]
fn all_sizes() {
    for verb in VERBS {
        let rows = rows(&sv(&format!("bw {verb} -a -n 5")).ok());
        let sizes: Vec<f64> = rows.iter().map(|row| row[0]).collect();
        let expect: Vec<f64> = (1..=23).map(|log| f64::from(1 << log)).collect();
        assert_eq!(sizes, expect);
        assert!(rows.iter().all(|row| row[1] == 5.0));
    }
}

#[test]
fn all_sizes_checked_both_ways_on_several_queue_pairs() {
    for verb in VERBS {
        let rows = rows(&sv(&format!("bw {verb} -a -n 3 -q 2 -b --check")).ok());
        assert_eq!(rows.len(), 23);
        assert!(rows.iter().all(|row| row[1] == 6.0));
    }
}

#[test]
fn edges_of_the_note_lengths() {
    // Notes are told from messages by their length: the sizes around theirs matter.
    for size in 1..=7 {
        for verb in VERBS {
            one_row(
                &format!("bw {verb} -s {size} -n 700 -b --check"),
                f64::from(size),
                700.0,
            );
        }
    }
}

#[test]
fn odd_sizes() {
    for size in [63, 65, 1460, 1461, 4097, 65_535, 65_537, 1_000_003] {
        for verb in VERBS {
            one_row(
                &format!("bw {verb} -s {size} -n 20 --check"),
                f64::from(size),
                20.0,
            );
        }
    }
}

#[test]
fn many_queue_pairs() {
    for verb in VERBS {
        one_row(&format!("bw {verb} -q 8 -n 200 -s 8K"), 8192.0, 1600.0);
        one_row(
            &format!("bw {verb} -q 33 -n 50 -s 100 -b -t 4"),
            100.0,
            1650.0,
        );
    }
}

#[test]
fn events() {
    for verb in VERBS {
        one_row(&format!("bw {verb} -e -n 300 -s 8K"), 8192.0, 300.0);
        // B126, B127 of the bug reports: sleeping with completions in the queue hangs.
        one_row(
            &format!("bw {verb} -e -b -q 16 -n 100 -s 1K"),
            1024.0,
            1600.0,
        );
        let (out, _) = pair("bw", "-e", &format!("{verb} -n 100"), "127.0.0.1");
        assert_eq!(rows(&out).len(), 1);
    }
}

#[test]
fn depths_from_one_on() {
    for verb in VERBS {
        for depth in [1, 2, 3, 5, 1000] {
            one_row(&format!("bw {verb} -t {depth} -n 150 -s 256"), 256.0, 150.0);
            one_row(
                &format!("bw {verb} -t {depth} -n 150 -s 256 -b -e --check"),
                256.0,
                150.0,
            );
        }
    }
}

#[test]
fn completions_by_count() {
    for (every, iterations) in [(1, 100), (7, 100), (64, 1000), (64, 30)] {
        for verb in VERBS {
            one_row(
                &format!("bw {verb} -Q {every} -t 64 -n {iterations} -s 512"),
                512.0,
                f64::from(iterations),
            );
        }
    }
}

#[test]
fn timed_runs() {
    for verb in VERBS {
        for options in ["", "-b", "--check", "-q 3 -e", "-b --check -s 3"] {
            let ended = sv(&format!("bw {verb} -D 0.3 -s 2K {options}")
                .replace("-s 2K -b --check -s 3", "-b --check -s 3"));
            assert!(ended.took.as_secs_f64() >= 0.3);
            let rows = rows(&ended.ok());
            assert!(rows[0][1] >= 1.0, "{verb} {options}");
        }
    }
}

#[test]
fn inline() {
    for verb in ["write", "send"] {
        for size in [1, 64, 65] {
            one_row(
                &format!("bw {verb} -I 64 -s {size} -n 500 --check"),
                f64::from(size),
                500.0,
            );
        }
    }
}

#[test]
fn crc_and_short_fpdus() {
    for verb in VERBS {
        one_row(
            &format!("bw {verb} --crc --check -n 50 -s 100000"),
            100_000.0,
            50.0,
        );
        one_row(
            &format!("bw {verb} -m 512 --check -n 50 -s 100000 -b"),
            100_000.0,
            50.0,
        );
        // CRC is used if either end asks for it.
        let (out, _) = pair("bw", "--crc", &format!("{verb} -n 20 --check"), "::1");
        assert_eq!(rows(&out)[0][1], 20.0);
    }
}

#[test]
fn tcp_exchange() {
    for verb in VERBS {
        one_row(
            &format!("bw {verb} --tcp-exchange -n 100 -q 3"),
            65_536.0,
            300.0,
        );
        for address in ["127.0.0.1", "::1"] {
            let client = format!("{verb} --tcp-exchange -n 30 -b --check --crc -m 999");
            let (out, _) = pair("bw", "--tcp-exchange", &client, address);
            assert_eq!(rows(&out)[0][1], 30.0);
        }
    }
}

#[test]
fn json() {
    for verb in VERBS {
        let out = sv(&format!("bw {verb} --json -n 40 -a")).ok();
        let lines: Vec<serde_json::Value> = out
            .lines()
            .map(|line| serde_json::from_str(line).expect(line))
            .collect();
        assert_eq!(lines.len(), 23);
        for line in lines {
            assert_eq!(line["verb"], verb);
            assert_eq!(line["iterations"], 40);
            for key in ["bytes", "bw_peak_gbps", "bw_avg_gbps", "msg_rate_mpps"] {
                assert!(line[key].as_f64().unwrap() > 0.0, "{key}: {line}");
            }
            let (bytes, rate) = (line["bytes"].as_f64(), line["msg_rate_mpps"].as_f64());
            let gbps = bytes.unwrap() * rate.unwrap() * 8e-3;
            let printed = line["bw_avg_gbps"].as_f64().unwrap();
            assert!((gbps - printed).abs() <= printed * 1e-6, "{line}");
        }
    }
}

#[test]
fn a_device_or_an_address_of_choice() {
    one_row("bw -d iw_lo -n 20", 65_536.0, 20.0);
    one_row("bw -d lo -n 20", 65_536.0, 20.0);
    one_row("bw --bind ::1 -n 20", 65_536.0, 20.0);
    one_row("bw --bind 127.0.0.2 -n 20", 65_536.0, 20.0);
    let (_, err) = pair(
        "bw",
        "--bind 127.0.0.3",
        "-n 20 --bind 127.0.0.4",
        "127.0.0.3",
    );
    assert!(
        err.contains("listening on 127.0.0.3:") && err.contains("127.0.0.4"),
        "{err}"
    );
}

#[test]
fn the_transport_can_be_named() {
    one_row("bw --transport iwarp -n 20", 65_536.0, 20.0);
}
