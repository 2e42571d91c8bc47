//! Ways around trust that were tried: control files by the path of a mount, aliases of written trees, files that a run's
//! work was brought to by the operator, programs that a helper of the host would load.

use std::fs;
use std::process::Command;

use belljar_testkit::{Lab, as_root, each_user};

const NO_SANDBOX: &str = "[sandbox]\\nbackend=\"host\"\\n[policy.waive]\\nall=\"x\"\\n";

fn untrusted(lab: &Lab, manifest: &str, script: &str) {
    lab.make_file("work/belljar.toml", manifest);
    lab.sh(&["-q"], script).expect(125).says(&["belljar trust"]);
}

#[test]
fn a_control_directory_is_not_handed_over_as_a_workspace_or_mount() {
    each_user(|lab| {
        for name in ["HEAD", "config"] {
            lab.make_file(format!("work/.git/{name}"), "");
        }
        lab.make_file("work/.git/hooks/pre-commit", "before\n");
        lab.make_directory("work/.git/objects");
        lab.make_directory("work/.git/refs");
        lab.make_file("work/bare/HEAD", "");
        lab.make_file("work/bare/hooks/update", "before\n");
        lab.make_directory("work/bare/objects");
        lab.make_directory("work/bare/refs");
        lab.make_file("work/.vscode/tasks.json", "{}\n");
        for path in [".git/hooks", "bare/hooks", ".vscode"] {
            let workspace = format!("[sandbox]\nworkspace = {{ path = '{path}' }}\n");
            untrusted(lab, &workspace, "echo evil > x");
            let mount = format!(
                "[sandbox]\nmounts = [{{ source = '{path}', target = '/g', mode = 'rw' }}]\n"
            );
            untrusted(lab, &mount, "echo evil > /g/x");
            assert!(!lab.work().join(path).join("x").exists(), "{path}");
        }
        // The control: an ordinary directory needs no trust.
        lab.make_directory("work/src");
        lab.make_file("work/belljar.toml", "[sandbox]\nworkspace = { path = 'src' }\n");
        lab.sh(&["-q"], "echo fine > x").expect(0);
        assert!(lab.work().join("src/x").exists());
    });
}

#[test]
fn a_second_name_in_a_nested_mount_is_refused() {
    each_user(|lab| {
        lab.make_file("work/.envrc", "before\n");
        lab.make_directory("work/sub");
        fs::hard_link(lab.work().join(".envrc"), lab.work().join("sub/x")).unwrap();
        let mount = format!("{}:/s:rw", lab.work().join("sub").display());
        let done = lab.sh(&["-q", "--no-config", "-v", &mount], "echo evil > /s/x");
        assert_ne!(done.code(), 0, "{done}");
        assert_eq!(fs::read_to_string(lab.work().join(".envrc")).unwrap(), "before\n");
        // The control: without the second name it starts.
        fs::remove_file(lab.work().join("sub/x")).unwrap();
        lab.sh(&["-q", "--no-config", "-v", &mount], "echo fine > /s/x").expect(0);
    });
}

#[test]
fn what_was_applied_or_copied_out_is_a_runs_work() {
    each_user(|lab| {
        let script = format!("printf '{NO_SANDBOX}' > ops.toml");
        let overlay = ["-q", "--no-config", "--name", "ov", "--workspace", ".:overlay"];
        lab.sh(&overlay, &script).expect(0);
        lab.belljar(["apply", "--yes", "ov"]).done().expect(0);
        let words = ["-q", "--manifest", "ops.toml", "--", "true"];
        lab.run(words).done().expect(125).says(&["belljar trust"]);

        let keep = ["-q", "--no-config", "-d", "--keep", "--workspace", "none", "--name", "box"];
        lab.run(keep).done().expect(0);
        let script = format!("printf '{NO_SANDBOX}' > ~/out.toml");
        lab.belljar(["exec", "box", "--", "sh", "-c", &script]).done().expect(0);
        let there = lab.make_directory("there");
        let from = "box:/home/agent/out.toml";
        lab.belljar(["cp", "-q", from, there.to_str().unwrap()]).done().expect(0);
        let file = there.join("out.toml");
        let words = ["-q", "--manifest", file.to_str().unwrap(), "--", "true"];
        lab.run(words).done().expect(125).says(&["belljar trust"]);
        lab.belljar(["stop", "-t", "0", "box"]).done().expect(0);
        // The control: the same words in a file of the operator's own.
        let own = lab.make_file("own/ops.toml", "[limits]\ntime = '1h'\n");
        let words = ["-q", "--manifest", own.to_str().unwrap(), "--", "true"];
        lab.run(words).done().expect(0);
    });
}

