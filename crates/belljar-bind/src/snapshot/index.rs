//! Records what a snapshot was made of, inode by inode, for the next snapshot.
//!
//! Written and read by belljar alone, beside the snapshot, where no run can reach. An entry names the number of its
//! directory, and not its path: paths can be longer than all other data.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar_spec::Moment;
use belljar_tree::{Metadata, Timestamp};

const MAGIC: &[u8; 8] = b"bjsnap1\n";
/// Everything of an entry but its name.
const FIXED: usize = 88;
/// The maximum memory for the entries of the snapshot before, whatever a run made.
const MAX_REMEMBERED: usize = 256 << 20;
/// What one takes, but for its name: a table has up to as much room again, and a name is an allocation.
const REMEMBERED: usize = 2 * size_of::<(Box<[u8]>, IndexEntry)>() + 32;

/// The root of a snapshot.
pub(super) const ROOT: u64 = 0;
/// What the root is in.
pub(super) const NOWHERE: u64 = u64::MAX - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    Directory,
    File,
    Link,
    Fifo,
    Socket,
    /// What overlayfs has for something that was removed.
    Whiteout,
}

impl EntryKind {
    const ALL: [Self; 6] =
        [Self::Directory, Self::File, Self::Link, Self::Fifo, Self::Socket, Self::Whiteout];

    /// `None`: of a kind that is not copied.
    pub(super) fn of(found: &Metadata) -> Option<Self> {
        use belljar_tree::EntryKind as Kind;
        match found.kind() {
            Kind::Directory => Some(Self::Directory),
            Kind::File => Some(Self::File),
            Kind::Symlink => Some(Self::Link),
            Kind::Fifo => Some(Self::Fifo),
            Kind::Socket => Some(Self::Socket),
            Kind::CharacterDevice if found.device_number() == 0 => Some(Self::Whiteout),
            Kind::CharacterDevice | Kind::BlockDevice | Kind::Unknown => None,
        }
    }
}

/// The inode that a file was copied from, as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Print {
    device: u64,
    inode: u64,
    size: u64,
    modified: Moment,
    pub(super) changed: Moment,
}

impl Print {
    pub(super) fn of(found: &Metadata) -> Self {
        let moment = |Timestamp { secs, nanos }| Moment { secs, nanos };
        let belljar_tree::Identity { device, inode } = found.identity();
        Self {
            device,
            inode,
            size: found.size(),
            modified: moment(found.modified()),
            changed: moment(found.changed()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) kind: EntryKind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Of its extended attributes.
    pub(super) attributes: u64,
    pub(super) print: Print,
    /// A file only: what was copied is what the inode held then.
    pub(super) is_settled: bool,
    /// A directory only: whether it counts by itself, and not only by what is in it.
    pub(super) counts: bool,
    /// A directory only.
    pub(super) number: u64,
}

impl IndexEntry {
    pub(super) fn of(kind: EntryKind, found: &Metadata) -> Self {
        Self {
            kind,
            mode: found.as_stat().st_mode,
            uid: found.uid(),
            gid: found.gid(),
            attributes: 0,
            print: Print::of(found),
            is_settled: false,
            counts: false,
            number: 0,
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.print.size
    }

    /// But for what is in it, and for its times.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let about = |it: &Self| (it.kind, it.mode, it.uid, it.gid, it.attributes);
        about(self) == about(other)
    }

    fn to_bytes(self, parent: u64, name: &OsStr) -> Vec<u8> {
        let name = name.as_bytes();
        let mut bytes = Vec::with_capacity(FIXED + name.len());
        let flags = u8::from(self.is_settled) | u8::from(self.counts) << 1;
        let Print { device, inode, size, modified, changed } = self.print;
        for number in [parent, self.number, self.attributes, device, inode, size] {
            bytes.extend(number.to_le_bytes());
        }
        for moment in [modified, changed] {
            bytes.extend(moment.secs.to_le_bytes());
            bytes.extend(moment.nanos.to_le_bytes());
        }
        for number in [self.mode, self.uid, self.gid] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend([self.kind as u8, flags]);
        bytes.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(name);
        bytes
    }
}

/// Beside a snapshot.
pub fn index_of(snapshot: &Path) -> PathBuf {
    let mut name = OsString::from(snapshot);
    name.push(".index");
    PathBuf::from(name)
}

#[derive(Debug)]
pub(super) struct IndexWriter {
    file: BufWriter<File>,
    written: u64,
}

impl IndexWriter {
    pub(super) fn create(path: &Path, begun: Moment) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        let mut file = BufWriter::with_capacity(1 << 16, file);
        file.write_all(MAGIC)?;
        file.write_all(&begun.secs.to_le_bytes())?;
        file.write_all(&begun.nanos.to_le_bytes())?;
        Ok(Self { file, written: 0 })
    }

    pub(super) fn add(&mut self, parent: u64, name: &OsStr, entry: IndexEntry) -> io::Result<()> {
        self.written += 1;
        self.file.write_all(&entry.to_bytes(parent, name))
    }

    /// Says how many there are: one that was cut is not believed.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.file.write_all(&u64::MAX.to_le_bytes())?;
        self.file.write_all(&self.written.to_le_bytes())?;
        self.file.flush()
    }
}

