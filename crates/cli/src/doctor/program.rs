//! Whether `softverbs run` can reach a program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{Finding, versions};
use crate::dropin::Library;
use crate::dropin::program::{self, Loading};

pub(super) fn examine(name: &OsStr, library: &Library) -> Vec<Finding> {
    let path = match program::find(name) {
        Ok(path) => path,
        Err(failure) => return vec![Finding::problem("program", failure.to_string(), "")],
    };
    let shown = path.display();
    if path.is_dir() {
        return vec![Finding::problem(
            "program",
            format!("{shown} is a folder"),
            "",
        )];
    }
    if !program::is_executable(&path) {
        let text = format!("{shown} is not executable");
        return vec![Finding::problem("program", text, "chmod +x makes it so")];
    }
    if let Some(interpreter) = program::missing_interpreter(&path) {
        let text = format!("the interpreter of {shown}, {interpreter}, is not there");
        return vec![Finding::problem("program", text, "")];
    }
    match program::obstacle(&path) {
        Ok(None) => {}
        Ok(Some(why)) => {
            let text = format!("{shown} {why}");
            let remedy = "softverbs run refuses it; a program that is linked dynamically and has \
                          no privileges of its own is needed";
            return vec![Finding::problem("program", text, remedy)];
        }
        Err(error) => return vec![Finding::problem("program", format!("{shown}: {error}"), "")],
    }
    match Loading::of(&path) {
        Ok(Some(loading)) => vec![links(&path, &loading, library)],
        Ok(None) => vec![Finding::note(
            "program",
            format!("{shown} is a script"),
            "what it runs is reached, too, as long as it keeps LD_PRELOAD and LD_LIBRARY_PATH \
             (sudo drops them)",
        )],
        Err(error) => vec![Finding::problem("program", format!("{shown}: {error}"), "")],
    }
}

fn links(path: &Path, loading: &Loading, library: &Library) -> Finding {
    let shown = path.display();
    let defines = Loading::of(library.file())
        .ok()
        .flatten()
        .unwrap_or_default()
        .defines;
    let missing = versions::missing(loading, &defines);
    if !missing.is_empty() {
        let text = format!("{shown} needs {}", missing.join(", "));
        let remedy = "this software's library does not have that version";
        return Finding::problem("program", text, remedy);
    }
    let uses = |loading: &Loading| {
        let found = loading.libraries.iter().find(|name| {
            ["libibverbs.so", "librdmacm.so"]
                .iter()
                .any(|ours| name.starts_with(ours))
        });
        found.cloned()
    };
    if let Some(name) = uses(loading) {
        return Finding::fine("program", format!("{shown} uses {name}"));
    }
    for name in &loading.libraries {
        let Some(file) = locate(name) else {
            continue;
        };
        if let Ok(Some(used)) = Loading::of(&file)
            && let Some(ours) = uses(&used)
        {
            return Finding::fine("program", format!("{shown} uses {name}, which uses {ours}"));
        }
    }
    Finding::note(
        "program",
        format!("{shown} does not name libibverbs or librdmacm"),
        "it is reached if it opens them later, as plug-ins do, and it is not if they are built in",
    )
}

/// Finds a library where the loader looks first on this system.
fn locate(name: &str) -> Option<PathBuf> {
    versions::FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists())
}
