//! A network namespace of a test's own: nobody else has UDP port 4791 there, nor any other.

use std::process::Command;

const INSIDE: &str = "SOFTVERBS_TEST_NETNS";

/// Runs the test `name` of this program again in a new network namespace whose loopback interface
/// is up. `true` in there: the caller does its work. `false` outside, when it has been done, or
/// why it could not be has been said.
#[allow(unreachable_pub, reason = "every file of tests is a crate of its own")]
pub fn inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    // A user namespace too, so that nobody needs to be root.
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--net", "--user", "--map-root-user", "sh", "-c", script]);
        command
    };
    let probe = unshare("ip link set lo up").output();
    match probe {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            eprintln!("skipped: no network namespace of one's own: {why}");
            return false;
        }
        Err(error) => {
            eprintln!("skipped: unshare: {error}");
            return false;
        }
    }
    let status = unshare("ip link set lo up && exec \"$0\" \"$@\"")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{name} in a network namespace: {status}");
    false
}
