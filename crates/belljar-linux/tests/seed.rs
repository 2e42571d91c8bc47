//! Layered trees that start from a checkpoint, bound by root and by an ordinary user.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use belljar_bind::snapshot::{self, Begun};
use belljar_bind::{BindError, NOTE, bind};
use belljar_linux::jail::mounts;
use belljar_spec::{
    Access, BackendName, Backing, CgroupUse, CommandPlan, HostPaths, HostUid, Identity,
    LayeredTree, Limits, Moment, MountKind, OsText, Plan, PlannedMount, Posture, Presence, Source,
    Stdin, Terminal, Tree, User,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// When a restored copy counts as made: before any stamp that a file can have.
const RESTORED: Moment = Moment { secs: 0, nanos: 0 };

fn plan(tree: &Path, backend: BackendName) -> Plan {
    let what = MountKind::Bind {
        source: Source::Path { path: OsText::from(tree) },
        access: Access::Layered,
        presence: Presence::Required,
        tree: Tree::User,
    };
    Plan {
        v: 1,
        backend,
        hostname: "x".to_owned(),
        pod: Vec::new(),
        sandbox: Vec::new(),
        identity: Identity { inside: User::default(), host: HostUid::Caller },
        shell: None,
        mounts: vec![PlannedMount { target: "/workspace".into(), what }],
        allow_source: Vec::new(),
        shielded: Vec::new(),
        hidden: Vec::new(),
        allow_control: Vec::new(),
        limits: Limits {
            memory: None,
            millicpus: None,
            pids: None,
            time: None,
            idle: None,
            output: 0,
            disk: None,
            stop_timeout: Duration::ZERO,
        },
        cgroup: CgroupUse::None,
        rlimits: Vec::new(),
        filter: String::new(),
        command: CommandPlan {
            argv: Vec::new(),
            env: BTreeMap::new(),
            workdir: "/workspace".into(),
            stdin: Stdin::Passed,
            terminal: Terminal::None,
        },
        image: None,
        oci_runtime: None,
        listen: Vec::new(),
        posture: Posture::nothing_held("a test"),
    }
}

struct Yard(tempfile::TempDir);

impl Yard {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        for directory in ["tree", "one", "two", "seed/0"] {
            fs::create_dir_all(temp.path().join(directory)).unwrap();
        }
        for name in ["file", "other", "third"] {
            fs::write(temp.path().join("tree").join(name), name).unwrap();
        }
        Self(temp)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn place(&self, run: &str, seed: Option<PathBuf>) -> HostPaths {
        HostPaths {
            run: run.to_owned(),
            directory: self.at(run),
            bin: self.at("bin"),
            images: PathBuf::new(),
            image: None,
            owner: String::new(),
            home: self.at(run).join("home"),
            upper: self.at(run).join("upper"),
            seed,
            belljar_directories: Vec::new(),
            executable: None,
            run_writable: Vec::new(),
            homes: Vec::new(),
        }
    }

    /// Binds, lets a "run" change something, and keeps that as a checkpoint would.
    fn first_run(&self, plan: &Plan) -> LayeredTree {
        let bound = bind(plan, &self.place("one", None), mounts()).unwrap();
        let note = bound.layered[0].clone();
        let data = self.at("one/upper/0/data");
        fs::write(data.join("file"), "changed by the run").unwrap();
        fs::write(data.join("new"), "made by the run").unwrap();
        if let Backing::Overlay { .. } = note.backing {
            let removed = data.join("other");
            mknodat(CWD, removed, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        } else {
            fs::remove_file(data.join("other")).unwrap();
        }
        let begun = Begun::now(self.0.path()).unwrap();
        snapshot::take(&data, &self.at("seed/0/data"), begun, None).unwrap();
        self.write_note(&note);
        note
    }

    fn write_note(&self, note: &LayeredTree) {
        fs::write(self.at("seed/0").join(NOTE), serde_json::to_vec(note).unwrap()).unwrap();
    }

    fn second_run(&self, plan: &Plan) -> Result<LayeredTree, BindError> {
        let bound = bind(plan, &self.place("two", Some(self.at("seed"))), mounts())?;
        Ok(bound.layered[0].clone())
    }
}

#[test]
fn an_overlay_begins_with_what_was_changed() {
    let yard = Yard::new();
    let plan = plan(&yard.at("tree"), BackendName::Jail);
    let note = yard.first_run(&plan);
    assert!(matches!(note.backing, Backing::Overlay { .. }));
    // An attempt that came to nothing: its number is not used again, and the seed is still the first tree's.
    fs::create_dir_all(yard.at("two/upper/0")).unwrap();
    let second = yard.second_run(&plan).unwrap();
    assert_eq!((second.number, second.backing), (1, note.backing));
    let data = yard.at("two/upper/1/data");
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "changed by the run");
    assert_eq!(fs::read_to_string(data.join("new")).unwrap(), "made by the run");
    assert!(data.join("other").symlink_metadata().is_ok(), "it marks the removal");
    assert!(!data.join("third").exists(), "only what was changed");
    let refused = |backing| {
        yard.write_note(&LayeredTree { backing, ..note.clone() });
        yard.second_run(&plan)
    };
    let copy = refused(Backing::Copy { copied: RESTORED });
    assert!(matches!(copy, Err(BindError::SeedBacking { .. })), "{copy:?}");
    fs::remove_file(yard.at("seed/0").join(NOTE)).unwrap();
    assert!(yard.second_run(&plan).is_err(), "nothing is made up");
}

/// Run again as an ordinary user by the test below: root gives an engine no copy.
#[test]
fn a_copy_is_not_made_again() {
    if rustix::process::geteuid().is_root() {
        return;
    }
    let yard = Yard::new();
    let plan = plan(&yard.at("tree"), BackendName::Docker);
    let note = yard.first_run(&plan);
    assert!(matches!(note.backing, Backing::Copy { .. }));
    fs::write(yard.at("tree/third"), "changed by another process").unwrap();
    let second = yard.second_run(&plan).unwrap();
    assert_eq!((second.since, second.backing), (note.since, Backing::Copy { copied: RESTORED }));
    let data = yard.at("two/upper/0/data");
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "changed by the run");
    assert_eq!(fs::read_to_string(data.join("third")).unwrap(), "third", "as the first run saw it");
    assert!(!data.join("other").exists());
    let hidden = vec![OsText::from(yard.at("tree/third"))];
    let refused = yard.second_run(&Plan { hidden, ..plan });
    assert!(matches!(refused, Err(BindError::SeedHidden { .. })), "{refused:?}");
}

#[test]
fn both_as_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        return; // the tests above were that
    }
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), Permissions::from_mode(0o777)).unwrap();
    let copy = temp.path().join("tests");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    let names = ["an_overlay_begins_with_what_was_changed", "a_copy_is_not_made_again"];
    let output = Command::new(&copy)
        .arg("--exact")
        .args(names)
        .env("TMPDIR", temp.path())
        .current_dir(temp.path())
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("2 passed"), "{text}");
}
