//! Checks mount targets: each at a separate place, none over what the sandbox itself is made of.

use std::path::Path;

use super::{HOME_INSIDE, ResolveError};
use crate::paths;
use crate::runspec::{Mount, Rootfs, Tmpfs};
use crate::text::OsText;

/// The kernel's trees: never a place for anything else.
const KERNEL: &[&str] = &["/proc", "/sys", "/dev"];
/// Made from the host's programs and libraries, unless the root is a given directory.
const SYSTEM: &[&str] = &["/usr", "/etc", "/bin", "/sbin"];

pub(super) struct Placed<'a> {
    pub(super) rootfs: &'a Rootfs,
    pub(super) workspace: Option<&'a Mount>,
    pub(super) mounts: &'a [Mount],
    pub(super) tmpfs: &'a [Tmpfs],
    pub(super) tools: &'a [OsText],
}

/// An absolute path inside, without `.`; a `..` is refused, because what it means inside depends on
/// links that the run may make.
pub(super) fn absolute(key: &str, target: &OsText) -> Result<OsText, ResolveError> {
    let wrong = |why: &str| ResolveError::Target {
        key: key.to_owned(),
        target: target.clone(),
        why: why.to_owned(),
    };
    if target.as_bytes().contains(&0) {
        return Err(wrong("contains a NUL byte"));
    }
    if !target.as_path().is_absolute() {
        return Err(wrong("must be an absolute path inside the sandbox, such as /data"));
    }
    if target.as_path().components().any(|part| part == std::path::Component::ParentDir) {
        return Err(wrong("must not contain \"..\""));
    }
    Ok(paths::clean(target.as_path()).into())
}

pub(super) fn check(placed: &Placed<'_>) -> Result<(), ResolveError> {
    let mut taken = Taken(Vec::new());
    if let Some(workspace) = placed.workspace {
        let key = "sandbox.workspace.target";
        not_reserved(key, &workspace.target, placed.rootfs)?;
        taken.take(key.to_owned(), &workspace.target)?;
    }
    for (index, tool) in placed.tools.iter().enumerate() {
        let key = format!("sandbox.tools[{index}]");
        tool_place(&key, tool)?;
        taken.take(key, tool)?;
    }
    let mounts = placed.mounts.iter().map(|mount| &mount.target).enumerate();
    let mounts = mounts.map(|(index, target)| (format!("sandbox.mounts[{index}]"), target));
    let tmpfs = placed.tmpfs.iter().map(|tmpfs| &tmpfs.target).enumerate();
    let tmpfs = tmpfs.map(|(index, target)| (format!("sandbox.tmpfs[{index}]"), target));
    for (key, target) in mounts.chain(tmpfs) {
        not_reserved(&key, target, placed.rootfs)?;
        if let Some(workspace) = placed.workspace
            && *target != workspace.target
            && workspace.target.as_path().starts_with(target.as_path())
        {
            let why = format!("would hide the workspace at \"{}\"", workspace.target);
            return Err(ResolveError::Target { key, target: target.clone(), why });
        }
        taken.take(key, target)?;
    }
    Ok(())
}

/// The places that have something already, and by which key.
struct Taken<'a>(Vec<(String, &'a OsText)>);

impl<'a> Taken<'a> {
    fn take(&mut self, key: String, target: &'a OsText) -> Result<(), ResolveError> {
        if let Some((other, _)) = self.0.iter().find(|(_, there)| *there == target) {
            let other = other.clone();
            return Err(ResolveError::SameTarget { key, other, target: target.clone() });
        }
        self.0.push((key, target));
        Ok(())
    }
}

fn not_reserved(key: &str, target: &OsText, rootfs: &Rootfs) -> Result<(), ResolveError> {
    let path = target.as_path();
    let is_in = |tree: &&str| path.starts_with(tree);
    let libraries = || {
        let first = path.components().nth(1).map(|part| part.as_os_str().as_encoded_bytes());
        matches!(first, Some(b"lib" | b"lib32" | b"lib64" | b"libx32"))
    };
    let why = if path == Path::new("/") {
        "is the root directory itself; choose a place below it, such as /data"
    } else if KERNEL.iter().any(is_in) {
        "is in a kernel file system; choose another place, such as /data"
    } else if Path::new(HOME_INSIDE).starts_with(path) {
        "would hide the home directory; choose a place in it or elsewhere"
    } else if *rootfs == Rootfs::Host && (SYSTEM.iter().any(is_in) || libraries()) {
        "is in a read-only system directory; choose another place, such as /data or /opt"
    } else {
        return Ok(());
    };
    Err(ResolveError::Target { key: key.to_owned(), target: target.clone(), why: why.to_owned() })
}

/// A tool appears at its path on the host, which may well be in `/usr`.
fn tool_place(key: &str, tool: &OsText) -> Result<(), ResolveError> {
    let path = tool.as_path();
    let wrong = |why: &str| {
        Err(ResolveError::Path { key: key.to_owned(), path: tool.clone(), why: why.to_owned() })
    };
    if tool.as_bytes().contains(&b':') {
        return wrong("contains a colon, which is not allowed in PATH");
    }
    let system = KERNEL.iter().chain(&["/etc"]).any(|tree| path.starts_with(tree));
    if path == Path::new("/") || system || Path::new(HOME_INSIDE).starts_with(path) {
        return wrong("is not an install prefix; name the directory that contains the tool's bin");
    }
    Ok(())
}

/// A mount in another one's tree comes after it, in whatever order they were given.
pub(super) fn outermost_first(mut mounts: Vec<Mount>) -> Vec<Mount> {
    mounts.sort_by_key(|mount| mount.target.as_path().components().count());
    mounts
}
