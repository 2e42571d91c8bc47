//! The backend that shares nothing with the launcher: commands, trees, a link that breaks, a lease that ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use belljar_record::Outcome;
use belljar_record::home::Home;
use belljar_remote::{AGENT, Purpose, Remote, ask_agent};
use belljar_run::run::{Close, LaunchError, Observer, Output, Streams, launch, prepare_on};
use belljar_spec::wire::control::Keep;
use belljar_spec::{
    BackendChoice, BackendName, Limits, Mount, MountMode, OsText, Posture, RUN_SPEC_VERSION,
    Rootfs, RunId, RunSpec, Stdin, StopReason, Terminal, User,
};
use belljar_testkit::{marker, processes_with, send, until};
use rustix::process::Signal;

const CASES: [(&str, fn()); 7] = [
    ("output_and_exit_code", output_and_exit_code),
    ("nothing_is_shared", nothing_is_shared),
    ("a_tree_comes_back", a_tree_comes_back),
    ("rw_is_applied_at_the_end", rw_is_applied_at_the_end),
    ("what_changed_here_meanwhile_is_kept", what_changed_here_meanwhile_is_kept),
    ("the_link_is_cut_and_the_run_goes_on", the_link_is_cut_and_the_run_goes_on),
    ("the_lease_ends", the_lease_ends),
];

/// Lists and runs as the usual harness does.
fn main() -> ExitCode {
    if let Some(code) = belljar_linux::init::run_if_asked(std::env::args_os())
        .or_else(|| belljar_remote::run_if_asked(std::env::args_os()))
    {
        return ExitCode::from(code as u8);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|given| given == name);
    let wanted: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    for (name, case) in CASES {
        let is_named = |word: &&String| match has("--exact") {
            true => name == **word,
            false => name.contains(word.as_str()),
        };
        if has("--list") {
            if !has("--ignored") {
                println!("{name}: test");
            }
        } else if !has("--ignored") && (wanted.is_empty() || wanted.iter().any(is_named)) {
            if !rustix::process::geteuid().is_root() {
                println!("test {name} ... NOT CHECKED: another mount namespace needs root");
                continue;
            }
            case(); // a panic ends the whole, with its message
            println!("test {name} ... ok");
        }
    }
    ExitCode::SUCCESS
}

