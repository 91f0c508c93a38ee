use super::*;
use crate::codec::{Malformed, Reader, emitted_over_noise};
use crate::ib::PacketError;
use crate::ib::mad::{AttributeId, DATA_LEN, MAD_LEN, MadHeader, Method, MgmtClass};
use crate::ib::tests::layout::layout;
use crate::num::{
    CommId, Eecn, FlowLabel, Gid, Guid, Lid, MtuCode, Pkey, Psn, Qkey, Qpn, RetryCount, ServiceId,
    TimeoutCode, TransactionId,
};

const ID: CommId = CommId::new(u32::MAX);
const QPN: Qpn = Qpn::new(u32::MAX);
const QKEY: Qkey = Qkey::new(u32::MAX);
const EECN: Eecn = Eecn::new(u32::MAX);
const PSN: Psn = Psn::new(u32::MAX);
const GUID: Guid = Guid::new(u64::MAX);
const SERVICE: ServiceId = ServiceId::new(u64::MAX);
const TIMEOUT: TimeoutCode = TimeoutCode::MAX;
const RETRY: RetryCount = RetryCount::MAX;
const LID: Lid = Lid::PERMISSIVE;
const GID: Gid = Gid::new([0xff; 16]);
const FLOW: FlowLabel = FlowLabel::new(u32::MAX);

const fn ones<const N: usize>() -> PrivateData<N> {
    PrivateData::from_array([0xff; N])
}

#[test]
fn mad_header() {
    let zero = Reader::all(&[0; MadHeader::LEN], MadHeader::parse).unwrap();
    layout!(MadHeader, MadHeader::LEN, zero, {
        base_version = 0xff, [0 0] 8;
        class = MgmtClass::new(0xff), [1 0] 8;
        class_version = 0xff, [2 0] 8;
        method = Method::new(0xff), [3 0] 8;
        status = u16::MAX, [4 0] 16;
        class_specific = u16::MAX, [6 0] 16;
        transaction_id = TransactionId::new(u64::MAX), [8 0] 64;
        attribute = AttributeId::new(u16::MAX), [16 0] 16;
        reserved = u16::MAX, [18 0] 16;
        attribute_modifier = u32::MAX, [20 0] 32;
    });
}

#[test]
fn numbers_of_management_datagrams() {
    assert_eq!(AttributeId::CLASS_PORT_INFO.to_string(), "attribute 0x0001");
    assert_eq!(MgmtClass::new(3).to_string(), "class 0x03");
    for (method, name) in [
        (0x01, "Get"),
        (0x03, "Send"),
        (0x81, "GetResp"),
        (0x02, "method 0x02"),
    ] {
        assert_eq!(Method::new(method).to_string(), name);
    }
}

