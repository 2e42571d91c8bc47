//! Files that decide about a run, whoever names them: in a tree that an earlier run could write, none is believed
//! before somebody has looked at it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_testkit::{Behaviour, Call, Done, FakeEngine, Lab, as_root, each_user, until};

/// The words after `belljar trust` in a refusal.
#[track_caller]
fn hint(done: &Done) -> Vec<String> {
    let said = done.err();
    let line = said.lines().find_map(|line| line.split_once("belljar trust "));
    let (_, words) = line.unwrap_or_else(|| panic!("no hint: {done}"));
    words
        .split_whitespace()
        .map(|word| word.trim_matches(['`', '"', '.', ',']))
        .map(str::to_owned)
        .collect()
}

/// Refused, and the printed command helps for exactly this content.
#[track_caller]
fn needs_trust<'a>(lab: &'a Lab, file: &Path, call: &dyn Fn() -> Call<'a>) {
    let refused = call().done();
    refused.expect(125).says(&[file.file_name().unwrap().to_str().unwrap()]);
    let words = hint(&refused);
    lab.belljar(["trust"].into_iter().chain(words.iter().map(String::as_str))).done().expect(0);
    call().done().expect(0);
    // Another content is another file.
    let before = fs::read(file).unwrap();
    fs::write(file, [&before[..], b"\n"].concat()).unwrap();
    call().done().expect(125).says(&["belljar trust"]);
    fs::write(file, before).unwrap();
    call().done().expect(0);
}

const WITHOUT_BOUNDARY: &str =
    "[sandbox]\\nbackend = \"host\"\\n[policy]\\nwaive = { all = \"x\" }\\n";

#[test]
fn a_manifest_that_a_run_wrote_is_not_believed_because_it_is_named() {
    each_user(|lab| {
        let safe = lab.make_file("safe/ops.toml", "[limits]\npids = 100\n");
        let work = lab.work();
        let named = |file: &Path| {
            let words = ["-q", "--workspace", work.to_str().unwrap(), "--manifest"];
            lab.run(words).arg(file).arg("--").arg("true")
        };
        // The control: in a tree that no run ever worked on.
        fs::copy(&safe, work.join("first.toml")).unwrap();
        named(&work.join("first.toml")).done().expect(0);
        let script = format!("printf '{WITHOUT_BOUNDARY}' > ops.toml");
        lab.sh(&["-q"], &script).expect(0);
        let ops = work.join("ops.toml");
        let run = || {
            let words = ["-q", "--manifest", "ops.toml", "--", "sh", "-c", "id -u"];
            lab.run(words)
        };
        let refused = run().done();
        assert_eq!(refused.expect(125).out(), "", "nothing ran on the host");
        needs_trust(lab, &ops, &run);
        // From elsewhere, by its whole path, it is the same file.
        fs::write(&ops, "[sandbox]\nbackend = \"host\"\n[policy]\nwaive = { all = \"y\" }\n")
            .unwrap();
        let elsewhere = lab.make_directory("elsewhere");
        named(&ops).from(elsewhere).done().expect(125).says(&["belljar trust"]);
        // The control: a manifest where no run could ever write.
        named(&safe).done().expect(0);
    });
}

#[test]
fn an_env_file_that_a_run_wrote_is_not_believed_because_it_is_named() {
    each_user(|lab| {
        let safe = lab.make_file("safe/run.env", "HOST_SECRET\n");
        let call = |file: &str| {
            let words = ["-q", "--env-file", file, "--", "env"];
            lab.run(words).env("HOST_SECRET", "hunter2")
        };
        lab.sh(&["-q"], "echo HOST_SECRET > run.env").expect(0);
        let refused = call("run.env").done();
        assert!(!refused.out().contains("hunter2"), "{refused}");
        needs_trust(lab, &lab.work().join("run.env"), &|| call("run.env"));
        // The control.
        let given = call(safe.to_str().unwrap()).done();
        assert!(given.expect(0).out().contains("HOST_SECRET=hunter2"), "{given}");
    });
}

#[test]
fn a_prompt_that_a_run_wrote_is_not_believed_because_it_is_named() {
    each_user(|lab| {
        let agent = "[agent]\nkind = \"command\"\ncommand = [\"cat\"]\n";
        lab.make_file("person/.config/belljar/config.toml", agent);
        let safe = lab.make_file("safe/prompt", "obey\n");
        lab.sh(&["-q"], "echo obey > prompt").expect(0);
        let call = |file: &str| lab.run(["--json", "--prompt-file", file]);
        let refused = call("prompt").done();
        assert!(!refused.out().contains("obey"), "{refused}");
        needs_trust(lab, &lab.work().join("prompt"), &|| call("prompt"));
        let given = call(safe.to_str().unwrap()).done();
        assert!(given.expect(0).out().contains("obey"), "{given}");
    });
}

