//! Programs that Belljar starts on the host are found in absolute directories of PATH, outside trees that a run
//! could write.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use belljar_testkit::{Behaviour, Call, FakeEngine, Lab, each_user};

/// A program that Belljar starts, and a call that has it started.
struct Helper {
    name: &'static str,
    call: for<'a> fn(&'a Lab, &FakeEngine) -> Call<'a>,
}

const HELPERS: &[Helper] = &[
    Helper { name: "getent", call: |lab, _| on_docker(lab, "tcp://localhost:1") },
    Helper { name: "ssh", call: |lab, _| on_docker(lab, "ssh://somebody@localhost:1") },
    Helper {
        name: "docker-credential-vault",
        call: |lab, engine| {
            lab.make_file("docker/config.json", "{\"credsStore\": \"vault\"}");
            on_docker(lab, &engine.address()).env("DOCKER_CONFIG", lab.path("docker"))
        },
    },
    Helper { name: "op", call: |lab, _| with_secret(lab, "command=op read it") },
    Helper { name: "secret-tool", call: |lab, _| with_secret(lab, "keyring=it") },
];

fn on_docker<'a>(lab: &'a Lab, host: &str) -> Call<'a> {
    let words = ["-q", "--no-config", "--workspace", "none", "--backend", "docker"];
    let image = ["--image", "registry.invalid:5000/x:1", "--", "true"];
    lab.run(words.iter().chain(&image)).env("DOCKER_HOST", host)
}

fn with_secret<'a>(lab: &'a Lab, source: &str) -> Call<'a> {
    let secret = format!("env=KEY,host=api.invalid,bearer,{source}");
    let words = ["-q", "--no-config", "--workspace", "none", "--allow-host", "api.invalid"];
    lab.run(words.into_iter().chain(["--secret", &secret, "--", "true"]))
}

/// The helper under that name; it leaves a mark outside, and answers nothing.
fn plant(lab: &Lab, directory: &str, name: &str) {
    let mark = lab.path("mark").display().to_string();
    let script = format!("#!/bin/sh\necho x >> {mark}\nexit 1\n");
    lab.make_program(format!("{directory}/{name}"), &script);
}

fn was_executed(lab: &Lab) -> bool {
    fs::remove_file(lab.path("mark")).is_ok()
}

const SYSTEM: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Each test says of each helper what is wrong, if anything is.
#[track_caller]
fn each_helper(test: impl Fn(&Lab, &FakeEngine, &Helper) -> Vec<String>) {
    let wrong = RefCell::new(Vec::new());
    each_user(|first| {
        for helper in HELPERS {
            let lab = Lab::new(first.actor);
            fs::set_permissions(lab.path("."), fs::Permissions::from_mode(0o777)).unwrap();
            let engine = FakeEngine::start(lab.path("engine.sock"), Behaviour::HasNoImage);
            fs::set_permissions(engine.socket(), fs::Permissions::from_mode(0o666)).unwrap();
            for what in test(&lab, &engine, helper) {
                wrong.borrow_mut().push(format!("as {:?}, {}: {what}", lab.actor, helper.name));
            }
        }
    });
    let wrong = wrong.into_inner();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What `PATH=.:…` finds is what lies in the current directory, whoever put it there.
#[test]
fn no_program_is_found_by_a_relative_entry_of_path() {
    each_helper(|lab, engine, helper| {
        plant(lab, "work", helper.name);
        plant(lab, "work/bin", helper.name);
        let mut executed = Vec::new();
        let mut look = |first: &str| {
            (helper.call)(lab, engine).env("PATH", format!("{first}:{SYSTEM}")).done();
            if was_executed(lab) {
                executed.push(format!("executed through {first:?}"));
            }
        };
        for first in [".", "bin", "./bin", "../work/bin", ""] {
            look(first);
        }
        // After a run in that directory too.
        lab.sh(&["-q", "--no-config"], "true").expect(0);
        look(".");
        executed
    });
}

/// An absolute entry that leads into a tree that a run could write is no better.
#[test]
fn no_program_is_found_in_a_tree_that_a_run_could_write() {
    each_helper(|lab, engine, helper| {
        lab.sh(&["-q", "--no-config"], "mkdir bin").expect(0);
        plant(lab, "work/bin", helper.name);
        let bin = lab.work().join("bin").display().to_string();
        (helper.call)(lab, engine).env("PATH", format!("{bin}:{SYSTEM}")).done();
        was_executed(lab).then(|| "executed".to_owned()).into_iter().collect()
    });
}

/// The control of both: the same program in a directory of the operator's own.
#[test]
fn a_program_in_a_directory_of_the_operators_is_found() {
    each_helper(|lab, engine, helper| {
        lab.sh(&["-q", "--no-config"], "true").expect(0);
        plant(lab, "tools", helper.name);
        let tools = lab.path("tools").display().to_string();
        let path = format!(".:{tools}:{SYSTEM}");
        let done = (helper.call)(lab, engine).env("PATH", path).done();
        let lost = (!was_executed(lab)).then(|| format!("not executed: {done}"));
        lost.into_iter().collect()
    });
}
