//! Finds a run by an id, a prefix of one, or a name.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use belljar_spec::text::escape;
use belljar_spec::{Lookup, MIN_QUERY, RunId, look_up, may_be_id};

use super::{ListError, RunInfo, Summary, every_id, ids_in, info};
use crate::home::Home;
use crate::ledger::{Ledger, LedgerError};

/// How long a name that several live runs seem to have is looked at again.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error(
        "no run with the name or id \"{}\" (ids need {MIN_QUERY} or more characters); belljar ps -a lists \
         all runs", escape(.query.as_bytes())
    )]
    NotFound { query: String },
    #[error("{}", ambiguous(query, matches))]
    Ambiguous {
        query: String,
        /// Newest first.
        matches: Vec<RunInfo>,
    },
    #[error(transparent)]
    List(#[from] ListError),
}

impl From<LedgerError> for FindError {
    fn from(error: LedgerError) -> Self {
        Self::List(error.into())
    }
}

fn ambiguous(query: &str, matches: &[RunInfo]) -> String {
    let query = escape(query.as_bytes());
    let mut text = format!("\"{query}\" can mean {} runs; give more of the id:", matches.len());
    for run in matches {
        let name = run.name.as_deref().map_or("-".to_owned(), |name| escape(name.as_bytes()));
        let (tail, state, command) = (run.id.tail(), run.state, escape(run.command.as_bytes()));
        text.push_str(&format!("\n  {tail}  {name}  {state}  {command}"));
    }
    text
}

/// The run that `query` means: an id; a name, for its live run or else its newest; a head or a tail
/// of an id that no other run has.
pub fn find(home: &Home, query: &str) -> Result<RunInfo, FindError> {
    if let Some(run) = live(home, query) {
        return Ok(run);
    }
    let until = Instant::now() + SETTLE_TIMEOUT;
    loop {
        match look(home, query) {
            // Whoever finishes a run that was lost holds its lock for a moment, and makes it look alive.
            Err(FindError::Ambiguous { matches, .. })
                if matches.iter().filter(|run| run.is_live()).count() > 1
                    && Instant::now() < until =>
            {
                std::thread::sleep(LOOK_AGAIN);
            }
            found => return found,
        }
    }
}

/// The live run of that id, or of that name where it cannot mean another id: without the ledger, which knows only runs
/// that have ended. Everything else is looked up in full.
fn live(home: &Home, query: &str) -> Option<RunInfo> {
    let of_name = |id: RunId| {
        let summary = Summary::read(home, &id).ok()?;
        (summary.name.as_deref() == Some(query)).then_some(summary)
    };
    let run = match query.parse() {
        Ok(id) => RunInfo::from_directory(home, &id, super::life::of(home, &id))?,
        Err(_) if may_be_id(query) => return None,
        Err(_) => {
            let mut named = ids_in(&home.live()).ok()?.into_iter().filter_map(of_name);
            let (Some(summary), None) = (named.next(), named.next()) else { return None };
            let life = super::life::of(home, &summary.id);
            RunInfo::from_summary(home, summary, life)
        }
    };
    run.is_live().then_some(run)
}

fn look(home: &Home, query: &str) -> Result<RunInfo, FindError> {
    let ledger = Ledger::open_to_read(home)?;
    let ledger = ledger.as_ref();
    if let Ok(id) = query.parse::<RunId>()
        && let Some(run) = info(home, ledger, &id)?
    {
        return Ok(run);
    }
    let (ids, without_row) = every_id(home, ledger)?;
    let named = named(home, ledger, query, &without_row)?;
    let by_id = match look_up(ids, query) {
        Lookup::None => Vec::new(),
        Lookup::One(id) => vec![id],
        Lookup::Ambiguous(ids) => ids,
    };
    let mut meant: BTreeMap<RunId, RunInfo> =
        chosen(named).into_iter().map(|run| (run.id, run)).collect();
    for id in by_id {
        if !meant.contains_key(&id) {
            meant.extend(info(home, ledger, &id)?.map(|run| (id, run)));
        }
    }
    let query = query.to_owned();
    let mut matches: Vec<RunInfo> = meant.into_values().rev().collect();
    match matches.len() {
        0 => Err(FindError::NotFound { query }),
        1 => Ok(matches.remove(0)),
        _ => Err(FindError::Ambiguous { query, matches }),
    }
}

/// The runs of exactly that name.
fn named(
    home: &Home,
    ledger: Option<&Ledger>,
    name: &str,
    without_row: &[RunId],
) -> Result<Vec<RunInfo>, LedgerError> {
    let rows = ledger.map(|ledger| ledger.of_name(&Some(name.to_owned()))).transpose()?;
    let removed = super::trash::removed(home);
    let mut found: Vec<RunInfo> = rows
        .into_iter()
        .flatten()
        .filter(|row| !removed.contains(&row.id))
        .map(|row| {
            let life = super::life::of(home, &row.id);
            RunInfo::from_row(home, row, life)
        })
        .collect();
    for id in without_row {
        let run = info(home, ledger, id)?;
        found.extend(run.filter(|run| run.name.as_deref() == Some(name)));
    }
    Ok(found)
}

/// Of runs with one name: those that live, or else the newest.
fn chosen(named: Vec<RunInfo>) -> Vec<RunInfo> {
    if named.iter().any(RunInfo::is_live) {
        return named.into_iter().filter(RunInfo::is_live).collect();
    }
    named.into_iter().max_by_key(|run| run.id).into_iter().collect()
}
