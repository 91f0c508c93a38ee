//! Completion channels: no wake-up is lost, solicited ones only when asked for, and each queue
//! counts its own events.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{PATIENCE, Setup, poll, requested};
use softverbs::{CompChannel, Cq, QpInitAttr, RecvWr, SendFlags, Transport, Wc};

common::over_both! {
    an_event_for_each_arming_and_none_without,
    solicited_only,
    no_wake_up_is_lost,
    two_queues_on_one_channel_count_for_themselves,
    settling_waits_for_what_was_fetched_and_takes_back_the_rest,
}

/// A server end whose receives complete in a queue with a channel.
fn with_channel(setup: &Setup) -> (common::End, common::End, CompChannel, Cq, softverbs::Qp) {
    let (client, server, _listening) = requested(setup);
    let context = server.id.verbs().unwrap();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(4096, Some(&channel), 42).unwrap();
    server.id.destroy_qp();
    let attr = QpInitAttr {
        cap: setup.cap,
        ..QpInitAttr::rc(&server.cq, &cq)
    };
    let qp = server.id.create_qp(&server.pd, &attr).unwrap();
    server.id.accept(&setup.param).unwrap();
    (client, server, channel, cq, qp)
}

fn readable(channel: &CompChannel, within: Duration) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(channel.fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(within).unwrap()).unwrap() > 0
}

fn an_event_for_each_arming_and_none_without(transport: Transport) {
    let (client, server, channel, cq, qp) = with_channel(&Setup::over(transport));
    for n in 0..10 {
        qp.post_recv(&RecvWr {
            wr_id: n,
            sges: &[server.mr.sge(0, 64)],
        })
        .unwrap();
    }
    client.send_inline(0, b"not armed", SendFlags::empty());
    assert_eq!(poll(&cq, 1).len(), 1);
    assert!(
        channel
            .get_event(Some(Duration::from_millis(20)))
            .unwrap()
            .is_none()
    );
    cq.req_notify(false).unwrap();
    assert!(!readable(&channel, Duration::from_millis(20)));
    client.send_inline(1, b"armed", SendFlags::empty());
    client.send_inline(2, b"once", SendFlags::empty());
    assert!(readable(&channel, PATIENCE), "without anybody polling");
    let notified = channel.get_event(Some(PATIENCE)).unwrap().unwrap();
    assert!(notified.same_as(&cq));
    assert_eq!((notified.cq_context(), cq.unacked_events()), (42, 1));
    cq.ack_events(1);
    assert_eq!(cq.unacked_events(), 0);
    assert_eq!(poll(&cq, 2).len(), 2);
    assert!(
        channel
            .get_event(Some(Duration::from_millis(20)))
            .unwrap()
            .is_none()
    );
}

fn solicited_only(transport: Transport) {
    let (client, server, channel, cq, qp) = with_channel(&Setup::over(transport));
    for n in 0..3 {
        qp.post_recv(&RecvWr {
            wr_id: n,
            sges: &[server.mr.sge(0, 64)],
        })
        .unwrap();
    }
    cq.req_notify(true).unwrap();
    client.send_inline(0, b"quiet", SendFlags::empty());
    assert!(
        channel
            .get_event(Some(Duration::from_millis(50)))
            .unwrap()
            .is_none()
    );
    client.send_inline(1, b"loud", SendFlags::SOLICITED);
    assert!(channel.get_event(Some(PATIENCE)).unwrap().is_some());
    assert_eq!(poll(&cq, 2).len(), 2);
    // A failure counts as solicited.
    cq.req_notify(true).unwrap();
    client.id.disconnect().unwrap();
    assert!(channel.get_event(Some(PATIENCE)).unwrap().is_some());
}

