//! Walks a writable tree, with bounds, to find the files in it that must not be written.
//!
//! It looks for files with privileges, files that the host executes, and git directories by their
//! contents.
//!
//! A run before this one may have made the tree arbitrarily large. So files with a known path are found without
//! a listing, git directories come before the rest, and an incomplete walk is reported.

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{FileType, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_spec::autorun::{self, Class, DEPENDENCIES, GIT_DATA, GIT_DIRECTORY, GitMarks, is};

use crate::privileged::is_privileged;

/// Names in git directories.
const MAX_GIT_NAMES: usize = 20_000;
/// Names in the rest. Looking at more would make every start in a large tree slow; in directories that are known by
/// then, and not listed any more, control files are looked for by their names.
const MAX_NAMES: usize = 200_000;
/// No known path has more parts.
const MAX_PARTS: usize = 4;
/// How many such directories: each takes some dozen looks.
const MAX_UNLISTED: usize = 20_000;
/// Files that are checked for privileges. The threat model states what that means.
const MAX_FILES: usize = 4000;
/// In a git directory: where those of submodules and worktrees are.
const GIT_NESTS: &[&str] = &["modules", "worktrees"];

/// What the walk found. Relative paths, nearest to the root first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// Files that run with more rights than the user who starts them.
    pub(super) privileged: Vec<PathBuf>,
    /// Files, whole directories and links.
    pub(super) control: Vec<PathBuf>,
    /// Not every name was checked.
    pub(super) cut: bool,
}

pub(super) fn survey(tree: &Path) -> Survey {
    survey_with_limit(tree, MAX_NAMES)
}

fn survey_with_limit(tree: &Path, names: usize) -> Survey {
    let mut walk = SurveyWalk {
        tree,
        top: Top::of(tree),
        found: Survey::default(),
        seen: HashSet::new(),
        looked_for: HashSet::new(),
        first: VecDeque::new(),
        soon: VecDeque::from([PathBuf::new()]),
        last: VecDeque::new(),
        first_names: MAX_GIT_NAMES,
        other_names: names,
        files: MAX_FILES,
        unlisted: MAX_UNLISTED,
    };
    let known = match std::fs::read_dir(tree) {
        Ok(top) => autorun::known_in_listing(top.map(|entry| entry.map(|entry| entry.file_name()))),
        Err(_) => autorun::known_at_top().collect(),
    };
    known.into_iter().for_each(|known| walk.look_for(Path::new(""), known));
    loop {
        if let Some(directory) = walk.first.pop_front() {
            walk.look_at(&directory, Turn::First);
        } else if let Some(directory) = walk.soon.pop_front().or_else(|| walk.last.pop_front()) {
            if walk.other_names > 0 {
                walk.look_at(&directory, Turn::AfterGit);
                continue;
            }
            walk.found.cut = true;
            if walk.unlisted == 0 {
                break;
            }
            walk.unlisted -= 1;
            // It may itself be a parent of something known.
            for above in directory.ancestors().take(MAX_PARTS) {
                walk.look_for_known(above);
            }
        } else {
            break;
        }
    }
    walk.found
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    First,
    AfterGit,
}

/// What the tree itself is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Top {
    GitDirectory,
    Other,
}

impl Top {
    fn of(tree: &Path) -> Self {
        let is_there = |name: &&&str| std::fs::symlink_metadata(tree.join(name)).is_ok();
        let marks =
            GitMarks::of(GitMarks::NAMES.iter().filter(is_there).map(|name| OsStr::new(*name)));
        if marks.is_git_directory() { Self::GitDirectory } else { Self::Other }
    }

