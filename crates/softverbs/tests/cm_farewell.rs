//! The end of a connection over RoCE: whoever hears of it may exit at once, and the peer must not
//! wait for an answer that never comes (4.3 s until it asks again, 15 times).

mod common;

use std::time::Duration;

use common::faults::Faults;
use common::{Setup, pair};
use softverbs::Transport;
use softverbs::cm::EventKind;
use softverbs::fault::Kind;

const CONNECTIONS: u64 = 300;

#[test]
fn the_peer_is_answered_before_the_application_hears_of_the_end() {
    let faults = Faults::install("in:rej=drop");
    for nth in 1..=CONNECTIONS {
        let (client, server) = pair(&Setup::over(Transport::Roce));
        server.id.disconnect().unwrap();
        // Without sleep, so that nothing comes between the event and what is seen.
        let event = loop {
            if let Some(event) = client.channel.get_event(Some(Duration::ZERO)).unwrap() {
                break event;
            }
        };
        assert_eq!(event.kind(), EventKind::Disconnected);
        assert_eq!(faults.sent(Kind::Drep), nth);
    }
}