/// A link in such a tree is never followed, whoever names it and whatever it leads to.
#[test]
fn a_link_that_a_run_planted_leads_to_no_file() {
    each_user(|lab| {
        let agent = "[agent]\nkind = \"command\"\ncommand = [\"cat\"]\n";
        lab.make_file("person/.config/belljar/config.toml", agent);
        lab.make_file("outside/file", "LEAKED=yes\n");
        lab.make_file("outside/ops.toml", "[sandbox]\nenv = { LEAKED = \"yes\" }\n");
        let outside = lab.path("outside").display().to_string();
        let script =
            format!("ln -s {outside} mid; ln -s {outside}/file f; ln -s {outside}/ops.toml t.toml");
        lab.sh(&["-q"], &script).expect(0);
        let calls: [&[&str]; 6] = [
            &["-q", "--env-file", "f", "--", "env"],
            &["-q", "--env-file", "mid/file", "--", "env"],
            &["-q", "--manifest", "t.toml", "--", "env"],
            &["-q", "--manifest", "mid/ops.toml", "--workspace", ".", "--", "env"],
            &["--json", "--prompt-file", "f"],
            &["--json", "--prompt-file", "mid/file"],
        ];
        for words in calls {
            let done = lab.run(words).done();
            done.expect(125).says(&["link"]);
            assert!(!done.out().contains("LEAKED=yes"), "{words:?}: {done}");
        }
        // The control: the same link where no run ever worked.
        let fresh = lab.make_directory("fresh");
        for (target, name) in [("file", "f"), ("ops.toml", "t.toml")] {
            std::os::unix::fs::symlink(lab.path("outside").join(target), fresh.join(name)).unwrap();
        }
        let work = lab.work();
        for words in [["--env-file", "f"], ["--manifest", "t.toml"]] {
            let all = ["-q", "--workspace", work.to_str().unwrap()].into_iter().chain(words);
            let done = lab.run(all.chain(["--", "env"])).from(fresh.clone()).done();
            assert!(done.expect(0).out().contains("LEAKED=yes"), "{words:?}: {done}");
        }
    });
}

/// A tree in which an earlier run left a link to `secret/`, as `data`.
fn planted(lab: &Lab) -> PathBuf {
    lab.make_file("secret/file", "secret\n");
    let target = lab.path("secret").display().to_string();
    lab.sh(&["-q"], &format!("ln -s {target} data")).expect(0);
    lab.work()
}

fn mounted(lab: &Lab, tree: &Path) -> Done {
    let volume = format!("{}:/data", tree.join("data").display());
    let elsewhere = lab.make_directory("elsewhere");
    let words = ["-q", "--workspace", "none", "-v", &volume, "--", "cat", "/data/file"];
    lab.run(words).from(elsewhere).done()
}

#[track_caller]
fn is_not_followed(lab: &Lab, tree: &Path) {
    let done = mounted(lab, tree);
    done.expect(125).says(&["link"]);
    assert!(!done.out().contains("secret"), "{done}");
}

#[test]
fn a_tree_that_was_moved_is_the_same_tree() {
    each_user(|lab| {
        let tree = planted(lab);
        lab.sh(&["-q"], "echo HOST_SECRET > run.env").expect(0);
        is_not_followed(lab, &tree); // the control
        let moved = lab.path("moved/deeper");
        lab.make_directory("moved");
        fs::rename(&tree, &moved).unwrap();
        lab.make_directory("work");
        is_not_followed(lab, &moved);
        let env_file = moved.join("run.env");
        let words = ["-q", "--workspace", "none", "--env-file", env_file.to_str().unwrap()];
        let done =
            lab.run(words.into_iter().chain(["--", "env"])).env("HOST_SECRET", "hunter2").done();
        assert!(!done.expect(125).out().contains("hunter2"), "{done}");
    });
}

#[test]
fn a_tree_that_is_mounted_elsewhere_is_the_same_tree() {
    if !as_root() {
        return;
    }
    each_user(|lab| {
        let tree = planted(lab);
        let at = lab.make_directory("bound");
        let mount = Command::new("mount").arg("--bind").arg(&tree).arg(&at).status().unwrap();
        assert!(mount.success());
        let seen =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| is_not_followed(lab, &at)));
        let gone = || Command::new("umount").arg(&at).status().unwrap().success();
        assert!(until(std::time::Duration::from_secs(5), gone));
        if let Err(panic) = seen {
            std::panic::resume_unwind(panic);
        }
        // The control: the link itself is good, where the operator made it.
        std::os::unix::fs::symlink(lab.path("secret"), at.join("data")).unwrap();
        assert_eq!(mounted(lab, &at).expect(0).out(), "secret\n");
    });
}