#[test]
fn req() {
    layout!(Req, DATA_LEN, Req::default(), {
        local_comm_id = ID, [0 0] 32;
        reserved4 = 0xff, [4 0] 8;
        vendor_id = 0x00ff_ffff, [5 0] 24;
        service_id = SERVICE, [8 0] 64;
        local_ca_guid = GUID, [16 0] 64;
        reserved24 = u32::MAX, [24 0] 32;
        local_qkey = QKEY, [28 0] 32;
        local_qpn = QPN, [32 0] 24;
        responder_resources = 0xff, [35 0] 8;
        local_eecn = EECN, [36 0] 24;
        initiator_depth = 0xff, [39 0] 8;
        remote_eecn = EECN, [40 0] 24;
        remote_cm_response_timeout = TIMEOUT, [43 0] 5;
        transport_service = TransportService::EXTENDED, [43 5] 2;
        end_to_end_flow_control = true, [43 7] 1;
        starting_psn = PSN, [44 0] 24;
        local_cm_response_timeout = TIMEOUT, [47 0] 5;
        retry_count = RETRY, [47 5] 3;
        pkey = Pkey::DEFAULT, [48 0] 16;
        path_mtu = MtuCode::new(15), [50 0] 4;
        rdc_exists = true, [50 4] 1;
        rnr_retry_count = RETRY, [50 5] 3;
        max_cm_retries = 15, [51 0] 4;
        srq = true, [51 4] 1;
        extended_transport = 7, [51 5] 3;
        primary_path.local_lid = LID, [52 0] 16;
        primary_path.remote_lid = LID, [54 0] 16;
        primary_path.local_gid = GID, [56 0] 128;
        primary_path.remote_gid = GID, [72 0] 128;
        primary_path.flow_label = FLOW, [88 0] 20;
        primary_path.reserved = 0xfc0, [90 4] 6;
        primary_path.packet_rate = 0x3f, [91 2] 6;
        primary_path.traffic_class = 0xff, [92 0] 8;
        primary_path.hop_limit = 0xff, [93 0] 8;
        primary_path.sl = 15, [94 0] 4;
        primary_path.subnet_local = true, [94 4] 1;
        primary_path.reserved = 0x038, [94 5] 3;
        primary_path.local_ack_timeout = TIMEOUT, [95 0] 5;
        primary_path.reserved = 0x007, [95 5] 3;
        alternate_path.local_lid = LID, [96 0] 16;
        alternate_path.remote_lid = LID, [98 0] 16;
        alternate_path.local_gid = GID, [100 0] 128;
        alternate_path.remote_gid = GID, [116 0] 128;
        alternate_path.flow_label = FLOW, [132 0] 20;
        alternate_path.reserved = 0xfc0, [134 4] 6;
        alternate_path.packet_rate = 0x3f, [135 2] 6;
        alternate_path.traffic_class = 0xff, [136 0] 8;
        alternate_path.hop_limit = 0xff, [137 0] 8;
        alternate_path.sl = 15, [138 0] 4;
        alternate_path.subnet_local = true, [138 4] 1;
        alternate_path.reserved = 0x038, [138 5] 3;
        alternate_path.local_ack_timeout = TIMEOUT, [139 0] 5;
        alternate_path.reserved = 0x007, [139 5] 3;
        private_data = ones(), [140 0] 92 * 8;
    });
    let mut req = Req::default();
    assert!(!req.has_alternate_path());
    req.alternate_path.local_lid = Lid::new(1);
    assert!(req.has_alternate_path());
}

#[test]
fn rep() {
    layout!(Rep, DATA_LEN, Rep::default(), {
        local_comm_id = ID, [0 0] 32;
        remote_comm_id = ID, [4 0] 32;
        local_qkey = QKEY, [8 0] 32;
        local_qpn = QPN, [12 0] 24;
        vendor_id = 0x00ff_0000, [15 0] 8;
        local_eecn = EECN, [16 0] 24;
        vendor_id = 0x0000_ff00, [19 0] 8;
        starting_psn = PSN, [20 0] 24;
        vendor_id = 0x0000_00ff, [23 0] 8;
        responder_resources = 0xff, [24 0] 8;
        initiator_depth = 0xff, [25 0] 8;
        target_ack_delay = TIMEOUT, [26 0] 5;
        failover_accepted = 3, [26 5] 2;
        end_to_end_flow_control = true, [26 7] 1;
        rnr_retry_count = RETRY, [27 0] 3;
        srq = true, [27 3] 1;
        reserved = 15, [27 4] 4;
        local_ca_guid = GUID, [28 0] 64;
        private_data = ones(), [36 0] 196 * 8;
    });
}

#[test]
fn mra_and_rej() {
    layout!(Mra, DATA_LEN, Mra::default(), {
        local_comm_id = ID, [0 0] 32;
        remote_comm_id = ID, [4 0] 32;
        message = MessageKind::new(3), [8 0] 2;
        reserved = 0x1f8, [8 2] 6;
        service_timeout = TIMEOUT, [9 0] 5;
        reserved = 0x007, [9 5] 3;
        private_data = ones(), [10 0] 222 * 8;
    });
    layout!(Rej, DATA_LEN, Rej::default(), {
        local_comm_id = ID, [0 0] 32;
        remote_comm_id = ID, [4 0] 32;
        message = MessageKind::new(3), [8 0] 2;
        reserved = 0x7e, [8 2] 6;
        info_len = 0x7f, [9 0] 7;
        reserved = 0x01, [9 7] 1;
        reason = RejReason::new(u16::MAX), [10 0] 16;
        info = ones(), [12 0] 72 * 8;
        private_data = ones(), [84 0] 148 * 8;
    });
}

