//! The directory that holds runs, keys and what is trusted.
//!
//! Opening it is on the way to every start, so it costs a few system calls and no more.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_spec::{RunId, env};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::writable_trees;

/// The layout of the directory that this build writes.
const FORMAT: u32 = 3;
/// The oldest layout that can be turned into this one.
const OLDEST_FORMAT: u32 = 1;
const FORMAT_FILE: &str = "format";
/// A format file that is being written.
const FORMAT_DRAFT: &str = ".format.";
const RUNS: &str = "runs";
const LIVE: &str = "live";
const BIN: &str = "bin";
const TRASH: &str = "trash";
const NAMES: &str = "names";
const PLACEHOLDERS: &str = "placeholders";
const APPLYING: &str = "applying";
const IMAGES: &str = "images";
/// Held while the layout changes or the ledger is made anew.
const LOCK: &str = "lock";
const LEDGER: &str = "ledger.db";
const KEY: &str = "key";
const PRIVATE: u32 = 0o700;

/// Belljar's home, checked and ready.
#[derive(Clone, Debug)]
pub struct Home {
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    #[error("belljar has no home directory: neither BELLJAR_HOME nor HOME is set; set one of them")]
    NoPlace,
    #[error("belljar's home \"{path}\" is a relative path; set {variable} to an absolute one", path = .path.display())]
    Relative { path: PathBuf, variable: &'static str },
    #[error("cannot make or open belljar's home {path}: {error}", path = .path.display())]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{path} is not a directory; set BELLJAR_HOME to another path", path = .path.display())]
    NoDirectory { path: PathBuf },
    #[error(
        "{path} belongs to user {owner} and belljar runs as user {user}: whoever owns it could \
         rewrite the records; set BELLJAR_HOME to a directory of your own", path = .path.display()
    )]
    OtherOwner { path: PathBuf, owner: u32, user: u32 },
    #[error(
        "others can write to {path} (mode {mode:03o}), so its records could not be trusted; run: \
         chmod go-w {path}", path = .path.display()
    )]
    WritableByOthers { path: PathBuf, mode: u32 },
    #[error(
        "{path} is on a network file system, whose locks do not tell which runs are alive; set \
         BELLJAR_HOME to a directory on a local disk", path = .path.display()
    )]
    NetworkFileSystem { path: PathBuf },
    #[error(
        "{path} holds other files (\"{found}\") and was not made by belljar; set BELLJAR_HOME to \
         an empty or a new directory", path = .path.display()
    )]
    Foreign { path: PathBuf, found: String },
    #[error(
        "{path} has format {found} and this belljar knows {FORMAT}: a newer belljar wrote it; use \
         that one, or set BELLJAR_HOME to another directory", path = .path.display()
    )]
    Newer { path: PathBuf, found: u32 },
    #[error(
        "{file} does not hold a format number; if this is belljar's home, write {FORMAT} into it",
        file = .path.join(FORMAT_FILE).display()
    )]
    BadFormat { path: PathBuf },
}

impl Home {
    /// `$BELLJAR_HOME`, else `$XDG_STATE_HOME/belljar`, else `~/.local/state/belljar`. Made if it is
    /// not there.
    pub fn open(env: &BTreeMap<OsString, OsString>) -> Result<Self, HomeError> {
        let path = locate(env)?;
        Self::open_at(path)
    }

    /// The home if there is one already; creates nothing.
    pub fn open_existing(env: &BTreeMap<OsString, OsString>) -> Option<Result<Self, HomeError>> {
        let path = locate(env).ok()?;
        path.join(FORMAT_FILE).exists().then(|| Self::open_at(path))
    }

    pub fn open_at(path: PathBuf) -> Result<Self, HomeError> {
        let home = Self { path };
        let directory = match home.open_directory() {
            Err(Errno::NOENT) => {
                let made =
                    std::fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(&home.path);
                made.map_err(|error| home.io(error))?;
                home.open_directory()
            }
            opened => opened,
        };
        let directory = match directory {
            Ok(directory) => directory,
            Err(Errno::NOTDIR) => return Err(HomeError::NoDirectory { path: home.path }),
            Err(errno) => return Err(home.io(errno.into())),
        };
        home.check_owner(directory.as_fd())?;
        home.check_file_system(directory.as_fd())?;
        home.check_format(directory.as_fd())?;
        for name in [RUNS, LIVE, BIN, TRASH] {
            match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(PRIVATE)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(home.io(errno.into())),
            }
        }
        let known = home.clone();
        belljar_bind::host_program::set_writable_trees(move || writable_trees::known(&known));
        Ok(home)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One directory for each run.
    pub fn runs(&self) -> PathBuf {
        self.path.join(RUNS)
    }

