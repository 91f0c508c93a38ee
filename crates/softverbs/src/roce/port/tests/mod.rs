//! Ports against each other, in one process and in several.

mod lanes;
mod processes;
mod speed;
pub(super) mod traffic;
mod trains;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use softverbs_proto::memory::MemoryFault;
use softverbs_proto::time::Time;
use softverbs_wire::ib::mad::MAD_LEN;
use softverbs_wire::ib::{Bth, Headers, Opcode, Packet};
use softverbs_wire::num::{Psn, Qpn};

use super::send::{Buffer, Packets};
use super::*;

pub(super) const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A folder that goes with its test.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn new() -> Self {
        let mut octets = [0; 8];
        getrandom::fill(&mut octets).unwrap();
        let name = format!("softverbs-test-{:016x}", u64::from_ne_bytes(octets));
        let path = std::env::temp_dir().join(name);
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A UDP port that is free now.
fn free_port() -> u16 {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.local_addr().unwrap().port()
}

/// Packets that exist as octets, without the ICRC.
pub(super) struct Octets(pub(super) Vec<Vec<u8>>);

impl Packets for Octets {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn together(&self, _: usize) -> u32 {
        1
    }

    fn len_of(&self, index: usize, _: u32) -> usize {
        self.0[index].len()
    }

    fn write(
        &self,
        index: usize,
        _: u32,
        place: &mut [u8],
    ) -> std::result::Result<(), MemoryFault> {
        place.copy_from_slice(&self.0[index]);
        Ok(())
    }
}

/// A packet of UC, without the ICRC. The payload is made from the number.
pub(super) fn packet(to: Qpn, psn: u32, payload_len: usize) -> Vec<u8> {
    let bth = Bth::new(Opcode::UC_SEND_ONLY, to, Psn::new(psn));
    let mut octets = Vec::new();
    Headers::new(bth).append_to(&mut octets);
    octets.extend((0..payload_len).map(|at| payload_octet(psn, at)));
    octets
}

#[allow(clippy::cast_possible_truncation, reason = "any octet will do")]
fn payload_octet(psn: u32, at: usize) -> u8 {
    (psn as usize * 31 + at) as u8
}

/// What a queue pair got.
#[derive(Default)]
pub(super) struct Got {
    packets: Mutex<Vec<(u32, usize, ReceivedFrom)>>,
    bursts: AtomicU32,
}

impl Got {
    pub(super) fn count(&self) -> usize {
        self.packets.lock().unwrap().len()
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        self.packets
            .lock()
            .unwrap()
            .iter()
            .map(|got| got.0)
            .collect()
    }
}

impl PacketSink for Got {
    fn packet(&self, _: Time, packet: &Packet<'_>, meta: &PacketMeta, from: &ReceivedFrom) {
        let psn = packet.headers.bth.psn.get();
        for (at, octet) in packet.payload.iter().enumerate() {
            assert_eq!(*octet, payload_octet(psn, at), "packet {psn}, octet {at}");
        }
        assert_eq!(meta.len, packet.packet_len());
        let got = (psn, packet.payload.len(), *from);
        self.packets.lock().unwrap().push(got);
    }

    fn burst_end(&self) {
        self.bursts.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a connection manager got.
#[derive(Default)]
struct Mads(Mutex<Vec<(ReceivedFrom, [u8; MAD_LEN])>>);

impl GsiSink for Mads {
    fn mad(&self, _: Time, from: &ReceivedFrom, mad: &[u8; MAD_LEN]) {
        self.0.lock().unwrap().push((*from, *mad));
    }
}

/// A queue pair of a port.
pub(super) fn queue_pair(port: &Port) -> (Qpn, Arc<Got>) {
    let got = Arc::new(Got::default());
    let qpn = port.alloc_qpn().unwrap();
    let sink: Weak<Got> = Arc::downgrade(&got);
    port.register(qpn, sink);
    (qpn, got)
}

/// Waits for something that another thread does.
#[track_caller]
pub(super) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