#[test]
fn rtu_dreq_drep() {
    layout!(Rtu, DATA_LEN, Rtu::default(), {
        local_comm_id = ID, [0 0] 32;
        remote_comm_id = ID, [4 0] 32;
        private_data = ones(), [8 0] 224 * 8;
    });
    layout!(Dreq, DATA_LEN, Dreq::default(), {
        local_comm_id = ID, [0 0] 32;
        remote_comm_id = ID, [4 0] 32;
        remote_qpn = QPN, [8 0] 24;
        reserved = 0xff, [11 0] 8;
        private_data = ones(), [12 0] 220 * 8;
    });
    layout!(Drep, DATA_LEN, Drep::default(), {
        local_comm_id = ID, [0 0] 32;
        remote_comm_id = ID, [4 0] 32;
        private_data = ones(), [8 0] 224 * 8;
    });
}

#[test]
fn sidr() {
    layout!(SidrReq, DATA_LEN, SidrReq::default(), {
        request_id = ID, [0 0] 32;
        pkey = Pkey::DEFAULT, [4 0] 16;
        reserved = u16::MAX, [6 0] 16;
        service_id = SERVICE, [8 0] 64;
        private_data = ones(), [16 0] 216 * 8;
    });
    layout!(SidrRep, DATA_LEN, SidrRep::default(), {
        request_id = ID, [0 0] 32;
        status = SidrStatus::new(0xff), [4 0] 8;
        info_len = 0xff, [5 0] 8;
        vendor_id = 0x00ff_ff00, [6 0] 16;
        qpn = QPN, [8 0] 24;
        vendor_id = 0x0000_00ff, [11 0] 8;
        service_id = SERVICE, [12 0] 64;
        qkey = QKEY, [20 0] 32;
        info = ones(), [24 0] 72 * 8;
        private_data = ones(), [96 0] 136 * 8;
    });
}

#[test]
fn lap_and_apr() {
    layout!(Lap, DATA_LEN, Lap::default(), {
        local_comm_id = ID, [0 0] 32;
        remote_comm_id = ID, [4 0] 32;
        reserved8 = u32::MAX, [8 0] 32;
        remote_qpn = QPN, [12 0] 24;
        remote_cm_response_timeout = TIMEOUT, [15 0] 5;
        reserved15 = 7, [15 5] 3;
        reserved16 = u32::MAX, [16 0] 32;
        alternate_path.local_lid = LID, [20 0] 16;
        alternate_path.remote_lid = LID, [22 0] 16;
        alternate_path.local_gid = GID, [24 0] 128;
        alternate_path.remote_gid = GID, [40 0] 128;
        alternate_path.flow_label = FLOW, [56 0] 20;
        alternate_path.reserved = 0xf00, [58 4] 4;
        alternate_path.traffic_class = 0xff, [59 0] 8;
        alternate_path.hop_limit = 0xff, [60 0] 8;
        alternate_path.reserved = 0x0c0, [61 0] 2;
        alternate_path.packet_rate = 0x3f, [61 2] 6;
        alternate_path.sl = 15, [62 0] 4;
        alternate_path.subnet_local = true, [62 4] 1;
        alternate_path.reserved = 0x038, [62 5] 3;
        alternate_path.local_ack_timeout = TIMEOUT, [63 0] 5;
        alternate_path.reserved = 0x007, [63 5] 3;
        private_data = ones(), [64 0] 168 * 8;
    });
    layout!(Apr, DATA_LEN, Apr::default(), {
        local_comm_id = ID, [0 0] 32;
        remote_comm_id = ID, [4 0] 32;
        info_len = 0xff, [8 0] 8;
        status = ApStatus::new(0xff), [9 0] 8;
        reserved = u16::MAX, [10 0] 16;
        info = ones(), [12 0] 72 * 8;
        private_data = ones(), [84 0] 148 * 8;
    });
}

