//! Random trees and random operations, compared with what `std::fs` says of the same tree.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use belljar_tree::{
    Bounds, CopyOwner, Dir, EntryKind, FinalLink, RenameMode, Resolver, Selection, Visit,
    WalkEntry, WalkOrder, copy_tree, remove_all, walk,
};
use proptest::prelude::*;

use crate::support::Place;

#[derive(Clone, Debug)]
enum Node {
    File(Vec<u8>),
    Link(String),
    Directory(Vec<(String, Node)>),
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-d]",
        1 => "[-.~ ]{3,6}",
        1 => "\\PC{1,20}".prop_filter("a name", |name| !name.contains('/') && name != "." && name != ".."),
        1 => Just("n".repeat(255)),
    ]
    .prop_filter("no longer than a name", |name| name.len() <= 255)
}

fn target() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("..".to_owned()),
        Just("../../outside/secret".to_owned()),
        Just("/".to_owned()),
        Just("a".to_owned()),
        "[a-d]/[a-d]",
    ]
}

fn node() -> impl Strategy<Value = Node> {
    let leaf = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Node::File),
        1 => target().prop_map(Node::Link),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop::collection::vec((name(), inner), 0..6).prop_map(Node::Directory)
    })
}

fn tree() -> impl Strategy<Value = Vec<(String, Node)>> {
    prop::collection::vec((name(), node()), 0..8)
}

fn build(at: &Path, entries: &[(String, Node)]) {
    for (name, node) in entries {
        let path = at.join(name);
        if path.symlink_metadata().is_ok() {
            continue; // the same name twice
        }
        match node {
            Node::File(content) => fs::write(&path, content).unwrap(),
            Node::Link(target) => symlink(target, &path).unwrap(),
            Node::Directory(entries) => {
                fs::create_dir(&path).unwrap();
                build(&path, entries);
            }
        }
    }
}

/// What `std` sees: by path, its kind and its content.
fn with_std(root: &Path) -> BTreeMap<PathBuf, (EntryKind, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(root.join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let path = directory.join(entry.file_name());
            let kind = entry.file_type().unwrap();
            let what = if kind.is_dir() {
                pending.push(path.clone());
                (EntryKind::Directory, Vec::new())
            } else if kind.is_symlink() {
                let target = fs::read_link(entry.path()).unwrap();
                (EntryKind::Symlink, target.into_os_string().into_encoded_bytes())
            } else {
                (EntryKind::File, fs::read(entry.path()).unwrap())
            };
            found.insert(path, what);
        }
    }
    found
}

fn with_walk(dir: &Dir, order: WalkOrder) -> BTreeMap<PathBuf, (EntryKind, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut visit = |entry: &WalkEntry<'_>| {
        let content = match entry.kind() {
            EntryKind::File => entry.parent().read_file(entry.name(), 1 << 20).unwrap(),
            EntryKind::Symlink => {
                entry.parent().read_link(entry.name()).unwrap().into_encoded_bytes()
            }
            _ => Vec::new(),
        };
        let before = found.insert(entry.path().to_owned(), (entry.kind(), content));
        assert!(before.is_none(), "visited twice");
        Ok::<_, std::convert::Infallible>(Visit::Continue)
    };
    let report = walk(dir, Bounds::default(), order, &mut visit).unwrap();
    assert!(report.is_complete());
    assert_eq!(report.entries, found.len() as u64);
    found
}

#[derive(Clone, Debug)]
enum Operation {
    CreateFile(String),
    CreateDir(String),
    CreateDirAll(String),
    Symlink(String, String),
    HardLink(String, String),
    Rename(String, String),
    Unlink(String),
    RemoveDir(String),
    RemoveAll(String),
    SetMode(String),
}

