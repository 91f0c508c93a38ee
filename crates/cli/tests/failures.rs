//! Runs that cannot succeed: they end in bounded time, with one clear line and status 1.

mod common;

use std::io::Read;
use std::net::TcpListener;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use common::{Ended, Running, children, is_alive, softverbs, sv};

/// Far more than any of these should take, even on a busy machine.
const BOUND: Duration = Duration::from_secs(40);

fn bounded(ended: Ended) -> Ended {
    assert!(ended.took < BOUND, "{ended:?}");
    ended
}

#[test]
fn no_listener() {
    for metric in ["bw", "lat"] {
        for address in ["127.0.0.1", "::1"] {
            sv(&format!("{metric} {address} -p 1")).failed("connection refused");
            sv(&format!("{metric} --tcp-exchange {address} -p 1")).failed("connection refused");
        }
    }
    sv("bw no.such.host.invalid").failed("no such host");
    sv("bw wirte").failed("nor is it a verb: write, read, send or atomic");
    sv("bw -d iw_none").failed("no device is called");
    sv("bw --bind 192.0.2.77").failed("192.0.2.77");
}

#[test]
fn a_listener_that_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for options in ["", "--tcp-exchange"] {
        let line = format!("bw 127.0.0.1 -p {port} --timeout 1 {options}");
        bounded(sv(&line)).failed("no answer");
    }
}

#[test]
fn a_listener_that_speaks_something_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = std::io::Write::write_all(&mut stream, b"220 mail.example ESMTP ready\r\n");
            // Let it be read before the connection ends.
            let _ = stream.read(&mut [0; 512]);
        }
    });
    bounded(sv(&format!("bw 127.0.0.1 -p {port}"))).failed("");
    bounded(sv(&format!("bw --tcp-exchange 127.0.0.1 -p {port}"))).failed("does not speak");
}

#[test]
fn mismatches_are_refused_with_the_reason_at_both_ends() {
    for (server, client, word) in [
        ("bw --server send", "bw write", "measures send"),
        ("bw --server -s 64", "bw -s 128", "-s 64"),
        ("bw --server -a", "bw", "-a"),
        ("bw --server -q 4", "bw -q 8", "-q 4"),
        ("bw --server -n 10", "bw -n 11", "-n 10"),
        ("bw --server -D 1", "bw -n 11", "-D 1"),
        ("bw --server -t 5", "bw -t 6", "-t 5"),
        ("bw --server -b", "bw", "-b"),
        ("bw --server --check", "bw", "--check"),
        ("bw --server -I 8", "bw", "-I 8"),
        ("bw --server -m 512", "bw -m 513", "-m 512"),
        ("bw --server", "lat", "measures bw"),
        ("lat --server", "bw", "measures lat"),
        ("lat --server read", "lat write", "measures read"),
    ] {
        for exchange in ["", "--tcp-exchange"] {
            let (running, port) = Running::serve(softverbs(&format!("{server} -p 0 {exchange}")));
            bounded(sv(&format!("{client} 127.0.0.1 -p {port} {exchange}"))).failed(word);
            running.finish().failed(word);
        }
    }
}

#[test]
fn the_reason_survives_a_host_with_several_addresses() {
    for exchange in ["", "--tcp-exchange"] {
        let (server, port) =
            Running::serve(softverbs(&format!("bw --server -p 0 -q 4 {exchange}")));
        sv(&format!("bw localhost -p {port} {exchange}")).failed("-q 4");
        server.finish().failed("-q 4");
    }
}

#[test]
fn one_end_exchanges_over_tcp_and_the_other_does_not() {
    let (server, port) = Running::serve(softverbs("bw --server -p 0 --tcp-exchange"));
    bounded(sv(&format!("bw 127.0.0.1 -p {port} --timeout 3"))).failed("--tcp-exchange");
    let line = format!("bw 127.0.0.1 -p {port} --timeout 3 --transport roce");
    bounded(sv(&line)).failed("no server listens there over roce");
    // Strangers do not end a server.
    sv(&format!("bw 127.0.0.1 -p {port} --tcp-exchange -n 10")).ok();
    let server = server.finish();
    assert!(
        server.err.contains("--tcp-exchange has to be given"),
        "{server:?}"
    );
    server.ok();
    let (server, port) = Running::serve(softverbs("bw --server -p 0"));
    bounded(sv(&format!(
        "bw 127.0.0.1 -p {port} --tcp-exchange --timeout 3"
    )))
    .failed("--tcp-exchange has to be given at both ends");
    sv(&format!("bw 127.0.0.1 -p {port} -n 10")).ok();
    server.finish().ok();
}

