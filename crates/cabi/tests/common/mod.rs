//! The library as C programs see it, for the tests of this folder.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::path::PathBuf;
use std::process::Command;

/// The library that cargo built together with the tests.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("the test's own path");
    let deps = exe.parent().expect("a folder");
    let library = deps.join("libsoftverbs_cabi.so");
    assert!(library.exists(), "no {}", library.display());
    library
}

/// A folder with the names that programs look for, all of them the library.
fn names() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("names");
    std::fs::create_dir_all(&folder).expect("a folder");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let (link, new) = (
            folder.join(name),
            folder.join(format!("{name}.{}", std::process::id())),
        );
        if std::fs::read_link(&link).is_ok_and(|target| target == library()) {
            continue;
        }
        // Other tests may do the same at this moment.
        std::os::unix::fs::symlink(library(), &new).expect("a link");
        std::fs::rename(&new, &link).expect("a link");
    }
    folder
}

/// A program that runs on the library, in the way that `scripts/with-softverbs` starts it.
pub(crate) fn with_softverbs(program: &str) -> Command {
    let names = names();
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", names.join("libibverbs.so.1"))
        .env("LD_LIBRARY_PATH", names);
    command
}
