//! `run --name x --reuse`: one sandbox of that name, whoever asks for it and how often.

use belljar_testkit::{Input, Lab, PtyRun, each_user};
use rustix::process::Signal;

fn reuse<'a>(lab: &'a Lab, options: &[&str], script: &str) -> belljar_testkit::Call<'a> {
    let words = ["--name", "x", "--reuse"];
    lab.run(words.iter().chain(options).chain(&["--", "sh", "-c", script]))
}

fn stop(lab: &Lab) {
    lab.belljar(["stop", "x"]).done().expect(0);
    assert_eq!(lab.live(), Vec::<String>::new());
}

#[test]
fn the_second_command_runs_where_the_first_did() {
    each_user(|lab| {
        let first = reuse(lab, &[], "echo kept >~/note; echo $BELLJAR_RUN; exit 3").done();
        let run = first.expect(3).out().trim().to_owned();
        assert_eq!(lab.live(), std::slice::from_ref(&run), "it stays");
        let second = reuse(lab, &[], "cat ~/note; echo $BELLJAR_RUN; echo no >&2; exit 4").done();
        assert_eq!(second.expect(4).out(), format!("kept\n{run}\n"));
        assert_eq!(second.err(), "no\n");
        assert_eq!(lab.runs(), [run.as_str()]);
        let third = reuse(lab, &[], "cat").input(Input::Bytes(b"typed".to_vec())).done();
        assert_eq!(third.expect(0).out(), "typed");
        reuse(lab, &[], "kill -9 $$").done().expect(137);
        lab.run(["--name", "x", "--reuse", "--", "no-such-program"]).done().expect(127);
        stop(lab);
        assert_ne!(reuse(lab, &[], "echo $BELLJAR_RUN").done().expect(0).out().trim(), run);
        stop(lab);
        // One that was kept without a word of it, by the same settings, is as good.
        let kept = lab.run(["--keep", "--name", "x"]).done().expect(0).out();
        assert_eq!(reuse(lab, &[], "echo $BELLJAR_RUN").done().expect(0).out(), kept);
        stop(lab);
        lab.belljar(["verify", "--all"]).done().expect(0);
        let left = std::fs::read_dir(lab.home().join("names")).unwrap().count();
        assert_eq!(left, 0, "names are only held while somebody looks");
    });
}

#[test]
fn each_command_has_its_own_variables_and_directory() {
    each_user(|lab| {
        let env = ["-e", "ONE=1", "-e", "A_TOKEN=first-secret"];
        reuse(lab, &env, "echo $ONE $A_TOKEN").done().expect(0);
        let env = ["-e", "TWO=2", "-e", "A_TOKEN=other-secret", "-w", "/tmp"];
        let done = reuse(lab, &env, "echo [$ONE] $TWO $A_TOKEN $PWD").done();
        assert_eq!(done.expect(0).out(), "[] 2 other-secret /tmp\n");
        let done = reuse(lab, &[], "echo [$ONE$TWO$A_TOKEN] $PWD").done();
        assert_eq!(done.expect(0).out(), "[] /workspace\n");
        let id = lab.live().remove(0);
        stop(lab);
        let directory = lab.home().join("runs").join(id);
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            let bytes = std::fs::read(entry.path()).unwrap_or_default();
            for secret in ["first-secret", "other-secret"] {
                let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
                assert!(!found, "{secret} is in {}", entry.path().display());
            }
        }
    });
}

#[test]
fn what_only_a_start_can_decide_must_be_the_same() {
    each_user(|lab| {
        lab.make_file("data/file", "x");
        let data = format!("{}:/data", lab.path("data").display());
        reuse(lab, &["-v", &data], "true").done().expect(0);
        for (options, key) in [
            (&[][..], "mounts"),
            (&["-v", &format!("{data}:rw")], "mounts"),
            (&["-v", &data, "-c", "limits.output=1m"], "limits.output"),
            (&["-v", &data, "--timeout", "1h"], "limits.time"),
            (&["-v", &data, "--backend", "docker"], "backend"),
            (&["-v", &data, "--image", "other:1"], "image"),
            (&["-v", &data, "-l", "a=b"], "labels"),
            (&["-v", &data, "--workspace", "none"], "workspace"),
            (&["-v", &data, "--user", "1234"], "user"),
            (&["-v", &data, "--waive", "fs.quota=why not"], "waivers"),
        ] {
            let done = reuse(lab, options, "touch was-run").done();
            done.expect(125).says(&["the sandbox \"x\" was started with", key, "belljar stop x"]);
        }
        assert!(!lab.work().join("was-run").exists());
        assert_eq!(reuse(lab, &["-v", &data], "cat /data/file").done().expect(0).out(), "x");
        assert_eq!(lab.runs().len(), 1);
        stop(lab);
    });
}

