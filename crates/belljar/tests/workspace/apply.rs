//! Taking over what a run changed in an overlay tree, and throwing it away.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_testkit::{
    Actor, CALL_TIMEOUT, Fault, Input, Lab, Point, PtyRun, TraceScope, as_root, count_calls,
    each_user, soak, until,
};

const OVERLAY: [&str; 3] = ["--no-config", "--workspace", ".:overlay"];

/// Runs a script over the workspace; the run's id.
fn overlay(lab: &Lab, script: &str) -> String {
    let result = lab.sh_json(&OVERLAY, script);
    assert_eq!(result["exit"]["code"], 0, "{result:#}");
    result["id"].as_str().unwrap().to_owned()
}

type Snapshot = BTreeMap<PathBuf, (u32, u32, Vec<u8>)>;

/// Mode, owner and content of everything.
fn snapshot(root: &Path) -> Snapshot {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = if meta.is_dir() {
                pending.push(path.clone());
                Vec::new()
            } else if meta.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            let entry = (meta.mode(), meta.uid(), content);
            found.insert(path.strip_prefix(root).unwrap().to_owned(), entry);
        }
    }
    found
}

fn read(lab: &Lab, path: &str) -> String {
    fs::read_to_string(lab.work().join(path)).unwrap()
}

fn clear(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match fs::symlink_metadata(&path).unwrap().is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
    }
}

fn fill(lab: &Lab) {
    lab.make_file("work/src/a", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
    lab.make_file("work/src/b", "b\n");
    lab.make_file("work/old/below/c", "c\n");
    lab.make_file("work/becomes-directory", "d\n");
    lab.make_file("work/becomes-file/e", "e\n");
    lab.make_program("work/program", "#!/bin/sh\n");
}

/// One of everything.
const SCRIPT: &str = "set -e; sed -i s/5/five/ src/a; rm src/b; rm -r old; \
    rm becomes-directory; mkdir becomes-directory; echo x > becomes-directory/x; \
    rm -r becomes-file; echo file > becomes-file; chmod 600 program; \
    mkdir -p new/deep; echo n > new/deep/n; chmod 500 new/deep; ln -s src link; \
    printf 'no newline' > new/last";

/// What the script makes of it on the host.
fn expected(lab: &Lab) -> Snapshot {
    let lab = Lab::new(lab.actor);
    fill(&lab);
    let mut shell = Command::new("sh");
    shell.args(["-c", SCRIPT]).current_dir(lab.work());
    if let Some(user) = lab.actor.user() {
        shell.uid(user.uid).gid(user.gid);
    }
    assert!(shell.status().unwrap().success());
    snapshot(&lab.work())
}

#[test]
fn everything_arrives_as_if_the_run_had_worked_on_the_tree_itself() {
    each_user(|lab| {
        fill(lab);
        let before = snapshot(&lab.work());
        let run = overlay(lab, SCRIPT);
        assert_eq!(snapshot(&lab.work()), before, "the real tree stays as it is");
        let told = lab.belljar(["apply", "--dry-run", &run]).done();
        told.expect(0);
        assert_eq!(snapshot(&lab.work()), before, "only told");
        // Nobody can be asked.
        let refused = lab.belljar(["apply", &run]).done();
        refused.expect(125);
        assert!(refused.err().contains("--yes"), "{refused}");
        assert_eq!(snapshot(&lab.work()), before);
        lab.belljar(["apply", "--yes", &run]).done().expect(0);
        assert_eq!(snapshot(&lab.work()), expected(lab));
        let again = lab.belljar(["diff", "--exit-code", &run]).done();
        again.expect(0);
        lab.belljar(["rm", &run]).done().expect(0);
    });
}

/// Whoever kills it, wherever: the tree is as before, or as after.
#[test]
fn a_kill_at_any_call_leaves_the_tree_before_or_after() {
    const CALLS: &[&str] = &[
        "write",
        "pwrite64",
        "renameat2",
        "rename",
        "renameat",
        "fsync",
        "fdatasync",
        "syncfs",
        "unlink",
        "unlinkat",
        "rmdir",
        "mkdir",
        "mkdirat",
        "symlinkat",
        "fchmod",
        "chmod",
        "fchown",
        "ftruncate",
        "flock",
        "openat2",
        "ioctl",
    ];
    each_user(|lab| {
        let after = expected(lab);
        let counts = counts(lab, CALLS);
        eprintln!("{counts:?}");
        assert!(counts["renameat2"] >= 8, "{counts:?}");
        fill(lab);
        let before = snapshot(&lab.work());
        let mut run = overlay(lab, SCRIPT);
        let (mut befores, mut afters) = (0, 0);
        for (call, count) in counts {
            // All of those that change a tree; a few of the others unless there is time for all.
            let changes = matches!(call.as_str(), "renameat2" | "rename" | "syncfs" | "chmod");
            let each = if soak() || changes { count } else { count.min(6) };
            for at in 0..each {
                let number = 1 + at * (count - 1) / (each - 1).max(1);
                let point = Point { call: call.clone(), number, scope: TraceScope::Launcher };
                let done = point.hit(lab.belljar(["apply", "--yes", &run]), Fault::Kill).done();
                let told = lab.reconcile();
                assert_eq!(told.left, Vec::<String>::new(), "{point:?} {done}");
                let found = snapshot(&lab.work());
                if found == before {
                    befores += 1;
                } else {
                    assert_eq!(found, after, "{point:?}: {done}");
                    afters += 1;
                    // From the beginning.
                    lab.belljar(["rm", "-f", &run]).done().expect(0);
                    clear(&lab.work());
                    fill(lab);
                    run = overlay(lab, SCRIPT);
                }
                assert_eq!(leftovers(lab), Vec::<String>::new(), "{point:?}");
            }
        }
        assert!(befores > 20 && afters > 3, "{befores} before, {afters} after");
    });
}

/// Of an apply that nobody disturbs.
fn counts(lab: &Lab, calls: &[&str]) -> BTreeMap<String, u32> {
    let lab = Lab::new(lab.actor);
    fill(&lab);
    let run = overlay(&lab, SCRIPT);
    count_calls(&lab, lab.belljar(["apply", "--yes", &run]), TraceScope::Launcher, calls)
}

/// Names in `applying/` but for the lock.
fn leftovers(lab: &Lab) -> Vec<String> {
    let Ok(entries) = fs::read_dir(lab.home().join("applying")) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "lock").collect()
}

