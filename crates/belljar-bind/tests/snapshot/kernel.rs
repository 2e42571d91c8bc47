//! Layers that the kernel made, and file systems that share blocks.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use belljar_bind::snapshot::{self, Begun};

use crate::support::{also_as_user, is_root};

/// Loud, and an error where the jail must work: that needs as much.
#[allow(clippy::print_stderr, reason = "a test")]
fn not_checked(why: &str) {
    let must_work = std::env::var("BELLJAR_MUST_WORK").unwrap_or_default();
    assert!(!must_work.split(',').any(|backend| backend == "jail"), "{why}");
    eprintln!("NOT CHECKED: {why}");
}

/// The output of a shell in an overlay of `lower` and this upper layer. `None`: no overlay can be made here.
fn in_overlay(at: &Path, upper: &str, script: &str) -> Option<String> {
    let (flags, options) = match is_root() {
        true => ("-m", "redirect_dir=on,index=off,metacopy=off,xino=off"),
        false => ("-rm", "userxattr"),
    };
    let _ = fs::create_dir(at.join(format!("{upper}.work")));
    let at = at.display();
    let script = format!(
        "mount -t overlay overlay -o \
         lowerdir={at}/lower,upperdir={at}/{upper},workdir={at}/{upper}.work,{options} {at}/merged \
         && cd {at}/merged || exit 99\n{script}\n"
    );
    let done = Command::new("unshare")
        .args([flags, "--propagation", "private", "sh", "-ec", &script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    match done.status.code() {
        Some(0) => Some(String::from_utf8(done.stdout).unwrap()),
        Some(99 | 1) if errors.contains("mount") || errors.contains("unshare") => None,
        _ => panic!("{errors}"),
    }
}

const CHANGES: &str = "\
    rm removed; rm -r gone; rm -r remade; mkdir remade; echo new > remade/new
    echo more >> kept/file; chmod 600 mode; ln -s nowhere link; mkdir -p fresh/below
    mv moved moved-to 2>/dev/null || true
    mkfifo pipe; ln kept/file kept/second";
const MORE: &str = "echo again > kept/again; rm kept/second; rm -r fresh; echo x > gone";
const LOOK: &str = "\
    find . -printf '%p %y %m %n %l\\n' | grep -v '^[.] ' | sort; find . -type f | sort | xargs sha256sum";

#[test]
fn a_layer_of_the_kernels_means_the_same_after_its_return() {
    let temp = tempfile::tempdir().unwrap();
    let at = temp.path();
    for directory in
        ["lower/kept", "lower/gone/below", "lower/remade", "lower/moved/below", "merged"]
    {
        fs::create_dir_all(at.join(directory)).unwrap();
    }
    for file in
        ["removed", "gone/below/file", "remade/old", "kept/file", "mode", "moved/below/file"]
    {
        fs::write(at.join("lower").join(file), file).unwrap();
    }
    fs::create_dir(at.join("upper")).unwrap();
    let Some(_) = in_overlay(at, "upper", CHANGES) else {
        return not_checked("no overlay can be mounted here");
    };
    let seen = |upper: &str| in_overlay(at, upper, LOOK).unwrap();
    let first = seen("upper");
    let take = |name: &str, previous| {
        let begun = Begun::now(at).unwrap();
        snapshot::take(&at.join("upper"), &at.join(name), begun, previous).unwrap()
    };
    take("one", None);
    in_overlay(at, "upper", MORE).unwrap();
    let second = seen("upper");
    assert_ne!(first, second);
    assert!(!first.contains("old") && first.contains("remade/new"), "{first}");
    let taken = take("two", snapshot::Previous::open(&at.join("one")));
    assert!(taken.changed > 0, "{taken:?}");
    for (name, expected) in [("one", &first), ("two", &second)] {
        let restored = format!("{name}.restored");
        fs::create_dir(at.join(&restored)).unwrap();
        snapshot::restore(&at.join(name), &at.join(&restored)).unwrap();
        assert_eq!(seen(&restored), *expected, "{name}");
    }
    // The control: without the deletion marks, they come back.
    fs::create_dir(at.join("plain")).unwrap();
    assert!(seen("plain").contains("remade/old"));
}

#[test]
fn a_layer_of_the_kernels_means_the_same_after_its_return_as_an_ordinary_user() {
    also_as_user("kernel::a_layer_of_the_kernels_means_the_same_after_its_return");
}

/// Run by the test below where such a file system is mounted.
#[test]
#[ignore = "needs a file system of its own"]
fn blocks_are_shared() {
    let at = std::path::PathBuf::from(std::env::var_os("BELLJAR_TEST_TREE").unwrap());
    fs::create_dir(at.join("tree")).unwrap();
    fs::write(at.join("tree/large"), vec![7; 32 << 20]).unwrap();
    let used = || {
        rustix::fs::sync();
        let stat = rustix::fs::statvfs(&at).unwrap();
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    };
    let before = used();
    let begun = Begun::now(&at).unwrap();
    snapshot::take(&at.join("tree"), &at.join("snapshot"), begun, None).unwrap();
    fs::create_dir(at.join("restored")).unwrap();
    snapshot::restore(&at.join("snapshot"), &at.join("restored")).unwrap();
    assert!(used() < before + (8 << 20), "{} more bytes", used() - before);
    let inode = |path: &str| fs::metadata(at.join(path)).unwrap().ino();
    assert_ne!(inode("tree/large"), inode("snapshot/large"));
    assert_ne!(inode("restored/large"), inode("snapshot/large"));
    assert_eq!(fs::read(at.join("restored/large")).unwrap(), vec![7; 32 << 20]);
}

#[test]
fn a_file_system_that_can_shares_blocks() {
    let kinds = [("mkfs.btrfs", "mkfs.btrfs -q"), ("mkfs.xfs", "mkfs.xfs -q -m reflink=1")];
    let found = kinds
        .iter()
        .find(|(program, _)| Command::new(program).arg("--help").output().is_ok() && is_root());
    let Some((_, make)) = found else {
        #[allow(clippy::print_stderr, reason = "a test")]
        {
            eprintln!("NOT CHECKED: no mkfs.btrfs or mkfs.xfs here, or not root");
        }
        return;
    };
    let temp = tempfile::tempdir().unwrap();
    let script = format!(
        "set -e; truncate -s 600M \"$1/image\"; {make} \"$1/image\"; mkdir \"$1/at\"; \
         mount -o loop \"$1/image\" \"$1/at\"; \
         BELLJAR_TEST_TREE=\"$1/at\" exec \"$2\" --exact --ignored kernel::blocks_are_shared"
    );
    let done = Command::new("unshare")
        .args(["-m", "sh", "-c", &script, "sh"])
        .arg(temp.path())
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    if errors.contains("loop") || errors.contains("unknown filesystem") {
        #[allow(clippy::print_stderr, reason = "a test")]
        {
            eprintln!("NOT CHECKED: {errors}");
        }
        return;
    }
    assert!(done.status.success() && text.contains("1 passed"), "{text}{errors}");
}
