//! A workspace on an engine of another machine: it is sent, and its changes come back.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use belljar_testkit::{Lab, PrivateDocker, until};
use rustix::process::Signal;
use serde_json::Value;

use super::{ON_IT, Way, assert_empty};

/// A workspace with everything that could go wrong on the way.
fn fill(lab: &Lab) {
    lab.make_file("work/a", "one\n");
    lab.make_file("work/b", "two\n");
    lab.make_file("work/d/x", "three\n");
    lab.make_file("work/hidden", "not to be seen\n");
    let work = lab.work();
    fs::set_permissions(work.join("a"), fs::Permissions::from_mode(0o664)).unwrap();
    fs::set_permissions(work.join("d/x"), fs::Permissions::from_mode(0o400)).unwrap();
    symlink("/etc/hostname", work.join("link")).unwrap();
}

fn overlay(lab: &Lab, way: &Way, options: &[&str], script: &str) -> Value {
    let workspace = ["--json", "--workspace", ".:overlay"];
    let command = ["--", "sh", "-c", script];
    let words = ON_IT.iter().chain(&workspace).chain(options).chain(&command);
    way.with(lab.run(words)).done().json()
}

fn events(lab: &Lab, way: &Way, run: &str, kind: &str) -> String {
    way.with(lab.belljar(["events", "--kind", kind, run])).done().expect(0).out()
}

pub(super) fn a_workspace_is_sent_and_comes_back(actor: &Lab, way: &Way, docker: &PrivateDocker) {
    let lab = &Lab::new(actor.actor);
    fill(lab);
    let _socket = UnixListener::bind(lab.work().join("socket")).unwrap();
    let manifest = "[sandbox]\nhide = [\"hidden\"]\n";
    let manifest = lab.make_file("manifest.toml", manifest);
    let manifest = ["--manifest", manifest.to_str().unwrap(), "-w", "/workspace/d"];
    let script = "pwd; cat x; cd ..; ls; stat -c %a a d/x; readlink link; \
                  echo more >> a; rm b; mkdir n; echo new > n/f; chmod 755 d/x; mkfifo pipe";
    let result = overlay(lab, way, &manifest, script);
    assert_eq!(result["exit"]["code"], 0, "{result:#}");
    let inside = "/workspace/d\nthree\na\nb\nd\nlink\n664\n400\n/etc/hostname\n";
    assert_eq!(result["stdout"], inside, "{result:#}");
    let posture = |clause: &str| result["posture"][clause]["status"].clone();
    assert_eq!(
        (posture("fs.sockets"), posture("fs.mounts")),
        ("enforced".into(), "enforced".into())
    );
    // Nothing has changed here yet.
    assert_eq!(fs::read_to_string(lab.work().join("a")).unwrap(), "one\n");
    let run = result["id"].as_str().unwrap();
    let named = way.with(lab.belljar(["diff", "--name-only", run])).done();
    assert_eq!(named.expect(0).out(), "a\nb\nd/x\nn\nn/f\n");
    assert!(events(lab, way, run, "workspace.sent").contains("\"files\":3"));
    assert!(events(lab, way, run, "workspace.returned").contains("\"skipped\":1"));
    way.with(lab.belljar(["apply", "--yes", run])).done().expect(0);
    let read = |path: &str| fs::read_to_string(lab.work().join(path)).unwrap();
    assert_eq!((read("a"), read("n/f")), ("one\nmore\n".to_owned(), "new\n".to_owned()));
    assert!(!lab.work().join("b").exists());
    let meta = |path: &str| fs::metadata(lab.work().join(path)).unwrap();
    assert_eq!((meta("d/x").mode() & 0o777, meta("a").mode() & 0o777), (0o755, 0o664));
    assert_eq!(meta("n/f").uid(), meta("a").uid());
    assert_eq!(read("hidden"), "not to be seen\n");
    assert!(lab.work().join("link").is_symlink() && lab.work().join("socket").exists());
    let rest = way.with(lab.belljar(["diff", "--exit-code", run])).done();
    rest.expect(0);
    assert_empty(docker);
}

