//! Copies of trees: what is in them arrives, and nothing that acts.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use belljar_tree::{
    Bound, Bounds, CopyOwner, CopyReport, CopyTreeError, Dir, FinalLink, Selection, WalkEntry,
    copy_tree,
};
use rustix::fs::{CWD, Mode};

use crate::support::{Place, dig, each_resolver, each_resolver_in};

fn target(place: &Place) -> (PathBuf, Dir) {
    let path = place.temp.path().join("copy");
    fs::create_dir(&path).unwrap();
    let dir = Dir::open(&path, FinalLink::Refuse).unwrap();
    (path, dir)
}

fn copy(from: &Dir, to: &Dir, bounds: Bounds) -> Result<CopyReport, CopyTreeError> {
    copy_tree(from, to, bounds, CopyOwner::Caller, |_| Selection::Copy)
}

#[test]
fn files_links_modes_and_times_arrive_and_nothing_that_acts() {
    each_resolver(|place, dir| {
        let at = |name: &str| place.tree().join(name);
        fs::create_dir_all(at("dir/below")).unwrap();
        fs::write(at("dir/below/file"), "content").unwrap();
        fs::write(at("setuid"), "x").unwrap();
        fs::set_permissions(at("setuid"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::set_permissions(at("dir"), fs::Permissions::from_mode(0o2550)).unwrap();
        symlink(place.outside().join("secret"), at("link")).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        rustix::fs::mkfifoat(CWD, at("pipe"), Mode::RWXU).unwrap();
        let (path, to) = target(place);
        let report = copy(dir, &to, Bounds::default()).unwrap();
        let expected = CopyReport {
            files: 2,
            directories: 2,
            links: 1,
            bytes: 8,
            special: 2,
            ..CopyReport::default()
        };
        assert_eq!(CopyReport { bytes: 8, ..report }, expected);
        let there = |name: &str| path.join(name);
        assert_eq!(fs::read_to_string(there("dir/below/file")).unwrap(), "content");
        assert_eq!(fs::metadata(there("setuid")).unwrap().mode() & 0o7777, 0o751);
        assert_eq!(fs::metadata(there("dir")).unwrap().mode() & 0o7777, 0o550);
        assert_eq!(fs::read_link(there("link")).unwrap(), place.outside().join("secret"));
        assert!(!there("socket").exists() && !there("pipe").exists());
        let changed = |path: PathBuf| fs::symlink_metadata(path).unwrap().modified().unwrap();
        for name in ["", "dir", "dir/below", "dir/below/file", "link", "setuid"] {
            assert_eq!(changed(at(name)), changed(there(name)), "{name}");
        }
        belljar_tree::remove_all(&path).unwrap();
        fs::set_permissions(at("dir"), fs::Permissions::from_mode(0o755)).unwrap();
    });
}

#[test]
fn names_are_left_out_where_they_lie_and_nowhere_else() {
    each_resolver(|place, dir| {
        fs::create_dir_all(place.tree().join("a/keys")).unwrap();
        for name in [".env", "a/.env", "a/keys/one", "a/other"] {
            fs::write(place.tree().join(name), name).unwrap();
        }
        let (path, to) = target(place);
        let select = |entry: &WalkEntry<'_>| {
            let is_out = [Path::new("a/.env"), Path::new("a/keys")].contains(&entry.path());
            if is_out { Selection::LeaveOut } else { Selection::Copy }
        };
        copy_tree(dir, &to, Bounds::default(), CopyOwner::Caller, select).unwrap();
        assert!(path.join(".env").exists() && path.join("a/other").exists());
        assert!(!path.join("a/.env").exists() && !path.join("a/keys").exists());
    });
}

#[test]
fn a_copy_has_the_bounds_of_its_walk_and_of_its_bytes() {
    each_resolver(|place, dir| {
        fs::create_dir_all(place.tree().join("a/b/c")).unwrap();
        fs::write(place.tree().join("a/b/c/file"), vec![1; 1 << 20]).unwrap();
        let (_, to) = target(place);
        let all = Bounds::default();
        for (bounds, bound) in [
            (Bounds { depth: 3, ..all }, Bound::Depth),
            (Bounds { entries: 3, ..all }, Bound::Entries),
            (Bounds { bytes: 1 << 19, ..all }, Bound::Bytes),
        ] {
            let told = copy(dir, &to, bounds).unwrap_err();
            let CopyTreeError::Bound { bound: told, .. } = told else { panic!("{told}") };
            assert_eq!(told, bound);
            to.remove_contents("").unwrap();
        }
        let fits = Bounds { depth: 4, entries: 4, bytes: 8 << 20, ..all };
        copy(dir, &to, fits).unwrap();
    });
}

#[test]
fn what_is_left_out_takes_no_bytes() {
    each_resolver(|place, dir| {
        fs::write(place.tree().join("large"), vec![1; 2 << 20]).unwrap();
        fs::write(place.tree().join("small"), "x").unwrap();
        let (_, to) = target(place);
        let bounds = Bounds { bytes: 1 << 20, ..Bounds::default() };
        assert!(copy(dir, &to, bounds).is_err(), "the control");
        to.remove_contents("").unwrap();
        let select = |entry: &WalkEntry<'_>| match entry.name() == "large" {
            true => Selection::LeaveOut,
            false => Selection::Copy,
        };
        copy_tree(dir, &to, bounds, CopyOwner::Caller, select).unwrap();
        assert_eq!(to.entries("").unwrap().count(), 1);
    });
}

