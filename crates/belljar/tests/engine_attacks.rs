//! The attack catalogue against every container engine: Docker, Podman as root and as an ordinary user,
//! and Docker with gVisor. Every case and its answer is printed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod support;

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Instant;

use belljar::prove::{Arm, Case, Identity, Stage, Verdict, catalogue, prove};
use support::{Lab, TestEngine};

/// What stock engines leave open. Each must have held, or the posture says that there is nothing to hold.
const SHUT: &[&str] = &[
    "net.vsock",
    "kernel.io-uring",
    "net.netlink",
    "proc.new-namespaces",
    "fs.nested-namespace",
    "limit.raise-memory",
];

/// It takes what other runs of the same user need, and so does the engine of that user.
const ALONE: &[&str] = &["limit.inotify"];

/// A start is mostly waiting for the engine.
const AT_ONCE: usize = 3;

fn arm(engine: TestEngine, lab: &Lab) -> Arm {
    let identity = match engine.actor().user() {
        Some(user) => Identity::User { uid: user.uid, gid: user.gid, cgroups: Vec::new() },
        None => Identity::Caller,
    };
    let access = lab.engine.as_ref().unwrap();
    // The backend is among the flags.
    let mut arm = Arm::new(lab.exe.clone(), None, identity);
    arm.flags = access.flags().into_iter().map(Into::into).collect();
    arm.env =
        access.variables().into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    arm
}

/// All of them, several at once, each worker with a stage of its own.
fn attack(engine: TestEngine, lab: &Lab, cases: Vec<Case>) -> Vec<(Case, Verdict)> {
    let todo = Mutex::new(VecDeque::from(cases));
    let done = Mutex::new(Vec::new());
    let work = || {
        let stage = Stage::new(arm(engine, lab)).unwrap();
        loop {
            let next = todo.lock().unwrap().pop_front();
            let Some(case) = next else { return };
            let began = Instant::now();
            let verdict = prove(&case, &stage);
            let took = began.elapsed().as_millis();
            let (engine, word, why) = (engine.name(), verdict.word(), verdict.why());
            println!("{engine} {took:>6} ms  {:<29} {word}: {why}", case.name);
            done.lock().unwrap().push((case, verdict));
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    done.into_inner().unwrap()
}

/// One at a time: they share a copy of the executable, which the first one makes.
fn lab(engine: TestEngine) -> Option<Lab> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _guard = MAKING.lock();
    engine.lab()
}

fn the_catalogue_on(engine: TestEngine) {
    let Some(lab) = lab(engine) else { return };
    let is_alone = |case: &Case| ALONE.contains(&case.name);
    let (alone, together): (Vec<Case>, Vec<Case>) = catalogue().into_iter().partition(is_alone);
    let count = alone.len() + together.len();
    let began = Instant::now();
    let mut verdicts = attack(engine, &lab, together);
    verdicts.extend(attack(engine, &lab, alone));
    let held = verdicts.iter().filter(|(_, verdict)| verdict.has_held()).count();
    let (name, took) = (engine.name(), began.elapsed().as_secs());
    println!("{name}: {held} of {count} held, in {took} s");
    assert_eq!(verdicts.len(), count, "a case is missing");
    let wrong: Vec<String> = verdicts
        .iter()
        .filter(|(_, verdict)| !verdict.is_sound())
        .map(|(case, verdict)| format!("{}: {}: {}", case.name, verdict.word(), verdict.why()))
        .collect();
    assert!(wrong.is_empty(), "on {name}:\n{}", wrong.join("\n"));
    for shut in SHUT {
        let (_, verdict) = verdicts.iter().find(|(case, _)| case.name == *shut).unwrap();
        let is_absent =
            matches!(verdict, Verdict::NotTried { why } if why.contains(" is absent here: "));
        assert!(verdict.has_held() || is_absent, "on {name}, {shut}: {verdict:?}");
    }
}

#[test]
fn the_catalogue_on_docker() {
    the_catalogue_on(TestEngine::Docker);
}

#[test]
fn the_catalogue_on_podman() {
    the_catalogue_on(TestEngine::Podman);
}

#[test]
fn the_catalogue_on_a_rootless_podman() {
    the_catalogue_on(TestEngine::PodmanRootless);
}

#[test]
fn the_catalogue_on_gvisor() {
    the_catalogue_on(TestEngine::Runsc);
}
