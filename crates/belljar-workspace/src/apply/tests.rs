use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_spec::{Attributes, Backing, LayeredTree, Moment};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::fault::tests::die_at;
use super::*;
use crate::open::write_layers;
use crate::select::Selection;

/// A real tree, a run that changed it, and a home.
pub(super) struct World {
    _directory: tempfile::TempDir,
    pub(super) home: Home,
    pub(super) run: belljar_spec::RunId,
    pub(super) lower: PathBuf,
    pub(super) upper: PathBuf,
}

impl World {
    pub(super) fn new(fill: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open_at(directory.path().join("home")).unwrap();
        let run = belljar_spec::RunId::from_parts(1_700_000_000_000, 7);
        let lower = directory.path().join("tree");
        fs::create_dir(&lower).unwrap();
        fill(&lower);
        let upper = home.run_dir(&run).join("upper/0/data");
        fs::create_dir_all(&upper).unwrap();
        std::thread::sleep(Duration::from_millis(15));
        fs::write(directory.path().join("clock"), "").unwrap();
        let clock = fs::metadata(directory.path().join("clock")).unwrap();
        std::thread::sleep(Duration::from_millis(15));
        let root = fs::metadata(&lower).unwrap();
        let note = LayeredTree {
            number: 0,
            source: OsText::from(lower.as_path()),
            device: root.dev(),
            inode: root.ino(),
            target: "/workspace".into(),
            backing: Backing::Overlay { attributes: Attributes::User },
            since: Moment { secs: clock.ctime(), nanos: clock.ctime_nsec() as u32 },
            hidden: Vec::new(),
            git_part: None,
            apply: Default::default(),
        };
        write_layers(&home.run_dir(&run), &[note]).unwrap();
        Self { _directory: directory, home, run, lower, upper }
    }

    pub(super) fn removed(&self, path: &str) {
        mknodat(CWD, self.upper.join(path), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }

    pub(super) fn draft(&self) -> Draft {
        self.draft_of(Selection::Everything, OnConflict::Refuse)
    }

    pub(super) fn draft_of(&self, selection: Selection, on_conflict: OnConflict) -> Draft {
        Draft::make(&self.home, &self.run, |_| selection.clone(), on_conflict).unwrap()
    }

    pub(super) fn apply(&self) -> Applied {
        let draft = self.draft();
        assert!(!draft.has_conflicts(), "{:?}", draft.trees[0].conflicts);
        apply(&self.home, &draft).unwrap()
    }

    /// As the supervisor does it while the run is live.
    pub(super) fn capture(&self) {
        let review = crate::Review::open(&self.home, &self.run).unwrap();
        let (directory, tree) = (self.home.run_dir(&self.run), &review.trees[0]);
        crate::baseline::capture(&directory, tree, &tree.changes().unwrap()).unwrap();
    }

    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.lower.join(path)).unwrap()
    }
}

/// Kind, mode and content of everything.
pub(super) fn snapshot(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = if meta.is_dir() {
                pending.push(path.clone());
                Vec::new()
            } else if meta.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            found.insert(path.strip_prefix(root).unwrap().to_owned(), (meta.mode(), content));
        }
    }
    found
}

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// One of everything.
pub(super) fn everything() -> World {
    let world = World::new(|lower| {
        fs::create_dir_all(lower.join("gone/below")).unwrap();
        fs::create_dir_all(lower.join("becomes-file")).unwrap();
        fs::create_dir_all(lower.join("stays")).unwrap();
        fs::write(lower.join("gone/below/a"), "a").unwrap();
        fs::write(lower.join("gone/b"), "b").unwrap();
        fs::write(lower.join("becomes-file/c"), "c").unwrap();
        fs::write(lower.join("becomes-directory"), "d").unwrap();
        fs::write(lower.join("changed"), "old\n").unwrap();
        fs::write(lower.join("mode"), "same").unwrap();
        fs::write(lower.join("stays/untouched"), "untouched").unwrap();
        symlink("changed", lower.join("link")).unwrap();
    });
    let upper = &world.upper;
    world.removed("gone");
    fs::write(upper.join("becomes-file"), "a file").unwrap();
    fs::create_dir_all(upper.join("becomes-directory/deep")).unwrap();
    fs::write(upper.join("becomes-directory/deep/e"), "e").unwrap();
    fs::write(upper.join("changed"), "new\n").unwrap();
    fs::write(upper.join("mode"), "same").unwrap();
    set_mode(upper.join("mode"), 0o700);
    symlink("stays", upper.join("link")).unwrap();
    fs::create_dir_all(upper.join("new/one/two")).unwrap();
    fs::write(upper.join("new/one/two/f"), "f").unwrap();
    fs::write(upper.join("new/program"), "#!").unwrap();
    set_mode(upper.join("new/program"), 0o4755);
    set_mode(upper.join("new/one"), 0o550);
    fs::create_dir(upper.join("stays")).unwrap();
    fs::write(upper.join("stays/g"), "g").unwrap();
    world
}