/// A full disk, and whatever else can go wrong: nothing is changed, and it is said.
#[test]
fn a_call_that_fails_changes_nothing() {
    each_user(|lab| {
        fill(lab);
        let before = snapshot(&lab.work());
        let run = overlay(lab, SCRIPT);
        // Counted from the last: the first are made by every command.
        let points = [
            ("renameat2", 9, "ENOSPC"),
            ("renameat2", 2, "EIO"),
            ("renameat2", 0, "EIO"),
            ("syncfs", 0, "EIO"),
            ("mkdirat", 1, "ENOSPC"),
            ("ftruncate", 0, "ENOSPC"),
            ("symlinkat", 0, "EDQUOT"),
        ];
        let calls: Vec<&str> = points.iter().map(|(call, ..)| *call).collect();
        let counts = counts(lab, &calls);
        for (call, from_last, error) in points {
            let number = counts[call] - from_last;
            let point = Point { call: call.to_owned(), number, scope: TraceScope::Launcher };
            let call = lab.belljar(["apply", "--yes", &run]);
            let done = point.hit(call, Fault::Fails(error)).done();
            done.expect(125);
            assert!(done.err().contains("nothing was applied"), "{point:?} {done}");
            assert_eq!(snapshot(&lab.work()), before, "{point:?} {done}");
            assert_eq!(leftovers(lab), Vec::<String>::new(), "{point:?} {done}");
        }
        lab.belljar(["apply", "--yes", &run]).done().expect(0);
        assert_eq!(snapshot(&lab.work()), expected(lab));
    });
}

#[test]
fn a_tree_that_moved_on_is_merged() {
    each_user(|lab| {
        fill(lab);
        let run = overlay(lab, "sed -i s/9/nine/ src/a");
        let text = read(lab, "src/a").replace("1\n2\n", "one\n2\n");
        lab.make_file("work/src/a", text);
        let done = lab.belljar(["apply", "--yes", &run]).done();
        done.expect(0);
        assert!(done.out().contains("merged"), "{done}");
        assert_eq!(read(lab, "src/a"), "one\n2\n3\n4\n5\n6\n7\n8\nnine\n10\n");
    });
}

