//! Trees that somebody hostile made go, and nothing else does.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use belljar_tree::{Dir, FinalLink, remove_all};
use rustix::fs::Mode;
use tempfile::TempDir;

use crate::support::{Place, dig, is_root, open_descriptors};

fn remove(place: &Place) {
    assert!(place.tree().symlink_metadata().is_ok(), "there is something to remove");
    remove_all(place.tree()).unwrap();
    assert!(place.tree().symlink_metadata().is_err(), "the tree is gone");
    place.check_outside();
    assert_eq!(fs::read_dir(place.temp.path()).unwrap().count(), 1, "nothing was left beside");
}

#[test]
fn a_chain_of_12_000_directories() {
    let place = Place::in_memory();
    dig(&place.tree(), "d", 12_000);
    remove(&place);
}

#[test]
fn many_files_and_many_chains() {
    let place = Place::in_memory();
    for n in 0..20_000 {
        File::create(place.tree().join(format!("f{n}"))).unwrap();
    }
    for n in 0..50 {
        let chain = place.tree().join(format!("c{n}"));
        fs::create_dir(&chain).unwrap();
        dig(&chain, "d", 100);
        for n in 0..20 {
            fs::write(chain.join(format!("f{n}")), "x").unwrap();
        }
    }
    remove(&place);
}

#[test]
fn links_are_removed_and_not_followed() {
    let place = Place::new();
    symlink(place.outside(), place.tree().join("to-directory")).unwrap();
    symlink(place.outside().join("secret"), place.tree().join("to-file")).unwrap();
    fs::create_dir_all(place.tree().join("a/b")).unwrap();
    symlink("../../../outside", place.tree().join("a/b/up")).unwrap();
    symlink("loop", place.tree().join("a/loop")).unwrap();
    remove(&place);

    // The tree itself may be one.
    symlink(place.outside(), place.tree()).unwrap();
    remove(&place);
}

#[test]
fn a_hard_link_leaves_its_other_name() {
    let place = Place::new();
    fs::hard_link(place.outside().join("secret"), place.tree().join("same")).unwrap();
    remove(&place);
}

#[test]
fn odd_kinds_and_odd_names() {
    let place = Place::new();
    let tree = place.tree();
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("fifo"), Mode::RWXU).unwrap();
    let _listener = UnixListener::bind(tree.join("socket")).unwrap();
    let long = "n".repeat(255);
    for name in ["line\nbreak", "\u{1b}]0;x\u{7}", "...", "-rf", ".0", long.as_str()] {
        fs::create_dir(tree.join(name)).unwrap();
        fs::write(tree.join(name).join(name), "x").unwrap();
        fs::create_dir(tree.join(name).join("sub")).unwrap();
        fs::write(tree.join(name).join("sub").join(name), "x").unwrap();
    }
    fs::write(tree.join(OsStr::from_bytes(b"\xff\xfe")), "x").unwrap();
    remove(&place);
}

#[test]
fn gone_is_success_and_a_file_goes_too() {
    let place = Place::new();
    remove_all(place.temp.path().join("nothing")).unwrap();
    remove_all(place.temp.path().join("no/such/place")).unwrap();
    fs::remove_dir(place.tree()).unwrap();
    fs::write(place.tree(), "x").unwrap();
    remove(&place);
    remove_all(place.tree()).unwrap();
    assert!(remove_all(Path::new("/")).is_err(), "the root is no entry of a directory");
}

#[test]
fn several_can_remove_one_tree_at_once() {
    for _ in 0..10 {
        let place = Place::in_memory();
        for n in 0..30 {
            fs::create_dir_all(place.tree().join(format!("{n}/a/b/c/d"))).unwrap();
            fs::write(place.tree().join(format!("{n}/a/f")), "x").unwrap();
        }
        let path = place.tree();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| remove_all(&path).unwrap());
            }
        });
        assert!(!path.exists());
    }
}

#[test]
fn what_an_earlier_removal_left_goes() {
    let place = Place::new();
    // As left by a removal that was killed: a level with directories in it.
    fs::create_dir_all(place.tree().join(".1f.0/.1f.1/x/y/z")).unwrap();
    fs::write(place.tree().join(".1f.0/.1f.2"), "x").unwrap();
    remove(&place);
}

