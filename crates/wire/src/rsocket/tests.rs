use std::net::SocketAddr;

use super::*;
use crate::codec::{Malformed, Reader, emitted_over_noise};
use crate::num::{Qpn, Rkey};

/// From the request in `siw-rstream.pcap`.
const CONNECT: [u8; 40] = [
    0x01, 0x02, 0x01, 0x80, 0, 0, 0, 0, 0, 0, 0x55, 0xb9, 0xaa, 0x27, 0x90, 0, 0x7c, 0xed, 0x61, 0,
    0, 0, 0, 2, 0, 0, 0x7f, 0x11, 0xad, 0x64, 0xd0, 0, 0x6e, 0xd1, 0x82, 0, 0, 0x08, 0, 0,
];

#[test]
fn connection_data_of_a_real_peer() {
    let data = Reader::all(&CONNECT, ConnectData::parse).unwrap();
    let expected = ConnectData {
        credits: 384,
        target_list: RemoteBuffer {
            addr: 0x55b9_aa27_9000,
            rkey: Rkey::new(0x7ced_6100),
            length: 2,
        },
        window: RemoteBuffer {
            addr: 0x7f11_ad64_d000,
            rkey: Rkey::new(0x6ed1_8200),
            length: 1 << 19,
        },
        ..ConnectData::new(ByteOrder::Little)
    };
    assert_eq!(data, expected);
    assert_eq!(data.order(), ByteOrder::Little);
    assert!(data.has_iomap());
    assert_eq!(data.to_bytes(), CONNECT);
    assert_eq!(
        emitted_over_noise(ConnectData::LEN, |writer| data.emit(writer)),
        CONNECT
    );
    let short = Reader::all(&CONNECT[..39], ConnectData::parse);
    assert_eq!(short, Err(Malformed::Truncated));
    assert_eq!(
        ConnectData::new(ByteOrder::Big).order(),
        ByteOrder::Big,
        "{}",
        data
    );
}

/// From `siw-rstream.pcap`: the first write of the responder and the message behind it.
#[test]
fn entries_and_messages_are_in_the_order_of_a_host() {
    let octets = [
        0, 0xe0, 0x8a, 0xb9, 0x4f, 0x7f, 0, 0, 0, 0x3b, 0x28, 0xe5, 0, 0, 8, 0,
    ];
    let parse = |order| Reader::all(&octets, |reader| RemoteBuffer::parse(reader, order)).unwrap();
    let entry = parse(ByteOrder::Little);
    assert_eq!(
        (entry.addr, entry.rkey, entry.length),
        (0x7f4f_b98a_e000, Rkey::new(0xe528_3b00), 1 << 19)
    );
    assert_eq!(entry.to_bytes(ByteOrder::Little), octets);
    let swapped = parse(ByteOrder::Big);
    assert_eq!(swapped.length, 0x0000_0800);
    assert_eq!(swapped.to_bytes(ByteOrder::Big), octets);

    let message = Message::from_bytes([0x80, 1, 0, 0x80], ByteOrder::Little);
    assert_eq!(message, Message::Window(384));
    assert_eq!(message.to_bytes(ByteOrder::Little), [0x80, 1, 0, 0x80]);
    assert_eq!(message.to_bytes(ByteOrder::Big), [0x80, 0, 1, 0x80]);
    assert_eq!(
        Message::new(0xe000_0000),
        Message::Control(Control::Disconnect)
    );
}

#[test]
fn every_message_keeps_its_bits() {
    for bits in [
        0,
        1,
        0x1fff_ffff,
        0x8000_0180,
        0xc000_0003,
        0xe000_0000,
        0xe000_0001,
        0xe000_0002,
        0xe000_0003,
        0x2000_0001,
        0x4000_0001,
        0x6000_0001,
        0xa000_0001,
        u32::MAX,
    ] {
        let message = Message::new(bits);
        assert_eq!(message.get(), bits, "{message}");
    }
}

#[test]
fn sizes_of_the_table_of_regions() {
    for entries in 0..=128 {
        assert_eq!(IomapSize::at_most(entries).entries(), entries);
    }
    for (asked, given) in [
        (129, 128),
        (255, 128),
        (256, 256),
        (1000, 768),
        (u16::MAX, 0x7f00),
    ] {
        assert_eq!(IomapSize::at_most(asked).entries(), given, "{asked}");
    }
}

#[test]
fn datagram_headers() {
    for (text, len) in [("10.77.0.2:7471", 8), ("[fd00::2]:7471", 24)] {
        let source: SocketAddr = text.parse().unwrap();
        let header = DatagramHeader { source };
        assert_eq!(header.len(), len);
        let octets = emitted_over_noise(len, |writer| header.emit(writer));
        assert_eq!(
            Reader::all(&octets, DatagramHeader::parse),
            Ok(Some(header))
        );
        let mut reader = Reader::new(&octets[..len - 1]);
        assert_eq!(
            DatagramHeader::parse(&mut reader),
            Err(Malformed::Truncated)
        );

        let probe = ProbeHeader {
            op: DatagramOp::Control,
            qpn: Qpn::new(0x1234),
            address: source.ip(),
        };
        let octets = emitted_over_noise(probe.len(), |writer| probe.emit(writer));
        assert_eq!(Reader::all(&octets, ProbeHeader::parse), Ok(Some(probe)));
    }
    let header = DatagramHeader {
        source: "10.77.0.2:7471".parse().unwrap(),
    };
    assert_eq!(
        emitted_over_noise(8, |writer| header.emit(writer)),
        [4, 8, 0x1d, 0x2f, 10, 77, 0, 2]
    );
    assert_eq!(
        DatagramHeader::parse(&mut Reader::new(&[4, 9, 0, 1, 1, 2, 3, 4])),
        Ok(None)
    );
    let stranger = [0x47; 40];
    assert_eq!(ProbeHeader::parse(&mut Reader::new(&stranger)), Ok(None));
}
