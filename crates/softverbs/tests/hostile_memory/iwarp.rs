//! Attackers over TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use softverbs::Transport;
use softverbs::cm::EventKind;
use softverbs_wire::crc32c::Crc32c;
use softverbs_wire::ddp::{TaggedHeader, UntaggedHeader};
use softverbs_wire::mpa::fpdu::{Fpdu, Trailer, UlpduLength};
use softverbs_wire::num::{MessageOffset, Msn, QueueNumber, Stag, TaggedOffset};
use softverbs_wire::rdmap::{AtomicRequest, Opcode, ReadRequest};

use super::common::{PATIENCE, Setup, equip, expect, listener};
use super::{Bystander, Random, Regions, seeds, soon};

const REQUEST: &[u8] = b"MPA ID Req Frame\x50\x01\x00\x00";
const REPLY: &[u8] = b"MPA ID Rep Frame";

fn frame(ulpdu: &[u8], random: &mut Random) -> Vec<u8> {
    let length = UlpduLength::new(u16::try_from(ulpdu.len()).unwrap());
    let mut crc = Crc32c::new().update(&length.to_bytes()).update(ulpdu);
    if random.below(40) == 0 {
        crc = crc.update(b"!");
    }
    let trailer = Trailer::with_crc(length, crc);
    let mut octets = Vec::new();
    let fpdu = Fpdu {
        length,
        ulpdu,
        trailer,
    };
    fpdu.append_to(&mut octets);
    if random.below(40) == 0 {
        let at = random.below(octets.len());
        octets[at] ^= 1 << random.below(8);
    }
    octets
}

fn tagged(stag: u32, to: u64, payload: &[u8], random: &mut Random) -> Vec<u8> {
    let opcode = if random.below(12) == 0 {
        Opcode::READ_RESPONSE
    } else {
        Opcode::WRITE
    };
    let last = random.below(20) > 0;
    let header = TaggedHeader::new(opcode, last, Stag::new(stag), TaggedOffset::new(to));
    frame(&[&header.to_bytes(), payload].concat(), random)
}

fn untagged(opcode: Opcode, msn: u32, body: &[u8], stag: u32, random: &mut Random) -> Vec<u8> {
    let queue = match random.below(30) {
        0 => QueueNumber::new(random.word() % 8),
        _ => opcode.queue().unwrap(),
    };
    let msn = match random.below(20) {
        0 => random.word(),
        1 => msn.wrapping_add(1),
        _ => msn,
    };
    let mo = match random.below(20) {
        0 => random.word(),
        _ => 0,
    };
    let last = random.below(20) > 0;
    let mut header =
        UntaggedHeader::new(opcode, last, queue, Msn::new(msn), MessageOffset::new(mo));
    header.invalidate_stag = Stag::new(stag);
    frame(&[&header.to_bytes(), body].concat(), random)
}

/// The next frame of an attacker; `msns` count what has gone to the queues.
fn attack(regions: &Regions, msns: &mut [u32; 2], random: &mut Random) -> Vec<u8> {
    let region = regions.any(random);
    let key = regions.key(random, region);
    let len = random.len();
    let address = random.address(region, len);
    let payload = vec![0xee; len];
    match random.below(8) {
        0..4 => tagged(key, address, &payload, random),
        4 => {
            msns[0] += 1;
            let opcode = match random.below(3) {
                0 => Opcode::SEND_INVALIDATE,
                1 => Opcode::SEND_SE,
                _ => Opcode::SEND,
            };
            untagged(opcode, msns[0], &payload, key, random)
        }
        5 | 6 => {
            msns[1] += 1;
            let size = match random.below(4) {
                0 => random.word(),
                _ => u32::try_from(len).unwrap(),
            };
            let request = ReadRequest {
                sink_stag: Stag::new(random.word()),
                sink_to: TaggedOffset::new(random.next()),
                size,
                source_stag: Stag::new(key),
                source_to: TaggedOffset::new(address),
            };
            let opcode = Opcode::READ_REQUEST;
            untagged(opcode, msns[1], &request.to_bytes(), 0, random)
        }
        _ => {
            msns[1] += 1;
            let add = random.next();
            let request =
                AtomicRequest::fetch_add(9, Stag::new(key), TaggedOffset::new(address & !7), add);
            let opcode = Opcode::ATOMIC_REQUEST;
            untagged(opcode, msns[1], &request.to_bytes(), 0, random)
        }
    }
}

/// A Write as it should be.
fn honest(regions: &Regions, word: u64) -> Vec<u8> {
    let opcode = Opcode::WRITE;
    let (stag, to) = (regions.open.mr.rkey().get(), regions.open.mr.addr());
    let header = TaggedHeader::new(opcode, true, Stag::new(stag), TaggedOffset::new(to));
    let ulpdu = [&header.to_bytes()[..], &word.to_be_bytes()].concat();
    let length = UlpduLength::new(u16::try_from(ulpdu.len()).unwrap());
    let crc = Crc32c::new().update(&length.to_bytes()).update(&ulpdu);
    let mut octets = Vec::new();
    Fpdu {
        length,
        ulpdu: &ulpdu,
        trailer: Trailer::with_crc(length, crc),
    }
    .append_to(&mut octets);
    octets
}

#[test]
fn nothing_outside_a_region_is_touched() {
    let setup = Setup::over(Transport::Iwarp);
    let bystander = Bystander::new(Transport::Iwarp);
    let (channel, _listening, address) = listener(&setup);
    let (mut landed, mut ended, mut accepted) = (0, 0, 0_u32);
    for seed in 1..=u64::from(seeds()) {
        let mut random = Random::new(seed);
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(REQUEST).unwrap();
        let request = expect(&channel, EventKind::ConnectRequest);
        let server = equip(&setup, channel.clone(), request.id().clone());
        drop(request);
        let other = server.id.verbs().unwrap().alloc_pd().unwrap();
        let regions = Regions::new(&server.pd, &other, &mut random);
        for wr_id in 0..8 {
            server.recv(wr_id, 64 * random.below(100), random.below(900));
        }
        server.id.accept(&setup.param).unwrap();
        let mut reply = [0; 20];
        socket.read_exact(&mut reply).unwrap();
        assert_eq!(&reply[..16], REPLY);
        socket.set_nonblocking(true).unwrap();
        let mut msns = [0; 2];
        // The first is honest, so that what follows is sent to an open connection.
        for word in 1..40_u64 {
            let mut octets = honest(&regions, word);
            if socket.write_all(&octets).is_err()
                || !soon(|| regions.open.word() == word || is_over(&mut socket))
            {
                break;
            }
            if regions.open.word() != word {
                break;
            }
            landed += 1;
            octets = attack(&regions, &mut msns, &mut random);
            for piece in octets.chunks(1 + random.below(900)) {
                accepted += u32::from(socket.write_all(piece).is_ok());
            }
        }
        ended += u32::from(is_over(&mut socket));
        regions.check(seed);
        bystander.lives(seed);
        drop(socket);
        drop(expect(&channel, EventKind::Established));
        drop(expect(&channel, EventKind::Disconnected));
    }
    // They have met open connections, and most were thrown out.
    let attackers = seeds();
    assert!(
        landed > attackers + attackers / 8,
        "{landed} honest Writes landed"
    );
    assert!(
        accepted > attackers && ended > attackers / 2,
        "{accepted} {ended}"
    );
}

/// Reads what has come, Read Responses among it; whether the connection has ended.
fn is_over(socket: &mut TcpStream) -> bool {
    let mut room = [0; 4096];
    loop {
        match socket.read(&mut room) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}