#[test]
fn a_conflict_is_shown_and_nothing_is_changed() {
    each_user(|lab| {
        fill(lab);
        let run = overlay(lab, "sed -i s/5/five/ src/a; rm src/b; echo new > new; echo y > both");
        lab.make_file("work/src/a", read(lab, "src/a").replace("5\n", "fuenf\n"));
        lab.make_file("work/src/b", "changed\n");
        lab.make_file("work/both", "z\n");
        let before = snapshot(&lab.work());
        let done = lab.belljar(["apply", "--yes", &run]).done();
        done.expect(1);
        for words in ["src/a", "fuenf", "five", "src/b", "both", "made here", "removed by the run"]
        {
            assert!(done.out().contains(words), "{words}: {done}");
        }
        assert!(done.err().contains("3 conflicts"), "{done}");
        assert_eq!(snapshot(&lab.work()), before);
        let json = lab.belljar(["apply", "--yes", "--json", &run]).done();
        json.expect(1);
        let conflicts = &json.json()["trees"][0]["conflicts"];
        assert_eq!(conflicts[1]["path"], "src/a");
        assert_eq!(conflicts[1]["lines"][0]["line"], 5);
        // What has no conflict can be taken by name.
        lab.belljar(["apply", "--yes", &run, "new"]).done().expect(0);
        assert_eq!(read(lab, "new"), "new\n");
        assert_eq!(read(lab, "src/b"), "changed\n");
        lab.belljar(["apply", "--yes", "--theirs", &run]).done().expect(0);
        assert_eq!(read(lab, "src/a"), "1\n2\n3\n4\nfive\n6\n7\n8\n9\n10\n");
        assert_eq!(read(lab, "both"), "y\n");
        assert!(!lab.work().join("src/b").exists());
    });
}

#[test]
fn a_live_run_can_be_applied_again_and_again() {
    each_user(|lab| {
        fill(lab);
        let run = live(lab, "echo one > made; touch ready; sleep 1000", "ready");
        lab.belljar(["apply", "--yes", &run, "made"]).done().expect(0);
        assert_eq!(read(lab, "made"), "one\n");
        // The run goes on from its own version, and somebody else's lines are merged.
        lab.belljar(["exec", &run, "--", "sh", "-c", "echo two >> made"]).done().expect(0);
        lab.belljar(["apply", "--yes", &run, "made"]).done().expect(0);
        assert_eq!(read(lab, "made"), "one\ntwo\n");
        let refused = lab.belljar(["discard", "--yes", &run]).done();
        refused.expect(1);
        assert!(refused.err().contains("live"), "{refused}");
        lab.belljar(["discard", "--yes", "--force", &run]).done().expect(0);
        let gone = lab.belljar(["diff", &run]).done();
        assert!(gone.err().contains("discarded"), "{gone}");
        assert_eq!(read(lab, "made"), "one\ntwo\n");
    });
}

#[test]
fn undecided_changes_are_not_taken_away_unasked() {
    each_user(|lab| {
        fill(lab);
        let run = overlay(lab, "echo x > new");
        let nothing = overlay(lab, "cat src/a");
        let refused = lab.belljar(["rm", &run]).done();
        refused.expect(1);
        assert!(refused.err().contains("neither applied nor discarded"), "{refused}");
        let pruned = lab.belljar(["prune", "--keep", "0"]).done();
        pruned.expect(0);
        assert!(pruned.out().contains(&nothing), "{pruned}");
        assert!(pruned.err().contains("is kept"), "{pruned}");
        assert_eq!(lab.runs(), [run.as_str()]);
        // What [retention] says goes by the same rule.
        let rules = "[retention]\nruns = 1\nsandboxes = 0\n";
        lab.make_file("person/.config/belljar/config.toml", rules);
        let pruned = lab.belljar(["prune", "--json"]).done();
        pruned.expect(0);
        assert_eq!(pruned.json()["unreviewed"][0], *run);
        assert_eq!(lab.runs(), [run.as_str()]);
        lab.belljar(["discard", "--yes", &run]).done().expect(0);
        assert!(!lab.home().join("runs").join(&run).join("upper").exists());
        lab.belljar(["rm", &run]).done().expect(0);
        // By force, and after it was applied.
        let run = overlay(lab, "echo y > other");
        lab.belljar(["rm", "-f", &run]).done().expect(0);
        let run = overlay(lab, "echo z > third");
        lab.belljar(["apply", "-y", &run]).done().expect(0);
        lab.belljar(["prune", "--keep", "0"]).done().expect(0);
        assert_eq!(lab.runs(), Vec::<String>::new());
    });
}

