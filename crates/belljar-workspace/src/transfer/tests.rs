//! A tree goes out, is changed there, comes back, and is merged into the copy.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_spec::wire::archive::{Entry, EntryKind};

use super::*;

/// A copy that was sent, and the tree that the sandbox then had.
struct Trees {
    temp: tempfile::TempDir,
}

impl Trees {
    fn new() -> Self {
        let trees = Self { temp: tempfile::tempdir().unwrap() };
        let sent = trees.sent();
        fs::create_dir_all(sent.join("d/e")).unwrap();
        for (path, content) in [("a", "one"), ("b", "two"), ("d/x", "three"), ("d/e/y", "four")] {
            fs::write(sent.join(path), content).unwrap();
        }
        symlink("/etc/passwd", sent.join("link")).unwrap();
        fs::set_permissions(sent.join("a"), fs::Permissions::from_mode(0o664)).unwrap();
        trees
    }

    fn sent(&self) -> PathBuf {
        self.temp.path().join("data")
    }

    fn received(&self) -> PathBuf {
        self.temp.path().join("received")
    }

    /// What goes through the channel, unpacked again.
    fn receive(&self, mut sender: Sender, links: LinkTargets) -> CopyReport {
        let limits = CopyLimits::default();
        let mut receiver =
            Receiver::begin(&self.received(), None, limits).unwrap().with_links(links);
        loop {
            let mut piece = Vec::new();
            sender.fill(&mut piece).unwrap();
            if piece.is_empty() {
                return receiver.finish().unwrap();
            }
            receiver.feed(&piece).unwrap();
        }
    }

    fn merge(&self, skipped: &[&str]) -> ReceivedMerge {
        let skipped: Vec<PathBuf> = skipped.iter().map(PathBuf::from).collect();
        let until = Instant::now() + Duration::from_secs(60);
        merge_received(&self.received(), &self.sent(), &skipped, until).unwrap()
    }
}

fn changed(path: &Path) -> (i64, i64) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.ctime(), found.ctime_nsec())
}

#[test]
fn what_did_not_change_keeps_its_inode() {
    let trees = Trees::new();
    let paths = ["a", "b", "d", "d/x", "d/e", "d/e/y", "link"];
    let before = paths.map(|path| changed(&trees.sent().join(path)));
    std::thread::sleep(Duration::from_millis(20));
    trees.receive(Sender::begin(&trees.sent()).unwrap(), LinkTargets::Anything);
    assert_eq!(trees.merge(&[]), ReceivedMerge::default());
    assert_eq!(paths.map(|path| changed(&trees.sent().join(path))), before);
}

#[test]
fn changes_of_every_kind_arrive() {
    let trees = Trees::new();
    trees.receive(Sender::begin(&trees.sent()).unwrap(), LinkTargets::Anything);
    let at = |path: &str| trees.received().join(path);
    fs::write(at("a"), "changed").unwrap();
    fs::remove_file(at("b")).unwrap();
    fs::remove_dir_all(at("d/e")).unwrap();
    fs::write(at("d/e"), "a file now").unwrap();
    fs::create_dir(at("new")).unwrap();
    fs::write(at("new/z"), "five").unwrap();
    fs::set_permissions(at("new"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(at("d/x"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::remove_file(at("link")).unwrap();
    symlink("../elsewhere", at("link")).unwrap();
    assert_eq!(trees.merge(&[]), ReceivedMerge { written: 4, removed: 1, modes: 1 });
    let sent = trees.sent();
    let read = |path: &str| fs::read_to_string(sent.join(path)).unwrap();
    assert_eq!((read("a"), read("d/e"), read("new/z")), tuple("changed", "a file now", "five"));
    assert!(!sent.join("b").exists());
    assert_eq!(fs::read_link(sent.join("link")).unwrap(), Path::new("../elsewhere"));
    let mode = |path: &str| fs::metadata(sent.join(path)).unwrap().mode() & 0o777;
    assert_eq!((mode("new"), mode("d/x"), mode("a")), (0o555, 0o700, 0o664));
}

fn tuple(a: &str, b: &str, c: &str) -> (String, String, String) {
    (a.to_owned(), b.to_owned(), c.to_owned())
}

/// What the sandbox could not read was not deleted by the run.
#[test]
fn what_was_skipped_stays_as_it_was_sent() {
    let trees = Trees::new();
    let sender = Sender::begin(&trees.sent()).unwrap().without(vec!["b".into(), "d/e".into()]);
    trees.receive(sender, LinkTargets::Anything);
    assert!(!trees.received().join("d/e").exists());
    assert_eq!(trees.merge(&["b"]), ReceivedMerge { removed: 1, ..ReceivedMerge::default() });
    assert_eq!(fs::read_to_string(trees.sent().join("b")).unwrap(), "two");
    assert!(!trees.sent().join("d/e").exists());
}

#[test]
fn links_that_leave_the_tree_are_made_only_where_nothing_follows_them() {
    let trees = Trees::new();
    let report = trees.receive(Sender::begin(&trees.sent()).unwrap(), LinkTargets::Inside);
    assert_eq!(report.skipped.len(), 1, "{report:?}");
    fs::remove_dir_all(trees.received()).unwrap();
    let report = trees.receive(Sender::begin(&trees.sent()).unwrap(), LinkTargets::Anything);
    assert_eq!(report.skipped, []);
}

/// Nothing that an archive says is written anywhere else, and a merge follows no link of it.
#[test]
fn a_link_is_never_written_through() {
    let trees = Trees::new();
    let outside = trees.temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("x"), "mine").unwrap();
    let entry = |kind, path: &str, size| Entry {
        kind,
        mode: 0o755,
        path: path.as_bytes().to_vec(),
        size,
        modified: 0,
    };
    let target = outside.to_str().unwrap();
    let mut archive = Vec::new();
    entry(EntryKind::Directory, "", 0).write(&mut archive);
    entry(EntryKind::Link, "d", target.len() as u64).write(&mut archive);
    archive.extend_from_slice(target.as_bytes());
    let begun = || {
        let receiver = Receiver::begin(&trees.received(), None, CopyLimits::default()).unwrap();
        receiver.with_links(LinkTargets::Anything)
    };
    let mut through = archive.clone();
    entry(EntryKind::File, "d/x", 1).write(&mut through);
    through.push(b'!');
    assert!(begun().feed(&through).is_err());
    entry(EntryKind::End, "", 0).write(&mut archive);
    let mut receiver = begun();
    receiver.feed(&archive).unwrap();
    receiver.finish().unwrap();
    trees.merge(&[]);
    assert!(trees.sent().join("d").is_symlink());
    assert_eq!(fs::read_to_string(outside.join("x")).unwrap(), "mine");
}
