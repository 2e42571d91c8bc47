//! Makes whiteouts and opaque directories in the form that overlayfs reads.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use belljar_tree::{Dir, EntryKind};
use rustix::fs::{FileType, Mode, XattrFlags, fsetxattr, mknodat};

use super::cursor::{Cursor, Existing};
use super::entry_path::EntryPath;
use super::error::{UnpackError, UnpackProblem};
use super::options::{OverlayForm, UnpackReport};

/// Marks a directory as one with whiteouts that are files.
const HAS_XATTR_WHITEOUTS: &[u8] = b"x";
const OPAQUE: &[u8] = b"y";
const XATTR_WHITEOUT: &str = "user.overlay.whiteout";

/// Called once all entries are there.
pub(super) fn make(
    cursor: &mut Cursor<'_>,
    opaque: &[EntryPath],
    whiteouts: &[EntryPath],
    report: &mut UnpackReport,
) -> Result<(), UnpackError> {
    if opaque.is_empty() && whiteouts.is_empty() {
        return Ok(());
    }
    let hidden = Hidden {
        opaque: opaque.iter().map(EntryPath::names).collect(),
        whiteouts: whiteouts.iter().map(EntryPath::names).collect(),
    };
    // A directory below what the layer hides has nothing to take its mode from.
    cursor.forget_covered(|path| hidden.is_removed(path))?;
    for path in opaque {
        if !hidden.is_removed(path.names()) {
            let made = make_opaque(cursor, path, report);
            made.map_err(|problem| at(path, problem))?;
        }
    }
    for path in whiteouts {
        // Where everything around it is hidden, a whiteout hides nothing, and would be listed.
        let is_around = path.split().is_none_or(|(above, _)| hidden.is_emptied(above));
        if is_around {
            report.dropped_whiteouts += 1;
            continue;
        }
        let made = make_whiteout(cursor, path, report);
        made.map_err(|problem| at(path, problem))?;
    }
    Ok(())
}

/// All that one layer hides of those below it.
struct Hidden<'a> {
    opaque: BTreeSet<&'a [OsString]>,
    whiteouts: BTreeSet<&'a [OsString]>,
}

impl Hidden<'_> {
    /// Whether nothing of the layers below is left at a path.
    fn is_removed(&self, path: &[OsString]) -> bool {
        (0..path.len()).any(|length| self.opaque.contains(&path[..length]))
            || (1..=path.len()).any(|length| self.whiteouts.contains(&path[..length]))
    }

    /// Whether nothing of the layers below is left in a directory.
    fn is_emptied(&self, path: &[OsString]) -> bool {
        self.opaque.contains(path) || self.is_removed(path)
    }
}

fn at(path: &EntryPath, problem: UnpackProblem) -> UnpackError {
    let path = path.to_path();
    UnpackError::at(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()), problem)
}

fn make_opaque(
    cursor: &mut Cursor<'_>,
    path: &EntryPath,
    report: &mut UnpackReport,
) -> Result<(), UnpackProblem> {
    if path.names().is_empty() {
        report.hides_all_below = true;
        return Ok(());
    }
    let covers = cursor.lower().directory(path.names())?.is_some();
    let existing = cursor.enter_existing(path.names())?;
    match (existing, covers) {
        // A file of this layer hides what is below anyway.
        (Existing::NotDirectory, _) => Ok(()),
        (Existing::Missing, false) => Ok(()),
        (Existing::Directory, false) => Ok(()),
        (Existing::Missing, true) => {
            cursor.enter(path.names())?;
            mark_opaque(cursor, report)
        }
        (Existing::Directory, true) => mark_opaque(cursor, report),
    }
}

/// The directory that the cursor is in.
fn mark_opaque(cursor: &Cursor<'_>, report: &mut UnpackReport) -> Result<(), UnpackProblem> {
    let form = cursor.options().form;
    fsetxattr(cursor.current(), form.opaque_name(), OPAQUE, XattrFlags::empty())
        .map_err(UnpackProblem::system("mark a directory as opaque"))?;
    report.opaque_directories += 1;
    Ok(())
}

fn make_whiteout(
    cursor: &mut Cursor<'_>,
    path: &EntryPath,
    report: &mut UnpackReport,
) -> Result<(), UnpackProblem> {
    let Some((above, name)) = path.split() else { return Err(UnpackProblem::WhiteoutName) };
    let form = cursor.options().form;
    if cursor.lower().directory(above)?.is_none() {
        report.dropped_whiteouts += 1;
        return Ok(());
    }
    match cursor.enter_existing(above)? {
        Existing::NotDirectory => {
            report.dropped_whiteouts += 1;
            return Ok(());
        }
        Existing::Missing | Existing::Directory => {}
    }
    let parent = cursor.enter(above)?.dir;
    match parent.stat_if_exists(name)?.map(|found| found.kind()) {
        // The layer has something of its own there, which hides what is below, but for a directory, which
        // would be merged.
        Some(EntryKind::Directory) => {
            if cursor.lower().directory(path.names())?.is_some() {
                cursor.enter(path.names())?;
                mark_opaque(cursor, report)?;
            }
            Ok(())
        }
        Some(_) => Ok(()),
        None => {
            create(parent, name, form)?;
            report.whiteouts += 1;
            Ok(())
        }
    }
}

fn create(parent: &Dir, name: &OsStr, form: OverlayForm) -> Result<(), UnpackProblem> {
    let failed = UnpackProblem::system("make a whiteout");
    match form {
        OverlayForm::Trusted | OverlayForm::User => {
            mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0).map_err(failed)
        }
        OverlayForm::UserXattrWhiteouts => {
            let file = parent.create_file(name, 0o600)?;
            fsetxattr(&file, XATTR_WHITEOUT, OPAQUE, XattrFlags::empty()).map_err(&failed)?;
            fsetxattr(parent, form.opaque_name(), HAS_XATTR_WHITEOUTS, XattrFlags::empty())
                .map_err(failed)
        }
    }
}
