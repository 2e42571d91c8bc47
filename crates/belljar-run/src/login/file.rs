//! Reads an agent's login file, and replaces it in one step. All of it is relative to the opened directory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use belljar_bind::host_program;
use belljar_bind::resolve::{ResolveError, resolve};
use belljar_spec::egress::LoginSource;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, openat, renameat, unlinkat};
use rustix::io::Errno;
use zeroize::Zeroizing;

use super::LoginError;
use super::format::{self, Tokens};

/// More than any login.
const MAX_BYTES: u64 = 256 * 1024;
/// Space for the new file, taken before the refresh token is spent.
const ROOM: usize = 64 * 1024;
/// Between the name of the login and the rest of a draft's name.
const DRAFT_MARK: &str = ".belljar-";
/// Of a draft that joins another one with the login.
const MERGED: &str = "merged";

/// A login file as it was read.
pub(super) struct LoginFile {
    /// Without links; for messages.
    path: PathBuf,
    directory: OwnedFd,
    name: OsString,
    pub(super) text: Zeroizing<String>,
    pub(super) tokens: Tokens,
    mode: u32,
    group: u32,
}

impl LoginFile {
    pub(super) fn read(source: &LoginSource) -> Result<Self, LoginError> {
        let path = source.file.as_path();
        let failed = |why: &dyn std::fmt::Display| LoginError::file(path, why);
        // A link in a tree that a run can write to would let the run choose which file is read and replaced.
        let trees = host_program::writable_trees().map_err(|error| failed(&error))?;
        let found = match resolve(path, &trees) {
            Ok(found) => found,
            Err(ResolveError::Missing { .. }) => return Err(LoginError::missing(source)),
            Err(error) => return Err(failed(&error)),
        };
        if found.written_in.is_some() {
            return Err(failed(&"it is in a directory that a run can write to"));
        }
        let (Some(parent), Some(name)) = (found.path.parent(), found.path.file_name()) else {
            return Err(failed(&"it is not a regular file"));
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory =
            rustix::fs::open(parent, flags, Mode::empty()).map_err(|error| failed(&error))?;
        let name = name.to_owned();
        let opened = match Opened::open(source, &directory, &name) {
            Err(OpenFailed::Errno(Errno::NOENT)) => return Err(LoginError::missing(source)),
            Err(error) => return Err(error.into_login_error(source)),
            Ok(opened) => opened,
        };
        // What was opened here has to be what was resolved, or a directory on the way was exchanged.
        if (opened.device, opened.inode) != (found.stat.st_dev, found.stat.st_ino) {
            return Err(failed(&"it was replaced while it was read"));
        }
        let Opened { text, tokens, mode, group, .. } = opened;
        Ok(Self { path: found.path, directory, name, text, tokens, mode, group })
    }

    /// Makes sure that the file can be replaced, before anything is spent. The lock is held.
    pub(super) fn prepare_replacement(&self) -> Result<Replacement<'_>, LoginError> {
        self.new_draft(self.draft_name(&lineage(&self.tokens)))
    }

