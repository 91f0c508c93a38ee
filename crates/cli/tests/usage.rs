//! Help, and what is no use of it.

mod common;

use common::sv;

#[test]
fn help_has_examples_everywhere() {
    for line in [
        "--help",
        "bw --help",
        "lat --help",
        "ping --help",
        "races --help",
    ] {
        let out = sv(line).ok();
        assert!(
            out.contains("Examples:") && out.contains("Usage:"),
            "{line}: {out}"
        );
        assert!(out.contains("Exit status"), "{line}: {out}");
    }
    assert!(sv("devices --help").ok().contains("--verbose"));
    assert!(sv("--version").ok().starts_with("softverbs "));
}

#[test]
fn every_option_is_explained() {
    let bw = sv("bw --help").ok();
    for option in [
        "-s, --size",
        "-a, --all",
        "-n, --iters",
        "-D, --duration",
        "-t, --tx-depth",
        "-q, --qps",
        "-b, --bidirectional",
        "-e, --events",
        "-I, --inline",
        "-m, --fpdu",
        "--crc",
        "--check",
        "-p, --port",
        "--transport",
        "-d, --device",
        "--bind",
        "--server",
        "--persistent",
        "--wait",
        "--port-file",
        "--tcp-exchange",
        "--timeout",
        "--json",
        "-Q, --cq-mod",
        "-c, --connection",
        "--mtu",
        "--imm",
        "-A, --atomic-type",
    ] {
        assert!(bw.contains(option), "{option}");
    }
    let ping = sv("ping --help").ok();
    for option in [
        "-s, --server",
        "-c, --client",
        "-a, --address",
        "-I, --source",
        "-p, --port",
        "-S, --size",
        "-C, --count",
        "-V, --verify",
        "-v, --verbose",
        "-d, --debug",
        "-P, --persistent",
    ] {
        assert!(ping.contains(option), "{option}");
    }
}

#[test]
fn each_command_tells_its_own_defaults() {
    let lat = sv("lat --help").ok();
    for words in ["[default: 8]", "[default: 1000]", "default: send)"] {
        assert!(lat.contains(words), "{words}: {lat}");
    }
    let bw = sv("bw --help").ok();
    for words in ["[default: 64K;", "[default: 5000]", "default: write"] {
        assert!(bw.contains(words), "{words}: {bw}");
        assert!(!lat.contains(words), "{words}: {lat}");
    }
    assert!(!bw.contains("lat write"), "{bw}");
    assert!(sv("--help").ok().contains("RoCEv2"));
    let env = sv("env --help").ok();
    assert!(
        env.contains("`eval \"$(softverbs env)\"`") && !env.contains('\\'),
        "{env}"
    );
    // Nothing in an example is a race between two ends.
    let run = sv("run --help").ok();
    assert!(!run.contains(" & "), "{run}");
}

#[test]
fn wrong_usage() {
    sv("").usage("Usage");
    sv("frobnicate").usage("frobnicate");
    sv("bw --no-such-option").usage("--no-such-option");
    sv("bw -s 64KB").usage("1024");
    sv("bw -s 0").usage("1 octet");
    sv("bw -n 5 -D 5").usage("cannot be used with");
    sv("bw --server 127.0.0.1").usage("--bind");
    sv("bw 127.0.0.1 127.0.0.2").usage("verb");
    sv("bw -t 4 -Q 5").usage("-Q");
    sv("lat write -e").usage("-e");
    sv("lat read -I 8").usage("-I");
    sv("bw 127.0.0.1:18515").usage("127.0.0.1 -p 18515");
    sv("lat [::1]:5").usage("[::1] -p 5");
    sv("ping").usage("no address");
    sv("ping 127.0.0.1:7174").usage("127.0.0.1 -p 7174");
    sv("ping 127.0.0.1 -S 65537").usage("64 KiB");
}
