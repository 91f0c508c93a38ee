//! Devices, sockets, limits and namespaces of this machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use softverbs::Transport;

use super::Finding;

/// Room for a burst of packets that each RoCEv2 socket should have, in octets: below this a sender
/// at full speed loses packets when the receiver is not scheduled for a moment.
const ROOM: usize = 1 << 20;

pub(super) fn examine() -> Vec<Finding> {
    let mut findings = vec![devices(), kernel_devices()];
    findings.extend(roce());
    findings.push(view());
    findings.push(processors());
    findings.push(descriptors());
    findings.push(Finding::fine(
        "locked memory",
        "not needed: registered memory is not pinned, RLIMIT_MEMLOCK has no effect",
    ));
    findings
}

fn devices() -> Finding {
    match softverbs::devices() {
        Ok(devices) if devices.is_empty() => Finding::problem(
            "devices",
            "there are none, because no network interface is up and has an address",
            "`ip link set lo up` is enough for programs that talk to each other on this machine",
        ),
        Ok(devices) => {
            let names: Vec<&str> = devices.iter().map(softverbs::Device::name).collect();
            let only_loopback = devices.iter().all(softverbs::Device::is_loopback);
            if only_loopback {
                let text = format!("{}: of the loopback interface only", names.join(", "));
                Finding::note(
                    "devices",
                    text,
                    "other machines cannot be reached from here",
                )
            } else {
                Finding::fine("devices", names.join(", "))
            }
        }
        Err(error) => Finding::problem("devices", error.to_string(), ""),
    }
}

/// The kernel's own devices do no harm, but may surprise.
fn kernel_devices() -> Finding {
    let names: Vec<String> = fs::read_dir("/sys/class/infiniband")
        .map(|entries| {
            let names = entries.flatten().map(|entry| entry.file_name());
            names
                .map(|name| name.to_string_lossy().into_owned())
                .collect()
        })
        .unwrap_or_default();
    if names.is_empty() {
        Finding::fine("kernel", "it has no RDMA devices; none are needed")
    } else {
        let text = format!("it has RDMA devices of its own: {}", names.join(", "));
        let why = "under softverbs run programs see this software's devices only";
        Finding::note("kernel", text, why)
    }
}

/// What the RoCEv2 side finds when it starts.
fn roce() -> Vec<Finding> {
    let status = match softverbs::roce_status() {
        Ok(status) => status,
        Err(error) => {
            let way = format!("--transport {} works without", Transport::Iwarp);
            return vec![Finding::problem("RoCEv2", error.to_string(), way)];
        }
    };
    let mut findings = Vec::new();
    for port in &status.port_owners {
        let text = format!("UDP port 4791 of {}: {}", port.family, port.owner);
        if port.stranger {
            let remedy = "end that program (or unload rdma_rxe), or use --transport iwarp";
            let text_and_remedy = format!("{}; {remedy}", crate::devices::STRANGER);
            findings.push(Finding::problem("RoCEv2", text, text_and_remedy));
        } else {
            findings.push(Finding::fine("RoCEv2", text));
        }
    }
    let (on, off): (Vec<_>, Vec<_>) = status.offloads.iter().partition(|(_, works)| *works);
    let names = |list: &[&(String, bool)]| {
        let names: Vec<&str> = list.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    };
    if off.is_empty() {
        findings.push(Finding::fine("offloads", names(&on)));
    } else {
        let text = format!("this kernel lacks {}", names(&off));
        findings.push(Finding::note(
            "offloads",
            text,
            "RoCEv2 works, with less bandwidth",
        ));
    }
    let room = status.receive_room;
    if room < ROOM {
        let text = format!("sockets may hold {room} octets that wait to be received");
        let remedy = "RoCEv2 loses packets sooner than it must; as root: sysctl -w \
                      net.core.rmem_max=8388608";
        findings.push(Finding::note("buffers", text, remedy));
    } else {
        findings.push(Finding::fine(
            "buffers",
            format!("{room} octets for each socket"),
        ));
    }
    findings
}

/// Tries the view that `--sysfs` makes.
fn view() -> Finding {
    let attempt = Command::new("/proc/self/exe")
        .args(["run", "--sysfs", "--", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output();
    match attempt {
        Ok(output) if output.status.success() => {
            Finding::fine("--sysfs", "works: a mount namespace can be made here")
        }
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.trim().trim_start_matches("softverbs: ").to_owned();
            let remedy = match restriction() {
                Some(switch) => format!("as root: sysctl -w {switch}; only UCX needs the view"),
                None => "only UCX needs the view; in Docker: --security-opt seccomp=unconfined \
                         --security-opt apparmor=unconfined, or --cap-add SYS_ADMIN"
                    .to_owned(),
            };
            Finding::note("--sysfs", why, remedy)
        }
        Err(error) => Finding::note("--sysfs", error.to_string(), ""),
    }
}

/// A switch of the kernel's that forbids user namespaces.
fn restriction() -> Option<&'static str> {
    let value = |path: &str| fs::read_to_string(Path::new("/proc/sys").join(path)).ok();
    let is = |path, wanted: &str| value(path).is_some_and(|value| value.trim() == wanted);
    if is("kernel/unprivileged_userns_clone", "0") {
        return Some("kernel.unprivileged_userns_clone=1");
    }
    if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        return Some("kernel.apparmor_restrict_unprivileged_userns=0");
    }
    is("user/max_user_namespaces", "0").then_some("user.max_user_namespaces=15000")
}

fn processors() -> Finding {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => Finding::note(
            "processors",
            "1",
            "two programs that poll without a pause take turns: expect latency of milliseconds",
        ),
        count => Finding::fine("processors", count.to_string()),
    }
}

fn descriptors() -> Finding {
    match nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) if soft < 1024 => Finding::note(
            "open files",
            format!("at most {soft}"),
            "an iWARP connection takes one, an event channel or completion channel another: \
             ulimit -n raises it",
        ),
        Ok((soft, _)) => Finding::fine("open files", format!("at most {soft}")),
        Err(error) => Finding::note("open files", error.to_string(), ""),
    }
}
