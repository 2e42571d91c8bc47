//! Trees that an enemy made go, and nothing else does.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_record::tree;
use rustix::fs::{Mode, OFlags};
use tempfile::TempDir;

/// A place with a tree in it, and something outside the tree that must stay.
struct Yard {
    temp: TempDir,
}

impl Yard {
    fn new() -> Self {
        let temp = TempDir::new().unwrap();
        fs::create_dir(temp.path().join("tree")).unwrap();
        fs::create_dir(temp.path().join("outside")).unwrap();
        fs::write(temp.path().join("outside/sentinel"), "here").unwrap();
        Self { temp }
    }

    fn tree(&self) -> PathBuf {
        self.temp.path().join("tree")
    }

    fn outside(&self) -> PathBuf {
        self.temp.path().join("outside")
    }

    fn remove_all(&self) {
        assert!(self.tree().symlink_metadata().is_ok(), "there is something to remove");
        tree::remove(&self.tree()).unwrap();
        assert!(self.tree().symlink_metadata().is_err(), "the tree is gone");
        let kept = fs::read_to_string(self.outside().join("sentinel")).unwrap();
        assert_eq!(kept, "here");
        assert_eq!(fs::read_dir(self.temp.path()).unwrap().count(), 1, "nothing was left beside");
    }
}

/// A chain of directories, each made in the one before.
fn dig(top: &Path, depth: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at: OwnedFd = rustix::fs::open(top, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(at.as_fd(), "d", Mode::RWXU).unwrap();
        at = rustix::fs::openat(at.as_fd(), "d", flags, Mode::empty()).unwrap();
    }
}

#[test]
fn a_chain_of_12_000_directories() {
    let yard = Yard::new();
    dig(&yard.tree(), 12_000);
    yard.remove_all();
}

#[test]
fn many_files_and_many_chains() {
    let yard = Yard::new();
    for n in 0..20_000 {
        File::create(yard.tree().join(format!("f{n}"))).unwrap();
    }
    for n in 0..50 {
        let chain = yard.tree().join(format!("c{n}"));
        fs::create_dir(&chain).unwrap();
        dig(&chain, 100);
        for n in 0..20 {
            fs::write(chain.join(format!("f{n}")), "x").unwrap();
        }
    }
    yard.remove_all();
}

#[test]
fn links_are_removed_and_not_followed() {
    let yard = Yard::new();
    symlink(yard.outside(), yard.tree().join("to-directory")).unwrap();
    symlink(yard.outside().join("sentinel"), yard.tree().join("to-file")).unwrap();
    fs::create_dir_all(yard.tree().join("a/b")).unwrap();
    symlink("../../../outside", yard.tree().join("a/b/up")).unwrap();
    symlink("loop", yard.tree().join("a/loop")).unwrap();
    yard.remove_all();

    // The tree itself may be one.
    symlink(yard.outside(), yard.tree()).unwrap();
    yard.remove_all();
}

#[test]
fn a_hard_link_leaves_its_other_name() {
    let yard = Yard::new();
    fs::hard_link(yard.outside().join("sentinel"), yard.tree().join("same")).unwrap();
    yard.remove_all();
}

#[test]
fn odd_kinds_and_odd_names() {
    let yard = Yard::new();
    let tree = yard.tree();
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
    yard.remove_all();
}

#[test]
fn gone_is_success_and_a_file_goes_too() {
    let yard = Yard::new();
    tree::remove(&yard.temp.path().join("nothing")).unwrap();
    tree::remove(&yard.temp.path().join("no/such/place")).unwrap();
    fs::remove_dir(yard.tree()).unwrap();
    fs::write(yard.tree(), "x").unwrap();
    yard.remove_all();
    tree::remove(&yard.tree()).unwrap();
    assert!(tree::remove(Path::new("/")).is_err(), "the root is no entry of a directory");
}

