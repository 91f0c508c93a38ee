//! Wireshark's dissectors look at our own traffic over RoCEv2, between two network namespaces, at
//! UDP port 4791 and over both families: every frame is dissected to the end, every operation of
//! every service is among them, and every ICRC is right. Needs `unshare`, `ip` and `tshark`; says
//! `skipped` and why without.

mod common;
#[path = "common/netns.rs"]
mod netns;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{ALL, End, PATIENCE, Setup, equip, expect, listener, poll, resolved};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use softverbs::cm::{CmId, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{
    Access, MwBindInfo, MwType, QpInitAttr, QpType, RecvWr, Rkey, SendData, SendFlags, SendOp,
    SendWr, Transport, UdAddress, Wc, inc_rkey,
};

const CHILD: &str = "SOFTVERBS_TEST_CHILD";
/// Ours and the other process's, and a group.
const FAMILIES: [[&str; 3]; 2] = [
    ["10.99.7.1", "10.99.7.2", "239.99.7.3"],
    ["fd99:7::1", "fd99:7::2", "ff15::99:7"],
];
const RC: u16 = 7001;
const UC: u16 = 7002;
const REJECTS: u16 = 7003;
const NOBODY: u16 = 7004;
const UD: u16 = 7005;
/// A packet, two with an odd end, and many.
const LENGTHS: [usize; 6] = [0, 1, 3, 1024, 1026, 5000];

fn setup(address: SocketAddr) -> Setup {
    Setup {
        address,
        ..Setup::over(Transport::Roce)
    }
}

fn at(address: &str, port: u16) -> SocketAddr {
    (address.parse::<IpAddr>().unwrap(), port).into()
}

fn equip_as(qp_type: QpType, setup: &Setup, channel: EventChannel, id: CmId) -> End {
    if qp_type == QpType::Rc {
        return equip(setup, channel, id);
    }
    let context = id.verbs().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(1024, None, 0).unwrap();
    let attr = QpInitAttr {
        qp_type,
        ..QpInitAttr::rc(&cq, &cq)
    };
    let qp = id.create_qp(&pd, &attr).unwrap();
    let mr = pd.alloc_mr(setup.len, ALL).unwrap();
    End {
        channel,
        id,
        pd,
        cq,
        qp,
        mr,
    }
}

fn offer(end: &End) -> ConnParam {
    let mut private_data = end.mr.addr().to_be_bytes().to_vec();
    private_data.extend_from_slice(&end.mr.rkey().get().to_be_bytes());
    ConnParam {
        private_data,
        ..ConnParam::default()
    }
}

fn number(octets: &[u8]) -> u32 {
    u32::from_be_bytes(octets[..4].try_into().unwrap())
}

/// The other process; does nothing unless it is told to.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    for [_, own, group] in FAMILIES {
        let listeners = [RC, UC, REJECTS].map(|port| listener(&setup(at(own, port))));
        let channel = EventChannel::new().unwrap();
        let id = CmId::new(&channel, PortSpace::Udp, 0).unwrap();
        id.bind_addr(at(own, UD)).unwrap();
        id.listen(0).unwrap();
        eprintln!("listening at {own}");
        serve_connected(QpType::Rc, &listeners[0].0);
        serve_connected(QpType::Uc, &listeners[1].0);
        let request = expect(&listeners[2].0, EventKind::ConnectRequest);
        request.id().reject(b"not today").unwrap();
        serve_datagrams(&channel, own, group);
    }
    // The cable goes with this process, and with it what the capture has not taken out: it is
    // killed in the end.
    std::thread::sleep(3 * PATIENCE);
}

fn serve_connected(qp_type: QpType, channel: &EventChannel) {
    let request = expect(channel, EventKind::ConnectRequest);
    let setup = setup(request.id().local_addr().unwrap());
    let end = equip_as(qp_type, &setup, channel.clone(), request.id().clone());
    for n in 0..64 {
        end.recv(n, 0, 8192);
    }
    end.id.accept(&offer(&end)).unwrap();
    drop(expect(channel, EventKind::Established));
    let windows: Vec<_> = (0..2).map(|_| end.pd.alloc_mw(MwType::Type2)).collect();
    let region = end.pd.alloc_mr(64, ALL | Access::MW_BIND).unwrap();
    if qp_type == QpType::Rc {
        // What the peer may invalidate.
        let mut keys = Vec::new();
        for window in &windows {
            let window = window.as_ref().unwrap();
            let rkey = inc_rkey(window.rkey());
            let info = MwBindInfo {
                mr: &region,
                addr: region.addr(),
                length: 64,
                access: Access::REMOTE_READ,
            };
            let bind = SendWr::new(1, window.bind(rkey, &info), SendData::Sges(&[]));
            end.qp.post_send(&bind).unwrap();
            keys.extend(rkey.get().to_be_bytes());
        }
        end.send_inline(2, &keys, SendFlags::SIGNALED);
    }
    drop(expect(channel, EventKind::Disconnected));
    drop(expect(channel, EventKind::TimewaitExit));
}