    /// One lock for each run that has not finished.
    pub fn live(&self) -> PathBuf {
        self.path.join(LIVE)
    }

    /// Copies of belljar that live runs were started with.
    pub fn bin(&self) -> PathBuf {
        self.path.join(BIN)
    }

    /// The store of images. Made when the first one comes in.
    pub fn images(&self) -> PathBuf {
        self.path.join(IMAGES)
    }

    /// Names of sandboxes that a process is looking for or starting, each a lock.
    pub fn names(&self) -> PathBuf {
        self.path.join(NAMES)
    }

    /// What is on its way out. A removal that was cut short is finished from here.
    pub fn trash(&self) -> PathBuf {
        self.path.join(TRASH)
    }

    /// The file that a process locks to apply or discard changes. Made if it is not there.
    pub fn open_apply_lock(&self) -> std::io::Result<OwnedFd> {
        let directory = self.applying();
        std::fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(&directory)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::open(directory.join("lock"), flags, Mode::from_raw_mode(0o600))?)
    }

    /// Whether no removal was cut short. What cannot be looked at counts as one.
    pub(crate) fn trash_is_empty(&self) -> bool {
        std::fs::read_dir(self.trash()).is_ok_and(|mut entries| entries.next().is_none())
    }

    /// What holds the place of missing files in trees that live runs can write, run by run.
    pub fn placeholders(&self) -> PathBuf {
        self.path.join(PLACEHOLDERS)
    }

    /// What is being taken over into real trees at this moment, and the lock for it. Made when it is needed.
    pub fn applying(&self) -> PathBuf {
        self.path.join(APPLYING)
    }

    /// The index over all runs.
    pub fn ledger_path(&self) -> PathBuf {
        self.path.join(LEDGER)
    }

    /// The key of the records' chains.
    pub fn key_path(&self) -> PathBuf {
        self.path.join(KEY)
    }

    /// Where the supervisor of a live run listens.
    pub fn socket_path(&self, id: &RunId) -> PathBuf {
        self.live().join(format!("{id}.sock"))
    }

    /// The liveness lock of a run: a file whose lock its supervisor holds.
    pub fn live_path(&self, id: &RunId) -> PathBuf {
        self.live().join(id.as_str())
    }

    pub fn run_dir(&self, id: &RunId) -> PathBuf {
        self.runs().join(id.as_str())
    }

    fn io(&self, error: io::Error) -> HomeError {
        HomeError::Io { path: self.path.clone(), error }
    }

    fn open_directory(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.path, flags, Mode::empty())
    }

    fn check_owner(&self, directory: BorrowedFd<'_>) -> Result<(), HomeError> {
        let stat = rustix::fs::fstat(directory).map_err(|errno| self.io(errno.into()))?;
        let user = rustix::process::geteuid().as_raw();
        if stat.st_uid != user {
            return Err(HomeError::OtherOwner {
                path: self.path.clone(),
                owner: stat.st_uid,
                user,
            });
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.intersects(Mode::WGRP | Mode::WOTH) {
            let mode = mode.bits() & 0o777;
            return Err(HomeError::WritableByOthers { path: self.path.clone(), mode });
        }
        Ok(())
    }

    #[cfg(target_os = "linux")]
    fn check_file_system(&self, directory: BorrowedFd<'_>) -> Result<(), HomeError> {
        let found = rustix::fs::fstatfs(directory).map_err(|errno| self.io(errno.into()))?;
        if found.f_type == rustix::fs::NFS_SUPER_MAGIC {
            return Err(HomeError::NetworkFileSystem { path: self.path.clone() });
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn check_file_system(&self, _: BorrowedFd<'_>) -> Result<(), HomeError> {
        Ok(())
    }

    fn check_format(&self, directory: BorrowedFd<'_>) -> Result<(), HomeError> {
        match self.read_format(directory)? {
            Some(FORMAT) => Ok(()),
            Some(OLDEST_FORMAT..FORMAT) => self.migrate(directory),
            Some(found) if found > FORMAT => {
                Err(HomeError::Newer { path: self.path.clone(), found })
            }
            Some(_) => Err(HomeError::BadFormat { path: self.path.clone() }),
            None => self.begin(directory),
        }
    }

    fn read_format(&self, directory: BorrowedFd<'_>) -> Result<Option<u32>, HomeError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(directory, FORMAT_FILE, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.io(errno.into())),
        };
        let mut text = String::new();
        let bad = || HomeError::BadFormat { path: self.path.clone() };
        std::fs::File::from(file).take(16).read_to_string(&mut text).map_err(|_| bad())?;
        text.trim().parse().map(Some).map_err(|_| bad())
    }

    /// Only the number changes. Format 1 had neither a ledger nor a trash; its runs have their `run.json`, which is read
    /// where the ledger has no row. Format 2 had other names in its records, which are renamed when they are read.
    fn migrate(&self, directory: BorrowedFd<'_>) -> Result<(), HomeError> {
        let _lock = self.lock().map_err(|error| self.io(error))?;
        match self.read_format(directory)? {
            // Another process has done it while this one waited.
            Some(FORMAT) => Ok(()),
            Some(OLDEST_FORMAT..FORMAT) => {
                self.write_format(directory).map_err(|error| self.io(error))
            }
            Some(found) => Err(HomeError::Newer { path: self.path.clone(), found }),
            None => Err(HomeError::BadFormat { path: self.path.clone() }),
        }
    }

    /// Waits until no other process changes the layout. Held until the file is closed.
    pub(crate) fn lock(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::open(self.path.join(LOCK), flags, Mode::from_raw_mode(0o600))?;
        rustix::io::retry_on_intr(|| {
            rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
        })?;
        Ok(lock)
    }

    /// Writes the format into a directory that is empty, or that another belljar has just made.
    fn begin(&self, directory: BorrowedFd<'_>) -> Result<(), HomeError> {
        for entry in std::fs::read_dir(&self.path).map_err(|error| self.io(error))? {
            let name = entry.map_err(|error| self.io(error))?.file_name();
            let ours = [RUNS, LIVE, BIN, TRASH, LOCK, FORMAT_FILE]
                .iter()
                .any(|own| name == OsStr::new(own))
                || is_draft(&name);
            if !ours && self.read_format(directory)?.is_some() {
                return self.check_format(directory); // another process has made it a home, and uses it
            }
            if !ours {
                let found = belljar_spec::text::escape(name.as_bytes());
                return Err(HomeError::Foreign { path: self.path.clone(), found });
            }
        }
        let lock = self.lock().map_err(|error| self.io(error))?;
        if self.read_format(directory)?.is_none() {
            return self.write_format(directory).map_err(|error| self.io(error));
        }
        // Another process has done it while this one waited.
        drop(lock);
        self.check_format(directory)
    }

    /// By rename, so that no process reads half of it. Under the lock: a draft that is there was left by
    /// a process that was killed.
    fn write_format(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if is_draft(&entry.file_name()) {
                std::fs::remove_file(entry.path())?;
            }
        }
        // Threads of one process may come here at the same time.
        static DRAFTS: AtomicU64 = AtomicU64::new(0);
        let count = DRAFTS.fetch_add(1, Ordering::Relaxed);
        let process = rustix::process::getpid().as_raw_nonzero();
        let draft = format!("{FORMAT_DRAFT}{process}.{count}");
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, &draft, flags, Mode::from_raw_mode(0o600))?;
        let mut file = std::fs::File::from(file);
        writeln!(file, "{FORMAT}")?;
        file.sync_all()?;
        rustix::fs::renameat(directory, &draft, directory, FORMAT_FILE)?;
        Ok(())
    }
}

fn is_draft(name: &OsStr) -> bool {
    name.as_bytes().starts_with(FORMAT_DRAFT.as_bytes())
}

fn locate(env: &BTreeMap<OsString, OsString>) -> Result<PathBuf, HomeError> {
    let set = |name: &str| env.get(OsStr::new(name)).filter(|value| !value.is_empty());
    if let Some(home) = set(env::HOME) {
        let path = PathBuf::from(home);
        return if path.is_absolute() {
            Ok(path)
        } else {
            Err(HomeError::Relative { path, variable: env::HOME })
        };
    }
    // The XDG rule: a relative path there is as good as none.
    let state = set("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = match state {
        Some(state) => state,
        None => {
            let user = PathBuf::from(set("HOME").ok_or(HomeError::NoPlace)?);
            if !user.is_absolute() {
                return Err(HomeError::Relative { path: user, variable: "HOME" });
            }
            user.join(".local/state")
        }
    };
    Ok(state.join("belljar"))
}
