//! Checks that a run left nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Lab;
use super::processes::{all, cgroups_named, describe, processes_of, until};

/// Processes end a moment after the kill that ends them, and a busy machine's moments are long.
const A_MOMENT: Duration = Duration::from_secs(3);

/// What lies in a home that is at rest.
const AT_REST: &[&str] = &[
    "applying",
    "ballast",
    "bin",
    "format",
    "key",
    "ledger.db",
    "ledger.db-shm",
    "ledger.db-wal",
    "live",
    "lock",
    "placeholders",
    "runs",
    "trash",
    "writable-trees",
    "writable-trees.lock",
];

impl Lab {
    /// Of these runs nothing is left but their records, and in the home nothing that is half made.
    #[track_caller]
    pub fn assert_no_traces(&self, runs: &[String]) {
        self.assert_nothing_lives(runs);
        assert_eq!(self.live(), Vec::<String>::new(), "entries in live/ are left");
        let left = until_empty(|| cgroups_named(runs));
        assert_eq!(left, Vec::<PathBuf>::new(), "control groups are left");
        let left: Vec<PathBuf> = drafts_in(&self.home());
        assert_eq!(left, Vec::<PathBuf>::new(), "half-made files are left");
    }

    /// The same without what only a next command takes away.
    #[track_caller]
    pub fn assert_nothing_lives(&self, runs: &[String]) {
        let left = until_empty(|| [processes_of(&self.exe), processes_in(runs)].concat());
        let left: Vec<String> = left.into_iter().map(describe).collect();
        assert_eq!(left, Vec::<String>::new(), "processes are left");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let home = self.home();
        let of_it = |line: &&str| {
            let below = format!("{}/", home.display());
            line.contains(&below) || runs.iter().any(|run| line.contains(run.as_str()))
        };
        let left: Vec<&str> = mounts.lines().filter(of_it).collect();
        assert_eq!(left, Vec::<&str>::new(), "mounts are left");
    }
}

fn until_empty<T>(mut look: impl FnMut() -> Vec<T>) -> Vec<T> {
    let mut left = Vec::new();
    until(A_MOMENT, || {
        left = look();
        left.is_empty()
    });
    left
}

/// Processes with the environment of one of these runs.
fn processes_in(runs: &[String]) -> Vec<u32> {
    let signs: Vec<String> = runs.iter().map(|run| format!("BELLJAR_RUN={run}")).collect();
    let belongs = |number: &u32| {
        let environ = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        environ
            .split(|byte| *byte == 0)
            .any(|variable| signs.iter().any(|sign| variable == sign.as_bytes()))
    };
    all().into_iter().filter(belongs).collect()
}

fn drafts_in(home: &Path) -> Vec<PathBuf> {
    let mut left = entries(home, |name| !AT_REST.contains(&name));
    left.extend(entries(&home.join("trash"), |_| true));
    left.extend(entries(&home.join("placeholders"), |_| true));
    left.extend(entries(&home.join("bin"), |name| name.starts_with('.') || name.contains("new")));
    for run in entries(&home.join("runs"), |_| true) {
        left.extend(entries(&run, |name| name.starts_with('.') || name.ends_with(".new")));
    }
    left
}

fn entries(directory: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let wanted = |entry: &fs::DirEntry| wanted(&entry.file_name().to_string_lossy());
    entries.flatten().filter(wanted).map(|entry| entry.path()).collect()
}