#[test]
fn several_can_remove_one_tree_at_once() {
    for _ in 0..10 {
        let yard = Yard::new();
        for n in 0..30 {
            fs::create_dir_all(yard.tree().join(format!("{n}/a/b/c/d"))).unwrap();
            fs::write(yard.tree().join(format!("{n}/a/f")), "x").unwrap();
        }
        let path = yard.tree();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| tree::remove(&path).unwrap());
            }
        });
        assert!(!path.exists());
    }
}

#[test]
fn what_an_earlier_removal_left_goes() {
    let yard = Yard::new();
    // As left by a removal that was killed: a level with directories in it.
    fs::create_dir_all(yard.tree().join(".1f.0/.1f.1/x/y/z")).unwrap();
    fs::write(yard.tree().join(".1f.0/.1f.2"), "x").unwrap();
    yard.remove_all();
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
    let yard = Yard::new();
    locked_tree(&yard.tree());
    if !rustix::process::geteuid().is_root() {
        let std = fs::remove_dir_all(yard.tree());
        assert!(std.is_err(), "the modes are in the way of a plain removal");
    }
    yard.remove_all();
}

#[test]
fn directories_that_deny_everything_as_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        return; // the test above was that
    }
    let temp = TempDir::new().unwrap();
    fs::set_permissions(temp.path(), Permissions::from_mode(0o777)).unwrap();
    // Where the tests were built may be closed to others.
    let copy = temp.path().join("tests");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(&copy)
        .args(["--exact", "tree_remove::directories_that_deny_everything"])
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
    let yard = Yard::new();
    fs::create_dir(yard.tree().join("d")).unwrap();
    let paths = [yard.tree().join("d/file"), yard.tree().join("d"), yard.tree()];
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
    yard.remove_all();
}

/// Runs one of the tests below again, after `setup` in a mount namespace of its own. In it `$1` is an
/// empty directory.
fn with_mounts(setup: &str, test: &str) {
    let namespaces: &[&str] =
        if rustix::process::geteuid().is_root() { &["-m"] } else { &["-r", "-m"] };
    let possible = Command::new("unshare").args(namespaces).arg("true").status();
    if !possible.is_ok_and(|status| status.success()) {
        skip("no mount namespace can be made here");
        return;
    }
    let temp = TempDir::new().unwrap();
    let script = format!("set -e; {setup}; exec \"$2\" --exact --ignored tree_remove::{test}");
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

/// Loud, and an error where the jail must work: that needs as much.
#[allow(clippy::print_stderr, reason = "a test")]
fn skip(why: &str) {
    let must_work = std::env::var("BELLJAR_MUST_WORK").unwrap_or_default();
    assert!(!must_work.split(',').any(|backend| backend == "jail"), "{why}");
    eprintln!("SKIPPED: {why}");
}

fn given() -> PathBuf {
    std::env::var_os("BELLJAR_TEST_TREE").unwrap().into()
}

#[test]
fn a_mount_in_the_tree_is_not_entered() {
    let setup = "mkdir -p \"$1/outside/d\" \"$1/tree/a/b/m\" \"$1/tree/m\" \"$1/tree/z/y\"; \
                 touch \"$1/outside/d/sentinel\" \"$1/tree/a/f\"; \
                 mount --bind \"$1/outside\" \"$1/tree/a/b/m\"; \
                 mount --bind \"$1/outside\" \"$1/tree/m\"";
    with_mounts(setup, "inside_a_mount_in_the_tree");
}

#[test]
#[ignore = "run by another test"]
fn inside_a_mount_in_the_tree() {
    let tree = given().join("tree");
    assert!(tree.join("m/d/sentinel").exists(), "the mount is there");
    let told = tree::remove(&tree).unwrap_err();
    let tree::TreeError::Entry { error, .. } = &told else { panic!("{told}") };
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::BUSY.raw_os_error()), "{told}");
    assert!(given().join("outside/d/sentinel").exists());
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
    tree::remove(&tree).unwrap();
    assert!(!tree.exists());
}
