//! The folder by which the processes of one user find each other on one host address.
//!
//! `$XDG_RUNTIME_DIR/softverbs`, or `/tmp/softverbs-<uid>`; in it a folder for each network
//! namespace, since each has its own addresses and ports:
//!
//! | file | its lock says |
//! |---|---|
//! | `next` | (held for a moment) which slot is tried next |
//! | `slots/<slot>` | the slot is in use; the text names its owner's UDP ports |
//! | `slots/<slot>.sock` | where its owner takes forwarded packets |
//! | `slots/<slot>.process` | (no `flock`) its owner is alive; see `presence` |
//! | `services/<service>-<address>` | this service is taken; if there is a text, that slot listens |
//! | `former/<service>-<address>` | somebody listened until a moment ago, and may do so again |
//! | `groups/<address>-<slot>` | the slot takes packets to this multicast group |
//! | `public4`, `public6` | one of us has UDP port 4791 |
//!
//! Locks are `flock`s: they go with their process, however it ends, and with the children that it
//! has left. What a file says counts only while it is locked. Nobody but the user may enter the
//! folder; that is all of the authentication.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use softverbs_wire::num::ServiceId;

use crate::error::{Error, Result};
use crate::same_host::sys::effective_uid;

/// Slots are 1 to this number: neither the low numbers that other stacks use nor the multicast
/// number is a queue pair number of ours.
pub(super) const LAST_SLOT: u16 = 0xffe;
/// Somebody who looks whether a file is locked has it locked for a moment.
const LOCK_TRIES: u32 = 4;
/// Somebody may always look; one time or other that is enough.
const LOOKS: u32 = 2500;

/// A locked file. Dropping it unlocks.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Makes the file look used: there are cleaners that remove old ones from `/tmp`.
    pub(super) fn touch(&self) {
        // Only the owner of a file may, and that is who made it.
        let _ = self.file.set_modified(SystemTime::now());
    }

    /// Says which slot has the service that is locked.
    pub(super) fn offer(&mut self, slot: u16) -> Result<()> {
        rewrite(&mut self.file, &slot.to_string())
    }

    /// Removes the file and unlocks it.
    pub(super) fn remove(self) {
        // While it is still locked: whoever opens it now finds out that it is gone.
        let _ = fs::remove_file(&self.path);
        drop(self.file);
    }
}

/// What a slot's file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotOwner {
    /// Its private UDP port of IPv4; 0 if it has none.
    pub(super) port_v4: u16,
    /// Its private UDP port of IPv6; 0 if it has none.
    pub(super) port_v6: u16,
    /// Its first slot, which names its socket for forwarded packets.
    pub(super) home: u16,
}

