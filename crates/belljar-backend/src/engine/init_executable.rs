//! Finds the Linux executable that a container is given as PID 1, where this build cannot be it: it has no jail, or
//! is for another system. It must be of the same build, which is read from the file and not asked of it: here it may
//! not run.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use belljar_bind::host_program;
use belljar_spec::init_process::build_mark;
use belljar_spec::{BUILD, env};

#[derive(Debug, thiserror::Error)]
pub(super) enum InitError {
    #[error(
        "this build of belljar cannot be PID 1 of a container, and needs a Linux executable of the same build that \
         can: set {} or put it at {}",
        env::EXE, .beside.display()
    )]
    Missing { beside: PathBuf },
    #[error("cannot use PID 1 for containers ({named})")]
    Place {
        named: String,
        #[source]
        error: io::Error,
    },
    #[error("cannot read {}", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(
        "{} cannot be PID 1 of a container: it {why}; use the belljar for Linux on {} of build {BUILD}",
        .path.display(), std::env::consts::ARCH
    )]
    Unfit { path: PathBuf, why: &'static str },
}

/// The executable by its path without links: `BELLJAR_EXE`, or beside this program.
#[cfg(not(feature = "jail"))]
pub(super) fn locate() -> Result<PathBuf, InitError> {
    let own = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    locate_for(&own, std::env::var_os(env::EXE).as_deref())
}

fn locate_for(own: &Path, named: Option<&OsStr>) -> Result<PathBuf, InitError> {
    let usable = |path: &Path, named: &str| {
        let found = host_program::writable_trees()
            .and_then(|trees| host_program::find_on(path.as_os_str(), OsStr::new(""), &trees));
        found.map_err(|error| InitError::Place { named: named.to_owned(), error })
    };
    // A program that embeds the library names the launcher with it, which is this program.
    let named = named.filter(|path| !path.is_empty()).map(Path::new);
    let other = named.filter(|path| path.canonicalize().ok().as_deref() != Some(own));
    if let Some(path) = other {
        return usable(path, env::EXE);
    }
    let beside = own.with_file_name(format!("belljar-linux-{}", std::env::consts::ARCH));
    match beside.symlink_metadata() {
        Ok(_) => usable(&beside, "beside belljar"),
        Err(_) => Err(InitError::Missing { beside }),
    }
}

/// Refuses what cannot be PID 1 of a sandbox that this build starts.
pub(super) fn check(path: &Path) -> Result<(), InitError> {
    let unread = |error| InitError::Read { path: path.to_owned(), error };
    let unfit = |why| Err(InitError::Unfit { path: path.to_owned(), why });
    let mut file = File::open(path).map_err(unread)?;
    let mut head = [0; 20];
    if let Err(error) = file.read_exact(&mut head) {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => unfit("is no Linux executable"),
            _ => Err(unread(error)),
        };
    }
    const ELF_64_LITTLE_ENDIAN: &[u8] = b"\x7fELF\x02\x01";
    if !head.starts_with(ELF_64_LITTLE_ENDIAN) {
        return unfit("is no Linux executable");
    }
    if machine(std::env::consts::ARCH) != Some(u16::from_le_bytes([head[18], head[19]])) {
        return unfit("is for another processor");
    }
    match contains(&mut file, build_mark(BUILD).as_bytes()).map_err(unread)? {
        true => Ok(()),
        false => unfit("is of another build, or has no jail"),
    }
}

/// As the header of an ELF file has it.
fn machine(arch: &str) -> Option<u16> {
    match arch {
        "x86_64" => Some(62),
        "aarch64" => Some(183),
        _ => None,
    }
}

fn contains(file: &mut File, needle: &[u8]) -> io::Result<bool> {
    const BLOCK: usize = 1 << 20;
    let mut window = Vec::with_capacity(BLOCK + needle.len());
    let finder = memchr::memmem::Finder::new(needle);
    loop {
        let before = window.len();
        file.by_ref().take(BLOCK as u64).read_to_end(&mut window)?;
        if finder.find(&window).is_some() {
            return Ok(true);
        }
        if window.len() == before {
            return Ok(false);
        }
        // What could be the beginning of it.
        window.drain(..window.len().saturating_sub(needle.len() - 1));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn elf(machine: u16, content: &[u8]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(18, 0);
        file.extend(machine.to_le_bytes());
        file.resize((1 << 20) + 7, b'x'); // the mark lies across two blocks
        file.extend(content);
        file
    }

    fn checked(content: &[u8]) -> Result<(), String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("init");
        std::fs::write(&path, content).unwrap();
        check(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn only_a_linux_executable_of_the_same_build_is_taken() {
        let this = machine(std::env::consts::ARCH).unwrap();
        let mark = build_mark(BUILD);
        checked(&elf(this, mark.as_bytes())).unwrap();

        let refused = |content: &[u8], why: &str| {
            let error = checked(content).unwrap_err();
            assert!(error.contains(why) && error.contains(BUILD), "{error}");
        };
        refused(&elf(this, build_mark("0.0.0-0123").as_bytes()), "another build");
        refused(&elf(this, BUILD.as_bytes()), "another build");
        refused(&elf(this ^ 1, mark.as_bytes()), "another processor");
        refused(mark.as_bytes(), "no Linux executable");
        refused(b"#!/bin/sh", "no Linux executable");
    }

    #[test]
    fn the_named_file_comes_before_the_one_beside_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let file = |name: &str| {
            let path = base.join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let own = file("belljar");
        let error = locate_for(&own, None).unwrap_err().to_string();
        assert!(error.contains("BELLJAR_EXE") && error.contains("belljar-linux-"), "{error}");

        let beside = file(&format!("belljar-linux-{}", std::env::consts::ARCH));
        assert_eq!(locate_for(&own, None).unwrap(), beside);
        assert_eq!(locate_for(&own, Some(own.as_os_str())).unwrap(), beside, "it names itself");
        let other = file("other");
        assert_eq!(locate_for(&own, Some(other.as_os_str())).unwrap(), other);
        // One that was named and is not there is an error, not a reason to take another.
        let missing = base.join("missing");
        assert!(locate_for(&own, Some(missing.as_os_str())).is_err());
    }
}