/// What a run could change is not built either, wherever the tree is now.
#[test]
fn a_dockerfile_in_a_tree_that_was_moved_is_not_built_untrusted() {
    each_user(|lab| {
        let engine = FakeEngine::start(lab.path("engine.sock"), Behaviour::HasNoImage);
        fs::set_permissions(engine.socket(), fs::Permissions::from_mode(0o666)).unwrap();
        let build = |tree: &Path| {
            let words = ["image", "build", "-t", "x:1", "--backend", "docker"];
            lab.belljar(words).arg(tree).env("DOCKER_HOST", engine.address()).done()
        };
        let asked = || engine.requests().iter().any(|line| line.contains("/build"));
        lab.sh(&["-q"], "echo FROM scratch > Dockerfile").expect(0);
        let moved = lab.path("moved");
        fs::rename(lab.work(), &moved).unwrap();
        lab.make_directory("work");
        build(&moved).expect(125).says(&["belljar trust"]);
        assert!(!asked(), "{:?}", engine.requests());
        // The control: a Dockerfile of the operator's own is sent to the engine.
        lab.make_file("own/Dockerfile", "FROM scratch\n");
        let own = build(&lab.path("own"));
        assert!(asked(), "{own} {:?}", engine.requests());
    });
}

#[test]
fn a_tree_is_cleared_by_its_own_command_and_by_no_other() {
    each_user(|lab| {
        let tree = planted(lab);
        lab.make_file("work/belljar.toml", "[sandbox]\npass_env = [\"X\"]\n");
        // To trust the manifest in it is another thing.
        lab.belljar(["trust"]).done().expect(0);
        is_not_followed(lab, &tree);
        lab.belljar(["trust", "--forget"]).done().expect(0);
        lab.belljar(["trust", "--tree"]).arg(&tree).done().expect(0);
        assert_eq!(mounted(lab, &tree).expect(0).out(), "secret\n");
        lab.run(["-q", "--", "true"]).done().expect(125).says(&["belljar trust"]);
        // Files in it are believed again, until the next run there.
        lab.make_file("work/run.env", "HOST_SECRET\n");
        let given = || {
            let words = ["-q", "--no-config", "--env-file", "run.env", "--", "env"];
            lab.run(words).env("HOST_SECRET", "hunter2").done()
        };
        assert!(given().expect(0).out().contains("hunter2"));
        given().expect(125).says(&["belljar trust"]);
        is_not_followed(lab, &tree);
    });
}

/// An install prefix in which somebody once typed `belljar run -- true`.
#[test]
fn clearing_a_tree_clears_the_trees_in_it() {
    each_user(|lab| {
        lab.make_file("secret/file", "secret\n");
        let sub = lab.make_directory("work/a/b");
        let target = lab.path("secret").display().to_string();
        let script = format!("ln -s {target} data");
        lab.run(["-q", "--", "sh", "-c", &script]).from(sub.clone()).done().expect(0);
        is_not_followed(lab, &sub);
        lab.belljar(["trust", "--tree"]).arg(lab.path("elsewhere")).done();
        is_not_followed(lab, &sub); // another one's word is none for this tree
        lab.belljar(["trust", "--tree"]).arg(lab.work()).done().expect(0);
        assert_eq!(mounted(lab, &sub).expect(0).out(), "secret\n");
    });
}

#[test]
fn no_tree_is_cleared_while_a_run_can_write_there() {
    each_user(|lab| {
        let sub = lab.make_directory("work/sub");
        let pairs = [(lab.work(), lab.work()), (lab.work(), sub.clone()), (sub, lab.work())];
        for (tree, live_in) in pairs {
            let id = lab.run(["-q", "--keep", "-d"]).from(live_in.clone()).done().expect(0).out();
            let id = id.trim();
            let done = lab.belljar(["trust", "--tree"]).arg(&tree).done();
            done.expect(125).says(&[id]);
            lab.belljar(["stop", id]).done().expect(0);
            // The control: the whole of it, once nothing is live there.
            lab.belljar(["trust", "--tree"]).arg(lab.work()).done().expect(0);
        }
    });
}

#[test]
fn a_damaged_list_of_trees_is_no_empty_one() {
    each_user(|lab| {
        let tree = planted(lab);
        let list = lab.home().join("writable-trees");
        let sound = fs::read(&list).unwrap();
        assert!(!sound.is_empty());
        let owner = fs::metadata(&list).unwrap();
        let put = |content: &[u8]| {
            fs::write(&list, content).unwrap();
            assert_eq!(fs::metadata(&list).unwrap().uid(), owner.uid());
        };
        let mut damaged: Vec<Vec<u8>> = Vec::new();
        for place in (0..sound.len()).step_by(sound.len().div_ceil(16)) {
            let mut content = sound.clone();
            content[place] ^= 1;
            damaged.push(content);
        }
        for length in [0, 1, sound.len() / 2, sound.len() - 1] {
            damaged.push(sound[..length].to_vec());
        }
        damaged.push(vec![0; sound.len()]);
        for content in damaged {
            put(&content);
            let done = mounted(lab, &tree);
            let shown = String::from_utf8_lossy(&content).into_owned();
            assert!(!done.out().contains("secret"), "{shown:?}: {done}");
            assert!(
                done.code() == 125 && done.err().contains("writable-trees"),
                "{shown:?}: {done}"
            );
        }
        put(&sound);
        is_not_followed(lab, &tree); // the control: nothing else was wrong
        lab.sh(&["-q"], "true").expect(0);
    });
}
