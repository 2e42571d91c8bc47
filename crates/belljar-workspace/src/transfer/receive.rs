//! Unpacks a hostile archive on the host, inside one new directory.
//!
//! All files are created below a temporary directory next to the target, by descriptor, with `O_EXCL`
//! and `O_NOFOLLOW`; only a complete tree is moved into place. Dropping the receiver removes what it
//! created.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_spec::OsText;
use belljar_spec::text::escape;
use belljar_spec::wire::archive::{Entry, EntryKind, MAX_PATH};
use belljar_tree::{CreateDirError, Dir, RenameMode};
use rustix::fs::{Mode, Timespec, Timestamps};
use rustix::io::Errno;

use super::{CopyError, CopyLimits, CopyReport, CopyTarget, MissingParents};

/// The temporary name of the tree's top.
const TOP: &str = "tree";
/// The longest explanation of why something was skipped.
const MAX_WHY: u64 = 4096;

/// A parent directory of the entry that is being written.
#[derive(Debug)]
struct Open {
    name: Vec<u8>,
    directory: Dir,
    /// Applied last, since no entries can be created in a read-only directory.
    finish: Option<(Mode, Timestamps)>,
}

#[derive(Debug)]
enum Expecting {
    Header,
    Content { file: std::fs::File, left: u64, entry: Entry },
    Text { entry: Entry, text: Vec<u8> },
    Nothing,
}

/// Which links of an archive are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkTargets {
    /// Only those that stay inside the tree: a program of the host may follow them.
    Inside,
    /// All, for a tree that only code reads that follows no links.
    Anything,
}

/// What exists at the target when a copy begins.
#[derive(Debug, PartialEq, Eq)]
enum InTheWay {
    Nothing,
    File,
    /// Nobody may write it.
    ReadOnlyFile,
}

/// A copy that is being received.
#[derive(Debug)]
pub struct Receiver {
    target: CopyTarget,
    in_the_way: InTheWay,
    temporary: OsString,
    staging: Dir,
    /// The first is the top of the tree.
    open: Vec<Open>,
    has_top: bool,
    top_skipped: Option<String>,
    expecting: Expecting,
    buffer: Vec<u8>,
    limits: CopyLimits,
    links: LinkTargets,
    announced: u64,
    entries: u64,
    report: CopyReport,
    in_place: bool,
}

impl Receiver {
    /// At a path whose links are trusted. `name` is the source's, for a target that is an existing directory.
    pub fn begin(
        target: &Path,
        name: Option<&OsStr>,
        limits: CopyLimits,
    ) -> Result<Self, CopyError> {
        Self::begin_at(CopyTarget::open(target, name, &[], MissingParents::Refuse)?, limits)
    }

    pub fn begin_at(target: CopyTarget, limits: CopyLimits) -> Result<Self, CopyError> {
        let CopyTarget { parent, parent_path, name, .. } = &target;
        let io = |what, path: &Path| {
            let path = OsText::from(path);
            move |errno: Errno| CopyError::Io { what, path, error: errno.into() }
        };
        let full = parent_path.join(name);
        let in_the_way = match parent.stat_if_exists(name) {
            Ok(None) => InTheWay::Nothing,
            Err(error) => return Err(io("look at", &full)(error.errno())),
            Ok(Some(found)) if found.is_dir() => {
                return Err(CopyError::DirectoryInTheWay { path: full.into() });
            }
            Ok(Some(found)) if found.is_file() && found.mode() & 0o222 == 0 => {
                InTheWay::ReadOnlyFile
            }
            Ok(Some(_)) => InTheWay::File,
        };
        let temporary = make_temporary(parent).map_err(io("write to", parent_path))?;
        let staging = parent.open_dir(&temporary).map_err(|error| {
            let _ = parent.remove_dir(&temporary);
            io("write to", parent_path)(error.errno())
        })?;
        Ok(Self {
            target,
            in_the_way,
            temporary,
            staging,
            open: Vec::new(),
            has_top: false,
            top_skipped: None,
            expecting: Expecting::Header,
            buffer: Vec::new(),
            limits,
            links: LinkTargets::Inside,
            announced: 0,
            entries: 0,
            report: CopyReport::default(),
            in_place: false,
        })
    }

