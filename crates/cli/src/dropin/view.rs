//! The view of the file system with `--sysfs`: the program finds its devices under
//! `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and `/dev/infiniband`, as it would with
//! the kernel's, and nobody else sees them.
//!
//! A mount namespace of the process's own, entered without privilege through a user namespace in
//! which the user keeps the same id. `/sys/class` and `/dev` become small file systems in memory
//! that hold what is there already, and the new entries beside it.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use softverbs::{Device, Identity, PortAttr, PortState, Transport};

use crate::failure::{Failure, Outcome};

/// The port that every device has.
const PORT: u8 = 1;
/// Of libibverbs's interface to the kernel; programs compare it with what they know.
const VERBS_ABI: &str = "6\n";
/// Of librdmacm's.
const CM_ABI: &str = "4\n";

/// Files that are to appear, by their paths under the top of the view.
type Files = Vec<(PathBuf, String)>;

/// Enters the view; it ends with the process.
pub(super) fn enter(devices: &[Device], identity: Identity) -> Outcome<()> {
    // First of all: the kernel lets only a process with a single thread change its user namespace,
    // and opening a device may start one.
    separate().map_err(|error| {
        Failure::run(format!(
            "--sysfs: {error}; it needs a mount namespace, which this system or container does not \
             allow here (softverbs doctor says more)"
        ))
    })?;
    let mut files = Files::new();
    for (index, device) in devices.iter().enumerate() {
        describe(&mut files, index, device, identity)?;
    }
    build(devices.len(), &files)
        .map_err(|error| Failure::run(format!("--sysfs: cannot make the view: {error}")))
}

/// Leaves the mount namespace of the parent.
fn separate() -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() && unshare(CloneFlags::CLONE_NEWNS).is_ok() {
        return make_private();
    }
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    // Without privilege a group may be mapped only by those who cannot drop it any more.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    make_private()
}

/// What is mounted from here on is not passed on to other namespaces.
fn make_private() -> io::Result<()> {
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    Ok(mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)?)
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    // Recursive: of a tree with mounts in it the kernel does not let a part be seen alone.
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), to, None::<&str>, flags, None::<&str>)
        .map_err(|error| io::Error::other(format!("{}: {error}", from.display())))
}

fn build(devices: usize, files: &Files) -> io::Result<()> {
    // Any folder serves as the place to mount: it is covered in this namespace only.
    let stage = Path::new("/tmp");
    let memory = |target: &Path| {
        let options = Some("mode=755,size=16m");
        mount(
            Some("tmpfs"),
            target,
            Some("tmpfs"),
            MsFlags::MS_NOSUID,
            options,
        )
        .map_err(|error| io::Error::other(format!("tmpfs: {error}")))
    };
    memory(stage)?;
    let (class, dev) = (stage.join("class"), stage.join("dev"));
    let hidden = ["infiniband", "infiniband_verbs"];
    mirror(Path::new("/sys/class"), &class, &hidden)?;
    mirror(Path::new("/dev"), &dev, &hidden[..1])?;
    for (path, text) in files {
        let path = class.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&class))?;
        match text.strip_prefix("-> ") {
            Some(target) => symlink(target, path)?,
            None => fs::write(path, text)?,
        }
    }
    let misc = class.join("misc");
    if !misc.join("rdma_cm").exists() {
        extend(stage, &misc, "rdma_cm", &[("abi_version", CM_ABI)])?;
    }
    let folder = dev.join("infiniband");
    fs::create_dir(&folder)?;
    let names = (0..devices).map(|index| format!("uverbs{index}"));
    for name in names.chain(["rdma_cm".to_owned()]) {
        // Programs ask whether it is a character device that they may open; they do not use it.
        let file = folder.join(name);
        fs::write(&file, "")?;
        bind(Path::new("/dev/null"), &file)?;
    }
    bind(&class, Path::new("/sys/class"))?;
    bind(&dev, Path::new("/dev"))?;
    // What was bound elsewhere stays; the stage shows again what it covered.
    umount2(stage, MntFlags::MNT_DETACH)
        .map_err(|error| io::Error::other(format!("{}: {error}", stage.display())))
}

/// Makes `to` show what `from` has, but for some names.
fn mirror(from: &Path, to: &Path, hidden: &[&str]) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if hidden.iter().any(|hidden| name == *hidden) {
            continue;
        }
        let target = to.join(&name);
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, target)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&target)?;
        } else {
            fs::write(&target, "")?;
        }
        bind(&entry.path(), &target)?;
    }
    Ok(())
}

