//! What holds the place of files that are missing in a writable tree, so that they can be covered there.
//!
//! Each is written down in belljar's home before it is made, run by run, and removed when no run needs it any
//! more: unlinking it would take the cover off in another run's sandbox. Whatever is found in its place
//! then, and is not what was put there, stays.

mod note;
mod stand;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use belljar_spec::later::StandIn;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use self::note::{Entry, Note};
use self::stand::{make, remove, stands};

#[derive(Debug, thiserror::Error)]
pub enum PlaceholderError {
    #[error("cannot keep the list of placeholders in {}", .path.display())]
    List {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(
        "cannot protect {} against being made by the run; use an overlay workspace, or say --allow-control {}",
        .path.display(), .name.display()
    )]
    Make {
        path: PathBuf,
        name: PathBuf,
        #[source]
        error: Errno,
    },
    #[error(
        "{} may not be written, but the run could change that: what executes later cannot be kept out of it; \
         make it writable (chmod u+w), or use an overlay or ro workspace",
        .path.display()
    )]
    Closed { path: PathBuf },
    #[error("cannot remove {}, which only held the place of a file; remove it by hand", .path.display())]
    Remove {
        path: PathBuf,
        #[source]
        error: Errno,
    },
}

/// Something that has to be there, in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) path: PathBuf,
    pub(crate) stand_in: StandIn,
}

/// Sees to it that all of it is there, whether it was before or not, until the run is released. Returns what is:
/// where nobody can make anything, nothing needs to be.
pub(crate) fn hold(
    list: &Path,
    run: &str,
    tree: &Path,
    wanted: &[Wanted],
) -> Result<Vec<PathBuf>, PlaceholderError> {
    let failed = |error| PlaceholderError::List { path: list.to_owned(), error };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(list).map_err(failed)?;
    let _lock = lock(list).map_err(failed)?;
    let others = others(list, run).map_err(failed)?;
    let note = Note::of(list, run);
    let (there, missing): (Vec<&Wanted>, Vec<&Wanted>) =
        wanted.iter().partition(|wanted| stands(&tree.join(&wanted.path)));
    let planned = missing.iter().map(|wanted| Entry::planned(tree.join(&wanted.path)));
    let shared =
        there.iter().filter_map(|wanted| others.get(&Entry::planned(tree.join(&wanted.path))));
    let entries: Vec<Entry> = planned.chain(shared.cloned()).collect();
    if !entries.is_empty() {
        note.add(&entries).map_err(failed)?;
    }
    let mut held: Vec<PathBuf> = there.iter().map(|wanted| wanted.path.clone()).collect();
    let mut made = Vec::new();
    for wanted in missing {
        let path = tree.join(&wanted.path);
        let name = wanted.path.clone();
        match make(&path, wanted.stand_in) {
            Ok(None) => {}
            Err(Errno::EXIST) => held.push(name), // somebody on the host was faster
            Ok(Some(inode)) => {
                made.push(Entry { path, inode: Some(inode) });
                held.push(name);
            }
            Err(Errno::ACCESS) => {
                let path = path.parent().unwrap_or(tree).to_owned();
                return Err(PlaceholderError::Closed { path });
            }
            Err(error) => return Err(PlaceholderError::Make { path, name, error }),
        }
    }
    if !made.is_empty() {
        note.add(&made).map_err(failed)?;
    }
    Ok(held)
}

/// Removes what this run alone needed. Nothing to remove is a success.
pub fn release(list: &Path, run: &str) -> Result<(), PlaceholderError> {
    let failed = |error| PlaceholderError::List { path: list.to_owned(), error };
    let note = Note::of(list, run);
    if !note.exists() {
        return Ok(());
    }
    let _lock = lock(list).map_err(failed)?;
    let others = others(list, run).map_err(failed)?;
    let mut left = None;
    // The last word on a path comes last, and what lies deeper goes first.
    let mut entries = note.read().map_err(failed)?;
    entries.sort_by(|a, b| b.path.cmp(&a.path).then(b.inode.cmp(&a.inode)));
    entries.dedup_by(|later, first| later.path == first.path);
    for entry in entries.iter().filter(|entry| !others.contains(*entry)) {
        if let Err(error) = remove(&entry.path, entry.inode) {
            left = Some(PlaceholderError::Remove { path: entry.path.clone(), error });
        }
    }
    match left {
        None => note.forget().map_err(failed),
        Some(error) => Err(error),
    }
}

/// Everything that holds a place at this moment, for any run.
pub fn all(list: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let entries = others(list, "")?;
    Ok(entries.into_iter().map(|entry| entry.path).collect())
}

/// Whether a path only holds a place: there is no such file.
pub fn holds_a_place(path: &Path) -> bool {
    let stat = rustix::fs::statat(rustix::fs::CWD, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| stand::is_held(&stat))
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

/// By path. A run that has ended without being released still counts: whoever releases it last removes it.
fn others(list: &Path, run: &str) -> io::Result<BTreeSet<Entry>> {
    let mut all = BTreeSet::new();
    for other in runs(list)?.iter().filter(|other| *other != run) {
        // The last word on a path is the one that counts.
        for entry in Note::of(list, other).read()? {
            all.replace(entry);
        }
    }
    Ok(all)
}

fn lock(list: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = File::from(rustix::fs::open(list, flags, Mode::empty())?);
    rustix::io::retry_on_intr(|| flock(&directory, FlockOperation::LockExclusive))?;
    Ok(directory)
}

#[cfg(test)]
mod tests;