pub(super) fn expected(
    before: &BTreeMap<PathBuf, (u32, Vec<u8>)>,
) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    const FILE: u32 = 0o100000;
    const DIRECTORY: u32 = 0o040000;
    let mut after = before.clone();
    after.retain(|path, _| !path.starts_with("gone") && !path.starts_with("becomes-file"));
    let mut put = |path: &str, mode: u32, content: &str| {
        after.insert(PathBuf::from(path), (mode, content.as_bytes().to_vec()));
    };
    put("becomes-file", FILE | 0o644, "a file");
    put("becomes-directory", DIRECTORY | 0o755, "");
    put("becomes-directory/deep", DIRECTORY | 0o755, "");
    put("becomes-directory/deep/e", FILE | 0o644, "e");
    put("changed", FILE | 0o644, "new\n");
    put("mode", FILE | 0o700, "same");
    put("link", 0o120777, "stays");
    put("new", DIRECTORY | 0o755, "");
    put("new/one", DIRECTORY | 0o550, "");
    put("new/one/two", DIRECTORY | 0o755, "");
    put("new/one/two/f", FILE | 0o644, "f");
    put("new/program", FILE | 0o755, "#!"); // not setuid
    put("stays/g", FILE | 0o644, "g");
    after
}

#[test]
fn everything_is_taken_over() {
    let world = everything();
    let before = snapshot(&world.lower);
    world.apply();
    assert_eq!(snapshot(&world.lower), expected(&before));
    assert!(world.draft().is_empty(), "{:?}", world.draft());
    assert_eq!(Journal::runs(&world.home).unwrap(), []);
}

#[test]
fn whoever_dies_at_any_point_leaves_before_or_after() {
    let (mut befores, mut afters) = (0, 0);
    for number in 0.. {
        let world = everything();
        let before = snapshot(&world.lower);
        let draft = world.draft();
        let done = die_at(number, || apply(&world.home, &draft).unwrap());
        let survived = done.is_some();
        // Dying again on the way back changes nothing.
        for again in 0..number % 7 {
            let lock = ApplyLock::take(&world.home).unwrap();
            let _ = die_at(again, || recover(&world.home, &world.run, &lock).unwrap());
        }
        for recovered in recover_all(&world.home) {
            recovered.unwrap();
        }
        let found = snapshot(&world.lower);
        if found == before {
            befores += 1;
            assert!(!survived);
        } else {
            assert_eq!(found, expected(&before), "died at {number}");
            afters += 1;
        }
        assert_eq!(Journal::runs(&world.home).unwrap(), []);
        // What was moved there and back is not taken for somebody else's work.
        assert!(!world.draft().has_conflicts(), "{:?}", world.draft());
        if survived {
            break;
        }
    }
    assert!(befores > 20 && afters > 2, "{befores} before, {afters} after");
}

#[test]
fn a_tree_that_moved_on_is_merged_or_nothing_is_done() {
    let world = World::new(|lower| {
        fs::write(lower.join("both"), "1\n2\n3\n4\n5\n").unwrap();
        fs::write(lower.join("touched"), "same\n").unwrap();
        fs::write(lower.join("clash"), "1\n2\n3\n").unwrap();
    });
    fs::write(world.upper.join("both"), "1\n2\n3\n4\nfive\n").unwrap();
    fs::write(world.upper.join("clash"), "1\ntwo\n3\n").unwrap();
    fs::write(world.upper.join("touched"), "same\n").unwrap();
    set_mode(world.upper.join("touched"), 0o600);
    world.capture();
    fs::write(world.lower.join("both"), "one\n2\n3\n4\n5\n").unwrap();
    let draft = world.draft();
    assert!(!draft.has_conflicts(), "{:?}", draft.trees[0].conflicts);
    // The control: a change of the same lines.
    fs::write(world.lower.join("clash"), "1\nzwei\n3\n").unwrap();
    let draft = world.draft();
    let [conflict] = &draft.trees[0].conflicts[..] else { panic!("{draft:?}") };
    assert_eq!(conflict.path, "clash".into());
    assert_eq!(conflict.clashes[0].ours, b"zwei\n");
    assert_eq!(conflict.clashes[0].theirs, b"two\n");
    let draft = world.draft_of(Selection::Everything, OnConflict::TakeTheRuns);
    apply(&world.home, &draft).unwrap();
    assert_eq!(world.read("both"), "one\n2\n3\n4\nfive\n");
    assert_eq!(world.read("clash"), "1\ntwo\n3\n");
    // And once more, after the run went on: its new lines come, and nobody's are lost.
    fs::write(world.upper.join("both"), "1\n2\n3\n4\nfive\nsix\n").unwrap();
    fs::write(world.upper.join("clash"), "1\ntwo\n3\nfour\n").unwrap();
    world.apply();
    assert_eq!(world.read("both"), "one\n2\n3\n4\nfive\nsix\n");
    assert_eq!(world.read("clash"), "1\ntwo\n3\nfour\n");
}

