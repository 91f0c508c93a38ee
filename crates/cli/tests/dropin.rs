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
    sv("run --same-host tcp -- true").usage("memory, network");
}

#[test]
fn faults_are_checked_and_passed_on() {
    let out = run_sh("--fault rtu:first=drop,seed=7", "echo $SOFTVERBS_FAULT").ok();
    assert_eq!(out, "rtu:first=drop,seed=7\n");
    sv("run --fault rtu:first=lose -- true").usage("lose");
}

/// The variables that say what a program sees, as it finds them.
const SHOW: &str = "echo \"$SOFTVERBS_TRANSPORT|$SOFTVERBS_ADDR|$SOFTVERBS_AS|$SOFTVERBS_SAME_HOST|$SOFTVERBS_FAULT\"";

/// `softverbs run` in an environment.
fn run_in(environment: &[(&str, &str)], options: &str) -> Ended {
    let mut command = softverbs(&format!("run {options} -- sh -c"));
    command.arg(SHOW).envs(environment.iter().copied());
    run(command)
}

#[test]
fn options_count_more_than_the_environment_and_that_more_than_the_default() {
    let set = [
        ("SOFTVERBS_TRANSPORT", "iwarp"),
        ("SOFTVERBS_ADDR", "127.0.0.1,::1"),
        ("SOFTVERBS_AS", "rxe"),
        ("SOFTVERBS_SAME_HOST", "network"),
        ("SOFTVERBS_FAULT", "any=delay:1ms,seed=3"),
    ];
    let inherited = "iwarp|127.0.0.1,::1|rxe|network|any=delay:1ms,seed=3\n";
    assert_eq!(run_in(&set, "").ok(), inherited);
    let options =
        "--transport both --addr 127.0.0.1 --as softverbs --same-host memory --fault packet=log";
    let chosen = "both|127.0.0.1|softverbs|memory|packet=log\n";
    assert_eq!(run_in(&set, options).ok(), chosen);
    // One run inside another: nothing is lost.
    let nested = format!("{} run -- sh -c '{SHOW}'", env!("CARGO_BIN_EXE_softverbs"));
    assert_eq!(run_sh(options, &nested).ok(), chosen);
    assert_eq!(run_in(&[], "").ok(), "roce||||\n");
    let empty = set.map(|(name, _)| (name, ""));
    assert_eq!(run_in(&empty, "").ok(), "roce||||\n");
}

#[test]
fn what_the_environment_says_is_checked() {
    for (name, value, why) in [
        (
            "SOFTVERBS_TRANSPORT",
            "rdma",
            "SOFTVERBS_TRANSPORT: \"rdma\"",
        ),
        ("SOFTVERBS_ADDR", "eth0", "SOFTVERBS_ADDR: `eth0`"),
        ("SOFTVERBS_AS", "mlx4", "SOFTVERBS_AS: \"mlx4\""),
        ("SOFTVERBS_SAME_HOST", "tcp", "SOFTVERBS_SAME_HOST: \"tcp\""),
        ("SOFTVERBS_FAULT", "rtu=dorp", "SOFTVERBS_FAULT: `dorp`"),
        ("SOFTVERBS_FAULT", "fpdu=log", "SOFTVERBS_FAULT: `fpdu=log`"),
    ] {
        run_in(&[(name, value)], "").usage(why);
        let mut command = softverbs("env");
        command.env(name, value);
        run(command).usage(why);
    }
    run_in(&[("SOFTVERBS_ADDR", "203.0.113.77")], "").failed("203.0.113.77");
    // An option takes the place of what is wrong.
    run_in(&[("SOFTVERBS_TRANSPORT", "rdma")], "--transport iwarp").ok();
}

#[test]
fn faults_that_nothing_would_come_of_are_refused() {
    for (options, why) in [
        (
            "--transport iwarp --fault packet:1%=drop",
            "is about RoCE packets",
        ),
        ("--fault fpdu:3=reset", "is about iWARP frames"),
        ("--fault seed=7", "no rule"),
        ("--fault packet=dup:4000000", "100 at most"),
        (
            "--fault rtu=drop,log=/no/such/folder/log",
            "/no/such/folder/log",
        ),
    ] {
        sv(&format!("run {options} -- true")).usage(why);
        sv(&format!("env {options}")).usage(why);
    }
    sv("run --transport both --fault packet:1%=drop,fpdu=log -- true").ok();
}

#[test]
fn the_log_of_faults_is_where_the_command_was_started() {
    let folder = Folder::new("fault-log");
    let mut command = softverbs("run --fault packet=log,log=faults.log -- sh -c");
    command
        .arg("cd / && echo $SOFTVERBS_FAULT")
        .current_dir(&folder.0);
    let log = fs::canonicalize(&folder.0).unwrap().join("faults.log");
    let expected = format!("packet=log,log={}\n", log.display());
    assert_eq!(run(command).ok(), expected);
    assert!(log.exists());
}

