//! rdma-core's own programs that list devices.

mod common;

use common::with_softverbs;

fn stdout(command: &mut std::process::Command) -> String {
    let output = command.output().expect("run scripts/install-test-deps");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{stderr}",
        output.status
    );
    assert_eq!(stderr, "", "{command:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn ibv_devices_lists_both_transports_of_the_loopback_interface() {
    let text = stdout(&mut with_softverbs("ibv_devices"));
    let names: Vec<_> = text
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(
        names.contains(&"roce_lo") && names.contains(&"iw_lo"),
        "{text}"
    );
    assert!(
        names[0].starts_with("roce_"),
        "programs take the first: {text}"
    );
}

#[test]
fn ibv_devinfo_tells_everything() {
    let text = stdout(with_softverbs("ibv_devinfo").args(["-v", "-d", "roce_lo"]));
    for part in [
        "InfiniBand (0)",
        "PORT_ACTIVE (4)",
        "link_layer:\t\tEthernet",
        "::ffff:127.0.0.1, RoCE v2",
        "max_qp_wr:",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let text = stdout(with_softverbs("ibv_devinfo").args(["-v", "-d", "iw_lo"]));
    assert!(
        text.contains("iWARP (1)") && text.contains("ffff:7f00:0001"),
        "{text}"
    );
}

#[test]
fn there_is_no_third_port() {
    let mut command = with_softverbs("ibv_devinfo");
    let output = command
        .args(["-d", "roce_lo", "-i", "3"])
        .output()
        .expect("ibv_devinfo");
    assert!(!output.status.success());
}
