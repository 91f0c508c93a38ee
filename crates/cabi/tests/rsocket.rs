//! rdma-core's own programs for sockets over RDMA, as the distribution has them, on both ends and over
//! both transports.

mod common;

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use common::{compile, finished, with_softverbs};

/// Long enough for a busy machine, short enough for a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const TRANSPORTS: [&str; 2] = ["iwarp", "roce"];

/// A port for one test: nobody else is likely to have it.
fn port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let process = u16::try_from(std::process::id() % 400).expect("below 400");
    let port = 20_000 + process * 30 + NEXT.fetch_add(1, Ordering::Relaxed) % 30;
    port.to_string()
}

fn program(transport: &str, line: &[&str]) -> Command {
    let mut command = with_softverbs(line[0]);
    command
        .args(&line[1..])
        .env("SOFTVERBS_TRANSPORT", transport)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Ends with the test.
struct Server(Option<Child>);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Server {
    fn start(transport: &str, line: &[&str]) -> Self {
        let child = program(transport, line).spawn();
        Self(Some(child.expect("run scripts/install-test-deps")))
    }

    /// Waits for its end, which has to be a good one.
    fn finish(mut self, what: &str) {
        let child = self.0.take().expect("once");
        let output = wait(child, what);
        assert!(output.status.success(), "server of {what}: {output:?}");
    }
}

fn wait(child: Child, what: &str) -> Output {
    let mut server = Server(Some(child));
    let end = Instant::now() + PATIENCE;
    loop {
        let child = server.0.as_mut().expect("there");
        if child.try_wait().expect("a child").is_some() {
            let child = server.0.take().expect("there");
            return child.wait_with_output().expect("output");
        }
        assert!(Instant::now() < end, "{what} does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a client until its server listens, and to its end, which has to be a good one.
fn client(transport: &str, line: &[&str]) {
    let what = format!("{line:?} over {transport}");
    let end = Instant::now() + PATIENCE;
    loop {
        let child = program(transport, line).spawn().expect("a program");
        let output = wait(child, &what);
        if output.status.success() {
            return;
        }
        let text = String::from_utf8_lossy(&output.stderr);
        // The second is what the programs say when connecting without waiting has failed.
        let refused = text.contains("refused") || text.contains("rpoll: Operation now in progress");
        assert!(refused && Instant::now() < end, "{what}: {output:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A program and its counterpart with the same options; both end well.
fn both_ends(name: &str, server_options: &[&str], client_options: &[&str], options: &[&str]) {
    for transport in TRANSPORTS {
        let port = port();
        let common = [&["-p", &port], options].concat();
        let server_line = [&[name], server_options, &common].concat();
        let server = Server::start(transport, &server_line);
        let client_line = [&[name, "-s"], client_options, &common].concat();
        client(transport, &client_line);
        server.finish(&format!("{server_line:?} over {transport}"));
    }
}

/// Few transfers: the machine may be slow, and the programs have no limit of time.
const FEW: [&str; 6] = ["-I", "10", "-C", "10", "-S", "3000"];

fn few<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&FEW, options].concat()
}

#[test]
fn rstream_in_every_mode() {
    for mode in ["a", "b", "n", "f"] {
        let options = few(&["-T", mode, "-T", "v"]);
        both_ends("rstream", &[], &["127.0.0.1"], &options);
    }
}

/// `-S all` of the programs would be without an end on a slow machine.
fn of_many_sizes(name: &str) {
    for size in ["16", "64", "4096", "65536", "65537", "1000000"] {
        let options = ["-S", size, "-I", "2", "-C", "3", "-T", "v"];
        both_ends(name, &[], &["127.0.0.1"], &options);
    }
}

#[test]
fn rstream_of_many_sizes() {
    of_many_sizes("rstream");
}

#[test]
fn rstream_with_small_buffers_without_inline_data_and_with_keepalives() {
    let options = few(&["-B", "4096", "-i", "0", "-k", "1", "-T", "v"]);
    both_ends("rstream", &[], &["127.0.0.1"], &options);
}

/// The RDMA CM finds the addresses.
#[test]
fn rstream_that_resolves() {
    let options = few(&["-T", "r", "-T", "v"]);
    both_ends("rstream", &["-b", "127.0.0.1"], &["127.0.0.1"], &options);
}

#[test]
fn rstream_over_ipv6() {
    let options = few(&["-f", "ipv6", "-T", "v"]);
    both_ends("rstream", &["-b", "::1"], &["::1"], &options);
}

#[test]
fn riostream_in_every_mode() {
    for mode in ["a", "b", "n"] {
        let options = few(&["-T", mode, "-T", "v"]);
        both_ends("riostream", &[], &["127.0.0.1"], &options);
    }
}

#[test]
fn riostream_of_many_sizes() {
    of_many_sizes("riostream");
}

/// Its server never ends by itself.
#[test]
fn rcopy_copies_a_file() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rcopy");
    std::fs::create_dir_all(&folder).expect("a folder");
    // The programs may run as another user than the test.
    std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).expect("a folder of ours");
    let source = folder.join(format!("rcopy-{}", std::process::id()));
    let content: Vec<u8> = (0..3_000_000_u32)
        .map(|n| (n.wrapping_mul(n) >> 9).to_le_bytes()[0])
        .collect();
    std::fs::write(&source, &content).expect("a file");
    for transport in TRANSPORTS {
        let port = port();
        let copy = source.with_extension(transport);
        let destination = format!("127.0.0.1:{}", copy.display());
        let _server = Server::start(transport, &["rcopy", "-p", &port]);
        let source = source.display().to_string();
        client(transport, &["rcopy", &source, &destination, "-p", &port]);
        assert!(std::fs::read(&copy).expect("a copy") == content);
        std::fs::remove_file(&copy).expect("a file");
    }
    std::fs::remove_file(&source).expect("a file");
}

/// Its server never ends by itself. Its echo mode is left out: an answer that takes longer than a
/// millisecond makes its client wait for ever for one that it has had.
#[test]
fn udpong() {
    for (address, mode) in [("127.0.0.1", "a"), ("127.0.0.1", "b"), ("::1", "n")] {
        for transport in TRANSPORTS {
            let port = port();
            let options = ["-p", &port, "-T", mode];
            let line = [&["udpong", "-b", address], &options[..]].concat();
            let _server = Server::start(transport, &line);
            let custom = ["udpong", "-s", address, "-C", "200", "-S", "500"];
            client(transport, &[&custom, &options[..]].concat());
        }
    }
}

/// Nobody listens: said at once, and by the right name.
#[test]
fn nobody_listens() {
    for transport in TRANSPORTS {
        let port = port();
        let line = ["rstream", "-T", "b", "-s", "127.0.0.1", "-p", &port];
        let child = program(transport, &line).spawn().expect("a program");
        let output = wait(child, "rstream alone");
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("Connection refused"), "{text}");
    }
}

#[test]
fn every_function_by_itself() {
    let test = compile("sockets").display().to_string();
    for transport in TRANSPORTS {
        let output = finished(&mut program(transport, &[&test]));
        assert!(output.status.success(), "over {transport}: {output:?}");
        assert_eq!(output.stdout, b"", "over {transport}");
    }
}

/// rdma-core's library that makes sockets over RDMA of those of any program.
fn preload() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").expect("/usr/lib");
    folders
        .filter_map(|folder| Some(folder.ok()?.path().join("rsocket/librspreload.so")))
        .find(|library| library.exists())
        .expect("no librspreload.so: run scripts/install-test-deps")
}

#[test]
fn a_program_of_ordinary_sockets() {
    let echo = compile("echo").display().to_string();
    for transport in TRANSPORTS {
        let port = port();
        let preloaded = |line: &[&str]| {
            let mut command = program(transport, line);
            let ours = command
                .get_envs()
                .find_map(|(name, value)| (name == "LD_PRELOAD").then_some(value?.to_owned()));
            let mut both = preload().into_os_string();
            both.push(":");
            both.push(ours.expect("our library"));
            command.env("LD_PRELOAD", both);
            command
        };
        let mut server = preloaded(&[&echo, "s", &port]).spawn().expect("a program");
        let output = server.stdout.take().expect("piped");
        let server = Server(Some(server));
        // Where nobody listens, that library connects without RDMA.
        let (said, hears) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(BufReader::new(output).lines().next()));
        let line = hears.recv_timeout(PATIENCE).expect("the server starts");
        assert_eq!(line.expect("a line").expect("text"), "listening");
        let client = preloaded(&[&echo, "c", &port]).spawn().expect("a program");
        let client = wait(client, "echo");
        assert!(client.status.success(), "over {transport}: {client:?}");
        server.finish("echo");
    }
}
