//! The library as C programs see it, for the tests of this folder.

#![allow(dead_code, reason = "not every test needs all of it")]

pub(crate) mod cm;
pub(crate) mod pair;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The library that cargo built together with the tests.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("the test's own path");
    let deps = exe.parent().expect("a folder");
    let library = deps.join("libsoftverbs_cabi.so");
    assert!(library.exists(), "no {}", library.display());
    library
}

/// A folder with the names that programs look for, all of them the library.
fn names() -> &'static Path {
    static NAMES: OnceLock<PathBuf> = OnceLock::new();
    // Once: tests are threads of one process, and would take each other's names.
    NAMES.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("names");
        std::fs::create_dir_all(&folder).expect("a folder");
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            let (link, new) = (
                folder.join(name),
                folder.join(format!("{name}.{}", std::process::id())),
            );
            if std::fs::read_link(&link).is_ok_and(|target| target == library()) {
                continue;
            }
            // Another test process may do the same at this moment.
            let _ = std::fs::remove_file(&new);
            std::os::unix::fs::symlink(library(), &new).expect("a link");
            std::fs::rename(&new, &link).expect("a link");
        }
        folder
    })
}

/// A program that runs on the library, in the way that `softverbs run` starts it; as an
/// ordinary user if we are root, since nothing here needs more.
pub(crate) fn with_softverbs(program: &str) -> Command {
    let names = names();
    let mut command = if ordinary_user_can_read(names) {
        as_nobody(program)
    } else {
        Command::new(program)
    };
    // Root's own folder is nothing for others; they have to find another one.
    command.env_remove("XDG_RUNTIME_DIR");
    command
        .env("LD_PRELOAD", names.join("libibverbs.so.1"))
        .env("LD_LIBRARY_PATH", names);
    command
}

fn as_nobody(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
    command
}

/// Whether we are root, and others can use what root has built.
fn ordinary_user_can_read(names: &Path) -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let mut probe = as_nobody("test");
        let status = probe
            .arg("-r")
            .arg(names.join("libibverbs.so.1"))
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    })
}

/// A program of `tests/c`, compiled against the headers of the distribution.
pub(crate) fn compile(name: &str) -> PathBuf {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(name)
        .with_extension("c");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new("cc");
    command
        .args([
            "-std=gnu17",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            "-o",
        ])
        .arg(&program)
        .arg(source);
    let output = command
        .args(["-lrdmacm", "-libverbs", "-lpthread"])
        .output();
    let output = output.expect("no cc: run scripts/install-test-deps");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}

/// A program that runs; ended when dropped, also by a test that fails.
pub(crate) struct Started(Option<Child>);

impl Started {
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.spawn();
        Self(Some(child.unwrap_or_else(|error| {
            panic!("{command:?}: {error}: run scripts/install-test-deps")
        })))
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it has not been waited for")
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child().try_wait().expect("a child").is_some()
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self, patience: Duration, what: &str) -> Output {
        let end = Instant::now() + patience;
        let mut in_time = true;
        while in_time && !self.has_ended() {
            std::thread::sleep(Duration::from_millis(10));
            in_time = Instant::now() < end;
        }
        let mut child = self.0.take().expect("once");
        let _ = child.kill();
        let output = child.wait_with_output().expect("a child");
        assert!(
            in_time,
            "{what}: no end after {patience:?}\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a program to its end, a minute at most.
pub(crate) fn finished(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Started::start(command).wait(Duration::from_secs(60), &format!("{command:?}"))
}
