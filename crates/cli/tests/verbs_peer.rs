//! The example `verbs_peer` against itself. (`lab/` runs it against the kernel's rxe.)

mod common;

use common::{Running, example, run};

fn all_well(address: &str, options: &str) {
    let server = example("verbs_peer", &format!("-b {address} -p 0 {options}"));
    let (server, port) = Running::serve(server);
    let client = run(example(
        "verbs_peer",
        &format!("-b {address} -c {address} -p {port} {options}"),
    ));
    for output in [client.ok(), server.finish().ok()] {
        assert!(output.contains("all well"), "{output}");
    }
}

#[test]
fn every_operation_of_every_service() {
    for address in ["127.0.0.1", "::1"] {
        all_well(address, "-t rc");
        all_well(address, "-t uc -s 0,1,4097,40000 -m 4096");
        all_well(address, "-t ud -s 0,1,1024");
    }
}

#[test]
fn what_a_target_must_refuse() {
    all_well("127.0.0.1", "-e");
}
