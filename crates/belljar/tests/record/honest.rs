//! An honest record verifies: whatever kind of run it is of, and however that ended.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;

use belljar_testkit::{
    Behaviour, FakeEngine, Input, Lab, each_user, processes_of, send, soak, until,
};
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rustix::process::Signal;
use serde_json::Value;

/// A kind of run, made in a lab of its own.
type Kind = (&'static str, fn(&Lab));

const KINDS: &[Kind] = &[
    ("nothing at all", |lab| plain(lab, &[], "true")),
    ("a Makefile is changed", |lab| {
        lab.make_file("work/Makefile", "all:\n");
        plain(lab, &[], "echo >> Makefile");
    }),
    ("project files of many kinds are made", |lab| {
        plain(lab, &[], PROJECT_FILES);
    }),
    ("more project files are made than a list holds", |lab| {
        let script = "for n in $(seq 400); do mkdir -p d$n && echo all: > d$n/Makefile; done";
        plain(lab, &[], script);
    }),
    ("a repository with hooks is made", |lab| {
        let script = "mkdir -p .git/hooks sub/.git/hooks && echo x > .git/hooks/pre-commit && \
             echo x > sub/.git/hooks/pre-commit && echo '[core]' > sub/.git/config";
        plain(lab, &[], script);
    }),
    ("control files are made deep in the tree", |lab| {
        plain(
            lab,
            &[],
            "mkdir -p a/b/.vscode && echo x > a/b/.vscode/tasks.json; echo x > a/.envrc",
        );
    }),
    ("a control file is let through", |lab| {
        plain(lab, &["--allow-control", ".envrc"], "echo x > .envrc");
    }),
    ("an overlay stays as it was", |lab| plain(lab, OVERLAY, "true")),
    ("an overlay is changed", |lab| {
        lab.make_file("work/Makefile", "all:\n");
        lab.make_file("work/gone", "");
        plain(
            lab,
            OVERLAY,
            &format!("echo >> Makefile; rm gone; {PROJECT_FILES}; echo x > .envrc"),
        );
    }),
    ("an overlay is changed, applied, and discarded", |lab| {
        lab.make_file("work/Makefile", "all:\n");
        plain(lab, &["--workspace", ".:overlay", "--name", "a"], "echo >> Makefile; echo x > new");
        lab.belljar(["apply", "--yes", "a"]).done().expect(0);
        plain(lab, &["--workspace", ".:overlay", "--name", "b"], "echo >> Makefile; echo x > new");
        lab.belljar(["discard", "--yes", "b"]).done();
    }),
    ("another tree is changed too", |lab| {
        lab.make_file("data/package.json", "{}");
        let mount = format!("{}:/data:rw", lab.path("data").display());
        plain(lab, &["-v", &mount], "echo >> /data/package.json; echo >> package.json");
    }),
    ("a secret is masked", |lab| {
        let script = "echo $MY_TOKEN; echo $MY_TOKEN >&2; echo $MY_TOKEN > Makefile";
        plain(lab, &["-e", "MY_TOKEN=hunter2-hunter2"], script);
    }),
    ("output beyond the limit", |lab| {
        let script = "seq 20000; seq 20000 >&2; echo >> Makefile";
        plain(lab, &["-c", "limits.output=4k"], script);
    }),
    ("bytes that are no text", |lab| {
        lab.make_file("work/Makefile", "all:\n");
        let odd = |text: &[u8]| OsString::from_vec(text.to_vec());
        let call = lab.run(["-q", "-e"]).arg(odd(b"ODD=\xff\xfe"));
        let script = "printf '\\377\\000\\376'; mkdir \"$0\"; echo all: > \"$0/Makefile\"";
        let call = call.arg("--").arg("sh").arg("-c").arg(script).arg(odd(b"n\xf0me\n"));
        call.done().expect(0);
    }),
    ("a workspace whose name is no text", |lab| {
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(b"work/od\xffd");
        let directory = lab.make_directory(name);
        lab.run(["-q", "--", "sh", "-c", "echo all: > Makefile"]).from(directory).done().expect(0);
    }),
    ("a command that fails, is not there, or cannot be executed", |lab| {
        lab.run(["-q", "--", "sh", "-c", "echo >> Makefile; exit 3"]).done().expect(3);
        lab.run(["-q", "--", "no-such-program"]).done().expect(127);
        lab.make_file("work/plain", "");
        lab.run(["-q", "--", "./plain"]).done().expect(126);
        lab.run(["-q", "--", "sh", "-c", "kill -9 $$"]).done().expect(137);
    }),
    ("a deadline", |lab| {
        let words = ["-q", "--timeout", "1s", "--", "sh", "-c", "echo >> Makefile; sleep 60"];
        lab.run(words).done().expect(124);
    }),
    ("silence for too long", |lab| {
        let words = ["-q", "--idle", "1s", "--", "sh", "-c", "echo >> Makefile; sleep 60"];
        lab.run(words).done();
    }),
    ("no memory left", |lab| {
        if lab.actor.holds_limits() {
            let script = "echo >> Makefile; tail /dev/zero";
            lab.run(["-q", "-m", "24m", "--", "sh", "-c", script]).done().expect(137);
        }
    }),
    ("a launcher that was killed", |lab| {
        let script = "echo >> Makefile; echo ready; sleep 60";
        let live = lab.run(["-q", "--", "sh", "-c", script]).input(Input::Open).spawn();
        live.wait_for_output("ready");
        send(live.pid(), Signal::KILL);
        live.done();
    }),
    ("a supervisor that was killed", |lab| {
        let id = detached(lab, &["--keep"]);
        lab.belljar(["exec", &id, "--", "sh", "-c", "echo all: > Makefile; seq 1000"]).done();
        processes_of(&lab.exe).into_iter().for_each(|pid| send(pid, Signal::KILL));
        assert!(until(belljar_testkit::CALL_TIMEOUT, || processes_of(&lab.exe).is_empty()));
    }),
    ("a kept sandbox with commands", |lab| {
        let id = detached(lab, &["--keep"]);
        let script = "echo all: > Makefile; echo out; echo err >&2; exit 4";
        lab.belljar(["exec", &id, "--", "sh", "-c", script]).done().expect(4);
        lab.belljar(["exec", &id, "--", "no-such-program"]).done();
        lab.make_file("work/copied", "x");
        lab.belljar(["cp", "copied", &format!("{id}:/tmp/copied")]).done().expect(0);
        lab.belljar(["stop", &id]).done().expect(0);
    }),
    ("a detached run that is stopped", |lab| {
        let words = ["-q", "-d", "--", "sh", "-c", "echo all: > Makefile; sleep 60"];
        let id = lab.run(words).done().expect(0).out();
        assert!(until(belljar_testkit::CALL_TIMEOUT, || lab.work().join("Makefile").exists()));
        lab.belljar(["stop", "-t", "0", id.trim()]).done().expect(0);
    }),
    ("a run that is refused", |lab| {
        lab.run(["-q", "--require", "kernel.separate", "--", "true"]).done().expect(125);
        lab.run(["-q", "-w", "/no/such/place", "--", "true"]).done().expect(125);
    }),
    ("an engine that cannot start it, and the next one", |lab| {
        lab.make_file("work/Makefile", "all:\n");
        let engine = FakeEngine::start(lab.path("engine.sock"), Behaviour::CannotStart);
        fs::set_permissions(engine.socket(), fs::Permissions::from_mode(0o666)).unwrap();
        let words = ["-q", "--backend", "docker", "-c", "sandbox.fallback=[\"jail\"]"];
        let call = lab.run(words).arg("--").arg("sh").arg("-c").arg("echo >> Makefile");
        call.env("DOCKER_HOST", engine.address()).done();
    }),
    ("an agent, resumed and forked", |lab| {
        agent(
            lab,
            &format!("n=$(cat n || echo 0); echo $((n+1)) > n; {PROJECT_FILES}; echo >> Makefile"),
        );
        let words = ["-q", "--manifest", "belljar.toml", "--name", "work"];
        lab.run(words).done();
        lab.belljar(["resume", "-q", "work", "--extend-iterations", "2"]).done().expect(0);
        lab.belljar(["fork", "-q", "work", "--extend-iterations", "1"]).done();
    }),
    ("an agent that was killed, and resumed", |lab| {
        agent(
            lab,
            "echo >> Makefile; echo x >> n; [ $(wc -l < n) -lt 2 ] || [ -e ~/x ] || { touch ~/x; sleep 3; }",
        );
        let live = lab.run(["--manifest", "belljar.toml", "--name", "work"]).spawn();
        let began = |number| {
            let events = lab.belljar(["events", "work"]).done().out();
            events.matches("iteration.start").count() >= number
        };
        assert!(until(belljar_testkit::CALL_TIMEOUT, || began(2)));
        processes_of(&lab.exe).into_iter().for_each(|pid| send(pid, Signal::KILL));
        drop(live);
        assert!(until(belljar_testkit::CALL_TIMEOUT, || processes_of(&lab.exe).is_empty()));
        lab.belljar(["resume", "-q", "work"]).done();
    }),
];

const OVERLAY: &[&str] = &["--workspace", ".:overlay"];

const PROJECT_FILES: &str = "mkdir -p .github/workflows src .cargo; echo x > .github/workflows/ci.yml; \
     echo '{}' > package.json; echo x > build.rs; echo x > src/conftest.py; echo x > .cargo/config.toml; \
     echo all: > src/Makefile; echo x > .gitlab-ci.yml";

fn plain(lab: &Lab, options: &[&str], script: &str) {
    let all: Vec<&str> = ["-q"].iter().chain(options).copied().collect();
    lab.sh(&all, script).expect(0);
}

fn detached(lab: &Lab, options: &[&str]) -> String {
    let words = ["-q", "-d"].iter().chain(options).copied();
    lab.run(words).done().expect(0).out().trim().to_owned()
}

/// An agent of three iterations.
fn agent(lab: &Lab, script: &str) {
    let script = Value::from(script).to_string();
    lab.make_file(
        "work/belljar.toml",
        format!(
            "[agent]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", {script}]\n[loop]\nmax_iterations = 3\n"
        ),
    );
}