#[test]
fn a_copy_into_its_own_original_ends() {
    each_resolver(|place, dir| {
        fs::create_dir_all(place.tree().join("a/copy")).unwrap();
        fs::write(place.tree().join("file"), "x").unwrap();
        let to = dir.open_dir("a/copy").unwrap();
        let bounds = Bounds { entries: 100, ..Bounds::default() };
        let report = copy(dir, &to, bounds).unwrap();
        assert_eq!((report.files, report.directories), (1, 1));
        assert!(to.stat("a").unwrap().is_dir() && to.is_empty("a").unwrap());
    });
}

#[test]
fn a_file_that_is_all_holes_is_no_work() {
    each_resolver(|place, dir| {
        let file = fs::File::create(place.tree().join("sparse")).unwrap();
        file.set_len(1 << 40).unwrap();
        let (path, to) = target(place);
        copy(dir, &to, Bounds { bytes: 1 << 20, ..Bounds::default() }).unwrap();
        let made = fs::metadata(path.join("sparse")).unwrap();
        assert_eq!(made.len(), 1 << 40);
        assert!(made.blocks() < 100);
    });
}

#[test]
fn what_is_there_already_is_not_written_to() {
    each_resolver(|place, dir| {
        fs::write(place.tree().join("file"), "new").unwrap();
        let (path, to) = target(place);
        symlink(place.outside().join("secret"), path.join("file")).unwrap();
        let told = copy(dir, &to, Bounds::default()).unwrap_err();
        assert_eq!(
            told,
            CopyTreeError::Target { path: "file".into(), error: rustix::io::Errno::EXIST }
        );
    });
}

#[test]
fn a_deep_tree_is_copied() {
    each_resolver_in(Place::in_memory, |place, dir| {
        let depth = 3000;
        let lowest = dig(&place.tree(), "directory", depth);
        Dir::from_fd(lowest).create_file("file", 0o600).unwrap();
        let (_, to) = target(place);
        let report = copy(dir, &to, Bounds::default()).unwrap();
        assert_eq!((report.directories, report.files), (depth as u64, 1));
        let path: PathBuf = vec!["directory"; depth].iter().collect();
        assert!(to.stat(path.join("file")).unwrap().is_file());
        let parent = Dir::open(place.temp.path(), FinalLink::Refuse).unwrap();
        parent.remove_all("tree").unwrap();
        parent.remove_all("copy").unwrap();
    });
}

#[test]
fn root_can_keep_the_owner() {
    if !crate::support::is_root() {
        return; // only root can give a file away
    }
    each_resolver(|place, dir| {
        fs::create_dir(place.tree().join("d")).unwrap();
        fs::write(place.tree().join("d/file"), "x").unwrap();
        symlink("x", place.tree().join("link")).unwrap();
        for name in ["d", "d/file", "link"] {
            dir.set_owner(name, 4711, 4712).unwrap();
        }
        let (_, to) = target(place);
        copy_tree(dir, &to, Bounds::default(), CopyOwner::Source, |_| Selection::Copy).unwrap();
        for name in ["d", "d/file", "link"] {
            let made = to.stat(name).unwrap();
            assert_eq!((made.uid(), made.gid()), (4711, 4712), "{name}");
        }
    });
}