#[test]
fn a_mistyped_option_is_no_program() {
    for line in [
        "run --fualt packet:1%=drop -- true",
        "run -x true",
        "run -- -x",
    ] {
        sv(line).usage("no option of softverbs run");
    }
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
fn what_is_there_but_cannot_run_is_not_called_missing() {
    let folder = Folder::new("exit-status");
    let write = |name: &str, text: &str, mode: u32| {
        let path = folder.0.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let lost = write("lost", "#!/no/such/interpreter -x\n", 0o755);
    let text = write("only-text", "no program\n", 0o644);
    let here = folder.0.display().to_string();

    let ended = sv(&format!("run -- {lost}"));
    assert_eq!(ended.code, Some(126), "{ended:?}");
    assert!(ended.err.contains("its interpreter /no/such/interpreter"));
    let out = sv(&format!("doctor {lost}"));
    assert!(
        out.out.contains("/no/such/interpreter, is not there"),
        "{out:?}"
    );
    out.failed("problem");
    let out = sv(&format!("doctor {text}"));
    assert!(out.out.contains("is not executable"), "{out:?}");
    out.failed("problem");
    let out = sv(&format!("doctor {here}"));
    assert!(out.out.contains("is a folder"), "{out:?}");
    out.failed("problem");

    // Found on the way, as shells do.
    let mut command = softverbs("run -- only-text");
    command.env("PATH", &here);
    let ended = run(command);
    assert_eq!(ended.code, Some(126), "{ended:?}");
    assert!(ended.err.contains("ermission denied"), "{ended:?}");
}

#[test]
fn a_folder_that_may_not_be_searched() {
    let folder = Folder::new("closed");
    let closed = folder.0.join("closed");
    fs::create_dir_all(&closed).unwrap();
    let program = closed.join("program");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    let softverbs = folder.0.join("softverbs");
    fs::copy(env!("CARGO_BIN_EXE_softverbs"), &softverbs).unwrap();
    let built = PathBuf::from(env!("CARGO_BIN_EXE_softverbs"));
    let library = folder.0.join("library.so");
    fs::copy(
        built.with_file_name("deps").join("libsoftverbs_cabi.so"),
        &library,
    )
    .unwrap();
    for (path, mode) in [(&folder.0, 0o755), (&library, 0o755), (&closed, 0o600)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // Root may search every folder.
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(&softverbs);
        command
    } else {
        Command::new(&softverbs)
    };
    command
        .args(["run", "--"])
        .arg(&program)
        .env("SOFTVERBS_LIBRARY", &library)
        .env_remove("XDG_RUNTIME_DIR");
    let ended = run(command);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(ended.code, Some(126), "{ended:?}");
    assert!(ended.err.contains("ermission denied"), "{ended:?}");
}

fn is_root() -> bool {
    sh("id -u").ok().trim() == "0"
}

#[test]
fn a_library_that_is_elsewhere() {
    let folder = Folder::new("elsewhere");
    let text = folder.0.join("text.so");
    fs::write(&text, "no library").unwrap();
    let rdma_core = sh("ls /usr/lib/*/libibverbs.so.1 | head -n 1").ok();
    for (library, why) in [
        ("/no/such/library", "/no/such/library"),
        (text.to_str().unwrap(), "is no ELF file"),
        (
            env!("CARGO_BIN_EXE_softverbs"),
            "is not this software's library",
        ),
        (rdma_core.trim(), "is not this software's library"),
        ("/tmp", "/tmp"),
    ] {
        let mut command = softverbs("run -- ibv_devices");
        command.env("SOFTVERBS_LIBRARY", library);
        run(command).failed(why);
    }
}

#[test]
fn names_of_libraries_that_are_gone_go_too() {
    let folder = Folder::new("stale");
    let built = PathBuf::from(env!("CARGO_BIN_EXE_softverbs"));
    let built = built.with_file_name("deps").join("libsoftverbs_cabi.so");
    let run_time = folder.0.join("run");
    fs::create_dir_all(&run_time).unwrap();
    fs::set_permissions(&run_time, fs::Permissions::from_mode(0o700)).unwrap();
    let names = |count: usize| {
        let library = folder.0.join(format!("library-{count}.so"));
        fs::copy(&built, &library).unwrap();
        let mut command = softverbs("run -- true");
        command
            .env("SOFTVERBS_LIBRARY", &library)
            .env("XDG_RUNTIME_DIR", &run_time);
        run(command).ok();
        let folders = fs::read_dir(run_time.join("softverbs-lib"))
            .unwrap()
            .count();
        (library, folders)
    };
    let (first, folders) = names(1);
    assert_eq!(folders, 1);
    assert_eq!(names(2).1, 2, "both libraries are there");
    fs::remove_file(first).unwrap();
    assert_eq!(names(3).1, 2, "what the first one left is gone");
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
    // What was chosen before stays until something else is.
    let out = sh(&format!(
        "eval \"$({softverbs} env --as rxe)\"; eval \"$({softverbs} env --transport both)\"; \
         {SHOW}; eval \"$({softverbs} env --as softverbs)\"; {SHOW}"
    ));
    assert_eq!(out.ok(), "both||rxe||\nboth||softverbs||\n");
    // Every reader gets the same.
    let lines = |shell: &str| {
        let mut command = common::softverbs(&format!("env --shell {shell} --as rxe"));
        command.env("SOFTVERBS_FAULT", "packet=log");
        run(command).ok().lines().count()
    };
    for shell in ["sh", "fish", "csh", "plain"] {
        assert_eq!(lines(shell), 5, "{shell}");
    }
    let spaced = Folder::new("a space");
    let plan = format!("packet=log,log={}/a b", spaced.0.display());
    let mut command = common::softverbs("env --mpirun");
    command.env("SOFTVERBS_FAULT", plan);
    run(command).usage("no space");
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
    ended.failed("problem");
    sv("doctor no-such-program").failed("problem");
    let out = sv("doctor true").ok();
    assert!(out.contains("note     program: "), "{out}");
}
