//! Lists files that execute on the host without an explicit request, once a user opens a shell, an editor or a
//! build in the tree. The only place where they are listed; `list` is the data.
//!
//! Names are compared without regard to ASCII case, because some file systems ignore it.

mod git;
mod list;
mod pattern;

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

pub use git::GitMarks;
pub use list::{DEPENDENCIES, GIT_DATA, GIT_DIRECTORY, GitEntry, RULES, Rule};
use pattern::{leads_to, matches};

/// Names in a directory, up to which a listing is cheaper than a look at every known path.
const MAX_LISTED: usize = 1000;

/// How such a file is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Decides what a tool of the host does by itself. Read-only inside in an `rw` tree; held back by `apply` unless
    /// it is named.
    Control,
    /// A part of the project that runs when a user builds or tests it. Editable and applied, and reported.
    Project,
}

/// What a path means to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autorun {
    pub class: Class,
    /// When it runs, as text.
    pub why: &'static str,
}

/// What an `rw` tree gets where a control file is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A cover at the top of the tree that no process inside can write, rename or remove.
    Covered,
    /// Nothing: what the run makes of it is reported at its end.
    Reported,
}

/// What holds the place of something that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandIn {
    /// A socket without a listener: it cannot be opened, git does not see it, and a copy of the tree has it.
    Socket,
    EmptyDirectory,
    File(&'static str),
}

const LINK_IN_GIT: Autorun =
    Autorun { class: Class::Control, why: "a link in a git directory: git follows it" };

/// When a file at this path would execute on the host. Decided by its name alone. Not for a directory,
/// where the entries count; use [`classify_link`] for a link.
pub fn classify(path: &Path) -> Option<Autorun> {
    let names = names_of(path);
    let last = names.last()?;
    if is_sample(&names) {
        return None;
    }
    let index = Index::get();
    let fits = |at: &usize| matches(RULES[*at].pattern, &names);
    let by_name = index.by_name.get(&last.as_bytes().to_ascii_lowercase());
    let by_name = by_name.into_iter().flatten().copied().find(fits);
    let others = index.others.iter().filter(|ending| ending.may_fit(last));
    let by_other = others.map(|ending| ending.at).find(fits);
    let above = names.iter().filter_map(|name| index.by_above.get(&name.to_ascii_lowercase()));
    let mut above: Vec<usize> = above.flatten().copied().collect();
    above.sort_unstable();
    above.dedup(); // a name can be on the path a thousand times
    let begins = |at: &usize| {
        let begin = RULES[*at].pattern.split('/').next();
        begin.is_some_and(|begin| names.iter().any(|name| is(name, begin)))
    };
    let by_above = above.into_iter().filter(begins).find(fits);
    let first = [by_name, by_other, by_above].into_iter().flatten().min();
    first.map(|at| RULES[at].autorun())
}

/// Whole trees are asked about, name by name.
struct Index {
    /// Rules that end with a plain name, by that name in lower case.
    by_name: HashMap<Vec<u8>, Vec<usize>>,
    /// Rules for all that is below a plain name, by that name in lower case.
    by_above: HashMap<OsString, Vec<usize>>,
    others: Vec<Ending>,
}

/// A rule with a `*` in its last name, and what that name begins and ends with.
struct Ending {
    at: usize,
    head: &'static [u8],
    tail: &'static [u8],
}

impl Ending {
    fn of(at: usize, last: &'static str) -> Self {
        let head = last.split('*').next().unwrap_or_default().as_bytes();
        let tail = last.rsplit('*').next().unwrap_or_default().as_bytes();
        Self { at, head, tail }
    }

    /// Nearly every name is none of them, which this finds out without walking the pattern.
    fn may_fit(&self, name: &OsStr) -> bool {
        let name = name.as_bytes();
        let starts = name.split_at_checked(self.head.len());
        let ends = name.len().checked_sub(self.tail.len()).map(|at| &name[at..]);
        starts.is_some_and(|(start, _)| start.eq_ignore_ascii_case(self.head))
            && ends.is_some_and(|end| end.eq_ignore_ascii_case(self.tail))
    }
}

