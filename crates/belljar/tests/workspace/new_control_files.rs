//! Control files of an `rw` workspace that were not there when the run began: nothing of Belljar's own lies in the
//! tree, what the run made is told at its end, and moved away only where somebody asks for it.

use std::fs;
use std::path::{Path, PathBuf};

use belljar_testkit::{Done, Input, Lab, Live, PtyRun, each_user, send};
use rustix::process::Signal;
use serde_json::Value;

/// Everything below a directory, with what it holds.
fn everything(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![directory.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(directory).unwrap().display().to_string();
            let mode = std::os::unix::fs::MetadataExt::mode(&meta) & 0o7777;
            if meta.is_dir() {
                todo.push(path);
                found.push(format!("{name}/ {mode:o}"));
            } else if meta.is_file() {
                let content = fs::read_to_string(&path).unwrap_or_default();
                found.push(format!("{name} {mode:o} {content}"));
            } else {
                found.push(format!("{name} {:?}", meta.file_type()));
            }
        }
    }
    found.sort();
    found
}

/// A project with a repository, and with none of the files that editors and agents read.
fn project(lab: &Lab) -> Vec<String> {
    lab.make_file("work/src/main.rs", "fn main() {}\n");
    lab.make_file("work/.git/HEAD", "ref: refs/heads/main\n");
    lab.make_file("work/.git/config", "[core]\n\tbare = false\n");
    lab.make_directory("work/.git/objects");
    lab.make_directory("work/.git/refs/heads");
    lab.make_directory("work/deep/er");
    everything(&lab.work())
}

/// A run that has printed `ready` and waits.
fn waiting(lab: &Lab, script: &str) -> Live {
    let script = format!("echo ready; read go; {script}");
    let live = lab.run(["-q", "--", "sh", "-c", &script]).input(Input::Open).spawn();
    live.wait_for_output("ready");
    live
}

fn goes_on(mut live: Live) -> Done {
    live.type_in(b"go\n");
    live.done()
}

/// `new_control_files` of a result, below the workspace. Absent if there are none.
fn new_files(result: &Value) -> Vec<String> {
    let list = result["new_control_files"].as_array().cloned().unwrap_or_default();
    let below = |path: &Value| {
        let path = path.as_str().unwrap();
        path.strip_prefix("/workspace/").unwrap_or(path).to_owned()
    };
    let mut names: Vec<String> = list.iter().map(below).collect();
    names.sort();
    names
}

const MAKES: &str = "mkdir .vscode && echo tasks > .vscode/tasks.json && echo env > .envrc && echo toml > belljar.toml \
     && echo x > plain";
const MADE: [&str; 3] = [".envrc", ".vscode/tasks.json", "belljar.toml"];

#[test]
fn a_tree_has_no_file_more_while_a_run_works_on_it() {
    each_user(|lab| {
        let before = project(lab);
        let live = waiting(lab, "ls -A");
        assert_eq!(everything(&lab.work()), before, "as {:?}", lab.actor);
        // What the host does there meanwhile works.
        fs::create_dir(lab.work().join(".vscode")).unwrap();
        fs::write(lab.work().join(".envrc"), "mine\n").unwrap();
        let done = goes_on(live);
        assert_eq!(done.expect(0).out(), "ready\n.envrc\n.git\n.vscode\ndeep\nsrc\n");
        assert_eq!(fs::read_to_string(lab.work().join(".envrc")).unwrap(), "mine\n");
        fs::remove_dir(lab.work().join(".vscode")).unwrap();
        fs::remove_file(lab.work().join(".envrc")).unwrap();
        assert_eq!(everything(&lab.work()), before);
    });
}

#[test]
fn two_runs_and_another_tree_leave_nothing_there_either() {
    each_user(|lab| {
        let before = project(lab);
        lab.make_file("data/file", "");
        let data = everything(&lab.path("data"));
        let mount = format!("{}:/data:rw", lab.path("data").display());
        let first = waiting(lab, "true");
        let words = ["-q", "-v", &mount, "--", "sh", "-c", "echo ready; read go"];
        let second = lab.run(words).input(Input::Open).spawn();
        second.wait_for_output("ready");
        assert_eq!(everything(&lab.work()), before);
        assert_eq!(everything(&lab.path("data")), data);
        goes_on(first).expect(0);
        assert_eq!(everything(&lab.work()), before);
        goes_on(second).expect(0);
        assert_eq!(everything(&lab.work()), before);
        assert_eq!(everything(&lab.path("data")), data);
    });
}