/// The folder of one network namespace.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The folder of this user and of this process's network namespace.
    pub(super) fn of_user() -> Result<Self> {
        // It may be a folder of another user, from whom this one has the environment.
        let runtime = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|folder| folder.is_absolute() && belongs_to_user(folder));
        match runtime {
            Some(folder) => Self::open(&folder.join("softverbs")),
            None => Self::open(&PathBuf::from(format!(
                "/tmp/softverbs-{}",
                effective_uid()
            ))),
        }
    }

    /// A folder at a place of the caller's choice.
    pub(super) fn open(root: &Path) -> Result<Self> {
        make_private(root)?;
        let namespace = fs::metadata("/proc/self/ns/net").map_or(0, |file| file.ino());
        let path = root.join(format!("net-{namespace}"));
        make_private(&path)?;
        for part in ["slots", "services", "former", "groups"] {
            make_private(&path.join(part))?;
        }
        Ok(Self { path })
    }

    /// Takes a slot that has rested longest: slots are tried in a circle.
    pub(super) fn take_slot(&self) -> Result<(u16, Lock)> {
        let mut next = self.file("next")?;
        next.lock().map_err(Error::from_call("flock"))?;
        let mut slot = match read_number(&mut next, 10) {
            Some(slot) if (1..=LAST_SLOT).contains(&slot) => slot,
            // Programs that share addresses but not the folder seldom meet.
            _ => random_slot()?,
        };
        for _ in 0..LAST_SLOT {
            let following = if slot == LAST_SLOT { 1 } else { slot + 1 };
            if let Some(lock) = self.try_lock(&format!("slots/{slot:03x}"), 1)? {
                rewrite(&mut next, &following.to_string())?;
                return Ok((slot, lock));
            }
            slot = following;
        }
        Err(Error::Limit {
            what: "processes with RoCEv2 queue pairs",
            limit: LAST_SLOT.into(),
        })
    }

    /// Says who has a slot.
    pub(super) fn describe_slot(lock: &mut Lock, owner: SlotOwner) -> Result<()> {
        let SlotOwner {
            port_v4,
            port_v6,
            home,
        } = owner;
        let pid = std::process::id();
        rewrite(
            &mut lock.file,
            &format!("{port_v4} {port_v6} {home} {pid}\n"),
        )
    }

    /// Who has a slot now.
    pub(super) fn slot_owner(&self, slot: u16) -> Option<SlotOwner> {
        let text = self.text_if_locked(&format!("slots/{slot:03x}"))?;
        let mut words = text.split_ascii_whitespace();
        let mut number = || words.next()?.parse().ok();
        Some(SlotOwner {
            port_v4: number()?,
            port_v6: number()?,
            home: number()?,
        })
    }

    /// Where the owner of a home slot takes forwarded packets.
    pub(super) fn relay(&self, home: u16) -> PathBuf {
        self.path.join(format!("slots/{home:03x}.sock"))
    }

    /// What says that the owner of a home slot is alive.
    pub(super) fn presence(&self, home: u16) -> PathBuf {
        self.path.join(format!("slots/{home:03x}.process"))
    }

    /// Takes a service, for which nobody listens yet; nothing if it is taken.
    pub(super) fn take_service(&self, service: ServiceId, address: IpAddr) -> Result<Option<Lock>> {
        let name = service_name("services", service, address);
        let Some(mut lock) = self.try_lock(&name, LOCK_TRIES)? else {
            return Ok(None);
        };
        // What a process has left that did not end well.
        rewrite(&mut lock.file, "")?;
        Ok(Some(lock))
    }

    /// Says that somebody had a service who may have it again; nothing if somebody says so.
    pub(super) fn remember_service(
        &self,
        service: ServiceId,
        address: IpAddr,
    ) -> Result<Option<Lock>> {
        self.try_lock(&service_name("former", service, address), LOCK_TRIES)
    }

    /// Whether a service at this very address may come back.
    pub(super) fn remembers_service(&self, service: ServiceId, address: IpAddr) -> bool {
        let name = service_name("former", service, address);
        self.text_if_locked(&name).is_some()
    }

    /// Which slot has a service at this very address, which may be an unspecified one.
    pub(super) fn service_slot(&self, service: ServiceId, address: IpAddr) -> Option<u16> {
        self.text_if_locked(&service_name("services", service, address))?
            .trim()
            .parse()
            .ok()
    }

    /// Enters a slot into a multicast group.
    pub(super) fn join_group(&self, group: IpAddr, slot: u16) -> Result<Option<Lock>> {
        self.try_lock(&format!("groups/{group}-{slot:03x}"), LOCK_TRIES)
    }

    /// The slots in a multicast group.
    pub(super) fn group_slots(&self, group: IpAddr) -> Vec<u16> {
        let prefix = format!("{group}-");
        let Ok(entries) = fs::read_dir(self.path.join("groups")) else {
            return Vec::new();
        };
        entries
            .filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                let slot = u16::from_str_radix(name.strip_prefix(&prefix)?, 16).ok()?;
                self.text_if_locked(&format!("groups/{name}"))?;
                Some(slot)
            })
            .collect()
    }

    /// Claims UDP port 4791 of a family among us; nothing if another process has it.
    pub(super) fn claim_public(&self, v6: bool) -> Result<Option<Lock>> {
        self.try_lock(if v6 { "public6" } else { "public4" }, 1)
    }

    fn file(&self, name: &str) -> Result<File> {
        open(&self.path.join(name)).map_err(Error::from_call("open"))
    }

    /// Locks a file that nobody has locked.
    fn try_lock(&self, name: &str, tries: u32) -> Result<Option<Lock>> {
        let path = self.path.join(name);
        let (mut left, mut looks) = (tries, 0);
        loop {
            let file = self.file(name)?;
            match file.try_lock() {
                // Unless it was removed before it was locked.
                Ok(()) if is_at(&file, &path) => return Ok(Some(Lock { file, path })),
                Ok(()) => (),
                Err(TryLockError::WouldBlock) => {
                    // Who only looks is no owner, however long he is not scheduled.
                    if !(looks < LOOKS && file.try_lock_shared().is_ok()) {
                        left -= 1;
                    }
                    looks += 1;
                    if left == 0 {
                        return Ok(None);
                    }
                    drop(file);
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(TryLockError::Error(error)) => return Err(Error::from_call("flock")(error)),
            }
        }
    }

    /// What a file says, if it is locked by somebody.
    fn text_if_locked(&self, name: &str) -> Option<String> {
        let mut file = File::open(self.path.join(name)).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => read_text(&mut file).ok(),
            // The lock goes when the file is closed.
            Ok(()) | Err(TryLockError::Error(_)) => None,
        }
    }
}

fn service_name(part: &str, service: ServiceId, address: IpAddr) -> String {
    format!("{part}/{:016x}-{address}", service.get())
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

fn belongs_to_user(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == effective_uid())
}

/// Whether a path still leads to an open file.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

pub(super) fn read_text(file: &mut File) -> io::Result<String> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

fn read_number(file: &mut File, radix: u32) -> Option<u16> {
    u16::from_str_radix(read_text(file).ok()?.trim(), radix).ok()
}