/// Entries of one directory.
pub(super) type Names = HashMap<Box<[u8]>, IndexEntry>;

/// Everything that a snapshot was made of.
#[derive(Debug)]
pub(super) struct Index {
    /// A file that changed then or afterwards may have been copied before it did.
    pub(super) begun: Moment,
    directories: HashMap<u64, Names>,
}

/// The snapshot before.
#[derive(Debug)]
pub struct Previous {
    pub(super) tree: PathBuf,
    pub(super) index: Index,
}

impl Previous {
    /// `None` where there is none, or none that can be read, or one of more entries than are remembered: then everything
    /// is copied, and counts as changed.
    pub fn open(tree: &Path) -> Option<Self> {
        let index = Index::read(&index_of(tree), MAX_REMEMBERED).ok()?;
        Some(Self { tree: tree.to_owned(), index })
    }
}

impl Index {
    /// Uses at most `limit` bytes of memory.
    pub(super) fn read(path: &Path, limit: usize) -> io::Result<Self> {
        let mut file = BufReader::with_capacity(1 << 16, File::open(path)?);
        let cut = || io::Error::from(io::ErrorKind::InvalidData);
        if read_array::<8>(&mut file)? != *MAGIC {
            return Err(cut());
        }
        let begun = read_moment(&mut file)?;
        let mut directories: HashMap<u64, Names> = HashMap::new();
        let mut read = 0;
        let mut room = limit;
        loop {
            let parent = read_number(&mut file)?;
            if parent == u64::MAX {
                break;
            }
            let (name, entry) = read_entry(&mut file)?.ok_or_else(cut)?;
            // Each can be the only one of its directory, which has a separate table then.
            let cost = REMEMBERED + name.len() + size_of::<Names>();
            room = room.checked_sub(cost).ok_or(io::ErrorKind::OutOfMemory)?;
            directories.entry(parent).or_default().insert(name, entry);
            read += 1;
        }
        match read_number(&mut file)? == read {
            true => Ok(Self { begun, directories }),
            false => Err(cut()),
        }
    }

    pub(super) fn take(&mut self, directory: u64) -> Names {
        self.directories.remove(&directory).unwrap_or_default()
    }

    /// How many paths go with one that is there no more.
    pub(super) fn count_removed(&mut self, entry: &IndexEntry) -> u64 {
        let mut count = 0;
        let mut pending = vec![*entry];
        while let Some(entry) = pending.pop() {
            if entry.kind == EntryKind::Directory {
                pending.extend(self.take(entry.number).into_values());
                count += u64::from(entry.counts);
            } else {
                count += 1;
            }
        }
        count
    }
}

/// How many entries a snapshot has.
pub(super) fn count_of(index: &Path) -> io::Result<u64> {
    let mut file = File::open(index)?;
    let cut = || io::Error::from(io::ErrorKind::InvalidData);
    if read_array::<8>(&mut file)? != *MAGIC {
        return Err(cut());
    }
    file.seek(SeekFrom::End(-16))?;
    match read_number(&mut file)? == u64::MAX {
        true => read_number(&mut file),
        false => Err(cut()),
    }
}

fn read_array<const LENGTH: usize>(file: &mut impl Read) -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_number(file: &mut impl Read) -> io::Result<u64> {
    read_array(file).map(u64::from_le_bytes)
}

fn read_half(file: &mut impl Read) -> io::Result<u32> {
    read_array(file).map(u32::from_le_bytes)
}

fn read_moment(file: &mut impl Read) -> io::Result<Moment> {
    Ok(Moment { secs: read_array(file).map(i64::from_le_bytes)?, nanos: read_half(file)? })
}

/// Without the number of its directory. `None`: not one that was ever written.
fn read_entry(file: &mut impl Read) -> io::Result<Option<(Box<[u8]>, IndexEntry)>> {
    let number = read_number(file)?;
    let attributes = read_number(file)?;
    let print = Print {
        device: read_number(file)?,
        inode: read_number(file)?,
        size: read_number(file)?,
        modified: read_moment(file)?,
        changed: read_moment(file)?,
    };
    let (mode, uid, gid) = (read_half(file)?, read_half(file)?, read_half(file)?);
    let [kind, flags] = read_array(file)?;
    let mut name = vec![0; usize::from(u16::from_le_bytes(read_array(file)?))];
    file.read_exact(&mut name)?;
    let Some(kind) = EntryKind::ALL.into_iter().find(|known| *known as u8 == kind) else {
        return Ok(None);
    };
    let (is_settled, counts) = (flags & 1 != 0, flags & 2 != 0);
    let entry = IndexEntry { kind, mode, uid, gid, attributes, print, is_settled, counts, number };
    Ok(Some((name.into_boxed_slice(), entry)))
}
