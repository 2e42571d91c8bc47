//! Decides what `apply` leaves out and why, and marks what the host executes later.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use belljar_spec::OsText;
use belljar_spec::autorun::{self, Autorun, Class};

use super::change::{AutorunMark, Change, Facts, HowFar, Kind, What, Withheld};
use super::git_config;
use super::open::{OpenTree, read_small};
use super::repositories::Repositories;

/// A larger file is taken over only where it is named.
const LARGE: u64 = 1 << 30;
/// A repository's configuration is smaller.
pub(super) const MAX_CONFIG: u64 = 1 << 20;

/// `kept`: hidden names that the run removed with the directory they are in.
pub(super) fn mark(tree: &OpenTree, changes: &mut [Change], kept: &[PathBuf]) {
    let mut repositories = Repositories::among(tree, changes);
    for change in changes.iter_mut() {
        change.autorun = runs_later(tree, change, &mut repositories);
        change.judged = change.autorun.is_some() && is_harmless_config(tree, change);
        change.autorun.take_if(|_| change.judged);
        if change.withheld.is_none() {
            change.withheld = hold(tree, change);
        }
    }
    hold_what_is_above(changes, kept);
    hold_what_is_below(changes);
}

fn runs_later(
    tree: &OpenTree,
    change: &Change,
    repositories: &mut Repositories<'_>,
) -> Option<AutorunMark> {
    let sides = [&change.before, &change.after];
    let mut kinds = sides.into_iter().flatten().map(|facts| facts.kind);
    if kinds.all(|kind| kind == Kind::Directory) {
        return None; // what is in it is looked at by itself
    }
    let path = change.path.as_path();
    let is_link = sides.into_iter().flatten().any(|facts| facts.kind == Kind::Link);
    // A link can also stand for a directory whose entries count.
    let classify = if is_link { autorun::classify_link } else { autorun::classify };
    // The tree itself may be a directory whose entries count, such as `.git/hooks`.
    let whole = tree.note.source.as_path().join(path);
    let by_place = classify(whole.strip_prefix("/").unwrap_or(&whole));
    let by_place = by_place.filter(|later| later.class == Class::Control);
    let known = by_place.or_else(|| classify(path));
    // A tree that is a git directory has what is in one, whatever its own name is.
    let in_git = || tree.is_git_directory().then(|| classify(&Path::new(".git").join(path)));
    let known = known.or_else(|| in_git().flatten());
    // What a project's file does by its name is less than what it does to git.
    let known = match known {
        Some(Autorun { class: Class::Control, .. }) => known,
        other => repositories.later(change).or(other),
    };
    known.map(|Autorun { class, why }| AutorunMark { class, why })
}

fn hold(tree: &OpenTree, change: &Change) -> Option<Withheld> {
    let always = |why: &str| Some(Withheld::new(why, HowFar::Always));
    let unless_named = |why: &str| Some(Withheld::new(why, HowFar::UnlessNamed));
    if tree.is_hidden(change.path.as_path()) {
        return always("the run was not shown what is there");
    }
    if let Some(after) = &change.after {
        match after.kind {
            Kind::Fifo => return always("a FIFO never leaves a run"),
            Kind::Socket => return always("a socket never leaves a run"),
            Kind::Device => return always("a device never leaves a run"),
            Kind::File if cannot_be_read(tree, change, after) => {
                return always("its mode keeps it from being read");
            }
            Kind::File | Kind::Directory | Kind::Link => {}
        }
        let leaves = after.target.as_ref().is_some_and(|to| leaves_tree(&change.path, to));
        if leaves && change.what != What::Mode {
            return unless_named("the link leads out of the tree");
        }
        if after.kind == Kind::File && after.size > LARGE {
            return unless_named("it is larger than 1 GiB");
        }
    }
    match &change.autorun {
        Some(AutorunMark { class: Class::Control, why }) => unless_named(why),
        _ if is_of_another_worktree(tree, change) => {
            unless_named("it is about another worktree of the repository")
        }
        Some(AutorunMark { class: Class::Project, .. }) | None => None,
    }
}

