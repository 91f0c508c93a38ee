//! Calls that cross: objects that are destroyed, moved to the error state or migrated while a
//! connection is being set up.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{Setup, equip, expect, listener, next_event, no_event, requested, resolved};
use softverbs::cm::{CmId, CmOption, EventChannel, EventKind, PortSpace};
use softverbs::{AsyncEventKind, QpAttr, QpAttrMask, QpState};

/// The processor time of one test must not be another one's.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Processor time of this process, in clock ticks.
fn ticks() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Nothing spins: of half a second an idle process uses next to nothing.
fn assert_idle() {
    std::thread::sleep(Duration::from_millis(100));
    let before = ticks();
    std::thread::sleep(Duration::from_millis(500));
    let used = ticks() - before;
    assert!(used < 20, "{used} ticks of processor time while idle");
}

fn to_err(qp: &softverbs::Qp) {
    let attr = QpAttr {
        qp_state: QpState::Err,
        ..QpAttr::default()
    };
    qp.modify(&attr, QpAttrMask::STATE).unwrap();
}

#[test]
fn a_queue_pair_in_the_error_state_cannot_be_connected() {
    let _alone = alone();
    // The active side, before the reply; and the passive side, before it accepts.
    let (client, server, _listening) = requested(&Setup::default());
    to_err(&client.qp);
    server.id.accept(&Default::default()).unwrap();
    let event = next_event(&client.channel);
    assert_eq!((event.kind(), event.status()), (EventKind::Rejected, -104));
    drop(event);
    let event = next_event(&server.channel);
    assert_ne!(event.kind(), EventKind::Established);
    drop(event);
    let (client, server, _listening) = requested(&Setup::default());
    to_err(&server.qp);
    assert_eq!(
        server.id.accept(&Default::default()).unwrap_err().errno(),
        22
    );
    // The request is still there to be rejected.
    server.id.reject(b"cannot").unwrap();
    assert_eq!(next_event(&client.channel).kind(), EventKind::Rejected);
    drop((client, server));
    assert_idle();
}

#[test]
fn destroying_the_queue_pair_of_an_attempt_ends_it() {
    let _alone = alone();
    let (client, server, _listening) = requested(&Setup::default());
    client.id.destroy_qp();
    server.id.accept(&Default::default()).unwrap();
    assert_eq!(next_event(&client.channel).kind(), EventKind::Rejected);
    no_event(&client.channel, Duration::from_millis(20));
}

#[test]
fn requests_follow_their_migrated_listener() {
    let _alone = alone();
    let setup = Setup::default();
    let (_old, listening, address) = listener(&setup);
    let (channel, id) = resolved(&setup, address);
    let client = equip(&setup, channel, id);
    client.id.connect(&setup.param).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let new = EventChannel::new().unwrap();
    listening.migrate_id(&new).unwrap();
    let request = expect(&new, EventKind::ConnectRequest).id().clone();
    let server = equip(&setup, new, request);
    server.id.accept(&setup.param).unwrap();
    expect(&server.channel, EventKind::Established);
}

#[test]
fn connect_crossing_destroy_leaves_nothing_that_spins() {
    let _alone = alone();
    let setup = Setup {
        len: 64,
        ..Setup::default()
    };
    let (_channel, _listening, address) = listener(&setup);
    for round in 0..300_u64 {
        let (channel, id) = resolved(&setup, address);
        let client = equip(&setup, channel, id);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..round * 10 {
                    std::hint::spin_loop();
                }
                client.id.destroy().unwrap();
            });
            // Whichever is first.
            let _ = client.id.connect(&setup.param);
        });
        no_event(&client.channel, Duration::ZERO);
    }
    assert_idle();
}

