//! The variables under which a program runs on this software.

use std::env;
use std::ffi::{OsStr, OsString};
use std::process::Command;

use softverbs::{Device, Identity};

use super::Library;
use crate::args::{ChoiceArgs, DropInTransport, ShellArg};
use crate::failure::{Failure, Outcome};

/// Variables and what they are to be; nothing means that they must not be set.
#[derive(Debug)]
pub(crate) struct Environment {
    variables: Vec<(&'static str, Option<String>)>,
    choice: (DropInTransport, Vec<std::net::IpAddr>),
}

impl Environment {
    /// The variables for a choice of the user's. An address that is not one of this machine is an
    /// error here, not later in the program.
    pub(crate) fn new(choice: &ChoiceArgs, library: &Library) -> Outcome<Self> {
        let preload = library.preload()?;
        let folder = library.folder()?;
        let addresses: Vec<String> = choice.addr.iter().map(ToString::to_string).collect();
        let identity = choice.identity;
        let variables = vec![
            (
                "LD_PRELOAD",
                Some(in_front("LD_PRELOAD", &preload, &[':', ' '])?),
            ),
            (
                "LD_LIBRARY_PATH",
                Some(in_front("LD_LIBRARY_PATH", &folder, &[':', ';'])?),
            ),
            (
                "SOFTVERBS_TRANSPORT",
                choice.transport.variable().map(String::from),
            ),
            (
                "SOFTVERBS_ADDR",
                Some(addresses.join(",")).filter(|text| !text.is_empty()),
            ),
            (
                "SOFTVERBS_FAULT",
                choice.fault.as_ref().map(ToString::to_string),
            ),
            (
                "SOFTVERBS_AS",
                Some(identity.name().to_owned()).filter(|_| identity != Identity::Softverbs),
            ),
        ];
        let environment = Self {
            variables,
            choice: (choice.transport, choice.addr.clone()),
        };
        if environment.devices()?.is_empty() {
            return Err(Failure::run(
                "no network interface is up and has an address",
            ));
        }
        Ok(environment)
    }

    /// The devices that the program will see, in its order.
    pub(crate) fn devices(&self) -> Outcome<Vec<Device>> {
        let (transport, addresses) = &self.choice;
        let transport = transport.variable().map(str::parse).transpose()?;
        Ok(softverbs::devices_by(transport, addresses)?)
    }

    /// Sets them for a program.
    pub(crate) fn apply(&self, command: &mut Command) {
        for (name, value) in &self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }

    /// As commands of a shell.
    pub(crate) fn script(&self, shell: ShellArg) -> String {
        self.variables
            .iter()
            .filter_map(|(name, value)| match value {
                Some(value) => Some(shell.assignment(name, value)),
                None => env::var_os(name).map(|_| shell.removal(name)),
            })
            .collect()
    }

    /// As options of Open MPI's mpirun. None of the values has spaces in it, unless a
    /// log file of a fault plan has.
    pub(crate) fn mpirun(&self) -> String {
        let options: Vec<String> = self
            .variables
            .iter()
            .filter_map(|(name, value)| Some(format!("-x {name}={}", value.as_ref()?)))
            .collect();
        options.join(" ")
    }
}

/// A path in front of those that a variable has already, but for itself.
fn in_front(variable: &str, path: &str, separators: &[char]) -> Outcome<String> {
    if path.contains([':', ';', ' ']) {
        let why = format!("{path}: the loader takes no path with a space, ':' or ';' in it");
        return Err(Failure::run(why));
    }
    let before = env::var_os(variable).unwrap_or_default();
    Ok(joined(path, &before, separators))
}

fn joined(path: &str, before: &OsStr, separators: &[char]) -> String {
    let before = OsString::from(before).to_string_lossy().into_owned();
    let others = before
        .split(separators)
        .filter(|other| !other.is_empty() && *other != path);
    std::iter::once(path)
        .chain(others)
        .collect::<Vec<_>>()
        .join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_already_stays_behind() {
        let path = |before: &str| joined("/x/lib.so", OsStr::new(before), &[':', ' ']);
        assert_eq!(path(""), "/x/lib.so");
        assert_eq!(path("/a.so /b.so"), "/x/lib.so:/a.so:/b.so");
        assert_eq!(path("/a.so:/x/lib.so"), "/x/lib.so:/a.so");
    }

    #[test]
    fn paths_that_the_loader_would_split_are_refused() {
        assert!(in_front("NONE_SUCH", "/a b/c", &[':']).is_err());
        assert_eq!(in_front("NONE_SUCH", "/a/c", &[':']).unwrap(), "/a/c");
    }
}
