//! Packs a tree of the host into an archive, piece by piece, without following links.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use belljar_spec::wire::archive::{self, Entry, MAX_DEPTH, MAX_PATH};
use belljar_tree::{
    Dir, DirEntry, EntryKind, FinalLink, ListLimits, ListOrder, Metadata, OpenFileError,
};
use rustix::io::Errno;

use super::{CopyError, CopyReport};

/// The approximate size of a piece from [`Sender::fill`].
const PIECE: usize = 256 * 1024;
/// The tree belongs to the host, and all of it was asked for.
const UNLIMITED: ListLimits = ListLimits { entries: usize::MAX, name_bytes: usize::MAX };

#[derive(Debug)]
struct Level {
    directory: Dir,
    entries: std::vec::IntoIter<DirEntry>,
    /// The length of this directory's path.
    path: usize,
}

#[derive(Debug)]
struct SentContent {
    file: File,
    left: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum SendStage {
    Top,
    Below,
    Over,
}

/// What the tree begins with.
#[derive(Debug)]
enum Top {
    /// Its parent directory, and its name.
    Named(Dir, OsString),
    /// A file that is open already, with this many bytes left.
    Opened(File, u64),
    Sent,
}

/// A tree that is being sent.
#[derive(Debug)]
pub struct Sender {
    top: Top,
    stage: SendStage,
    levels: Vec<Level>,
    path: Vec<u8>,
    /// Paths in the tree that are not sent, nor anything below them.
    left_out: Vec<PathBuf>,
    content: Option<SentContent>,
    report: CopyReport,
}

impl Sender {
    pub fn begin(source: &Path) -> Result<Self, CopyError> {
        let (directory, name) = match source.file_name() {
            Some(name) => (source.parent().unwrap_or(source), name),
            None => (source, OsStr::new(".")), // such as "/" or ".."
        };
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        // The user named this path, so its links are trusted.
        let start = Dir::open(directory, FinalLink::Follow)
            .map_err(|error| failed("open", source.as_os_str().as_bytes(), error.errno()))?;
        Ok(Self::at(Top::Named(start, name.to_owned())))
    }

    /// Sends the rest of one file, which is new to the receiver: its mode and its date do not count.
    pub fn of_file(file: File, left: u64) -> Self {
        Self::at(Top::Opened(file, left))
    }

    /// Sends this very directory: device and inode must be what they were when it was checked.
    pub fn begin_checked(source: &Path, identity: (u64, u64)) -> Result<Self, CopyError> {
        let bytes = source.as_os_str().as_bytes();
        let top = Dir::open(source, FinalLink::Refuse)
            .map_err(|error| failed("open", bytes, error.errno()))?;
        let found = top.stat("").map_err(|error| failed("look at", bytes, error.errno()))?;
        let found = found.identity();
        if (found.device, found.inode) != identity {
            return Err(CopyError::Changed { path: source.into() });
        }
        Ok(Self::at(Top::Named(top, OsString::from("."))))
    }

    fn at(top: Top) -> Self {
        Self {
            top,
            stage: SendStage::Top,
            levels: Vec::new(),
            path: Vec::new(),
            left_out: Vec::new(),
            content: None,
            report: CopyReport::default(),
        }
    }

    /// Does not send what is at these paths, which are relative to the top.
    pub fn without(self, left_out: Vec<PathBuf>) -> Self {
        Self { left_out, ..self }
    }

    pub fn report(self) -> CopyReport {
        self.report
    }

    /// Appends the next piece; nothing at the end.
    pub fn fill(&mut self, out: &mut Vec<u8>) -> Result<(), CopyError> {
        while out.len() < PIECE && self.stage != SendStage::Over {
            if let Some(content) = &mut self.content {
                if content.left == 0 {
                    self.content = None;
                    self.report.files += 1;
                    continue;
                }
                let most = content.left.min(PIECE as u64) as usize;
                let read = append(&content.file, most, out);
                let read = read.map_err(|errno| self.io("read", errno.into()))?;
                if read == 0 {
                    return Err(CopyError::Changed { path: OsText::from_bytes(self.path.clone()) });
                }
                self.report.bytes += read as u64;
                if let Some(content) = &mut self.content {
                    content.left -= read as u64;
                }
                continue;
            }
            match self.stage {
                SendStage::Top => self.top(out)?,
                SendStage::Below => self.below(out),
                SendStage::Over => {}
            }
        }
        Ok(())
    }

