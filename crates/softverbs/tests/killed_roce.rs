//! Several processes at one address over RoCE, in a ring: each transfers to and from two others,
//! both ways at once, everything verified. The one that has UDP port 4791 is killed in the middle.
//! Its peers hear of it, and nobody else does.

mod common;
#[path = "common/netns.rs"]
mod netns;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{PATIENCE, Setup, equip, listener, pattern, resolved};
use softverbs::cm::{ConnParam, EventKind};
use softverbs::{PortOwner, Rkey, SendFlags, SendOp, Transport, Wc};

const CHILD: &str = "SOFTVERBS_TEST_CHILD";

/// Rounds of a connection: each is a Write and a Send in either direction.
const ROUNDS: u32 = 1000;
/// Between two rounds: the transfers outlast the kill, without any haste.
const PACE: Duration = Duration::from_millis(4);
/// Longest message; two of them for each direction.
const MOST: usize = 64 << 10;

/// All are connected: they begin together.
static GO: AtomicBool = AtomicBool::new(false);

fn address(child: usize) -> SocketAddr {
    let port = 20_000 + u16::try_from(child).unwrap();
    ([127, 0, 0, 1], port).into()
}

fn setup(address: SocketAddr) -> Setup {
    Setup {
        address,
        ..Setup::over(Transport::Roce)
    }
}

/// One of the processes; does nothing unless it is told to.
#[test]
fn child() {
    let Ok(role) = std::env::var(CHILD) else {
        return;
    };
    let mut numbers = role.split(' ').map(|number| number.parse().unwrap());
    let (me, all): (usize, usize) = (numbers.next().unwrap(), numbers.next().unwrap());
    thread::spawn(move || report_owner(me));
    let told = thread::spawn(|| {
        std::io::stdin().read_line(&mut String::new()).unwrap();
        GO.store(true, Ordering::Relaxed);
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    });
    let setup_in = setup(address(me));
    let (channel, listening, _) = listener(&setup_in);
    let inbound = thread::spawn(move || {
        let event = channel.get_event(None).unwrap().unwrap();
        assert_eq!(event.kind(), EventKind::ConnectRequest);
        let end = equip(&setup_in, channel, event.id().clone());
        let theirs = event.private_data().to_vec();
        drop(event);
        Conversation::new(me, "in", end, &theirs, true).run();
        drop(listening);
    });
    let to = (me + 1) % all;
    let setup_out = setup(address(to));
    let outbound = thread::spawn(move || {
        // The other process may not have begun.
        let begun = Instant::now();
        loop {
            let (channel, id) = resolved(&setup_out, address(to));
            let end = equip(&setup_out, channel, id);
            end.id.connect(&offer(&end)).unwrap();
            let event = end.channel.get_event(Some(PATIENCE * 2)).unwrap().unwrap();
            if event.kind() == EventKind::Established {
                let theirs = event.private_data().to_vec();
                drop(event);
                return Conversation::new(me, "out", end, &theirs, false).run();
            }
            assert!(begun.elapsed() < PATIENCE * 2, "{:?}", event.kind());
            thread::sleep(Duration::from_millis(20));
        }
    });
    outbound.join().unwrap();
    inbound.join().unwrap();
    eprintln!("{me} is done");
    // Somebody has to take the port over.
    told.join().unwrap();
}

