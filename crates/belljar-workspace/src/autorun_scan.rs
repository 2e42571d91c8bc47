//! Finds the files in a tree that a run could write which the host executes later. Runs when the run has ended, and goes
//! by when inodes changed.
//!
//! Only names that matter are looked at, so that a large tree costs little more than its listing; and that is
//! bounded in time. Changes by another program in that time are reported as well: the two cannot be told
//! apart.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_bind::SurveyedTree;
use belljar_spec::autorun::{self, Autorun, Class, GitMarks, is};
use belljar_spec::{
    AutorunChange, AutorunFile, GitPart, Moment, NewControlFile, OsText, WorkspaceReport,
};
use belljar_tree::{
    Dir, DirEntry, DirQueue, EntryKind, FinalLink, OpenDirError, QueueBounds, QueueError,
    QueuedDir, Turn,
};
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, statx};
use rustix::io::Errno;

use super::bounds::{Listing, MAX_DEPTH, MAX_DIRECTORY, MAX_HELD};
use super::git_config;
use super::withheld::MAX_CONFIG;

/// However short the run was.
const LEAST: Duration = Duration::from_secs(2);
/// One part in so many of the run's own time.
const SHARE: u32 = 20;
/// Between two looks at the clock.
const STEP: usize = 256;

/// A tree that the run could write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenTree {
    pub path: PathBuf,
    /// Where it appeared inside.
    pub target: OsText,
    /// What was in it before the run.
    pub before: Option<SurveyedTree>,
    /// Where the tree is a repository that other worktrees have too: which part is the run's.
    pub git_part: Option<GitPart>,
}

impl WrittenTree {
    /// Whether a control file at this path was not there before the run. `is_born` says that its inode is new.
    fn is_new(&self, path: &Path, is_born: bool) -> bool {
        match &self.before {
            None => is_born,
            // A directory on the list stands for all that is in it.
            Some(before) if before.control.iter().any(|there| path.starts_with(there)) => false,
            // A file that was moved to that name is as new as one that was made.
            Some(before) => is_born || !before.cut,
        }
    }
}

/// How long a look may take after a run of that length.
pub(super) fn time_limit(run: Duration) -> Duration {
    LEAST.max(run / SHARE)
}

pub(super) fn look(
    tree: &WrittenTree,
    since: Moment,
    until: Instant,
    report: &mut WorkspaceReport,
) -> Result<(), Errno> {
    let root = match Dir::open(&tree.path, FinalLink::Refuse) {
        // A single file, which was given by name.
        Err(OpenDirError::NotDirectory { .. } | OpenDirError::Link { .. }) => return Ok(()),
        root => root?,
    };
    let bounds = QueueBounds { depth: MAX_DEPTH - 1, path_bytes: MAX_DIRECTORY, memory: MAX_HELD };
    let queue = DirQueue::new(root, None, bounds);
    let is_there = |name: &&&str| queue.root().stat(Path::new(**name)).is_ok();
    let marks = GitMarks::of(GitMarks::NAMES.iter().filter(is_there).map(|name| OsStr::new(*name)));
    let is_git = marks.is_git_directory();
    let known = BTreeSet::new();
    let mut scan = AutorunScan { tree, is_git, since, until, report, queue, known };
    // In directories that are not looked into as a whole.
    if let Some(part) = &tree.git_part {
        part.named_below().iter().for_each(|known| scan.look_for(known));
    }
    // What has a known place is reported however large the rest is.
    let known = match scan.queue.root().entries("") {
        Ok(top) => autorun::known_in_listing(top.map(|entry| entry.map(|entry| entry.name))),
        Err(_) => autorun::known_at_top().collect(),
    };
    known.into_iter().for_each(|known| scan.look_for(known));
    while let Some(directory) = scan.queue.pop() {
        if let Looked::OutOfTime = scan.look_at(&directory) {
            scan.report.cut = true;
            break;
        }
    }
    Ok(())
}

enum Looked {
    Whole,
    OutOfTime,
}

/// Where a directory is in a git directory, if what is below it counts.
type InsideGit = Option<PathBuf>;

/// Git goes by it the next time a person works in that worktree.
const OF_ANOTHER_WORKTREE: Autorun =
    Autorun { class: Class::Control, why: "it is about another worktree of the repository" };

