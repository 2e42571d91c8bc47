use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use belljar_spec::{Attributes, Backing, LayeredTree, Moment};

use crate::checkpoint::Subject;
use crate::write_layers;

/// A run with one layered tree.
pub(super) struct Stage {
    pub(super) temp: tempfile::TempDir,
}

impl Stage {
    pub(super) fn new(files: usize) -> Self {
        Self::at(tempfile::tempdir().unwrap(), files)
    }

    /// As many in the real tree.
    pub(super) fn at(temp: tempfile::TempDir, files: usize) -> Self {
        for directory in ["tree", "run/home", "run/upper/0/data"] {
            fs::create_dir_all(temp.path().join(directory)).unwrap();
        }
        for number in 0..files {
            let path = temp.path().join("tree").join(format!("file-{number}"));
            fs::write(path, number.to_string()).unwrap();
        }
        Self { temp }
    }

    pub(super) fn again(path: &Path) -> Subject {
        subject(path)
    }

    pub(super) fn run(&self) -> PathBuf {
        self.temp.path().join("run")
    }

    pub(super) fn home(&self) -> PathBuf {
        self.run().join("home")
    }

    pub(super) fn upper(&self, path: &str) -> PathBuf {
        self.run().join("upper/0/data").join(path)
    }

    pub(super) fn write_upper(&self, path: &str, text: &str) {
        fs::write(self.upper(path), text).unwrap();
    }

    pub(super) fn subject(&self) -> Subject {
        subject(self.temp.path())
    }

    pub(crate) fn write_layers(&self, number: u32) {
        let mut trees = self.subject().trees;
        trees[0].number = number;
        write_layers(&self.run(), &trees).unwrap();
    }

    /// Stamps of what comes differ from those of what was.
    pub(super) fn tick(&self) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn subject(at: &Path) -> Subject {
    let source = at.join("tree");
    let stat = fs::metadata(&source).unwrap();
    let attributes = match rustix::process::geteuid().is_root() {
        true => Attributes::Trusted,
        false => Attributes::User,
    };
    let tree = LayeredTree {
        number: 0,
        source: source.into(),
        device: stat.dev(),
        inode: stat.ino(),
        target: "/workspace".into(),
        backing: Backing::Overlay { attributes },
        since: Moment { secs: i64::MAX, nanos: 0 },
        hidden: Vec::new(),
        git_part: None,
        apply: Default::default(),
    };
    Subject {
        run: belljar_spec::RunId::from_parts(1_700_000_000_000, 7),
        directory: at.join("run"),
        trees: vec![tree],
        written: Vec::new(),
        born: None,
        most_bytes: None,
        cancel: Default::default(),
    }
}

/// Every path with its mode, its time and its size.
pub(super) fn listing(root: &Path) -> String {
    let found = Command::new("find")
        .arg(root)
        .args(["-mindepth", "1", "-printf", "%P %y %m %U %T@ %s %l\\n"])
        .output()
        .unwrap();
    let text = String::from_utf8(found.stdout).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Runs an ignored test after `setup` in a mount namespace of its own. In it `$1` is an empty directory.
#[allow(clippy::print_stderr, reason = "a test")]
pub(super) fn in_mounts(setup: &str, test: &str) {
    let flags: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["-m"],
        false => &["-r", "-m"],
    };
    let possible = Command::new("unshare").args(flags).arg("true").status();
    if !possible.is_ok_and(|status| status.success()) {
        let must_work = std::env::var("BELLJAR_MUST_WORK").unwrap_or_default();
        assert!(!must_work.split(',').any(|backend| backend == "jail"), "no mount namespace");
        eprintln!("SKIPPED: no mount namespace can be made here");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let script = format!("set -e; {setup}; exec \"$2\" --exact --ignored {test}");
    let output = Command::new("unshare")
        .args(flags)
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