fn serve_datagrams(channel: &EventChannel, own: &str, group: &str) {
    let request = expect(channel, EventKind::ConnectRequest);
    let id = request.id().clone();
    let context = id.verbs().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let qp = id.create_qp(&pd, &QpInitAttr::ud(&cq, &cq)).unwrap();
    let mr = pd.alloc_mr(4096, ALL).unwrap();
    let sges = [mr.sge(0, 2048)];
    let recv = RecvWr {
        wr_id: 1,
        sges: &sges,
    };
    for _ in 0..8 {
        qp.post_recv(&recv).unwrap();
    }
    id.join_multicast(at(group, 0)).unwrap();
    drop(expect(channel, EventKind::MulticastJoin));
    id.accept(&ConnParam::with_private_data(own)).unwrap();
    // Two for this queue pair, and one for the group.
    let got = poll(&cq, 3);
    assert!(got.iter().all(Wc::is_success), "{got:?}");
    eprintln!("datagrams came");
}

fn connect(qp_type: QpType, address: SocketAddr) -> (End, SendOp, SendOp) {
    let setup = setup(address);
    let (channel, id) = resolved(&setup, address);
    let end = equip_as(qp_type, &setup, channel, id);
    end.recv(1, 0, 64);
    end.id.connect(&offer(&end)).unwrap();
    let event = expect(&end.channel, EventKind::Established);
    let data = event.private_data();
    let remote_addr = u64::from_be_bytes(data[..8].try_into().unwrap());
    let rkey = Rkey::new(number(&data[8..]));
    let imm = 0xfeed_beef;
    let write_imm = SendOp::WriteWithImm {
        remote_addr,
        rkey,
        imm,
    };
    drop(event);
    (end, SendOp::Write { remote_addr, rkey }, write_imm)
}

fn reliable(address: SocketAddr) {
    let (end, write, write_imm) = connect(QpType::Rc, address);
    let SendOp::Write { remote_addr, rkey } = write else {
        unreachable!()
    };
    assert_eq!(end.success().byte_len, 8);
    let keys = end.read(0, 8);
    let invalidate = |at: usize| SendOp::SendWithInvalidate(Rkey::new(number(&keys[at..])));
    end.fill(0, 8192, 9);
    for len in LENGTHS {
        for op in [SendOp::Send, SendOp::SendWithImm(7), write, write_imm] {
            end.post(2, op, 0, len);
            end.success();
        }
        end.post(3, SendOp::Read { remote_addr, rkey }, 65_536, len);
        end.success();
    }
    end.post(4, invalidate(0), 0, 5);
    end.success();
    end.post(4, invalidate(4), 0, 1500);
    end.success();
    let add = 5;
    let swap = SendOp::CompareSwap {
        remote_addr,
        rkey,
        compare: 1,
        swap: 2,
    };
    for op in [
        SendOp::FetchAdd {
            remote_addr,
            rkey,
            add,
        },
        swap,
    ] {
        end.post(5, op, 65_536, 8);
        end.success();
    }
    end.send_inline(6, b"solicited", SendFlags::SIGNALED | SendFlags::SOLICITED);
    end.success();
    // A NAK: no such key.
    let rkey = Rkey::new(rkey.get() ^ 0x55);
    end.post(7, SendOp::Read { remote_addr, rkey }, 65_536, 8);
    assert!(!end.completions(1)[0].is_success());
    drop(expect(&end.channel, EventKind::Disconnected));
}

fn unreliable(address: SocketAddr) {
    let (end, write, write_imm) = connect(QpType::Uc, address);
    for len in LENGTHS {
        for op in [SendOp::Send, SendOp::SendWithImm(7), write, write_imm] {
            end.post(2, op, 0, len);
            end.success();
        }
    }
    end.id.disconnect().unwrap();
    drop(expect(&end.channel, EventKind::Disconnected));
}

fn refused(address: SocketAddr) {
    let setup = setup(address);
    let (channel, id) = resolved(&setup, address);
    let end = equip(&setup, channel, id);
    end.id.connect(&offer(&end)).unwrap();
    drop(expect(&end.channel, EventKind::Rejected));
}

