//! Whatever a run does to a layered tree, after `apply` the real tree is what a plain copy would be after the same
//! steps; before it, the real tree is what it was.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_testkit::{Actor, Lab, PrivateDocker, TestEngine, each_user, soak, test_user};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// One step, as a line of a shell's script. Each says for itself when it does nothing, so that it means the same to
/// every shell.
#[derive(Clone, Debug)]
enum Step {
    MakeDirectory(String),
    Write(String, u8),
    Append(String, u8),
    /// Whatever was at the second name goes.
    Rename(String, String),
    RenameOverFile(String, String),
    Delete(String),
    Link(String, String),
    HardLink(String, String),
    ChangeMode(String, &'static str),
    FileByDirectory(String),
    DirectoryByFile(String, u8),
    /// The same content once more: a change of nothing.
    Rewrite(String),
    Exchange(String, String),
}

impl Step {
    fn script(&self) -> String {
        let content = |byte: &u8| format!("line {byte}\\nsecond\\n");
        match self {
            Self::MakeDirectory(p) => format!("[ -e {p} ] || [ -L {p} ] || mkdir {p}"),
            Self::Write(p, byte) => {
                format!("[ -d {p} ] || [ -L {p} ] || printf '{}' > {p}", content(byte))
            }
            Self::Append(p, byte) => {
                format!("[ -d {p} ] || [ -L {p} ] || printf '{}' >> {p}", content(byte))
            }
            Self::Rename(a, b) => {
                format!("if [ -e {a} ] || [ -L {a} ]; then rm -rf {b}; mv {a} {b}; fi")
            }
            Self::RenameOverFile(a, b) => format!(
                "[ ! -f {a} ] || [ ! -f {b} ] || [ -L {a} ] || [ -L {b} ] || [ {a} -ef {b} ] || mv -f {a} {b}"
            ),
            Self::Delete(p) => format!("rm -rf {p}"),
            Self::Link(to, p) => format!("rm -rf {p}; ln -s {to} {p}"),
            Self::HardLink(a, b) => {
                format!("[ ! -f {a} ] || [ -L {a} ] || [ -e {b} ] || [ -L {b} ] || ln {a} {b}")
            }
            Self::ChangeMode(p, mode) => format!(
                "if [ ! -L {p} ]; then if [ -d {p} ]; then chmod u=rwx,{mode} {p}; \
                 elif [ -f {p} ]; then chmod u=rw,{mode} {p}; fi; fi"
            ),
            Self::FileByDirectory(p) => format!("rm -rf {p}; mkdir {p} && printf x > {p}/inner"),
            Self::DirectoryByFile(p, byte) => {
                format!("rm -rf {p}; printf '{}' > {p}", content(byte))
            }
            Self::Rewrite(p) => format!(
                "[ ! -f {p} ] || [ -L {p} ] || {{ cat {p} > {p}.again && cat {p}.again > {p}; rm -f {p}.again; }}"
            ),
            Self::Exchange(a, b) => format!(
                "if [ -e {a} ] && [ -e {b} ]; then mv {a} swap && mv {b} {a} && mv swap {b}; fi"
            ),
        }
    }
}

fn name() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["a", "b", "c", "deep"]);
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"))
}

/// Neither in the other.
fn two_names() -> impl Strategy<Value = (String, String)> {
    let apart =
        |(a, b): &(String, String)| !Path::new(a).starts_with(b) && !Path::new(b).starts_with(a);
    (name(), name()).prop_filter("one is in the other", apart)
}

fn step() -> impl Strategy<Value = Step> {
    let byte = 0..4_u8;
    prop_oneof![
        3 => name().prop_map(Step::MakeDirectory),
        4 => (name(), byte.clone()).prop_map(|(p, byte)| Step::Write(p, byte)),
        2 => (name(), byte.clone()).prop_map(|(p, byte)| Step::Append(p, byte)),
        4 => two_names().prop_map(|(a, b)| Step::Rename(a, b)),
        2 => two_names().prop_map(|(a, b)| Step::RenameOverFile(a, b)),
        3 => name().prop_map(Step::Delete),
        1 => (prop::sample::select(vec!["a", "b/c", "nowhere"]), name())
            .prop_map(|(to, p)| Step::Link(to.to_owned(), p)),
        1 => two_names().prop_map(|(a, b)| Step::HardLink(a, b)),
        2 => (name(), prop::sample::select(vec!["go=", "go=rx", "go=r", "g=rwx,o="]))
            .prop_map(|(p, mode)| Step::ChangeMode(p, mode)),
        2 => name().prop_map(Step::FileByDirectory),
        2 => (name(), byte).prop_map(|(p, byte)| Step::DirectoryByFile(p, byte)),
        1 => name().prop_map(Step::Rewrite),
        1 => two_names().prop_map(|(a, b)| Step::Exchange(a, b)),
    ]
}

