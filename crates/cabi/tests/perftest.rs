//! The programs of perftest, as the distribution has them.

mod common;

use std::process::ExitStatus;

use common::cm::{Program, free_port};
use common::pair::{REFUSED_AGAIN, succeed, succeed_over};

/// Runs a program once with each line of arguments. `-F` leaves the frequency of the processor alone.
fn measure(program: &str, variants: &[&str]) {
    for variant in variants {
        succeed(program, &format!("-d roce_lo -F -n 200 {variant}"));
    }
}

/// Unreliable messages, few enough for the socket's buffer: a lost one would be waited for.
const UC: &str = "-c UC -s 1000";
const UD: &str = "-c UD -s 1000";

#[test]
fn writes() {
    measure(
        "ib_write_bw",
        &[
            "",
            "-b",
            "-q 16 -s 4096",
            UC,
            "-x 0 -s 1048576 -n 20",
            "-a -n 5",
        ],
    );
    measure(
        "ib_write_lat",
        &["", "-c UC -s 3000", "-I 64 -s 64", "-a -n 5"],
    );
}

#[test]
fn reads() {
    measure("ib_read_bw", &["", "-b -q 4", "-e"]);
    measure("ib_read_lat", &["", "-e"]);
}

#[test]
fn sends() {
    measure(
        "ib_send_bw",
        &[
            "",
            "-b",
            "-e",
            UC,
            UD,
            "--use-srq -q 16",
            "-s 1048576 -n 20",
        ],
    );
    measure("ib_send_lat", &["", "-e", UC, UD, "--use-srq"]);
}

#[test]
fn atomics() {
    measure("ib_atomic_bw", &["", "-A CMP_AND_SWAP"]);
    measure("ib_atomic_lat", &["", "-A FETCH_AND_ADD"]);
}

#[test]
fn for_some_time() {
    succeed("ib_write_bw", "-d roce_lo -F -D 1");
    succeed("ib_send_lat", "-d roce_lo -F -D 1");
}

/// Over iWARP it can be seen from outside when the server listens.
#[test]
fn by_the_connection_manager_over_iwarp() {
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_lat", "ib_atomic_lat"] {
        succeed_over("iwarp", program, "-R -F -n 200");
    }
}

/// Over RoCE it cannot: clients come before the server, which listens twice besides, for one connection
/// each, and is not there in between. One that is too early is refused; nothing else ever fails.
#[test]
fn by_the_connection_manager_over_roce_with_early_clients() {
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_lat", "ib_atomic_lat"] {
        let line = format!("{program} -R -F -n 200 -p {}", free_port());
        let client = || {
            Program::new("roce", &format!("{line} 127.0.0.1"))
                .start()
                .end()
        };
        let refused = |(status, output): &(ExitStatus, String)| {
            assert!(
                output.contains("Unexpected CM event bl blka 8"),
                "{status}\n{output}"
            );
        };
        refused(&client());
        let mut server = Program::new("roce", &line).start();
        let mut attempt = client();
        while !attempt.0.success() {
            if attempt.1.contains(REFUSED_AGAIN) {
                // The server waits for this client's second connection, and for nothing else.
                drop(server);
                server = Program::new("roce", &line).start();
            } else {
                refused(&attempt);
            }
            attempt = client();
        }
        server.ok();
    }
}

/// For every operation but the atomic ones.
const PROGRAMS: [&str; 6] = [
    "ib_send_bw",
    "ib_write_bw",
    "ib_read_bw",
    "ib_send_lat",
    "ib_write_lat",
    "ib_read_lat",
];

/// What docs/run.md says of perftest: every operation and service with every option, which takes minutes.
#[test]
#[ignore = "the whole matrix takes six minutes; a part of each is in the other tests, and docs/run.md names the command"]
fn everything() {
    for program in PROGRAMS {
        let (sends, reads) = (program.contains("send"), program.contains("read"));
        for service in ["-c RC", UC, UD] {
            let lacks = (service == UD && !sends) || (service == UC && reads);
            if lacks {
                continue;
            }
            let mut variants = vec!["", "-D 1"];
            if program.ends_with("_bw") {
                variants.extend(["-q 16", "-b"]);
            }
            if program.ends_with("_lat") && !reads {
                variants.push("-I 64 -s 64");
            }
            if sends || reads {
                variants.push("-e");
            }
            if sends {
                variants.push("--use-srq");
            }
            if service == "-c RC" {
                variants.push("-a -n 5");
            }
            for variant in variants {
                // A time goes with no number.
                let number = if variant == "-D 1" { "" } else { "-n 100" };
                succeed(
                    program,
                    &format!("-d roce_lo -F {service} {number} {variant}"),
                );
            }
        }
    }
    for program in ["ib_atomic_bw", "ib_atomic_lat"] {
        measure(program, &[""]);
        succeed(program, "-d roce_lo -F -D 1");
    }
    for program in PROGRAMS {
        for variant in ["-n 100", "-a -n 5", "-D 1"] {
            succeed_over("iwarp", program, &format!("-R -F {variant}"));
        }
    }
    for variant in ["-b -n 100", "-q 16 -n 100"] {
        succeed_over("iwarp", "ib_write_bw", &format!("-R -F {variant}"));
    }
}
