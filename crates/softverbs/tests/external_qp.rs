//! Identifiers without a queue pair: the application's own is named by its number, and moved by
//! what `init_qp_attr` says.

mod common;

use std::time::Duration;

use common::{ALL, End, PATIENCE, Setup, expect, listener, no_event, resolved};
use softverbs::cm::{CmId, CmOption, ConnParam, EventChannel, EventKind, PortSpace};
use softverbs::{Access, Qp, QpAttrMask, QpInitAttr, QpState, SendFlags, Transport};

common::over_both! {
    connects_the_queue_pair_that_it_names,
    tells_attributes_only_when_they_are_known,
    names_a_queue_pair_that_does_not_exist,
    a_destroyed_identifier_ends_its_attempt,
    becomes_synchronous_and_back,
}

/// Objects of the application's, none of them the identifier's.
fn equip(setup: &Setup, channel: EventChannel, id: CmId) -> End {
    let pd = id.verbs().unwrap().alloc_pd().unwrap();
    let cq = pd.context().create_cq(256, None, 0).unwrap();
    let attr = QpInitAttr {
        cap: setup.cap,
        ..QpInitAttr::rc(&cq, &cq)
    };
    let qp = pd.create_qp(&attr).unwrap();
    let mr = pd.alloc_mr(4096, ALL).unwrap();
    End {
        channel,
        id,
        pd,
        cq,
        qp,
        mr,
    }
}

fn to(end: &End, state: QpState) {
    let (attr, mask) = end.id.init_qp_attr(state).unwrap();
    end.qp.modify(&attr, mask).unwrap();
}

fn naming(qp: &Qp) -> ConnParam {
    ConnParam {
        qp_num: qp.qp_num(),
        ..ConnParam::default()
    }
}

/// Client and server up to the point where the server has its request.
fn requested(transport: Transport) -> (End, End, CmId) {
    let setup = Setup::over(transport);
    let (server_channel, listening, address) = listener(&setup);
    let (channel, id) = resolved(&setup, address);
    let client = equip(&setup, channel, id);
    to(&client, QpState::Init);
    client.id.connect(&naming(&client.qp)).unwrap();
    let request = expect(&server_channel, EventKind::ConnectRequest);
    let server = equip(&setup, server_channel, request.id().clone());
    to(&server, QpState::Init);
    (client, server, listening)
}

fn connects_the_queue_pair_that_it_names(transport: Transport) {
    let (client, server, _listening) = requested(transport);
    server.recv(1, 0, 64);
    client.recv(1, 0, 64);
    to(&server, QpState::Rtr);
    to(&server, QpState::Rts);
    server.id.accept(&naming(&server.qp)).unwrap();
    if transport == Transport::Roce {
        // Posted before the client's queue pair can receive: held, not lost and repeated.
        server.send_inline(2, b"early", SendFlags::SIGNALED);
        let response = expect(&client.channel, EventKind::ConnectResponse);
        assert_eq!(response.param().qp_num, server.qp.qp_num());
        drop(response);
        no_event(&server.channel, Duration::from_millis(50));
        to(&client, QpState::Rtr);
        to(&client, QpState::Rts);
        client.id.establish().unwrap();
        assert!(client.id.establish().is_err(), "once");
        no_event(&client.channel, Duration::ZERO);
    } else {
        drop(expect(&client.channel, EventKind::Established));
        server.send_inline(2, b"early", SendFlags::SIGNALED);
        assert!(client.id.establish().is_err(), "iWARP has no response");
    }
    drop(expect(&server.channel, EventKind::Established));
    client.send_inline(2, b"hello", SendFlags::SIGNALED);
    for end in [&client, &server] {
        let done = end.completions(2);
        assert!(done.iter().all(softverbs::Wc::is_success), "{done:?}");
        assert_eq!(end.qp.state(), QpState::Rts);
        assert!(end.id.qp().is_none());
    }
    assert_eq!(client.read(0, 5), b"early");
    assert_eq!(server.read(0, 5), b"hello");
    client.id.disconnect().unwrap();
    for end in [&client, &server] {
        drop(expect(&end.channel, EventKind::Disconnected));
    }
    if transport == Transport::Roce {
        assert_eq!(client.qp.state(), QpState::Rts, "the application's to move");
    } else {
        assert_eq!(client.qp.state(), QpState::Err);
    }
}

