//! What an entry of a tree is, as `lstat` reports it, in types that are the same on every system.

use std::os::fd::AsFd;

use rustix::fs::{FileType, Stat, Timespec, Timestamps, fstat};
use rustix::io::Errno;

/// What kind of entry a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
    /// The file system did not report it; `stat` does.
    Unknown,
}

impl EntryKind {
    pub(crate) fn of(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice => Self::CharacterDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::Unknown => Self::Unknown,
        }
    }

    /// With its article, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Directory => "a directory",
            Self::Symlink => "a symbolic link",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::CharacterDevice | Self::BlockDevice => "a device",
            Self::Unknown => "an entry of unknown kind",
        }
    }
}

/// Device and inode: two names with the same identity are one file, as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
}

/// A moment since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp {
    pub secs: i64,
    pub nanos: u32,
}

/// The result of `stat`. Never that of a link's target.
#[derive(Clone, Debug)]
pub struct Metadata {
    stat: Stat,
}

// The fields of `stat` differ in width between systems.
#[allow(clippy::unnecessary_cast, reason = "not unnecessary on every system")]
impl Metadata {
    pub fn from_stat(stat: Stat) -> Self {
        Self { stat }
    }

    /// Of what is open.
    pub fn of(open: impl AsFd) -> Result<Self, Errno> {
        Ok(Self { stat: fstat(open)? })
    }

    pub fn kind(&self) -> EntryKind {
        EntryKind::of(FileType::from_raw_mode(self.stat.st_mode))
    }

    pub fn is_file(&self) -> bool {
        self.kind() == EntryKind::File
    }

    pub fn is_dir(&self) -> bool {
        self.kind() == EntryKind::Directory
    }

    pub fn is_symlink(&self) -> bool {
        self.kind() == EntryKind::Symlink
    }

    pub fn identity(&self) -> Identity {
        Identity { device: self.stat.st_dev as u64, inode: self.stat.st_ino as u64 }
    }

    /// In bytes, with holes.
    pub fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    /// What it takes on disk.
    pub fn disk_bytes(&self) -> u64 {
        u64::try_from(self.stat.st_blocks).unwrap_or(0).saturating_mul(512)
    }

    /// The permission bits and setuid, setgid, sticky.
    pub fn mode(&self) -> u32 {
        self.stat.st_mode as u32 & 0o7777
    }

    pub fn uid(&self) -> u32 {
        self.stat.st_uid
    }

    pub fn gid(&self) -> u32 {
        self.stat.st_gid
    }

    /// How many names it has.
    pub fn links(&self) -> u64 {
        self.stat.st_nlink as u64
    }

    /// Of a device: which one. Overlayfs marks a removed name with the character device 0.
    pub fn device_number(&self) -> u64 {
        self.stat.st_rdev as u64
    }

    pub fn modified(&self) -> Timestamp {
        Timestamp { secs: self.stat.st_mtime as i64, nanos: self.stat.st_mtime_nsec as u32 }
    }

    /// When anything of the inode changed last. Nobody can set this one.
    pub fn changed(&self) -> Timestamp {
        Timestamp { secs: self.stat.st_ctime as i64, nanos: self.stat.st_ctime_nsec as u32 }
    }

    /// Both times that can be set, for `set_times`.
    pub fn times(&self) -> Timestamps {
        let time = |secs, nanos| Timespec { tv_sec: secs, tv_nsec: nanos };
        Timestamps {
            last_access: time(self.stat.st_atime as _, self.stat.st_atime_nsec as _),
            last_modification: time(self.stat.st_mtime as _, self.stat.st_mtime_nsec as _),
        }
    }

    pub fn as_stat(&self) -> &Stat {
        &self.stat
    }
}
