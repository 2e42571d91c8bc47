//! Checks the content of a repository's configuration right before it is applied: a live run may have changed it since
//! the draft was made.

use std::fs::File;

use super::ApplyError;
use super::draft::{Todo, TreeDraft};
use crate::git_config;
use crate::open::read_small;

/// A repository's configuration is smaller.
const MAX_CONFIG: u64 = 1 << 20;
/// As much as is applied without being named.
const LARGE: u64 = 1 << 30;

pub(super) enum Source {
    /// All of it.
    Judged(Vec<u8>),
    /// Its content does not matter.
    Any(File),
}

pub(super) fn config_of(
    draft: &TreeDraft,
    todo: &Todo,
    mut from: File,
) -> Result<Source, ApplyError> {
    let changed = || ApplyError::NotWhatWasJudged { path: todo.change.path.clone() };
    let failed = |error| ApplyError::Stage { path: todo.change.path.clone(), error };
    if !todo.change.judged {
        let size = from.metadata().map_err(failed)?.len();
        if size > LARGE && todo.change.withheld.is_none() {
            return Err(ApplyError::ChangedByTheRun { path: todo.change.path.clone() });
        }
        return Ok(Source::Any(from));
    }
    let content = read_small(&mut from, MAX_CONFIG).map_err(failed)?.ok_or_else(changed)?;
    text(draft, todo, &content)?;
    Ok(Source::Judged(content))
}

/// Also of what was put together from two versions: lines can come below another heading.
pub(super) fn text(draft: &TreeDraft, todo: &Todo, content: &[u8]) -> Result<(), ApplyError> {
    if !todo.change.judged {
        return Ok(());
    }
    let before = match todo.was {
        None => None,
        Some(_) => {
            // What cannot be read is taken for nothing, against which more is refused.
            draft.tree.lower().read_file(todo.change.path.as_path(), MAX_CONFIG).ok()
        }
    };
    match git_config::is_harmless(before.as_deref(), content) {
        true => Ok(()),
        false => Err(ApplyError::NotWhatWasJudged { path: todo.change.path.clone() }),
    }
}
