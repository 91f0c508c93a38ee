//! The recipe of docs/ci.md, as it stands there.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Ended, document, free_port, run};

/// The script of a step.
fn step(name: &str) -> String {
    let text = document("ci.md");
    let head = format!("- name: {name}\n");
    let (_, rest) = text.split_once(&head).expect(name);
    let (first, rest) = rest.split_once('\n').unwrap();
    let script = first.trim_start().strip_prefix("run:").unwrap().trim();
    if script != "|" {
        return script.to_owned();
    }
    let depth = rest.len() - rest.trim_start().len();
    rest.lines()
        .take_while(|line| line.len() > depth && line[..depth].trim().is_empty())
        .map(|line| format!("{}\n", &line[depth..]))
        .collect()
}

/// A runner: its tools, and the environment that steps hand on.
struct Runner(PathBuf);

/// The real rping at a port of its own, somewhat later or never.
const RPING: &str = r#"#!/bin/sh
case " $* " in
*" -s "*) sleep "$SERVER_LATE"; [ -z "$SERVER_FAILS" ] || exit 3 ;;
*) sleep "$CLIENT_LATE" ;;
esac
exec /usr/bin/rping "$@" -p "$RPING_PORT"
"#;

const MAKE: &str = "#!/bin/sh\necho made \"$@\"\n";

impl Runner {
    fn new(name: &str) -> Self {
        let name = format!("softverbs-ci-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in [("rping", RPING), ("make", MAKE)] {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let runner = Self(folder);
        let step = step("Every step from here on runs on Softverbs");
        runner.run(&step, &[]).ok();
        runner
    }

    fn run(&self, script: &str, variables: &[(&str, &str)]) -> Ended {
        let command_folder = Path::new(env!("CARGO_BIN_EXE_softverbs")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        let (own, handed_on) = (self.0.display(), self.0.join("environment"));
        let mut command = Command::new("bash");
        // As the runner calls it.
        command
            .args(["--noprofile", "--norc", "-e", "-c", script])
            .env("PATH", format!("{own}:{}:{path}", command_folder.display()))
            .env("GITHUB_ENV", &handed_on)
            .envs(variables.iter().copied());
        let lines = fs::read_to_string(&handed_on).unwrap_or_default();
        command.envs(lines.lines().map(|line| line.split_once('=').unwrap()));
        run(command)
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_tests_step_whoever_comes_first() {
    let runner = Runner::new("late");
    let script = step("Tests");
    for (server, client) in [
        ("0", "0"),
        ("0.7", "0"),
        ("0", "0.7"),
        ("0", "0"),
        ("0.3", "0"),
    ] {
        let port = free_port().to_string();
        let ended = runner.run(
            &script,
            &[
                ("RPING_PORT", port.as_str()),
                ("SERVER_LATE", server),
                ("CLIENT_LATE", client),
            ],
        );
        let out = ended.ok();
        assert_eq!(out.matches("ping data:").count(), 10, "{out}");
        assert!(out.contains("made check"), "{out}");
    }
}

#[test]
fn the_tests_step_without_a_server_fails_and_does_not_hang() {
    let runner = Runner::new("none");
    let port = free_port().to_string();
    let variables = [
        ("RPING_PORT", port.as_str()),
        ("SERVER_LATE", "0"),
        ("SERVER_FAILS", "1"),
        ("CLIENT_LATE", "0"),
    ];
    let ended = runner.run(&step("Tests"), &variables);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(!ended.out.contains("made"), "{ended:?}");
}