fn locked_tree(tree: &Path) {
    for mode in [0o000, 0o500, 0o100, 0o200] {
        let name = format!("m{mode:o}");
        let directory = tree.join(&name);
        fs::create_dir_all(directory.join("sub/deeper/deepest")).unwrap();
        fs::write(directory.join("file"), "x").unwrap();
        fs::write(directory.join("sub/deeper/file"), "x").unwrap();
        for inner in ["sub/deeper/deepest", "sub/deeper", "sub", ""] {
            fs::set_permissions(directory.join(inner), Permissions::from_mode(mode)).unwrap();
        }
    }
    fs::set_permissions(tree, Permissions::from_mode(0o000)).unwrap();
}

/// Run again as another user by the test below; by itself it does what it can as whoever runs it.
#[test]
fn directories_that_deny_everything() {
    let place = Place::new();
    locked_tree(&place.tree());
    if !is_root() {
        let std = fs::remove_dir_all(place.tree());
        assert!(std.is_err(), "the modes are in the way of a plain removal");
    }
    remove(&place);
}

#[test]
fn directories_that_deny_everything_as_an_ordinary_user() {
    if !is_root() {
        return; // the test above was that
    }
    let temp = TempDir::new().unwrap();
    fs::set_permissions(temp.path(), Permissions::from_mode(0o777)).unwrap();
    // Where the tests were built may be closed to others.
    let copy = temp.path().join("tests");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(&copy)
        .args(["--exact", "remove::directories_that_deny_everything"])
        .env("TMPDIR", temp.path())
        .current_dir(temp.path())
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn names_that_must_not_change() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let place = Place::new();
    fs::create_dir(place.tree().join("d")).unwrap();
    let paths = [place.tree().join("d/file"), place.tree().join("d"), place.tree()];
    fs::write(&paths[0], "x").unwrap();
    let frozen = paths.iter().all(|path| {
        let file = File::open(path).unwrap();
        ioctl_getflags(&file)
            .and_then(|flags| ioctl_setflags(&file, flags | IFlags::IMMUTABLE))
            .is_ok()
    });
    if frozen {
        assert!(fs::remove_file(&paths[0]).is_err(), "the flag is in the way");
    } else {
        eprintln!("only root can set the flag, and not on every file system: removed without it");
    }
    remove(&place);
}

#[test]
fn descriptors_do_not_grow_with_the_tree() {
    let place = Place::in_memory();
    drop(dig(&place.tree(), "d", 3000));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(40), maximum: limit.maximum };
    let before = open_descriptors();
    assert!(before < 30, "{before}");
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let removed = remove_all(place.tree());
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    removed.unwrap();
    assert!(!place.tree().exists());
}

#[test]
fn names_of_255_bytes_at_any_depth() {
    let place = Place::in_memory();
    drop(dig(&place.tree(), &"n".repeat(255), 2000));
    remove(&place);
}

#[test]
fn contents_go_and_the_directory_stays() {
    let place = Place::in_memory();
    let parent = Dir::open(place.temp.path(), FinalLink::Refuse).unwrap();
    for by_itself in [false, true] {
        drop(dig(&place.tree(), "d", 300));
        symlink(place.outside(), place.tree().join("link")).unwrap();
        fs::write(place.tree().join("file"), "x").unwrap();
        match by_itself {
            true => parent.open_dir("tree").unwrap().remove_contents("").unwrap(),
            false => parent.remove_contents("tree").unwrap(),
        }
        assert_eq!(fs::read_dir(place.tree()).unwrap().count(), 0);
        place.check_outside();
    }
    // A link is not a directory: it goes, and what it leads to stays.
    fs::remove_dir(place.tree()).unwrap();
    symlink(place.outside(), place.tree()).unwrap();
    parent.remove_contents("tree").unwrap();
    assert!(place.tree().symlink_metadata().is_err());
    place.check_outside();
    parent.remove_contents("none").unwrap();
}

#[test]
fn a_path_beneath_is_removed_and_none_outside() {
    crate::support::each_resolver(|place, dir| {
        fs::create_dir_all(place.tree().join("a/b/c")).unwrap();
        symlink(place.outside(), place.tree().join("a/link")).unwrap();
        dir.remove_all("a/b").unwrap();
        assert!(!place.tree().join("a/b").exists());
        dir.remove_all("a/link/secret").unwrap(); // nothing is there without following
        assert!(dir.remove_all("a/../../outside").is_err());
        assert!(dir.remove_all("").is_err());
        dir.remove_all("a").unwrap();
        assert!(dir.is_empty("").unwrap());
    });
}