/// No command has to come and tidy up.
#[test]
fn a_launcher_that_is_killed_leaves_nothing_in_the_tree() {
    each_user(|lab| {
        let before = project(lab);
        let live = waiting(lab, "true");
        send(live.pid(), Signal::KILL);
        live.done();
        lab.assert_nothing_lives(&lab.runs());
        assert_eq!(everything(&lab.work()), before, "as {:?}", lab.actor);
        lab.belljar(["reconcile"]).done().expect(0);
        assert_eq!(everything(&lab.work()), before);
        // So the project can be set up.
        lab.belljar(["init", "--yes"]).done().expect(0);
    });
}

/// What is there stays as it is, whatever is made beside it.
#[test]
fn control_files_that_are_there_stay_read_only() {
    each_user(|lab| {
        project(lab);
        lab.make_file("work/.envrc", "before\n");
        lab.make_file("work/.vscode/tasks.json", "before\n");
        let before = everything(&lab.work());
        let script = "echo x > .envrc; rm -f .envrc; echo x > .vscode/tasks.json; mv .vscode away; \
             echo x > .git/config; true";
        let result = lab.sh_json(&[], script);
        assert_eq!(everything(&lab.work()), before);
        assert_eq!(new_files(&result), Vec::<String>::new(), "the control: nothing is new");
    });
}

#[test]
fn what_was_made_is_told_by_the_result_and_by_show() {
    each_user(|lab| {
        project(lab);
        let result = lab.sh_json(&[], MAKES);
        assert_eq!(result["exit"]["code"], 0, "{}", result["stderr"]);
        assert_eq!(new_files(&result), MADE);
        let id = result["id"].as_str().unwrap();
        let shown = lab.belljar(["show", id]).done();
        shown.expect(0).prints(&MADE);
        let shown = lab.belljar(["show", "--json", id]).done().expect(0).json().to_string();
        assert!(shown.contains("new_control_files"), "{shown}");
        lab.belljar(["verify", id]).done().expect(0);
        // Nothing is moved unasked, and what is there now is no news for the next run.
        for name in MADE {
            assert!(lab.work().join(name).is_file(), "{name}");
        }
        let next = lab.sh_json(&["--no-config"], "echo x > .profile");
        assert_eq!(new_files(&next), [".profile"]);
        let file = lab.work().join("result.json");
        let words =
            ["-q", "--no-config", "--result", "result.json", "--", "sh", "-c", "echo x > .bashrc"];
        lab.run(words).done().expect(0);
        let written = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!(new_files(&written), [".bashrc"]);
    });
}

/// Without a terminal the last line names them, and the command that moves them.
#[test]
fn what_was_made_is_told_in_the_last_line() {
    each_user(|lab| {
        project(lab);
        let done = lab.sh(&[], "echo x > .envrc");
        let said = done.expect(0).err();
        let last = said.lines().last().unwrap_or_default();
        assert!(said.contains(".envrc") && said.contains("apply --quarantine"), "{done}");
        assert!(last.contains(".envrc") || last.contains("--quarantine"), "{done}");
        // The control.
        let done = lab.sh(&["--no-config"], "echo x > plain");
        assert!(!done.expect(0).err().contains("quarantine"), "{done}");
    });
}

#[test]
fn a_person_at_a_terminal_is_asked() {
    each_user(|lab| {
        project(lab);
        for (answer, stays) in [("n\n", true), ("y\n", false)] {
            let words = ["--no-config", "--", "sh", "-c", "echo x > .envrc"];
            let call = lab.run(words).through(PtyRun::SESSION);
            let mut run = PtyRun::start(&call, 24, 80);
            run.wait_for("[y/N]");
            run.type_in(answer);
            let (code, screen) = run.end();
            assert_eq!(code, 0, "{screen}");
            assert!(screen.contains(".envrc"), "{screen}");
            assert_eq!(lab.work().join(".envrc").exists(), stays, "{screen}");
            let _ = fs::remove_file(lab.work().join(".envrc"));
        }
        assert_eq!(
            found_below(&lab.home().join("runs"), ".envrc").len(),
            1,
            "the one that was moved"
        );
    });
}

