//! Runs that live apart from the command that started them: listed, waited for, stopped, removed.

use std::time::{Duration, Instant};

use belljar_testkit::{
    Done, Lab, PtyRun, cgroups_named, each_actor, each_user, marker, processes_of, processes_with,
    send, until, wait_until_gone,
};
use rustix::process::Signal;
use serde_json::Value;

/// Starts it in the background; its id.
#[track_caller]
fn detach(lab: &Lab, options: &[&str], command: &[&str]) -> String {
    let done = lab.run(["-d"].iter().chain(options).chain(&["--"]).chain(command)).done();
    done.expect(0);
    let id = done.out();
    assert_eq!((id.len(), id.ends_with('\n')), (17, true), "the id and nothing else: {done}");
    id.trim().to_owned()
}

#[track_caller]
fn belljar(lab: &Lab, words: &[&str]) -> Done {
    lab.belljar(words).done()
}

/// The state that `ps -a` has of a run.
fn state(lab: &Lab, id: &str) -> Value {
    let all = belljar(lab, &["ps", "-a", "--json"]).json();
    let run = all.as_array().unwrap().iter().find(|run| run["id"] == id).cloned();
    run.unwrap_or_else(|| panic!("{id} is not listed: {all:#}"))
}

fn supervisors(lab: &Lab) -> Vec<u32> {
    let all = processes_of(&lab.exe);
    all.into_iter().filter(|pid| processes_with("__supervise").contains(pid)).collect()
}

#[test]
fn a_detached_run_is_listed_read_waited_for_and_removed() {
    each_actor(|lab| {
        let id = detach(
            lab,
            &["--name", "one"],
            &["sh", "-c", "echo out; echo err >&2; sleep 1; exit 7"],
        );
        let ps = belljar(lab, &["ps"]);
        assert!(ps.expect(0).out().contains(&id[9..]) && ps.out().contains("running"), "{ps}");
        assert_eq!(belljar(lab, &["ps", "-q"]).out(), format!("{id}\n"));
        belljar(lab, &["wait", &id[9..]]).expect(7);
        belljar(lab, &["wait", "one"]).expect(7); // over by now
        let logs = belljar(lab, &["logs", "one"]);
        assert_eq!((logs.out().as_str(), logs.err().as_str()), ("out\n", "err\n"));
        assert_eq!(state(lab, &id)["reason"], "exited");
        assert_eq!(belljar(lab, &["ps", "-q"]).out(), "", "it lives no more");
        belljar(lab, &["verify", &id]).expect(0);
        assert_eq!(belljar(lab, &["rm", "-q", "one"]).expect(0).out(), format!("{id}\n"));
        belljar(lab, &["rm", "one"]).expect(125).says(&["no run with the name or id \"one\""]);
        assert_eq!((lab.runs(), lab.live()), (Vec::<String>::new(), Vec::new()));
        assert!(until(Duration::from_secs(5), || processes_of(&lab.exe).is_empty()));
    });
}

#[test]
fn its_supervisor_has_a_session_of_its_own_and_survives_the_terminal() {
    each_user(|lab| {
        let run = PtyRun::start(
            &lab.run(["-d", "-q", "--", "sleep", "1000"]).through(PtyRun::SESSION),
            24,
            80,
        );
        let (code, screen) = run.end(); // and with it the terminal
        assert_eq!((code, screen.len()), (0, 18), "{screen:?}");
        let [pid] = supervisors(lab)[..] else { panic!("one supervisor") };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        assert_eq!((fields[3], fields[4]), (pid.to_string().as_str(), "0"), "session, terminal");
        let id = screen.trim().to_owned();
        assert_eq!(state(lab, &id)["state"], "running");
        belljar(lab, &["stop", "-t", "0", &id]).expect(0);
    });
}

#[test]
fn stop_asks_first_and_kills_after_the_grace() {
    each_actor(|lab| {
        let polite = detach(
            lab,
            &[],
            &["sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done"],
        );
        let marker = marker();
        let script = format!(
            "trap '' TERM; (setsid sleep {marker} &); echo ready; while :; do sleep 0.1; done"
        );
        let stubborn = detach(lab, &[], &["sh", "-c", &script]);
        for id in [&polite, &stubborn] {
            assert!(
                until(Duration::from_secs(20), || belljar(lab, &["logs", id]).out() == "ready\n")
            );
        }
        let begun = Instant::now();
        let done = belljar(lab, &["stop", "-t", "1", &polite, &stubborn]);
        done.expect(0);
        assert!(done.out().contains(&polite) && done.out().contains(&stubborn), "{done}");
        assert!(begun.elapsed() >= Duration::from_secs(1), "the grace was given");
        belljar(lab, &["wait", &polite]).expect(5);
        belljar(lab, &["wait", &stubborn]).expect(137);
        assert_eq!(state(lab, &stubborn)["reason"], "stopped");
        belljar(lab, &["stop", &polite]).expect(0); // over already: as good
        wait_until_gone(Duration::from_secs(3), &marker, &lab.exe);
    });
}