    /// Fails if the copy would replace a file that nobody may write.
    pub fn refuse_read_only(self) -> Result<Self, CopyError> {
        match self.in_the_way {
            InTheWay::Nothing | InTheWay::File => Ok(self),
            InTheWay::ReadOnlyFile => {
                let path = self.target.parent_path.join(&self.target.name).into();
                Err(CopyError::ReadOnly { path })
            }
        }
    }

    pub fn with_links(mut self, links: LinkTargets) -> Self {
        self.links = links;
        self
    }

    /// Accepts the next bytes, in pieces of any size. An error is final.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), CopyError> {
        while !bytes.is_empty() {
            match &mut self.expecting {
                Expecting::Header => bytes = self.take_header(bytes)?,
                Expecting::Content { file, left, entry } => {
                    let (now, rest) = split(bytes, *left);
                    file.write_all(now).map_err(|error| io("write", &entry.path, error))?;
                    *left -= now.len() as u64;
                    bytes = rest;
                    self.end_content_if_whole();
                }
                Expecting::Text { entry, text } => {
                    let (now, rest) = split(bytes, entry.size - text.len() as u64);
                    text.extend_from_slice(now);
                    bytes = rest;
                    self.end_text_if_whole()?;
                }
                Expecting::Nothing => {
                    return Err(bad(b"", "there is data after the last entry"));
                }
            }
        }
        Ok(())
    }

    fn take_header<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], CopyError> {
        // A header is a path and a few numbers, so the buffer stays small.
        let had = self.buffer.len();
        let enough = belljar_spec::wire::archive::HEADER + MAX_PATH;
        let take = bytes.len().min(enough.saturating_sub(had));
        self.buffer.extend_from_slice(&bytes[..take]);
        let Some((entry, length)) = Entry::read(&self.buffer)? else { return Ok(&bytes[take..]) };
        self.buffer.clear();
        self.begin_entry(entry)?;
        Ok(&bytes[length - had..])
    }

    fn begin_entry(&mut self, entry: Entry) -> Result<(), CopyError> {
        if entry.kind == EntryKind::End {
            self.expecting = Expecting::Nothing;
            return Ok(());
        }
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(CopyError::TooMany { limit: self.limits.entries });
        }
        if !self.has_top && self.top_skipped.is_none() && !entry.path.is_empty() {
            return Err(bad(&entry.path, "it comes before the top of the tree"));
        }
        match entry.kind {
            EntryKind::File => self.begin_file(entry),
            EntryKind::Directory => self.make_directory(&entry),
            EntryKind::Link | EntryKind::Skipped => {
                let most = if entry.kind == EntryKind::Link { MAX_PATH as u64 } else { MAX_WHY };
                if entry.size > most {
                    return Err(bad(&entry.path, "its text is too long"));
                }
                self.expecting = Expecting::Text { entry, text: Vec::new() };
                self.end_text_if_whole()
            }
            EntryKind::End => Ok(()),
        }
    }

    fn begin_file(&mut self, entry: Entry) -> Result<(), CopyError> {
        let announced = self.announced.checked_add(entry.size);
        let limit = self.limits.bytes;
        self.announced =
            announced.filter(|bytes| *bytes <= limit).ok_or(CopyError::TooLarge { limit })?;
        let made =
            self.at(&entry.path, |directory, name| Ok(directory.create_file(name, 0o600)?))?;
        self.has_top = true;
        self.expecting = Expecting::Content { file: made, left: entry.size, entry };
        self.end_content_if_whole();
        Ok(())
    }

    fn end_content_if_whole(&mut self) {
        let Expecting::Content { file, left: 0, entry } = &self.expecting else { return };
        // Errors are ignored: the file system may not support modes or times.
        let _ = rustix::fs::fchmod(file, mode(entry));
        let _ = rustix::fs::futimens(file, &times(entry));
        self.report.files += 1;
        self.report.bytes += entry.size;
        self.expecting = Expecting::Header;
    }

    fn make_directory(&mut self, entry: &Entry) -> Result<(), CopyError> {
        if entry.size != 0 {
            return Err(bad(&entry.path, "a directory has no content"));
        }
        let directory = self.at(&entry.path, |directory, name| {
            directory.create_dir(name, 0o700)?;
            Ok(directory.open_dir(name)?)
        })?;
        self.has_top = true;
        let name = entry.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
        self.open.push(Open { name, directory, finish: Some((mode(entry), times(entry))) });
        Ok(())
    }

    fn end_text_if_whole(&mut self) -> Result<(), CopyError> {
        let Expecting::Text { entry, text } = &self.expecting else { return Ok(()) };
        if (text.len() as u64) < entry.size {
            return Ok(());
        }
        let (entry, text) = (entry.clone(), text.clone());
        self.expecting = Expecting::Header;
        if entry.kind == EntryKind::Skipped {
            self.skip(&entry, escape(&text));
            return Ok(());
        }
        let checked = match self.links {
            LinkTargets::Inside => check_link(&entry.path, &text),
            LinkTargets::Anything => check_target(&text),
        };
        if let Err(why) = checked {
            self.skip(&entry, format!("a link to \"{}\", {why}", escape(&text)));
            return Ok(());
        }
        let target = OsStr::from_bytes(&text);
        self.at(&entry.path, |directory, name| Ok(directory.symlink(target, name)?))
    }

    fn skip(&mut self, entry: &Entry, why: String) {
        if entry.path.is_empty() && !self.has_top {
            self.top_skipped = Some(why.clone());
        }
        self.report.skip(&entry.path, why);
    }

    /// Calls a function with the parent directory, which this copy must have created, and the last name of a
    /// path.
    fn at<T>(
        &mut self,
        path: &[u8],
        make: impl FnOnce(&Dir, &OsStr) -> Result<T, Errno>,
    ) -> Result<T, CopyError> {
        let failed = |errno: Errno| match errno {
            Errno::EXIST => bad(path, "it occurs twice"),
            _ => io("make", path, errno.into()),
        };
        if path.is_empty() {
            return make(&self.staging, OsStr::new(TOP)).map_err(failed);
        }
        if self.open.is_empty() {
            return Err(bad(path, "its parent is not a directory"));
        }
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let (last, above) = names.split_last().ok_or_else(|| bad(path, "it has no name"))?;
        let shared = self.open[1..].iter().zip(above).take_while(|(a, b)| a.name == **b).count();
        while self.open.len() > 1 + shared {
            self.leave();
        }
        for name in &above[shared..] {
            let directory = match self.open.last() {
                Some(open) => open.directory.open_dir(OsStr::from_bytes(name)).ok(),
                None => None,
            };
            let no_parent = || bad(path, "its parent is not a directory");
            let directory = directory.ok_or_else(no_parent)?;
            self.open.push(Open { name: name.to_vec(), directory, finish: None });
        }
        let Some(open) = self.open.last() else { return Err(bad(path, "it has no parent")) };
        make(&open.directory, OsStr::from_bytes(last)).map_err(failed)
    }

    fn leave(&mut self) {
        let left = self.open.pop();
        if let Some(Open { directory, finish: Some((mode, times)), .. }) = left {
            let _ = rustix::fs::futimens(&directory, &times);
            let _ = rustix::fs::fchmod(&directory, mode);
        }
    }

    /// Moves the tree into place, if it is complete.
    pub fn finish(mut self) -> Result<CopyReport, CopyError> {
        if !matches!(self.expecting, Expecting::Nothing) {
            return Err(CopyError::Unfinished);
        }
        if !self.has_top {
            let why = self.top_skipped.take().unwrap_or_else(|| "the archive is empty".to_owned());
            return Err(CopyError::Nothing { why });
        }
        while self.open.len() > 1 {
            self.leave();
        }
        let mode = match self.in_the_way {
            InTheWay::Nothing => RenameMode::NoReplace,
            InTheWay::File | InTheWay::ReadOnlyFile => {
                self.make_way()?;
                RenameMode::Replace
            }
        };
        let full = self.target.parent_path.join(&self.target.name);
        self.staging
            .rename(TOP, &self.target.parent, &self.target.name, mode)
            .map_err(|error| io("make", full.as_os_str().as_bytes(), error.errno().into()))?;
        self.in_place = true;
        self.target.keep();
        // A read-only directory cannot be moved, so the top gets its mode last.
        self.leave();
        Ok(std::mem::take(&mut self.report))
    }

    /// A directory cannot replace a file by a rename, so the file goes first.
    fn make_way(&self) -> Result<(), CopyError> {
        if self.open.is_empty() {
            return Ok(());
        }
        let full = self.target.parent_path.join(&self.target.name);
        self.target
            .parent
            .unlink(&self.target.name)
            .map_err(|error| io("replace", full.as_os_str().as_bytes(), error.errno().into()))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // A directory that cannot be removed has an unusual name and mode 0700, and there is no way to report
        // it. The sandbox may be able to write to the target, so its content is treated as hostile.
        if self.in_place {
            let _ = self.target.parent.remove_dir(&self.temporary);
            return;
        }
        let _ = self.target.parent.remove_all(&self.temporary);
    }
}

