//! Every text by which a posture calls a clause weaker, shown to be true: what still holds, and what does not.
//! docs/posture.md has the list.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use belljar::spec::EventKind;
use belljar_testkit::{
    Actor, Lab, TestEngine, actors, as_root, each_user, host_uids, marker, processes_with, until,
};
use serde_json::Value;

/// What the run of this object said about a clause: the word and the text.
#[track_caller]
fn claim<'a>(result: &'a Value, clause: &str) -> (&'a str, &'a str) {
    let answer = &result["posture"][clause];
    assert!(answer.is_object(), "nothing about {clause}: {result:#}");
    let text = answer["why"].as_str().or(answer["how"].as_str());
    (answer["status"].as_str().unwrap(), text.unwrap_or_default())
}

fn has_user() -> bool {
    actors().contains(&Actor::User) // who is missing is named there
}

/// The executable as a probe in the workspace, which is in every sandbox.
fn put_probe(lab: &Lab) {
    fs::copy(&lab.exe, lab.work().join("probe")).unwrap();
}

fn listen(path: &Path) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

fn connects(listener: &UnixListener) -> usize {
    std::iter::from_fn(|| listener.accept().ok()).count()
}

/// "in a writable tree, sockets that the kernel lists by path at the start are covered; others answer"
#[test]
fn in_a_writable_tree_sockets_of_the_start_are_covered_and_later_ones_answer() {
    each_user(|lab| {
        put_probe(lab);
        let early = listen(&lab.work().join("early.sock"));
        let script = "./probe __probe connect-unix early.sock; echo ready; \
             while [ ! -e later.sock ]; do sleep 0.05; done; sleep 0.3; \
             ./probe __probe connect-unix later.sock";
        let live = lab.run(["--json", "--", "sh", "-c", script]).spawn();
        // Its output is in the object at the end, so the host looks for what the shell waits in.
        assert!(until(Duration::from_secs(20), || processes_with("later.sock").len() > 1));
        std::thread::sleep(Duration::from_millis(500));
        let later = listen(&lab.work().join("later.sock"));
        let done = live.done();
        let result = done.expect(0).json();
        let (word, text) = claim(&result, "fs.sockets");
        assert_eq!(word, "weaker");
        assert!(text.contains("at the start are covered; others answer"), "{text}");
        assert_eq!((connects(&early), connects(&later)), (0, 1), "{result:#}");
        // The control: on the host the covered one answers.
        let _peer = std::os::unix::net::UnixStream::connect(lab.work().join("early.sock")).unwrap();
        assert_eq!(connects(&early), 1);
    });
}

/// "disk use is checked every few seconds; a run over the limit is stopped"
#[test]
fn a_run_that_outgrows_its_disk_is_stopped_soon_and_not_at_once() {
    each_user(|lab| {
        let limit = ["--disk", "8m", "--waive", "fs.quota=test", "--timeout", "50s"];
        let script =
            "dd if=/dev/zero of=big bs=1M count=32 2>/dev/null; sync; echo grown; sleep 45";
        let result = lab.sh_json(&limit, script);
        let (word, text) = claim(&result, "fs.quota");
        assert_eq!(word, "weaker");
        assert!(
            text.contains("checked every few seconds; a run over the limit is stopped"),
            "{text}"
        );
        assert_eq!(result["reason"], "limit", "{result:#}");
        // Measured, so it could pass the limit before.
        assert_eq!(result["stdout"], "grown\n");
        let big = fs::metadata(lab.work().join("big")).unwrap().len();
        assert_eq!(big, 32 << 20, "it was not held to the limit, only stopped");
        // The control: the same within the limit.
        fs::remove_file(lab.work().join("big")).unwrap();
        let small = "dd if=/dev/zero of=big bs=1M count=2 2>/dev/null; sync; sleep 6";
        assert_eq!(lab.sh_json(&limit, small)["reason"], "exited");
    });
}

