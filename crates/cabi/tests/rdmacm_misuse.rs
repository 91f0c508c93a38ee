//! Misuse and failures of librdmacm's calls, by a program of C.

mod common;

use common::cm::{Program, TRANSPORTS};
use common::compile;

fn passes_over_both(source: &str) {
    let program = compile(source);
    for transport in TRANSPORTS {
        Program::new(transport, program.to_str().expect("text")).ok();
    }
}

#[test]
fn what_the_manual_pages_say() {
    passes_over_both("cm");
}

#[test]
fn what_is_destroyed_is_not_touched_any_more() {
    let program = compile("lifetimes");
    for transport in TRANSPORTS {
        Program::new(transport, program.to_str().expect("text"))
            // What is freed is filled with this, and no pointer to anything then.
            .env("MALLOC_PERTURB_", "165")
            .env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")
            .ok();
    }
}

#[test]
fn who_leaves_without_a_word_is_missed() {
    passes_over_both("leaving");
}

/// Over iWARP the child keeps the connection as well.
#[test]
fn who_is_killed_is_missed_whatever_children_it_has() {
    let program = compile("leaving");
    let line = format!("{} killed", program.to_str().expect("text"));
    Program::new("roce", &line).ok();
}