    fn new_draft(&self, name: OsString) -> Result<Replacement<'_>, LoginError> {
        let shown = self.path.with_file_name(&name);
        let failed = |error: Errno| LoginError::file(&shown, format!("cannot write: {error}"));
        match unlinkat(&self.directory, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            openat(&self.directory, &name, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
        let content = DraftContent::Incomplete;
        let mut replacement = Replacement { of: self, name, file: File::from(file), content };
        replacement.reserve().map_err(|error| LoginError::file(&self.path, error))?;
        Ok(replacement)
    }

    /// New tokens that a run received, and could not put in place. The lock is held.
    ///
    /// Only those that continue this very login are used: a draft is named after the refresh token that was spent.
    pub(super) fn take_over_draft(self, source: &LoginSource) -> Result<Self, LoginError> {
        let wanted = self.draft_name(&lineage(&self.tokens));
        let drafts = self.drafts().map_err(|error| LoginError::file(&self.path, error))?;
        let remove = |name: &OsStr| {
            let _ = unlinkat(&self.directory, name, AtFlags::empty()); // a directory stays, and is reported when in the way
        };
        // One of another login, or half of one.
        drafts.iter().filter(|name| **name != wanted).for_each(|name| remove(name));
        if !drafts.contains(&wanted) {
            return Ok(self);
        }
        let draft = Opened::open(source, &self.directory, &wanted).ok();
        let Some(draft) = draft.filter(|draft| draft.tokens.access != self.tokens.access) else {
            remove(&wanted); // an empty one; what it had was never received
            return Ok(self);
        };
        let text = format::carried_over(source, &draft.text, &self.text)?;
        self.new_draft(self.draft_name(MERGED))?.put_in_place(&text)?;
        remove(&wanted);
        Self::read(source)
    }

    fn drafts(&self) -> io::Result<Vec<OsString>> {
        use std::os::unix::ffi::OsStrExt;
        let prefix = self.draft_name("");
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name.starts_with(prefix.as_bytes()) {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    fn draft_name(&self, of: &str) -> OsString {
        let mut draft = OsString::from(".");
        draft.push(&self.name);
        draft.push(DRAFT_MARK);
        draft.push(of);
        draft
    }
}

/// A name for the refresh token that tells nothing about it.
fn lineage(tokens: &Tokens) -> String {
    let token = tokens.refresh.as_ref().map_or("", |token| token.as_str());
    blake3::hash(token.as_bytes()).to_hex()[..32].to_owned()
}

/// A file of the directory that holds a login.
struct Opened {
    text: Zeroizing<String>,
    tokens: Tokens,
    mode: u32,
    group: u32,
    device: u64,
    inode: u64,
}

enum OpenFailed {
    Errno(Errno),
    Unfit(String),
    NoLogin(LoginError),
}

impl OpenFailed {
    fn into_login_error(self, source: &LoginSource) -> LoginError {
        match self {
            Self::Errno(error) => LoginError::file(source.file.as_path(), error),
            Self::Unfit(why) => LoginError::file(source.file.as_path(), why),
            Self::NoLogin(error) => error,
        }
    }
}

impl Opened {
    fn open(source: &LoginSource, directory: &OwnedFd, name: &OsStr) -> Result<Self, OpenFailed> {
        let unfit = |why: &str| OpenFailed::Unfit(why.to_owned());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, name, flags, Mode::empty()).map_err(OpenFailed::Errno)?;
        let file = File::from(file);
        let failed = |error: io::Error| OpenFailed::Unfit(error.to_string());
        let facts = file.metadata().map_err(failed)?;
        if !facts.is_file() {
            return Err(unfit("it is not a regular file"));
        }
        // Root too: another user could exchange the file while it is replaced.
        if facts.uid() != rustix::process::geteuid().as_raw() {
            return Err(unfit("it belongs to another user"));
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(8192));
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(OpenFailed::Unfit(format!("it is larger than {MAX_BYTES} bytes")));
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| OpenFailed::NoLogin(LoginError::malformed(source, "it is not UTF-8")))?;
        let text = Zeroizing::new(text.to_owned());
        let tokens = format::parse(source, &text).map_err(OpenFailed::NoLogin)?;
        let (mode, group) = (facts.mode() & 0o777, facts.gid());
        Ok(Self { text, tokens, mode, group, device: facts.dev(), inode: facts.ino() })
    }
}

/// A new version of the file, not in its place yet. Dropped, it is removed, unless it has new tokens.
pub(super) struct Replacement<'f> {
    of: &'f LoginFile,
    name: OsString,
    file: File,
    content: DraftContent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DraftContent {
    Incomplete,
    /// The new login is on disk, and perhaps nowhere else.
    Complete,
}

impl Replacement<'_> {
    fn reserve(&mut self) -> io::Result<()> {
        let made = fstat(&self.file)?;
        if made.st_gid != self.of.group {
            rustix::fs::fchown(&self.file, None, Some(rustix::fs::Gid::from_raw(self.of.group)))?;
        }
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(self.of.mode))?;
        self.file.write_all(&vec![b' '; ROOM.max(2 * self.of.text.len())])?;
        self.file.sync_all()
    }

    /// Writes the new login beside the old one. It stays there until it is put in place or discarded.
    pub(super) fn write(&mut self, text: &str) -> Result<(), LoginError> {
        self.content = DraftContent::Incomplete;
        let written = self.file.seek(SeekFrom::Start(0)).and_then(|_| {
            self.file.write_all(text.as_bytes())?;
            self.file.set_len(text.len() as u64)?;
            self.file.sync_all()
        });
        written.map_err(|error| self.failed(&error))?;
        self.content = DraftContent::Complete;
        Ok(())
    }

    /// On disk when this returns. If it fails, the next attempt finds what was written.
    pub(super) fn place(mut self) -> Result<(), LoginError> {
        let LoginFile { directory, name, .. } = self.of;
        renameat(directory, &self.name, directory, name).map_err(|error| self.failed(&error))?;
        self.content = DraftContent::Incomplete; // it has another name now
        rustix::fs::fsync(directory).map_err(|error| self.failed(&error))
    }

    fn put_in_place(mut self, text: &str) -> Result<(), LoginError> {
        self.write(text)?;
        self.place()
    }

    /// What it holds is of no use any more.
    pub(super) fn discard(mut self) {
        self.content = DraftContent::Incomplete;
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> LoginError {
        LoginError::file(&self.of.path, format!("cannot write: {error}"))
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        if self.content == DraftContent::Incomplete {
            let _ = unlinkat(&self.of.directory, &self.name, AtFlags::empty()); // gone where it was put in place
        }
    }
}