struct AutorunScan<'a> {
    tree: &'a WrittenTree,
    /// The tree itself is a git directory.
    is_git: bool,
    since: Moment,
    until: Instant,
    report: &'a mut WorkspaceReport,
    queue: DirQueue<InsideGit>,
    /// What was looked for already.
    known: BTreeSet<PathBuf>,
}

impl AutorunScan<'_> {
    fn look_for(&mut self, known: &Path) {
        let (Some(parent), Some(name)) = (known.parent(), known.file_name()) else { return };
        let Ok(found) = self.queue.root().stat(known) else { return };
        match found.kind() {
            // All of it counts, but for a repository, whose parts are known by themselves.
            EntryKind::Directory if autorun::is(name, ".git") => {}
            EntryKind::Directory => {
                if self.known.insert(known.to_owned()) {
                    let waits = self.queue.push_path(known.to_owned(), Turn::First, None);
                    self.note_left_out(waits);
                }
            }
            kind => {
                let Ok(here) = self.queue.root().open_dir(parent) else { return };
                if self.known.insert(known.to_owned()) {
                    self.check_file(&here, (known.to_owned(), kind), name, None);
                }
            }
        }
    }

    fn look_at(&mut self, directory: &QueuedDir<InsideGit>) -> Looked {
        // One that vanished or became a link is none of ours.
        let Ok(here) = directory.dir() else { return Looked::Whole };
        let Ok(listing) = here.entries("") else { return Looked::Whole };
        let mut entries: Vec<DirEntry> = Vec::new();
        let mut most = Listing::of(directory.path());
        for entry in listing {
            let Ok(entry) = entry else { break };
            if !most.take(entry.name.as_encoded_bytes()) {
                self.report.cut = true;
                break;
            }
            entries.push(entry);
            if entries.len().is_multiple_of(STEP) && Instant::now() > self.until {
                return Looked::OutOfTime;
            }
        }
        let inside_git = match is_git(directory.path(), &entries) {
            true => Some(Path::new("")),
            false => directory.payload.as_deref(),
        };
        for (at, DirEntry { name, kind }) in entries.iter().enumerate() {
            if at.is_multiple_of(STEP) && Instant::now() > self.until {
                return Looked::OutOfTime;
            }
            let path = directory.path().join(name);
            if self.known.contains(&path) {
                continue;
            }
            match kind {
                EntryKind::Directory => self.wait_for(directory, name, inside_git),
                kind => self.check_file(here, (path, *kind), name, inside_git),
            }
        }
        Looked::Whole
    }

    /// What was there is read-only inside; so only what is new is the run's.
    fn of_another(&self, path: &Path) -> Option<Autorun> {
        let is_anothers = |part: &GitPart| part.is_of_another(path) && self.tree.is_new(path, true);
        self.tree.git_part.as_ref().filter(|part| is_anothers(part)).map(|_| OF_ANOTHER_WORKTREE)
    }

    fn note_left_out(&mut self, waits: Result<(), QueueError>) {
        self.report.cut |= waits.is_err();
    }

    fn wait_for(&mut self, above: &QueuedDir<InsideGit>, name: &OsStr, inside_git: Option<&Path>) {
        let is_root = inside_git.is_some_and(|inside| inside.as_os_str().is_empty());
        if is_root && autorun::GIT_DATA.iter().any(|data| is(name, data)) {
            return;
        }
        let inside = inside_git.map(|inside| inside.join(name));
        let inside_git = inside.filter(|inside| autorun::in_git_directory(inside).is_some());
        let turn = match autorun::DEPENDENCIES.iter().any(|large| is(name, large)) {
            true => Turn::Last, // large and seldom of interest
            false => Turn::Later,
        };
        let waits = self.queue.push(above, name, turn, inside_git);
        self.note_left_out(waits);
    }

    fn check_file(
        &mut self,
        here: &Dir,
        (path, kind): (PathBuf, EntryKind),
        name: &OsStr,
        inside_git: Option<&Path>,
    ) {
        // With the whole path: the tree itself may be a directory whose entries count.
        let whole = self.tree.path.join(&path);
        let of_file = || {
            let by_place = inside_git.and_then(|it| autorun::in_git_directory(&it.join(name)));
            let in_git = || autorun::classify(&Path::new(".git").join(&path));
            let known = by_place.or_else(|| autorun::classify(&whole));
            known.or_else(|| self.is_git.then(in_git).flatten()).or_else(|| self.of_another(&path))
        };
        // Most names of a tree mean nothing, and are not looked at any further.
        if kind == EntryKind::File && of_file().is_none() {
            return;
        }
        let Some((stat, kind)) = changed(here, name, self.since) else { return };
        let mark = match kind {
            FileType::Symlink => of_file().or_else(|| autorun::classify_link(&whole)),
            FileType::RegularFile => of_file(),
            _ => None, // a device, a FIFO or a socket is never executed
        };
        let is_package = |later: &Autorun| {
            later.class == Class::Project
                && path.iter().any(|name| autorun::DEPENDENCIES.iter().any(|large| is(name, large)))
        };
        let Some(mark) = mark.filter(|mark| !is_package(mark)) else { return };
        let born = Moment { secs: stat.stx_btime.tv_sec, nanos: stat.stx_btime.tv_nsec };
        let knows_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        let is_new = knows_birth && born >= self.since;
        let is_control = mark.class == Class::Control && self.tree.is_new(&path, is_new);
        if is_control && !is_harmless_config(here, name, kind) {
            self.report.add_new_control_file(NewControlFile {
                tree: OsText::from(self.tree.path.as_path()),
                target: self.tree.target.clone(),
                path: OsText::from(path.as_path()),
                inode: stat.stx_ino,
                changed: Moment { secs: stat.stx_ctime.tv_sec, nanos: stat.stx_ctime.tv_nsec },
            });
        }
        self.report.add_autorun(AutorunFile {
            target: self.tree.target.clone(),
            path: OsText::from(path),
            class: mark.class,
            why: mark.why.to_owned(),
            change: if is_new { AutorunChange::Created } else { AutorunChange::Modified },
        });
    }
}

