//! A server and a client of the same program, both on the library, over the loopback interface.

use std::net::TcpListener;
use std::process::{Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Started, with_softverbs};

/// How long a pair may take. The programs spin; where many do, each waits for the others.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a client of perftest 4.5 says of its second connection when the server, which listens twice, does
/// not listen again yet. It tries with what it has freed then, and crashes; its server waits for ever.
pub(crate) const REFUSED_AGAIN: &str = "Event: RDMA_CM_EVENT_REJECTED";
/// How often that may happen in a row.
const TRIES: usize = 10;

/// Two spinning programs are enough for two cores.
static ONE_PAIR: Mutex<()> = Mutex::new(());

/// Runs both ends with `arguments`, the client with the address besides; both have to succeed.
/// Returns what server and client wrote.
pub(crate) fn succeed(program: &str, arguments: &str) -> [String; 2] {
    succeed_over("", program, arguments)
}

/// The same with a transport for the connection manager.
pub(crate) fn succeed_over(transport: &str, program: &str, arguments: &str) -> [String; 2] {
    let _one_pair = ONE_PAIR.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 1..TRIES {
        if let Ok(told) = run_both(transport, program, arguments) {
            return told;
        }
    }
    run_both(transport, program, arguments).unwrap_or_else(|client| panic!("{client}"))
}

/// `Err`: [`REFUSED_AGAIN`], and what the client said.
fn run_both(transport: &str, program: &str, arguments: &str) -> Result<[String; 2], String> {
    let port = free_port();
    let command = |address: Option<&str>| {
        let mut command = with_softverbs(program);
        command
            .env("SOFTVERBS_TRANSPORT", transport)
            .args(arguments.split_whitespace())
            .args(["-p", &port.to_string()])
            .args(address);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let mut server = Started::start(&mut command(None));
    await_listener(port, &mut server);
    let name = format!("{program} {arguments}");
    let client = Started::start(&mut command(Some("127.0.0.1"))).wait(PATIENCE, &name);
    if !client.status.success() {
        // It may wait for ever for a client that has gone.
        let _ = server.child().kill();
    }
    let server = server.wait(PATIENCE, &name);
    let told = [&server, &client].map(text);
    if !client.status.success() && told[1].contains(REFUSED_AGAIN) {
        return Err(told[1].clone());
    }
    assert!(
        server.status.success() && client.status.success(),
        "{name}: server {}, client {}\n{}---\n{}",
        server.status,
        client.status,
        told[0],
        told[1]
    );
    Ok(told)
}

fn text(output: &Output) -> String {
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// A TCP port, by which the programs exchange addresses, that nobody uses.
fn free_port() -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Waits until somebody listens, without connecting, which would be taken for the client.
fn await_listener(port: u16, server: &mut Started) {
    let end = Instant::now() + PATIENCE;
    let local = format!(":{port:04X} ");
    let listens = |line: &str| {
        let mut words = line.split_whitespace();
        words
            .nth(1)
            .is_some_and(|own| format!("{own} ").ends_with(&local))
            && words.nth(1) == Some("0A")
    };
    loop {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"]
            .map(|table| std::fs::read_to_string(table).unwrap_or_default());
        if tables.iter().any(|table| table.lines().any(listens)) {
            return;
        }
        // One that has ended will be found to.
        if server.has_ended() || Instant::now() > end {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
