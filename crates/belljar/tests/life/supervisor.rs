//! The supervisor of a kept sandbox, killed at any time of its life: nothing lives on without it, and
//! the next command closes its record.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use belljar::spec::wire::control::StopReport;
use belljar::spec::{MountMode, StopReason};
use belljar::{Error, Sandbox};
use belljar_testkit::{Fault, Lab, Point, TraceScope, children_of, processes_of, send, soak};

/// A whole life: a start, a command that leaves something running, copies in and out, and the end.
async fn life(lab: &Lab, executable: PathBuf) -> Result<StopReport, Error> {
    let sandbox = Sandbox::builder()
        .no_config()
        .home(lab.home())
        .belljar(executable)
        .workspace(lab.work(), MountMode::Rw)
        .start()
        .await?;
    let script = "(setsid sleep 50 &); echo x > f; echo done";
    let output = sandbox.exec(["sh", "-c", script]).output().await?;
    assert_eq!(output.stdout, b"done\n");
    sandbox.copy_in(lab.path("tmp/in"), "/tmp/in").await?;
    let target = lab.path("tmp/out");
    let copied = sandbox.copy_out("/tmp/in", &target).await;
    let _ = std::fs::remove_file(&target);
    copied?;
    sandbox.stop().await
}

struct Tried {
    lab: Lab,
    runtime: tokio::runtime::Runtime,
    lost: usize,
}

impl Tried {
    fn new() -> Self {
        let lab = Lab::me();
        lab.make_file("tmp/in", vec![7; 100_000]);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        Self { lab, runtime, lost: 0 }
    }

    fn whole_life(&self) -> Result<StopReport, Error> {
        self.runtime.block_on(life(&self.lab, self.lab.exe.clone()))
    }

    /// However it ended: what must hold afterwards.
    fn check(&mut self, before: &[String], ended: &Result<StopReport, Error>) {
        let lab = &self.lab;
        let names = lab.live().into_iter().map(|name| name.trim_end_matches(".sock").to_owned());
        let touched: Vec<String> = names.chain(lab.runs()).collect();
        lab.assert_nothing_lives(&touched);
        let found = lab.reconcile();
        assert_eq!(found.left, Vec::<String>::new());
        lab.assert_no_traces(&touched);
        assert!(lab.reconcile().is_empty());
        let half_copied: Vec<_> = std::fs::read_dir(lab.path("tmp"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| !["in", "calls"].iter().any(|known| name == known))
            .collect();
        assert!(half_copied.is_empty(), "a copy that was cut short left {half_copied:?}");
        let ids = lab.runs().into_iter().filter(|id| !before.contains(id));
        let ends: Vec<_> = ids.map(|id| lab.assert_sound(&id)).collect();
        assert!(ends.len() <= 1);
        match ended {
            Ok(report) => {
                assert_eq!(report.reason, StopReason::Stopped);
                assert_eq!(ends[0]["reason"], "stopped", "{ends:?}");
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        self.lost += found.lost.len();
    }
}

/// Numbers that look random and are the same each time.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, most: u64) -> u64 {
        const FACTOR: u64 = 6_364_136_223_846_793_005;
        self.0 = self.0.wrapping_mul(FACTOR).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

#[test]
fn killed_at_a_random_time() {
    let mut tried = Tried::new();
    // The control, and how long a whole life takes.
    tried.whole_life().unwrap();
    let begun = Instant::now();
    tried.whole_life().unwrap();
    let whole = begun.elapsed();

    let tries = if soak() { 400 } else { 40 };
    let mut random = Seeded(2026);
    let mut killed = 0;
    for _ in 0..tries {
        let delay = Duration::from_micros(random.below(whole.as_micros() as u64));
        eprintln!("killed after {delay:?} of {whole:?}");
        let before = tried.lab.runs();
        let ended = std::thread::scope(|scope| {
            let lived = scope.spawn(|| tried.whole_life());
            std::thread::sleep(delay);
            // A half-made sandbox has the same words among its arguments, and another parent.
            let ours = processes_of(&tried.lab.exe);
            let children = children_of(std::process::id());
            let supervisor = ours.into_iter().find(|process| children.contains(process));
            if let Some(supervisor) = supervisor {
                killed += 1;
                send(supervisor, rustix::process::Signal::KILL);
            }
            lived.join().unwrap()
        });
        tried.check(&before, &ended);
    }
    eprintln!("killed {killed} of {tries} supervisors; {} runs were lost", tried.lost);
    assert!(killed * 2 > tries, "most of them were over before they could be killed");
    assert!(tried.lost > 0, "none was killed while it ran");
}

const CALLS: &[&str] = &[
    "accept4",
    "bind",
    "clone",
    "clone3",
    "fallocate",
    "fdatasync",
    "fsync",
    "ftruncate",
    "listen",
    "mkdir",
    "openat",
    "pwrite64",
    "rename",
    "rmdir",
    "sendto",
    "socket",
    "unlink",
    "wait4",
    "write",
    "writev",
];

/// The same at each of its system calls, by a program in its place that starts it under strace.
#[test]
fn killed_at_each_call() {
    let mut tried = Tried::new();
    tried.whole_life().unwrap();
    let program = tried.lab.path("bin/traced");
    let begin = |tried: &Tried, options: &str| {
        let exe = tried.lab.exe.display();
        let text = format!("#!/bin/sh\nexec strace -qq {options} {exe} \"$@\"\n");
        tried.lab.make_program("bin/traced", &text);
        tried.runtime.block_on(life(&tried.lab, program.clone()))
    };
    // The control: traced, and with nothing that goes wrong.
    let calls = tried.lab.make_file("tmp/calls", "");
    let trace = format!("-e trace={} -e signal=none -o {}", CALLS.join(","), calls.display());
    begin(&tried, &trace).unwrap();
    let text = std::fs::read(&calls).unwrap();
    let text = String::from_utf8_lossy(&text).into_owned();
    let (mut points, mut failed) = (0, 0);
    for call in CALLS {
        let count =
            text.lines().filter(|line| line.starts_with(&format!("{call}("))).count() as u32;
        let each = if soak() { count } else { count.min(3) };
        for number in (0..each).map(|at| 1 + at * (count - 1) / (each - 1).max(1)) {
            let point = Point { call: (*call).to_owned(), number, scope: TraceScope::Launcher };
            eprintln!("{point:?}");
            let before = tried.lab.runs();
            let ended = begin(&tried, &format!("-o /dev/null -e {}", point.inject(Fault::Kill)));
            points += 1;
            failed += u32::from(ended.is_err());
            tried.check(&before, &ended);
        }
    }
    eprintln!("killed at {points} points, told {failed} times; {} runs were lost", tried.lost);
    assert!(points > 20 && failed * 10 > points * 7, "most of the points were not met");
    tried.whole_life().unwrap();
    tried.lab.assert_all_sound();
}