#[test]
fn many_at_once_get_one_sandbox() {
    each_user(|lab| {
        for round in 0..3 {
            let all: Vec<_> =
                (0..6).map(|_| reuse(lab, &[], "echo $BELLJAR_RUN").spawn()).collect();
            let mut runs: Vec<String> =
                all.into_iter().map(|live| live.done().expect(0).out()).collect();
            runs.sort();
            runs.dedup();
            assert_eq!(runs.len(), 1, "round {round}: {runs:?}");
            assert_eq!(lab.live().len(), 1);
            stop(lab);
        }
        assert_eq!(lab.runs().len(), 3);
    });
}

/// Its client is killed the moment it starts one: whoever comes next gets that one, or one that is alone.
#[test]
fn a_starter_that_dies_leaves_one_sandbox_at_most() {
    let lab = Lab::me();
    for delay in [0, 5, 10, 20, 40, 80] {
        let starter = reuse(&lab, &[], "true").spawn();
        std::thread::sleep(std::time::Duration::from_millis(delay));
        starter.signal(Signal::KILL);
        drop(starter);
        let run = reuse(&lab, &[], "echo $BELLJAR_RUN").done().expect(0).out();
        assert_eq!(lab.live(), [run.trim()], "after {delay} ms");
        stop(&lab);
    }
}

#[test]
fn it_can_be_left_alone_and_asked_for_without_a_command() {
    each_user(|lab| {
        let made = lab.run(["--name", "x", "--reuse", "--json"]).done().expect(0).json();
        let again = lab.run(["--name", "x", "--reuse", "--json"]).done().expect(0).json();
        assert_eq!((&made["id"], &again["reused"]), (&again["id"], &true.into()), "{again:#}");
        let id = lab.run(["--name", "x", "--reuse"]).done().expect(0).out();
        assert_eq!(id.trim(), made["id"]);
        let done = reuse(lab, &["-d"], "echo told >~/told; sleep 1000").done();
        assert_eq!(done.expect(0).out(), id);
        let script = "while ! [ -s ~/told ]; do sleep 0.05; done; cat ~/told";
        assert_eq!(reuse(lab, &[], script).done().expect(0).out(), "told\n");
        stop(lab);
    });
}

#[test]
fn wrong_usage_and_other_runs_of_that_name_are_told() {
    let lab = Lab::me();
    lab.run(["--reuse", "--", "true"]).done().expect(2).says(&["--reuse needs --name"]);
    let words = ["--name", "x", "--reuse", "--json", "--", "true"];
    lab.run(words).done().expect(2).says(&["needs -d"]);
    lab.assert_nothing_was_made();
    let waived = ["--backend", "host", "--waive", "all=a test", "--name", "x", "--reuse"];
    let done = lab.run(waived.iter().chain(&["--", "true"])).done();
    done.expect(125).says(&["needs a boundary"]);
    // The name may come from the manifest.
    lab.make_file("work/belljar.toml", "[sandbox]\nname = 'x'\n");
    lab.run(["--reuse", "--", "true"]).done().expect(0);
    stop(&lab);
    lab.run(["-d", "--", "sleep", "1000"]).done().expect(0);
    let done = reuse(&lab, &[], "true").done();
    done.expect(125).says(&["was not started with --keep"]);
    stop(&lab);
    for _ in 0..2 {
        lab.run(["--keep"]).done().expect(0);
    }
    reuse(&lab, &[], "true").done().expect(125).says(&["2 live runs have the name \"x\""]);
}

#[test]
fn it_has_the_callers_terminal() {
    let lab = Lab::me();
    reuse(&lab, &[], "true").done().expect(0);
    let script = "test -t 0 && stty size; read line; echo got $line; exit 5";
    let call = reuse(&lab, &[], script).through(PtyRun::SESSION);
    let mut run = PtyRun::start(&call, 31, 90);
    run.wait_for("31 90");
    run.type_in("typed\n");
    let (code, screen) = run.end();
    assert_eq!(code, 5, "{screen}");
    assert!(screen.contains("reusing the sandbox") && screen.contains("got typed"), "{screen}");
    stop(&lab);
}

/// Everything but the start is the same on an engine.
#[test]
fn a_container_is_used_again() {
    for (variable, address, image) in [
        ("DOCKER_HOST", "BELLJAR_TEST_DOCKER", "BELLJAR_TEST_IMAGE_DOCKER"),
        ("CONTAINER_HOST", "BELLJAR_TEST_PODMAN", "BELLJAR_TEST_IMAGE_PODMAN"),
    ] {
        let found = std::env::var(address).ok().zip(std::env::var(image).ok());
        let Some((address, image)) = found else {
            eprintln!("NOT CHECKED: on a real engine ({address} is not set)");
            continue;
        };
        let lab = Lab::me();
        let backend = if variable == "DOCKER_HOST" { "docker" } else { "podman" };
        let on = ["--backend", backend, "--image", &image, "--pull", "never"];
        let first = reuse(&lab, &on, "echo kept >~/note; echo $BELLJAR_RUN; exit 3");
        let run = first.env(variable, &address).done().expect(3).out();
        let second =
            reuse(&lab, &on, "cat ~/note; echo $BELLJAR_RUN").env(variable, &address).done();
        assert_eq!(second.expect(0).out(), format!("kept\n{run}"));
        stop(&lab);
    }
}