fn changed(here: &Dir, name: &OsStr, since: Moment) -> Option<(Statx, FileType)> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = statx(here, name, AtFlags::SYMLINK_NOFOLLOW, wanted).ok()?;
    let changed = Moment { secs: stat.stx_ctime.tv_sec, nanos: stat.stx_ctime.tv_nsec };
    let kind = FileType::from_raw_mode(u32::from(stat.stx_mode));
    (changed >= since).then_some((stat, kind))
}

/// What `git init` writes is no reason for an alarm.
fn is_harmless_config(here: &Dir, name: &OsStr, kind: FileType) -> bool {
    if kind != FileType::RegularFile || !is(name, "config") {
        return false;
    }
    let text = here.read_file(name, MAX_CONFIG);
    text.is_ok_and(|text| git_config::is_harmless(None, &text))
}

/// As git recognizes one: by what it holds.
fn is_git(directory: &Path, entries: &[DirEntry]) -> bool {
    directory.file_name().is_some_and(|name| is(name, ".git"))
        || GitMarks::of(entries.iter().map(|entry| entry.name.as_os_str())).is_git_directory()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::Mode;

    use super::*;

    fn seen(tree: &Path, since: Moment, until: Instant) -> WorkspaceReport {
        let mut report = WorkspaceReport::default();
        let tree = WrittenTree {
            path: tree.to_owned(),
            target: OsText::from("/workspace"),
            before: None,
            git_part: None,
        };
        look(&tree, since, until, &mut report).unwrap();
        report
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    fn make(tree: &Path, files: &[&str]) {
        for file in files {
            let path = tree.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
    }

    fn later_moment() -> Moment {
        std::thread::sleep(Duration::from_millis(30));
        let now = Moment::from(std::time::SystemTime::now());
        std::thread::sleep(Duration::from_millis(30));
        now
    }

    #[test]
    fn tells_what_was_made_or_changed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        make(tree, &["package.json", "Makefile", "main.rs", "bare/HEAD", "bare/config"]);
        make(tree, &["bare/objects/x", "bare/refs/x"]);
        let since = later_moment();
        make(tree, &["package.json", "main.rs", "new.rs", ".git/hooks/pre-commit", ".git/HEAD"]);
        make(tree, &["bare/hooks/update", "bare/hooks/update.sample", ".git/hooks/x.sample"]);
        make(tree, &["bare/config", "node_modules/x/package.json", ".git/refs/heads/config"]);
        symlink("elsewhere", tree.join(".vscode")).unwrap();
        symlink("elsewhere", tree.join("plain")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            tree.join(".envrc"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let report = seen(tree, since, soon());
        let mut told: Vec<_> = report
            .autorun
            .iter()
            .map(|file| (file.path.to_string(), file.class, file.change))
            .collect();
        told.sort_by(|a, b| a.0.cmp(&b.0));
        let expected = [
            (".git/hooks/pre-commit".to_owned(), Class::Control, AutorunChange::Created),
            (".vscode".to_owned(), Class::Control, AutorunChange::Created),
            ("bare/config".to_owned(), Class::Control, AutorunChange::Modified),
            ("bare/hooks/update".to_owned(), Class::Control, AutorunChange::Created),
            ("package.json".to_owned(), Class::Project, AutorunChange::Modified),
        ];
        assert_eq!(told, expected);
        assert!(!report.cut);
    }

    #[test]
    fn tells_of_new_names_of_other_worktrees_and_of_what_a_rebase_runs() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        make(tree, &["HEAD", "index", "objects/x", "refs/heads/main", "logs/HEAD"]);
        make(tree, &["worktrees/own/HEAD", "worktrees/own/commondir"]);
        let since = later_moment();
        // What was there, and what a commit writes.
        make(tree, &["HEAD", "index", "objects/y", "refs/heads/main", "logs/refs/heads/main"]);
        make(tree, &["worktrees/own/HEAD", "worktrees/own/index", "logs/HEAD"]);
        make(tree, &["MERGE_HEAD", "refs/bisect/bad", "worktrees/new/HEAD"]);
        make(tree, &["worktrees/own/rebase-merge/git-rebase-todo"]);
        let told = |part: Option<GitPart>| {
            let before = SurveyedTree {
                path: tree.to_owned(),
                control: ["HEAD", "index", "logs/HEAD"].map(PathBuf::from).to_vec(),
                cut: false,
            };
            let target = OsText::from("/repository");
            let tree =
                WrittenTree { path: tree.to_owned(), target, before: Some(before), git_part: part };
            let mut report = WorkspaceReport::default();
            look(&tree, since, soon(), &mut report).unwrap();
            let names = |files: Vec<&OsText>| {
                let mut names: Vec<String> = files.into_iter().map(OsText::to_string).collect();
                names.sort();
                names
            };
            let new = names(report.new_control_files.iter().map(|file| &file.path).collect());
            (new, names(report.autorun.iter().map(|file| &file.path).collect()))
        };
        let todo = "worktrees/own/rebase-merge/git-rebase-todo";
        let new = ["MERGE_HEAD", "refs/bisect/bad", "worktrees/new/HEAD"];
        let (found, autorun) = told(Some(GitPart::Linked { name: "own".into() }));
        assert_eq!(found, new);
        assert!(autorun.contains(&todo.to_owned()), "{autorun:?}");
        // The control: a repository that nobody else works in.
        assert_eq!(told(None), (Vec::new(), vec![todo.to_owned()]));
    }

    #[test]
    fn says_that_there_was_no_time() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), &["a/package.json"]);
        let report = seen(dir.path(), Moment { secs: 0, nanos: 0 }, Instant::now());
        assert!(report.cut);
        let control = seen(dir.path(), Moment { secs: 0, nanos: 0 }, soon());
        assert!(!control.cut && control.autorun.len() == 1);
    }

    #[test]
    fn what_has_a_known_place_is_told_of_without_time_for_the_rest() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        make(dir.path(), &[".git/config", ".git/hooks/pre-commit", ".envrc", ".vscode/tasks.json"]);
        for at in 0..1000 {
            fs::File::create(dir.path().join(format!("z{at}"))).unwrap();
        }
        let beginning = Moment { secs: 0, nanos: 0 };
        let paths = |report: &WorkspaceReport| -> Vec<String> {
            let mut paths: Vec<_> = report.autorun.iter().map(|it| it.path.to_string()).collect();
            paths.sort();
            paths
        };
        let all = [".envrc", ".git/config", ".git/hooks/pre-commit", ".vscode/tasks.json"];
        assert_eq!(paths(&seen(dir.path(), beginning, soon())), all, "each is told of once");
        let hurried = seen(dir.path(), beginning, Instant::now());
        assert!(hurried.cut);
        assert_eq!(paths(&hurried), [".envrc", ".git/config", ".vscode/tasks.json"]);
    }
}
