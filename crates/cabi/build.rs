//! Writes the exports, the linker's version script and its options from symbols.txt.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use symbols::{NODES, PRIVATE, State, Symbol};

#[path = "build/symbols.rs"]
mod symbols;

fn main() {
    println!("cargo:rerun-if-changed=symbols.txt");
    println!("cargo:rerun-if-changed=build/symbols.rs");
    let list = symbols::parse(&fs::read_to_string("symbols.txt").expect("symbols.txt"));
    let out = env::var("OUT_DIR").expect("OUT_DIR");
    let map = Path::new(&out).join("softverbs.map");
    fs::write(&map, version_script()).expect("version script");
    fs::write(Path::new(&out).join("exports.rs"), exports(&list)).expect("exports");
    for argument in [
        &format!("--version-script={}", map.display()),
        "-soname,libibverbs.so.1",
        // Its threads run until the process ends.
        "-z,nodelete",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}

/// Only the nodes: each export names its own.
fn version_script() -> String {
    let mut script = String::new();
    for chain in NODES {
        let mut before = String::new();
        for node in *chain {
            writeln!(script, "{node} {{ }}{before};").expect("to a string");
            before = format!(" {node}");
        }
    }
    for node in PRIVATE {
        writeln!(script, "IBVERBS_PRIVATE_{node} {{ }};").expect("to a string");
    }
    script
}

/// A jump to the function behind every export, under the name and the version that C programs look for.
/// The linker takes versions from assembly only.
fn exports(list: &[Symbol]) -> String {
    let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "jmp",
        Ok("aarch64") => "b",
        other => panic!("softverbs-cabi: no exports for the architecture {other:?}"),
    };
    let mut seen = BTreeSet::new();
    let mut text = String::new();
    for symbol in list {
        for version in &symbol.versions {
            let Symbol { name, state, .. } = symbol;
            assert!(
                seen.insert((name, version)),
                "symbols.txt: {name} {version} twice"
            );
            export(&mut text, symbol, version, *state == State::Old, jump);
        }
    }
    text
}

fn export(text: &mut String, symbol: &Symbol, version: &str, hidden: bool, jump: &str) {
    let Symbol { name, answer, .. } = symbol;
    let label = format!("softverbs_export_{name}_{}", version.replace('.', "_"));
    // Of several private nodes one has to be the default; a program's own reference decides anyway.
    let default = !hidden && symbol.versions.last().is_some_and(|last| last == version);
    let versioned = format!("{name}{}{version}", if default { "@@" } else { "@" });
    let (section, kind, body, operand) = match answer.as_deref() {
        None => (
            ".text",
            "function",
            format!("{jump} {{f}}"),
            format!(", f = sym {name}"),
        ),
        Some("data") => (".data", "object", ".byte 0".to_owned(), String::new()),
        Some(answer) => {
            let operand = format!(", f = sym crate::refused::{answer}");
            (".text", "function", format!("{jump} {{f}}"), operand)
        }
    };
    writeln!(
        text,
        "core::arch::global_asm!(\n    \".pushsection {section}.{label}, \\\"a{flag}\\\", @progbits\",\n    \
         \".globl {label}\", \".type {label}, @{kind}\", \"{label}:\", \"{body}\",\n    \
         \".size {label}, . - {label}\", \".symver {label}, {versioned}, remove\", \".popsection\"{operand});",
        flag = if section == ".text" { "x" } else { "w" },
    )
    .expect("to a string");
}