#[test]
fn half_a_message_does_not_keep_a_server_from_others() {
    use std::io::Write;
    let (server, port) = Running::serve(softverbs("bw --server -p 0 --tcp-exchange --timeout 1"));
    let mut stranger = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stranger.write_all(b"SVXC").unwrap();
    bounded(sv(&format!("bw 127.0.0.1 -p {port} --tcp-exchange -n 10"))).ok();
    server.finish().ok();
    drop(stranger);
}

#[test]
fn another_version_is_refused() {
    use std::io::Write;
    let (server, port) = Running::serve(softverbs("bw --server -p 0 --tcp-exchange"));
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"SVXC\x07\x01\x00\x08").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[..6], *b"SVXC\x01\x03");
    let text = String::from_utf8_lossy(&answer[8..]).into_owned();
    assert!(
        text.contains("version 7") && text.contains("this program version 2"),
        "{text}"
    );
    sv(&format!("bw 127.0.0.1 -p {port} --tcp-exchange -n 10")).ok();
    server.finish().ok();
}

#[test]
fn a_server_that_is_killed() {
    for line in [
        "bw write",
        "bw read",
        "bw send",
        "bw write -b",
        "bw send -b -e",
        "bw read -e -q 4",
        "lat write",
        "lat read",
        "lat send",
        "lat send -e",
        "bw --tcp-exchange",
    ] {
        let exchange = if line.contains("tcp") {
            "--tcp-exchange"
        } else {
            ""
        };
        let metric = &line[..3];
        let (server, port) =
            Running::serve(softverbs(&format!("{metric} --server -p 0 {exchange}")));
        let client = Running::start(softverbs(&format!("{line} -D 60 127.0.0.1 -p {port}")));
        thread::sleep(Duration::from_millis(400));
        let killed = Instant::now();
        server.signal("KILL");
        bounded(client.finish()).failed("lost");
        assert!(killed.elapsed() < BOUND);
    }
}

#[test]
fn a_client_that_is_killed() {
    for line in [
        "bw write",
        "bw read",
        "bw send",
        "bw send -b",
        "lat write",
        "lat read",
        "lat send",
    ] {
        let metric = &line[..3];
        let (server, port) = Running::serve(softverbs(&format!("{metric} --server -p 0")));
        let client = Running::start(softverbs(&format!("{line} -D 60 ::1 -p {port}")));
        thread::sleep(Duration::from_millis(400));
        client.signal("KILL");
        bounded(server.finish()).failed("lost");
    }
}

#[test]
fn a_peer_that_hangs() {
    for line in ["bw send", "bw read", "lat write", "lat read", "lat send"] {
        let metric = &line[..3];
        let (server, port) =
            Running::serve(softverbs(&format!("{metric} --server -p 0 --timeout 2")));
        let client = Running::start(softverbs(&format!(
            "{line} -D 60 ::1 -p {port} --timeout 2"
        )));
        thread::sleep(Duration::from_millis(400));
        server.signal("STOP");
        bounded(client.finish()).failed("");
        server.signal("CONT");
        bounded(server.finish()).failed("");
    }
    for line in [
        "bw write",
        "bw read",
        "bw send",
        "lat write",
        "lat read",
        "lat send",
    ] {
        let metric = &line[..3];
        let (server, port) =
            Running::serve(softverbs(&format!("{metric} --server -p 0 --timeout 2")));
        let client = Running::start(softverbs(&format!("{line} -D 60 ::1 -p {port}")));
        thread::sleep(Duration::from_millis(400));
        client.signal("STOP");
        bounded(server.finish()).failed("no answer");
        client.signal("KILL");
    }
}