impl Index {
    fn get() -> &'static Self {
        static INDEX: OnceLock<Index> = OnceLock::new();
        INDEX.get_or_init(|| {
            let mut index =
                Self { by_name: HashMap::new(), by_above: HashMap::new(), others: Vec::new() };
            for (at, rule) in RULES.iter().enumerate() {
                let last = rule.pattern.rsplit('/').next().unwrap_or(rule.pattern);
                let above = rule.pattern.strip_suffix("/**").and_then(|it| it.rsplit('/').next());
                if let Some(above) = above.filter(|above| !above.contains('*')) {
                    index.by_above.entry(above.to_ascii_lowercase().into()).or_default().push(at);
                    continue;
                }
                match last.contains('*') {
                    true => index.others.push(Ending::of(at, last)),
                    false => {
                        let name = last.to_ascii_lowercase().into_bytes();
                        index.by_name.entry(name).or_default().push(at);
                    }
                }
            }
            index
        })
    }
}

/// The same for a link: it may also stand for a directory, where the entries count.
pub fn classify_link(path: &Path) -> Option<Autorun> {
    let names = names_of(path);
    let in_git = || names.iter().any(|name| is(name, ".git")).then_some(LINK_IN_GIT);
    let fits = |rule: &&Rule| matches(rule.pattern, &names) || leads_to(rule.pattern, &names);
    let mut fitting = RULES.iter().filter(fits).map(Rule::autorun);
    let control = |autorun: &Autorun| autorun.class == Class::Control;
    classify(path).filter(control).or_else(in_git).or_else(|| {
        let first = fitting.next()?;
        if control(&first) { Some(first) } else { fitting.find(control).or(Some(first)) }
    })
}

/// When a path in a git directory would execute on the host, wherever that directory is and whatever its name. For
/// a directory that is recognised by its contents: see [`GitMarks`].
pub fn in_git_directory(inside: &Path) -> Option<Autorun> {
    let names = names_of(inside);
    let first = names.first()?;
    let entry = GIT_DIRECTORY.iter().find(|entry| is(first, entry.name));
    let entry = entry.filter(|entry| entry.is_directory || names.len() == 1);
    let entry = entry.filter(|_| !is_sample(&names));
    entry.map(|entry| Autorun { class: Class::Control, why: entry.why })
}

/// Git brings an example of each hook, and runs none of them by that name.
pub fn is_sample_hook(path: &Path) -> bool {
    is_sample(&names_of(path))
}

fn is_sample(names: &[&OsStr]) -> bool {
    match names {
        [.., hooks, name] => {
            is(hooks, "hooks") && name.to_ascii_lowercase().as_bytes().ends_with(b".sample")
        }
        _ => false,
    }
}

/// Paths in a tree that are covered where nothing is there.
pub fn covered_where_missing() -> impl Iterator<Item = &'static Path> {
    let covered = RULES.iter().filter(|rule| rule.missing == Missing::Covered);
    covered.map(|rule| Path::new(rule.pattern))
}

/// Control files and whole directories by their exact path from the top of a tree: those that can be looked for
/// without a listing.
pub fn known_at_top() -> impl Iterator<Item = &'static Path> {
    let control = RULES.iter().filter(|rule| rule.class == Class::Control);
    let paths = control.map(|rule| rule.pattern.strip_suffix("/**").unwrap_or(rule.pattern));
    paths.filter(|path| !path.contains('*')).map(Path::new)
}

/// What of [`known_at_top`] can exist in a directory, by its listing; all of it where the listing fails or is long.
pub fn known_in_listing<E>(
    listing: impl IntoIterator<Item = Result<OsString, E>>,
) -> Vec<&'static Path> {
    let mut names = HashSet::new();
    for name in listing {
        match name {
            // A file system that folds case knows more pairs of letters than ASCII's.
            Ok(name) if names.len() < MAX_LISTED && name.as_bytes().is_ascii() => {
                names.insert(name.to_ascii_lowercase());
            }
            _ => return known_at_top().collect(),
        }
    }
    let is_there = |path: &&Path| {
        path.iter().next().is_some_and(|top| names.contains(&top.to_ascii_lowercase()))
    };
    known_at_top().filter(is_there).collect()
}

/// Whether two names mean the same file on some file system.
pub fn is(name: &OsStr, known: &str) -> bool {
    name.as_bytes().eq_ignore_ascii_case(known.as_bytes())
}

fn names_of(path: &Path) -> Vec<&OsStr> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests;
