//! `belljar diff`: what a run changed in an overlay tree, for people and for programs.

use std::fs;
use std::process::{Command, Stdio};

use belljar_testkit::{Input, Lab, each_engine, each_user};
use serde_json::Value;

fn everywhere(test: impl Fn(&Lab)) {
    each_user(&test);
    each_engine(|_, lab| test(lab));
}

fn fill(lab: &Lab) {
    lab.make_file("work/src/main.c", "int main() {\n    return 0;\n}\n");
    lab.make_file("work/package.json", "{ \"scripts\": {} }\n");
    lab.make_file("work/gone.txt", "one\ntwo\n");
    lab.make_file("work/old/list", (1..40).map(|n| format!("{n}\n")).collect::<String>());
    lab.make_file("work/run.sh", "#!/bin/sh\n");
}

const CHANGES: &str = "set -e
    sed -i 's/return 0/return 1/' src/main.c
    printf '{ \"scripts\": { \"test\": \"x\" } }\\n' > package.json
    rm gone.txt; chmod 755 run.sh; mkdir new; echo 1 > new/file; printf '\\0\\1' > new/binary
    mv old young; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; ln -s /etc/shadow out
    touch \"$(printf 'evil\\033[2J')\"";

fn id(result: &Value) -> &str {
    result["id"].as_str().unwrap()
}

