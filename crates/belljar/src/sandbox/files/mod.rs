//! Reads, writes and lists files in a sandbox, over the channel.
//!
//! Belljar's own code inside does the work, in a process that is locked down like any command; no program of the
//! sandbox is started. What it sends back is hostile: sizes and names are checked before they are used.

mod listing;
mod read;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use belljar_spec::OsText;
use belljar_spec::wire::archive::{ArchiveError, Entry, EntryKind};
use belljar_spec::wire::{ReadOnlyFiles, UnpackModes, Work};

use super::client::Client;
use super::error::Error;
use super::exec::Exec;
use super::output::Output;
use listing::Listing;
use read::{FileContent, FileReader};

/// The largest file that [`super::Sandbox::read_file`] returns.
pub const DEFAULT_FILE_LIMIT: u64 = 64 << 20;
/// The mode of files that [`super::Sandbox::write_file`] creates.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
/// As many links as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// What a path inside a sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    Link,
    /// A FIFO, a socket or a device.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    pub kind: FileKind,
    /// The nine permission bits.
    pub mode: u32,
    /// Bytes of a file; 0 for anything else.
    pub size: u64,
    /// `None` if the date is out of range.
    pub modified: Option<SystemTime>,
}

/// A name in a directory. Links are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: OsString,
    pub info: FileInfo,
}