/// What `belljar verify --all` says of every run that is not sound.
fn unsound(lab: &Lab) -> Vec<String> {
    let done = lab.belljar(["verify", "--all", "--json"]).done();
    let all = done.json();
    let bad = all.as_array().unwrap().iter().filter(|run| run["sound"] != true);
    let bad: Vec<String> = bad.map(|run| run["verdict"].to_string()).collect();
    assert_eq!(done.code() == 0, bad.is_empty(), "{done}");
    assert_eq!(all.as_array().unwrap().len(), lab.runs().len(), "{done}");
    bad
}

#[test]
fn runs_of_every_kind_verify() {
    let wrong = RefCell::new(Vec::new());
    each_user(|first| {
        for (name, make) in KINDS {
            let lab = Lab::new(first.actor);
            make(&lab);
            lab.belljar(["reconcile"]).done().expect(0);
            lab.assert_nothing_lives(&lab.runs());
            for verdict in unsound(&lab) {
                wrong.borrow_mut().push(format!("as {:?}, {name}: {verdict}", lab.actor));
            }
        }
    });
    let wrong = wrong.into_inner();
    assert!(wrong.is_empty(), "not sound:\n{}", wrong.join("\n"));
}

/// The control of it all: a record that was changed does not verify.
#[test]
fn a_record_that_was_changed_does_not_verify() {
    each_user(|lab| {
        plain(lab, &[], "echo out");
        assert_eq!(unsound(lab), Vec::<String>::new());
        let run = lab.home().join("runs").join(&lab.runs()[0]);
        for file in ["run.json", "events.jsonl"] {
            let path = run.join(file);
            let before = fs::read_to_string(&path).unwrap();
            let changed = before.replacen("exited", "exitee", 1);
            assert_ne!(before, changed, "{file}");
            fs::write(&path, changed).unwrap();
            let done = lab.belljar(["verify", "--all"]).done();
            assert_ne!(done.code(), 0, "{file}: {done}");
            fs::write(&path, before).unwrap();
        }
        assert_eq!(unsound(lab), Vec::<String>::new());
    });
}

