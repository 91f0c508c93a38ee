//! Asynchronous events. Ids on one device share an opened device, and so its events: these tests
//! run one after the other, in a process of their own.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{PATIENCE, Setup, expect, pair};
use softverbs::cm::EventKind;
use softverbs::{
    AsyncElement, AsyncEvent, AsyncEventKind, Context, QpInitAttr, RecvWr, SendFlags, SrqInitAttr,
    Transport, WcOpcode,
};

common::over_both! {
    a_completion_queue_that_overflows_says_so,
    shared_receive_queues,
}

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_send_without_a_receive_ends_the_connection() {
    // field B14: iWARP has no receiver-not-ready.
    let _alone = alone();
    let (client, server) = pair(&Setup::default());
    client.send(1, 0, 8);
    expect(&client.channel, EventKind::Disconnected);
    expect(&server.channel, EventKind::Disconnected);
    let context = server.id.verbs().unwrap();
    // One end broke the rule, the other one was told so: an event for each, in any order.
    let mut events: Vec<_> = (0..2)
        .map(|_| {
            let event = context
                .get_async_event(Some(PATIENCE))
                .unwrap()
                .expect("an event");
            (event.kind(), event.element())
        })
        .collect();
    events.sort_by_key(|(kind, _)| *kind as u32);
    let of = |end: &common::End| AsyncElement::Qp(end.qp.qp_num());
    assert_eq!(
        events,
        [
            (AsyncEventKind::QpFatal, of(&client)),
            (AsyncEventKind::QpReqErr, of(&server))
        ]
    );
}

fn a_completion_queue_that_overflows_says_so(transport: Transport) {
    // field B97
    let _alone = alone();
    let (client, server, _listening) = common::requested(&Setup::over(transport));
    let context = server.id.verbs().unwrap();
    let small = context.create_cq(4, None, 0).unwrap();
    drop(server.qp.clone());
    let id = server.id.clone();
    id.destroy_qp();
    let qp = id
        .create_qp(&server.pd, &QpInitAttr::rc(&small, &small))
        .unwrap();
    for n in 0..8 {
        qp.post_recv(&RecvWr {
            wr_id: n,
            sges: &[server.mr.sge(0, 64)],
        })
        .unwrap();
    }
    id.accept(&Default::default()).unwrap();
    for n in 0..8 {
        client.send_inline(n, b"one too many", SendFlags::empty());
    }
    let event = loop {
        let event = context
            .get_async_event(Some(PATIENCE))
            .unwrap()
            .expect("an event");
        if event.kind() == AsyncEventKind::CqErr {
            break event;
        }
    };
    assert_eq!(event.element(), AsyncElement::Cq(small.id()));
    assert!(small.poll(&mut [softverbs::Wc::default()]).is_err());
    expect(&client.channel, EventKind::Established);
    expect(&client.channel, EventKind::Disconnected);
}

/// The next event but those that tell that a peer was heard of (RoCE).
fn next(context: &Context, within: Duration) -> Option<AsyncEvent> {
    loop {
        let event = context.get_async_event(Some(within)).unwrap()?;
        if event.kind() != AsyncEventKind::CommEst {
            return Some(event);
        }
    }
}

fn shared_receive_queues(transport: Transport) {
    let _alone = alone();
    let setup = Setup::over(transport);
    let (client, server, _listening) = common::requested(&setup);
    let context = server.id.verbs().unwrap();
    let attr = SrqInitAttr {
        max_wr: 16,
        max_sge: 1,
        srq_limit: 0,
        srq_context: 0,
    };
    let srq = server.pd.create_srq(&attr).unwrap();
    server.id.destroy_qp();
    let attr = QpInitAttr {
        srq: Some(&srq),
        ..QpInitAttr::rc(&server.cq, &server.cq)
    };
    let qp = server.id.create_qp(&server.pd, &attr).unwrap();
    let recv = |n: usize| {
        let sges = [server.mr.sge(64 * n, 64)];
        srq.post_recv(&RecvWr {
            wr_id: n as u64,
            sges: &sges,
        })
        .unwrap();
    };
    assert_eq!(
        qp.post_recv(&RecvWr {
            wr_id: 0,
            sges: &[]
        })
        .unwrap_err()
        .errno(),
        22
    );
    (0..8).for_each(recv);
    srq.modify(6).unwrap();
    server.id.accept(&setup.param).unwrap();
    for n in 0..3_u64 {
        client.send_inline(n, &n.to_le_bytes(), SendFlags::empty());
    }
    let got = server.completions(3);
    assert!(got.iter().map(|wc| wc.wr_id).eq(0..3));
    assert!(
        got.iter()
            .all(|wc| wc.qp_num == qp.qp_num() && wc.opcode == WcOpcode::Recv)
    );
    let event = next(&context, PATIENCE).unwrap();
    assert_eq!(event.kind(), AsyncEventKind::SrqLimitReached);
    assert_eq!(event.element(), AsyncElement::Srq(srq.id()));
    drop(event);
    let again = next(&context, Duration::from_millis(20));
    assert!(again.is_none(), "once: {again:?}");
    // field B70: the queue pair is done with the shared queue, whose receives stay.
    drop(expect(&client.channel, EventKind::Established));
    client.id.disconnect().unwrap();
    expect(&client.channel, EventKind::Disconnected);
    let event = next(&context, PATIENCE).unwrap();
    assert_eq!(event.kind(), AsyncEventKind::QpLastWqeReached);
    common::nothing(&server.cq, Duration::from_millis(10));
}