/// Tells when this process gets UDP port 4791 of IPv4. That of IPv6 may be another one's.
fn report_owner(me: usize) {
    loop {
        let owners = softverbs::roce_status().unwrap().port_owners;
        let mine = |port: &PortOwner| port.family == "IPv4" && port.owner == "this process";
        if owners.iter().any(mine) {
            return eprintln!("{me} owns");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Where the peer may write, as private data.
fn offer(end: &common::End) -> ConnParam {
    let mut private_data = end.mr.addr().to_be_bytes().to_vec();
    private_data.extend_from_slice(&end.mr.rkey().get().to_be_bytes());
    ConnParam {
        private_data,
        ..ConnParam::default()
    }
}

/// One connection of a child.
struct Conversation {
    me: usize,
    way: &'static str,
    end: common::End,
    target: (u64, Rkey),
    passive: bool,
    sent: u32,
    came: u32,
}

/// Where what the peer writes lies.
const INCOMING: usize = 2 * MOST;

fn len(round: u32) -> usize {
    1 + (round as usize * 7919) % MOST
}

impl Conversation {
    fn new(me: usize, way: &'static str, end: common::End, theirs: &[u8], passive: bool) -> Self {
        let addr = u64::from_be_bytes(theirs[..8].try_into().unwrap());
        let rkey = Rkey::new(u32::from_be_bytes(theirs[8..12].try_into().unwrap()));
        Self {
            me,
            way,
            end,
            target: (addr, rkey),
            passive,
            sent: 0,
            came: 0,
        }
    }

    fn run(mut self) {
        for _ in 0..4 {
            self.end.recv(1, 0, 0);
        }
        if self.passive {
            self.end.id.accept(&offer(&self.end)).unwrap();
        }
        eprintln!("{} {} connected", self.me, self.way);
        while !GO.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        for round in 0..ROUNDS {
            if let Err(wc) = self.round(round) {
                return self.end_of_peer(&wc);
            }
            if round % 20 == 0 {
                eprintln!("{} {} round {round}", self.me, self.way);
            }
            thread::sleep(PACE);
        }
        eprintln!("{} {} complete", self.me, self.way);
        // The peer may need the acknowledgement of its last request.
        while let Ok(Some(_)) = self.end.channel.get_event(Some(Duration::from_millis(300))) {}
    }

    /// Writes and announces, takes and verifies.
    fn round(&mut self, round: u32) -> Result<(), Wc> {
        let half = (round as usize % 2) * MOST;
        let len = len(round);
        let seed = |passive| u64::from(round) << 1 | u64::from(passive);
        self.end.fill(half, len, seed(self.passive));
        let (addr, rkey) = self.target;
        let sges = [self.end.mr.sge(half, len)];
        let data = softverbs::SendData::Sges(&sges);
        let write = SendOp::Write {
            remote_addr: addr + (INCOMING + half) as u64,
            rkey,
        };
        let write = softverbs::SendWr::new(2, write, data).with_flags(SendFlags::empty());
        // A queue pair in the error state takes requests, and flushes them.
        self.end.qp.post_send(&write).unwrap();
        let none = softverbs::SendData::Sges(&[]);
        let send = softverbs::SendWr::new(3, SendOp::SendWithImm(round), none);
        self.end.qp.post_send(&send).unwrap();
        let begun = Instant::now();
        while self.sent <= round || self.came <= round {
            let mut wc = [Wc::default()];
            if self.end.cq.poll(&mut wc).unwrap() == 0 {
                assert!(begun.elapsed() < 2 * PATIENCE, "{} {}", self.me, self.way);
                // Many of us share two processors.
                thread::sleep(Duration::from_micros(200));
                continue;
            }
            let [wc] = wc;
            if !wc.is_success() {
                return Err(wc);
            }
            match wc.wr_id {
                1 => {
                    self.end.recv(1, 0, 0);
                    assert_eq!(wc.imm, Some(self.came), "{} {}", self.me, self.way);
                    self.came += 1;
                }
                _ => self.sent += 1,
            }
        }
        let right = pattern(len, seed(!self.passive));
        let got = self.end.read(INCOMING + half, len);
        assert!(got == right, "{} {}: round {round}", self.me, self.way);
        Ok(())
    }

    /// The peer has gone: there is an event, too, and every request ends.
    fn end_of_peer(self, wc: &Wc) {
        let deadline = Instant::now() + PATIENCE;
        let event = loop {
            let event = self.end.channel.get_event(Some(PATIENCE)).unwrap();
            let kind = event.map(|event| event.kind());
            if kind != Some(EventKind::Established) || Instant::now() > deadline {
                break kind;
            }
        };
        eprintln!(
            "{} {} failed {:?} {:?}",
            self.me, self.way, wc.status, event
        );
    }
}

struct Other {
    child: Child,
    lines: Receiver<String>,
    /// What it said so far.
    said: Vec<String>,
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Other {
    fn start(me: usize, all: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, format!("{me} {all}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            lines,
            said: Vec::new(),
        }
    }

    fn listen(&mut self) {
        self.said.extend(self.lines.try_iter());
    }

    fn said(&mut self, words: &str) -> bool {
        self.listen();
        self.said.iter().any(|line| line.contains(words))
    }

    fn round(&mut self, way: &str) -> Option<u32> {
        self.listen();
        let words = format!(" {way} round ");
        let lines = self.said.iter().rev();
        lines
            .filter_map(|line| line.split_once(&words)?.1.parse().ok())
            .next()
    }
}

type Others = BTreeMap<usize, Other>;

fn wait_until(others: &mut Others, what: &str, mut condition: impl FnMut(&mut Others) -> bool) {
    let end = Instant::now() + PATIENCE * 3;
    while !condition(others) {
        if Instant::now() > end {
            for (me, other) in others.iter_mut() {
                other.listen();
                eprintln!("{me}: {:#?}", other.said);
            }
            panic!("not in time: {what}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Starts the processes in this order and kills the one that has the port.
fn ring(order: &[usize]) {
    let all = order.len();
    let mut others: Others = order
        .iter()
        .map(|&me| (me, Other::start(me, all)))
        .collect();
    wait_until(&mut others, "all are connected", |others| {
        let mut all = others.values_mut();
        all.all(|other| other.said("in connected") && other.said("out connected"))
    });
    for other in others.values_mut() {
        let stdin = other.child.stdin.as_mut().unwrap();
        stdin.write_all(b"go\n").unwrap();
    }
    wait_until(&mut others, "all transfers run", |others| {
        others.values_mut().all(|other| {
            let far = |round: Option<u32>| round.is_some_and(|round| round >= 20);
            far(other.round("in")) && far(other.round("out"))
        })
    });
    wait_until(&mut others, "somebody has the port", |others| {
        others.values_mut().any(|other| other.said("owns"))
    });
    let owners: Vec<usize> = (0..all)
        .filter(|me| others.get_mut(me).unwrap().said("owns"))
        .collect();
    let [owner] = owners[..] else {
        panic!("the owners of one port: {owners:?}");
    };
    let mut victim = others.remove(&owner).unwrap();
    let was = (victim.round("in").unwrap(), victim.round("out").unwrap());
    victim.child.kill().unwrap();
    victim.child.wait().unwrap();
    assert!(was.0 < ROUNDS - 100 && was.1 < ROUNDS - 100, "too late");
    let killed = Instant::now();
    wait_until(&mut others, "another one takes the port over", |others| {
        others.values_mut().any(|other| other.said("owns"))
    });
    let (before, behind) = ((owner + all - 1) % all, (owner + 1) % all);
    wait_until(&mut others, "the peers hear of it", |others| {
        others.get_mut(&before).unwrap().said("out failed")
            && others.get_mut(&behind).unwrap().said("in failed")
    });
    let heard = killed.elapsed();
    wait_until(&mut others, "all come to their ends", |others| {
        others.values_mut().all(|other| other.said("is done"))
    });
    for (&me, other) in &mut others {
        let status = other.child.wait().unwrap();
        assert!(status.success(), "{me}: {status}: {:#?}", other.said);
        for (way, peer) in [("out", (me + 1) % all), ("in", (me + all - 1) % all)] {
            if peer == owner {
                let failed = other.said.iter().find(|line| line.contains("failed"));
                let failed = failed.unwrap();
                assert!(failed.ends_with("Some(Disconnected)"), "{failed}");
                let status = failed.contains("RetryExcErr") || failed.contains("WrFlushErr");
                assert!(status, "{failed}");
            } else {
                assert!(
                    other.said(&format!(" {way} complete")),
                    "{me}: {:#?}",
                    other.said
                );
            }
        }
    }
    eprintln!("{all} processes: the peers heard after {heard:?}");
}

#[test]
fn two_processes() {
    if !netns::inside("two_processes") {
        return;
    }
    ring(&[0, 1]);
    ring(&[1, 0]);
}

#[test]
fn eight_processes() {
    if !netns::inside("eight_processes") {
        return;
    }
    ring(&[0, 1, 2, 3, 4, 5, 6, 7]);
    ring(&[5, 2, 7, 0, 3, 6, 1, 4]);
}