/// "an ordinary user has one uid; runs are kept apart by namespaces"
#[test]
fn runs_of_an_ordinary_user_share_its_uid_and_do_not_see_each_other() {
    if !as_root() || !has_user() {
        return;
    }
    for actor in [Actor::User, Actor::Me] {
        let lab = Lab::new(actor);
        let markers = [marker(), marker()];
        let live: Vec<_> = markers
            .iter()
            .map(|marker| {
                let live =
                    lab.run(["--", "sh", "-c", &format!("echo up; exec sleep {marker}")]).spawn();
                live.wait_for_output("up");
                live
            })
            .collect();
        let uid_of = |marker: &String| {
            let is_sleep = |pid: &u32| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                line.starts_with(b"sleep\0")
            };
            until(Duration::from_secs(10), || processes_with(marker).iter().any(is_sleep));
            let sleep = processes_with(marker).into_iter().find(is_sleep).unwrap();
            host_uids(sleep)[0]
        };
        let uids = [uid_of(&markers[0]), uid_of(&markers[1])];
        // The sleeps of the others are the only ones there are.
        let looks = "cat /proc/[0-9]*/comm | grep -c '^sleep$'";
        let result = lab.sh_json(&[], looks);
        let (word, text) = claim(&result, "id.unique");
        match actor {
            Actor::User => {
                assert_eq!((word, uids[0]), ("weaker", uids[1]));
                assert!(text.contains("kept apart by namespaces"), "{text}");
            }
            _ => assert!(word == "enforced" && uids[0] != uids[1], "{word}: {uids:?}"),
        }
        assert_eq!(result["stdout"].as_str().unwrap().trim(), "0", "a sibling can be seen");
        // The control: outside, it is found.
        assert!(!processes_with(&markers[0]).is_empty());
        for run in live {
            run.signal(rustix::process::Signal::TERM);
            run.done();
        }
    }
}

/// "RLIMIT_DATA limits each process's private memory; shared memory and the whole run are not limited"
///
/// Also where control groups are mounted and none of them is the user's.
#[test]
fn without_a_control_group_each_process_is_limited_and_the_run_is_not() {
    if !has_user() {
        return;
    }
    let lab = Lab::new(Actor::User);
    let limit = ["-m", "100m", "--waive", "limit.memory=test", "--timeout", "50s"];
    // dd has a buffer of that size, and waits with it for who reads.
    let one = |megabytes: u32| {
        format!("dd if=/dev/zero of=/dev/null bs={megabytes}M count=1 2>/dev/null")
    };
    let result = lab.sh_json(&limit, &one(1024));
    let (word, text) = claim(&result, "limit.memory");
    assert_eq!(word, "weaker", "{result:#}");
    assert!(text.contains("RLIMIT_DATA limits each process's private memory"), "{text}");
    assert_ne!(result["exit"]["code"], 0, "1 GiB with a limit of 100 MiB: {result:#}");
    // It was read back by the process that became the command.
    let id = result["id"].as_str().unwrap();
    let attested =
        lab.events(id).into_iter().find(|event| event.kind == EventKind::SandboxAttested);
    assert_eq!(attested.unwrap().data["attestation"]["rlimits"]["data"], 100 << 20);
    // Below it, one process passes.
    lab.sh(&limit, &one(60)).expect(0);
    // The whole run is not limited: three of them at once, which together have more.
    let held = "dd if=/dev/zero bs=60M count=1 2>/dev/null | { sleep 1; wc -c; }";
    let three = lab.sh(&limit, &format!("{held} & {held} & {held} & wait"));
    assert_eq!(three.expect(0).out().matches("62914560").count(), 3, "{three}");
    // Nor is what is shared.
    let shared =
        "dd if=/dev/zero of=/dev/shm/x bs=1M count=150 2>/dev/null && stat -c %s /dev/shm/x";
    assert_eq!(lab.sh(&limit, shared).expect(0).out().trim(), (150 << 20).to_string());
    // The control: without a limit, or a higher one, the first passes.
    lab.sh(&["-m", "4g", "--waive", "limit.memory=test"], &one(1024)).expect(0);
}

/// A number of processes that no control group holds is each process's own limit, and is read back.
#[test]
fn the_limit_of_processes_that_is_named_is_the_one_that_is_set() {
    for actor in actors() {
        let lab = Lab::new(actor);
        let result = lab.sh_json(&["--pids-limit", "77"], "ulimit -u");
        let (word, text) = claim(&result, "limit.pids");
        assert_eq!(word, "enforced", "{result:#}");
        let id = result["id"].as_str().unwrap();
        let attested =
            lab.events(id).into_iter().find(|event| event.kind == EventKind::SandboxAttested);
        let limits = attested.unwrap().data["attestation"]["rlimits"].clone();
        assert_eq!(
            text.contains("RLIMIT_NPROC"),
            limits["nproc"] == 77,
            "{actor:?}: {text}; {limits}"
        );
        assert_eq!(text.contains("RLIMIT_NPROC"), !actor.holds_limits(), "{actor:?}: {text}");
    }
}

/// "the jail shares the host's kernel"
#[test]
fn the_jail_answers_with_the_hosts_kernel() {
    each_user(|lab| {
        let result = lab.sh_json(&[], "uname -rv");
        assert_eq!(claim(&result, "kernel.separate").0, "absent");
        let uname = rustix::system::uname();
        let (release, version) =
            (uname.release().to_string_lossy(), uname.version().to_string_lossy());
        assert_eq!(result["stdout"].as_str().unwrap().trim(), format!("{release} {version}"));
    });
}