#[test]
fn bits_beyond_their_fields_are_dropped() {
    let mut req = Req {
        vendor_id: 0xff00_0000,
        max_cm_retries: 0xf0,
        extended_transport: 0xf8,
        ..Req::default()
    };
    req.primary_path.packet_rate = 0xc0;
    req.primary_path.sl = 0xf0;
    req.primary_path.reserved = 0xf000;
    assert_eq!(req.to_bytes(), [0; DATA_LEN]);
    let rep = Rep {
        vendor_id: 0xff00_0000,
        failover_accepted: 0xfc,
        reserved: 0xf0,
        ..Rep::default()
    };
    assert_eq!(rep.to_bytes(), [0; DATA_LEN]);
    let mra = Mra {
        reserved: 0xfe00,
        ..Mra::default()
    };
    assert_eq!(mra.to_bytes(), [0; DATA_LEN]);
    let rej = Rej {
        info_len: 0x80,
        reserved: 0x80,
        ..Rej::default()
    };
    assert_eq!(rej.to_bytes(), [0; DATA_LEN]);
    let mut lap = Lap {
        reserved15: 0xf8,
        ..Lap::default()
    };
    lap.alternate_path.packet_rate = 0xc0;
    lap.alternate_path.reserved = 0xf000;
    assert_eq!(lap.to_bytes(), [0; DATA_LEN]);
}

/// Each message under its attribute, with the names that both sides have for the connection.
#[test]
fn any_message() {
    let (local, remote) = (CommId::new(0x11), CommId::new(0x22));
    let mut octets = [0; DATA_LEN];
    octets[3] = 0x11;
    octets[7] = 0x22;
    for (attribute, name, ids) in [
        (0x10, "REQ", (Some(local), None)),
        (0x11, "MRA", (Some(local), Some(remote))),
        (0x12, "REJ", (Some(local), Some(remote))),
        (0x13, "REP", (Some(local), Some(remote))),
        (0x14, "RTU", (Some(local), Some(remote))),
        (0x15, "DREQ", (Some(local), Some(remote))),
        (0x16, "DREP", (Some(local), Some(remote))),
        (0x17, "SIDR_REQ", (Some(local), None)),
        (0x18, "SIDR_REP", (None, Some(local))),
        (0x19, "LAP", (Some(local), Some(remote))),
        (0x1a, "APR", (Some(local), Some(remote))),
    ] {
        let attribute = AttributeId::new(attribute);
        let mut reader = Reader::new(&octets);
        let message = Message::parse(attribute, &mut reader).unwrap();
        assert!(reader.is_empty());
        assert_eq!(message.attribute(), attribute);
        assert_eq!(message.name(), name);
        assert!(message.to_string().starts_with(name), "{message}");
        assert_eq!((message.local_comm_id(), message.remote_comm_id()), ids);
        let again = emitted_over_noise(DATA_LEN, |writer| message.emit(writer));
        assert_eq!(again, octets);

        let mad = Mad::new(TransactionId::new(7), message);
        let octets = mad.to_bytes();
        assert_eq!(Mad::parse(&octets), Ok(mad));
        // The attribute is the message's, whatever the header says.
        let mut other = mad;
        other.header.attribute = AttributeId::CLASS_PORT_INFO;
        assert_eq!(other.to_bytes(), octets);
    }
}