    fn top(&mut self, out: &mut Vec<u8>) -> Result<(), CopyError> {
        self.stage = SendStage::Below;
        match std::mem::replace(&mut self.top, Top::Sent) {
            Top::Named(start, name) => self
                .send(&start, &name, out)
                .map_err(|errno| failed("read", name.as_bytes(), errno)),
            Top::Opened(file, left) => {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                let modified = now.map_or(0, |now| now.as_secs() as i64);
                self.entry(archive::EntryKind::File, 0o666, left, modified).write(out);
                self.content = Some(SentContent { file, left });
                Ok(())
            }
            Top::Sent => Ok(()),
        }
    }

    fn below(&mut self, out: &mut Vec<u8>) {
        let Some(level) = self.levels.last_mut() else {
            self.stage = SendStage::Over;
            self.entry(archive::EntryKind::End, 0, 0, 0).write(out);
            return;
        };
        self.path.truncate(level.path);
        let Some(DirEntry { name, .. }) = level.entries.next() else {
            self.levels.pop();
            return;
        };
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.as_bytes());
        let at = Path::new(OsStr::from_bytes(&self.path));
        if self.left_out.iter().any(|path| path == at) {
            return;
        }
        if self.path.len() > MAX_PATH || self.levels.len() > MAX_DEPTH {
            // The archive cannot hold such a path.
            self.report.skip(&self.path, "its path is too long or too deep".to_owned());
            return;
        }
        // Cloned, because the levels change meanwhile.
        let directory = self.levels.last().map(|level| level.directory.try_clone());
        let sent = match directory {
            Some(Ok(directory)) => self.send(&directory, &name, out),
            Some(Err(_)) | None => Err(Errno::MFILE),
        };
        if let Err(errno) = sent {
            self.skip(std::io::Error::from(errno).to_string(), out);
        }
    }

    /// Starts the entry `name` of a directory. After an error, nothing of it was sent.
    fn send(&mut self, at: &Dir, name: &OsStr, out: &mut Vec<u8>) -> Result<(), Errno> {
        let found = at.stat(name)?;
        match found.kind() {
            EntryKind::Directory => {
                let directory = at.open_dir(name)?;
                let listing = directory.list("", UNLIMITED, ListOrder::Sorted)?;
                self.header(archive::EntryKind::Directory, &found, 0).write(out);
                let (entries, path) = (listing.entries.into_iter(), self.path.len());
                self.levels.push(Level { directory, entries, path });
            }
            EntryKind::File => {
                let file = match at.open_file(name) {
                    Err(OpenFileError::NotRegular { .. }) => {
                        self.skip("it is no longer a file".to_owned(), out);
                        return Ok(());
                    }
                    file => file?,
                };
                let found = Metadata::of(&file)?;
                self.header(archive::EntryKind::File, &found, found.size()).write(out);
                self.content = Some(SentContent { file, left: found.size() });
            }
            EntryKind::Symlink => {
                let target = at.read_link(name)?;
                self.header(archive::EntryKind::Link, &found, target.len() as u64).write(out);
                out.extend_from_slice(target.as_bytes());
            }
            kind @ (EntryKind::Fifo
            | EntryKind::Socket
            | EntryKind::CharacterDevice
            | EntryKind::BlockDevice
            | EntryKind::Unknown) => self.skip(kind.name().to_owned(), out),
        }
        Ok(())
    }

    fn skip(&mut self, why: String, out: &mut Vec<u8>) {
        self.entry(archive::EntryKind::Skipped, 0, why.len() as u64, 0).write(out);
        out.extend_from_slice(why.as_bytes());
        self.report.skip(&self.path, why);
    }

    fn header(&self, kind: archive::EntryKind, found: &Metadata, size: u64) -> Entry {
        self.entry(kind, found.mode() & 0o777, size, found.modified().secs)
    }

    fn entry(&self, kind: archive::EntryKind, mode: u32, size: u64, modified: i64) -> Entry {
        let path = if kind == archive::EntryKind::End { Vec::new() } else { self.path.clone() };
        Entry { kind, mode, path, size, modified }
    }

    fn io(&self, what: &'static str, error: std::io::Error) -> CopyError {
        CopyError::Io { what, path: OsText::from_bytes(self.path.clone()), error }
    }
}

/// Reads once, without a loop for the end of the file: how much is left is known.
fn append(file: &File, most: usize, out: &mut Vec<u8>) -> Result<usize, Errno> {
    let before = out.len();
    out.resize(before + most, 0);
    let read = rustix::io::retry_on_intr(|| rustix::io::read(file, &mut out[before..]));
    out.truncate(before + *read.as_ref().unwrap_or(&0));
    read
}

fn failed(what: &'static str, path: &[u8], errno: Errno) -> CopyError {
    CopyError::Io { what, path: OsText::from_bytes(path.to_vec()), error: errno.into() }
}
