//! Both ends on this machine: this process is the client, its child the server.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::client;
use crate::deadline::Deadline;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::plan::{Local, TrafficPlan};

/// Measures against a server that is started for it.
pub(crate) fn run(plan: &TrafficPlan) -> Outcome<()> {
    let mut server = Server::start(plan)?;
    let address = server.address(plan.timeout)?;
    client::run(plan, &[address])
        .and_then(|()| server.finish(plan.timeout))
        .map_err(|failure| server.explain(failure))
}

/// The child. However this ends, it is waited for: dropping it kills it first.
struct Server {
    child: Child,
    lines: Receiver<String>,
    /// What it complained about.
    complaint: Option<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if it has been waited for, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(plan: &TrafficPlan) -> Outcome<Self> {
        let cannot = |error| Failure::run(format!("cannot start the other end: {error}"));
        let program = std::env::current_exe().map_err(cannot)?;
        let seconds = plan.timeout.as_secs_f64().to_string();
        let mut command = Command::new(program);
        command.arg(plan.workload.metric.to_string());
        // It outlives neither this process, even one that is killed and cannot take it along, nor a
        // client that never comes or falls silent.
        let own = std::process::id().to_string();
        command.args(["--server", "--port", "0", "--parent", &own]);
        command.args(["--wait", &seconds, "--timeout", &seconds]);
        match &plan.local {
            Local::Any => command.args(["--bind", "127.0.0.1"]),
            Local::Device(device) => command.args(["--device", device]),
            Local::Address(address) => command.args(["--bind", &address.to_string()]),
        };
        if let Some(transport) = plan.transport {
            command.args(["--transport", transport.name()]);
        }
        for (set, option) in [
            (plan.events, "--events"),
            (plan.tcp_exchange, "--tcp-exchange"),
        ] {
            if set {
                command.arg(option);
            }
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let (sender, lines) = channel();
        if let Some(stderr) = child.stderr.take() {
            thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self {
            child,
            lines,
            complaint: None,
        })
    }

    /// Where it listens: its first line says so.
    fn address(&mut self, timeout: Duration) -> Outcome<SocketAddr> {
        let deadline = Deadline::after(timeout);
        loop {
            interrupt::check()?;
            match self.lines.recv_timeout(deadline.slice()) {
                Ok(line) => {
                    if let Some(address) = line.strip_prefix("listening on ") {
                        return address.parse().map_err(|_| {
                            Failure::run(format!("the other end listens at `{address}`"))
                        });
                    }
                    self.note(&line);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let failure = Failure::run("the other end did not start");
                    return Err(self.explain(failure));
                }
                Err(RecvTimeoutError::Timeout) if deadline.passed() => {
                    return Err(Failure::run("the other end does not start"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits for its end, which comes by itself after a successful measurement.
    fn finish(&mut self, timeout: Duration) -> Outcome<()> {
        match self.wait(timeout)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Failure::run(format!("the other end failed ({status})"))),
            None => Err(Failure::run("the other end does not finish")),
        }
    }

    fn wait(&mut self, timeout: Duration) -> Outcome<Option<ExitStatus>> {
        let deadline = Deadline::after(timeout);
        loop {
            interrupt::check()?;
            match self.child.try_wait() {
                Ok(None) if deadline.passed() => return Ok(None),
                Ok(None) => thread::sleep(deadline.slice().min(Duration::from_millis(2))),
                Ok(status) => return Ok(status),
                Err(error) => return Err(Failure::run(format!("wait: {error}"))),
            }
        }
    }

    /// Adds what the child complained about: it often knows more than "connection lost".
    fn explain(&mut self, failure: Failure) -> Failure {
        let Failure::Run(text) = failure else {
            return failure;
        };
        // If it has anything to say, it does so soon.
        let status = self.wait(Duration::from_millis(300)).unwrap_or_default();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(20)) {
            self.note(&line);
        }
        let killed = status.filter(|status| status.signal().is_some());
        Failure::Run(match (self.complaint.take(), killed) {
            (Some(complaint), _) if complaint == text => {
                format!("{text}, and the other end says the same")
            }
            (Some(complaint), _) => format!("{text} (the other end: {complaint})"),
            (None, Some(status)) => format!("{text} (the other end was killed: {status})"),
            (None, None) => text,
        })
    }

    fn note(&mut self, line: &str) {
        let Some(mut complaint) = line.strip_prefix("softverbs: ") else {
            return;
        };
        // It names its client, which is this process.
        if let Some((address, rest)) = complaint.split_once(": ")
            && address.parse::<SocketAddr>().is_ok()
        {
            complaint = rest;
        }
        self.complaint.get_or_insert_with(|| complaint.to_owned());
    }
}