/// Adds a folder with files to a folder that is the kernel's own, or makes it.
fn extend(stage: &Path, folder: &Path, name: &str, files: &[(&str, &str)]) -> io::Result<()> {
    if folder.exists() {
        // The kernel's cannot be written to: another one takes its place, which shows the same.
        let fresh = stage.join("extended");
        mirror(folder, &fresh, &[])?;
        bind(&fresh, folder)?;
    }
    let folder = folder.join(name);
    fs::create_dir_all(&folder)?;
    for (name, text) in files {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// The files of one device.
fn describe(files: &mut Files, index: usize, device: &Device, identity: Identity) -> Outcome<()> {
    let context = device.open()?;
    let attr = context.query_device();
    let port = context.query_port(PORT)?;
    let interface = device.interface();
    let class = PathBuf::from("infiniband").join(device.name());
    let mut add = |path: &str, text: String| files.push((class.join(path), text));

    let node_type = match device.transport() {
        Transport::Roce => "1: CA\n",
        Transport::Iwarp => "4: RNIC\n",
    };
    add("node_type", node_type.to_owned());
    add("node_guid", line(guid(attr.node_guid)));
    add("sys_image_guid", line(guid(attr.sys_image_guid)));
    add("node_desc", line(device.name()));
    add("fw_ver", line(attr.fw_ver));
    add("hca_type", line(identity.name()));
    add("board_id", line(identity.name()));
    add("hw_rev", line("0"));
    add(
        "device/vendor",
        line(format!("{:#06x}", identity.vendor_id())),
    );
    add(
        "device/device",
        line(format!("{:#06x}", identity.vendor_part_id())),
    );
    add("device/numa_node", line("-1"));
    let processors = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    add("device/local_cpulist", processors);
    add(
        &format!("device/net/{interface}"),
        format!("-> /sys/class/net/{interface}"),
    );
    add(
        &format!("device/infiniband_verbs/uverbs{index}"),
        format!("-> /sys/class/infiniband_verbs/uverbs{index}"),
    );

    let (state, phys_state) = match port.state {
        PortState::Active => ("4: ACTIVE", "5: LinkUp"),
        PortState::Down => ("1: DOWN", "3: Disabled"),
    };
    for (name, text) in [
        ("state", state),
        ("phys_state", phys_state),
        ("link_layer", "Ethernet"),
        ("rate", &rate(&port)),
        ("lid", "0x0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        ("lid_mask_count", "0"),
        ("pkeys/0", "0xffff"),
    ] {
        add(&format!("ports/{PORT}/{name}"), line(text));
    }
    add(
        &format!("ports/{PORT}/cap_mask"),
        line(format!("{:#010x}", port.port_cap_flags)),
    );
    for entry in 0..port.gid_tbl_len {
        let gid = context.query_gid(PORT, entry)?;
        let groups: Vec<String> = gid
            .get()
            .chunks(2)
            .map(|pair| pair.iter().map(|octet| format!("{octet:02x}")).collect())
            .collect();
        add(
            &format!("ports/{PORT}/gids/{entry}"),
            line(groups.join(":")),
        );
        add(
            &format!("ports/{PORT}/gid_attrs/ndevs/{entry}"),
            line(interface),
        );
        if device.transport() == Transport::Roce {
            add(
                &format!("ports/{PORT}/gid_attrs/types/{entry}"),
                line("RoCE v2"),
            );
        }
    }

    let verbs = PathBuf::from("infiniband_verbs");
    let node = verbs.join(format!("uverbs{index}"));
    files.push((node.join("ibdev"), line(device.name())));
    files.push((node.join("abi_version"), line("1")));
    files.push((
        node.join("device"),
        format!("-> /sys/class/infiniband/{}/device", device.name()),
    ));
    if index == 0 {
        files.push((verbs.join("abi_version"), VERBS_ABI.to_owned()));
    }
    Ok(())
}

/// Lanes and their speed in words: `100 Gb/sec (4X EDR)`.
fn rate(port: &PortAttr) -> String {
    let (lanes, (speed, name)) = (port.lanes(), port.lane_speed());
    let total = f64::from(lanes * speed) / 10.0;
    format!("{total} Gb/sec ({lanes}X {name})")
}

fn line(text: impl std::fmt::Display) -> String {
    format!("{text}\n")
}

fn guid(value: u64) -> String {
    let quarters = [48, 32, 16, 0].map(|shift| format!("{:04x}", value >> shift & 0xffff));
    quarters.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        let devices = softverbs::devices().unwrap();
        let context = devices[0].open().unwrap();
        let mut port = context.query_port(PORT).unwrap();
        for (width, speed, words) in [
            (1, 1, "2.5 Gb/sec (1X SDR)"),
            (2, 32, "100 Gb/sec (4X EDR)"),
            (16, 32, "50 Gb/sec (2X EDR)"),
        ] {
            (port.active_width, port.active_speed) = (width, speed);
            assert_eq!(rate(&port), words);
        }
    }

    #[test]
    fn every_device_has_its_files() {
        let devices = softverbs::devices().unwrap();
        let mut files = Files::new();
        for (index, device) in devices.iter().enumerate() {
            describe(&mut files, index, device, Identity::Mlx5).unwrap();
        }
        let text = |path: &str| {
            let (_, text) = files
                .iter()
                .find(|(known, _)| known == Path::new(path))
                .expect(path);
            text.trim_end()
        };
        assert_eq!(text("infiniband/roce_lo/node_type"), "1: CA");
        assert_eq!(text("infiniband/iw_lo/node_type"), "4: RNIC");
        assert_eq!(text("infiniband/roce_lo/device/vendor"), "0x02c9");
        assert_eq!(
            text("infiniband/roce_lo/ports/1/gids/0"),
            "0000:0000:0000:0000:0000:ffff:7f00:0001"
        );
        assert_eq!(
            text("infiniband/roce_lo/ports/1/gid_attrs/types/0"),
            "RoCE v2"
        );
        assert_eq!(text("infiniband/roce_lo/ports/1/gid_attrs/ndevs/0"), "lo");
        let last = devices.len() - 1;
        assert_eq!(
            text(&format!("infiniband_verbs/uverbs{last}/ibdev")),
            devices[last].name()
        );
        assert_eq!(text("infiniband_verbs/abi_version"), "6");
    }
}