/// A mount of a part of a tree is that part, whatever it is called.
#[test]
fn a_part_of_a_written_tree_that_is_mounted_elsewhere_is_known() {
    if !as_root() {
        eprintln!("NOT CHECKED: only root can mount");
        return;
    }
    let lab = Lab::me();
    let script = format!("mkdir -p sub; printf '{NO_SANDBOX}' > sub/o.toml; ln -s / sub/link");
    lab.sh(&["-q", "--no-config"], &script).expect(0);
    let mounted = lab.make_directory("mounted");
    let mount = |words: &[&str]| {
        let done = Command::new(words[0]).args(&words[1..]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let (from, to) = (lab.work().join("sub"), mounted.to_str().unwrap().to_owned());
    mount(&["mount", "--bind", from.to_str().unwrap(), &to]);
    let manifest = mounted.join("o.toml");
    let words = ["-q", "--manifest", manifest.to_str().unwrap(), "--", "true"];
    let refused = lab.run(words).done();
    let link = format!("{to}/link:/l");
    let followed = lab.run(["-q", "--no-config", "-v", &link, "--", "true"]).done();
    // A live run on the tree cannot be forgotten through an alias of it.
    let live = lab.run(["-q", "--no-config", "-d", "--", "sleep", "1000"]).done().expect(0).out();
    mount(&["umount", &to]);
    mount(&["mount", "--bind", lab.work().to_str().unwrap(), &to]);
    let cleared = lab.belljar(["trust", "--tree", &to]).done();
    mount(&["umount", &to]);
    lab.belljar(["stop", "-t", "0", live.trim()]).done().expect(0);
    refused.expect(125).says(&["belljar trust"]);
    followed.expect(125).says(&["is a link"]);
    cleared.expect(125).says(&["is live"]);
}

#[test]
fn a_nearer_manifest_does_not_replace_the_operators_own() {
    each_user(|lab| {
        lab.make_file("work/belljar.toml", "[sandbox]\nworkspace = { mode = 'ro' }\n");
        lab.make_file("work/sub/belljar.toml", "");
        let sub = lab.work().join("sub");
        let words = ["run", "-q", "--", "true"];
        lab.belljar(words).from(sub.clone()).done().expect(125).says(&["is used instead of"]);
        lab.belljar(["trust", sub.to_str().unwrap()]).done().expect(0);
        lab.belljar(words).from(sub.clone()).done().expect(0);
    });
}

#[test]
fn a_secrets_command_loads_nothing_from_a_written_tree() {
    each_user(|lab| {
        lab.make_file(
            "work/belljar.toml",
            "[network]\nallow = ['a.example']\n[[secret]]\nenv = 'KEY'\nhost = 'a.example'\nbearer = true\n\
             command = ['sh', '-c', 'helper || echo value']\n",
        );
        lab.belljar(["trust", "."]).done().expect(0);
        lab.sh(&["-q"], "printf '#!/bin/sh\\ntouch executed\\n' > helper; chmod +x helper")
            .expect(0);
        for path in [".", lab.work().to_str().unwrap()] {
            let path = format!("{path}:/usr/bin:/bin");
            lab.run(["-q", "--", "true"]).env("PATH", &path).done().expect(0);
        }
        assert!(!lab.work().join("executed").exists(), "a planted program ran on the host");
    });
}
