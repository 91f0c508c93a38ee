//! `scripts/install`, with what is built already in the place of a build.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Ended, run};

/// A folder to call it from, with a `cargo` in it that takes what the tests were built as.
struct Scene(PathBuf);

/// Finds `--target-dir` among its arguments, and puts there what a build would.
const CARGO: &str = r#"#!/bin/sh
set -e
while [ "$1" != --target-dir ]; do shift; done
mkdir -p "$2/release"
cp "$BUILT_COMMAND" "$2/release/softverbs"
cp "$BUILT_LIBRARY" "$2/release/libsoftverbs_cabi.so"
"#;

impl Scene {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("softverbs-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("tools")).unwrap();
        let folder = fs::canonicalize(folder).unwrap();
        let cargo = folder.join("tools/cargo");
        fs::write(&cargo, CARGO).unwrap();
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    /// Calls the script from the folder.
    fn install(&self, arguments: &[&str], target: &str) -> Ended {
        let path = std::env::var("PATH").unwrap();
        let built = Path::new(env!("CARGO_BIN_EXE_softverbs"));
        let library = built.with_file_name("deps").join("libsoftverbs_cabi.so");
        let mut command = Command::new(repository().join("scripts/install"));
        command
            .args(arguments)
            .current_dir(&self.0)
            .env("PATH", format!("{}/tools:{path}", self.0.display()))
            .env("CARGO_TARGET_DIR", target)
            .env("BUILT_COMMAND", built)
            .env("BUILT_LIBRARY", library);
        run(command)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn repository() -> PathBuf {
    fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).unwrap()
}

#[test]
fn relative_paths_are_those_of_the_caller() {
    let scene = Scene::new("install");
    // A name that would show in the repository.
    let (prefix, target) = ("a-prefix-of-a-test", "a-target-of-a-test");
    let out = scene.install(&[prefix], target).ok();
    let prefix = scene.0.join(prefix);
    let expected = format!(
        "install: {0}/bin/softverbs, {0}/lib/softverbs\n",
        prefix.display()
    );
    assert_eq!(out, expected);
    assert!(scene.0.join(target).join("release/softverbs").exists());
    for name in ["a-prefix-of-a-test", "a-target-of-a-test"] {
        assert!(!repository().join(name).exists(), "{name}");
    }
    // It works from there.
    let mut command = Command::new(prefix.join("bin/softverbs"));
    command.args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let out = run(command).ok();
    let library = prefix.join("lib/softverbs/libibverbs.so.1");
    assert_eq!(out.trim(), library.display().to_string());
}

#[test]
fn arguments_too_many_are_refused() {
    let scene = Scene::new("install-usage");
    for arguments in [["one", "two"], ["one", "--help"], ["--prefix", "one"]] {
        let ended = scene.install(&arguments, "target");
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(!scene.0.join("one").exists());
    }
}