/// Why a file could not be read, written or listed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("there is no {path} in the sandbox")]
    NotFound { path: OsText },
    #[error("{path} is a directory")]
    IsDirectory { path: OsText },
    #[error("{path} is not a directory")]
    NotADirectory { path: OsText },
    #[error("{path} is not a regular file: {why}")]
    NotAFile { path: OsText, why: String },
    #[error("{path} has {size} bytes, more than {limit}; raise the limit, or use copy_out")]
    TooLarge { path: OsText, size: u64, limit: u64 },
    #[error("{path} has more than {limit} entries; list it with a command")]
    TooMany { path: OsText, limit: usize },
    #[error("{path} changed while it was read; try again")]
    Changed { path: OsText },
    #[error("{path} leads through too many links")]
    TooManyLinks { path: OsText },
    #[error("the sandbox could not do this for {path}: {why}")]
    Inside { path: OsText, why: String },
    #[error("the sandbox sent invalid data for {path}: {why}")]
    Invalid { path: OsText, why: &'static str },
    #[error("the sandbox sent invalid data: {0}")]
    Archive(#[from] ArchiveError),
}

impl Client {
    /// See [`super::Sandbox::read_file_within`].
    pub async fn read_file(&self, path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
        let mut current = path.to_owned();
        for _ in 0..MAX_LINKS {
            match self.read_without_following(&current, limit).await? {
                FileContent::Bytes(bytes) => return Ok(bytes),
                // The sandbox's kernel resolves the new path, so it can lead nowhere but to the sandbox's files.
                FileContent::LinkTo(target) => {
                    current = current.parent().unwrap_or(Path::new("/")).join(target);
                }
            }
        }
        Err(FileError::TooManyLinks { path: path.into() }.into())
    }

    async fn read_without_following(&self, path: &Path, limit: u64) -> Result<FileContent, Error> {
        let mut reader = FileReader::new(path.into(), limit);
        self.read_with(path, |bytes| Ok::<_, Error>(reader.feed(bytes)?)).await?;
        Ok(reader.finish()?)
    }

    async fn read_with(
        &self,
        path: &Path,
        feed: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut running = self.work(Work::Pack { path: path.into() }).spawn().await?;
        // After an error the rest is not read: dropping the handle ends the process inside.
        let stderr = super::copy::receive_stdout(&mut running, feed).await?;
        match super::copy::failure(&mut running, stderr).await? {
            None => Ok(()),
            Some(why) if self.metadata(path).await?.is_some() => {
                Err(FileError::Inside { path: path.into(), why }.into())
            }
            Some(_) => Err(FileError::NotFound { path: path.into() }.into()),
        }
    }

    /// See [`super::Sandbox::write_file`].
    pub async fn write_file(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
        let plain = [(EntryKind::File, PathBuf::new())];
        let first = self.unpack(path, &plain, bytes, mode).await?;
        if first.success() {
            return Ok(());
        }
        // Only now: the directory usually exists.
        let Some((top, below)) = self.missing_parents(path).await? else {
            let why = belljar_spec::text::escape(first.stderr.trim_ascii());
            return Err(FileError::Inside { path: path.into(), why }.into());
        };
        let mut entries = directories_above(&below);
        entries.push((EntryKind::File, below));
        let second = self.unpack(&top, &entries, bytes, mode).await?;
        match second.success() {
            true => Ok(()),
            false => {
                let why = belljar_spec::text::escape(second.stderr.trim_ascii());
                Err(FileError::Inside { path: path.into(), why }.into())
            }
        }
    }

    /// Makes the directories above `path` that do not exist.
    pub(super) async fn make_parents(&self, path: &Path) -> Result<(), Error> {
        let Some((top, below)) = self.missing_parents(path).await? else { return Ok(()) };
        let made = self.unpack(&top, &directories_above(&below), &[], 0).await?;
        match made.success() {
            true => Ok(()),
            false => {
                let why = belljar_spec::text::escape(made.stderr.trim_ascii());
                Err(FileError::Inside { path: top.into(), why }.into())
            }
        }
    }

    /// Passes the content of a file on as it arrives. Links are followed inside the sandbox.
    pub async fn read_file_to(
        &self,
        path: &Path,
        mut sink: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<(), Error> {
        let mut current = path.to_owned();
        for _ in 0..MAX_LINKS {
            let mut reader = FileReader::new(current.as_path().into(), u64::MAX);
            let feed = |bytes: &[u8]| {
                reader.feed(bytes)?;
                let arrived = reader.take_content();
                sink(&arrived).map_err(Error::io("write the file's content"))
            };
            match self.read_with(&current, feed).await.and_then(|()| Ok(reader.finish()?))? {
                FileContent::Bytes(_) => return Ok(()),
                FileContent::LinkTo(target) => {
                    current = current.parent().unwrap_or(Path::new("/")).join(target);
                }
            }
        }
        Err(FileError::TooManyLinks { path: path.into() }.into())
    }

    /// The topmost directory above `path` that does not exist, and the rest of the path below it.
    async fn missing_parents(&self, path: &Path) -> Result<Option<(PathBuf, PathBuf)>, Error> {
        let mut missing = None;
        for parent in path.ancestors().skip(1) {
            if parent.as_os_str().is_empty() || self.metadata(parent).await?.is_some() {
                break;
            }
            missing = Some(parent);
        }
        let below = |top: &Path| path.strip_prefix(top).ok().map(Path::to_owned);
        Ok(missing.and_then(|top| Some((top.to_owned(), below(top)?))))
    }

    /// Unpacks an archive at `path`; the last entry gets the content.
    async fn unpack(
        &self,
        path: &Path,
        entries: &[(EntryKind, PathBuf)],
        content: &[u8],
        mode: u32,
    ) -> Result<Output, Error> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let modified = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        let mut archive = Vec::with_capacity(content.len() + 4096);
        for (kind, name) in entries {
            let path = name.as_os_str().as_bytes().to_vec();
            let (mode, size) = match kind {
                EntryKind::File => (mode & 0o777, content.len() as u64),
                _ => (DIRECTORY_MODE, 0),
            };
            Entry { kind: *kind, mode, path, size, modified }.write(&mut archive);
        }
        archive.extend_from_slice(content);
        Entry { kind: EntryKind::End, mode: 0, path: Vec::new(), size: 0, modified }
            .write(&mut archive);
        let (path, modes) = (path.into(), UnpackModes::Umask);
        let work = Work::Unpack { path, modes, read_only: ReadOnlyFiles::Replace };
        self.work(work).stdin(archive).output().await
    }

    /// See [`super::Sandbox::metadata`].
    pub async fn metadata(&self, path: &Path) -> Result<Option<FileInfo>, Error> {
        let listing = self.list(path, 0).await?;
        Ok(listing.top)
    }

    /// See [`super::Sandbox::list_dir`].
    pub async fn list_dir(&self, path: &Path) -> Result<Vec<DirEntry>, Error> {
        let listing = self.list(path, listing::MAX_ENTRIES).await?;
        match listing.top.map(|top| top.kind) {
            None => Err(FileError::NotFound { path: path.into() }.into()),
            Some(FileKind::Directory) => Ok(listing.entries),
            Some(_) => Err(FileError::NotADirectory { path: path.into() }.into()),
        }
    }

    /// Reads at most `limit` names; 0 for the path itself only.
    async fn list(&self, path: &Path, limit: usize) -> Result<Listing, Error> {
        let exec: Exec = self.work(Work::List { path: path.into() });
        let mut running = exec.spawn().await?;
        let mut listing = Listing::new(path.into(), limit);
        let stderr = super::copy::receive_stdout(&mut running, |bytes| listing.feed(bytes)).await?;
        match super::copy::failure(&mut running, stderr).await? {
            None => Ok(listing.finish()?),
            Some(why) => Err(FileError::Inside { path: path.into(), why }.into()),
        }
    }
}

/// The directories above a path that begins with the first one, which has no name of its own.
fn directories_above(below: &Path) -> Vec<(EntryKind, PathBuf)> {
    let above = below.ancestors().skip(1).map(|path| (EntryKind::Directory, path.to_owned()));
    let mut entries: Vec<(EntryKind, PathBuf)> = above.collect();
    entries.reverse();
    entries
}

impl super::Sandbox {
    /// Reads a file of at most [`DEFAULT_FILE_LIMIT`] bytes. Links are followed inside the sandbox. A relative path
    /// starts in the sandbox's working directory.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), belljar::Error> {
    /// let sandbox = belljar::Sandbox::builder().no_workspace().start().await?;
    /// sandbox.write_file("/tmp/notes/today.txt", "two words\n").await?;
    /// let counted = sandbox.exec(["wc", "-w", "/tmp/notes/today.txt"]).output().await?;
    /// assert!(counted.stdout_text().starts_with('2'));
    /// assert_eq!(sandbox.read_file("/tmp/notes/today.txt").await?, b"two words\n");
    /// assert_eq!(sandbox.list_dir("/tmp/notes").await?[0].name, "today.txt");
    /// assert!(!sandbox.exists("/tmp/none").await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn read_file(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        self.read_file_within(path, DEFAULT_FILE_LIMIT).await
    }

    /// The same with another limit. A larger file is [`FileError::TooLarge`], and nothing of it is kept.
    pub async fn read_file_within(
        &self,
        path: impl AsRef<Path>,
        limit: u64,
    ) -> Result<Vec<u8>, Error> {
        self.client.read_file(path.as_ref(), limit).await
    }

    /// Writes a file with mode 0644. The new file replaces an old one, or a link, in one step; missing directories
    /// are created.
    pub async fn write_file(
        &self,
        path: impl AsRef<Path>,
        bytes: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        self.write_file_with_mode(path, bytes, FILE_MODE).await
    }

    /// The same with other permission bits, such as 0o755; write permission of group and others is dropped.
    pub async fn write_file_with_mode(
        &self,
        path: impl AsRef<Path>,
        bytes: impl AsRef<[u8]>,
        mode: u32,
    ) -> Result<(), Error> {
        self.client.write_file(path.as_ref(), bytes.as_ref(), mode).await
    }

    /// The entries of a directory, in no order. A link to a directory is followed; links in it are not.
    pub async fn list_dir(&self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>, Error> {
        self.client.list_dir(path.as_ref()).await
    }

    /// What is at a path; `None` if nothing is. Links are followed.
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Option<FileInfo>, Error> {
        self.client.metadata(path.as_ref()).await
    }

    pub async fn exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        Ok(self.metadata(path).await?.is_some())
    }
}