#[test]
fn a_supervisor_that_does_not_answer_is_ended_by_stop() {
    let lab = Lab::me();
    let marker = marker();
    let id = detach(&lab, &[], &["sleep", &marker]);
    let other = detach(&lab, &[], &["sleep", "1000"]);
    let of = |id: &str| {
        let all = supervisors(&lab).into_iter();
        let sock = lab.home().join("live").join(id);
        let holds = move |pid: &u32| {
            let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            fds.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == sock))
        };
        all.filter(holds).collect::<Vec<u32>>()
    };
    let [pid] = of(&id)[..] else { panic!("one supervisor of {id}: {:?}", of(&id)) };
    send(pid, Signal::STOP);
    belljar(&lab, &["stop", "-t", "0", &id]).expect(0);
    assert_eq!(state(&lab, &id)["reason"], "lost");
    assert!(until(Duration::from_secs(3), || processes_with(&marker).is_empty()));
    assert_eq!(state(&lab, &other)["state"], "running", "nobody else is touched");
    belljar(&lab, &["verify", &id]).expect(0);
}

#[test]
fn a_killed_supervisor_is_found_and_recorded_as_lost() {
    each_actor(|lab| {
        let marker = marker();
        let script = format!("(setsid sleep {marker} &); echo said; exec sleep {marker}");
        let id = detach(lab, &[], &["sh", "-c", &script]);
        assert!(until(Duration::from_secs(20), || belljar(lab, &["logs", &id]).out() == "said\n"));
        for pid in supervisors(lab) {
            send(pid, Signal::KILL);
        }
        wait_until_gone(Duration::from_secs(5), &marker, &lab.exe);
        let told = belljar(lab, &["verify", &id]);
        assert!(told.expect(0).out().contains("the end is missing"), "{told}");
        belljar(lab, &["rm", "--help"]).expect(0);
        let told = belljar(lab, &["reconcile", "--json"]);
        assert_eq!(told.expect(0).json()["lost"], serde_json::json!([id]));
        assert_eq!(belljar(lab, &["reconcile", "--json"]).json()["lost"], serde_json::json!([]));
        assert_eq!(state(lab, &id)["reason"], "lost");
        assert_eq!(lab.live(), Vec::<String>::new());
        assert_eq!(cgroups_named(std::slice::from_ref(&id)), Vec::<std::path::PathBuf>::new());
        belljar(lab, &["verify", &id]).expect(0);
        belljar(lab, &["wait", &id]).expect(125);
        assert_eq!(belljar(lab, &["logs", &id]).out(), "said\n");
    });
}

#[test]
fn a_run_is_meant_by_its_name_a_head_or_a_tail() {
    let lab = Lab::me();
    lab.make_file("work/belljar.toml", "[sandbox]\nname = 'twin'\n");
    let first = detach(&lab, &[], &["sleep", "1000"]);
    let second = detach(&lab, &[], &["sleep", "1000"]);
    let both = belljar(&lab, &["exec", "twin", "--", "true"]);
    both.expect(125).says(&["can mean 2 runs", &first[9..], &second[9..]]);
    belljar(&lab, &["exec", &first[..4], "--", "true"]).expect(125).says(&["can mean 2 runs"]);
    belljar(&lab, &["exec", &first[12..], "--", "true"]).expect(0);
    belljar(&lab, &["exec", &first[13..], "--", "true"])
        .expect(125)
        .says(&["no run with the name or id"]);
    belljar(&lab, &["stop", "-t", "0", &first]).expect(0);
    belljar(&lab, &["exec", "twin", "--", "true"]).expect(0); // the one that lives
    belljar(&lab, &["exec", &first, "--", "true"]).expect(125).says(&["not alive", "belljar ps"]);
    belljar(&lab, &["ps", "--name", "twi", "-aq"]).expect(0);
    assert_eq!(belljar(&lab, &["ps", "--name", "twi", "-aq"]).out(), "", "no prefix of a name");
    assert_eq!(belljar(&lab, &["ps", "--name", "twin", "-aq"]).out().lines().count(), 2);
}

#[test]
fn a_kept_sandbox_stays_until_it_is_stopped() {
    each_actor(|lab| {
        let first = lab
            .run([
                "--keep",
                "--name",
                "k",
                "--",
                "sh",
                "-c",
                "echo here > /tmp/f; echo out; echo err >&2; exit 3",
            ])
            .done();
        first.expect(3);
        assert_eq!((first.out().as_str(), first.err().as_str()), ("out\n", "err\n"));
        let id = belljar(lab, &["ps", "-q"]).out().trim().to_owned();
        assert_eq!(belljar(lab, &["exec", "k", "--", "cat", "/tmp/f"]).expect(0).out(), "here\n");
        let second = lab.run(["--keep"]).done(); // no command at all
        let second = second.expect(0).out().trim().to_owned();
        assert_eq!(belljar(lab, &["exec", &second, "--", "pwd"]).out(), "/workspace\n");
        assert_eq!(belljar(lab, &["ps", "-q"]).out().lines().count(), 2);
        belljar(lab, &["stop", &id, &second]).expect(0);
        assert_eq!(state(lab, &id)["reason"], "stopped");
        assert!(until(Duration::from_secs(5), || processes_of(&lab.exe).is_empty()));
    });
}

