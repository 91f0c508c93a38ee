//! Misuse and failures of librdmacm's calls, by a program of C.

mod common;

use common::cm::{Program, TRANSPORTS};
use common::compile;

#[test]
fn what_the_manual_pages_say() {
    let program = compile("cm");
    for transport in TRANSPORTS {
        Program::new(transport, program.to_str().expect("text")).ok();
    }
}
