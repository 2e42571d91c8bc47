//! Removes the placeholder files that earlier versions put into writable trees for missing control files.
//!
//! Each was recorded in belljar's home before it was made, in one file for each run. A file that was replaced
//! since then stays. Nothing is recorded any more; the list is removed with its last entry.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use belljar_spec::autorun::{GIT_DIRECTORY, StandIn};
use belljar_tree::{Access, Dir, EntryKind, FinalLink, Identity, Metadata};
use rustix::io::Errno;

/// The mode of a file that only held a place.
const FILE_MODE: u32 = 0o444;

#[derive(Debug, thiserror::Error)]
pub enum PlaceholderError {
    #[error("cannot read the list of placeholders in {}", .path.display())]
    List {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot remove the placeholder {}; remove it by hand", .path.display())]
    Remove {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

/// One placeholder, with its device and inode where these were known.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlaceholderEntry {
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

/// Removes what is written down for a run that has ended, and the list when it is empty.
pub fn release(list: &Path, run: &str) -> Result<(), PlaceholderError> {
    let failed = |error| PlaceholderError::List { path: list.to_owned(), error };
    let note = list.join(run);
    let mut entries = match std::fs::read(&note) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        bytes => read_entries(&bytes.map_err(failed)?),
    };
    // The newest entry of a path comes last, and deeper paths go first.
    entries.sort_by(|a, b| b.cmp(a));
    entries.dedup_by(|next, first| next.path == first.path);
    let mut left = None;
    for PlaceholderEntry { path, inode } in entries {
        if let Err(error) = remove(&path, inode) {
            left = Some(PlaceholderError::Remove { path, error });
        }
    }
    if let Some(error) = left {
        return Err(error);
    }
    std::fs::remove_file(&note).map_err(failed)?;
    let _ = std::fs::remove_dir(list); // not while it holds another
    Ok(())
}

/// Runs that have something written down.
pub fn runs(list: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.collect())
}

/// Path and numbers, each with a NUL behind it. What follows the last NUL is an incomplete entry.
fn read_entries(bytes: &[u8]) -> Vec<PlaceholderEntry> {
    let whole = bytes.iter().rposition(|byte| *byte == 0).map_or(&bytes[..0], |end| &bytes[..end]);
    let fields: Vec<&[u8]> = whole.split(|byte| *byte == 0).collect();
    let pairs = fields.chunks_exact(2).filter(|pair| !pair[0].is_empty());
    let entries = pairs.map(|pair| PlaceholderEntry {
        path: PathBuf::from(OsString::from_vec(pair[0].to_vec())),
        inode: numbers(pair[1]),
    });
    entries.collect()
}

fn numbers(text: &[u8]) -> Option<(u64, u64)> {
    let (device, inode) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    Some((device.parse().ok()?, inode.parse().ok()?))
}

/// Removes it if it is what was made, and nothing else ever. Never through a link: the tree is one that runs can write.
fn remove(path: &Path, made: Option<(u64, u64)>) -> Result<(), Errno> {
    let gone = |error| match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Ok(()),
        error => Err(error),
    };
    let (parent, name) = match parent_of(path) {
        Ok(parent) => parent,
        Err(error) => return gone(error),
    };
    let found = match parent.stat(name) {
        Ok(found) => found,
        Err(error) => return gone(error.errno()),
    };
    let Identity { device, inode } = found.identity();
    if made.is_some_and(|made| made != (device, inode)) {
        return Ok(());
    }
    let removed = match found.kind() {
        // A socket that other users could connect to is not a placeholder.
        EntryKind::Socket if found.mode() == 0 => parent.unlink(name).map_err(Errno::from),
        EntryKind::Directory => parent.remove_dir(name).map_err(Errno::from), // only an empty one goes
        EntryKind::File if is_untouched(&parent, name, &found) => {
            parent.unlink(name).map_err(Errno::from)
        }
        _ => return Ok(()),
    };
    match removed {
        Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(error) => gone(error),
    }
}

/// Still holds what was put into it.
fn is_untouched(parent: &Dir, name: &OsStr, found: &Metadata) -> bool {
    let mut known = GIT_DIRECTORY.iter().filter_map(|entry| match entry.stand_in {
        Some(StandIn::File(content)) => Some(content),
        _ => None,
    });
    if found.mode() & 0o777 != FILE_MODE {
        return false;
    }
    let Ok(file) = parent.open_file(name) else { return false };
    let is_same = Metadata::of(&file).is_ok_and(|now| now.identity() == found.identity());
    let mut content = String::new();
    let read = file.take(16).read_to_string(&mut content);
    is_same && read.is_ok() && (content.is_empty() || known.any(|known| known == content))
}

/// No link is followed in any part of the path.
fn parent_of(path: &Path) -> Result<(Dir, &OsStr), Errno> {
    let (parent, name) =
        (path.parent().ok_or(Errno::INVAL)?, path.file_name().ok_or(Errno::INVAL)?);
    let beneath = parent.strip_prefix("/").map_err(|_| Errno::INVAL)?;
    let root = Dir::open_for("/", FinalLink::Refuse, Access::Lookup)?;
    Ok((root.open_dir_for(beneath, Access::Lookup)?, name))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn what_was_put_there_goes_and_everything_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        let list = at("placeholders");
        fs::create_dir(&list).unwrap();
        let mut note = Vec::new();
        for name in ["held", "replaced", "planned"] {
            rustix::fs::mknodat(CWD, at(name), FileType::Socket, Mode::empty(), 0).unwrap();
            let meta = fs::symlink_metadata(at(name)).unwrap();
            note.extend(at(name).into_os_string().into_vec());
            note.push(0);
            if name != "planned" {
                note.extend(format!("{} {}", meta.dev(), meta.ino()).into_bytes());
            }
            note.push(0);
        }
        note.extend(b"/cut off");
        fs::write(list.join("run"), &note).unwrap();
        fs::write(at("new"), "the user's").unwrap();
        fs::rename(at("new"), at("replaced")).unwrap();
        assert_eq!(runs(&list).unwrap(), ["run"]);
        release(&list, "another").unwrap();
        assert!(at("held").symlink_metadata().is_ok(), "the control");
        release(&list, "run").unwrap();
        for gone in ["held", "planned", "placeholders"] {
            assert!(at(gone).symlink_metadata().is_err(), "{gone}");
        }
        assert_eq!(fs::read_to_string(at("replaced")).unwrap(), "the user's");
        release(&list, "run").unwrap();
    }
}
