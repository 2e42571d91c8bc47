//! A test environment: a belljar home, a workspace, a user's home and a copy of the executable.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::actor::Actor;
use super::call::{Call, Done};
use super::engines::{EngineAccess, TestEngine};
use super::processes::{cgroups_named, processes_of, send, until};
use super::remote_agent::RemoteAgent;

#[derive(Debug)]
pub struct Lab {
    pub actor: Actor,
    directory: TempDir,
    home: PathBuf,
    /// A path of the executable that no other test uses, to find its processes by.
    pub exe: PathBuf,
    /// The engine of the runs; without one, belljar chooses the backend.
    pub engine: Option<EngineAccess>,
    /// What starts the sandboxes, where it is not the launcher itself.
    pub agent: Option<RemoteAgent>,
}

impl Lab {
    pub fn new(actor: Actor) -> Self {
        let directory = TempDir::with_prefix("belljar-lab-").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let exe = directory.path().join("bin/belljar");
        let home = directory.path().join("home");
        let lab = Self { actor, directory, home, exe, engine: None, agent: None };
        for name in ["bin", "home", "work", "person", "tmp"] {
            lab.make_directory(name);
        }
        fs::set_permissions(lab.home(), fs::Permissions::from_mode(0o700)).unwrap();
        link_or_copy(&executable(), &lab.exe);
        lab
    }

    /// A lab that runs containers on this engine.
    pub fn on(engine: EngineAccess, actor: Actor) -> Self {
        let mut lab = Self::new(actor);
        if let Some(launcher) = &engine.launcher {
            // PID 1 of its containers is the executable to test, beside it.
            fs::rename(&lab.exe, lab.init_beside()).unwrap();
            link_or_copy(launcher, &lab.exe);
        }
        lab.engine = Some(engine);
        lab
    }

    /// Where a belljar without the jail looks for PID 1 of its containers.
    pub fn init_beside(&self) -> PathBuf {
        self.exe.with_file_name(format!("belljar-linux-{}", std::env::consts::ARCH))
    }

    /// A lab whose sandboxes are behind an agent that sees nothing of it.
    pub fn remote() -> Self {
        let mut lab = Self::new(Actor::Me);
        fs::remove_file(&lab.exe).unwrap();
        link_or_copy(&RemoteAgent::launcher(), &lab.exe);
        lab.agent = Some(RemoteAgent::start(&lab.exe, lab.directory.path()));
        lab
    }