pub(super) fn rewrite(file: &mut File, text: &str) -> Result<()> {
    file.rewind()
        .and_then(|()| file.set_len(0))
        .and_then(|()| file.write_all(text.as_bytes()))
        .map_err(Error::from_call("write"))
}

fn random_slot() -> Result<u16> {
    let mut octets = [0; 2];
    getrandom::fill(&mut octets)
        .map_err(|error| Error::os("getrandom", error.raw_os_error().unwrap_or(libc::EIO)))?;
    Ok(u16::from_ne_bytes(octets) % LAST_SLOT + 1)
}

/// Makes a folder that only its owner may enter, or makes sure that it is one.
fn make_private(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => (),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (),
        Err(error) => return Err(unusable(path, &error)),
    }
    // Not through a link, which another user could have put there.
    let found = fs::symlink_metadata(path).map_err(|error| unusable(path, &error))?;
    let ours = found.is_dir() && found.uid() == effective_uid();
    if !ours || found.mode() & 0o077 != 0 {
        return Err(Error::invalid(
            "runtime folder",
            format!(
                "{} must be a folder of this user that nobody else may enter",
                path.display()
            ),
        ));
    }
    Ok(())
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    Error::invalid("runtime folder", format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::port::tests::TempFolder;

    #[test]
    fn slots_go_round() {
        let temp = TempFolder::new();
        let folder = Folder::open(temp.path()).unwrap();
        let (first, lock) = folder.take_slot().unwrap();
        let (second, mut other) = folder.take_slot().unwrap();
        assert_ne!(first, second);
        assert_eq!(folder.slot_owner(second), None, "says nothing yet");
        let owner = SlotOwner {
            port_v4: 1234,
            port_v6: 0,
            home: first,
        };
        Folder::describe_slot(&mut other, owner).unwrap();
        assert_eq!(folder.slot_owner(second), Some(owner));
        drop(other);
        assert_eq!(folder.slot_owner(second), None, "unlocked");
        drop(lock);
        for _ in 0..10 {
            let (slot, _lock) = folder.take_slot().unwrap();
            assert!(slot != first && slot != second, "it rests");
            assert!((1..=LAST_SLOT).contains(&slot));
        }
    }

    #[test]
    fn a_service_has_one_owner() {
        let temp = TempFolder::new();
        let folder = Folder::open(temp.path()).unwrap();
        let (service, address) = (ServiceId::new(0x0106_1c06), "127.0.0.1".parse().unwrap());
        let any = "0.0.0.0".parse().unwrap();
        assert_eq!(folder.service_slot(service, address), None);
        let mut lock = folder.take_service(service, address).unwrap().unwrap();
        assert_eq!(folder.service_slot(service, address), None, "not offered");
        lock.offer(7).unwrap();
        assert!(folder.take_service(service, address).unwrap().is_none());
        assert!(folder.take_service(service, any).unwrap().is_some());
        assert_eq!(folder.service_slot(service, address), Some(7));
        lock.remove();
        assert_eq!(folder.service_slot(service, address), None);
        let mut again = folder.take_service(service, address).unwrap().unwrap();
        again.offer(8).unwrap();
        assert_eq!(folder.service_slot(service, address), Some(8));
        drop(again);
        assert_eq!(folder.service_slot(service, address), None);
    }

    /// Those who look lock a file for a moment, which may be long for one that is not scheduled.
    #[test]
    fn who_looks_takes_nothing() {
        let temp = TempFolder::new();
        let folder = Folder::open(temp.path()).unwrap();
        let (service, address) = (ServiceId::new(0x0106_1c06), "127.0.0.1".parse().unwrap());
        drop(folder.take_service(service, address).unwrap().unwrap());
        let looking =
            File::open(folder.path.join(service_name("services", service, address))).unwrap();
        looking.lock_shared().unwrap();
        let slow = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(looking);
        });
        assert!(folder.take_service(service, address).unwrap().is_some());
        slow.join().unwrap();
    }

    #[test]
    fn groups_have_members() {
        let temp = TempFolder::new();
        let folder = Folder::open(temp.path()).unwrap();
        let group = "ff15::77".parse().unwrap();
        let one = folder.join_group(group, 0x12).unwrap().unwrap();
        let _two = folder.join_group(group, 0xabc).unwrap().unwrap();
        let mut slots = folder.group_slots(group);
        slots.sort_unstable();
        assert_eq!(slots, [0x12, 0xabc]);
        one.remove();
        assert_eq!(folder.group_slots(group), [0xabc]);
        assert!(folder.group_slots("ff15::7".parse().unwrap()).is_empty());
    }

    #[test]
    fn others_may_not_enter() {
        use std::os::unix::fs::PermissionsExt;
        let temp = TempFolder::new();
        make_private(temp.path()).unwrap();
        let open = temp.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        let error = Folder::open(&open).unwrap_err();
        assert!(error.to_string().contains("nobody else"), "{error}");
        let link = temp.path().join("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert!(Folder::open(&link).is_err());
    }
}