#[test]
fn what_is_hostile_does_not_arrive() {
    each_user(|lab| {
        fill(lab);
        let outside = lab.make_file("outside", "outside\n");
        let script = format!(
            "mkfifo pipe; ln -s {} out; ln -s ../../.. up; ln src/a hard; \
             rm src/a; ln -s {} src/a; mkdir .vscode; echo '{{}}' > .vscode/tasks.json; \
             printf x > \"$(printf 'a\\nb\\033[2J')\"; rm -r old; ln -s / old",
            outside.display(),
            outside.display(),
        );
        let run = overlay(lab, &script);
        let done = lab.belljar(["apply", "--yes", &run]).done();
        done.expect(0);
        assert!(!done.out().contains('\u{1b}') && !done.err().contains('\u{1b}'), "{done}");
        let work = lab.work();
        let missing = |path: &str| fs::symlink_metadata(work.join(path)).is_err();
        assert!(
            missing("pipe") && missing("out") && missing("up") && missing(".vscode/tasks.json")
        );
        assert_eq!(read(lab, "hard"), "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
        assert_eq!(fs::metadata(work.join("hard")).unwrap().nlink(), 1);
        assert!(fs::symlink_metadata(work.join("src/a")).unwrap().is_file());
        assert!(fs::symlink_metadata(work.join("old")).unwrap().is_dir());
        assert_eq!(read(lab, "a\nb\u{1b}[2J"), "x");
        assert_eq!(fs::read_to_string(&outside).unwrap(), "outside\n");
        // Named, they come; but for what never does.
        lab.belljar(["apply", "-y", &run, ".vscode/tasks.json", "out"]).done().expect(0);
        assert_eq!(read(lab, ".vscode/tasks.json"), "{}\n");
        assert_eq!(fs::read_link(work.join("out")).unwrap(), outside);
        lab.belljar(["apply", "-y", &run, "pipe"]).done().expect(0);
        assert!(missing("pipe"));
        let unknown = lab.belljar(["apply", "-y", &run, "no/such"]).done();
        unknown.expect(125);
        assert!(unknown.err().contains("no/such was not changed"), "{unknown}");
    });
}

#[test]
fn no_bit_but_the_nine_arrives() {
    each_user(|lab| {
        fill(lab);
        let run = overlay(lab, "cp program tool; mkdir shared");
        // The filter inside refuses such bits; so they are planted where the run's files lie.
        let upper = lab.home().join("runs").join(&run).join("upper/0/data");
        fs::set_permissions(upper.join("tool"), fs::Permissions::from_mode(0o6755)).unwrap();
        fs::set_permissions(upper.join("shared"), fs::Permissions::from_mode(0o3777)).unwrap();
        lab.belljar(["apply", "-y", &run]).done().expect(0);
        let mode = |path: &str| fs::metadata(lab.work().join(path)).unwrap().mode() & 0o7777;
        assert_eq!((mode("tool"), mode("shared")), (0o755, 0o777));
    });
}

#[test]
fn hunks_are_chosen_one_by_one() {
    each_user(|lab| {
        fill(lab);
        let lines: String = (1..=30).map(|line| format!("{line}\n")).collect();
        lab.make_file("work/long", &lines);
        let script = "sed -i 's/^2$/two/; s/^15$/fifteen/; s/^28$/twenty-eight/' long; \
            echo new > added; rm src/b; echo m > more";
        let run = overlay(lab, script);
        // By path: added, long (three hunks), more, src/b.
        let answers = "y\n?\ny\nn\ny\nn\ny\n";
        let call = lab.belljar(["apply", "-i", &run]).input(Input::Bytes(answers.into()));
        let done = call.done();
        done.expect(0);
        assert!(done.err().contains("split the hunk"), "the help: {done}");
        let expected = lines.replace("\n2\n", "\ntwo\n").replace("\n28\n", "\ntwenty-eight\n");
        assert_eq!(read(lab, "long"), expected);
        assert_eq!(read(lab, "added"), "new\n");
        assert!(!lab.work().join("more").exists());
        assert!(!lab.work().join("src/b").exists());
        // What was left out is still a change.
        let rest = lab.belljar(["diff", "--name-only", &run]).done();
        assert_eq!(rest.out(), "long\nmore\n");
        lab.belljar(["apply", "-i", &run]).input(Input::Bytes("q\n".into())).done().expect(0);
        assert_eq!(read(lab, "long"), expected);
        lab.belljar(["apply", "-i", &run]).input(Input::Bytes("a\na\n".into())).done().expect(0);
        assert_eq!(read(lab, "long"), expected.replace("\n15\n", "\nfifteen\n"));
        assert_eq!(read(lab, "more"), "m\n");
    });
}

/// Root's overlay keeps a renamed directory by its old name, which applying takes away.
#[test]
fn a_renamed_directory_survives_being_applied_in_parts() {
    each_user(|lab| {
        fill(lab);
        lab.make_file("work/src/deep/er/f", "f\n");
        let run = overlay(lab, "mv src lib; echo new > lib/deep/new; rm lib/b");
        // First the old name goes, then the new one comes: nothing is lost in between.
        lab.belljar(["apply", "-y", &run, "src/b"]).done().expect(0);
        lab.belljar(["apply", "-y", &run, "lib/deep"]).done().expect(0);
        assert_eq!(read(lab, "lib/deep/new"), "new\n");
        lab.belljar(["apply", "-y", &run]).done().expect(0);
        assert!(!lab.work().join("src").exists());
        assert_eq!(read(lab, "lib/a"), "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
        assert_eq!(read(lab, "lib/deep/er/f"), "f\n");
        assert!(!lab.work().join("lib/b").exists());
        let left = lab.belljar(["diff", "--name-only", &run]).done();
        assert_eq!(left.out(), "", "{left}");
    });
}

#[test]
fn a_live_run_keeps_what_it_reads_under_an_old_name() {
    let lab = &Lab::new(Actor::Me);
    fill(lab);
    let run = live(lab, "mv src lib; echo n > new; touch ready; sleep 1000", "ready");
    let before = snapshot(&lab.work());
    let done = lab.belljar(["apply", "-y", &run]).done();
    if as_root() {
        done.expect(125);
        assert!(done.err().contains("once it has stopped"), "{done}");
        assert_eq!(snapshot(&lab.work()), before);
        lab.belljar(["apply", "-y", &run, "new"]).done().expect(0);
        let inside = lab.belljar(["exec", &run, "--", "cat", "lib/b"]).done();
        assert_eq!(inside.out(), "b\n", "{inside}");
        lab.belljar(["stop", "-t", "0", &run]).done().expect(0);
        lab.belljar(["apply", "-y", &run]).done().expect(0);
    } else {
        done.expect(0); // there it was copied
        lab.belljar(["stop", "-t", "0", &run]).done().expect(0);
    }
    assert_eq!(read(lab, "lib/b"), "b\n");
    assert!(!lab.work().join("src").exists());
}

/// Starts one and waits until that name is in its layer.
fn live(lab: &Lab, script: &str, ready: &str) -> String {
    let words = ["--no-config", "-d", "--workspace", ".:overlay", "--keep", "--", "sh", "-c"];
    let run = lab.run(words).arg(script).done();
    run.expect(0);
    let run = run.out().trim().to_owned();
    let upper = lab.home().join("runs").join(&run).join("upper/0/data").join(ready);
    assert!(until(CALL_TIMEOUT, || upper.exists()), "it never came to it");
    run
}

#[test]
fn what_a_live_run_saw_is_known_when_somebody_changes_it() {
    each_user(|lab| {
        fill(lab);
        let script = "sed -i s/9/nine/ src/a; printf '\\0new' > src/b; touch ready; sleep 1000";
        let run = live(lab, script, "ready");
        // The supervisor takes it down by itself.
        let index = lab.home().join("runs").join(&run).join("base/0/index.json");
        assert!(until(CALL_TIMEOUT, || index.exists()));
        lab.make_file("work/src/a", read(lab, "src/a").replace("1\n2\n", "one\n2\n"));
        lab.belljar(["apply", "-y", &run, "src/a"]).done().expect(0);
        assert_eq!(read(lab, "src/a"), "one\n2\n3\n4\n5\n6\n7\n8\nnine\n10\n");
        lab.make_file("work/src/b", "mine\n");
        lab.belljar(["apply", "-y", &run, "src/b"]).done().expect(1);
        assert_eq!(read(lab, "src/b"), "mine\n");
        lab.belljar(["rm", "-f", &run]).done().expect(0);
    });
}

#[test]
fn somebody_at_a_terminal_is_asked_once() {
    each_user(|lab| {
        fill(lab);
        let run = overlay(lab, "echo x > new");
        for (answer, code) in [("\n", 1), ("n\n", 1), ("y\n", 0)] {
            assert!(!lab.work().join("new").exists());
            let mut terminal = PtyRun::start(&lab.belljar(["apply", &run]), 24, 80);
            terminal.wait_for("[y/N]");
            terminal.type_in(answer);
            let (ended, screen) = terminal.end();
            assert_eq!(ended, code, "{screen}");
            assert!(screen.contains("Apply 1 change"), "{screen}");
        }
        assert_eq!(read(lab, "new"), "x\n");
        let run = overlay(lab, "echo y > other");
        let refused = lab.belljar(["discard", &run]).done();
        refused.expect(1);
        assert!(refused.err().contains("--yes"), "{refused}");
        let mut terminal = PtyRun::start(&lab.belljar(["discard", &run]), 24, 80);
        terminal.wait_for("[y/N]");
        terminal.type_in("y\n");
        assert_eq!(terminal.end().0, 0);
    });
}
