//! What only RoCE has, and atomic operations: services that lose messages, path MTUs, immediate
//! data. With real processes.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use common::{Running, pair, rows, softverbs, sv};
use serde_json::Value;

/// Runs both ends; the objects that were printed.
fn json(line: &str) -> Vec<Value> {
    let out = sv(&format!("{line} --json")).ok();
    out.lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

fn number(line: &Value, key: &str) -> u64 {
    line[key]
        .as_u64()
        .unwrap_or_else(|| panic!("no {key}: {line}"))
}

/// Asserts that all that was sent has arrived or is counted as lost, and most has arrived: over
/// loopback hardly anything is lost.
fn assert_counted(line: &Value, sent: u64) {
    assert_eq!(number(line, "sent"), sent, "{line}");
    let arrived = number(line, "arrived");
    assert_eq!(arrived + number(line, "lost"), sent, "{line}");
    assert!(arrived > sent / 2, "{line}");
}

const LOSSY: [(&str, &str); 3] = [("UC", "write"), ("UC", "send"), ("UD", "send")];

#[test]
fn atomics_over_both_transports() {
    for transport in ["iwarp", "roce"] {
        for operation in ["fetch-add", "cmp-swap"] {
            let options = format!("atomic -A {operation} --transport {transport}");
            for more in [
                "",
                "-q 4",
                "-b -q 3 -e",
                "-t 1",
                "-Q 8 -t 16",
                "--tcp-exchange",
            ] {
                let lines = json(&format!("bw {options} {more} -n 300"));
                let qps = match more {
                    "-q 4" => 4,
                    "-b -q 3 -e" => 3,
                    _ => 1,
                };
                assert_eq!(number(&lines[0], "iterations"), 300 * qps, "{more}");
                assert_eq!(lines[0]["verb"], "atomic");
                assert_eq!(lines[0]["atomic"], operation);
                assert_eq!(lines[0]["transport"], transport);
                assert_eq!(number(&lines[0], "bytes"), 8);
            }
            let lines = json(&format!("lat {options} -n 100"));
            assert_eq!(number(&lines[0], "iterations"), 100);
            assert!(number(&json(&format!("bw {options} -D 0.2"))[0], "iterations") > 0);
        }
    }
}

#[test]
fn atomics_between_two_ends_of_either_family() {
    for address in ["127.0.0.1", "::1"] {
        let (out, err) = pair(
            "bw",
            "--transport roce",
            "atomic -A cmp-swap -q 2 -n 100 --transport roce",
            address,
        );
        assert_eq!(rows(&out)[0][..2], [8.0, 200.0]);
        assert!(err.contains("bw atomic -A cmp-swap"), "{err}");
    }
}

#[test]
fn every_service_and_its_operations() {
    for (connection, verb) in LOSSY {
        for address in ["127.0.0.1", "::1"] {
            for metric in ["bw", "lat"] {
                let server = format!("-c {connection}");
                let client = format!("{verb} -c {connection} -s 200 -n 300 --check --json");
                let (out, err) = pair(metric, &server, &client, address);
                let line: Value = serde_json::from_str(out.trim()).expect(&out);
                assert_counted(&line, 300);
                assert_eq!(line["connection"], connection);
                assert_eq!(
                    (&line["transport"], &line["imm"]),
                    (&"roce".into(), &true.into())
                );
                assert!(err.contains(&format!("-c {connection}")), "{err}");
            }
        }
    }
}

#[test]
fn unreliable_services_with_every_option() {
    for (connection, verb) in LOSSY {
        for (more, messages) in [
            ("-q 4 --check", 1200),
            ("-b --check", 600),
            ("-b -q 2 -e", 1200),
            ("-e", 300),
            ("-t 1", 300),
            ("-t 7 -Q 7 -I 256 --check", 300),
            ("--tcp-exchange", 300),
            ("--mtu 256 -s 256", 300),
        ] {
            let line = format!("bw {verb} -c {connection} -n 300 {more}");
            let line = if more.contains("-s") {
                line
            } else {
                format!("{line} -s 100")
            };
            assert_counted(&json(&line)[0], messages);
        }
        for more in ["-b", "", "--check -q 2", "-e"] {
            let line = &json(&format!("bw {verb} -c {connection} -D 0.3 -s 1K {more}"))[0];
            assert_counted(line, number(line, "sent"));
        }
        for more in ["-e", "-I 0 --check", "-D 0.2"] {
            let line = &json(&format!("lat {verb} -c {connection} -s 64 {more}"))[0];
            assert_counted(line, number(line, "sent"));
        }
    }
}

#[test]
fn long_messages_over_an_unreliable_connection() {
    for verb in ["write", "send"] {
        // Of as many packets as are needed; one that is lost takes its message along.
        for size in [4097, 65_536, 1_000_003] {
            let line = &json(&format!("bw {verb} -c UC -s {size} -n 20 -t 2 --check"))[0];
            assert_eq!(number(line, "sent"), 20, "{line}");
            assert!(number(line, "arrived") > 0, "{line}");
        }
    }
}

#[test]
fn all_sizes() {
    let lines = json("bw -c UD -a -n 20 --check");
    let sizes: Vec<u64> = lines.iter().map(|line| number(line, "bytes")).collect();
    let mtu = number(&lines[0], "path_mtu");
    assert_eq!(
        sizes,
        (1..=mtu.ilog2()).map(|log| 1 << log).collect::<Vec<_>>()
    );
    let lines = json("lat -c UD -a -n 5 --mtu 512");
    assert_eq!(number(lines.last().unwrap(), "bytes"), 512);
    assert_eq!(json("bw write -c UC -a -n 3").len(), 23);
    assert_eq!(json("bw write --imm -a -n 3 --check").len(), 23);
}

#[test]
fn path_mtus() {
    for mtu in [256, 512, 1024, 2048, 4096] {
        for verb in ["write", "read", "send"] {
            let line = format!("bw {verb} --mtu {mtu} -s 10000 -n 50 --check");
            let line = &json(&line)[0];
            assert_eq!(number(line, "path_mtu"), mtu);
            assert_eq!(number(line, "iterations"), 50);
        }
        let line = &json(&format!("bw -c UD --mtu {mtu} -n 50 --check"))[0];
        assert_eq!(
            (number(line, "bytes"), number(line, "path_mtu")),
            (mtu, mtu)
        );
        assert_counted(line, 50);
    }
}

#[test]
fn immediate_data() {
    for (verb, transport) in [("send", "roce"), ("write", "roce"), ("write", "iwarp")] {
        for more in [
            "",
            "--check",
            "-b -q 3 --check",
            "-e",
            "-t 1",
            "-I 64",
            "-D 0.2",
        ] {
            let line = format!("bw {verb} --imm --transport {transport} -s 60 {more}");
            let line = if more.contains("-D") {
                line
            } else {
                format!("{line} -n 700")
            };
            let line = &json(&line)[0];
            assert_eq!(line["imm"], true);
            assert!(number(line, "iterations") > 0);
        }
        for more in ["", "--check", "-e"] {
            let line = format!("lat {verb} --imm --transport {transport} -n 100 {more}");
            assert_eq!(number(&json(&line)[0], "iterations"), 100);
        }
    }
    assert_eq!(json("bw write -n 10")[0]["imm"], false);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (line, word) in [
        ("bw -c UD write", "send only"),
        ("bw -c UC read", "write and send"),
        ("lat -c UC atomic", "write and send"),
        ("bw atomic -s 16", "8 octets"),
        ("bw --mtu 1024 --transport iwarp", "--fpdu"),
        ("bw --mtu 1400", "256, 512, 1024"),
        ("bw -c UD -s 4097", "path MTU"),
        ("bw -c UD --transport iwarp", "services of RoCE"),
        ("bw send --imm", "--transport roce"),
        ("bw read --imm", "--imm"),
        ("bw -A cmp-swap", "-A"),
    ] {
        sv(line).usage(word);
    }
}

#[test]
fn demands_that_are_not_met() {
    for (server, client, word) in [
        ("-c UD", "-c UC", "-c UD"),
        (
            "atomic -A cmp-swap --transport roce",
            "atomic --transport roce",
            "cmp-swap",
        ),
        ("--mtu 512", "--mtu 1024", "--mtu 512"),
        ("--imm --transport roce", "--transport roce", "--imm"),
    ] {
        let (server, port) = Running::serve(softverbs(&format!("bw --server -p 0 {server}")));
        sv(&format!("bw {client} 127.0.0.1 -p {port}")).failed(word);
        server.finish().failed(word);
    }
}

#[test]
fn a_peer_that_dies_is_noticed() {
    for (connection, verb) in LOSSY {
        let line = format!("bw --server -p 0 -c {connection} --timeout 3");
        let (server, port) = Running::serve(softverbs(&line));
        let line = format!("bw {verb} -c {connection} -s 64 -D 60 127.0.0.1 -p {port} --timeout 3");
        let client = Running::start(softverbs(&line));
        thread::sleep(Duration::from_millis(700));
        server.signal("KILL");
        drop(server);
        let ended = client.finish();
        assert_eq!(ended.code, Some(1), "{ended:#?}");
        assert!(ended.took < Duration::from_secs(55), "{ended:#?}");
    }
}

#[test]
fn what_is_lost_is_counted_and_what_arrives_is_right() {
    for (connection, verb) in LOSSY {
        // Notes are lost, too, and sent again.
        for more in [
            "-n 2000",
            "-n 1000 -q 2 -b",
            "-n 2000 -e",
            "-D 0.5",
            "-n 300 -t 1",
        ] {
            let line = format!(
                "bw {verb} -c {connection} -s 500 --check --fault out:send+write:5%=drop,seed=3"
            );
            let line = &json(&format!("{line} {more}"))[0];
            let (sent, lost) = (number(line, "sent"), number(line, "lost"));
            assert_counted(line, sent);
            assert!(lost > 0, "{more}: {line}");
        }
        let line =
            format!("lat {verb} -c {connection} -n 60 --check --fault out:send+write:/20=drop");
        let line = &json(&line)[0];
        assert_counted(line, 60);
        assert!(number(line, "lost") > 0, "{line}");
    }
    // What is doubled or overtaken counts once.
    for fault in ["send:/7=dup", "send:/9=reorder:3", "send:/7=corrupt"] {
        let line = format!("bw send -c UD -s 500 -n 1000 --check --fault {fault},seed=5");
        assert_counted(&json(&line)[0], 1000);
    }
}

#[test]
fn nothing_arrives() {
    // The number of messages that goes with the End is a write, too: that connection fails.
    let line = "bw write -c UC -s 500 -n 100 --fault out:write=drop --timeout 3";
    let ended = sv(line);
    assert_eq!(ended.code, Some(1), "{ended:#?}");
    assert!(ended.took < Duration::from_secs(60), "{ended:#?}");
}

#[test]
fn atomics_are_done_once_however_often_they_are_sent() {
    for operation in ["fetch-add", "cmp-swap"] {
        for fault in [
            "data:3%=drop",
            "atomic-ack:/7=drop",
            "atomic:/5=dup",
            "data:/9=reorder:2",
        ] {
            let line = format!(
                "bw atomic -A {operation} -n 400 -q 2 --transport roce --fault {fault},seed=7"
            );
            assert_eq!(number(&json(&line)[0], "iterations"), 800, "{fault}");
        }
    }
}

/// A Hello as the first version of the exchange sent it.
fn old_hello() -> Vec<u8> {
    let mut hello = b"SVXC\x01\x01\x00\x34".to_vec();
    hello.resize(52, 0);
    hello
}

#[test]
fn an_old_client_is_told_so() {
    let (server, port) = Running::serve(softverbs("bw --server -p 0 --tcp-exchange --wait 60"));
    let mut old = TcpStream::connect(("127.0.0.1", port)).unwrap();
    old.write_all(&old_hello()).unwrap();
    let mut answer = Vec::new();
    old.read_to_end(&mut answer).unwrap();
    // It reads messages of its own version only.
    assert_eq!(answer[..6], *b"SVXC\x01\x03");
    let reason = String::from_utf8_lossy(&answer[8..]);
    assert!(
        reason.contains("speaks version 1") && reason.contains("this program version 2"),
        "{reason}"
    );
    // And the server still serves others.
    sv(&format!("bw -n 5 --tcp-exchange 127.0.0.1 -p {port}")).ok();
    server.finish().ok();
}

#[test]
fn an_old_server_is_understood() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 8];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(hello[..6], *b"SVXC\x02\x01");
        let reason = b"the peer speaks version 2 of the exchange, this program version 1";
        let len = u8::try_from(8 + reason.len()).unwrap();
        let mut refusal = b"SVXC\x01\x03\x00".to_vec();
        refusal.push(len);
        refusal.extend(reason);
        stream.write_all(&refusal).unwrap();
        // Until the client has gone.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let line = format!("bw -n 5 --tcp-exchange 127.0.0.1 -p {port}");
    sv(&line).failed("refused by the peer: the peer speaks version 2 of the exchange");
    serving.join().unwrap();
}
