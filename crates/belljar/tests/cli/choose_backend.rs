//! Which backend a run is started on: the operator's order, and every step that was not taken told.

use std::time::Duration;

use belljar::spec::{BackendChoice, BackendName, Clause};
use belljar_testkit::{Behaviour, Call, Done, FakeEngine, Input, Lab, each_user};
use serde_json::Value;

const NOWHERE: &str = "unix:///nonexistent/engine.sock";
const FALL_TO_JAIL: &[&str] =
    &["--backend", "docker", "-c", "sandbox.fallback=[\"podman\", \"jail\"]", "--pull", "never"];

/// With engines at these addresses.
fn with<'a>(call: Call<'a>, docker: &str, podman: &str) -> Call<'a> {
    call.env("DOCKER_HOST", docker).env("CONTAINER_HOST", podman)
}

fn without_engines(call: Call<'_>) -> Done {
    with(call, NOWHERE, NOWHERE).done()
}

fn names(steps: &Value) -> Vec<&str> {
    steps.as_array().into_iter().flatten().map(|step| step["backend"].as_str().unwrap()).collect()
}

fn sound(lab: &Lab) {
    lab.belljar(["verify", "--all"]).done().expect(0);
}

#[test]
fn the_jail_is_taken_without_a_word_to_any_engine() {
    each_user(|lab| {
        let engine = FakeEngine::start(lab.path("hang.sock"), Behaviour::Hangs);
        let call = lab.run(["--json", "--", "echo", "here"]);
        let result = with(call, &engine.address(), &engine.address()).done().expect(0).json();
        assert_eq!((&result["backend"], &result["stdout"]), (&"jail".into(), &"here\n".into()));
        assert!(result.get("skipped_backends").is_none(), "{result:#}");
        assert!(lab.record(result["id"].as_str().unwrap()).get("skipped_backends").is_none());
        // What is wrong with the run itself is no reason to ask others either.
        let call = lab.run(["-v", "/no/such/thing:/x", "--", "true"]);
        with(call, &engine.address(), &engine.address())
            .done()
            .expect(125)
            .says(&["/no/such/thing"]);
        let call = lab.run(["--workspace", ".:overlay", "--", "true"]);
        let done = with(call, &engine.address(), &engine.address()).done();
        assert!(!done.err().contains("cannot start on any available backend"), "{done}");
        assert_eq!(engine.was_asked(), 0);
    });
}

#[test]
fn steps_that_are_not_taken_are_told_and_recorded() {
    each_user(|lab| {
        let words = || FALL_TO_JAIL.iter().chain(&["--", "echo", "here"]);
        let done = without_engines(lab.run(words()));
        assert_eq!(done.expect(0).out(), "here\n");
        done.says(&["skipped the docker backend: ", "skipped the podman backend: "]);
        assert_eq!(done.err().lines().count(), 2, "{done}");
        let quiet = without_engines(lab.run(["-q"].iter().chain(words())));
        assert_eq!((quiet.out(), quiet.err()), ("here\n".to_owned(), String::new()));

        let result = without_engines(lab.run(["--json"].iter().chain(words()))).expect(0).json();
        let steps = &result["skipped_backends"];
        assert_eq!(names(steps), ["docker", "podman"], "{result:#}");
        assert!(steps[0]["why"].as_str().unwrap().contains("/nonexistent/engine.sock"));
        assert!(!steps[0]["fix"].as_str().unwrap().is_empty());
        let id = result["id"].as_str().unwrap();
        assert_eq!(&lab.record(id)["skipped_backends"], steps);
        let events = lab.belljar(["events", id]).done().expect(0).out();
        let start: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
        assert_eq!(&start["data"]["skipped_backends"], steps);
        assert_eq!(start["data"]["backend"], "jail");

        let page = lab.belljar(["show", id]).done().expect(0).out();
        assert!(page.contains("skipped     docker: "), "{page}");

        let file = lab.path("tmp/result.json");
        let call = lab.run(["--result", file.to_str().unwrap()].iter().chain(words()));
        without_engines(call).expect(0);
        let written: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(names(&written["skipped_backends"]), ["docker", "podman"]);

        let detached = without_engines(lab.run(["-d", "--json"].iter().chain(words())));
        detached.expect(0).says(&["skipped the docker backend", "skipped the podman backend"]);
        let object = detached.json();
        assert_eq!(names(&object["skipped_backends"]), ["docker", "podman"], "{object:#}");
        lab.belljar(["wait", object["id"].as_str().unwrap()]).done().expect(0);
        sound(lab);
    });
}