fn found_below(directory: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap() == name {
            found.push(path);
        } else if fs::symlink_metadata(&path).unwrap().is_dir() {
            found.extend(found_below(&path, name));
        }
    }
    found
}

#[test]
fn what_was_made_is_moved_to_the_runs_directory_where_somebody_asks() {
    each_user(|lab| {
        let mut before = project(lab);
        lab.make_file("work/.mcp.json", "mine\n");
        let result = lab.sh_json(&["--name", "made"], MAKES);
        assert_eq!(new_files(&result), MADE);
        let id = result["id"].as_str().unwrap();
        // Not what came with another run, and not what the operator made.
        lab.sh(&["-q", "--no-config"], "echo other > .profile").expect(0);
        lab.make_file("work/.zshenv", "mine\n");
        lab.belljar(["apply", "--quarantine", "made"]).done().expect(0);
        for name in MADE {
            assert!(!lab.work().join(name).exists(), "{name} is still in the tree");
            let base = Path::new(name).file_name().unwrap().to_str().unwrap();
            let kept = found_below(&lab.home().join("runs").join(id), base);
            assert_eq!(kept.len(), 1, "{name}: {kept:?}");
        }
        let kept = found_below(&lab.home().join("runs").join(id), "tasks.json");
        assert_eq!(fs::read_to_string(&kept[0]).unwrap(), "tasks\n");
        for name in [".profile", ".zshenv", ".mcp.json"] {
            assert!(lab.work().join(name).exists(), "{name} was moved too");
        }
        assert_eq!(fs::read_to_string(lab.work().join("plain")).unwrap(), "x\n");
        lab.belljar(["verify", "--all"]).done().expect(0);
        // A run that made none has none to move.
        for name in [".profile", ".zshenv", ".mcp.json", "plain"] {
            fs::remove_file(lab.work().join(name)).unwrap();
        }
        let _ = fs::remove_dir(lab.work().join(".vscode")); // its directory may stay, empty
        before.sort();
        assert_eq!(everything(&lab.work()), before);
    });
}

/// A link is moved as a link, and nothing that it leads to.
#[test]
fn a_link_that_was_made_is_moved_as_one() {
    each_user(|lab| {
        project(lab);
        lab.make_file("outside/file", "outside\n");
        let target = lab.path("outside/file").display().to_string();
        let script = format!("ln -s {target} .envrc; mkdir -p a; ln -s ../../outside a/.vscode");
        let result = lab.sh_json(&["--name", "made"], &script);
        assert!(new_files(&result).contains(&".envrc".to_owned()));
        lab.belljar(["apply", "--quarantine", "made"]).done().expect(0);
        assert!(fs::symlink_metadata(lab.work().join(".envrc")).is_err(), "it is still there");
        assert_eq!(fs::read_to_string(lab.path("outside/file")).unwrap(), "outside\n");
    });
}

/// However much else there is.
#[test]
fn a_control_file_behind_a_crowd_is_told() {
    each_user(|lab| {
        project(lab);
        let many = lab.make_directory("work/many");
        for number in 0..25_000 {
            fs::File::create(many.join(format!("f{number}"))).unwrap();
        }
        let places = ["aa/.envrc", "many/.envrc", "many/sub/.vscode/tasks.json", "zz/x/.mcp.json"];
        let script = places.map(|place| {
            let above = Path::new(place).parent().unwrap().display().to_string();
            format!("mkdir -p {above}; echo x > {place}")
        });
        let told = |result: &Value| -> Vec<String> {
            new_files(result).into_iter().filter(|name| name.contains('/')).collect()
        };
        if let Some(user) = lab.actor.user() {
            std::os::unix::fs::chown(&many, Some(user.uid), Some(user.gid)).unwrap();
        }
        let result = lab.sh_json(&["--no-config"], &script.join("; "));
        assert_eq!(result["exit"]["code"], 0, "{}", result["stderr"]);
        assert_eq!(told(&result), places);
        // The same where the run itself makes the crowd.
        let flood = "mkdir more; seq 25000 | sed s,^,more/g, | xargs touch; mkdir more/zzz; echo x > more/zzz/.envrc";
        let result = lab.sh_json(&["--no-config"], flood);
        assert_eq!(told(&result), ["more/zzz/.envrc"]);
    });
}
