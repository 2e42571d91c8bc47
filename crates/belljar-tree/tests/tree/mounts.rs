//! Mounts in a tree, in a mount namespace of the test's own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use belljar_tree::{
    Bounds, CopyOwner, Dir, EntryKind, FinalLink, Mounts, OpenDirError, OpenFileError,
    RemoveAllError, RemoveDirError, Resolver, Selection, Visit, WalkEntry, WalkOrder, copy_tree,
    remove_all, walk,
};
use tempfile::TempDir;

use crate::support::{is_root, skip};

/// Runs one of the tests below again, after `setup` in a mount namespace of its own. In it `$1` is an
/// empty directory.
fn with_mounts(setup: &str, test: &str) {
    let namespaces: &[&str] = if is_root() { &["-m"] } else { &["-r", "-m"] };
    let possible = Command::new("unshare").args(namespaces).arg("true").status();
    if !possible.is_ok_and(|status| status.success()) {
        skip("no mount namespace can be made here");
        return;
    }
    let temp = TempDir::new().unwrap();
    let script = format!("set -e; {setup}; exec \"$2\" --exact --ignored mounts::{test}");
    let output = Command::new("unshare")
        .args(namespaces)
        .args(["sh", "-c", &script, "sh"])
        .arg(temp.path())
        .arg(std::env::current_exe().unwrap())
        .env("BELLJAR_TEST_TREE", temp.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}

fn given() -> PathBuf {
    std::env::var_os("BELLJAR_TEST_TREE").unwrap().into()
}

#[test]
fn a_mount_in_the_tree_is_not_entered() {
    let setup = "mkdir -p \"$1/outside/d\" \"$1/tree/a/b/m\" \"$1/tree/m\" \"$1/tree/z/y\"; \
                 touch \"$1/outside/d/secret\" \"$1/tree/a/f\"; \
                 mount --bind \"$1/outside\" \"$1/tree/a/b/m\"; \
                 mount --bind \"$1/outside\" \"$1/tree/m\"";
    with_mounts(setup, "inside_a_mount_in_the_tree");
}

#[test]
#[ignore = "run by another test"]
fn inside_a_mount_in_the_tree() {
    let tree = given().join("tree");
    assert!(tree.join("m/d/secret").exists(), "the mount is there");
    let told = remove_all(&tree).unwrap_err();
    let RemoveAllError::Entry { error, .. } = &told else { panic!("{told}") };
    assert_eq!(*error, rustix::io::Errno::BUSY, "{told}");
    assert!(given().join("outside/d/secret").exists());
    assert!(!tree.join("z").exists() && !tree.join("a/f").exists(), "the rest is gone");
}

#[test]
fn a_full_disk_is_no_obstacle() {
    let setup = "mount -t tmpfs -o nr_inodes=300,size=8m tmpfs \"$1\"";
    with_mounts(setup, "inside_a_full_disk");
}

#[test]
#[ignore = "run by another test"]
fn inside_a_full_disk() {
    let tree = given().join("tree");
    let mut deep = tree.clone();
    for _ in 0..100 {
        deep.push("d");
        fs::create_dir_all(&deep).unwrap();
    }
    let mut made = 0;
    while fs::create_dir_all(tree.join(format!("w{made}/x/y"))).is_ok() {
        made += 1;
    }
    assert!(made > 10);
    assert!(fs::create_dir(given().join("more")).is_err(), "there is no room");
    remove_all(&tree).unwrap();
    assert!(!tree.exists());
}

#[test]
fn a_mount_is_refused_where_that_is_asked() {
    let setup = "mkdir -p \"$1/outside/d\" \"$1/tree/a/m\" \"$1/tree/plain\" \"$1/copy\"; \
                 touch \"$1/outside/d/secret\" \"$1/tree/file\" \"$1/tree/plain/x\"; \
                 mount --bind \"$1/outside\" \"$1/tree/a/m\"; \
                 mount --bind \"$1/outside/d/secret\" \"$1/tree/file\"";
    with_mounts(setup, "inside_with_mounts_refused");
}

#[test]
#[ignore = "run by another test"]
fn inside_with_mounts_refused() {
    for resolver in [Resolver::Automatic, Resolver::Stepwise] {
        let open = |name: &str| {
            let dir = Dir::open(given().join(name), FinalLink::Refuse).unwrap();
            dir.with_resolver(resolver)
        };
        let crossing = open("tree");
        assert!(crossing.open_file("a/m/d/secret").is_ok(), "the control");
        assert!(crossing.open_file("file").is_ok(), "the control");
        let staying = open("tree").with_mounts(Mounts::Refuse);
        assert!(staying.open_file("plain/x").is_ok() && staying.open_dir("").is_ok());
        for path in ["a/m", "a/m/d"] {
            let told = staying.open_dir(path).unwrap_err();
            assert_eq!(told, OpenDirError::Mount { path: "a/m".into() });
        }
        let told = staying.open_file("file").unwrap_err();
        assert_eq!(told, OpenFileError::Mount { path: "file".into() });
        assert!(staying.open_file("a/m/d/secret").is_err());
        let told = crossing.remove_dir("a/m").unwrap_err();
        assert_eq!(told, RemoveDirError::Mount { path: "a/m".into() });

        let seen = |dir: &Dir| {
            let mut seen = Vec::new();
            let mut visit = |entry: &WalkEntry<'_>| {
                seen.push(entry.path().to_string_lossy().into_owned());
                Ok::<_, std::convert::Infallible>(Visit::Continue)
            };
            let report = walk(dir, Bounds::default(), WalkOrder::Sorted, &mut visit).unwrap();
            (seen, report.problems)
        };
        assert!(seen(&crossing).0.contains(&"a/m/d/secret".to_owned()), "the control");
        let (paths, problems) = seen(&staying);
        assert_eq!(paths, ["a", "a/m", "file", "plain", "plain/x"]);
        assert_eq!(problems, 1);
        let copy = open("copy");
        let everything = |_: &WalkEntry<'_>| Selection::Copy;
        let caller = CopyOwner::Caller;
        let report = copy_tree(&staying, &copy, Bounds::default(), caller, everything).unwrap();
        assert_eq!((report.files, report.mounts), (1, 2));
        assert_eq!(copy.stat("plain/x").unwrap().kind(), EntryKind::File);
        copy.remove_contents("").unwrap();
    }
}
