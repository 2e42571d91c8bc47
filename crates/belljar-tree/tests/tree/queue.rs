//! Walks by what they find: turns are kept, and neither depth nor width takes descriptors or time.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use belljar_tree::{
    Dir, DirQueue, EntryKind, ListLimits, ListOrder, OpenDirError, QueueBounds, QueueError, Turn,
};

use crate::support::{Place, dig, each_resolver, each_resolver_in, open_descriptors};

const WIDE: QueueBounds =
    QueueBounds { depth: usize::MAX, path_bytes: usize::MAX, memory: usize::MAX };
const ALL: ListLimits = ListLimits { entries: usize::MAX, name_bytes: usize::MAX };

/// Visits everything, and gives the paths of directories in the order of their turns.
fn turns(root: &Dir, bounds: QueueBounds, turn: impl Fn(&str) -> Turn) -> (Vec<PathBuf>, usize) {
    let mut queue = DirQueue::new(root.try_clone().unwrap(), (), bounds);
    let (mut paths, mut most) = (Vec::new(), 0);
    while let Some(queued) = queue.pop() {
        let listing = queued.dir().unwrap().list("", ALL, ListOrder::Sorted).unwrap();
        for entry in listing.entries.iter().filter(|entry| entry.kind == EntryKind::Directory) {
            let turn = turn(entry.name.to_str().unwrap());
            queue.push(&queued, &entry.name, turn, ()).unwrap();
        }
        paths.push(queued.path().to_owned());
        if paths.len() % 499 == 0 {
            most = most.max(open_descriptors());
        }
    }
    (paths, most)
}

#[test]
fn each_directory_has_its_turn() {
    each_resolver(|place, dir| {
        for path in ["a/x", "b/.git/hooks", "node_modules/deep", "c"] {
            fs::create_dir_all(place.tree().join(path)).unwrap();
        }
        symlink(place.outside(), place.tree().join("link")).unwrap();
        let (paths, _) = turns(dir, WIDE, |name| match name {
            ".git" | "hooks" => Turn::First,
            "node_modules" => Turn::Last,
            _ => Turn::Later,
        });
        let expected = [
            "",
            "a",
            "b",
            "b/.git",
            "b/.git/hooks",
            "c",
            "a/x",
            "node_modules",
            "node_modules/deep",
        ];
        assert_eq!(paths, expected.map(PathBuf::from));
    });
}

#[test]
fn what_was_exchanged_for_a_link_is_told_at_its_turn() {
    each_resolver(|place, dir| {
        fs::create_dir_all(place.tree().join("a/b")).unwrap();
        let mut queue = DirQueue::new(dir.try_clone().unwrap(), 1, WIDE);
        let root = queue.pop().unwrap();
        queue.push(&root, "a".as_ref(), Turn::Later, 2).unwrap();
        let a = queue.pop().unwrap();
        assert_eq!((a.payload, a.depth()), (2, 1));
        queue.push(&a, "b".as_ref(), Turn::Later, 3).unwrap();
        fs::remove_dir(place.tree().join("a/b")).unwrap();
        symlink(place.outside(), place.tree().join("a/b")).unwrap();
        let b = queue.pop().unwrap();
        assert_eq!(b.dir().unwrap_err(), &OpenDirError::Link { path: "a/b".into() });
        assert!(queue.pop().is_none());
    });
}

#[test]
fn what_may_wait_is_bounded() {
    let place = Place::new();
    let dir = place.dir(belljar_tree::Resolver::Automatic);
    let refusal = |bounds| {
        let mut queue = DirQueue::new(dir.try_clone().unwrap(), (), bounds);
        let root = queue.pop().unwrap();
        queue.push(&root, "name".as_ref(), Turn::Later, ()).err()
    };
    let path = || PathBuf::from("name");
    assert_eq!(refusal(WIDE), None, "the control");
    let told = refusal(QueueBounds { depth: 0, ..WIDE });
    assert_eq!(told, Some(QueueError::TooDeep { path: path(), most: 0 }));
    let told = refusal(QueueBounds { path_bytes: 3, ..WIDE });
    assert_eq!(told, Some(QueueError::TooLong { path: path(), most: 3 }));
    assert_eq!(
        refusal(QueueBounds { memory: 100, ..WIDE }),
        Some(QueueError::Full { path: path() })
    );
}

#[test]
fn neither_depth_nor_width_takes_descriptors_or_time() {
    each_resolver_in(Place::in_memory, |place, dir| {
        drop(dig(&place.tree(), "d", 4000));
        for wide in 0..500 {
            fs::create_dir_all(place.tree().join(format!("wide/{wide}/below"))).unwrap();
        }
        let before = open_descriptors();
        let begun = Instant::now();
        let (paths, most) = turns(dir, WIDE, |_| Turn::Later);
        assert_eq!(paths.len(), 1 + 4000 + 1 + 1000);
        assert!(most < before + 140, "{most}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    });
}

#[test]
fn a_path_from_the_root_gets_its_turn_and_no_link_is_followed() {
    each_resolver(|place, dir| {
        fs::create_dir_all(place.tree().join("a/b/c")).unwrap();
        symlink(place.outside(), place.tree().join("a/link")).unwrap();
        let bounds = QueueBounds { depth: 3, ..WIDE };
        let mut queue = DirQueue::new(dir.try_clone().unwrap(), (), bounds);
        queue.push_path("a/b/c".into(), Turn::First, ()).unwrap();
        queue.push_path("a/link".into(), Turn::Last, ()).unwrap();
        let refused = queue.push_path("a/b/c/d".into(), Turn::First, ()).unwrap_err();
        assert!(matches!(refused, QueueError::TooDeep { most: 3, .. }), "{refused}");
        let first = queue.pop().unwrap();
        assert_eq!((first.path(), first.depth()), (std::path::Path::new("a/b/c"), 3));
        assert!(first.dir().is_ok());
        assert_eq!(queue.pop().unwrap().path(), std::path::Path::new(""));
        let link = queue.pop().unwrap();
        assert_eq!(link.dir().unwrap_err(), &OpenDirError::Link { path: "a/link".into() });
    });
}
