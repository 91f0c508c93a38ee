//! The variables under which a program runs on this software.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::net::IpAddr;
use std::process::Command;

use softverbs::fault::{self, LogTo, Plan};
use softverbs::{Device, Identity, SameHost};

use super::Library;
use crate::args::{ChoiceArgs, DropInTransport, ShellArg};
use crate::failure::{Failure, Outcome};
use crate::plan::check_fault;

const ADDRESSES: &str = "SOFTVERBS_ADDR";
const IDENTITY: &str = "SOFTVERBS_AS";
const TRANSPORT: &str = "SOFTVERBS_TRANSPORT";

/// Variables and what they are to be. None is ever taken away: a choice that is the library's own
/// default is written out if somebody made it, so that it means the same however it is passed on.
#[derive(Debug)]
pub(crate) struct Environment {
    variables: Vec<(&'static str, String)>,
    choice: Choice,
}

/// What the program is to see: an option counts more than a variable of the environment, and that
/// more than the default.
#[derive(Debug)]
struct Choice {
    transport: DropInTransport,
    addresses: Vec<IpAddr>,
    identity: Option<Identity>,
    same_host: Option<SameHost>,
    fault: Option<Plan>,
}

impl Choice {
    fn new(args: &ChoiceArgs) -> Outcome<Self> {
        let usage = |error: softverbs::Error| Failure::usage(error.to_string());
        let transport = match (args.transport, variable(TRANSPORT)?) {
            (Some(transport), _) => transport,
            (None, None) => DropInTransport::Roce,
            (None, Some(_)) => softverbs::transport_of_environment()
                .map_err(usage)?
                .map_or(DropInTransport::Both, DropInTransport::from),
        };
        let addresses = match variable(ADDRESSES)? {
            Some(list) if args.addr.is_empty() => addresses(&list)?,
            _ => args.addr.clone(),
        };
        let identity = match (args.identity, variable(IDENTITY)?) {
            (None, Some(name)) => Some(name.parse().map_err(usage)?),
            (identity, _) => identity,
        };
        let same_host = match (args.same_host, variable(SameHost::VARIABLE)?) {
            (None, Some(name)) => Some(name.parse().map_err(usage)?),
            (same_host, _) => same_host,
        };
        let (fault, source) = match (&args.fault, variable(fault::VARIABLE)?) {
            (None, Some(spec)) => {
                let plan = Plan::parse(&spec);
                let plan =
                    plan.map_err(|error| Failure::usage(format!("{}: {error}", fault::VARIABLE)))?;
                (Some(plan), fault::VARIABLE)
            }
            (plan, _) => (plan.clone(), "--fault"),
        };
        let fault = match fault {
            Some(plan) => Some(checked(plan, transport, source)?),
            None => None,
        };
        Ok(Self {
            transport,
            addresses,
            identity,
            same_host,
            fault,
        })
    }
}

/// The value of a variable, if it says something.
fn variable(name: &str) -> Outcome<Option<String>> {
    match env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.trim().is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(Failure::usage(format!("{name}: {error}"))),
    }
}

fn addresses(list: &str) -> Outcome<Vec<IpAddr>> {
    let words = list
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    let parsed = words.map(|word| {
        word.parse()
            .map_err(|_| Failure::usage(format!("{ADDRESSES}: `{word}` is no IP address")))
    });
    parsed.collect()
}

/// A plan that can work: each of its rules has frames to act upon, and its log can be written,
/// wherever the program goes.
fn checked(mut plan: Plan, transport: DropInTransport, source: &str) -> Outcome<Plan> {
    if let Some(transport) = transport.only() {
        check_fault(&plan, transport, source)?;
    }
    if let Some(LogTo::File(file)) = &mut plan.log {
        let named = file.display().to_string();
        let cannot = |error| Failure::usage(format!("{source}: log: {named}: {error}"));
        *file = std::path::absolute(&file).map_err(cannot)?;
        let opened = OpenOptions::new().append(true).create(true).open(&file);
        opened.map_err(cannot)?;
    }
    Ok(plan)
}

impl Environment {
    /// The variables for a choice of the user's. What is wrong with it is an error here, not later
    /// in the program.
    pub(crate) fn new(args: &ChoiceArgs, library: &Library) -> Outcome<Self> {
        let choice = Choice::new(args)?;
        let preload = in_front("LD_PRELOAD", &library.preload()?, &[':', ' '])?;
        let path = in_front("LD_LIBRARY_PATH", &library.folder()?, &[':', ';'])?;
        let addresses: Vec<String> = choice.addresses.iter().map(ToString::to_string).collect();
        let variables = [
            ("LD_PRELOAD", Some(preload)),
            ("LD_LIBRARY_PATH", Some(path)),
            (TRANSPORT, Some(choice.transport.name().to_owned())),
            (
                ADDRESSES,
                Some(addresses.join(",")).filter(|text| !text.is_empty()),
            ),
            (IDENTITY, choice.identity.map(|name| name.name().to_owned())),
            (
                SameHost::VARIABLE,
                choice.same_host.map(|way| way.name().to_owned()),
            ),
            (
                fault::VARIABLE,
                choice.fault.as_ref().map(ToString::to_string),
            ),
        ];
        let variables = variables
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        let environment = Self { variables, choice };
        if environment.devices()?.is_empty() {
            return Err(Failure::run(
                "no network interface is up and has an address",
            ));
        }
        Ok(environment)
    }

    /// The devices that the program will see, in its order.
    pub(crate) fn devices(&self) -> Outcome<Vec<Device>> {
        let transport = self.choice.transport.only();
        Ok(softverbs::devices_by(transport, &self.choice.addresses)?)
    }

    /// Whose numbers they report.
    pub(crate) fn identity(&self) -> Identity {
        self.choice.identity.unwrap_or_default()
    }

    /// Sets them for a program.
    pub(crate) fn apply(&self, command: &mut Command) {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// As commands of a shell.
    pub(crate) fn script(&self, shell: ShellArg) -> String {
        self.variables
            .iter()
            .map(|(name, value)| shell.assignment(name, value))
            .collect()
    }

    /// As options of Open MPI's mpirun. The shell takes them apart at spaces: none of the values has
    /// one, unless the log file of a fault plan has.
    pub(crate) fn mpirun(&self) -> Outcome<String> {
        let mut options = Vec::new();
        for (name, value) in &self.variables {
            if value.contains(char::is_whitespace) {
                let why = format!("--mpirun: {name} must have no space in it: `{value}`");
                return Err(Failure::usage(why));
            }
            options.push(format!("-x {name}={value}"));
        }
        Ok(options.join(" "))
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
