//! Ways to states that were wrong once, as explorations printed them.

mod ways;

use ways::ends_well;

/// The passive side rejects what it has accepted; its REJ is lost, and the RTU is all that shows
/// that the active side believes in the connection.
#[test]
fn a_rejection_is_repeated_when_the_rtu_shows_that_it_was_lost() {
    let summary = ends_well(
        "ib-reject",
        "passive gets REQ
         passive accept
         active gets REP
         active move queue pair to RTS
         active establish
         passive reject
         active misses REJ
         passive gets RTU",
    );
    assert!(summary.starts_with("active: Over"), "{summary}");
}

/// The same, and the end of TimeWait comes before the RTU.
#[test]
fn a_rtu_of_a_connection_that_is_forgotten_is_answered() {
    let summary = ends_well(
        "ib-destroy",
        "passive gets REQ
         passive accept
         active gets REP
         passive destroy
         active misses REJ
         passive cm timer
         passive gets RTU",
    );
    assert!(summary.starts_with("active: Over"), "{summary}");
}

/// The passive side disconnects before the active side has its REP, which is the later to arrive;
/// the RTU is lost.
#[test]
fn a_dreq_that_overtakes_its_rep_is_not_forgotten() {
    let summary = ends_well(
        "ib-disconnect",
        "passive gets REQ
         passive accept
         passive disconnect
         active gets DREQ
         active gets REP
         passive misses RTU",
    );
    assert!(summary.starts_with("active: Over"), "{summary}");
}