/// Paths that exist now and then, through links now and then, and lead out now and then.
fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[a-d](/[a-d]){0,3}",
        1 => "[a-d]/\\.\\./[a-d]",
        1 => Just("../outside/secret".to_owned()),
        1 => Just("/etc/hostname".to_owned()),
        1 => Just(String::new()),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        path().prop_map(Operation::CreateFile),
        path().prop_map(Operation::CreateDir),
        path().prop_map(Operation::CreateDirAll),
        (target(), path()).prop_map(|(target, path)| Operation::Symlink(target, path)),
        (path(), path()).prop_map(|(from, to)| Operation::HardLink(from, to)),
        (path(), path()).prop_map(|(from, to)| Operation::Rename(from, to)),
        path().prop_map(Operation::Unlink),
        path().prop_map(Operation::RemoveDir),
        path().prop_map(Operation::RemoveAll),
        path().prop_map(Operation::SetMode),
    ]
}

/// Whether it succeeded, and why not.
fn perform(dir: &Dir, operation: &Operation) -> Result<(), String> {
    let told = |error: &dyn std::error::Error| format!("{error:?}");
    match operation {
        Operation::CreateFile(path) => dir.create_file(path, 0o600).map(drop).map_err(|e| told(&e)),
        Operation::CreateDir(path) => dir.create_dir(path, 0o700).map_err(|e| told(&e)),
        Operation::CreateDirAll(path) => {
            dir.create_dir_all(path, 0o700).map(drop).map_err(|e| told(&e))
        }
        Operation::Symlink(target, path) => dir.symlink(target, path).map_err(|e| told(&e)),
        Operation::HardLink(from, to) => dir.hard_link(from, dir, to).map_err(|e| told(&e)),
        Operation::Rename(from, to) => {
            dir.rename(from, dir, to, RenameMode::Replace).map_err(|e| told(&e))
        }
        Operation::Unlink(path) => dir.unlink(path).map_err(|e| told(&e)),
        Operation::RemoveDir(path) => dir.remove_dir(path).map_err(|e| told(&e)),
        Operation::RemoveAll(path) => dir.remove_all(path).map_err(|e| told(&e)),
        Operation::SetMode(path) => dir.set_mode(path, 0o700).map_err(|e| told(&e)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_walk_a_copy_and_a_removal_agree_with_std(entries in tree()) {
        let place = Place::in_memory();
        build(&place.tree(), &entries);
        let expected = with_std(&place.tree());
        for resolver in [Resolver::Automatic, Resolver::Stepwise] {
            let dir = place.dir(resolver);
            for order in [WalkOrder::AsStored, WalkOrder::Sorted] {
                prop_assert_eq!(&with_walk(&dir, order), &expected);
            }
            for (path, (kind, _)) in &expected {
                let found = dir.stat(path).unwrap();
                let std = place.tree().join(path).symlink_metadata().unwrap();
                prop_assert_eq!(found.kind(), *kind);
                prop_assert_eq!(found.identity().inode, std.ino());
                prop_assert_eq!((found.size(), found.mode()), (std.len(), std.mode() & 0o7777));
                prop_assert_eq!(dir.open_dir(path).is_ok(), *kind == EntryKind::Directory);
                prop_assert_eq!(dir.open_file(path).is_ok(), *kind == EntryKind::File);
            }
            let copy = place.temp.path().join("copy");
            fs::create_dir(&copy).unwrap();
            let to = Dir::open(&copy, FinalLink::Refuse).unwrap();
            copy_tree(&dir, &to, Bounds::default(), CopyOwner::Caller, |_| Selection::Copy).unwrap();
            prop_assert_eq!(with_std(&copy), expected.clone());
            remove_all(&copy).unwrap();
            prop_assert!(copy.symlink_metadata().is_err());
        }
        remove_all(place.tree()).unwrap();
        prop_assert!(place.tree().symlink_metadata().is_err());
        place.check_outside();
    }

    #[test]
    fn both_resolvers_do_the_same_and_nothing_outside(operations in prop::collection::vec(operation(), 1..60)) {
        let (one, other) = (Place::in_memory(), Place::in_memory());
        let (kernel, stepwise) = (one.dir(Resolver::Automatic), other.dir(Resolver::Stepwise));
        for operation in &operations {
            prop_assert_eq!(perform(&kernel, operation), perform(&stepwise, operation), "{:?}", operation);
        }
        prop_assert_eq!(with_std(&one.tree()), with_std(&other.tree()));
        one.check_outside();
        other.check_outside();
    }
}