#[test]
fn a_destroyed_listener_reports_nothing() {
    let _alone = alone();
    let setup = Setup {
        len: 64,
        ..Setup::default()
    };
    for round in 0..50_u64 {
        let (channel, listening, address) = listener(&setup);
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (channel, id) = resolved(&setup, address);
                let client = equip(&setup, channel, id);
                client.id.connect(&setup.param).unwrap();
                client
            })
            .collect();
        std::thread::sleep(Duration::from_micros(round * 10));
        listening.destroy().unwrap();
        no_event(&channel, Duration::ZERO);
        for client in &clients {
            let event = next_event(&client.channel);
            assert_eq!(event.kind(), EventKind::Rejected, "{}", event.status());
        }
    }
}

#[test]
fn events_of_what_is_destroyed_are_taken_back() {
    let _alone = alone();
    let setup = Setup {
        len: 64,
        ..Setup::default()
    };
    let (client, server) = common::pair(&setup);
    let context = server.id.verbs().unwrap();
    // A Send without a receive: both ends have something to say.
    client.send_inline(1, b"x", softverbs::SendFlags::empty());
    expect(&client.channel, EventKind::Disconnected);
    expect(&server.channel, EventKind::Disconnected);
    let numbers = [client.qp.qp_num(), server.qp.qp_num()];
    drop((client, server));
    while let Some(event) = context.get_async_event(Some(Duration::ZERO)).unwrap() {
        let stale = numbers
            .iter()
            .any(|n| event.element() == softverbs::AsyncElement::Qp(*n));
        assert!(!stale, "{:?}", event.kind());
        assert_ne!(event.kind(), AsyncEventKind::DeviceFatal);
    }
}

#[test]
fn values_beyond_what_the_kernel_takes_are_refused_at_once() {
    let _alone = alone();
    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel, PortSpace::Tcp, 0).unwrap();
    for seconds in [0, 32_768, u64::MAX] {
        let option = CmOption::Keepalive(Some(Duration::from_secs(seconds)));
        let error = id.set_option(option).unwrap_err();
        assert!(error.to_string().contains("keepalive"), "{error}");
    }
    id.set_option(CmOption::Keepalive(Some(Duration::from_secs(32_767))))
        .unwrap();
    // Waiting for ever, spelled as a time.
    assert!(channel.get_event(Some(Duration::ZERO)).unwrap().is_none());
    let (client, server) = common::pair(&Setup {
        len: 64,
        ..Setup::default()
    });
    let context = server.id.verbs().unwrap();
    let comp = context.create_comp_channel().unwrap();
    let cq = context.create_cq(4, Some(&comp), 0).unwrap();
    cq.req_notify(false).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| comp.get_event(Some(Duration::MAX)).unwrap());
        let attr = softverbs::QpInitAttr::rc(&cq, &cq);
        let qp = server.pd.create_qp(&attr).unwrap();
        let init = QpAttr {
            qp_state: QpState::Init,
            ..QpAttr::default()
        };
        qp.modify(&init, QpAttrMask::STATE).unwrap();
        qp.post_recv(&softverbs::RecvWr {
            wr_id: 1,
            sges: &[],
        })
        .unwrap();
        to_err(&qp);
        assert!(waiter.join().unwrap().is_some());
        cq.ack_events(1);
    });
    drop(client);
}

#[test]
fn strangers_leave_descriptors_for_the_application() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let _alone = alone();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Strangers come from this process, too, so it may open more than the listener reckons with.
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(1024), hard).unwrap();
    let setup = Setup {
        len: 64,
        ..Setup::default()
    };
    let (channel, _listening, address) = listener(&setup);
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let strangers: Vec<_> = (0..400)
        .map(|_| std::net::TcpStream::connect(address).unwrap())
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 400 + 128 + 100, "{open} descriptors");
    // Once they have gone, there is room again.
    drop(strangers);
    std::thread::sleep(Duration::from_millis(300));
    let (client_channel, id) = resolved(&setup, address);
    let client = equip(&setup, client_channel, id);
    client.id.connect(&setup.param).unwrap();
    expect(&channel, EventKind::ConnectRequest);
}