/// Also what takes the place of a directory that holds such paths.
fn is_of_another_worktree(tree: &OpenTree, change: &Change) -> bool {
    let path = change.path.as_path();
    let is_no_directory = change.after.as_ref().is_some_and(|facts| facts.kind != Kind::Directory);
    tree.note.git_part.as_ref().is_some_and(|part| {
        part.is_of_another(path) || (is_no_directory && part.holds_others(path))
    })
}

fn cannot_be_read(tree: &OpenTree, change: &Change, after: &Facts) -> bool {
    after.mode & 0o400 == 0 && tree.open_after(change).is_err()
}

/// Also where it goes down and up again: a link on its way would make that lead elsewhere.
fn leaves_tree(path: &OsText, target: &OsText) -> bool {
    let mut depth = path.as_path().components().count().saturating_sub(1);
    let mut went_down = false;
    if target.as_bytes().is_empty() {
        return true; // it was not there any more
    }
    for component in target.as_path().components() {
        match component {
            Component::RootDir | Component::Prefix(_) => return true,
            Component::CurDir => {}
            Component::ParentDir if went_down || depth == 0 => return true,
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => went_down = true,
        }
    }
    false
}

fn is_harmless_config(tree: &OpenTree, change: &Change) -> bool {
    let is_file = |facts: &Option<Facts>| {
        facts.as_ref().is_some_and(|facts| facts.kind == Kind::File && facts.size <= MAX_CONFIG)
    };
    let is_config = change.path.as_path().file_name().is_some_and(|name| name == "config");
    if !is_config
        || !is_file(&change.after)
        || !(change.before.is_none() || is_file(&change.before))
    {
        return false;
    }
    let read = |file: Result<std::fs::File, _>| {
        file.ok().and_then(|mut file| read_small(&mut file, MAX_CONFIG).ok().flatten())
    };
    let Some(after) = read(tree.open_after(change)) else { return false };
    match &change.before {
        None => git_config::is_harmless(None, &after),
        Some(_) => read(tree.open_before(&change.path))
            .is_some_and(|before| git_config::is_harmless(Some(&before), &after)),
    }
}

/// A directory cannot go while something in it stays.
fn hold_what_is_above(changes: &mut [Change], kept: &[PathBuf]) {
    let mut stays: HashMap<PathBuf, HowFar> = HashMap::new();
    let mut note = |path: &Path, how_far: HowFar| {
        for above in path.ancestors().skip(1) {
            let known = stays.entry(above.to_owned()).or_insert(how_far);
            if how_far == HowFar::Always {
                *known = HowFar::Always;
            }
        }
    };
    kept.iter().for_each(|path| note(path, HowFar::Always));
    for change in changes.iter().filter(|change| change.what == What::Deleted) {
        if let Some(held) = &change.withheld {
            note(change.path.as_path(), held.how_far);
        }
    }
    for change in changes.iter_mut() {
        let was_directory =
            change.before.as_ref().is_some_and(|facts| facts.kind == Kind::Directory);
        let goes = was_directory && matches!(change.what, What::Deleted | What::Replaced);
        if let (true, None, Some(how_far)) =
            (goes, &change.withheld, stays.get(change.path.as_path()))
        {
            change.withheld = Some(Withheld::new("something in it is held back", *how_far));
        }
    }
}

/// Nothing can be put below what does not come, nor taken from below what stays.
fn hold_what_is_below(changes: &mut [Change]) {
    let mut held: Option<(OsText, HowFar)> = None;
    for change in changes {
        if let Some((above, how_far)) = &held {
            if change.path.as_path().starts_with(above.as_path()) {
                if change.withheld.is_none() {
                    let because_of = Some(above.clone());
                    let held = Withheld::new("what it lies in is held back", *how_far);
                    change.withheld = Some(Withheld { because_of, ..held });
                }
                continue;
            }
            held = None;
        }
        if let (What::Created | What::Replaced, Some(why)) = (&change.what, &change.withheld) {
            held = Some((change.path.clone(), why.how_far));
        }
    }
}
