//! Wireshark's dissectors look at our own traffic: every frame is dissected to the end, and every
//! CRC is good. Needs `tshark` and the right to capture on the loopback interface; says `skipped`
//! and why without.

#![allow(clippy::print_stdout, reason = "tests report what they found")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Setup, equip, expect, listener, resolved};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use softverbs::cm::{CmId, CmOption, EventKind};
use softverbs::{SendFlags, SendOp, Wc};

/// A capture under way.
struct Capture {
    child: Child,
    file: PathBuf,
}

impl Capture {
    fn start(port: u16) -> Result<Self, String> {
        let file =
            std::env::temp_dir().join(format!("softverbs-{}-{port}.pcap", std::process::id()));
        let mut child = Command::new("tshark")
            // Without -q it would write how many packets there are to a pipe that nobody reads.
            .args([
                "-q",
                "-i",
                "lo",
                "-F",
                "pcap",
                "-B",
                "64",
                "-f",
                &format!("tcp port {port}"),
                "-w",
            ])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("tshark: {error}"))?;
        // It says that it captures a moment before it does.
        let stderr = child.stderr.take().ok_or("no stderr")?;
        let mut said = Vec::new();
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if line.contains("Capturing on") {
                std::thread::sleep(Duration::from_millis(1500));
                return Ok(Self { child, file });
            }
            said.push(line);
        }
        let _ = child.wait();
        Err(said.join(" "))
    }

    fn stop(mut self) -> PathBuf {
        std::thread::sleep(Duration::from_millis(1000));
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(pid, Signal::SIGINT).unwrap();
        self.child.wait().unwrap();
        std::mem::take(&mut self.file)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What tshark makes of a capture.
fn tshark(file: &Path, args: &[&str]) -> Vec<String> {
    let output = Command::new("tshark")
        // Protocols above RDMAP: their dissectors take any short Send for their own.
        .args([
            "--disable-protocol",
            "rpcordma",
            "--disable-protocol",
            "smb_direct",
            "-r",
        ])
        .arg(file)
        .args(args)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// All operations, over one connection to a port that is known beforehand.
fn traffic(setup: &Setup, capture: &(softverbs::cm::EventChannel, CmId, std::net::SocketAddr)) {
    let (server_channel, _listening, address) = capture;
    let (client_channel, id) = resolved(setup, *address);
    let client = equip(setup, client_channel, id);
    client.id.connect(&setup.param).unwrap();
    let request = expect(server_channel, EventKind::ConnectRequest);
    let server = equip(setup, server_channel.clone(), request.id().clone());
    for n in 0..8 {
        server.recv(n, 0, 100_000);
    }
    server.id.accept(&setup.param).unwrap();
    drop(expect(&client.channel, EventKind::Established));
    drop(expect(&server.channel, EventKind::Established));
    let (remote_addr, rkey) = (server.mr.addr(), server.mr.rkey());
    for (n, len) in [0, 1, 2, 3, 1000, 40_000].into_iter().enumerate() {
        client.fill(0, len, n as u64);
        client.send(n as u64, 0, len);
        client.post(1, SendOp::Write { remote_addr, rkey }, 0, len);
        client.post(2, SendOp::Read { remote_addr, rkey }, 100_000, len);
        assert!(client.completions(3).iter().all(Wc::is_success));
        assert!(server.success().is_success());
    }
    client.send_inline(9, b"solicited", SendFlags::SIGNALED | SendFlags::SOLICITED);
    client.success();
    server.success();
    client.id.disconnect().unwrap();
    drop(expect(&server.channel, EventKind::Disconnected));
}

fn check(crc: bool) {
    let setup = Setup {
        client_options: vec![CmOption::Crc(crc), CmOption::FpduLimit(16_000)],
        server_options: vec![CmOption::FpduLimit(16_000)],
        ..Setup::default()
    };
    let listening = listener(&setup);
    let capture = match Capture::start(listening.2.port()) {
        Ok(capture) => capture,
        Err(why) => {
            println!("skipped: no capture on the loopback interface: {why}");
            return;
        }
    };
    traffic(&setup, &listening);
    let file = capture.stop();

    let complaints = tshark(
        &file,
        &["-Y", "_ws.malformed || _ws.expert.severity >= error"],
    );
    assert!(complaints.is_empty(), "{complaints:#?}");
    let text = tshark(&file, &["-V"]);
    let count = |what: &str| text.iter().filter(|line| line.contains(what)).count();
    // Of each operation six, five of one FPDU and one of three; one Send more; and the
    // zero-length Read that opens the connection, with its response.
    assert_eq!(count("OpCode: Read Request"), 7);
    assert_eq!(count("OpCode: Read Response"), 9);
    assert_eq!(
        count("OpCode: Send (0x3)") + count("OpCode: Send with SE"),
        9
    );
    assert_eq!(count("OpCode: Write"), 8);
    assert_eq!(count("Bad CRC32"), 0);
    assert_eq!(count("Good CRC32"), if crc { 33 } else { 0 });
    std::fs::remove_file(file).unwrap();
}

#[test]
fn without_crc() {
    check(false);
}

#[test]
fn with_crc() {
    check(true);
}
