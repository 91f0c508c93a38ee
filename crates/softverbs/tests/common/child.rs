//! The other end of a test, in a process of its own: the test program again, whose test `child`
//! reads its role from the environment.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use super::PATIENCE;

const ROLE: &str = "SOFTVERBS_TEST_CHILD";

/// What a child is to do; nothing in the test program itself.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// In a child: stays until the parent waits for its end. A peer may still ask for an answer that was
/// lost.
pub fn until_dismissed() {
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}

/// A child; killed and waited for when dropped.
#[derive(Debug)]
pub struct Other {
    child: Child,
    lines: BufReader<std::process::ChildStderr>,
}

impl Other {
    /// Starts a child, perhaps by way of another program, with variables in its environment.
    pub fn start(role: &str, wrapper: &[&str], environment: &[(&str, &str)]) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = match wrapper {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        let mut child = command
            .args(["--exact", "child", "--nocapture"])
            .env(ROLE, role)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Self { child, lines }
    }

    /// What follows `word` on the first line of stderr that begins with it.
    pub fn says(&mut self, word: &str) -> String {
        let mut before = String::new();
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                panic!("the child never says `{word}`, but:\n{before}");
            }
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
            before.push_str(&line);
        }
    }

    /// Sends a signal that does not end it.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    }

    /// Stops it, and returns when none of its threads runs any more.
    pub fn stop(&self) {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            // Behind the name, which may hold anything.
            stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().starts_with(" T"))
        };
        let begin = Instant::now();
        while !std::fs::read_dir(&tasks).unwrap().all(is_stopped) {
            assert!(begin.elapsed() < PATIENCE, "the child does not stop");
            std::thread::yield_now();
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end, and ends [`until_dismissed`].
    pub fn finish(mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "the child does not end");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