#[test]
fn a_kept_sandbox_outlives_the_signals_that_end_its_command() {
    each_user(|lab| {
        let words = ["--keep", "--name", "k", "--", "sh", "-c", "echo ready; exec sleep 1000"];
        let live = lab.run(words).spawn();
        live.wait_for_output("ready");
        live.signal(Signal::TERM);
        live.done().expect(143);
        belljar(lab, &["exec", "k", "--", "true"]).expect(0);
        belljar(lab, &["stop", "k"]).expect(0);
        let live = lab
            .run(["--keep", "--name", "l", "--", "sh", "-c"])
            .arg("trap 'echo no' INT; echo ready; while :; do sleep 0.1; done")
            .spawn();
        live.wait_for_output("ready");
        live.signal(Signal::INT);
        live.wait_for_output("no");
        live.signal(Signal::INT);
        live.done().expect(137);
        belljar(lab, &["exec", "l", "--", "true"]).expect(0);
    });
}

#[test]
fn a_refusal_has_the_words_of_one_in_the_foreground() {
    each_user(|lab| {
        for words in [
            &["--require", "kernel.separate", "--", "true"][..],
            &["-v", "/no/such/thing:/x", "--", "true"],
            &["--backend", "docker", "--", "true"],
            &[],
        ] {
            let here = lab.run(words).done();
            let apart = lab.run(["-d"].iter().chain(words)).done();
            assert_eq!((apart.code(), apart.err()), (here.code(), here.err()), "{words:?}");
            assert_eq!(apart.out(), "");
            assert_ne!(apart.code(), 0);
        }
        lab.assert_nothing_was_made();
        let object = lab.run(["-d", "--json", "--", "true"]).done().expect(0).json();
        assert_eq!(object["state"], "running");
        belljar(lab, &["wait", object["id"].as_str().unwrap()]).expect(0);
    });
}

#[test]
fn rm_and_prune_never_touch_what_lives() {
    each_user(|lab| {
        for _ in 0..3 {
            lab.run(["--name", "a", "--", "true"]).done().expect(0);
            lab.run(["--name", "ab", "--", "true"]).done().expect(0);
        }
        let live = detach(lab, &["--name", "a"], &["sleep", "1000"]);
        belljar(lab, &["rm", &live]).expect(1).says(&["is live", "belljar stop"]);
        let told = belljar(lab, &["prune", "--keep", "1", "--dry-run", "--json"]).json();
        assert_eq!(told["runs"].as_array().unwrap().len(), 4, "{told:#}");
        assert_eq!(lab.runs().len(), 7, "only told");
        belljar(lab, &["prune", "--older-than", "1h"]).expect(0);
        assert_eq!(lab.runs().len(), 7, "nothing is that old");
        let gone = belljar(lab, &["prune", "--keep", "1", "--json"]).json();
        assert_eq!(gone["runs"], told["runs"]);
        assert_eq!(lab.runs().len(), 3, "one of each name, and the live one");
        belljar(lab, &["prune", "-q"]).expect(0); // what the settings say: nothing to do
        assert_eq!(lab.runs().len(), 3);
        belljar(lab, &["prune", "--keep", "0"]).expect(0);
        assert_eq!(lab.runs(), std::slice::from_ref(&live));
        belljar(lab, &["rm", "-f", "-q", &live]).expect(0);
        assert_eq!((lab.runs(), lab.live()), (Vec::<String>::new(), Vec::new()));
    });
}

#[test]
fn prune_alone_does_what_the_settings_say() {
    let lab = Lab::me();
    for name in ["a", "ab"] {
        for _ in 0..4 {
            lab.run(["--name", name, "--", "true"]).done().expect(0);
        }
    }
    lab.make_file("work/belljar.toml", "[retention]\nsandboxes = 1\nruns = 3\n");
    // Not before the operator has seen it: it removes records.
    belljar(&lab, &["prune"]).expect(125).says(&["is not trusted yet"]);
    belljar(&lab, &["trust"]).expect(0);
    let told = belljar(&lab, &["prune", "--dry-run", "--json"]).expect(0).json();
    assert_eq!(lab.runs().len(), 8, "only told");
    let gone = belljar(&lab, &["prune", "--json"]).expect(0).json();
    for (key, count) in [("runs", 2), ("sandboxes", 4)] {
        assert_eq!(told[key], gone[key], "{told:#}");
        assert_eq!(gone[key].as_array().unwrap().len(), count, "{gone:#}");
    }
    assert_eq!(lab.runs().len(), 6);
    let with_home =
        lab.runs().into_iter().filter(|id| lab.home().join("runs").join(id).join("home").exists());
    assert_eq!(with_home.count(), 2);
    belljar(&lab, &["verify", "--all"]).expect(0);
}
