//! Where the library is that takes the place of rdma-core's.

use std::env;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use super::program::Loading;
use crate::failure::{Failure, Outcome};

/// Names the library's file, for whoever keeps it elsewhere.
const VARIABLE: &str = "SOFTVERBS_LIBRARY";
/// The file as it is built.
const BUILT: &str = "libsoftverbs_cabi.so";
/// The names under which programs ask for it.
const NAMES: [&str; 4] = [
    "libibverbs.so.1",
    "librdmacm.so.1",
    "libibverbs.so",
    "librdmacm.so",
];

/// The library's file.
#[derive(Debug)]
pub(crate) struct Library {
    file: PathBuf,
}

impl Library {
    /// Looks where `SOFTVERBS_LIBRARY` says, beside this program as it is installed
    /// (`../lib/softverbs`), and beside it as it is built.
    pub(crate) fn find() -> Outcome<Self> {
        if let Some(file) = env::var_os(VARIABLE).filter(|file| !file.is_empty()) {
            let file = PathBuf::from(file);
            let wrong = |why: &dyn fmt::Display| {
                Failure::run(format!("{VARIABLE}={}: {why}", file.display()))
            };
            let found = fs::canonicalize(&file).map_err(|error| wrong(&error))?;
            // The loader passes over what it cannot preload, and the program finds no device.
            check(&found).map_err(|why| wrong(&why))?;
            return Ok(Self { file: found });
        }
        let program = env::current_exe()
            .map_err(|error| Failure::run(format!("where is this program? {error}")))?;
        let folder = program.parent().unwrap_or_else(|| Path::new("/"));
        let places = [
            folder.join("../lib/softverbs").join(NAMES[0]),
            folder.join("deps").join(BUILT),
            folder.join(BUILT),
        ];
        places
            .iter()
            .find_map(|place| fs::canonicalize(place).ok())
            .map(|file| Self { file })
            .ok_or_else(|| {
                let folder = folder.display();
                Failure::run(format!(
                    "the library {BUILT} is neither in {folder}/../lib/softverbs nor in \
                     {folder}; `cargo build --release -p softverbs-cli` builds it, {VARIABLE} can \
                     name it"
                ))
            })
    }

    /// The file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The path for `LD_PRELOAD`.
    pub(crate) fn preload(&self) -> Outcome<String> {
        text(&self.names()?.join(NAMES[0]))
    }

    /// The folder for `LD_LIBRARY_PATH`.
    pub(crate) fn folder(&self) -> Outcome<String> {
        text(&self.names()?)
    }

    /// A folder in which the library has all its names: its own if it is installed, else one of
    /// this user's under the folder for run-time files.
    fn names(&self) -> Outcome<PathBuf> {
        if let Some(own) = self.file.parent()
            && NAMES[..2]
                .iter()
                .all(|name| leads_to(&own.join(name), &self.file))
        {
            return Ok(own.to_owned());
        }
        let folder = run_time_folder().join(format!("lib-{:016x}", hash(&self.file)));
        self.make(&folder)
            .map_err(|error| Failure::run(format!("{}: {error}", folder.display())))?;
        Ok(folder)
    }

    fn make(&self, folder: &Path) -> io::Result<()> {
        let mut fresh = false;
        for folder in folder.parent().into_iter().chain([folder]) {
            // Programs of other users (sudo, setpriv) are to find the library, too.
            let made = match fs::DirBuilder::new().mode(0o755).create(folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                made => made.is_ok(),
            };
            let found = fs::symlink_metadata(folder)?;
            // In a folder where anybody may write, somebody else may have been here first.
            if !found.is_dir()
                || found.uid() != nix::unistd::geteuid().as_raw()
                || found.mode() & 0o22 != 0
            {
                let why = "is not a folder that belongs to this user alone";
                return Err(io::Error::new(ErrorKind::PermissionDenied, why));
            }
            fresh = made;
        }
        if let (true, Some(all)) = (fresh, folder.parent()) {
            sweep(all);
        }
        for name in NAMES {
            let link = folder.join(name);
            if leads_to(&link, &self.file) {
                continue;
            }
            // Made aside and moved into place: another process may use it at this moment.
            let fresh = folder.join(format!("{name}.{}", std::process::id()));
            let _ = fs::remove_file(&fresh);
            symlink(&self.file, &fresh)?;
            fs::rename(&fresh, &link)?;
        }
        Ok(())
    }
}

/// Whether a file is this software's library, and why not.
fn check(file: &Path) -> Result<(), String> {
    let loading = match Loading::of(file) {
        Ok(Some(loading)) => loading,
        Ok(None) => return Err("is no ELF file".into()),
        Err(error) => return Err(error.to_string()),
    };
    if !loading.native {
        return Err("is for another processor".into());
    }
    // rdma-core has the two in two files.
    let ours = ["ibv_open_device", "rdma_create_id"];
    let has = |name: &&str| loading.exports.iter().any(|export| export == name);
    if !loading.shared || !ours.iter().all(has) {
        return Err(format!("is not this software's library ({BUILT})"));
    }
    Ok(())
}

/// Removes what is left of libraries that are there no more. Failures do no harm: it stays.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_ours = entry.file_name().to_string_lossy().starts_with("lib-");
        // Another process that makes one has not put its links there yet.
        let leads_nowhere = |name: &str| {
            let link = path.join(name);
            link.is_symlink() && !link.exists()
        };
        if is_ours && NAMES.iter().all(|name| leads_nowhere(name)) {
            for name in NAMES {
                let _ = fs::remove_file(path.join(name));
            }
            let _ = fs::remove_dir(&path);
        }
    }
}

fn leads_to(link: &Path, file: &Path) -> bool {
    fs::canonicalize(link).is_ok_and(|target| target == file)
}

fn text(path: &Path) -> Outcome<String> {
    path.to_str()
        .map(String::from)
        .ok_or_else(|| Failure::run(format!("{}: not UTF-8", path.display())))
}

/// `$XDG_RUNTIME_DIR/softverbs-lib`, or one of this user's in `/tmp`.
fn run_time_folder() -> PathBuf {
    let user = nix::unistd::geteuid().as_raw();
    env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
        .filter(|folder| fs::metadata(folder).is_ok_and(|found| found.uid() == user))
        .map_or_else(
            || PathBuf::from(format!("/tmp/softverbs-lib-{user}")),
            |folder| folder.join("softverbs-lib"),
        )
}

/// FNV-1a.
fn hash(path: &Path) -> u64 {
    path.as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, octet| {
            (hash ^ u64::from(*octet)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}