fn no_wake_up_is_lost(transport: Transport) {
    // field B84, B126, B127: arm, poll once more, sleep; thousands of times, while the other
    // side sends at its own pace.
    const MESSAGES: usize = 20_000;
    let (client, server, channel, cq, qp) = with_channel(&Setup::over(transport));
    let post = |n: usize| {
        let sges = [server.mr.sge(n % 256 * 64, 64)];
        qp.post_recv(&RecvWr {
            wr_id: n as u64,
            sges: &sges,
        })
        .unwrap();
    };
    (0..512).for_each(post);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut credit = 512_usize;
            client.mr.copy_in(0, &[0; 64]).unwrap();
            for n in 0..MESSAGES {
                // The receiver tells by a Send of its own that 256 more are posted.
                while credit == 0 {
                    if !client.completions(1).is_empty() {
                        credit += 256;
                        client.recv(0, 4096, 64);
                    }
                }
                client.send_inline(n as u64, &(n as u64).to_le_bytes(), SendFlags::empty());
                credit -= 1;
                if n % 97 == 0 {
                    std::thread::sleep(Duration::from_micros(n as u64 % 300));
                }
            }
            while !stop.load(Ordering::Relaxed) {
                let mut room = [Wc::default(); 8];
                client.cq.poll(&mut room).unwrap();
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        for n in 0..64 {
            client.recv(n, 4096, 64);
        }
        let mut got = 0;
        let mut granted = 0;
        let mut room = [Wc::default(); 16];
        while got < MESSAGES {
            cq.req_notify(false).unwrap();
            let mut found = cq.poll(&mut room).unwrap();
            if found == 0 {
                let event = channel.get_event(Some(PATIENCE)).unwrap();
                assert!(event.is_some(), "asleep with {got} of {MESSAGES}");
                cq.ack_events(1);
                found = cq.poll(&mut room).unwrap();
            }
            for wc in &room[..found] {
                assert!(wc.is_success(), "{wc:?}");
                assert_eq!(wc.wr_id, got as u64);
                post(got + 512);
                got += 1;
                if got - granted == 256 {
                    granted = got;
                    let wr = softverbs::SendWr::new(
                        0,
                        softverbs::SendOp::Send,
                        softverbs::SendData::Inline(b"go on"),
                    );
                    qp.post_send(&wr.with_flags(SendFlags::empty())).unwrap();
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().unwrap();
    });
}

fn two_queues_on_one_channel_count_for_themselves(transport: Transport) {
    // field B89
    let (client, server, channel, cq, qp) = with_channel(&Setup::over(transport));
    let context = server.id.verbs().unwrap();
    let other = context.create_cq(16, Some(&channel), 43).unwrap();
    qp.post_recv(&RecvWr {
        wr_id: 0,
        sges: &[server.mr.sge(0, 64)],
    })
    .unwrap();
    other.req_notify(false).unwrap();
    cq.req_notify(false).unwrap();
    client.send_inline(0, b"x", SendFlags::empty());
    let notified = channel.get_event(Some(PATIENCE)).unwrap().unwrap();
    assert!(notified.same_as(&cq));
    other.ack_events(1);
    assert_eq!(
        cq.unacked_events(),
        1,
        "acknowledging another queue's does not help"
    );
    cq.ack_events(1);
    // A queue without a channel may be armed, to no effect.
    server.cq.req_notify(false).unwrap();
}

fn settling_waits_for_what_was_fetched_and_takes_back_the_rest(transport: Transport) {
    let (client, server, channel, cq, qp) = with_channel(&Setup::over(transport));
    let sges = [server.mr.sge(0, 64)];
    for wr_id in 0..2 {
        let receive = RecvWr { wr_id, sges: &sges };
        qp.post_recv(&receive).unwrap();
        cq.req_notify(false).unwrap();
        client.send_inline(0, b"x", SendFlags::empty());
        assert!(readable(&channel, PATIENCE));
        if wr_id == 0 {
            channel.get_event(Some(PATIENCE)).unwrap().unwrap();
        }
    }
    assert_eq!(cq.unacked_events(), 2);
    let settled = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cq.settle_events();
            settled.store(true, Ordering::SeqCst);
        });
        while cq.unacked_events() > 1 {
            std::thread::yield_now();
        }
        assert!(!readable(&channel, Duration::ZERO), "taken back");
        std::thread::sleep(Duration::from_millis(20));
        assert!(!settled.load(Ordering::SeqCst), "one was fetched");
        cq.ack_events(1);
    });
    assert!(settled.load(Ordering::SeqCst));
}
