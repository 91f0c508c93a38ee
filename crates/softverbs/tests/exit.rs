//! What was posted before the process ends leaves, although nobody polls any more, and the peer hears of
//! the end.

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::child::{Other, role};
use common::{End, PATIENCE, Setup, equip, expect, listener, resolved};
use softverbs::cm::{ConnParam, EventKind};
use softverbs::{SendFlags, Transport, Wc};

common::over_both! { by_exit }

const COUNT: usize = 20;
/// Whether requests were left for the next poll depends on the moment.
const ROUNDS: usize = 5;

/// Posts to the address of its role, and exits.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let (transport, address) = role.split_once(' ').unwrap();
    let address: SocketAddr = address.parse().unwrap();
    let setup = Setup::over(transport.parse().unwrap());
    let (channel, id) = resolved(&setup, address);
    let end = equip(&setup, channel, id);
    end.id.connect(&ConnParam::default()).unwrap();
    drop(expect(&end.channel, EventKind::Established));
    // Until the engine leaves the work to this thread.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(3) {
        assert_eq!(end.cq.poll(&mut [Wc::default()]).unwrap(), 0);
    }
    for n in 0..COUNT {
        end.send_inline(n as u64, b"before the end", SendFlags::empty());
    }
    std::process::exit(0);
}

fn accept(transport: Transport) -> (Other, End) {
    let setup = Setup::over(transport);
    let (channel, _listening, address) = listener(&setup);
    let child = Other::start(&format!("{} {address}", transport.name()), &[], &[]);
    let request = expect(&channel, EventKind::ConnectRequest);
    let end = equip(&setup, channel, request.id().clone());
    drop(request);
    for n in 0..COUNT {
        end.recv(n as u64, 64 * n, 64);
    }
    end.id.accept(&ConnParam::default()).unwrap();
    (child, end)
}

fn by_exit(transport: Transport) {
    for round in 0..ROUNDS {
        let (child, end) = accept(transport);
        assert!(child.finish().success());
        let (begun, mut got) = (Instant::now(), 0);
        while got < COUNT && begun.elapsed() < PATIENCE {
            let mut room = [Wc::default(); COUNT];
            let found = end.cq.poll(&mut room).unwrap();
            let good = room[..found].iter().take_while(|wc| wc.is_success());
            got += good.count();
            if room[..found].iter().any(|wc| !wc.is_success()) {
                break;
            }
        }
        assert_eq!(got, COUNT, "round {round}");
        drop(expect(&end.channel, EventKind::Established));
        drop(expect(&end.channel, EventKind::Disconnected));
    }
}
