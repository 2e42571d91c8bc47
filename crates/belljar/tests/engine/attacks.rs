//! The attack catalogue against every container engine: Docker, Podman as root and as an ordinary user,
//! and Docker with gVisor. Every case and its answer is printed.

use std::collections::VecDeque;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use belljar::prove::{Arm, Case, Identity, TestBed, Verdict, catalogue, prove};
use belljar_testkit::{Actor, EngineAccess, Lab, RemoteAgent, TestEngine};
use serde_json::Value;

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
const ALONE: &[&str] = &[
    "limit.inotify",
    "limit.inotify-instances",
    "limit.inotify-watches",
    "limit.pending-signals",
    "limit.in-flight",
    "limit.epoll-watches",
    "limit.message-queues",
    "limit.locked-memory",
];

/// A start is mostly waiting for the engine.
const AT_ONCE: usize = 3;

fn arm(lab: &Lab) -> Arm {
    let identity = match lab.actor.user() {
        Some(user) => Identity::User { uid: user.uid, gid: user.gid, cgroups: Vec::new() },
        None => Identity::Caller,
    };
    // The backend is among the flags.
    let mut arm = Arm::new(lab.exe.clone(), None, identity);
    let engine = lab.engine.iter();
    arm.flags = engine.clone().flat_map(EngineAccess::flags).map(Into::into).collect();
    let agent = lab.agent.iter().flat_map(RemoteAgent::variables);
    let variables = engine.flat_map(EngineAccess::variables).chain(agent);
    arm.env = variables.map(|(name, value)| (name.into(), value.into())).collect();
    arm
}

/// All of them, several at once, each worker with a stage of its own.
fn attack(name: &str, lab: &Lab, cases: Vec<Case>, at_once: usize) -> Vec<(Case, Verdict)> {
    let todo = Mutex::new(VecDeque::from(cases));
    let done = Mutex::new(Vec::new());
    let work = || {
        let testbed = TestBed::new(arm(lab)).unwrap();
        loop {
            let next = todo.lock().unwrap().pop_front();
            let Some(case) = next else { return };
            let began = Instant::now();
            let verdict = prove(&case, &testbed);
            let took = began.elapsed().as_millis();
            let (word, why) = (verdict.as_str(), verdict.why());
            println!("{name} {took:>6} ms  {:<29} {word}: {why}", case.name);
            done.lock().unwrap().push((case, verdict));
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
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
    if let Some(lab) = lab(engine) {
        the_catalogue_in(engine.name(), &lab);
    }
}

fn the_catalogue_in(name: &str, lab: &Lab) {
    let is_alone = |case: &Case| ALONE.contains(&case.name);
    let (alone, together): (Vec<Case>, Vec<Case>) = catalogue().into_iter().partition(is_alone);
    let count = alone.len() + together.len();
    let began = Instant::now();
    let mut verdicts = attack(name, lab, together, AT_ONCE);
    verdicts.extend(attack(name, lab, alone, 1));
    let held = verdicts.iter().filter(|(_, verdict)| verdict.has_held()).count();
    let took = began.elapsed().as_secs();
    println!("{name}: {held} of {count} held, in {took} s");
    assert_eq!(verdicts.len(), count, "a case is missing");
    let wrong: Vec<String> = verdicts
        .iter()
        .filter(|(_, verdict)| !verdict.is_sound())
        .map(|(case, verdict)| format!("{}: {}: {}", case.name, verdict.as_str(), verdict.why()))
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

/// The name on Docker of an image made from Debian: it has files of its own where a host has secrets.
const DEBIAN: &str = "BELLJAR_TEST_IMAGE_DEBIAN";

fn debian_image() -> Option<String> {
    let image = std::env::var(DEBIAN).ok();
    if image.is_none() {
        let must_work = std::env::var("BELLJAR_MUST_WORK").unwrap_or_default();
        assert!(
            !must_work.split(',').any(|name| name == "docker"),
            "{DEBIAN} is not set; `cargo xtask test` sets it"
        );
        println!("NOT CHECKED: on an image made from Debian: {DEBIAN} is not set");
    }
    image
}

/// How an engine is found by who has set no variable.
#[derive(Clone, Copy, Debug)]
enum Found {
    /// At one of the usual places, this one in the user's home.
    BySocket,
    /// By `docker context use`.
    ByContext,
}

fn make_findable(found: Found, lab: &Lab, socket: &Path) {
    match found {
        Found::BySocket => {
            let place = lab.make_directory("person/.docker/run");
            symlink(socket, place.join("docker.sock")).unwrap();
        }
        Found::ByContext => {
            let host = format!("unix://{}", socket.display());
            let endpoints = serde_json::json!({ "docker": { "Host": host } });
            let meta = serde_json::json!({ "Name": "mine", "Endpoints": endpoints });
            lab.make_file("person/.docker/contexts/meta/1/meta.json", meta.to_string());
            lab.make_file("person/.docker/config.json", r#"{"currentContext":"mine"}"#);
        }
    }
}

/// `belljar prove` as a user starts it: no variable leads to the engine.
fn started_by_a_user(found: Found, image: &str, words: &[&str]) -> Option<(i32, Vec<Value>)> {
    let access = TestEngine::Docker.access()?;
    let lab = Lab::new(Actor::Me);
    make_findable(found, &lab, access.socket());
    let call = lab.belljar(["prove", "--json", "--backend", "docker", "--image", image]);
    let done = words.iter().fold(call, |call, word| call.arg(word)).prepared().output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let told: Vec<Value> =
        serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    for case in &told {
        println!("{found:?} {:<29} {}: {}", case["case"], case["verdict"], case["why"]);
    }
    Some((done.status.code().unwrap(), told))
}

/// A machine whose own engine is at the first usual place would be asked instead.
fn has_an_engine_of_its_own() -> bool {
    std::os::unix::net::UnixStream::connect("/var/run/docker.sock").is_ok()
}

/// All of it: the first cases leave a home full of decoys to those that follow.
#[test]
fn the_command_on_debian_as_a_user_starts_it() {
    let Some(image) = debian_image() else { return };
    let found = if has_an_engine_of_its_own() { Found::ByContext } else { Found::BySocket };
    let Some((code, told)) = started_by_a_user(found, &image, &[]) else { return };
    assert_eq!(told.len(), catalogue().len(), "a case is missing");
    let sound = ["held", "works, and is not promised against", "could not be tried"];
    let wrong: Vec<&Value> = told
        .iter()
        .filter(|case| !sound.contains(&case["verdict"].as_str().unwrap_or_default()))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(code, 0);
    let held = told.iter().filter(|case| case["verdict"] == "held").count();
    assert!(held * 10 > told.len() * 9, "only {held} of {} held", told.len());
}

/// What a case plants where an engine keeps its settings is not what the launcher goes by.
#[test]
fn a_decoy_in_the_made_up_home_hides_no_engine() {
    let Some(access) = TestEngine::Docker.access() else { return };
    let image = access.flags().pop().unwrap_or_default();
    let words = ["--case", "fs.credentials", "--case", "fs.write-sysctl"];
    let mut ways = vec![Found::ByContext];
    if !has_an_engine_of_its_own() {
        ways.push(Found::BySocket);
    }
    for found in ways {
        let Some((code, told)) = started_by_a_user(found, &image, &words) else { return };
        let verdicts: Vec<&Value> = told.iter().map(|case| &case["verdict"]).collect();
        assert_eq!((code, verdicts), (0, vec![&Value::from("held"); 2]), "{found:?}: {told:#?}");
    }
}