/// The header of a captured datagram, and what is not one of ours.
#[test]
fn datagrams() {
    let header = [
        0x01, 0x07, 0x02, 0x03, 0, 0, 0, 0, 0, 0, 0, 2, 0x0a, 0x4b, 0x66, 0x61, // up to TID
        0x00, 0x14, 0, 0, 0, 0, 0, 0,
    ];
    let mut octets = [0; MAD_LEN];
    octets[..MadHeader::LEN].copy_from_slice(&header);
    let mad = Mad::new(TransactionId::new(0x2_0a4b_6661), Rtu::default());
    assert_eq!(Mad::parse(&octets), Ok(mad));
    assert_eq!(mad.to_bytes(), octets);
    assert_eq!(
        mad.header.to_string(),
        "CM Send attribute 0x0014 transaction 0x000000020a4b6661"
    );
    assert_eq!(
        mad.to_string(),
        "RTU 0x00000000 to 0x00000000, transaction 0x000000020a4b6661"
    );
    for (at, value, error) in [
        (0, 2, PacketError::MadClass),
        (1, 3, PacketError::MadClass),
        (2, 1, PacketError::MadClass),
        (3, 0x81, PacketError::MadClass),
        (16, 1, PacketError::UnknownAttribute),
        (17, 1, PacketError::UnknownAttribute),
        (17, 0x0f, PacketError::UnknownAttribute),
        (17, 0x1b, PacketError::UnknownAttribute),
    ] {
        let mut wrong = octets;
        wrong[at] = value;
        assert_eq!(Mad::parse(&wrong), Err(error), "octet {at} = {value}");
    }
    // Not asked about: status, options.
    octets[5] = 1;
    octets[23] = 1;
    let mad = Mad::parse(&octets).unwrap();
    assert_eq!((mad.header.status, mad.header.attribute_modifier), (1, 1));
    assert_eq!(mad.to_bytes(), octets);
    assert!(mad.header.to_string().ends_with(" status 0x0001"));
    for len in 0..MAD_LEN {
        let truncated = Err(PacketError::Malformed(Malformed::Truncated));
        assert_eq!(Mad::parse(&octets[..len]), truncated);
    }
    let long = [octets.as_slice(), &[0]].concat();
    let trailing = Err(PacketError::Malformed(Malformed::TrailingOctets));
    assert_eq!(Mad::parse(&long), trailing);
}

#[test]
fn private_data() {
    let data = PrivateData::<4>::new(&[1, 2]).unwrap();
    assert_eq!(*data.as_array(), [1, 2, 0, 0]);
    assert_eq!(data.to_string(), "0102");
    assert_eq!(format!("{data:?}"), "PrivateData<4>(0102)");
    assert_eq!(PrivateData::<4>::default().to_string(), "empty");
    assert_eq!(PrivateData::<4>::new(&[0, 7]).unwrap().to_string(), "0007");
    assert_eq!(
        PrivateData::<4>::new(&[1; 4]),
        Some(PrivateData::from_array([1; 4]))
    );
    assert_eq!(PrivateData::<4>::new(&[1; 5]), None);
    assert_eq!(PrivateData::<4>::LEN, 4);
}

#[test]
fn codes_in_words() {
    assert_eq!(
        RejReason::INVALID_SERVICE_ID.to_string(),
        "invalid service ID"
    );
    assert_eq!(RejReason::new(34).to_string(), "reason 34");
    assert_eq!(RejReason::new(0).name(), None);
    assert_eq!(RejReason::ALL.len(), 34);
    for (code, reason) in (1..).zip(&RejReason::ALL[..33]) {
        assert_eq!(reason.get(), code);
    }
    assert_eq!(RejReason::VENDOR_OPTION_NOT_SUPPORTED.get(), 35);
    assert_eq!(SidrStatus::REJECT.get(), 2);
    assert_eq!(SidrStatus::new(9).to_string(), "status 9");
    assert_eq!(MessageKind::new(0xff).get(), 3);
    assert_eq!(TransportService::UC.to_string(), "UC");
    for (code, status) in (0..).zip(ApStatus::ALL) {
        assert_eq!(status.get(), code);
    }
    let rej = Rej {
        local_comm_id: CommId::new(1),
        reason: RejReason::CONSUMER,
        ..Rej::default()
    };
    assert_eq!(
        rej.to_string(),
        "REJ 0x00000001 to 0x00000000: of REQ, consumer reject (28)"
    );
}
