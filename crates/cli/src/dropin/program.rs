//! The program that is to run: where it is, and whether the library can get into it.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use goblin::elf::Elf;
use goblin::elf::header::{EM_AARCH64, EM_X86_64, ET_DYN};
use nix::unistd::{AccessFlags, access};

use crate::failure::{Failure, Outcome};

/// Exit status for a program that cannot be run, as of `env` and of shells.
const CANNOT_RUN: u8 = 126;
/// Exit status for a program that is not there.
const NOT_FOUND: u8 = 127;
/// Of this build, as ELF files say it.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    EM_AARCH64
} else {
    EM_X86_64
};

/// Looks a program up as a shell does.
pub(crate) fn find(name: &OsStr) -> Outcome<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Ok(_) => Ok(path),
            Err(error) => Err(not_there(name, &error)),
        };
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut closed = None;
    for folder in std::env::split_paths(&folders) {
        let path = folder.join(name);
        match fs::metadata(&path) {
            Ok(found) if found.is_file() && is_executable(&path) => return Ok(path),
            Ok(found) if found.is_file() => {
                let error = io::Error::from(ErrorKind::PermissionDenied);
                closed.get_or_insert_with(|| Failure::Exit {
                    status: CANNOT_RUN,
                    text: format!("{}: {error}", path.display()),
                });
            }
            // That it may be there is no reason to say that it cannot be run.
            Ok(_) | Err(_) => {}
        }
    }
    Err(closed.unwrap_or_else(|| not_there(name, &ErrorKind::NotFound.into())))
}

/// There is no such file, or nobody lets us see whether there is.
fn not_there(name: &OsStr, error: &io::Error) -> Failure {
    let name = name.display();
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Failure::Exit {
            status: NOT_FOUND,
            text: format!("{name}: not found"),
        },
        _ => Failure::Exit {
            status: CANNOT_RUN,
            text: format!("{name}: {error}"),
        },
    }
}

/// Whether this user may execute a file.
pub(crate) fn is_executable(path: &Path) -> bool {
    access(path, AccessFlags::X_OK).is_ok()
}

/// What `exec` said, in words and with the exit status of the field.
pub(crate) fn cannot_run(name: &OsStr, path: &Path, error: &io::Error) -> Failure {
    let name = name.display();
    if error.kind() != ErrorKind::NotFound {
        let text = format!("{name}: {error}");
        let status = CANNOT_RUN;
        return Failure::Exit { status, text };
    }
    // The kernel says the same of a program that is not there and of one whose interpreter is not.
    match missing_interpreter(path) {
        Some(interpreter) => Failure::Exit {
            status: CANNOT_RUN,
            text: format!("{name}: its interpreter {interpreter} is not there"),
        },
        None => Failure::Exit {
            status: NOT_FOUND,
            text: format!("{name}: not found"),
        },
    }
}

/// The interpreter that a script or an ELF file names, if there is none of that name.
pub(crate) fn missing_interpreter(path: &Path) -> Option<String> {
    let named = match Loading::of(path).ok()? {
        Some(loading) => loading.interpreter?,
        None => {
            let octets = fs::read(path).ok()?;
            let line = octets
                .strip_prefix(b"#!")?
                .split(|octet| *octet == b'\n')
                .next()?;
            let line = String::from_utf8_lossy(line);
            line.split_whitespace().next()?.to_owned()
        }
    };
    (!Path::new(&named).exists()).then_some(named)
}

/// What an ELF file says about how it is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loading {
    /// For this machine's processor.
    pub(crate) native: bool,
    /// Has a dynamic loader at all.
    pub(crate) interpreter: Option<String>,
    /// Libraries that it names.
    pub(crate) libraries: Vec<String>,
    /// Versions that it needs, with the file that is to have them.
    pub(crate) versions: Vec<(String, String)>,
    /// Versions that it has, if it is a library.
    pub(crate) defines: Vec<String>,
    /// It is a shared object, or a program like one.
    pub(crate) shared: bool,
    /// Symbols that it has for others, without their versions.
    pub(crate) exports: Vec<String>,
}