    /// The directory that a git directory has for its submodules and worktrees, if a path is in one.
    fn nest_of(self, path: &Path) -> Option<PathBuf> {
        let mut above = path.ancestors().filter(|above| {
            let is_nest =
                above.file_name().is_some_and(|name| GIT_NESTS.iter().any(|it| is(name, it)));
            let holder = above.parent();
            let is_top = self == Self::GitDirectory && holder == Some(Path::new(""));
            let is_named = holder.and_then(Path::file_name).is_some_and(|name| is(name, ".git"));
            is_nest && (is_top || is_named)
        });
        above.next().map(Path::to_owned)
    }
}

struct SurveyWalk<'a> {
    tree: &'a Path,
    top: Top,
    found: Survey,
    /// What was looked up by its name, and must not be found a second time.
    seen: HashSet<PathBuf>,
    /// Directories in which everything known was looked for.
    looked_for: HashSet<PathBuf>,
    /// Git directories, and those with a known path.
    first: VecDeque<PathBuf>,
    soon: VecDeque<PathBuf>,
    /// Large and seldom of interest.
    last: VecDeque<PathBuf>,
    /// How many names may still be checked.
    first_names: usize,
    other_names: usize,
    files: usize,
    unlisted: usize,
}

struct Listing {
    entries: Vec<(OsString, FileType)>,
    is_whole: bool,
}