fn tells_attributes_only_when_they_are_known(transport: Transport) {
    let setup = Setup::over(transport);
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Tcp, 0).unwrap();
    assert!(id.init_qp_attr(QpState::Init).is_err(), "no device");
    let (_server_channel, _listening, address) = listener(&setup);
    let (channel, id) = resolved(&setup, address);
    id.init_qp_attr(QpState::Init).unwrap();
    assert!(id.init_qp_attr(QpState::Err).is_err());
    let rtr = id.init_qp_attr(QpState::Rtr);
    let rts = id.init_qp_attr(QpState::Rts);
    if transport == Transport::Iwarp {
        // Nothing to say, as Linux.
        let (attr, mask) = rtr.unwrap();
        assert_eq!(
            mask,
            QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS | QpAttrMask::PORT
        );
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        assert_eq!(attr.qp_access_flags, access);
        assert_eq!(rts.unwrap().1, QpAttrMask::empty());
        return;
    }
    assert!(rtr.is_err() && rts.is_err(), "the peer has not answered");
    drop((channel, id));
    let (_client, server, _listening) = requested(transport);
    server.id.set_option(CmOption::AckTimeout(19)).unwrap();
    let (rtr, _) = server.id.init_qp_attr(QpState::Rtr).unwrap();
    let (rts, mask) = server.id.init_qp_attr(QpState::Rts).unwrap();
    assert_eq!(rtr.dest_qp_num, _client.qp.qp_num());
    assert_eq!(rts.timeout, 19);
    assert!(mask.contains(QpAttrMask::TIMEOUT));
    // They stay so: what accepting says to the peer is the same.
    let (again, _) = server.id.init_qp_attr(QpState::Rtr).unwrap();
    assert_eq!(again.rq_psn, rtr.rq_psn);
}

fn names_a_queue_pair_that_does_not_exist(transport: Transport) {
    let setup = Setup::over(transport);
    let (_server_channel, _listening, address) = listener(&setup);
    let (_channel, id) = resolved(&setup, address);
    let none = id.connect(&ConnParam::default()).unwrap_err();
    assert_eq!(none.errno(), 22);
    if transport == Transport::Iwarp {
        // Over RoCE it may be any: the application says that it will be there.
        let client = equip(&setup, EventChannel::new().unwrap(), id.clone());
        let param = naming(&client.qp);
        drop(client);
        assert_eq!(id.connect(&param).unwrap_err().errno(), 22);
    }
}

fn a_destroyed_identifier_ends_its_attempt(transport: Transport) {
    let (client, server, _listening) = requested(transport);
    to(&server, QpState::Rtr);
    to(&server, QpState::Rts);
    server.id.accept(&naming(&server.qp)).unwrap();
    let kind = match transport {
        Transport::Roce => EventKind::ConnectResponse,
        Transport::Iwarp => EventKind::Established,
    };
    drop(expect(&client.channel, kind));
    client.id.destroy().unwrap();
    if transport == Transport::Iwarp {
        assert_eq!(client.qp.state(), QpState::Err);
        drop(expect(&server.channel, EventKind::Established));
        drop(expect(&server.channel, EventKind::Disconnected));
    } else {
        drop(expect(&server.channel, EventKind::Rejected));
    }
}

fn becomes_synchronous_and_back(transport: Transport) {
    let setup = Setup::over(transport);
    let (server_channel, _listening, address) = listener(&setup);
    let (channel, id) = resolved(&setup, address);
    id.migrate_sync().unwrap();
    let client = common::equip(&setup, channel.clone(), id);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = expect(&server_channel, EventKind::ConnectRequest);
            let server = common::equip(&setup, server_channel.clone(), request.id().clone());
            server.id.accept(&ConnParam::default()).unwrap();
            drop(request);
            drop(expect(&server_channel, EventKind::Established));
            server.id.disconnect().unwrap();
            drop(expect(&server_channel, EventKind::Disconnected));
        });
        client.id.connect(&ConnParam::default()).unwrap();
        client.id.migrate_id(&channel).unwrap();
        let event = channel.get_event(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!(event.kind(), EventKind::Disconnected);
    });
}