#[test]
fn a_dry_run_tells_the_steps() {
    let lab = Lab::me();
    let words = || FALL_TO_JAIL.iter().chain(&["--", "true"]);
    let plan = without_engines(lab.run(["--dry-run", "--json"].iter().chain(words())));
    let plan = plan.expect(0).json();
    assert_eq!(plan["plan"]["backend"], "jail");
    assert_eq!(names(&plan["skipped_backends"]), ["docker", "podman"]);
    let shown = without_engines(lab.run(["--dry-run"].iter().chain(words())));
    assert!(shown.expect(0).out().contains("skipped docker: "), "{shown}");
    lab.assert_nothing_was_made();
}

#[test]
fn the_order_can_be_written_in_every_layer() {
    let lab = Lab::me();
    let backend_of = |done: Done| done.expect(0).json()["plan"]["backend"].clone();
    let dry = ["--dry-run", "--json", "--backend", "podman", "--", "true"];
    let call = lab.run(dry).env("BELLJAR_SANDBOX_FALLBACK", "docker,jail");
    assert_eq!(backend_of(without_engines(call)), "jail");
    lab.make_file("work/belljar.toml", "[sandbox]\nbackend = 'docker'\nfallback = ['jail']\n");
    let done = without_engines(lab.run(["--dry-run", "--json", "--", "true"]));
    assert_eq!(backend_of(done), "jail");
    // Without one, nothing stands in for what was named.
    lab.make_file("work/belljar.toml", "[sandbox]\nbackend = 'docker'\n");
    let done = without_engines(lab.run(["--", "true"]));
    done.expect(125).says(&["the docker backend cannot be used here", "hint:"]);
    assert!(!done.err().contains("jail") && !done.err().contains("podman"), "{done}");
}

#[test]
fn when_nothing_is_left_every_step_is_listed() {
    each_user(|lab| {
        let words = ["--require", "kernel.separate", "--", "true"];
        let done = without_engines(lab.run(words));
        done.expect(125).says(&[
            "cannot start on any available backend",
            "jail: kernel.separate is absent",
            "docker: ",
            "podman: ",
            "--waive kernel.separate=",
        ]);
        assert!(!done.err().contains("host:"), "the host is never tried by itself: {done}");
        let result = without_engines(lab.run(["--json"].iter().chain(&words)));
        let result = result.expect(125).json();
        assert_eq!(names(&result["skipped_backends"]), ["jail", "docker", "podman"]);
        assert_eq!(
            (&result["reason"], &result["exit"]["source"]),
            (&"refused".into(), &"policy".into())
        );
        // No step may hold less than what is required.
        let words = FALL_TO_JAIL.iter().chain(&["--require", "kernel.separate", "--", "true"]);
        without_engines(lab.run(words)).expect(125).says(&[
            "docker: ",
            "podman: ",
            "jail: kernel.",
        ]);
        let waived = ["--waive", "kernel.separate=a test", "--require", "kernel.separate"];
        let words = FALL_TO_JAIL.iter().chain(&waived).chain(&["--", "true"]);
        without_engines(lab.run(words)).expect(0);
        assert_eq!(lab.runs().len(), 1, "refusals make nothing");
    });
}

#[test]
fn the_host_is_taken_only_where_it_is_written_and_all_is_waived() {
    let lab = Lab::me();
    let fallback = ["--backend", "docker", "-c", "sandbox.fallback=[\"host\"]"];
    let command = ["--", "sh", "-c", "echo on $PWD"];
    let done = without_engines(lab.run(fallback.iter().chain(&command)));
    done.expect(125).says(&["host: ", "net.sealed is absent"]);
    lab.assert_nothing_was_made();
    let waivers: Vec<String> = Clause::ALL
        .iter()
        .flat_map(|clause| ["--waive".into(), format!("{clause}=a test")])
        .collect();
    let waivers = waivers.iter().map(String::as_str);
    let words: Vec<&str> = fallback.into_iter().chain(waivers).chain(command).collect();
    let done = without_engines(lab.run(words));
    let work = std::fs::canonicalize(lab.work()).unwrap();
    assert_eq!(done.expect(0).out(), format!("on {}\n", work.display()));
    done.says(&["skipped the docker backend"]);
}

