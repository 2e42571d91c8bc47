//! Lists the runs of a home and finds one by name or id.
//!
//! Three places know of a run: `live/` while its supervisor lives, `runs/` until it is removed, and the
//! ledger. The lock in `live/` alone decides what is alive; the ledger answers fast, and where it has no row
//! the run's own record does.

mod find;
mod info;
pub mod life;
mod summary;
pub mod trash;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use belljar_spec::RunId;

pub use find::{FindError, find};
pub use info::RunInfo;
pub(crate) use info::kept;
pub use life::Life;
pub(crate) use summary::Summary;

use crate::home::Home;
use crate::ledger::{Filter, Ledger, LedgerError};

/// Which runs to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Live,
    All,
}

#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("cannot read the directory {}", .path.display())]
    Directory {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
}

/// Newest first.
pub fn list(home: &Home, which: Which) -> Result<Vec<RunInfo>, ListError> {
    // Before the ledger and `runs/`: a run that ends meanwhile is then found there.
    let live = names(home.live())?;
    let mut found = match which {
        // The lock and the run's record are enough: control needs no ledger.
        Which::Live => {
            let alive = live.iter().filter_map(|id| Some((id, life::is_alive(home, id)?)));
            let runs =
                alive.map(|(id, state)| RunInfo::from_directory(home, id, Life::Live(state)));
            runs.flatten().collect()
        }
        Which::All => all(home, Ledger::open_to_read(home)?.as_ref(), &live)?,
    };
    if which == Which::Live {
        found.retain(RunInfo::is_live);
    }
    found.sort_unstable_by_key(|info| std::cmp::Reverse(info.id));
    Ok(found)
}

/// The run that started last.
pub fn newest(home: &Home) -> Result<Option<RunInfo>, ListError> {
    let ledger = Ledger::open_to_read(home)?;
    let (ids, _) = every_id(home, ledger.as_ref())?;
    // An id that the ledger has may be that of a removed run.
    for id in ids.iter().rev() {
        if let Some(found) = info(home, ledger.as_ref(), id)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn all(
    home: &Home,
    ledger: Option<&Ledger>,
    live: &BTreeSet<RunId>,
) -> Result<Vec<RunInfo>, ListError> {
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    let removed = trash::removed(home);
    let rows = ledger.map(|ledger| ledger.list(&Filter::default())).transpose()?;
    for row in rows.into_iter().flatten().filter(|row| !removed.contains(&row.id)) {
        known.insert(row.id);
        // A stopped run has no entry, unless the end of its supervisor is a moment away.
        let life = match row.state.is_live() || live.contains(&row.id) {
            true => life::of(home, &row.id),
            false => Life::Over,
        };
        found.push(RunInfo::from_row(home, row, life));
    }
    let directories = names(home.runs())?;
    for id in directories.union(live).filter(|id| !known.contains(*id)) {
        // It may have begun after `live/` was read.
        found.extend(RunInfo::from_directory(home, id, life::of(home, id)));
    }
    Ok(found)
}

/// One run, if there is one of that id.
pub(crate) fn info(
    home: &Home,
    ledger: Option<&Ledger>,
    id: &RunId,
) -> Result<Option<RunInfo>, LedgerError> {
    let life = life::of(home, id); // before the row: what ends meanwhile has its row by then
    let row = ledger.map(|ledger| ledger.get(id)).transpose()?.flatten();
    Ok(match row {
        Some(_) if trash::removed(home).contains(id) => None,
        Some(row) => Some(RunInfo::from_row(home, row, life)),
        None => RunInfo::from_directory(home, id, life),
    })
}

/// Every id that any of the three places knows, and those that the ledger does not.
fn every_id(
    home: &Home,
    ledger: Option<&Ledger>,
) -> Result<(BTreeSet<RunId>, Vec<RunId>), ListError> {
    let mut ids = names(home.live())?;
    ids.extend(names(home.runs())?);
    let rows = ledger.map(Ledger::ids).transpose()?;
    let rows: BTreeSet<RunId> = rows.into_iter().flatten().collect();
    let without_row = ids.difference(&rows).copied().collect();
    ids.extend(rows);
    Ok((ids, without_row))
}

/// The runs that have a directory.
pub fn run_directories(home: &Home) -> io::Result<BTreeSet<RunId>> {
    ids_in(&home.runs())
}

/// The runs that have a liveness lock, be it a dead one's.
pub fn live_ids(home: &Home) -> io::Result<BTreeSet<RunId>> {
    ids_in(&home.live())
}

fn names(path: PathBuf) -> Result<BTreeSet<RunId>, ListError> {
    ids_in(&path).map_err(|error| ListError::Directory { path, error })
}

/// Names that are no ids (sockets, drafts) are not runs.
fn ids_in(directory: &std::path::Path) -> io::Result<BTreeSet<RunId>> {
    let mut ids = BTreeSet::new();
    for entry in std::fs::read_dir(directory)? {
        ids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RunId>().ok()));
    }
    Ok(ids)
}
