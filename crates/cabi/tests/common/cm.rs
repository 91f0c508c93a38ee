//! Pairs of programs, a server and its client, that run on the library as an ordinary user.

use std::cell::OnceCell;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::with_softverbs;

/// No program of a test takes longer, however busy the machine is.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) const TRANSPORTS: [&str; 2] = ["iwarp", "roce"];

/// A folder of this test process, writable by all.
pub(crate) fn scratch() -> &'static Path {
    static SCRATCH: OnceLock<PathBuf> = OnceLock::new();
    SCRATCH.get_or_init(|| {
        let name = format!("cm-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).expect("a folder");
        folder
    })
}

/// A name for a file in [`scratch`] that no other has.
pub(crate) fn new_file(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    scratch().join(format!("{number}-{name}"))
}

/// A port that no other test of this process has; others have another [`network`], too.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(10_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A network of this thread, and so of this test: a loopback interface of its own, so that ports are
/// nobody else's. RoCE's public port, above all: when its owner ends, what comes at that moment is lost,
/// which datagrams do not stand. It ends with the process. Returns how programs get there.
fn network() -> Vec<String> {
    thread_local! {
        static NETWORK: OnceCell<Vec<String>> = const { OnceCell::new() };
    }
    NETWORK.with(|network| network.get_or_init(new_network).clone())
}

fn new_network() -> Vec<String> {
    let root = nix::unistd::geteuid().is_root();
    let mut holder = Command::new("unshare")
        .args(if root {
            ["-n"].as_slice()
        } else {
            &["-U", "-r", "-n"]
        })
        .args(["sh", "-c", "ip link set lo up && echo up && exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare");
    let mut line = [0; 3];
    let stdout = holder.stdout.as_mut().expect("a pipe");
    std::io::Read::read_exact(stdout, &mut line).expect("namespaces for networks, and iproute2");
    let target = holder.id().to_string();
    // It reads from us until we are no more.
    std::mem::forget(holder);
    let mut enter = vec!["nsenter", "-t", &target, "-n"];
    if root {
        let user = [
            "--reuid",
            "nobody",
            "--regid",
            "nogroup",
            "--clear-groups",
            "--",
        ];
        enter.push("setpriv");
        enter.extend(user);
    } else {
        enter.extend(["-U", "--preserve-credentials", "--"]);
    }
    enter.into_iter().map(str::to_owned).collect()
}

/// Compiles a file of `tests/c` once, and returns what came of it.
pub(crate) fn compile(source: &str, options: &[&str]) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(source);
    let out = new_file(source).with_extension("out");
    let status = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-g", "-o"])
        .arg(&out)
        .arg(path)
        .args(options)
        .status()
        .expect("run scripts/install-test-deps");
    assert!(status.success(), "{source}");
    out
}

/// A small library that tells when a program is ready for its peer.
fn ready_shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| compile("ready.c", &["-shared", "-fPIC"]))
}

/// A program on the library: over a transport, as an ordinary user, with its output in a file.
pub(crate) struct Program {
    command: Command,
    ready: PathBuf,
    output: PathBuf,
    line: String,
}

impl Program {
    pub(crate) fn new(transport: &str, line: &str) -> Self {
        let name = line.split(' ').next().unwrap_or(line);
        let (ready, output) = (
            new_file("ready"),
            new_file(name.rsplit('/').next().unwrap_or(name)),
        );
        let network = network();
        let mut command = Command::new(&network[0]);
        command.args(&network[1..]).arg("env");
        for (variable, value) in with_softverbs(name).get_envs() {
            let Some(value) = value.and_then(|value| value.to_str()) else {
                continue;
            };
            let shim = ready_shim().to_str().expect("text");
            // Only the program runs on the library, not who gets it into its network.
            command.arg(match variable.to_str() {
                Some("LD_PRELOAD") => format!("LD_PRELOAD={shim}:{value}"),
                _ => format!("{}={value}", variable.display()),
            });
        }
        let file = File::create(&output).expect("a file");
        command
            .args(line.split_whitespace())
            .env("SOFTVERBS_TEST_READY", &ready)
            .env("SOFTVERBS_TRANSPORT", transport)
            .env("XDG_RUNTIME_DIR", runtime())
            .stdin(Stdio::null())
            .stderr(file.try_clone().expect("a file"))
            .stdout(file);
        let line = format!("{transport}: {line}");
        Self {
            command,
            ready,
            output,
            line,
        }
    }

    /// Sets a variable of its environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn start(mut self) -> Running {
        let child = self
            .command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.line));
        Running {
            child,
            program: self,
            start: Instant::now(),
        }
    }

    /// Runs it to its end, which must be a good one; returns its output.
    pub(crate) fn ok(self) -> String {
        self.start().ok()
    }
}

/// A runtime folder of the ordinary user.
fn runtime() -> &'static Path {
    static RUNTIME: OnceLock<PathBuf> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let folder = scratch().join("runtime");
        fs::create_dir_all(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("a folder");
        if nix::unistd::geteuid().is_root() {
            let nobody = nix::unistd::User::from_name("nobody")
                .expect("users")
                .expect("nobody");
            nix::unistd::chown(&folder, Some(nobody.uid), Some(nobody.gid)).expect("a folder");
        }
        folder
    })
}

/// A program that runs; killed when dropped.
pub(crate) struct Running {
    child: Child,
    program: Program,
    start: Instant,
}

impl Running {
    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.program.output).expect("its output")).into_owned()
    }

    /// Waits until it listens, or has joined its group.
    pub(crate) fn wait_ready(&mut self) {
        while !self.program.ready.exists() {
            if let Some(status) = self.child.try_wait().expect("a child") {
                panic!("{} ended: {status}\n{}", self.program.line, self.output());
            }
            self.check_time();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it has said something.
    pub(crate) fn says(&self, words: &str) {
        while !self.output().contains(words) {
            self.check_time();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// As `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child");
        self.wait();
    }

    fn check_time(&self) {
        assert!(
            self.start.elapsed() < LIMIT,
            "{} does not come to an end\n{}",
            self.program.line,
            self.output()
        );
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            self.check_time();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end, which must be a good one; returns its output.
    pub(crate) fn ok(mut self) -> String {
        let status = self.wait();
        let output = self.output();
        assert!(
            status.success(),
            "{}: {status}\n{output}",
            self.program.line
        );
        output
    }

    /// Waits for its end, and returns its status and its output.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let status = self.wait();
        (status, self.output())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a server, and its client when the server is ready. Both must end well. Returns the output of both.
pub(crate) fn pair(transport: &str, server: &str, client: &str) -> (String, String) {
    let mut server = Program::new(transport, server).start();
    server.wait_ready();
    let client = Program::new(transport, client).start();
    let client = client.end();
    let (status, said) = server.end();
    assert!(
        client.0.success() && status.success(),
        "client: {}\n{}\nserver: {status}\n{said}",
        client.0,
        client.1
    );
    (said, client.1)
}