#[test]
fn the_child_goes_with_its_parent() {
    for (signal, line) in [
        ("INT", "bw -D 60 --timeout 2"),
        ("TERM", "lat -D 60 --timeout 2"),
        // It need not notice by itself that nobody answers.
        ("KILL", "bw -D 60 --timeout 600"),
        ("KILL", "bw -D 60 --timeout 600 --transport roce"),
    ] {
        let parent = Running::start(softverbs(line));
        let deadline = Instant::now() + BOUND;
        let child = loop {
            if let [child] = children(parent.pid())[..] {
                break child;
            }
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(5));
        };
        thread::sleep(Duration::from_millis(300));
        parent.signal(signal);
        let ended = bounded(parent.finish());
        if signal == "KILL" {
            // Nobody reaps it now, but it goes along.
            while is_alive(child) {
                assert!(Instant::now() < deadline);
                thread::sleep(Duration::from_millis(20));
            }
        } else {
            ended.failed("interrupted");
            assert!(!is_alive(child));
        }
    }
}

#[test]
fn the_child_is_killed_and_the_parent_tells() {
    let parent = Running::start(softverbs("bw -D 60"));
    let child = loop {
        if let [child] = children(parent.pid())[..] {
            break child;
        }
        thread::sleep(Duration::from_millis(5));
    };
    thread::sleep(Duration::from_millis(400));
    common::signal(child, "KILL");
    bounded(parent.finish()).failed("(the other end was killed: signal: 9 (SIGKILL))");
}

#[test]
fn both_ends_give_up() {
    // Over RoCE, where nothing but silence shows that the network is gone.
    let plan = "--transport roce --timeout 2 --fault any:300ms-=partition";
    let ended = bounded(sv(&format!("bw -D 60 {plan}")));
    assert!(!ended.err.contains("127.0.0.1"), "{ended:?}");
    ended.failed("no answer from the peer for 2 s (--timeout)");
}

#[test]
fn large_messages_are_no_silence() {
    // Each end hears nothing of the other one until a whole message has gone; here as many as are
    // one's due take longer than the time after which a peer counts as dead.
    let line = "bw send -s 256M -q 8 -n 2 --timeout 2";
    let (server, port) = Running::serve(softverbs("bw --server -p 0 --timeout 2"));
    let out = sv(&format!(
        "{line} 127.0.0.1 -p {port} --fault fpdu=rate:400M"
    ))
    .ok();
    assert_eq!(common::rows(&out)[0][..2], [f64::from(256 << 20), 16.0]);
    server.finish().ok();
}

#[test]
fn an_interrupted_server() {
    let (server, _) = Running::serve(softverbs("bw --server -p 0"));
    server.signal("INT");
    bounded(server.finish()).failed("interrupted");
    // For a server without end it is the regular one.
    let (server, _) = Running::serve(softverbs("bw --server -p 0 --persistent"));
    server.signal("INT");
    bounded(server.finish()).ok();
}

#[test]
fn nobody_comes() {
    let ended = sv("lat --server -p 0 --wait 0.3");
    assert!(ended.took >= Duration::from_millis(300));
    bounded(ended).failed("no client came");
    bounded(sv("lat --server -p 0 --wait 0.3 --tcp-exchange")).failed("no client came");
}

#[test]
fn the_port_is_taken() {
    let (server, port) = Running::serve(softverbs("bw --server -p 0"));
    sv(&format!("bw --server -p {port}")).failed("cannot listen");
    sv(&format!("bw --server -p {port} --tcp-exchange")).failed("cannot listen");
    drop(server);
}

#[test]
fn too_much_for_the_library_is_said_clearly() {
    sv("bw -I 60000 -s 8").usage("inline messages have 1024 octets at most");
    sv("bw -I 1K -s 8 -n 10").ok();
    // In the words of the options, not in those of the objects behind them.
    sv("bw -q 16384 -t 8192").failed("-q 16384 and -t 8192 make a completion queue of");
}

#[test]
fn more_connections_than_open_files() {
    let limited = |limit: &str, line: &str| {
        let softverbs = env!("CARGO_BIN_EXE_softverbs");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &format!("ulimit {limit} && exec {softverbs} {line}")]);
        common::run(command)
    };
    limited("-n 128", "bw -q 200 -n 1").failed("-q 200: over iWARP each queue pair takes a file");
    limited("-n 128", "bw -q 200 -n 1 --transport roce").ok();
    // What is a default only does not count.
    limited("-S -n 128", "bw -q 200 -n 1").ok();
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut command = softverbs("bw -a -n 2");
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
    let status = child.wait().unwrap();
    assert_eq!((status.code(), err.as_str()), (Some(0), ""));
}
