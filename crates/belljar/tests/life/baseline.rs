//! Many runs, one after the other: the host is afterwards as it was.
//!
//! One test only: it counts what this process has open, which others in it would change.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use belljar::spec::MountMode;
use belljar_testkit::{Lab, cgroups_named, soak, until};

/// What could pile up on the host. Counts of everything that other programs change too are left out.
#[derive(Debug, PartialEq, Eq)]
struct Baseline {
    mounts: BTreeSet<String>,
    /// Open descriptors of this process.
    descriptors: usize,
    /// Children of this process that nobody reaped.
    zombies: usize,
    /// Files in the directories that belljar could use for temporary ones.
    temporary: BTreeSet<String>,
    /// Locks of uids that are held are in use; the files stay for the next run.
    loops: usize,
}

fn names(directory: &Path) -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(directory) else { return BTreeSet::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn zombies() -> usize {
    let own = std::process::id().to_string();
    let is_ours = |name: &String| {
        let Ok(stat) = fs::read_to_string(format!("/proc/{name}/stat")) else { return false };
        let Some((_, rest)) = stat.rsplit_once(')') else { return false };
        let mut fields = rest.split_whitespace();
        fields.next() == Some("Z") && fields.next() == Some(own.as_str())
    };
    names(Path::new("/proc")).iter().filter(|name| is_ours(name)).count()
}

impl Baseline {
    fn of(lab: &Lab) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours =
            |line: &&str| line.contains("belljar") && line.contains(lab.home().to_str().unwrap());
        Self {
            mounts: mounts.lines().filter(ours).map(str::to_owned).collect(),
            descriptors: names(Path::new("/proc/self/fd")).len(),
            zombies: zombies(),
            temporary: names(&lab.path("tmp")),
            loops: names(Path::new("/sys/block"))
                .iter()
                .filter(|name| {
                    let file = format!("/sys/block/{name}/loop/backing_file");
                    fs::read_to_string(file)
                        .is_ok_and(|path| path.contains(lab.home().to_str().unwrap()))
                })
                .count(),
        }
    }
}

/// Keys that this user has in the kernel's keyrings: a run makes a session keyring of its own.
fn keys() -> usize {
    let text = fs::read_to_string("/proc/key-users").unwrap_or_default();
    let own = format!("{}:", rustix::process::geteuid().as_raw());
    let line = text.lines().find(|line| line.trim_start().starts_with(&own)).unwrap_or_default();
    let counts = line.split_whitespace().nth(2).unwrap_or("0/0");
    counts.split('/').next().unwrap().parse().unwrap_or_default()
}

#[test]
fn short_runs_leave_the_host_as_it_was() {
    let count: u32 = if soak() { 1000 } else { 100 };
    let lab = Lab::me();
    lab.run(["--no-config", "--", "true"]).done().expect(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let one = |number: u32| {
        let builder = belljar::Sandbox::builder()
            .no_config()
            .home(lab.home())
            .belljar(&lab.exe)
            .workspace(lab.work(), MountMode::Rw);
        let script = format!("echo {number}; exit {}", number % 5);
        let ended = runtime.block_on(builder.run(["sh", "-c", &script])).unwrap();
        assert_eq!(ended.output.stdout, format!("{number}\n").into_bytes());
        assert_eq!(ended.output.exit.code, Some((number % 5) as i32));
    };
    // What the first ones make once, for all: the runtime's own descriptors, uid locks.
    (0..3).for_each(one);
    let settle =
        || runtime.block_on(async { tokio::time::sleep(Duration::from_millis(300)).await });
    settle();
    let (before, keys_before) = (Baseline::of(&lab), keys());
    let mut all = BTreeSet::new();
    for number in 0..count {
        one(number);
        all.extend(lab.runs());
    }
    assert!(all.len() as u32 >= count, "{} runs", all.len());
    settle();
    let mut after = Baseline::of(&lab);
    // The runtime reaps supervisors in its own time.
    until(Duration::from_secs(5), || {
        settle();
        after = Baseline::of(&lab);
        after == before
    });
    assert_eq!(after, before);
    let all: Vec<String> = all.into_iter().collect();
    assert_eq!(cgroups_named(&all), Vec::<std::path::PathBuf>::new());
    lab.assert_no_traces(&all);
    let grown = || keys().saturating_sub(keys_before);
    // Freed keys are collected a while later, and other programs of this user have some too.
    assert!(until(Duration::from_secs(20), || grown() < 20), "{} keys more", grown());
    lab.assert_all_sound();
}