/// An agent that sees an empty directory where the launcher has everything.
struct Agent {
    process: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Agent {
    fn start(hidden: &Path) -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let script = "mount -t tmpfs none \"$1\" && exec \"$0\" \"$2\" \"$3\"";
        let mut process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .arg(std::env::current_exe().unwrap())
            .arg(hidden)
            .arg(AGENT)
            .arg(directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let address = format!("127.0.0.1:{}", port.trim()).parse().unwrap();
        Self { process, address, _directory: directory }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The launcher's machine.
struct Here {
    directory: tempfile::TempDir,
    agent: Agent,
}

impl Here {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::create_dir(directory.path().join("work")).unwrap();
        let agent = Agent::start(directory.path());
        Self { directory, agent }
    }

    fn work(&self, name: &str) -> PathBuf {
        self.directory.path().join("work").join(name)
    }

    fn run_as(
        &self,
        mode: Option<MountMode>,
        lease: Duration,
        script: &str,
    ) -> Result<Outcome, LaunchError> {
        let home = Home::open_at(self.directory.path().join("home")).unwrap();
        let remote = Remote::new(self.agent.address, lease);
        let spec = spec(mode.map(|mode| (self.work(""), mode)), script);
        let prepared = prepare_on(Box::new(remote), spec, Keep::WhileCommandRuns)?;
        let streams = Streams { stdin: None, output: Output::Captured, terminal: None };
        launch(&home, prepared, streams, Close::Here, &mut Nothing)
    }

    fn run(&self, script: &str) -> Outcome {
        self.run_as(None, LONG, script).unwrap()
    }
}

const LONG: Duration = Duration::from_secs(120);

struct Nothing;

impl Observer for Nothing {
    fn started(&mut self, _: &RunId, _: BackendName, _: &Posture) {}
}

fn spec(workspace: Option<(PathBuf, MountMode)>, script: &str) -> RunSpec {
    let workdir = if workspace.is_some() { "/workspace" } else { "/" };
    RunSpec {
        v: RUN_SPEC_VERSION,
        backend: BackendChoice::Jail,
        command: vec!["sh".into(), "-c".into(), script.into()],
        name: None,
        labels: BTreeMap::new(),
        workspace: workspace.map(|(source, mode)| Mount {
            source: source.components().collect::<PathBuf>().into(),
            target: "/workspace".into(),
            mode,
        }),
        workdir: workdir.into(),
        rootfs: Rootfs::Host,
        image_defaults: Default::default(),
        image: String::new(),
        tools: Vec::new(),
        mounts: Vec::new(),
        tmpfs: Vec::new(),
        hide: Vec::new(),
        allow_control: Vec::new(),
        allow_source: Vec::new(),
        manifest: None,
        env: BTreeMap::from([("PATH".to_owned(), OsText::from("/usr/bin:/bin"))]),
        user: User::default(),
        network_allow: Vec::new(),
        limits: Limits {
            memory: None,
            millicpus: None,
            pids: None,
            time: None,
            idle: None,
            output: 256 << 20,
            disk: None,
            stop_timeout: Duration::from_secs(10),
        },
        stdin: Stdin::Null,
        terminal: Terminal::None,
        required: BTreeSet::new(),
        waivers: Vec::new(),
        retention: Default::default(),
        fallback: Vec::new(),
        pull: Default::default(),
        oci_runtime: None,
        egress: Default::default(),
        agent: None,
        terminal_agent: None,
        shell: None,
        git_identity: None,
        git_directory: None,
        commands: Default::default(),
        untrusted_tree: None,
        denied_calls: Default::default(),
    }
}

fn text(outcome: &Outcome) -> String {
    let bytes = [outcome.stdout.head.as_slice(), &outcome.stdout.tail].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn output_and_exit_code() {
    let outcome = Here::new().run("id -u; echo there >&2; exit 7");
    assert_eq!((text(&outcome).as_str(), outcome.exit.code), ("1000\n", Some(7)), "{outcome:?}");
    assert_eq!(outcome.stderr.head, b"there\n");
    assert_eq!(outcome.leak, None);
}

/// The agent sees nothing of the launcher's directory: what the run has of it was sent.
fn nothing_is_shared() {
    let here = Here::new();
    fs::write(here.work("a"), "one\n").unwrap();
    let pid = here.agent.process.id();
    let there = format!("/proc/{pid}/root{}", here.work("a").display());
    assert!(!Path::new(&there).exists() && here.work("a").exists());
    let outcome = here.run_as(Some(MountMode::Ro), LONG, "cat a; echo more >> a").unwrap();
    assert_eq!((text(&outcome).as_str(), outcome.exit.code), ("one\n", Some(0)), "{outcome:?}");
    assert_eq!(fs::read_to_string(here.work("a")).unwrap(), "one\n");
}

fn a_tree_comes_back() {
    let here = Here::new();
    fs::write(here.work("a"), "one\n").unwrap();
    fs::write(here.work("b"), "two\n").unwrap();
    let script = "cat a; echo more >> a; rm b; mkdir n; echo new > n/f";
    let outcome = here.run_as(Some(MountMode::Overlay), LONG, script).unwrap();
    assert_eq!((text(&outcome).as_str(), outcome.exit.code), ("one\n", Some(0)), "{outcome:?}");
    let report = outcome.workspace.expect("the changes are known");
    let counts = (report.created, report.modified, report.deleted, report.failed);
    assert_eq!(counts, (2, 1, 1, None));
    // Only in the run's own directory.
    assert_eq!(fs::read_to_string(here.work("a")).unwrap(), "one\n");
    let data = here.directory.path().join("home/runs").join(outcome.id.to_string());
    let data = data.join("upper/0/data");
    assert_eq!(fs::read_to_string(data.join("a")).unwrap(), "one\nmore\n");
    assert_eq!(fs::read_to_string(data.join("n/f")).unwrap(), "new\n");
    assert!(!data.join("b").exists());
}

/// Not before the run ends, and never a control file, which is read-only in a tree that is mounted.
fn rw_is_applied_at_the_end() {
    let here = Here::new();
    fs::write(here.work("a"), "one\n").unwrap();
    fs::write(here.work("Makefile"), "all:\n").unwrap();
    fs::create_dir(here.work(".git")).unwrap();
    fs::create_dir(here.work(".git/hooks")).unwrap();
    let script = "echo more >> a; echo new > f; echo true > .git/hooks/pre-commit; exit 4";
    let outcome = here.run_as(Some(MountMode::Rw), LONG, script).unwrap();
    assert_eq!(outcome.exit.code, Some(4), "{outcome:?}");
    let report = outcome.workspace.expect("the changes are known");
    let applied = report.applied.expect("it was applied");
    let counts = (applied.changes, applied.held_back, applied.conflicts, applied.failed);
    assert_eq!(counts, (2, 1, 0, None));
    assert_eq!(fs::read_to_string(here.work("a")).unwrap(), "one\nmore\n");
    assert_eq!(fs::read_to_string(here.work("f")).unwrap(), "new\n");
    assert!(!here.work(".git/hooks/pre-commit").exists());
    // The control: an overlay changes nothing here.
    let outcome = here.run_as(Some(MountMode::Overlay), LONG, "echo again >> a").unwrap();
    assert_eq!(outcome.workspace.unwrap().applied, None);
    assert_eq!(fs::read_to_string(here.work("a")).unwrap(), "one\nmore\n");
}

/// Both versions are there afterwards: the one here in its place, the run's in its directory.
fn what_changed_here_meanwhile_is_kept() {
    let here = Here::new();
    fs::write(here.work("a"), "one\n").unwrap();
    let (mine, mark) = (here.work("a"), marker());
    let running = mark.clone();
    let writer = std::thread::spawn(move || {
        assert!(until(LONG, || !processes_with(&running).is_empty()));
        fs::write(&mine, "mine\n").unwrap();
        processes_with(&running).into_iter().for_each(|pid| send(pid, Signal::KILL));
    });
    let script = format!("echo theirs > a; echo new > f; sleep {mark}; exit 0");
    let outcome = here.run_as(Some(MountMode::Rw), LONG, &script).unwrap();
    writer.join().unwrap();
    let applied = outcome.workspace.clone().and_then(|report| report.applied);
    let applied = applied.unwrap_or_else(|| panic!("{outcome:?}"));
    assert_eq!((applied.changes, applied.conflicts, applied.failed), (0, 1, None));
    assert_eq!(fs::read_to_string(here.work("a")).unwrap(), "mine\n");
    assert!(!here.work("f").exists());
    let data = here.directory.path().join("home/runs").join(outcome.id.to_string());
    assert_eq!(fs::read_to_string(data.join("upper/0/data/a")).unwrap(), "theirs\n");
}

/// In the middle of output, several times; nothing is lost, repeated or changed.
fn the_link_is_cut_and_the_run_goes_on() {
    let here = Here::new();
    let script = "i=0; while [ $i -lt 100000 ]; do echo $i; i=$((i+1)); done; exit 3";
    let (agent, mark) = (here.agent.address, marker());
    let script = format!("{script}; : {mark}");
    let running = mark.clone();
    let cutter = std::thread::spawn(move || {
        assert!(until(LONG, || !processes_with(&running).is_empty()));
        let mut cuts = 0;
        while !processes_with(&running).is_empty() && cuts < 20 {
            ask_agent(agent, Purpose::Cut).unwrap();
            cuts += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
        cuts
    });
    let outcome = here.run(&script);
    assert!(cutter.join().unwrap() > 0);
    assert_eq!(outcome.exit.code, Some(3), "{:?} {:?}", outcome.reason, outcome.detail);
    let all: String = (0..100_000).map(|number| format!("{number}\n")).collect();
    assert!(text(&outcome) == all, "{} of {} bytes", text(&outcome).len(), all.len());
}

/// Without a link for the time of the lease everything inside ends. With one it runs to its end.
fn the_lease_ends() {
    let lease = Duration::from_secs(3);
    let here = Here::new();
    let control = here.run_as(None, lease, "sleep 8; echo whole").unwrap();
    assert_eq!(text(&control), "whole\n", "{control:?}");
    let here = Here::new();
    let (agent, mark) = (here.agent.address, marker());
    let running = mark.clone();
    let cutter = std::thread::spawn(move || {
        assert!(until(LONG, || !processes_with(&running).is_empty()));
        ask_agent(agent, Purpose::CutForGood).unwrap();
        assert!(until(LONG, || processes_with(&running).is_empty()));
    });
    let outcome = here.run_as(None, lease, &format!("sleep 1000; : {mark}")).unwrap();
    cutter.join().unwrap();
    assert_eq!(outcome.reason, StopReason::Lost, "{outcome:?}");
}
