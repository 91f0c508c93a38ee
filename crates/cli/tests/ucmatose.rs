//! The example `ucmatose_peer` against itself. (`lab/` runs it against the real ucmatose.)

mod common;

use common::{Running, example, run};

#[test]
fn the_server_sends_first() {
    for options in [
        "",
        "-c 5",
        "-C 100 -S 5000 -c 3",
        "-C 1 -S 1",
        "-S 0",
        "-C 0",
    ] {
        for address in ["127.0.0.1", "::1"] {
            let server = example("ucmatose_peer", &format!("--server -p 0 {options}"));
            let (server, port) = Running::serve(server);
            let client = format!("{address} -p {port} {options}");
            assert!(
                run(example("ucmatose_peer", &client))
                    .ok()
                    .contains("test complete")
            );
            assert!(server.finish().ok().contains("test complete"));
        }
    }
}

#[test]
fn nobody_there() {
    assert_eq!(
        run(example("ucmatose_peer", "127.0.0.1 -p 1")).code,
        Some(1)
    );
}