/// One step of a random run.
fn step() -> impl Strategy<Value = String> {
    let file = prop_oneof![
        Just("Makefile"),
        Just("package.json"),
        Just("a/b/Makefile"),
        Just(".github/workflows/ci.yml"),
        Just("sub/.envrc"),
        Just("sub/.git/hooks/pre-commit"),
        Just("conftest.py"),
        Just("plain"),
        Just("\"$(printf 'o\\377d')\""),
    ];
    prop_oneof![
        (file.clone(), any::<u8>())
            .prop_map(|(file, text)| format!("mkdir -p $(dirname {file}); echo {text} >> {file}")),
        file.clone().prop_map(|file| format!("rm -rf {file}")),
        (file.clone(), file).prop_map(|(from, to)| format!("mv {from} {to}")),
        (1..5000u32).prop_map(|lines| format!("seq {lines}")),
        (1..5000u32).prop_map(|lines| format!("seq {lines} >&2")),
        Just("echo $A_TOKEN".to_owned()),
        (1..300u32).prop_map(|count| format!(
            "for n in $(seq {count}); do mkdir -p m$n; echo > m$n/Makefile; done"
        )),
        Just("kill -9 $$".to_owned()),
        Just("exit 7".to_owned()),
    ]
}

/// Flags of a random run.
fn options() -> impl Strategy<Value = Vec<&'static str>> {
    let mode = prop_oneof![
        Just(&[][..]),
        Just(OVERLAY),
        Just(&["--keep", "-d"][..]),
        Just(&["-c", "limits.output=2k"][..]),
        Just(&["--allow-control", ".envrc", "--hide", "plain"][..]),
    ];
    prop::collection::vec(mode, 1..3).prop_map(|modes| modes.concat())
}