impl SurveyWalk<'_> {
    /// Something with a known path below a directory, and every directory above it.
    fn look_for(&mut self, below: &Path, known: &Path) {
        let mut path = below.to_owned();
        for name in known {
            path.push(name);
            let Ok(meta) = std::fs::symlink_metadata(self.tree.join(&path)) else { return };
            if self.seen.insert(path.clone()) {
                self.elsewhere(path.clone(), name, meta.file_type(), Turn::First);
            }
            if !meta.is_dir() {
                return;
            }
        }
    }

    /// Everything with a known name in a directory, without a listing.
    fn look_for_known(&mut self, directory: &Path) {
        if !self.looked_for.insert(directory.to_owned()) {
            return;
        }
        autorun::known_at_top().for_each(|known| self.look_for(directory, known));
        self.look_for(directory, Path::new(".git"));
    }

    fn look_at(&mut self, directory: &Path, turn: Turn) {
        let Some(listing) = self.list(directory, turn) else {
            // Nothing is known of it, and its owner can open it inside.
            self.shield_whole(directory);
            return;
        };
        if !listing.is_whole {
            self.found.cut = true;
            if let Some(nest) = self.top.nest_of(directory) {
                self.found.control.push(nest);
                return;
            }
        }
        let mut entries = listing.entries;
        if !listing.is_whole {
            self.look_for_known(directory);
            let known = GitMarks::NAMES.iter().copied();
            let known = known.chain(GIT_DIRECTORY.iter().map(|entry| entry.name));
            for name in known.chain(GIT_NESTS.iter().copied()) {
                let there = std::fs::symlink_metadata(self.tree.join(directory).join(name));
                if let (Ok(meta), false) = (there, entries.iter().any(|(seen, _)| seen == name)) {
                    entries.push((name.into(), meta.file_type()));
                }
            }
        }
        let is_git = is_git_directory(self.tree, directory, &entries);
        for (name, kind) in entries {
            let path = directory.join(&name);
            if self.seen.contains(&path) {
                continue;
            }
            match is_git {
                true => self.in_git(path, &name, kind),
                false => {
                    let turn = match self.top.nest_of(&path) {
                        Some(_) => Turn::First,
                        None => Turn::AfterGit,
                    };
                    self.elsewhere(path, &name, kind, turn);
                }
            }
        }
    }

    /// `None`: it cannot be read.
    fn list(&mut self, directory: &Path, turn: Turn) -> Option<Listing> {
        let left = match turn {
            Turn::First => &mut self.first_names,
            Turn::AfterGit => &mut self.other_names,
        };
        let mut entries = Vec::new();
        let listed = match std::fs::read_dir(self.tree.join(directory)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
            listed => listed,
        };
        for entry in listed.into_iter().flatten().flatten() {
            if *left == 0 {
                return Some(Listing { entries, is_whole: false });
            }
            *left -= 1;
            let Ok(kind) = entry.file_type() else { continue };
            entries.push((entry.file_name(), kind));
        }
        Some(Listing { entries, is_whole: true })
    }

    fn in_git(&mut self, path: PathBuf, name: &OsStr, kind: FileType) {
        let is_control = autorun::in_git_directory(Path::new(name)).is_some();
        if is_control && kind.is_symlink() {
            self.shield_link(path);
        } else if is_control || kind.is_symlink() {
            self.found.control.push(path);
        } else if kind.is_dir() {
            if GIT_DATA.iter().any(|data| is(name, data)) {
                self.last.push_back(path);
            } else if self.top.nest_of(&path).is_some() {
                self.first.push_back(path);
            } else {
                self.soon.push_back(path);
            }
        } else {
            self.look_for_privileges(path, kind);
        }
    }

    fn elsewhere(&mut self, path: PathBuf, name: &OsStr, kind: FileType, turn: Turn) {
        // With the whole path: the tree itself may be a directory with entries that count.
        let whole = self.tree.join(&path);
        if kind.is_symlink() {
            if is_control(autorun::classify_link(&whole)) && !is_dependency(&path) {
                self.shield_link(path);
            }
            return;
        }
        let is_git = kind.is_dir() && is(name, ".git");
        let counts = !is_git && is_control(autorun::classify(&whole)) && !is_dependency(&path);
        if counts {
            self.found.control.push(path);
        } else if is_git {
            self.first.push_back(path);
        } else if kind.is_dir() {
            if DEPENDENCIES.iter().any(|large| is(name, large)) {
                self.last.push_back(path);
                return;
            }
            // Before anything else in it.
            if turn == Turn::AfterGit {
                self.look_for(&path, Path::new(".git"));
            }
            match turn {
                Turn::First => self.first.push_back(path),
                Turn::AfterGit => self.soon.push_back(path),
            }
        } else {
            self.look_for_privileges(path, kind);
        }
    }

    fn look_for_privileges(&mut self, path: PathBuf, kind: FileType) {
        if !kind.is_file() || self.files == 0 {
            return;
        }
        self.files -= 1;
        let whole = self.tree.join(&path);
        if std::fs::symlink_metadata(&whole).is_ok_and(|meta| is_marked(&whole, &meta)) {
            self.found.privileged.push(path);
        }
    }

    fn shield_whole(&mut self, directory: &Path) {
        match directory.as_os_str().is_empty() {
            true => self.found.cut = true,
            false => self.found.control.push(directory.to_owned()),
        }
    }

    /// The link, and what it leads to in this tree. A git directory behind it is found by what it holds.
    fn shield_link(&mut self, path: PathBuf) {
        let whole = self.tree.join(&path);
        let passes_on = |name: &OsStr| is(name, ".git") || is(name, ".config");
        if !path.file_name().is_some_and(passes_on)
            && let Ok(real) = std::fs::canonicalize(&whole)
            && let Ok(inside) = real.strip_prefix(self.tree)
            && !inside.as_os_str().is_empty()
        {
            self.found.control.push(inside.to_owned());
        }
        self.found.control.push(path);
    }
}

fn is_control(found: Option<autorun::Autorun>) -> bool {
    found.is_some_and(|autorun| autorun.class == Class::Control)
}

fn is_marked(path: &Path, meta: &Metadata) -> bool {
    meta.is_file() && is_privileged(path, meta.mode())
}

fn is_dependency(path: &Path) -> bool {
    path.iter().any(|name| DEPENDENCIES.iter().any(|large| is(name, large)))
}