/// What a run does not change is no change, and what it did not bring back is none either.
pub(super) fn a_workspace_that_is_only_read(actor: &Lab, way: &Way) {
    let lab = &Lab::new(actor.actor);
    fill(lab);
    let result = overlay(lab, way, &[], "cat a");
    assert_eq!(result["stdout"], "one\n", "{result:#}");
    let run = result["id"].as_str().unwrap();
    way.with(lab.belljar(["diff", "--exit-code", run])).done().expect(0);
    let words = ["--json", "--workspace", ".:ro", "--", "sh", "-c", "cat a; echo more >> a; cat a"];
    let result = way.with(lab.run(ON_IT.iter().chain(&words))).done().json();
    assert_eq!(result["stdout"], "one\none\nmore\n", "{result:#}");
    assert_eq!(fs::read_to_string(lab.work().join("a")).unwrap(), "one\n");
    let run = result["id"].as_str().unwrap();
    assert_eq!(events(lab, way, run, "workspace.returned"), "");
}

/// The default: files are changed, when the run ends. Whoever changed them meanwhile loses nothing.
pub(super) fn a_writable_workspace_is_applied_at_the_end(actor: &Lab, way: &Way) {
    let lab = &Lab::new(actor.actor);
    fill(lab);
    let run = |script: &str| way.with(lab.run(ON_IT.iter().chain(&["--", "sh", "-c", script])));
    let read = |path: &str| fs::read_to_string(lab.work().join(path)).unwrap();
    run("echo more >> a; rm b; echo new > f; exit 3").done().expect(3);
    assert_eq!((read("a"), read("f")), ("one\nmore\n".to_owned(), "new\n".to_owned()));
    assert!(!lab.work().join("b").exists());
    let shown = ON_IT.iter().chain(&["--dry-run", "--", "true"]);
    way.with(lab.run(shown)).done().expect(0).prints(&["brought back and applied at the end"]);
    // Somebody else writes to the same file while the run lasts.
    let live = run("echo theirs > a; echo begun; sleep 1000").spawn();
    live.wait_for_output("begun");
    lab.make_file("work/a", "mine\n");
    way.with(lab.belljar(["stop", &lab.live()[0]])).done().expect(0);
    live.done().says(&["were not applied", "1 path changed here too", "belljar apply"]);
    assert_eq!(read("a"), "mine\n");
    let newest = lab.runs().pop().unwrap();
    way.with(lab.belljar(["apply", "--yes", "--theirs", &newest])).done().expect(0);
    assert_eq!(read("a"), "theirs\n");
}

/// A run that is stopped brings back what it did; one whose sandbox is killed cannot, and its record says so.
pub(super) fn a_stopped_run_brings_back_and_a_killed_one_does_not(
    actor: &Lab,
    way: &Way,
    docker: &PrivateDocker,
) {
    let lab = &Lab::new(actor.actor);
    fill(lab);
    let result = overlay(lab, way, &["--timeout", "2s"], "echo more >> a; exec sleep 1000");
    assert_eq!(result["reason"], "deadline", "{result:#}");
    assert_eq!(result["workspace"]["modified"], 1, "{result:#}");
    let words = ["--json", "--workspace", ".:overlay", "--", "sh", "-c"];
    let script = "echo more >> a; echo here >&2; exec sleep 1000";
    let live = way.with(lab.run(ON_IT.iter().chain(&words).chain(&[script]))).spawn();
    let container = || docker.access().get("/containers/json?all=1")[0]["Id"].clone();
    assert!(until(Duration::from_secs(30), || container().is_string()));
    let run = || lab.live().first().cloned();
    let started = until(Duration::from_secs(30), || {
        run().is_some_and(|run| events(lab, way, &run, "exec.start").contains("sleep"))
    });
    assert!(started, "{:?}", lab.live());
    let pid = docker.access().get(&format!("/containers/{}/json", container().as_str().unwrap()));
    let pid = pid["State"]["Pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let result = live.done().json();
    let why = result["workspace"]["failed"].as_str().unwrap_or_default();
    assert!(why.contains("the changes to /workspace were not brought back"), "{result:#}");
    let run = result["id"].as_str().unwrap();
    assert!(events(lab, way, run, "workspace.lost").contains("/workspace"));
    assert_eq!(fs::read_to_string(Path::new(&lab.work()).join("a")).unwrap(), "one\n");
}