/// "learn: every public name", and a rule for any name.
#[test]
fn a_run_that_may_reach_every_public_name_does() {
    let ask = |name: &str| {
        format!(
            "exec 3<>/dev/tcp/127.0.0.1/61080; \
             printf 'GET http://{name}/ HTTP/1.1\\r\\nHost: {name}\\r\\nConnection: close\\r\\n\\r\\n' >&3; \
             head -n 1 <&3"
        )
    };
    let lab = Lab::new(Actor::Me);
    let world = lab.world();
    for (flags, is_open) in [
        (&["--learn"][..], true),
        (&["--allow-host", "*"], true),
        (&["--allow-host", "ok.example"], false),
    ] {
        let run = |name: &str| {
            let waiver = ["--json", "--no-config", "--waive", "net.sealed=test"];
            let script = ask(name);
            let command = ["--", "bash", "-c", &script];
            let words = waiver.iter().chain(flags).chain(&command);
            world.run(words).done().json()
        };
        let result = run("other.example");
        let (word, text) = claim(&result, "net.sealed");
        let answered = result["stdout"].as_str().unwrap_or_default().contains(" 200 ");
        assert_eq!(
            (word == "weaker", answered),
            (is_open, is_open),
            "{flags:?}: {text}: {result:#}"
        );
        // What is not public stays shut all the same.
        let private = run("private.example");
        assert!(!private["stdout"].as_str().unwrap_or_default().contains(" 200 "), "{private:#}");
    }
}

/// "the engine binds the tree as it is, and a socket in it answers"; "an ordinary user has one uid"
#[test]
fn on_a_users_own_engine_a_socket_in_a_tree_answers() {
    let Some(lab) = TestEngine::PodmanRootless.lab() else { return };
    put_probe(&lab);
    let given = lab.make_directory("given");
    let listener = listen(&given.join("host.sock"));
    let mount = format!("{}:/given", given.display());
    let flags = ["-v", &mount, "--waive", "fs.sockets=test"];
    let result = lab.sh_json(&flags, "./probe __probe connect-unix /given/host.sock");
    let (word, text) = claim(&result, "fs.sockets");
    assert_eq!((word, connects(&listener)), ("weaker", 1), "{text}: {result:#}");
    assert_eq!(claim(&result, "id.unique").0, "weaker");
    // With an overlay, the tree is a copy without it.
    let mount = format!("{}:/given:overlay", given.display());
    let flags = ["--workspace", ".:overlay", "-v", &mount];
    let result = lab.sh_json(&flags, "./probe __probe connect-unix /given/host.sock");
    assert_eq!(
        (claim(&result, "fs.sockets").0, connects(&listener)),
        ("enforced", 0),
        "{result:#}"
    );
}

/// "gVisor shows inodes of its own, so what the engine bound cannot be compared"; and it has a kernel of its own.
#[test]
fn gvisor_shows_inodes_and_a_kernel_of_its_own() {
    let Some(lab) = TestEngine::Runsc.lab() else { return };
    lab.make_file("work/file", "x");
    let waived = ["--waive", "limit.memory=test", "--waive", "limit.pids=test"];
    let result = lab.sh_json(&waived, "stat -c %i /workspace/file; uname -rv");
    let said = result["stdout"].as_str().unwrap();
    let (inode, kernel) = said.trim().split_once('\n').unwrap();
    let outside = fs::metadata(lab.work().join("file")).unwrap().ino();
    assert_ne!(inode, outside.to_string());
    assert_eq!(claim(&result, "kernel.separate").0, "enforced");
    let uname = rustix::system::uname();
    assert_ne!(kernel.split(' ').next().unwrap(), uname.release().to_string_lossy());
}

/// "read-only root and sized file systems in memory; disk use in the host's trees is checked every few seconds"
#[test]
fn a_container_has_a_read_only_root_and_is_stopped_by_its_disk() {
    let Some(lab) = TestEngine::Docker.lab() else { return };
    let limit = ["--disk", "8m", "--waive", "fs.quota=test", "--timeout", "50s"];
    let script = "touch /here; df -k /tmp | tail -n 1 | awk '{print $2}'; \
         dd if=/dev/zero of=big bs=1M count=32 2>/dev/null; sync; sleep 45";
    let result = lab.sh_json(&limit, script);
    let (word, text) = claim(&result, "fs.quota");
    assert_eq!((word, &result["reason"]), ("weaker", &Value::from("limit")), "{text}: {result:#}");
    assert!(result["stderr"].as_str().unwrap().contains("Read-only"), "{result:#}");
    assert_eq!(result["stdout"].as_str().unwrap().trim(), (1 << 20).to_string());
}
