//! Finds files in an unpacked image as the overlay of its layers would show them, without mounting it.
//!
//! Links are followed within the image only, by hand: no name is ever looked up outside of a layer.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, fgetxattr, fstat, openat, readlinkat};
use rustix::io::Errno;

use crate::store::HeldImage;

const MAX_LINKS: usize = 40;
/// Names that are opened for one lookup, in all layers together. Deep paths in a hundred layers stay far below.
const MAX_STEPS: u32 = 1 << 15;
/// Of the targets of all links that one lookup follows.
const MAX_LINK_BYTES: usize = 1 << 14;
const OPAQUE: [&str; 2] = ["user.overlay.opaque", "trusted.overlay.opaque"];
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What the layers show at a path.
enum Seen {
    Missing,
    Directory,
    Link(OsString),
    File(OwnedFd),
}

/// What one lookup may still take. Links can make it long, and an image's layers make each step longer.
struct Budget {
    steps: u32,
    links: usize,
    link_bytes: usize,
}

impl Budget {
    fn new() -> Self {
        Self { steps: MAX_STEPS, links: MAX_LINKS, link_bytes: MAX_LINK_BYTES }
    }

    fn step(&mut self) -> io::Result<()> {
        let left = self.steps.checked_sub(1);
        self.steps = left.ok_or_else(|| {
            let what = format!("more than {MAX_STEPS} names have to be opened in its layers");
            too_much(&what)
        })?;
        Ok(())
    }

    fn link(&mut self, target: &OsStr) -> io::Result<()> {
        let left = self.links.checked_sub(1);
        self.links =
            left.ok_or_else(|| too_much(&format!("more than {MAX_LINKS} links follow")))?;
        let left = self.link_bytes.checked_sub(target.len());
        self.link_bytes = left.ok_or_else(|| {
            too_much(&format!("the targets of its links have more than {MAX_LINK_BYTES} bytes"))
        })?;
        Ok(())
    }
}

fn too_much(what: &str) -> io::Error {
    io::Error::other(format!("{what}; the limit protects this machine from hostile images"))
}

impl HeldImage {
    /// Whether a command of this path can be started. No if that takes too long to find out.
    pub fn has_program(&self, path: &Path) -> bool {
        let found = self.file(path).ok().flatten();
        found.and_then(|file| fstat(&file).ok()).is_some_and(|stat| stat.st_mode & 0o111 != 0)
    }

    /// The content of a small file; nothing if there is no file of this path.
    pub fn read_small_file(&self, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(place) = self.file(path)? else { return Ok(None) };
        // What was found is a regular file, so opening it waits for nothing.
        let through = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&place));
        let file =
            File::from(openat(CWD, through, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
        let mut content = Vec::new();
        file.take(limit + 1).read_to_end(&mut content)?;
        match content.len() as u64 > limit {
            true => Err(io::Error::other(format!("it is larger than {limit} bytes"))),
            false => Ok(Some(content)),
        }
    }

    /// The regular file at a path.
    fn file(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        let mut at: Vec<OsString> = Vec::new();
        let mut todo = names(path);
        let mut budget = Budget::new();
        while let Some(name) = todo.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            at.push(name);
            match self.look(&at, &mut budget)? {
                Seen::Missing => return Ok(None),
                Seen::Directory => {}
                Seen::File(file) => return Ok(todo.is_empty().then_some(file)),
                Seen::Link(target) => {
                    budget.link(&target)?;
                    let target = Path::new(&target);
                    if target.is_absolute() {
                        at.clear();
                    } else {
                        at.pop();
                    }
                    let mut rest = names(target);
                    rest.append(&mut todo);
                    todo = rest;
                }
            }
        }
        Ok(None)
    }

    /// All but the last of these names are directories.
    fn look(&self, path: &[OsString], budget: &mut Budget) -> io::Result<Seen> {
        for layer in self.layers.iter().rev() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let root = openat(CWD, &layer.path, flags, Mode::empty())?;
            if let Some(seen) = look_in_layer(root, path, budget)? {
                return Ok(seen);
            }
        }
        Ok(Seen::Missing)
    }
}

/// Nothing: the layers below decide.
fn look_in_layer(
    root: OwnedFd,
    path: &[OsString],
    budget: &mut Budget,
) -> io::Result<Option<Seen>> {
    let mut at = root;
    let mut is_opaque = false;
    for (index, name) in path.iter().enumerate() {
        budget.step()?;
        let found = match openat(&at, name.as_os_str(), PLACE, Mode::empty()) {
            Err(Errno::NOENT) if is_opaque => return Ok(Some(Seen::Missing)),
            Err(Errno::NOENT) => return Ok(None),
            found => found?,
        };
        let stat = fstat(&found)?;
        let is_last = index + 1 == path.len();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if is_last => return Ok(Some(Seen::Directory)),
            FileType::Directory => {
                is_opaque |= has_opaque_mark(&found);
                at = found;
            }
            FileType::Symlink if is_last => {
                let target = readlinkat(&found, "", Vec::new())?;
                return Ok(Some(Seen::Link(OsString::from_vec(target.into_bytes()))));
            }
            FileType::RegularFile if is_last => return Ok(Some(Seen::File(found))),
            // A whiteout, or something that no path leads through.
            _ => return Ok(Some(Seen::Missing)),
        }
    }
    Ok(Some(Seen::Directory))
}

fn has_opaque_mark(directory: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = openat(directory, ".", flags, Mode::empty()) else { return false };
    OPAQUE.iter().any(|name| {
        let mut value = [0_u8; 2];
        fgetxattr(opened.as_fd(), *name, &mut value) == Ok(1) && value[0] == b'y'
    })
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().filter_map(name).collect()
}