#[test]
fn a_random_mix_verifies() {
    each_user(|lab| {
        let cases = if soak() { 200 } else { 12 };
        let config =
            Config { cases, failure_persistence: None, max_shrink_iters: 20, ..Config::default() };
        // The same on every machine; with --soak others each time.
        let mut runner = match soak() {
            true => TestRunner::new(config),
            false => {
                let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
                TestRunner::new_with_rng(config, rng)
            }
        };
        let script = prop::collection::vec(step(), 1..8);
        let ran = runner.run(&(options(), script, any::<bool>()), |(options, steps, killed)| {
            let script = format!("{}; echo over; sleep 0.2", steps.join("; "));
            let own = ["-q", "-e", "A_TOKEN=hunter2-hunter2"];
            let command = ["--", "sh", "-c", &script];
            let live = lab.run(own.iter().chain(&options).chain(&command)).spawn();
            if killed {
                std::thread::sleep(std::time::Duration::from_millis(150));
                processes_of(&lab.exe).into_iter().for_each(|pid| send(pid, Signal::KILL));
            }
            drop(live.done());
            for id in lab.live() {
                lab.belljar(["stop", "-t", "0", &id]).done();
            }
            lab.belljar(["reconcile"]).done();
            let wrong = unsound(lab);
            for id in lab.runs() {
                lab.belljar(["rm", "-f", &id]).done();
            }
            proptest::prop_assert!(wrong.is_empty(), "{wrong:?}");
            Ok(())
        });
        ran.unwrap_or_else(|error| panic!("as {:?}: {error}", lab.actor));
    });
}