#[test]
fn the_list_says_what_changed_and_what_to_beware_of() {
    everywhere(|lab| {
        fill(lab);
        let result = lab.sh_json(&["--workspace", ".:overlay"], CHANGES);
        let page = lab.belljar(["diff", id(&result)]).done().expect(0).out();
        let expected = "\x20 A .git/
  A .git/hooks/
  A .git/hooks/pre-commit                                   +1
  A evil\\u{1b}[2J
  D gone.txt                                                -2
  A new/
  A new/binary                                              binary, 2 bytes
  A new/file                                                +1
  D old/
  A out                                                     link to /etc/shadow
  M package.json                                            +1 -1
  m run.sh                                                  0644 -> 0755
  M src/main.c                                              +1 -1
  A young/
  R old/list -> young/list
15 paths changed: 9 added, 3 modified, 2 deleted, 1 renamed; lines +4 -4

runs later on the host:
  M package.json
      its scripts run on install, build and test

held back by apply unless named:
  A .git/hooks/pre-commit
      git runs it as a hook
  A out
      the link leads out of the tree
";
        assert_eq!(page, expected, "as {:?}", lab.actor);
        assert!(page.lines().all(|line| line.chars().count() <= 80));
        let counted = &result["workspace"];
        let counts = ["created", "modified", "deleted", "renamed"].map(|key| counted[key].as_u64());
        assert_eq!(counts, [9, 3, 2, 1].map(Some), "{result:#}");
        let later: Vec<&str> = counted["autorun"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|file| file["path"].as_str())
            .collect();
        assert_eq!(later, [".git/hooks/pre-commit", "package.json"]);
        lab.belljar(["diff", "--exit-code", id(&result)]).done().expect(1);
        let named =
            lab.belljar(["diff", "--name-only", id(&result), "./new", "/workspace/src"]).done();
        assert_eq!(named.expect(0).out(), "new\nnew/binary\nnew/file\nsrc/main.c\n");
        let told =
            lab.belljar(["events", "--kind", "workspace.changed", id(&result)]).done().json();
        assert_eq!(told["data"]["created"], 9);
    });
}

/// gVisor keeps the FIFOs of its runs to itself, so there it is a test of nothing.
#[test]
fn a_fifo_is_told_and_never_applied() {
    let test = |lab: &Lab| {
        let result = lab.sh_json(&["--workspace", ".:overlay"], "mkfifo pipe; echo 1 > file");
        let page = lab.belljar(["diff", id(&result)]).done().expect(0).out();
        assert!(
            page.contains("  A pipe                                                    FIFO\n"),
            "{page}"
        );
        let told = "never applied:\n  A pipe\n      a FIFO never leaves a run\n";
        assert!(page.contains(told), "{page}");
        lab.belljar(["apply", "-y", id(&result)]).done().expect(0);
        assert!(lab.work().join("file").exists() && !lab.work().join("pipe").exists());
    };
    each_user(test);
    each_engine(|engine, lab| {
        if engine.name() != "runsc" {
            test(lab)
        }
    });
}

#[test]
fn a_patch_can_be_given_to_git() {
    each_user(|lab| {
        fill(lab);
        let result = lab.sh_json(&["--workspace", ".:overlay"], CHANGES);
        let patch =
            lab.belljar(["diff", "-p", id(&result), "src", "young", "gone.txt", "run.sh"]).done();
        fs::write(lab.path("patch"), patch.expect(0).out()).unwrap();
        let mut git = Command::new("git");
        git.arg("apply").arg(lab.path("patch")).current_dir(lab.work()).env_clear();
        git.env("PATH", std::env::var_os("PATH").unwrap()).env("GIT_CONFIG_NOSYSTEM", "1");
        git.env("HOME", "/nonexistent").env("GIT_CEILING_DIRECTORIES", lab.work());
        let done = git.stdin(Stdio::null()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert!(!lab.work().join("gone.txt").exists() && !lab.work().join("old/list").exists());
        assert!(lab.work().join("young/list").exists());
        assert!(fs::read_to_string(lab.work().join("src/main.c")).unwrap().contains("return 1"));
        // What was taken over is no change any more.
        let left =
            lab.belljar(["diff", "--name-only", id(&result), "src", "gone.txt", "run.sh"]).done();
        assert_eq!(left.expect(0).out(), "");
    });
}

#[test]
fn json_has_what_the_list_has() {
    each_user(|lab| {
        fill(lab);
        let script = format!("{CHANGES}; mkfifo pipe");
        let result = lab.sh_json(&["--workspace", ".:overlay"], &script);
        let told = lab.belljar(["diff", "--json", id(&result)]).done().expect(0).json();
        assert_eq!(told["trees"][0]["target"], "/workspace");
        let changes = told["trees"][0]["changes"].as_array().unwrap();
        let of = |path: &str| changes.iter().find(|change| change["path"] == path).unwrap();
        assert_eq!(of("young/list")["what"]["from"], "old/list");
        assert_eq!(of("package.json")["autorun"]["class"], "project");
        assert_eq!(of(".git/hooks/pre-commit")["withheld"]["how_far"], "unless_named");
        assert_eq!(of("pipe")["withheld"]["how_far"], "always");
        assert_eq!(
            (&of("src/main.c")["added"], &of("src/main.c")["removed"]),
            (&1.into(), &1.into())
        );
        assert_eq!(of("out")["after"]["target"], "/etc/shadow");
    });
}

#[test]
fn a_live_run_can_be_looked_at() {
    each_user(|lab| {
        fill(lab);
        let words = ["--workspace", ".:overlay", "--name", "live", "--", "sh", "-c"];
        let script = "echo 1 > one; echo ready; read go; echo 2 > two";
        let mut live = lab.run(words).arg(script).input(Input::Open).spawn();
        live.wait_for_output("ready");
        assert_eq!(lab.belljar(["diff", "--name-only", "live"]).done().expect(0).out(), "one\n");
        live.type_in(b"go\n");
        live.done().expect(0);
        assert_eq!(
            lab.belljar(["diff", "--name-only", "live"]).done().expect(0).out(),
            "one\ntwo\n"
        );
    });
}

#[test]
fn there_is_an_answer_where_there_is_nothing_to_show() {
    each_user(|lab| {
        fill(lab);
        let rw = lab.sh_json(&[], "true");
        lab.belljar(["diff", id(&rw)]).done().expect(125).says(&["has nothing to review"]);
        let nothing = lab.sh_json(&["--workspace", ".:overlay"], "cat package.json");
        let page = lab.belljar(["diff", "--exit-code", id(&nothing)]).done().expect(0).out();
        assert_eq!(page, "no changes\n");
        fs::rename(lab.work(), lab.path("elsewhere")).unwrap();
        fs::create_dir(lab.work()).unwrap();
        let error = lab.belljar(["diff", id(&nothing)]).from(lab.path("")).done();
        error.expect(125).says(&["is another directory than the one the run worked on"]);
    });
}

#[test]
fn what_is_written_to_an_overlay_counts_for_the_disk() {
    each_user(|lab| {
        fill(lab);
        let limit = ["--workspace", ".:overlay", "--disk", "20m", "--waive", "fs.quota=test"];
        let write = |megabytes: u32| {
            let script = format!("head -c {megabytes}M /dev/zero > big; sleep 6; echo whole");
            lab.sh_json(&limit, &script)
        };
        assert_eq!(write(60)["reason"], "limit");
        assert_eq!(write(1)["stdout"], "whole\n", "the control");
    });
}
