//! The exports of the library: what symbols.txt lists, no more and no less, each with its version; and
//! all that the programs of the distribution ask for.

mod common;
#[path = "../build/symbols.rs"]
mod symbols;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use common::library;
use symbols::{State, Symbol};

fn listed() -> Vec<Symbol> {
    symbols::parse(include_str!("../symbols.txt"))
}

/// What a shared library defines: name, version, and whether that is the default version.
fn defined(library: &Path) -> BTreeSet<(String, String, bool)> {
    let output = Command::new("objdump").arg("-T").arg(library).output();
    let output = output.expect("no objdump: run scripts/install-test-deps");
    assert!(output.status.success(), "objdump -T {}", library.display());
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines()
        .filter(|line| !line.contains("*UND*") && !line.contains("*ABS*"))
        .filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            let (name, version) = (words.next()?, words.next()?);
            let plain = version.trim_matches(['(', ')']);
            let known =
                plain.starts_with("IBVERBS_") || plain.starts_with("RDMACM_") || plain == "Base";
            known.then(|| (name.to_owned(), plain.to_owned(), plain == version))
        })
        .collect()
}

#[test]
fn the_library_exports_what_the_list_says() {
    let mut expected = BTreeSet::new();
    for symbol in listed() {
        for (index, version) in symbol.versions.iter().enumerate() {
            let default = symbol.state != State::Old && index + 1 == symbol.versions.len();
            expected.insert((symbol.name.clone(), version.clone(), default));
        }
    }
    let defined = defined(&library());
    let missing: Vec<_> = expected.difference(&defined).collect();
    let unlisted: Vec<_> = defined.difference(&expected).collect();
    assert!(
        missing.is_empty() && unlisted.is_empty(),
        "missing {missing:?}, unlisted {unlisted:?}"
    );
}

#[test]
fn nothing_of_the_distributions_libraries_is_missing() {
    let ours: BTreeSet<_> = defined(&library())
        .into_iter()
        .map(|(name, version, _)| (name, version))
        .collect();
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let folders = [
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/usr/lib",
        ];
        let theirs = folders
            .iter()
            .map(|folder| Path::new(folder).join(name))
            .find(|path| path.exists());
        let theirs = theirs.expect("no rdma-core: run scripts/install-test-deps");
        let theirs: BTreeSet<_> = defined(&theirs)
            .into_iter()
            .map(|(name, version, _)| (name, version))
            .collect();
        let missing: Vec<_> = theirs.difference(&ours).collect();
        assert!(
            theirs.len() > 60 && missing.is_empty(),
            "{name}: missing {missing:?}"
        );
    }
}

#[test]
fn the_name_in_the_library_is_the_one_that_programs_need() {
    let output = Command::new("readelf")
        .arg("-d")
        .arg(library())
        .output()
        .expect("readelf");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("Library soname: [libibverbs.so.1]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}

/// The table of docs/compatibility.md; with `SOFTVERBS_UPDATE=1` in the environment it is written anew.
#[test]
fn the_table_in_the_documentation_is_that_of_the_list() {
    const START: &str = "<!-- from crates/cabi/symbols.txt; SOFTVERBS_UPDATE=1 cargo test -p softverbs-cabi --test symbols -->\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let text = std::fs::read_to_string(&path).expect("docs/compatibility.md");
    let (before, _) = text.split_once(START).expect("the start of the table");
    let expected = format!("{before}{START}{}", table());
    if std::env::var_os("SOFTVERBS_UPDATE").is_some() {
        std::fs::write(&path, expected).expect("docs/compatibility.md");
    } else {
        assert!(
            text == expected,
            "docs/compatibility.md is out of date: see the line above its table"
        );
    }
}

fn table() -> String {
    let mut out = String::new();
    let all = listed();
    let public = |symbol: &&Symbol| matches!(symbol.state, State::Implemented | State::Refused);
    let count = |state| all.iter().filter(|symbol| symbol.state == state).count();
    writeln!(
        out,
        "\n{} calls are implemented, {} are refused; {} private symbols of rdma-core and {} of its ABI before \
         2008 are there so that programs load, and answer that they are not supported.\n",
        count(State::Implemented),
        count(State::Refused),
        count(State::Private),
        count(State::Old)
    )
    .expect("to a string");
    out.push_str("| call | version | |\n|---|---|---|\n");
    for symbol in all.iter().filter(public) {
        let state = match symbol.state {
            State::Implemented => "yes",
            _ => "**no**",
        };
        let note = if symbol.note.is_empty() {
            String::new()
        } else {
            format!(": {}", symbol.note)
        };
        writeln!(
            out,
            "| `{}` | {} | {state}{note} |",
            symbol.name, symbol.versions[0]
        )
        .expect("to a string");
    }
    out
}
