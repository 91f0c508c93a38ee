//! Ways over iWARP that explorations take, as they print them.

mod ways;

use ways::ends_well;

/// The grace of a silent initiator ends before it has read the reply, whose last octets come with
/// the first of the responder's FPDU.
#[test]
fn a_read_that_ends_in_the_first_fpdu_loses_nothing() {
    let summary = ends_well(
        "iwarp-data",
        "passive reads MPA request
         passive accept
         passive queue pair takes over
         passive post send
         passive timer
         active reads MPA reply[0..20]
         active reads MPA reply[20..25] + SEND 0[0..1]
         active queue pair takes over
         active reads SEND 0[1..19]",
    );
    assert_eq!(
        summary,
        "active: Established, 0 posted, 0 completed, 1 received; \
         passive: Established, 1 posted, 1 completed, 0 received"
    );
}

/// What both sides posted before they were connected leaves when it may, and in order.
#[test]
fn sends_wait_for_the_start_up() {
    let summary = ends_well(
        "iwarp-rtr",
        "active post send
         passive reads MPA request
         passive accept
         passive post send
         active reads MPA reply[0..3]
         passive queue pair takes over",
    );
    assert_eq!(
        summary,
        "active: Established, 1 posted, 1 completed, 1 received; \
         passive: Established, 1 posted, 1 completed, 1 received"
    );
}

/// A connection that is reset before the reply is tried again with revision 1, and its sends are
/// those that were posted at first.
#[test]
fn a_reset_before_the_reply_is_taken_for_an_old_peer() {
    let summary = ends_well(
        "iwarp-disconnect",
        "active post send
         network resets
         active gets a reset
         passive gets a reset",
    );
    assert!(
        summary.starts_with("active: Established, 1 posted, 1 completed"),
        "{summary}"
    );
}

/// The passive side disconnects between its reply and the moment that the queue pair takes over.
#[test]
fn a_disconnect_in_the_middle_of_accept_ends_both_sides() {
    let summary = ends_well(
        "iwarp-disconnect",
        "passive reads MPA request
         passive accept
         passive disconnect
         active reads MPA reply
         active queue pair takes over",
    );
    assert_eq!(summary.matches("Over").count(), 2, "{summary}");
}