    /// In the jail, or on what the whole test run is on.
    pub fn me() -> Self {
        if RemoteAgent::is_of_this_test_run() {
            return Self::remote();
        }
        let lab = TestEngine::of_this_test_run().map(|engine| engine.lab().unwrap());
        lab.unwrap_or_else(|| Self::new(Actor::Me))
    }

    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(relative)
    }

    /// `BELLJAR_HOME`.
    pub fn home(&self) -> PathBuf {
        self.home.clone()
    }

    /// Uses another home from now on.
    pub fn use_home(&mut self, home: PathBuf) {
        self.home = home;
    }

    /// The current directory of every call, and so the workspace.
    pub fn work(&self) -> PathBuf {
        self.path("work")
    }

    /// `HOME`.
    pub fn person(&self) -> PathBuf {
        self.path("person")
    }

    pub fn make_directory(&self, relative: impl AsRef<Path>) -> PathBuf {
        let path = self.path(relative);
        for missing in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
            if !missing.exists() {
                fs::create_dir(missing).unwrap();
                self.give(missing);
            }
        }
        path
    }

    pub fn make_file(&self, relative: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(relative.as_ref());
        self.make_directory(path.parent().unwrap());
        fs::write(&path, content).unwrap();
        self.give(&path);
        path
    }

    pub fn make_program(&self, relative: impl AsRef<Path>, content: &str) -> PathBuf {
        let path = self.make_file(relative, content);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn give(&self, path: &Path) {
        if let Some(user) = self.actor.user() {
            chown(path, Some(user.uid), Some(user.gid)).unwrap();
        }
    }

    /// `belljar WORDS…`, in the workspace.
    pub fn belljar<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Call<'_> {
        Call::new(self, words.into_iter().map(|word| word.as_ref().to_owned()).collect())
    }

    /// `belljar run WORDS…`, on the lab's engine if it has one.
    pub fn run<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Call<'_> {
        let words = words.into_iter().map(|word| word.as_ref().to_owned());
        let flags = self.engine.iter().flat_map(EngineAccess::flags).map(OsString::from);
        Call::new(self, [OsString::from("run")].into_iter().chain(flags).chain(words).collect())
    }

    /// `belljar run OPTIONS -- sh -c SCRIPT`, to its end.
    pub fn sh(&self, options: &[&str], script: &str) -> Done {
        self.run(options.iter().chain(&["--", "sh", "-c", script])).done()
    }

    /// The same with `--json`; the object that it prints.
    pub fn sh_json(&self, options: &[&str], script: &str) -> Value {
        let all: Vec<&str> = ["--json"].iter().chain(options).copied().collect();
        self.sh(&all, script).json()
    }

    /// PID 1 of each sandbox in the jail, here or behind the agent.
    pub fn inits(&self) -> Vec<u32> {
        let exe = self.agent.as_ref().map_or_else(|| self.exe.clone(), RemoteAgent::exe);
        let is_init = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == b"__init")
        };
        processes_of(&exe).into_iter().filter(is_init).collect()
    }

    /// Ids of the runs that have a directory.
    pub fn runs(&self) -> Vec<String> {
        names_in(&self.home().join("runs"))
    }

    /// Ids of the live runs, from their liveness locks.
    /// A run's socket next to its lock does not count twice.
    pub fn live(&self) -> Vec<String> {
        super::wait_for_index(&self.home());
        let names = names_in(&self.home().join("live"));
        let is_extra = |name: &String| {
            name.strip_suffix(".sock").is_some_and(|id| names.iter().any(|other| other == id))
        };
        names.iter().filter(|name| !is_extra(name)).cloned().collect()
    }

    pub fn record(&self, id: &str) -> Value {
        super::wait_for_index(&self.home());
        let path = self.home().join("runs").join(id).join("run.json");
        let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_slice(&text).unwrap()
    }

    /// Asserts that a refused run left nothing.
    pub fn assert_nothing_was_made(&self) {
        assert_eq!(self.runs(), Vec::<String>::new(), "a refused run left its directory");
        assert_eq!(self.live(), Vec::<String>::new(), "a refused run left a liveness lock");
    }
}

impl Drop for Lab {
    /// Removes what a failed test left behind.
    fn drop(&mut self) {
        for left in processes_of(&self.exe) {
            send(left, Signal::KILL);
        }
        // Those of runs that were killed: the home that would lead the next belljar to them goes now.
        for group in cgroups_named(&self.live()) {
            until(Duration::from_secs(2), || fs::remove_dir(&group).is_ok());
        }
        self.remove_containers();
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A number that no other process of this machine has among its arguments. It is also a long time in
/// seconds that fits into 31 bits, so that `sleep` can carry it.
pub fn marker() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("1{:07}{count:02}", std::process::id())
}

/// A program that cargo built beside the test that calls this: `belljar`, or `examples/NAME`.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // `target/…/deps/TEST-HASH`
    test.parent().unwrap().parent().unwrap().join(name)
}

/// The executable to test, in a place that every user can reach.
pub fn executable() -> PathBuf {
    if let Some(given) = std::env::var_os("BELLJAR_EXE") {
        return PathBuf::from(given);
    }
    let built = built("belljar");
    let meta = fs::metadata(&built).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    // One copy for each build, shared by all tests of it: it is large, and there are many tests.
    // Tests of two checkouts can run at once.
    let uid = rustix::process::geteuid().as_raw();
    let mut place = DefaultHasher::new();
    built.hash(&mut place);
    let place = format!("belljar-test-exe-{uid}-{:016x}", place.finish());
    let name = format!("{place}/{}-{}", meta.mtime(), meta.mtime_nsec());
    let directory = std::env::temp_dir().join(name);
    let copy = directory.join("belljar");
    if !copy.exists() {
        fs::create_dir_all(&directory).unwrap();
        remove_older_copies(&directory);
        let draft = directory.join(format!("draft-{}", std::process::id()));
        fs::copy(&built, &draft).unwrap();
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&draft, &copy).unwrap();
    }
    copy
}

/// Labs have links of their own, so a test that still runs loses nothing.
fn remove_older_copies(newest: &Path) {
    for entry in fs::read_dir(newest.parent().unwrap()).unwrap().flatten() {
        if entry.path() != newest {
            let _ = fs::remove_dir_all(entry.path()); // another test may be doing the same
        }
    }
}

fn link_or_copy(from: &Path, to: &Path) {
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to).unwrap();
        fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
    }
}
