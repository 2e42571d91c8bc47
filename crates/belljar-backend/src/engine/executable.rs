//! The copy of belljar that containers are given.
//!
//! A copy, so that an upgrade or a build directory that other users cannot enter cannot break live runs.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use belljar_spec::text::error_chain;

use crate::error::Unavailable;

#[derive(Debug, thiserror::Error)]
pub(super) enum ExecutableError {
    #[error("cannot copy belljar to {}", .0.display())]
    Copy(PathBuf, #[source] io::Error),
    #[error(
        "this belljar needs libraries that an image does not have; build it static (crt-static)"
    )]
    Dynamic,
    #[cfg(not(feature = "jail"))]
    #[error(transparent)]
    Init(#[from] super::init_executable::InitError),
}

/// This program, which is PID 1 of its sandboxes too.
#[cfg(feature = "jail")]
fn source() -> Result<PathBuf, ExecutableError> {
    Ok(PathBuf::from("/proc/self/exe"))
}

#[cfg(feature = "jail")]
fn check(_: &Path) -> Result<(), ExecutableError> {
    Ok(())
}

#[cfg(not(feature = "jail"))]
fn source() -> Result<PathBuf, ExecutableError> {
    Ok(super::init_executable::locate()?)
}

#[cfg(not(feature = "jail"))]
fn check(copy: &Path) -> Result<(), ExecutableError> {
    Ok(super::init_executable::check(copy)?)
}

/// Whether there is an executable that can be PID 1. Cheap: which build it is of is checked when it is copied.
pub(super) fn check_present() -> Result<(), Unavailable> {
    let fix = "install the belljar for Linux beside this one, or use a build with the jail";
    source().map(drop).map_err(|error| Unavailable::new(error_chain(&error), fix))
}

/// `bin/<hash>-<architecture>`, made if it is not there.
pub(super) fn copy_in(bin: &Path) -> Result<PathBuf, ExecutableError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| ExecutableError::Copy(path, error)
    };
    fs::create_dir_all(bin).map_err(failed(bin))?;
    let source = &*source()?;
    let mut file = File::open(source).map_err(failed(source))?;
    let about = file.metadata().map_err(failed(source))?;
    // To hash it at every start would cost more than the rest of the start.
    let seen = format!(
        "{:x}-{:x}-{:x}-{:x}",
        about.dev(),
        about.ino(),
        about.len(),
        about.mtime() as u64 ^ (about.mtime_nsec() as u64) << 20
    );
    let index = bin.join(format!("seen-{seen}"));
    if let Ok(name) = fs::read_to_string(&index) {
        let known = bin.join(&name);
        let is_whole = fs::metadata(&known).is_ok_and(|found| found.len() == about.len());
        if !name.contains('/') && is_whole {
            return Ok(known);
        }
    }
    if is_dynamic(&mut file).map_err(failed(source))? {
        return Err(ExecutableError::Dynamic);
    }
    let hash = hash(source).map_err(failed(source))?;
    let name = format!("{hash}-{}", std::env::consts::ARCH);
    let target = bin.join(&name);
    if !fs::metadata(&target).is_ok_and(|found| found.len() == about.len()) {
        let temporary = bin.join(format!("{name}.{}", std::process::id()));
        let copied = fs::copy(source, &temporary)
            .and_then(|_| File::open(&temporary)?.sync_all())
            .and_then(|()| fs::set_permissions(&temporary, fs::Permissions::from_mode(0o555)))
            .map_err(failed(&target))
            .and_then(|()| check(&temporary)) // the copy: the source may change meanwhile
            .and_then(|()| fs::rename(&temporary, &target).map_err(failed(&target)));
        if copied.is_err() {
            let _ = fs::remove_file(&temporary); // the first error is the one that matters
        }
        copied?;
    }
    let _ = fs::write(&index, &name); // without it the next start hashes again
    Ok(target)
}

fn hash(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

/// Whether an ELF file names an interpreter.
fn is_dynamic(file: &mut File) -> io::Result<bool> {
    const PT_INTERP: u32 = 3;
    let mut head = vec![0; 64 * 1024];
    let mut length = 0;
    while length < head.len() {
        match file.read(&mut head[length..])? {
            0 => break,
            count => length += count,
        }
    }
    let head = &head[..length];
    let number = |at: usize, size: usize| {
        let bytes = head.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    let table = (number(32, 8), number(54, 2), number(56, 2));
    let (Some(offset), Some(size), Some(count)) = table else { return Ok(true) };
    let kinds = (0..count).map(|entry| number((offset + entry * size) as usize, 4));
    Ok(kinds.into_iter().any(|kind| kind.is_none_or(|kind| kind == u64::from(PT_INTERP))))
}
