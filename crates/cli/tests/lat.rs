//! `softverbs lat` over loopback: every verb and every option, with real processes.

mod common;

use common::{pair, rows, sv};

const VERBS: [&str; 3] = ["write", "read", "send"];

/// Runs both ends and checks the only row.
fn one_row(line: &str, bytes: f64, iterations: f64) {
    let rows = rows(&sv(line).ok());
    assert_eq!(rows.len(), 1, "{line}");
    let row = &rows[0];
    assert_eq!(row.len(), 9, "{line}");
    assert_eq!((row[0], row[1]), (bytes, iterations), "{line}");
    let [min, max, typical, avg, p99, p999] = [row[2], row[3], row[4], row[5], row[7], row[8]];
    assert!(
        0.0 < min && min <= typical && typical <= p99 && p99 <= p999,
        "{row:?}"
    );
    assert!(p999 <= max && min <= avg && avg <= max, "{row:?}");
}

#[test]
fn send_is_the_default() {
    one_row("lat -n 200", 8.0, 200.0);
}

#[test]
fn every_verb_on_both_address_families() {
    for verb in VERBS {
        for address in ["127.0.0.1", "::1"] {
            let (out, err) = pair("lat", "", &format!("{verb} -s 64 -n 100"), address);
            assert_eq!(rows(&out)[0][..2], [64.0, 100.0]);
            assert!(err.contains(&format!("lat {verb} -s 64 -n 100")), "{err}");
        }
    }
}

#[test]
fn all_sizes() {
    for verb in VERBS {
        let rows = rows(&sv(&format!("lat {verb} -a -n 5")).ok());
        assert_eq!(rows.len(), 23);
        assert!(rows.iter().all(|row| row[1] == 5.0));
    }
}

#[test]
fn all_sizes_checked() {
    for verb in VERBS {
        assert_eq!(
            rows(&sv(&format!("lat {verb} -a -n 20 --check")).ok()).len(),
            23
        );
    }
}

#[test]
fn more_messages_than_markers() {
    for verb in VERBS {
        one_row(&format!("lat {verb} -n 1000 -s 1"), 1.0, 1000.0);
        one_row(&format!("lat {verb} -n 600 -s 3 --check"), 3.0, 600.0);
    }
}

#[test]
fn events() {
    for verb in ["read", "send"] {
        one_row(&format!("lat {verb} -e -n 100"), 8.0, 100.0);
    }
    // The server's -e does not matter to a client that writes.
    let (out, _) = pair("lat", "-e", "write -n 50", "127.0.0.1");
    assert_eq!(rows(&out)[0][1], 50.0);
}

#[test]
fn inline_and_not() {
    for verb in ["write", "send"] {
        for inline in [0, 64, 256] {
            one_row(
                &format!("lat {verb} -I {inline} -n 50 -s 64 --check"),
                64.0,
                50.0,
            );
        }
    }
}

#[test]
fn timed_runs() {
    for verb in VERBS {
        let ended = sv(&format!("lat {verb} -D 0.3"));
        assert!(ended.took.as_secs_f64() >= 0.3);
        assert!(rows(&ended.ok())[0][1] >= 1.0);
    }
}

#[test]
fn crc_and_short_fpdus() {
    for verb in VERBS {
        one_row(
            &format!("lat {verb} --crc -m 256 --check -n 30 -s 5000"),
            5000.0,
            30.0,
        );
    }
}

#[test]
fn tcp_exchange() {
    for verb in VERBS {
        one_row(&format!("lat {verb} --tcp-exchange -n 50"), 8.0, 50.0);
        let (out, _) = pair(
            "lat",
            "--tcp-exchange",
            &format!("{verb} --tcp-exchange -n 50"),
            "::1",
        );
        assert_eq!(rows(&out)[0][1], 50.0);
    }
}

#[test]
fn json() {
    for verb in VERBS {
        let out = sv(&format!("lat {verb} --json -n 40")).ok();
        let line: serde_json::Value = serde_json::from_str(out.trim()).expect(&out);
        assert_eq!(line["verb"], verb);
        assert_eq!(
            (&line["bytes"], &line["iterations"]),
            (&8.into(), &40.into())
        );
        for key in [
            "t_min_us",
            "t_max_us",
            "t_typical_us",
            "t_avg_us",
            "p99_us",
            "p999_us",
        ] {
            assert!(line[key].as_f64().unwrap() > 0.0, "{key}: {line}");
        }
        assert!(line["t_stdev_us"].as_f64().unwrap() >= 0.0);
    }
}
