//! `softverbs run` and `softverbs env`: other people's programs on this software.
//!
//! The library is put in front of rdma-core's in two ways at once. `LD_PRELOAD` serves whoever
//! looks a symbol up globally, modules that are loaded later, and programs with a built-in library
//! path; `LD_LIBRARY_PATH` serves whoever opens the library by its name. Both names lead to one
//! file, so that the loader makes one object of them.

mod environment;
mod library;
pub(crate) mod program;
mod view;

use std::io::{Write, stdout};
use std::os::unix::process::CommandExt;
use std::process::Command;

pub(crate) use environment::Environment;
pub(crate) use library::Library;

use crate::args::{EnvArgs, RunArgs, ShellArg};
use crate::failure::{Failure, Outcome};

/// Becomes the program; returns only if that failed.
pub(crate) fn run(args: &RunArgs) -> Outcome<()> {
    let [name, arguments @ ..] = args.program.as_slice() else {
        return Err(Failure::usage("no program"));
    };
    // Else a mistyped option of ours would be "not found" as a program, which means something else.
    if name.as_encoded_bytes().starts_with(b"-") {
        return Err(Failure::usage(format!(
            "`{0}` is no option of softverbs run (see --help); a program of this name: ./{0}",
            name.display()
        )));
    }
    let library = Library::find()?;
    let environment = Environment::new(&args.choice, &library)?;
    let path = program::find(name)?;
    program::check_reach(&path)?;
    if args.sysfs {
        view::enter(&environment.devices()?, environment.identity())?;
    }
    let mut command = Command::new(&path);
    command.arg0(name).args(arguments);
    environment.apply(&mut command);
    let error = command.exec();
    Err(program::cannot_run(name, &path, &error))
}

/// Prints the variables.
pub(crate) fn env(args: &EnvArgs) -> Outcome<()> {
    let library = Library::find()?;
    let environment = Environment::new(&args.choice, &library)?;
    let mut out = stdout().lock();
    if args.mpirun {
        writeln!(out, "{}", environment.mpirun()?)?;
    } else {
        write!(out, "{}", environment.script(args.shell))?;
    }
    Ok(())
}

impl ShellArg {
    /// One assignment for a child of the shell.
    fn assignment(self, name: &str, value: &str) -> String {
        match self {
            Self::Sh => format!("export {name}={}\n", quoted(value, r"'\''")),
            Self::Fish => format!(
                "set -gx {name} {}\n",
                quoted(&value.replace('\\', r"\\"), r"\'")
            ),
            Self::Csh => format!("setenv {name} {}\n", quoted(value, r"'\''")),
            Self::Plain => format!("{name}={value}\n"),
        }
    }
}

/// A text in single quotes; `quote` is what stands for a quote in it.
fn quoted(text: &str, quote: &str) -> String {
    format!("'{}'", text.replace('\'', quote))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_arrive_whole() {
        let value = r"/a b/it's\x";
        let line = ShellArg::Sh.assignment("A", value);
        assert_eq!(line, "export A='/a b/it'\\''s\\x'\n");
        let out = Command::new("sh")
            .args(["-c", &format!("{line}printf %s \"$A\"")])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), value);
        assert_eq!(
            ShellArg::Fish.assignment("A", value),
            "set -gx A '/a b/it\\'s\\\\x'\n"
        );
        assert_eq!(ShellArg::Csh.assignment("A", "x"), "setenv A 'x'\n");
        assert_eq!(
            ShellArg::Plain.assignment("A", value),
            format!("A={value}\n")
        );
    }
}
