//! One bounded walk over a tree that the run may write: what in it must not be written.
//!
//! Looked at are files with privileges, files that the host executes later, and git directories by what they
//! hold. What the run could only make anew is not here: see [`super::control`].
//!
//! A run before this one may have made the tree as large as it liked. So what has a known place is found without
//! a listing, git's own directories come before the rest, and it is told if something was not looked at.

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{FileType, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_spec::later::{self, Class, DEPENDENCIES, GIT_DATA, GIT_DIRECTORY, GitMarks, is};

use super::privileged::is_privileged;

/// Names, in git's own directories and in the rest. Looking at more would make every start in a large tree slow.
const MOST_NAMES: usize = 20_000;
/// Files that are looked at for their privileges. The threat model states what that means.
const MOST_FILES: usize = 4000;
/// In a git directory: where those of submodules and worktrees are.
const GIT_NESTS: &[&str] = &["modules", "worktrees"];

/// What the walk found. Relative paths, nearest to the root first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// Files that run with more rights than whoever starts them.
    pub(super) privileged: Vec<PathBuf>,
    /// Files, whole directories and links.
    pub(super) control: Vec<PathBuf>,
    pub(super) git_directories: Vec<GitDirectory>,
    /// Not every name was looked at.
    pub(super) cut: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct GitDirectory {
    pub(super) path: PathBuf,
    pub(super) kind: GitKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GitKind {
    Whole,
    /// What a linked worktree has of its own; the rest is where its `commondir` points.
    OfWorktree,
}

pub(super) fn survey(tree: &Path) -> Survey {
    let mut walk = Walk {
        tree,
        found: Survey::default(),
        seen: HashSet::new(),
        first: VecDeque::new(),
        soon: VecDeque::from([PathBuf::new()]),
        last: VecDeque::new(),
        first_names: MOST_NAMES,
        other_names: MOST_NAMES,
        files: MOST_FILES,
    };
    later::known_at_top().for_each(|known| walk.look_for(Path::new(""), known));
    loop {
        if let Some(directory) = walk.first.pop_front() {
            walk.look_at(&directory, Turn::First);
        } else if let Some(directory) = walk.soon.pop_front().or_else(|| walk.last.pop_front()) {
            if walk.other_names == 0 {
                walk.found.cut = true;
                break;
            }
            walk.look_at(&directory, Turn::Later);
        } else {
            break;
        }
    }
    walk.found
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    First,
    Later,
}

struct Walk<'a> {
    tree: &'a Path,
    found: Survey,
    /// What was looked for by its name, and is not to be found a second time.
    seen: HashSet<PathBuf>,
    /// Git's own directories, and those with a known place.
    first: VecDeque<PathBuf>,
    soon: VecDeque<PathBuf>,
    /// Large and seldom of interest.
    last: VecDeque<PathBuf>,
    /// How many names may still be looked at.
    first_names: usize,
    other_names: usize,
    files: usize,
}

struct Listing {
    entries: Vec<(OsString, FileType)>,
    is_whole: bool,
}

impl Walk<'_> {
    /// Something with a known place below a directory, and every directory on the way to it.
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

    fn look_at(&mut self, directory: &Path, turn: Turn) {
        let Some(listing) = self.list(directory, turn) else {
            // Nothing is known of it, and its owner can open it inside.
            self.shield_whole(directory);
            return;
        };
        if !listing.is_whole {
            self.found.cut = true;
            if let Some(nest) = nest_of(directory) {
                self.found.control.push(nest);
                return;
            }
        }
        let mut entries = listing.entries;
        if !listing.is_whole {
            let known = GitMarks::NAMES.iter().copied();
            let known = known.chain(GIT_DIRECTORY.iter().map(|entry| entry.name));
            for name in known.chain(GIT_NESTS.iter().copied()) {
                let there = std::fs::symlink_metadata(self.tree.join(directory).join(name));
                if let (Ok(meta), false) = (there, entries.iter().any(|(seen, _)| seen == name)) {
                    entries.push((name.into(), meta.file_type()));
                }
            }
        }
        let git = git_kind(self.tree, directory, &entries);
        if let Some(kind) = git {
            self.found.git_directories.push(GitDirectory { path: directory.to_owned(), kind });
        }
        for (name, kind) in entries {
            let path = directory.join(&name);
            if self.seen.contains(&path) {
                continue;
            }
            match git {
                Some(_) => self.in_git(path, &name, kind),
                None => {
                    let turn = if nest_of(&path).is_some() { Turn::First } else { Turn::Later };
                    self.elsewhere(path, &name, kind, turn);
                }
            }
        }
    }

    /// `None`: it cannot be read.
    fn list(&mut self, directory: &Path, turn: Turn) -> Option<Listing> {
        let left = match turn {
            Turn::First => &mut self.first_names,
            Turn::Later => &mut self.other_names,
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
        let is_control = later::in_git_directory(Path::new(name)).is_some();
        if is_control && kind.is_symlink() {
            self.shield_link(path);
        } else if is_control || kind.is_symlink() {
            self.found.control.push(path);
        } else if kind.is_dir() {
            if GIT_DATA.iter().any(|data| is(name, data)) {
                self.last.push_back(path);
            } else if nest_of(&path).is_some() {
                self.first.push_back(path);
            } else {
                self.soon.push_back(path);
            }
        } else {
            self.look_for_privileges(path, kind);
        }
    }

    fn elsewhere(&mut self, path: PathBuf, name: &OsStr, kind: FileType, turn: Turn) {
        // With the whole path: the tree itself may be a directory whose entries count.
        let whole = self.tree.join(&path);
        if kind.is_symlink() {
            if is_control(later::classify_link(&whole)) && !is_dependency(&path) {
                self.shield_link(path);
            }
            return;
        }
        let is_git = kind.is_dir() && is(name, ".git");
        let counts = !is_git && is_control(later::classify(&whole)) && !is_dependency(&path);
        if counts {
            self.found.control.push(path);
        } else if is_git {
            self.first.push_back(path);
        } else if kind.is_dir() {
            if DEPENDENCIES.iter().any(|large| is(name, large)) {
                self.last.push_back(path);
                return;
            }
            // Before anything else of what lies in it.
            if turn == Turn::Later {
                self.look_for(&path, Path::new(".git"));
            }
            match turn {
                Turn::First => self.first.push_back(path),
                Turn::Later => self.soon.push_back(path),
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

fn is_control(later: Option<later::Later>) -> bool {
    later.is_some_and(|later| later.class == Class::Control)
}

fn is_marked(path: &Path, meta: &Metadata) -> bool {
    meta.is_file() && is_privileged(path, meta.mode())
}

fn is_dependency(path: &Path) -> bool {
    path.iter().any(|name| DEPENDENCIES.iter().any(|large| is(name, large)))
}

/// Where a path lies in what a git directory has for its submodules and worktrees: the whole of that.
fn nest_of(path: &Path) -> Option<PathBuf> {
    let mut above = path.ancestors().filter(|above| {
        let is_nest = above.file_name().is_some_and(|name| GIT_NESTS.iter().any(|it| is(name, it)));
        let holder = above.parent().and_then(Path::file_name);
        is_nest && holder.is_some_and(|name| is(name, ".git"))
    });
    above.next().map(Path::to_owned)
}

/// As git tells one: by what it holds. One by that name counts while it is being made, too.
fn git_kind(tree: &Path, directory: &Path, entries: &[(OsString, FileType)]) -> Option<GitKind> {
    let marks = GitMarks::of(entries.iter().map(|(name, _)| name.as_os_str()));
    let by_name =
        || directory.file_name().or(tree.file_name()).is_some_and(|name| is(name, ".git"));
    if marks.head && marks.commondir && !marks.objects {
        Some(GitKind::OfWorktree)
    } else if marks.is_git_directory() || by_name() {
        Some(GitKind::Whole)
    } else {
        None
    }
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

    fn control(tree: &Path) -> Vec<String> {
        let mut found: Vec<String> =
            survey(tree).control.iter().map(|path| path.to_string_lossy().into_owned()).collect();
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
        let git: Vec<_> = survey(dir.path())
            .git_directories
            .into_iter()
            .map(|git| (git.path.to_string_lossy().into_owned(), git.kind))
            .collect();
        let expected = [
            (".git".to_owned(), GitKind::Whole),
            ("bare".to_owned(), GitKind::Whole),
            (".git/modules/lib".to_owned(), GitKind::Whole),
            (".git/worktrees/w".to_owned(), GitKind::OfWorktree),
        ];
        for git_directory in expected {
            assert!(git.contains(&git_directory), "{git_directory:?} in {git:?}");
        }
        assert_eq!(git.len(), 4, "{git:?}");
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
        assert!(!survey(&tree).cut, "the control");
        for at in 0..=MOST_NAMES {
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
        assert!(survey(&tree).cut);
        // Where git's own are too many, all of them are kept as they are.
        for at in 0..=MOST_NAMES {
            fs::create_dir(tree.join(format!(".git/modules/z{at}"))).unwrap();
        }
        assert!(control(&tree).contains(&".git/modules".to_owned()));
        assert!(control(&tree).contains(&".git/hooks".to_owned()));
        let found = survey(&tree).git_directories;
        assert!(found.iter().any(|git| git.path == Path::new(".git")), "{found:?}");
    }

    #[test]
    fn repositories_beside_a_crowd_are_found() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let tree = fs::canonicalize(dir.path()).unwrap();
        make(&tree, &["sub/.git/config", "sub/deep/.envrc", "data/x"]);
        for at in 0..MOST_NAMES / 2 {
            fs::File::create(tree.join(format!("data/z{at}"))).unwrap();
        }
        assert_eq!(control(&tree), ["sub/.git/config", "sub/deep/.envrc"]);
        assert!(!survey(&tree).cut);
    }
}