fn datagrams(own: &str, address: SocketAddr, group: &str) {
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Udp, 0).unwrap();
    let own = (own.parse::<IpAddr>().unwrap(), 0).into();
    id.resolve_addr(Some(own), address, PATIENCE).unwrap();
    drop(expect(&channel, EventKind::AddrResolved));
    id.resolve_route(PATIENCE).unwrap();
    drop(expect(&channel, EventKind::RouteResolved));
    let context = id.verbs().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let qp = id.create_qp(&pd, &QpInitAttr::ud(&cq, &cq)).unwrap();
    id.connect(&ConnParam::with_private_data(*b"where"))
        .unwrap();
    let event = expect(&channel, EventKind::Established);
    let peer = event.param().ud.expect("where to send");
    drop(event);
    id.join_multicast(at(group, 0)).unwrap();
    let event = expect(&channel, EventKind::MulticastJoin);
    let all = event.param().ud.expect("where to send");
    drop(event);
    for (ud, op) in [
        (&peer, SendOp::Send),
        (&peer, SendOp::SendWithImm(3)),
        (&all, SendOp::Send),
    ] {
        let ah = pd.create_ah(&ud.ah_attr).unwrap();
        let to = UdAddress {
            ah: &ah,
            remote_qpn: ud.qp_num,
            remote_qkey: ud.qkey,
        };
        let wr = SendWr::new(1, op, SendData::Inline(b"datagram")).to(to);
        qp.post_send(&wr).unwrap();
        assert!(poll(&cq, 1)[0].is_success());
    }
    id.leave_multicast(at(group, 0)).unwrap();
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sh(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}

/// The other process in a namespace of its own, and the cable between. Devices take no packet that
/// still has to be cut up, so that frames are captured as they would be on a wire.
fn other_end() -> (Killed, impl Iterator<Item = String>) {
    let [[v4, other_v4, _], [v6, other_v6, _]] = FAMILIES;
    let script = format!(
        "ip link set lo up; until ip link set sv1 up 2>/dev/null; do sleep 0.02; done; \
         ip link set sv1 gso_max_segs 1; ip addr add {other_v4}/24 dev sv1; \
         ip addr add {other_v6}/64 dev sv1 nodad; exec \"$0\" \"$@\""
    );
    let mut child = Command::new("unshare")
        .args(["--net", "sh", "-ec", &script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, "serve")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let pid = child.id();
    let child = Killed(child);
    // It has its namespace once that differs from ours.
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    let end = Instant::now() + PATIENCE;
    while std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|theirs| theirs == own) {
        assert!(Instant::now() < end, "no namespace");
        std::thread::sleep(Duration::from_millis(5));
    }
    sh(&format!(
        "ip link add sv0 type veth peer name sv1 netns {pid}; ip link set sv0 gso_max_segs 1 up; \
         ip addr add {v4}/24 dev sv0; ip addr add {v6}/64 dev sv0 nodad"
    ));
    (child, lines.map_while(Result::ok))
}

fn capture(file: &Path) -> Result<Killed, String> {
    let mut child = Command::new("tshark")
        // Without -q it would write how many packets there are to a pipe that nobody reads.
        .args([
            "-q", "-i", "sv0", "-F", "pcap", "-B", "64", "-f", "udp", "-w",
        ])
        .arg(file)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("tshark: {error}"))?;
    let stderr = child.stderr.take().ok_or("no stderr")?;
    let child = Killed(child);
    let mut said = Vec::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if line.contains("Capturing on") {
            std::thread::sleep(Duration::from_millis(1500));
            return Ok(child);
        }
        said.push(line);
    }
    Err(said.join(" "))
}

