//! Runs the real programs, with time limits, and never leaves one behind.

#![allow(dead_code, reason = "every file of tests uses its share")]
#![allow(unreachable_pub, reason = "every file of tests is a crate of its own")]

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// No run of a test takes longer, however busy the machine is.
pub const LIMIT: Duration = Duration::from_secs(90);

/// The softverbs command.
pub fn softverbs(line: &str) -> Command {
    command(PathBuf::from(env!("CARGO_BIN_EXE_softverbs")), line)
}

/// An example program, built along with the tests by `cargo test`.
pub fn example(name: &str, line: &str) -> Command {
    let folder = PathBuf::from(env!("CARGO_BIN_EXE_softverbs"));
    let path = folder.with_file_name("examples").join(name);
    assert!(
        path.exists(),
        "{} is missing: cargo build --examples",
        path.display()
    );
    command(path, line)
}

fn command(path: PathBuf, line: &str) -> Command {
    let mut command = Command::new(path);
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

impl Ended {
    /// Asserts success and returns the standard output.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self.out
    }

    /// Asserts failure of the run with one line on stderr that contains `word`.
    pub fn failed(self, word: &str) {
        assert_eq!(self.code, Some(1), "{self:#?}");
        let complaints: Vec<&str> = self
            .err
            .lines()
            .filter(|line| line.starts_with("softverbs: "))
            .collect();
        assert_eq!(complaints.len(), 1, "{self:#?}");
        assert!(
            complaints[0].contains(word),
            "`{word}` is missing: {self:#?}"
        );
    }

    /// Asserts wrong usage.
    pub fn usage(self, word: &str) {
        assert_eq!(self.code, Some(2), "{self:#?}");
        assert!(self.err.contains(word), "`{word}` is missing: {self:#?}");
    }
}

/// Runs a command to its end.
pub fn run(command: Command) -> Ended {
    Running::start(command).finish()
}

/// Runs `softverbs` to its end.
pub fn sv(line: &str) -> Ended {
    run(softverbs(line))
}

/// A program that runs; killed and waited for when dropped.
pub struct Running {
    child: Option<Child>,
    name: String,
    start: Instant,
    out: Option<JoinHandle<String>>,
    lines: Receiver<String>,
    err: String,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let name = format!("{command:?}");
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut stdout = child.stdout.take().unwrap();
        let out = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stdout.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let stderr = child.stderr.take().unwrap();
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            child: Some(child),
            name,
            start: Instant::now(),
            out: Some(out),
            lines,
            err: String::new(),
        }
    }

    /// Starts a server and waits until it listens; returns its port, too.
    pub fn serve(command: Command) -> (Self, u16) {
        let mut server = Self::start(command);
        let line = server.line("listening on ");
        let port = line.rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no port in `{line}`"));
        (server, port)
    }

    /// Waits for a line of stderr with this beginning.
    pub fn line(&mut self, beginning: &str) -> String {
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) => {
                    self.err.push_str(&line);
                    self.err.push('\n');
                    if line.starts_with(beginning) {
                        return line;
                    }
                }
                Err(_) => panic!("{}: no `{beginning}` in:\n{}", self.name, self.err),
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Sends a signal: `KILL`, `INT` ...
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for the end.
    pub fn finish(mut self) -> Ended {
        let mut child = self.child.take().unwrap();
        let limit = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > limit {
                let _ = child.kill();
                let _ = child.wait();
                while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(100)) {
                    self.err.push_str(&line);
                    self.err.push('\n');
                }
                panic!("{} does not end; stderr:\n{}", self.name, self.err);
            }
            thread::sleep(Duration::from_millis(2));
        };
        let took = self.start.elapsed();
        let out = self.out.take().unwrap().join().unwrap();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(5)) {
            self.err.push_str(&line);
            self.err.push('\n');
        }
        Ended {
            code: status.code(),
            out,
            err: std::mem::take(&mut self.err),
            took,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port that nobody listens at.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A file of `docs`.
pub fn document(name: &str) -> String {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Sends a signal to a process.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("sh")
        .args(["-c", &format!("kill -{name} {pid}")])
        .status()
        .unwrap();
    assert!(status.success());
}

/// The processes whose parent is `pid`.
pub fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Whether a process exists and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// The rows of a report: what stands below the header, as numbers.
pub fn rows(out: &str) -> Vec<Vec<f64>> {
    let mut lines = out.lines();
    let header = lines.next().unwrap_or_default();
    assert!(header.contains("#bytes"), "no header: {out}");
    lines
        .map(|line| {
            line.split_whitespace()
                .map(|cell| cell.parse().unwrap())
                .collect()
        })
        .collect()
}

/// Client and server over loopback, both to succeed: the options of the server, those of the
/// client, the address. Returns the client's output and the server's stderr.
pub fn pair(metric: &str, server: &str, client: &str, address: &str) -> (String, String) {
    let (server, port) = Running::serve(softverbs(&format!("{metric} --server -p 0 {server}")));
    let out = sv(&format!("{metric} -p {port} {client} {address}")).ok();
    let server = server.finish();
    assert_eq!(server.code, Some(0), "{server:#?}");
    (out, server.err)
}