fn make_temporary(parent: &Dir) -> Result<OsString, Errno> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let process = rustix::process::getpid().as_raw_nonzero();
        let name = OsString::from(format!(".belljar-copy.{process}.{count}"));
        match parent.create_dir(&name, 0o700) {
            Ok(()) => return Ok(name),
            Err(CreateDirError::Exists { .. }) => {} // left by a killed process with the same pid
            Err(error) => return Err(error.errno()),
        }
    }
}

/// Accepts only links that stay inside the tree whatever other links do: `..` only at the start, and not
/// above the top.
fn check_link(path: &[u8], target: &[u8]) -> Result<(), &'static str> {
    check_target(target)?;
    if target.starts_with(b"/") {
        return Err("which is absolute");
    }
    let depth = if path.is_empty() { 0 } else { path.split(|byte| *byte == b'/').count() };
    // A link that is itself the top of the tree cannot point into it.
    let Some(mut up) = depth.checked_sub(1) else { return Err("which is outside of the copy") };
    let mut went_down = false;
    for name in target.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if went_down => return Err("which has \"..\" after a name"),
            b".." => up = up.checked_sub(1).ok_or("which is outside of the copy")?,
            _ => went_down = true,
        }
    }
    Ok(())
}

fn check_target(target: &[u8]) -> Result<(), &'static str> {
    match target.is_empty() || target.contains(&0) {
        true => Err("which is not a path"),
        false => Ok(()),
    }
}

fn split(bytes: &[u8], most: u64) -> (&[u8], &[u8]) {
    bytes.split_at(usize::try_from(most).map_or(bytes.len(), |most| most.min(bytes.len())))
}

fn mode(entry: &Entry) -> Mode {
    Mode::from_raw_mode(entry.mode & 0o777)
}

fn times(entry: &Entry) -> Timestamps {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let modified = Timespec { tv_sec: entry.modified, tv_nsec: 0 };
    Timestamps { last_access: now, last_modification: modified }
}

fn bad(path: &[u8], why: &'static str) -> CopyError {
    CopyError::Entry { path: OsText::from_bytes(path.to_vec()), why }
}

fn io(what: &'static str, path: &[u8], error: std::io::Error) -> CopyError {
    CopyError::Io { what, path: OsText::from_bytes(path.to_vec()), error }
}
