//! Whether the library can stand in for the rdma-core that this system was built with.
//!
//! Providers of rdma-core (libmlx5, libefa), which perftest, libfabric and UCX load, need a version
//! node that is private to their release: without it the loader refuses the whole program.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::Finding;
use crate::dropin::Library;
use crate::dropin::program::Loading;

/// Where distributions keep libraries.
pub(super) const FOLDERS: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/local/lib",
];

/// Files whose versions are the library's.
const OURS: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

pub(super) fn examine(library: &Library) -> Vec<Finding> {
    let file = library.file().display();
    let defines = match Loading::of(library.file()) {
        Ok(Some(loading)) if loading.native => loading.defines,
        Ok(_) => {
            let text = format!("{file} is no library for this processor");
            return vec![Finding::problem("library", text, "")];
        }
        Err(error) => return vec![Finding::problem("library", format!("{file}: {error}"), "")],
    };
    let mut findings = vec![Finding::fine("library", file.to_string())];
    let mut examined = 0;
    for path in libraries() {
        let Ok(Some(loading)) = Loading::of(&path) else {
            continue;
        };
        if !loading.native || !needs_us(&loading) {
            continue;
        }
        examined += 1;
        let missing = missing(&loading, &defines);
        if !missing.is_empty() {
            let text = format!("{} needs {}", path.display(), missing.join(", "));
            let remedy = "this software's library does not have that version: programs that load \
                          the file end with \"version not found\"";
            findings.push(Finding::problem("versions", text, remedy));
        }
    }
    if findings.len() == 1 {
        let text = format!("{examined} libraries of this system use it and find their versions");
        findings.push(Finding::fine("versions", text));
    }
    findings
}

fn needs_us(loading: &Loading) -> bool {
    loading
        .libraries
        .iter()
        .any(|name| OURS.contains(&name.as_str()))
}

/// The versions that a file needs of ours and that are not there.
pub(super) fn missing(loading: &Loading, defines: &[String]) -> Vec<String> {
    let missing: BTreeSet<&String> = loading
        .versions
        .iter()
        .filter(|(file, version)| OURS.contains(&file.as_str()) && !defines.contains(version))
        .map(|(_, version)| version)
        .collect();
    missing.into_iter().cloned().collect()
}

/// Files that may depend on rdma-core, each once.
fn libraries() -> BTreeSet<PathBuf> {
    let is_candidate = |name: &str| {
        [
            "libmlx",
            "libefa",
            "libmana",
            "libfabric",
            "libibumad",
            "libibmad",
            "libuct",
            "librdmacm",
        ]
        .iter()
        .any(|start| name.starts_with(start))
            && name.contains(".so")
    };
    FOLDERS
        .iter()
        .flat_map(|folder| [PathBuf::from(folder), PathBuf::from(folder).join("ucx")])
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flat_map(|entries| entries.flatten())
        .filter(|entry| entry.file_name().to_str().is_some_and(is_candidate))
        .filter_map(|entry| fs::canonicalize(entry.path()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_versions_count() {
        let need = |file: &str, version: &str| (file.to_owned(), version.to_owned());
        let loading = Loading {
            versions: vec![
                need("libc.so.6", "GLIBC_2.34"),
                need("libibverbs.so.1", "IBVERBS_1.1"),
                need("libibverbs.so.1", "IBVERBS_PRIVATE_99"),
                need("librdmacm.so.1", "RDMACM_1.0"),
            ],
            ..Loading::default()
        };
        let defines = ["IBVERBS_1.1", "RDMACM_1.0"].map(String::from);
        assert_eq!(missing(&loading, &defines), ["IBVERBS_PRIVATE_99"]);
    }
}
