//! rdma-core's own tests, which the distribution has among the documentation of the package rdma-core.
//! They use the library through Python's bindings.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{finished, with_softverbs};

/// Where they are; unless the machine leaves documentation out when it installs packages: then
/// SOFTVERBS_WITHOUT_PYVERBS says that it may.
const SOURCE: &str = "/usr/share/doc/rdma-core/tests";

/// Those for what there is here. Others are for drivers of particular devices; `test_rdmacm` looks for the
/// device in sysfs, `test_odp`, `test_flow` and their like skip themselves.
const MODULES: &[&str] = &[
    "addr",
    "atomic",
    "cq",
    "cq_events",
    "cqex",
    "device",
    "fork",
    "mr",
    "odp",
    "parent_domain",
    "pd",
    "qp",
    "qpex",
    "relaxed_ordering",
    "shared_pd",
];

/// Copies them, uncompressed.
fn unpack() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pyverbs");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let copy = "cp -r \"$0\" \"$1\" && find \"$1\" -name '*.gz' -exec gunzip {} +";
    let status = Command::new("sh")
        .args(["-c", copy, SOURCE])
        .arg(&folder)
        .status();
    assert!(status.expect("sh").success());
    folder
}

#[test]
fn rdma_cores_tests_pass_or_skip_themselves() {
    if !Path::new(SOURCE).exists() {
        let may = std::env::var_os("SOFTVERBS_WITHOUT_PYVERBS").is_some();
        assert!(
            may,
            "no {SOURCE}: install rdma-core with its documentation (dpkg's path-exclude leaves it out), or set \
             SOFTVERBS_WITHOUT_PYVERBS=1"
        );
        eprintln!("skipped: no {SOURCE}, and SOFTVERBS_WITHOUT_PYVERBS is set");
        return;
    }
    let folder = unpack();
    let mut failed = String::new();
    for module in MODULES {
        let mut command = with_softverbs("/usr/bin/python3");
        command
            .current_dir(&folder)
            .env("PYTHONPATH", ".:tests")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command.args(["tests/run_tests.py", "--dev", "roce_lo", "--gid", "0", "-v"]);
        let output = finished(command.arg(format!("tests.test_{module}")));
        let told = String::from_utf8_lossy(&output.stderr);
        // One that finds nothing to do succeeds too.
        if !output.status.success() || !told.contains("Ran ") || told.contains("Ran 0 tests") {
            failed += &format!("{module}: {}\n{told}\n", output.status);
        }
    }
    assert!(failed.is_empty(), "{failed}");
}