#[test]
fn an_engine_that_hangs_is_passed_over() {
    let lab = Lab::me();
    let engine = FakeEngine::start(lab.path("hang.sock"), Behaviour::Hangs);
    let words =
        ["--json", "--backend", "docker", "-c", "sandbox.fallback=[\"jail\"]", "--", "true"];
    let done = with(lab.run(words), &engine.address(), NOWHERE).done();
    let result = done.expect(0).json();
    assert!(
        result["skipped_backends"][0]["why"].as_str().unwrap().contains("did not answer"),
        "{result:#}"
    );
    assert!(done.took < Duration::from_secs(15), "{done}");
}

/// What it says of itself is no container that ran.
#[test]
fn an_engine_that_cannot_start_is_passed_over_and_its_attempt_recorded() {
    let lab = Lab::me();
    let engine = FakeEngine::start(lab.path("fake.sock"), Behaviour::CannotStart);
    let words = |more: &[&str]| {
        let all = more.iter().chain(FALL_TO_JAIL).chain(&["--workspace", "none", "--", "cat"]);
        all.map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let call = lab.run(words(&[])).input(Input::Bytes(b"all of it".to_vec()));
    let done = with(call, &engine.address(), NOWHERE).done();
    assert_eq!(done.expect(0).out(), "all of it", "nothing of the input was lost on the way");
    done.says(&["skipped the docker backend: ", "every run fails here", "the podman backend"]);
    let runs = lab.runs();
    assert_eq!(runs.len(), 2, "one that failed to start, and one that ran");
    let (failed, ran) = (lab.record(&runs[0]), lab.record(&runs[1]));
    assert_eq!(
        (&failed["backend"], &failed["outcome"]["reason"]),
        (&"docker".into(), &"error".into())
    );
    assert_eq!((&ran["backend"], &ran["outcome"]["reason"]), (&"jail".into(), &"exited".into()));
    assert_eq!(ran["skipped_backends"][0]["run"], runs[0].as_str());
    assert_eq!(lab.live(), Vec::<String>::new());
    // The same where the supervisor is a process of its own.
    let call = lab.run(words(&["-d", "--json"]));
    let detached = with(call, &engine.address(), NOWHERE).done();
    detached.expect(0).says(&["every run fails here"]);
    let object = detached.json();
    assert_eq!(
        (&object["backend"], names(&object["skipped_backends"])),
        (&"jail".into(), vec!["docker", "podman"])
    );
    lab.belljar(["wait", object["id"].as_str().unwrap()]).done().expect(0);
    sound(&lab);
    // With nothing left the error says it all; with nothing to fall to it is what it always was.
    let words = ["--backend", "docker", "-c", "sandbox.fallback=[\"podman\"]", "--pull", "never"];
    let call = lab.run(words.iter().chain(&["--workspace", "none", "--", "true"]));
    let done = with(call, &engine.address(), &engine.address()).done();
    done.expect(125).says(&[
        "cannot start on any available backend",
        "docker: ",
        "podman: ",
        "every run fails here",
    ]);
    let words = ["--backend", "docker", "--pull", "never", "--workspace", "none", "--", "true"];
    let done = with(lab.run(words), &engine.address(), NOWHERE).done();
    done.expect(125).says(&["every run fails here"]);
    assert!(!done.err().contains("cannot start on any available backend"), "{done}");
    sound(&lab);
}

#[test]
fn a_runtime_is_never_left_out_in_silence() {
    let lab = Lab::me();
    let words = ["--oci-runtime", "runsc", "--", "true"];
    without_engines(lab.run(words)).expect(125).says(&["jail: the runtime \"runsc\" cannot"]);
    let done = without_engines(lab.run(["--backend", "jail"].iter().chain(&words)));
    done.expect(125).says(&["the runtime \"runsc\" cannot be done by the jail backend"]);
    lab.assert_nothing_was_made();
}

#[test]
fn the_doctor_waits_for_no_engine_that_hangs() {
    let lab = Lab::me();
    let engine = FakeEngine::start(lab.path("hang.sock"), Behaviour::Hangs);
    let done = with(lab.belljar(["doctor"]), &engine.address(), &engine.address()).done();
    assert!(done.took < Duration::from_secs(8), "{done}");
    let out = done.expect(0).out();
    let at = |text: &str| out.find(text).unwrap_or_else(|| panic!("no {text:?} in {out}"));
    assert!(at("✗ docker: ") < at("✓ jail: ") && at("✗ podman: ") < at("✓ jail: "), "{out}");
    assert!(out.contains("fix: restart the docker engine"), "{out}");
    for line in out.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let done = with(lab.belljar(["backends", "--json"]), &engine.address(), NOWHERE).done();
    let rows = done.expect(0).json();
    for (at, name) in [(1, "docker"), (2, "podman")] {
        assert_eq!((&rows[at]["backend"], &rows[at]["available"]), (&name.into(), &false.into()));
        assert!(!rows[at]["why"].as_str().unwrap().is_empty() && rows[at]["fix"].is_string());
    }
    assert_eq!(rows[0]["available"], true);
}

/// One that answers every question and starts nothing is not there.
#[test]
fn the_doctor_believes_a_container_that_ran() {
    let lab = Lab::me();
    let engine = FakeEngine::start(lab.path("fake.sock"), Behaviour::CannotStart);
    let done = with(lab.belljar(["doctor", "--json"]), &engine.address(), NOWHERE).done();
    let rows = done.expect(0).json();
    assert_eq!((&rows[1]["usable"], &rows[1]["engine"]["api"]), (&false.into(), &"1.41".into()));
    assert!(rows[1]["why"].as_str().unwrap().contains("every run fails here"), "{rows:#}");
    let done = with(lab.belljar(["backends"]), &engine.address(), NOWHERE).done();
    for line in done.expect(0).out().lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_program_can_write_the_order_too() {
    let builder = belljar::Sandbox::builder().no_config().backend(BackendChoice::Podman);
    let home = Lab::me();
    let builder = builder.home(home.home()).fallback([BackendName::Docker, BackendName::Jail]);
    let spec = builder.build_spec().unwrap();
    assert_eq!(spec.backend, BackendChoice::Podman);
    assert_eq!(spec.fallback, [BackendName::Docker, BackendName::Jail]);
}

/// An engine's backend waits in a runtime of its own, which would panic inside this one.
#[tokio::test]
async fn a_program_with_a_runtime_can_ask() {
    for name in BackendName::ALL {
        match belljar::backend_facts(*name) {
            Ok(version) => assert!(!version.is_empty()),
            Err(reason) => assert!(!reason.why.is_empty() && !reason.fix.is_empty()),
        }
    }
}

/// An engine that is really there, as `cargo xtask test` tells of it.
fn real(address: &str, image: &str) -> Option<(String, String)> {
    let found = std::env::var(address).ok().zip(std::env::var(image).ok());
    if found.is_none() {
        eprintln!("NOT CHECKED: on a real engine ({address} and {image} are not set)");
    }
    found
}

#[test]
fn docker_is_taken_where_the_jail_does_not_hold() {
    let Some((docker, image)) = real("BELLJAR_TEST_DOCKER", "BELLJAR_TEST_IMAGE_DOCKER") else {
        return;
    };
    let lab = Lab::me();
    let rows = with(lab.belljar(["doctor", "--json"]), &docker, NOWHERE).done().expect(0).json();
    assert_eq!(rows[1]["usable"], true, "{rows:#}");
    assert!(rows[1]["version"].as_str().unwrap().starts_with("docker "), "{rows:#}");
    let Ok(runsc) = std::env::var("BELLJAR_TEST_RUNSC") else {
        return eprintln!("NOT CHECKED: with gVisor (BELLJAR_TEST_RUNSC is not set)");
    };
    let options = ["--image", &image, "--pull", "never", "--require", "kernel.separate"];
    let done = with(lab.run(options.iter().chain(&["--", "true"])), &docker, NOWHERE).done();
    done.expect(125)
        .says(&["docker: kernel.separate is absent", &format!("--oci-runtime {runsc}")]);
    let own_kernel = ["--json", "--oci-runtime", &runsc, "--", "uname", "-r"];
    let result =
        with(lab.run(options.iter().chain(&own_kernel)), &docker, NOWHERE).done().expect(0).json();
    assert_eq!(result["backend"], "docker");
    assert_eq!(result["posture"]["kernel.separate"]["status"], "enforced", "{result:#}");
    let own = rustix::system::uname().release().to_string_lossy().into_owned();
    assert_ne!(result["stdout"].as_str().unwrap().trim(), own);
    assert_eq!(names(&result["skipped_backends"]), ["jail"]);
}

#[test]
fn podman_does_not_promise_a_runtime_it_does_not_take() {
    let Some((podman, image)) = real("BELLJAR_TEST_PODMAN", "BELLJAR_TEST_IMAGE_PODMAN") else {
        return;
    };
    let lab = Lab::me();
    let words =
        ["--backend", "podman", "--image", &image, "--pull", "never", "--oci-runtime", "runsc"];
    let done = with(lab.run(words.iter().chain(&["--", "true"])), NOWHERE, &podman).done();
    done.expect(125).says(&["the runtime \"runsc\" cannot be done by the podman backend"]);
}