fn script(steps: &[Step]) -> String {
    let lines: Vec<String> = steps.iter().map(Step::script).collect();
    format!("umask 022; exec 2>/dev/null; {}; exit 0", lines.join("\n"))
}

/// Every path below a directory: what it is, its mode, its content or target.
type Tree = BTreeMap<PathBuf, (char, u32, Vec<u8>)>;

fn tree(root: &Path) -> Tree {
    fn walk(root: &Path, relative: &Path, all: &mut Tree) {
        for entry in fs::read_dir(root.join(relative)).unwrap() {
            let path = relative.join(entry.unwrap().file_name());
            let full = root.join(&path);
            let meta = full.symlink_metadata().unwrap();
            let mode = meta.mode() & 0o7777;
            let kind = meta.file_type();
            if kind.is_dir() {
                all.insert(path.clone(), ('d', mode, Vec::new()));
                walk(root, &path, all);
            } else if kind.is_symlink() {
                let target = fs::read_link(&full).unwrap().into_os_string().into_encoded_bytes();
                all.insert(path, ('l', 0, target));
            } else {
                assert!(kind.is_file(), "{} is no plain file", full.display());
                all.insert(path, ('f', mode, fs::read(&full).unwrap()));
            }
        }
    }
    let mut all = Tree::new();
    walk(root, Path::new(""), &mut all);
    all
}

fn in_shell(directory: &Path, script: &str) {
    let done = Command::new("sh").arg("-c").arg(script).current_dir(directory).status().unwrap();
    assert!(done.success());
}

fn give(lab: &Lab, path: &Path) {
    let Some(user) = lab.actor.user() else { return };
    lchown(path, Some(user.uid), Some(user.gid)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(lab, &entry.unwrap().path());
        }
    }
}

fn empty(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.symlink_metadata().unwrap().is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
    }
}

fn check(lab: &Lab, copy: &Path, first: &[Step], steps: &[Step]) -> Result<(), TestCaseError> {
    let work = lab.work();
    empty(&work);
    empty(copy);
    for directory in [work.as_path(), copy] {
        in_shell(directory, &script(first));
    }
    give(lab, &work);
    let before = tree(&work);
    prop_assert_eq!(&before, &tree(copy), "both begin alike");
    in_shell(copy, &script(steps));
    let wanted = tree(copy);

    let ran = lab.sh_json(&["--workspace", ".:overlay"], &script(steps));
    prop_assert_eq!(&ran["exit"]["code"], &serde_json::json!(0), "{}", ran);
    prop_assert_eq!(&tree(&work), &before, "the real tree stays as it is");
    let id = ran["id"].as_str().unwrap();
    let applied = lab.belljar(["apply", "--yes", id]).done();
    prop_assert!(applied.code() == 0, "{}{}", applied.out(), applied.err());
    prop_assert_eq!(&tree(&work), &wanted, "after apply");
    let owner = lab.actor.user().map_or(rustix::process::geteuid().as_raw(), |user| user.uid);
    for path in wanted.keys() {
        let found = work.join(path).symlink_metadata().unwrap().uid();
        prop_assert_eq!(found, owner, "the owner of {}", path.display());
    }
    let left = lab.belljar(["diff", "--exit-code", id]).done();
    prop_assert!(left.code() == 0, "diff still finds: {}", left.out());
    let removed = lab.belljar(["rm", id]).done();
    prop_assert!(removed.code() == 0, "{}", removed.err());
    Ok(())
}

fn property(lab: &Lab, cases: u32) {
    let cases = if soak() { cases * 20 } else { cases };
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    // The same steps on every machine; a soak takes others each time.
    let mut runner = match soak() {
        true => TestRunner::new(config),
        false => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let copy = lab.make_directory("copy");
    let steps = (prop::collection::vec(step(), 0..25), prop::collection::vec(step(), 1..25));
    runner.run(&steps, |(first, steps)| check(lab, &copy, &first, &steps)).unwrap();
}

#[test]
fn in_the_jail() {
    each_user(|lab| property(lab, 40));
}

#[test]
fn on_docker() {
    let Some(lab) = TestEngine::Docker.lab() else { return };
    property(&lab, 12);
}

/// The launcher may not mount anything: the tree is copied.
#[test]
fn on_docker_as_an_ordinary_user() {
    let Some(docker) = PrivateDocker::start() else { return };
    if test_user().is_none() {
        eprintln!("NOT CHECKED: as an ordinary user (needs root and the user belljar-test)");
        return;
    }
    let access = docker.access();
    for (path, mode) in [(access.socket().parent().unwrap(), 0o755), (access.socket(), 0o666)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    property(&Lab::on(access, Actor::User), 12);
}

#[test]
fn on_rootless_podman() {
    let Some(lab) = TestEngine::PodmanRootless.lab() else { return };
    property(&lab, 6);
}
