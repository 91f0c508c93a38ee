//! Programs of others under `softverbs run`, as docs/run.md says: those of the distribution's packages qperf,
//! libfabric-bin, ucx-utils, openmpi-bin and fio. One that is not installed fails its test: scripts/install-test-deps has them.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;

use common::{free_port, run, softverbs};

/// Runs a server, and clients until one succeeds, since a server says nowhere that it listens: `softverbs run`
/// with `options` for both. The server has to succeed, too, unless it has no end of its own.
fn pair(options: &str, server: &str, client: &str, ends: bool) {
    let end = if ends { "wait $server" } else { "kill $server" };
    let script = format!(
        "{server} >/dev/null 2>&1 & server=$!; trap 'kill $server 2>/dev/null' EXIT
        for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
            told=$({client} 2>&1) && {{ {end}; status=$?; trap - EXIT; exit $status; }}
            kill -0 $server 2>/dev/null || break
            sleep 0.3
        done
        echo \"$told\" >&2; exit 1"
    );
    let mut command = softverbs(&format!("run {options} -- sh -c"));
    command.arg(script);
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{client}: {}{}", ended.out, ended.err);
}

fn qperf(transport: &str, tests: &str) {
    let port = free_port();
    let server = format!("qperf -lp {port}");
    let client = format!("qperf -lp {port} -t 1 -cm 1 127.0.0.1 {tests}");
    pair(&format!("--transport {transport}"), &server, &client, false);
}

#[test]
fn qperf_by_the_connection_manager() {
    qperf(
        "roce",
        "rc_lat rc_bw rc_rdma_write_lat rc_rdma_read_bw rc_compare_swap_mr",
    );
    qperf("iwarp", "rc_lat rc_bw rc_rdma_write_lat rc_rdma_read_bw");
}

#[test]
fn libfabrics_datagrams() {
    let mut command = softverbs("run -- fi_info -p verbs -t FI_EP_DGRAM");
    command.env("FI_LOG_LEVEL", "warn");
    assert!(run(command).ok().contains("roce_lo-dgram"));
    for arguments in [
        "-p verbs -e dgram -d roce_lo-dgram",
        "-p 'verbs;ofi_rxd' -e rdm -S 4096",
    ] {
        let port = free_port();
        let server = format!("fi_pingpong {arguments} -I 20 -B {port}");
        let client = format!("fi_pingpong {arguments} -I 20 -P {port} 127.0.0.1");
        pair("", &server, &client, true);
    }
}

fn ucx(transports: &str, test: &str) {
    let port = free_port();
    let program = format!(
        "env UCX_TLS={transports},self UCX_NET_DEVICES=roce_lo:1 \
         ucx_perftest -p {port} -n 100 -w 10 -t {test}"
    );
    pair("--sysfs", &program, &format!("{program} 127.0.0.1"), true);
}

#[test]
fn ucx_over_reliable_connections_and_datagrams() {
    let info = run(softverbs("run --sysfs -- ucx_info -d")).ok();
    for transport in ["rc_verbs", "ud_verbs"] {
        assert!(info.contains(&format!("Transport: {transport}")), "{info}");
    }
    ucx("ud_verbs", "tag_lat");
    for test in [
        "tag_lat",
        "tag_bw -s 100000",
        "ucp_put_lat",
        "ucp_get -s 4096",
        "ucp_fadd",
        "ucp_am_lat",
    ] {
        ucx("rc_verbs,ud_verbs", test);
    }
}

/// Ranks that speak over RoCE, the way that `options` of mpirun choose.
fn open_mpi(ranks: usize, run_options: &str, options: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi.py");
    let ended = run(softverbs(&format!(
        "run {run_options} -- mpirun --allow-run-as-root --oversubscribe -np {ranks} {options} \
         /usr/bin/python3 {script}"
    )));
    assert_eq!(ended.code, Some(0), "{options}: {}{}", ended.out, ended.err);
    let counter = 10 * ranks;
    assert_eq!(
        ended.out,
        format!("{ranks} ranks, counter {counter}\n"),
        "{options}"
    );
}

#[test]
fn open_mpi_by_ucx() {
    open_mpi(
        3,
        "--sysfs",
        "--mca pml ucx --mca osc ucx -x UCX_TLS=rc_verbs,ud_verbs,self -x UCX_NET_DEVICES=roce_lo:1",
    );
}

/// Two: with three `ofi_rxd` crashes, over plain UDP as well.
#[test]
fn open_mpi_by_libfabric() {
    open_mpi(
        2,
        "",
        "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxd --mca osc pt2pt",
    );
}

#[test]
fn fio() {
    for (transport, verb) in [("roce", "write"), ("roce", "read"), ("iwarp", "write")] {
        let fio = format!(
            "fio --ioengine=rdma --port={} --bs=64k --size=8m",
            free_port()
        );
        pair(
            &format!("--transport {transport} --addr 127.0.0.1"),
            &format!("{fio} --rw=read --name=receiver"),
            // Its status is 0 also when it was refused.
            &format!(
                "{fio} --hostname=127.0.0.1 --verb={verb} --iodepth=8 --rw=write --name=sender \
                 | grep 'WRITE: bw='"
            ),
            true,
        );
    }
}

/// A file of this test alone.
fn temporary(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("programs");
    fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

#[test]
fn a_program_with_a_library_path_of_its_own() {
    let (source, program) = (temporary("rpath.c"), temporary("rpath"));
    let text = r#"
        #include <rdma/rdma_cma.h>
        #include <stdio.h>
        int main(void) {
            struct ibv_device **list = ibv_get_device_list(NULL);
            struct rdma_event_channel *channel = rdma_create_event_channel();
            if (!list || !list[0] || !channel) return 1;
            puts(ibv_get_device_name(list[0]));
            return 0;
        }"#;
    fs::write(&source, text).unwrap();
    // In DT_RPATH, which comes before LD_LIBRARY_PATH: where rdma-core's libraries are.
    let folder = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let status = Command::new("cc")
        .args([
            "-Wl,--disable-new-dtags",
            &format!("-Wl,-rpath,{folder}"),
            "-o",
        ])
        .args([&program, &source])
        .args(["-lrdmacm", "-libverbs"])
        .status();
    assert!(status.unwrap().success());
    let tags = Command::new("readelf")
        .arg("-d")
        .arg(&program)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&tags.stdout).contains("(RPATH)"));
    let told = run(softverbs(&format!("run -- {}", program.display()))).ok();
    assert!(told.starts_with("roce_"), "{told}");
}

#[test]
fn a_program_with_the_rights_of_its_owner() {
    let program = if nix::unistd::geteuid().is_root() {
        let program = temporary("set-uid");
        let _ = fs::remove_file(&program);
        fs::copy("/bin/true", &program).unwrap();
        chown(&program, Some(65534), None).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        program
    } else {
        PathBuf::from("/bin/su")
    };
    let ended = run(softverbs(&format!("run -- {}", program.display())));
    assert_eq!(ended.code, Some(126));
    assert!(ended.err.contains("is set-uid"), "{}", ended.err);
}
