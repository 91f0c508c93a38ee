//! Programs of C in `tests/c`, compiled here and run on the library: each checks itself.

mod common;

use std::process::Command;

use common::{compile, finished, with_softverbs};

fn run(name: &str) {
    run_with(name, &[]);
}

fn run_with(name: &str, arguments: &[&str]) {
    run_changed(name, |command| command.args(arguments));
}

fn run_changed(name: &str, change: impl FnOnce(&mut Command) -> &mut Command) {
    let program = compile(name);
    let mut command = with_softverbs(program.to_str().expect("a path"));
    let output = finished(change(&mut command));
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name}: {}\n{text}{complaint}",
        output.status
    );
    assert_eq!(
        (&*text, &*complaint),
        ("", ""),
        "{name}: nobody else writes"
    );
}

#[test]
fn misuse_is_refused_as_the_manual_pages_say() {
    run("misuse");
}

#[test]
fn faults_are_told_in_completions_and_events() {
    run("faults");
}

#[test]
fn objects_change_as_they_are_asked_to() {
    run("objects");
}

#[test]
fn processes_have_children_and_signals_and_end_when_they_like() {
    run("process");
    run_with("process", &["end"]);
}

#[test]
fn threads_that_wait_are_interrupted_and_cancelled() {
    // What is freed is filled with this, and no pointer to anything then.
    run_changed("waiting", |command| {
        command
            .env("MALLOC_PERTURB_", "165")
            .env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")
            // It counts descriptors, of which a lane takes some, once.
            .env("SOFTVERBS_SAME_HOST", "network")
    });
}

#[test]
fn receiving_ends_have_handles_that_go_one_by_one() {
    run("xrc");
}