#[test]
fn every_operation_of_every_service() {
    if !netns::inside("every_operation_of_every_service") {
        return;
    }
    let (_child, mut lines) = other_end();
    let mut said = |line: String| lines_contain(&mut lines, &line);
    let name = format!("softverbs-roce-{}.pcap", std::process::id());
    let file: PathBuf = std::env::temp_dir().join(name);
    let mut capturing = match capture(&file) {
        Ok(child) => child,
        Err(why) => {
            eprintln!("skipped: no capture: {why}");
            return;
        }
    };
    for [own, other, group] in FAMILIES {
        said(format!("listening at {other}"));
        reliable(at(other, RC));
        unreliable(at(other, UC));
        refused(at(other, REJECTS));
        refused(at(other, NOBODY));
        datagrams(own, at(other, UD), group);
        said("datagrams came".to_owned());
    }
    // The last frame of all, which may come late through the buffers of the capture.
    let group: std::net::Ipv6Addr = FAMILIES[1][2].parse().unwrap();
    let end = Instant::now() + PATIENCE;
    while !frames(&std::fs::read(&file).unwrap())
        .iter()
        .any(|packet| packet[0] >> 4 == 6 && packet[24..40] == group.octets())
    {
        assert!(Instant::now() < end, "the capture is not complete");
        std::thread::sleep(Duration::from_millis(100));
    }
    let pid = Pid::from_raw(i32::try_from(capturing.0.id()).unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    capturing.0.wait().unwrap();
    let frames = frames(&std::fs::read(&file).unwrap());
    check_icrcs(&frames);
    check_dissection(&file, frames.len());
    std::fs::remove_file(file).unwrap();
}

fn lines_contain(lines: &mut impl Iterator<Item = String>, words: &str) {
    let mut before = Vec::new();
    for line in lines {
        if line.contains(words) {
            return;
        }
        before.push(line);
    }
    panic!("the other process never says `{words}`: {before:#?}");
}

fn tshark(file: &Path, args: &[&str]) -> Vec<String> {
    let output = Command::new("tshark")
        // Protocols above InfiniBand: their dissectors take any short Send for their own.
        .args(["--disable-protocol", "rpcordma"])
        .args(["--disable-protocol", "smb_direct", "-r"])
        .arg(file)
        .args(args)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

fn check_dissection(file: &Path, frames: usize) {
    let complaints = tshark(
        file,
        &["-Y", "_ws.malformed || _ws.expert.severity >= warning"],
    );
    assert!(complaints.is_empty(), "{complaints:#?}");
    let others = tshark(file, &["-Y", "udp.port == 4791 && !infiniband"]);
    assert!(others.is_empty(), "{others:#?}");
    for family in ["ip", "ipv6"] {
        let filter = format!("infiniband && {family}");
        let numbers = |field: &str| -> BTreeSet<u32> {
            let lines = tshark(file, &["-Y", &filter, "-T", "fields", "-e", field]);
            let number = |word: &str| match word.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
                None => word.parse().unwrap(),
            };
            let words = lines.iter().flat_map(|line| line.split(','));
            words.filter(|word| !word.is_empty()).map(number).collect()
        };
        // RC but for the Acknowledge that nothing asks for, UC, and UD.
        let rc = (0..=20).chain([22, 23]);
        let expected: BTreeSet<u32> = rc.chain(0x20..=0x2b).chain([0x64, 0x65]).collect();
        assert_eq!(numbers("infiniband.bth.opcode"), expected, "{family}");
        // ConnectRequest, Reject, Reply, ReadyToUse, DisconnectRequest and its reply, the two of
        // datagrams.
        let expected = BTreeSet::from([0x10, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        assert_eq!(numbers("infiniband.mad.attributeid"), expected, "{family}");
        let syndromes = numbers("infiniband.aeth.syndrome");
        assert!(syndromes.iter().any(|syndrome| *syndrome >= 0x60), "a NAK");
    }
    let group = tshark(
        file,
        &["-Y", "ip.dst == 239.99.7.3 || ipv6.dst == ff15::99:7"],
    );
    let group: Vec<_> = group
        .iter()
        .filter(|line| line.contains("UD Send"))
        .collect();
    assert_eq!(group.len(), 2, "one datagram to each group");
    assert!(frames > 300, "{frames}");
}

/// The IP packets of a capture that go to UDP port 4791.
fn frames(pcap: &[u8]) -> Vec<Vec<u8>> {
    const ETHERNET: usize = 14;
    let mut rest = pcap.get(24..).unwrap_or_default();
    let mut found = Vec::new();
    while rest.len() >= 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        if rest.len() < 16 + len {
            break; // It is being written.
        }
        let packet = rest[16..16 + len][ETHERNET..].to_vec();
        rest = &rest[16 + len..];
        let (header, protocol) = match packet[0] >> 4 {
            4 => (20, packet[9]),
            _ => (40, packet[6]),
        };
        if protocol == 17 && packet[header + 2..header + 4] == 4791_u16.to_be_bytes() {
            found.push(packet);
        }
    }
    found
}

/// Every ICRC, reckoned bit by bit (InfiniBand Architecture, annex A17: RoCEv2).
fn check_icrcs(frames: &[Vec<u8>]) {
    for (index, packet) in frames.iter().enumerate() {
        let mut masked = packet.clone();
        let udp = if packet[0] >> 4 == 4 {
            // Type of service, time to live, checksum.
            for at in [1, 8, 10, 11] {
                masked[at] = 0xff;
            }
            20
        } else {
            // Traffic class, flow label, hop limit.
            masked[0] |= 0x0f;
            for at in [1, 2, 3, 7] {
                masked[at] = 0xff;
            }
            40
        };
        // The checksum of UDP, and the congestion bits.
        for at in [6, 7, 8 + 4] {
            masked[udp + at] = 0xff;
        }
        let (covered, _) = masked.split_at(masked.len() - 4);
        let mut crc = u32::MAX;
        for octet in [0xff; 8].iter().chain(covered) {
            crc ^= u32::from(*octet);
            for _ in 0..8 {
                let carry = crc & 1;
                crc >>= 1;
                if carry == 1 {
                    crc ^= 0xedb8_8320;
                }
            }
        }
        let stated = packet[packet.len() - 4..].try_into().unwrap();
        assert_eq!(
            u32::from_le_bytes(stated),
            !crc,
            "frame {index}: {packet:02x?}"
        );
    }
}