/// As git recognises one: by its contents. One by that name counts while it is being made, too.
fn is_git_directory(tree: &Path, directory: &Path, entries: &[(OsString, FileType)]) -> bool {
    let marks = GitMarks::of(entries.iter().map(|(name, _)| name.as_os_str()));
    let by_name =
        || directory.file_name().or(tree.file_name()).is_some_and(|name| is(name, ".git"));
    // What a linked worktree has itself; the rest is where its `commondir` points.
    let of_worktree = marks.head && marks.commondir && !marks.objects;
    of_worktree || marks.is_git_directory() || by_name()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn make(tree: &Path, files: &[&str]) {
        for file in files {
            let path = tree.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
    }

    /// Enough for a test, and soon made.
    const CROWD: usize = 3000;

    fn control(tree: &Path) -> Vec<String> {
        let found = survey_with_limit(tree, CROWD);
        let mut found: Vec<String> =
            found.control.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        found.sort();
        found
    }

    #[test]
    fn finds_marked_files_and_leaves_others_and_links_alone() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), &["plain", "below/setuid", "setgid"]);
        for (name, mode) in [("plain", 0o755), ("below/setuid", 0o4755), ("setgid", 0o2755)] {
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink("below/setuid", dir.path().join("link")).unwrap();
        fs::set_permissions(dir.path().join("below"), fs::Permissions::from_mode(0o2755)).unwrap();
        let found = survey(dir.path()).privileged;
        assert_eq!(found, [PathBuf::from("setgid"), PathBuf::from("below/setuid")]);
    }

    #[test]
    fn finds_control_files_at_any_depth_and_leaves_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        make(
            dir.path(),
            &[
                ".envrc",
                "a/b/.vscode/tasks.json",
                "a/b/.vscode/extensions.json",
                "package.json",
                ".config/fish/conf.d/x.fish",
                "node_modules/x/.vscode/tasks.json",
                "node_modules/x/.git/HEAD",
                "node_modules/x/.git/config",
            ],
        );
        let expected =
            [".config/fish", ".envrc", "a/b/.vscode/tasks.json", "node_modules/x/.git/config"];
        assert_eq!(control(dir.path()), expected);
    }

    #[test]
    fn knows_git_directories_by_what_they_hold() {
        let dir = tempfile::tempdir().unwrap();
        make(
            dir.path(),
            &[
                ".git/HEAD",
                ".git/config",
                ".git/hooks/pre-commit.sample",
                ".git/refs/heads/config",
                ".git/objects/ab/config",
                ".git/logs/HEAD",
                ".git/logs/refs/heads/main",
                ".git/worktrees/w/HEAD",
                ".git/worktrees/w/commondir",
                ".git/worktrees/w/gitdir",
                ".git/modules/lib/HEAD",
                ".git/modules/lib/objects/x",
                ".git/modules/lib/refs/x",
                ".git/modules/lib/config",
                "bare/HEAD",
                "bare/objects/x",
                "bare/refs/x",
                "bare/config",
                "lib/.git",
                "nothing/config",
            ],
        );
        let expected = [
            ".git/config",
            ".git/hooks",
            ".git/modules/lib/config",
            ".git/worktrees/w/commondir",
            ".git/worktrees/w/gitdir",
            "bare/config",
            "lib/.git",
        ];
        assert_eq!(control(dir.path()), expected);
    }

    #[test]
    fn a_link_is_shielded_with_what_it_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let tree = fs::canonicalize(dir.path()).unwrap();
        make(&tree, &["shared/hooks/pre-commit", "shared/rc", ".git/HEAD", "other"]);
        symlink("../shared/hooks", tree.join(".git/hooks")).unwrap();
        symlink("shared/rc", tree.join(".bashrc")).unwrap();
        symlink("other", tree.join("plain-link")).unwrap();
        assert_eq!(control(&tree), [".bashrc", ".git/hooks", "shared/hooks", "shared/rc"]);
    }

    #[test]
    fn a_crowd_of_other_names_hides_nothing_that_has_a_known_place() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let tree = fs::canonicalize(dir.path()).unwrap();
        let known = [".claude/settings.json", ".config/fish/x", ".envrc", ".git/config"];
        let known = [&known[..], &[".git/hooks/x", ".git/modules/lib/config"]].concat();
        make(&tree, &["a/HEAD", ".git/HEAD", ".git/modules/lib/HEAD", ".git/modules/lib/refs/x"]);
        make(&tree, &known);
        assert!(!survey_with_limit(&tree, CROWD).cut, "the control");
        for at in 0..=CROWD {
            fs::File::create(tree.join(format!("z{at}"))).unwrap();
        }
        let expected = [
            ".claude/settings.json",
            ".config/fish",
            ".envrc",
            ".git/config",
            ".git/hooks",
            ".git/modules/lib/config",
        ];
        assert_eq!(control(&tree), expected);
        assert!(survey_with_limit(&tree, CROWD).cut);
        // Where git directories have too many names, all of them stay as they are.
        for at in 0..=MAX_GIT_NAMES {
            fs::create_dir(tree.join(format!(".git/modules/z{at}"))).unwrap();
        }
        assert!(control(&tree).contains(&".git/modules".to_owned()));
        assert!(control(&tree).contains(&".git/hooks".to_owned()));
    }

    #[test]
    fn repositories_beside_a_crowd_are_found() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let tree = fs::canonicalize(dir.path()).unwrap();
        make(&tree, &["sub/.git/config", "sub/deep/.envrc", "data/x"]);
        for at in 0..CROWD / 2 {
            fs::File::create(tree.join(format!("data/z{at}"))).unwrap();
        }
        assert_eq!(control(&tree), ["sub/.git/config", "sub/deep/.envrc"]);
        assert!(!survey_with_limit(&tree, CROWD).cut);
    }

    /// The tree is what a linked worktree's `.git` file names, and so has no `.git` above its nests.
    #[test]
    fn a_crowd_in_a_git_directory_does_not_hide_its_worktrees() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let tree = fs::canonicalize(dir.path()).unwrap();
        make(&tree, &["HEAD", "objects/x", "refs/x", "config", "modules/lib/HEAD"]);
        make(&tree, &["modules/lib/objects/x", "modules/lib/config"]);
        make(&tree, &["worktrees/w/HEAD", "worktrees/w/commondir", "worktrees/w/gitdir"]);
        let expected =
            ["config", "modules/lib/config", "worktrees/w/commondir", "worktrees/w/gitdir"];
        assert_eq!(control(&tree), expected, "the control");
        // In names that sort and are listed before and after, at the top and beside it.
        for at in 0..=CROWD {
            fs::File::create(tree.join(format!("z{at}"))).unwrap();
        }
        fs::create_dir(tree.join("a")).unwrap();
        for at in 0..=CROWD {
            fs::File::create(tree.join(format!("a/{at}"))).unwrap();
        }
        assert_eq!(control(&tree), expected);
        for at in 0..=MAX_GIT_NAMES {
            fs::create_dir(tree.join(format!("worktrees/z{at}"))).unwrap();
        }
        assert!(control(&tree).contains(&"worktrees".to_owned()));
    }

    /// Neither in the crowded directory itself, nor in those that were found before it.
    #[test]
    fn a_crowd_hides_nothing_that_lies_beside_it_or_in_it() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let tree = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(tree.join("a")).unwrap();
        // More than are listed, in the directory that comes first.
        for at in 0..=CROWD {
            fs::File::create(tree.join(format!("a/{at}"))).unwrap();
        }
        make(&tree, &["a/.envrc", "a/.vscode/tasks.json", "b/c/.envrc", "b/.vscode/tasks.json"]);
        make(&tree, &["b/.git/config", "b/.git/HEAD"]);
        let found = control(&tree);
        for name in ["a/.envrc", "a/.vscode/tasks.json", "b/.vscode/tasks.json", "b/.git/config"] {
            assert!(found.contains(&name.to_owned()), "{name} in {found:?}");
        }
        assert!(
            survey_with_limit(&tree, CROWD).cut,
            "deeper entries were not listed, and that is reported"
        );
    }
}
