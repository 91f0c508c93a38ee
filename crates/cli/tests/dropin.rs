//! `softverbs run`, `env` and `doctor`, with Debian's own programs.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Ended, run, softverbs, sv};

/// `softverbs run` with options, and `sh -c` with a script.
fn run_sh(options: &str, script: &str) -> Ended {
    let mut command = softverbs(&format!("run {options} -- sh -c"));
    command.arg(script);
    run(command)
}

/// Runs a shell.
fn sh(script: &str) -> Ended {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    run(command)
}

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("softverbs-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// A program that is linked statically.
    fn static_program(&self) -> PathBuf {
        let source = self.0.join("main.c");
        fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let program = self.0.join("static");
        let status = Command::new("cc")
            .arg("-static")
            .arg("-o")
            .arg(&program)
            .arg(source)
            .status();
        assert!(status.unwrap().success());
        program
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn device_names(out: &str) -> Vec<&str> {
    // Two lines of titles.
    out.lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

#[test]
fn a_program_sees_the_devices_that_are_chosen() {
    for (options, expected) in [
        ("--addr 127.0.0.1", &["roce_lo"] as &[_]),
        ("--addr 127.0.0.1 --transport iwarp", &["iw_lo"]),
        (
            "--addr ::1,127.0.0.1 --transport both",
            &["roce_lo", "iw_lo"],
        ),
    ] {
        let out = sv(&format!("run {options} -- ibv_devices")).ok();
        assert_eq!(device_names(&out), expected, "{options}");
    }
    let all = sv("run ibv_devices").ok();
    assert!(device_names(&all).contains(&"roce_lo"), "{all}");
    assert!(!all.contains("iw_lo"), "{all}");
}

#[test]
fn an_address_of_nobody_is_refused_before_the_program_starts() {
    sv("run --addr 203.0.113.77 -- echo started").failed("203.0.113.77");
    sv("run --addr eth0 -- echo started").usage("eth0");
}

#[test]
fn the_devices_report_whose_numbers_are_asked_for() {
    let vendor = |options: &str| {
        let out = sv(&format!("run --addr 127.0.0.1 {options} -- ibv_devinfo")).ok();
        let value = |name: &str| {
            let line = out
                .lines()
                .find(|line| line.contains(name))
                .expect(&out)
                .to_owned();
            line.split_whitespace().last().unwrap().to_owned()
        };
        (value("vendor_id"), value("vendor_part_id"))
    };
    assert_eq!(vendor(""), ("0x25356".into(), "0".into()));
    assert_eq!(vendor("--as mlx5"), ("0x02c9".into(), "4119".into()));
    sv("run --as nobody -- true").usage("mlx5");
}

#[test]
fn faults_are_checked_and_passed_on() {
    let out = run_sh("--fault rtu:first=drop,seed=7", "echo $SOFTVERBS_FAULT").ok();
    assert_eq!(out, "rtu:first=drop,seed=7\n");
    sv("run --fault rtu:first=lose -- true").usage("lose");
}

#[test]
fn arguments_and_exit_status_pass_through() {
    let mut command = softverbs("run -- sh -c");
    command.args([
        "printf '[%s]' \"$0\" \"$@\"; exit 9",
        "a b",
        "",
        "--transport",
        "'",
    ]);
    let ended = run(command);
    assert_eq!(
        (ended.code, &*ended.out),
        (Some(9), "[a b][][--transport][']")
    );
}

#[test]
fn signals_pass_through() {
    let mut command = softverbs("run -- sh -c");
    let status = command.arg("kill -USR1 $$").status().unwrap();
    assert_eq!(status.signal(), Some(10));
}

#[test]
fn what_cannot_be_run_says_why() {
    let folder = Folder::new("cannot-run");
    let text = folder.0.join("text");
    fs::write(&text, "no program").unwrap();
    for (program, code, why) in [
        ("no-such-program".to_owned(), 127, "not found"),
        ("/no/such".to_owned(), 127, "not found"),
        (text.display().to_string(), 126, "ermission denied"),
        (
            folder.static_program().display().to_string(),
            126,
            "linked statically",
        ),
    ] {
        let ended = sv(&format!("run -- {program}"));
        assert_eq!(ended.code, Some(code), "{program}: {ended:?}");
        assert!(ended.err.contains(why), "{program}: {ended:?}");
    }
    sv("run").usage("PROGRAM");
}

#[test]
fn a_library_that_is_elsewhere() {
    let mut command = softverbs("run -- ibv_devices");
    command.env("SOFTVERBS_LIBRARY", "/no/such/library");
    run(command).failed("/no/such/library");
}

#[test]
fn installed_beside_the_command() {
    let folder = Folder::new("installed");
    let built = PathBuf::from(env!("CARGO_BIN_EXE_softverbs"));
    let library = built.with_file_name("deps").join("libsoftverbs_cabi.so");
    let (bin, lib) = (folder.0.join("bin"), folder.0.join("lib/softverbs"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&lib).unwrap();
    fs::copy(&built, bin.join("softverbs")).unwrap();
    fs::copy(&library, lib.join("libibverbs.so.1")).unwrap();
    std::os::unix::fs::symlink("libibverbs.so.1", lib.join("librdmacm.so.1")).unwrap();
    let mut command = Command::new(bin.join("softverbs"));
    command.args(["env", "--shell", "plain"]);
    let out = run(command).ok();
    let lib = fs::canonicalize(lib).unwrap();
    let expected = format!("LD_PRELOAD={}/libibverbs.so.1\n", lib.display());
    assert!(out.starts_with(&expected), "{out}");
}

#[test]
fn other_preloads_stay() {
    let mut command = softverbs("run -- sh -c");
    command
        .env("LD_PRELOAD", "libdl.so.2 libm.so.6")
        .arg("echo $LD_PRELOAD");
    let out = run(command).ok();
    assert!(
        out.trim()
            .ends_with("/libibverbs.so.1:libdl.so.2:libm.so.6"),
        "{out}"
    );
}

#[test]
fn the_environment_for_shells() {
    let softverbs = env!("CARGO_BIN_EXE_softverbs");
    let out = sh(&format!(
        "eval \"$({softverbs} env --addr 127.0.0.1)\" && ibv_devices"
    ))
    .ok();
    assert_eq!(device_names(&out), ["roce_lo"]);
    let out = sh(&format!(
        "env $({softverbs} env --addr 127.0.0.1 --shell plain) ibv_devices"
    ))
    .ok();
    assert_eq!(device_names(&out), ["roce_lo"]);
    // What was chosen before is taken back.
    let out = sh(&format!(
        "eval \"$({softverbs} env --as rxe)\"; eval \"$({softverbs} env --transport both)\"; \
         echo \"[$SOFTVERBS_AS$SOFTVERBS_TRANSPORT]\""
    ));
    assert_eq!(out.ok(), "[]\n");
    let options = sv("env --mpirun --as mlx5").ok();
    let words: Vec<&str> = options.split_whitespace().collect();
    assert!(
        words.len() >= 8 && words.iter().step_by(2).all(|word| *word == "-x"),
        "{options}"
    );
    assert!(words.contains(&"SOFTVERBS_AS=mlx5"), "{options}");
    sv("env --mpirun --shell sh").usage("cannot be used with");
}

/// What a program sees with `--sysfs`, and that it is still itself.
const VIEW: &str = "
    set -e
    cat /sys/class/infiniband/roce_lo/ports/1/gid_attrs/types/0
    cat /sys/class/infiniband/roce_lo/ports/1/gids/0
    cat /sys/class/infiniband_verbs/uverbs0/ibdev
    test -c /dev/infiniband/uverbs0 -a -r /dev/infiniband/uverbs0 -a -w /dev/infiniband/uverbs0
    test -e /dev/urandom -a -d /dev/pts -a -e /sys/class/net/lo/ifindex -a -L /dev/fd
    test -d /sys/class/infiniband/roce_lo/device/net/lo
    test -e /sys/class/misc/rdma_cm/abi_version
    test ! -e /tmp/class
    id -u
    exit 5";

#[test]
fn the_view() {
    let expected =
        |user: &str| format!("RoCE v2\n0000:0000:0000:0000:0000:ffff:7f00:0001\nroce_lo\n{user}\n");
    let user = sh("id -u").ok();
    let ended = run_sh("--sysfs --addr 127.0.0.1", VIEW);
    assert_eq!(
        (ended.code, ended.out),
        (Some(5), expected(user.trim())),
        "{}",
        ended.err
    );
    // Nobody else sees it.
    assert!(!Path::new("/sys/class/infiniband/roce_lo").exists());

    if user.trim() != "0" {
        return;
    }
    // Once more as a user without privilege, with copies that such a user may execute.
    let folder = Folder::new("view");
    let built = PathBuf::from(env!("CARGO_BIN_EXE_softverbs"));
    let (command, library) = (folder.0.join("softverbs"), folder.0.join("library.so"));
    fs::copy(&built, &command).unwrap();
    fs::copy(
        built.with_file_name("deps").join("libsoftverbs_cabi.so"),
        &library,
    )
    .unwrap();
    for file in [&folder.0, &command, &library] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut unprivileged = Command::new("setpriv");
    unprivileged
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(command)
        .args([
            "run",
            "--sysfs",
            "--addr",
            "127.0.0.1",
            "--",
            "sh",
            "-c",
            VIEW,
        ])
        .env("SOFTVERBS_LIBRARY", library)
        .env_remove("XDG_RUNTIME_DIR");
    let ended = run(unprivileged);
    if ended.code == Some(1) && ended.err.contains("needs a mount namespace") {
        eprintln!("not tried without privilege: {}", ended.err);
        return;
    }
    assert_eq!(
        (ended.code, ended.out),
        (Some(5), expected("65534")),
        "{}",
        ended.err
    );
}

#[test]
fn the_doctor() {
    let text = sv("doctor ibv_devinfo").ok();
    for subject in [
        "devices: ",
        "library: ",
        "versions: ",
        "RoCEv2: ",
        "processors: ",
    ] {
        assert!(text.contains(subject), "{subject}: {text}");
    }
    assert!(text.contains("uses libibverbs.so.1"), "{text}");
    let json = sv("doctor --json ucmatose").ok();
    let findings: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(
        findings
            .iter()
            .all(|finding| finding["verdict"] != "problem"),
        "{json}"
    );
    assert!(
        findings
            .iter()
            .any(|finding| finding["subject"] == "program"),
        "{json}"
    );
}

#[test]
fn the_doctor_tells_what_is_wrong_with_a_program() {
    let folder = Folder::new("doctor");
    let program = folder.static_program();
    let ended = sv(&format!("doctor {}", program.display()));
    assert!(ended.out.contains("PROBLEM  program: "), "{}", ended.out);
    assert!(ended.out.contains("linked statically"), "{}", ended.out);
    ended.failed("1 problem");
    sv("doctor no-such-program").failed("1 problem");
    let out = sv("doctor true").ok();
    assert!(out.contains("note     program: "), "{out}");
}