#[test]
fn what_somebody_else_did_meanwhile_is_a_conflict() {
    let world = World::new(|lower| {
        fs::write(lower.join("removed-here"), "x").unwrap();
        fs::write(lower.join("removed-there"), "x").unwrap();
        fs::write(lower.join("untouched"), "x").unwrap();
        fs::write(lower.join("binary"), b"\0\x01").unwrap();
        fs::create_dir(lower.join("directory")).unwrap();
    });
    fs::write(world.upper.join("removed-here"), "run").unwrap();
    world.removed("removed-there");
    world.removed("untouched");
    world.removed("directory");
    fs::write(world.upper.join("binary"), b"\0\x02").unwrap();
    fs::write(world.upper.join("created"), "run").unwrap();
    world.capture();
    assert!(!world.draft().has_conflicts());
    fs::remove_file(world.lower.join("removed-here")).unwrap();
    fs::write(world.lower.join("removed-there"), "y").unwrap();
    fs::write(world.lower.join("binary"), b"\0\x03").unwrap();
    fs::write(world.lower.join("created"), "here").unwrap();
    fs::write(world.lower.join("directory/late"), "late").unwrap();
    let before = snapshot(&world.lower);
    let draft = world.draft();
    let found: Vec<_> = draft.trees[0]
        .conflicts
        .iter()
        .map(|conflict| (conflict.path.to_str().unwrap(), conflict.what))
        .collect();
    assert_eq!(
        found,
        [
            ("binary", Clashing::BothModified),
            ("created", Clashing::BothCreated),
            ("directory/late", Clashing::RemovedByTheRun),
            ("removed-here", Clashing::RemovedHere),
            ("removed-there", Clashing::RemovedByTheRun),
        ]
    );
    assert_eq!(snapshot(&world.lower), before);
}

#[test]
fn a_change_between_the_look_and_the_rename_undoes_everything() {
    let world = everything();
    let draft = world.draft();
    fs::write(world.lower.join("changed"), "mine").unwrap();
    let before = snapshot(&world.lower);
    let refused = apply(&world.home, &draft).unwrap_err();
    assert!(matches!(&refused, ApplyError::ChangedHere { path } if *path == "changed".into()));
    assert_eq!(snapshot(&world.lower), before);
    everything().apply(); // the control
}

#[test]
fn a_file_that_the_run_changes_meanwhile_is_not_taken() {
    let world = everything();
    let draft = world.draft();
    let before = snapshot(&world.lower);
    std::thread::sleep(Duration::from_millis(15));
    fs::write(world.upper.join("changed"), "NEW\n").unwrap();
    let refused = apply(&world.home, &draft).unwrap_err();
    assert!(matches!(&refused, ApplyError::ChangedByTheRun { path } if *path == "changed".into()));
    assert_eq!(snapshot(&world.lower), before);
    world.apply();
}

#[test]
fn a_path_takes_what_is_below_it_and_the_directories_it_needs() {
    let world = everything();
    let before = snapshot(&world.lower);
    let selection = Selection::Paths(vec!["new/one/two".into()]);
    let draft = world.draft_of(selection, OnConflict::Refuse);
    assert!(draft.trees[0].not_selected > 0);
    apply(&world.home, &draft).unwrap();
    let mut after = before.clone();
    for (path, entry) in expected(&before) {
        if path.starts_with("new") && !path.ends_with("program") {
            after.insert(path, entry);
        }
    }
    assert_eq!(snapshot(&world.lower), after);
}