impl Loading {
    /// Of a file; nothing if it is no ELF file, as a script.
    pub(crate) fn of(path: &Path) -> io::Result<Option<Self>> {
        let octets = fs::read(path)?;
        if !octets.starts_with(b"\x7fELF") {
            return Ok(None);
        }
        let elf = Elf::parse(&octets)
            .map_err(|error| io::Error::new(ErrorKind::InvalidData, error.to_string()))?;
        let name = |at| elf.dynstrtab.get_at(at).unwrap_or_default().to_owned();
        let mut versions = Vec::new();
        for file in elf.verneed.iter().flat_map(|section| section.iter()) {
            for version in file.iter() {
                versions.push((name(file.vn_file), name(version.vna_name)));
            }
        }
        let defines = elf
            .verdef
            .iter()
            .flat_map(|section| section.iter())
            .filter_map(|node| node.iter().next().map(|first| name(first.vda_name)))
            .collect();
        Ok(Some(Self {
            native: elf.header.e_machine == MACHINE && elf.is_64,
            interpreter: elf.interpreter.map(String::from),
            libraries: elf
                .libraries
                .iter()
                .map(|name| (*name).to_owned())
                .collect(),
            versions,
            defines,
            shared: elf.header.e_type == ET_DYN,
            exports: elf
                .dynsyms
                .iter()
                .filter(|symbol| symbol.st_shndx != 0)
                .map(|symbol| name(symbol.st_name))
                .collect(),
        }))
    }
}

/// Why the library cannot get into a program.
pub(crate) fn obstacle(path: &Path) -> io::Result<Option<String>> {
    let found = fs::metadata(path)?;
    let user = nix::unistd::geteuid().as_raw();
    let other_user = found.mode() & 0o4000 != 0 && found.uid() != user;
    if other_user || found.mode() & 0o2000 != 0 && found.gid() != nix::unistd::getegid().as_raw() {
        return Ok(Some(
            "is set-uid or set-gid: the loader ignores LD_PRELOAD for it".into(),
        ));
    }
    let Some(loading) = Loading::of(path)? else {
        return Ok(None);
    };
    Ok(loading.obstacle())
}

impl Loading {
    fn obstacle(&self) -> Option<String> {
        if !self.native {
            return Some("is for another processor than this software's library".into());
        }
        match &self.interpreter {
            None => Some("is linked statically: no library can be put in front of its own".into()),
            Some(loader) if loader.contains("ld-musl") => {
                Some("is built for musl; this software's library needs the GNU C library".into())
            }
            Some(_) => None,
        }
    }
}

/// Refuses programs which the library cannot get into: they would run on the kernel's devices, or
/// find none, without a word about why.
pub(crate) fn check_reach(path: &Path) -> Outcome<()> {
    // A file that cannot be read may still be executable.
    match obstacle(path) {
        Ok(Some(why)) => Err(Failure::Exit {
            status: CANNOT_RUN,
            text: format!("{} {why}", path.display()),
        }),
        Ok(None) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_like_in_a_shell() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert!(find(OsStr::new("/bin/sh")).is_ok());
        for missing in ["no-such-program", "/no/such/program", "./no-such-program"] {
            let failure = find(OsStr::new(missing)).unwrap_err();
            assert!(
                matches!(failure, Failure::Exit { status: 127, .. }),
                "{failure:?}"
            );
            assert_eq!(failure.to_string(), format!("{missing}: not found"));
        }
    }

    #[test]
    fn a_dynamic_program() {
        let loading = Loading::of(&find(OsStr::new("sh")).unwrap())
            .unwrap()
            .unwrap();
        assert!(
            loading.libraries.iter().any(|name| name == "libc.so.6"),
            "{loading:?}"
        );
        assert!(
            loading
                .versions
                .iter()
                .any(|(_, version)| version.starts_with("GLIBC_"))
        );
        assert_eq!(loading.obstacle(), None);
    }

    #[test]
    fn obstacles() {
        let loading = |interpreter: Option<&str>, native| Loading {
            native,
            interpreter: interpreter.map(String::from),
            ..Loading::default()
        };
        let why = |loading: Loading| loading.obstacle().unwrap();
        assert!(why(loading(None, true)).contains("statically"));
        assert!(why(loading(Some("/lib/ld-musl-x86_64.so.1"), true)).contains("musl"));
        assert!(why(loading(Some("/lib/ld-linux.so.2"), false)).contains("processor"));
        assert_eq!(
            loading(Some("/lib64/ld-linux-x86-64.so.2"), true).obstacle(),
            None
        );
    }

    #[test]
    fn scripts_have_none() {
        let script = std::env::temp_dir().join(format!("softverbs-script-{}", std::process::id()));
        fs::write(&script, "#!/bin/sh\n").unwrap();
        assert_eq!(Loading::of(&script).unwrap(), None);
        assert_eq!(obstacle(&script).unwrap(), None);
        fs::remove_file(&script).unwrap();
    }
}
