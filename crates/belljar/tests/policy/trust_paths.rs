//! What an untrusted manifest can reach is judged by where its paths lead, not by how they are written.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use belljar_testkit::{Done, Lab, each_user};

/// How a path of the manifest's own tree leads out of it.
#[derive(Clone, Copy, Debug)]
enum Way {
    Absolute,
    Relative,
    /// A link in the middle of the path.
    Middle,
    /// A link to a link.
    Twice,
}

const WAYS: [Way; 4] = [Way::Absolute, Way::Relative, Way::Middle, Way::Twice];

/// Puts the link there; gives the path to write in the manifest, for what is `outside/<name>` on the host.
fn lead_out(lab: &Lab, way: Way, name: &str) -> String {
    let out = lab.path("outside");
    let link = |target: &Path, at: &str| link(lab, target, &lab.work().join(at));
    match way {
        Way::Absolute => link(&out.join(name), "w"),
        Way::Relative => link(&Path::new("../outside").join(name), "w"),
        Way::Middle => link(Path::new("../outside"), "mid"),
        Way::Twice => {
            link(&out, "first");
            link(&Path::new("first").join(name), "w");
        }
    }
    if matches!(way, Way::Middle) { format!("mid/{name}") } else { "w".to_owned() }
}

fn link(lab: &Lab, target: &Path, at: &Path) {
    symlink(target, at).unwrap();
    if let Some(user) = lab.actor.user() {
        lchown(at, Some(user.uid), Some(user.gid)).unwrap();
    }
}

/// A lab for each actor and each way, with a file and a tree outside.
fn each_way(test: impl Fn(&Lab, Way)) {
    each_user(|first| {
        for way in WAYS {
            let lab = Lab::new(first.actor);
            lab.make_file("outside/tree/file", "outside\n");
            test(&lab, way);
        }
    });
}

fn manifest(lab: &Lab, text: &str) -> PathBuf {
    lab.make_file("work/belljar.toml", text)
}

/// Refused, with the command that would change that, and where the path leads to.
#[track_caller]
fn refused_until_trusted(lab: &Lab, words: &[&str], real: &Path, key: &str) {
    let real = real.to_str().unwrap();
    let before = lab.runs();
    let done = lab.run(words).done();
    done.expect(125).says(&["not trusted", "belljar trust", key, real]);
    assert_eq!(lab.runs(), before, "a refused run left its directory");
    let shown = lab.belljar(["trust", "--show"]).done();
    shown.expect(0).says(&[key, real]);
    lab.run(words).done().expect(125); // it was only shown
    lab.belljar(["trust"]).done().expect(0).says(&[real]);
}

#[test]
fn a_link_as_the_workspace_is_judged_by_where_it_leads() {
    each_way(|lab, way| {
        for mode in ["rw", "ro", "overlay"] {
            let lab = Lab::new(lab.actor);
            lab.make_file("outside/tree/file", "outside\n");
            let path = lead_out(&lab, way, "tree");
            manifest(
                &lab,
                &format!("[sandbox]\nworkspace = {{ path = \"{path}\", mode = \"{mode}\" }}\n"),
            );
            let script = "cat file; echo changed > file";
            let words = ["-q", "--", "sh", "-c", script];
            refused_until_trusted(
                &lab,
                &words,
                &lab.path("outside/tree"),
                "sandbox.workspace.path",
            );
            let file = lab.path("outside/tree/file");
            assert_eq!(fs::read_to_string(&file).unwrap(), "outside\n", "{way:?} {mode}");
            // After trust it is what it was trusted as.
            let done = lab.run(words).done();
            assert_eq!(done.out(), "outside\n", "{way:?} {mode}: {done}");
            let after = if mode == "rw" { "changed\n" } else { "outside\n" };
            assert_eq!(fs::read_to_string(&file).unwrap(), after, "{way:?} {mode}");
        }
    });
}

#[test]
fn a_link_as_the_source_of_a_mount_is_judged_by_where_it_leads() {
    each_way(|lab, way| {
        for mode in ["ro", "rw", "overlay"] {
            let lab = Lab::new(lab.actor);
            lab.make_file("outside/tree/file", "outside\n");
            let source = lead_out(&lab, way, "tree");
            manifest(
                &lab,
                &format!(
                    "[sandbox]\nworkspace = {{ mode = \"ro\" }}\n\
                     mounts = [{{ source = \"{source}\", target = \"/data\", mode = \"{mode}\" }}]\n"
                ),
            );
            // Nothing but trust may be missing for it.
            let words = ["-q", "--waive", "fs.sockets=a test", "--", "cat", "/data/file"];
            refused_until_trusted(&lab, &words, &lab.path("outside/tree"), "sandbox.mounts[0]");
            let done = lab.run(words).done();
            assert_eq!(done.out(), "outside\n", "{way:?} {mode}: {done}");
        }
    });
}

#[test]
fn a_link_as_the_root_directory_is_judged_by_where_it_leads() {
    each_way(|lab, way| {
        lab.make_directory("outside/tree/usr");
        let path = lead_out(lab, way, "tree");
        let text = format!("[sandbox]\nworkspace = {{ mode = \"ro\" }}\nrootfs = \"{path}\"\n");
        manifest(lab, &text);
        let words = ["-q", "--dry-run", "--", "true"];
        let real = lab.path("outside/tree");
        refused_until_trusted(lab, &words, &real, "sandbox.rootfs");
        let done = lab.run(words).done();
        assert!(!done.err().contains("not trusted"), "{way:?}: {done}");
    });
}

/// Tools need trust wherever they are; what is shown for it is where they lead.
#[test]
fn a_link_as_a_tool_is_shown_with_where_it_leads() {
    each_way(|lab, way| {
        lab.make_program("outside/tree/bin/hello", "#!/bin/sh\necho hello\n");
        let path = lead_out(lab, way, "tree");
        manifest(
            lab,
            &format!("[sandbox]\nworkspace = {{ mode = \"ro\" }}\ntools = [\"{path}\"]\n"),
        );
        let words = ["-q", "--dry-run", "--", "true"];
        refused_until_trusted(lab, &words, &lab.path("outside/tree"), "sandbox.tools[0]");
        lab.run(words).done().expect(0);
    });
}

/// A `..` after a link is not the directory above the link's own place for the kernel.
#[test]
fn a_step_up_after_a_link_reaches_nothing_outside() {
    each_user(|lab| {
        lab.make_file("outside/tree/file", "outside\n");
        lab.make_file("outside/secret/file", "secret\n");
        lab.make_file("work/secret/file", "inside\n");
        link(lab, &lab.path("outside/tree"), &lab.work().join("w"));
        for setting in [
            "workspace = { path = \"w/../secret\", mode = \"ro\", target = \"/data\" }",
            "workspace = { mode = \"ro\" }\nmounts = [{ source = \"w/../secret\", target = \"/data\" }]",
        ] {
            manifest(lab, &format!("[sandbox]\n{setting}\n"));
            let done = lab.run(["-q", "--", "cat", "/data/file"]).done();
            assert!(done.out() == "inside\n" || done.code() == 125, "{setting}: {done}");
            assert!(!done.out().contains("secret"), "{setting}: {done}");
        }
        // The control: without the link the same path is inside, and needs nothing.
        fs::remove_file(lab.work().join("w")).unwrap();
        lab.make_directory("work/w");
        let done = lab.run(["-q", "--", "cat", "/data/file"]).done();
        assert_eq!(done.expect(0).out(), "inside\n");
    });
}

/// The controls of all of the above: what really lies in the manifest's own tree needs no trust.
#[test]
fn real_directories_in_the_manifests_own_tree_need_no_trust() {
    each_user(|lab| {
        lab.make_file("work/w/file", "inside\n");
        lab.make_file("work/mid/tree/file", "inside\n");
        for path in ["w", "./w", "mid/tree", "mid/../w"] {
            for mode in ["rw", "ro", "overlay"] {
                let text =
                    format!("[sandbox]\nworkspace = {{ path = \"{path}\", mode = \"{mode}\" }}\n");
                manifest(lab, &text);
                let done = lab.run(["-q", "--", "cat", "file"]).done();
                assert_eq!(done.expect(0).out(), "inside\n", "{path} {mode}");
            }
            manifest(
                lab,
                &format!(
                    "[sandbox]\nworkspace = {{ mode = \"ro\" }}\n\
                     mounts = [{{ source = \"{path}\", target = \"/data\" }}]\n"
                ),
            );
            let done = lab.run(["-q", "--", "cat", "/data/file"]).done();
            assert_eq!(done.expect(0).out(), "inside\n", "{path}");
            let shown = lab.belljar(["trust", "--show"]).done();
            assert!(!shown.expect(0).err().contains("asks for:"), "{path}: {shown}");
        }
    });
}

/// Whoever owns the manifest: it is its tree that counts, not the user who is asked to believe it.
#[test]
fn a_link_in_another_users_tree_leads_root_nowhere() {
    let Some(user) = belljar_testkit::test_user() else { return };
    let lab = Lab::me();
    lab.make_file("outside/tree/file", "outside\n");
    let path = lead_out(&lab, Way::Absolute, "tree");
    let text = format!("[sandbox]\nworkspace = {{ path = \"{path}\" }}\n");
    let file = manifest(&lab, &text);
    for owned in [file, lab.work().join("w"), lab.work()] {
        lchown(owned, Some(user.uid), Some(user.gid)).unwrap();
    }
    let words = ["-q", "--", "sh", "-c", "echo x > file"];
    refused_until_trusted(&lab, &words, &lab.path("outside/tree"), "sandbox.workspace.path");
    assert_eq!(fs::read_to_string(lab.path("outside/tree/file")).unwrap(), "outside\n");
}

/// Content of files outside the tree does not come in through a link either.
#[test]
fn a_link_as_an_env_file_or_prompt_file_brings_nothing_in() {
    each_way(|lab, way| {
        lab.make_file("outside/env", "LEAKED=yes\n");
        let path = lead_out(lab, way, "env");
        manifest(
            lab,
            &format!("[sandbox]\nworkspace = {{ mode = \"ro\" }}\nenv_file = [\"{path}\"]\n"),
        );
        not_believed(lab, &lab.run(["-q", "--", "env"]).done());
        let shown = lab.belljar(["trust", "--show"]).done();
        let real = lab.path("outside/env");
        // It is named with where it leads to, or refused as a link.
        let told = shown.err().contains(real.to_str().unwrap()) || shown.err().contains("link");
        assert!(told, "{way:?}: {shown}");
        manifest(
            lab,
            &format!(
                "[agent]\nkind = \"command\"\ncommand = [\"cat\"]\nprompt_file = \"{path}\"\n"
            ),
        );
        not_believed(lab, &lab.run(["-q"]).done());
    });
    // The control: a prompt in the manifest's own tree, which needs no trust.
    each_user(|lab| {
        lab.make_file("work/prompts/night", "LEAKED=no\n");
        let text =
            "[agent]\nkind = \"command\"\ncommand = [\"cat\"]\nprompt_file = \"prompts/night\"\n";
        manifest(lab, text);
        let done = lab.run(["--json"]).done();
        assert!(done.expect(0).out().contains("LEAKED=no"), "{done}");
    });
}

#[track_caller]
fn not_believed(lab: &Lab, done: &Done) {
    assert!(!done.out().contains("LEAKED"), "as {:?}: {done}", lab.actor);
    done.expect(125);
    let told = done.err().contains("belljar trust") || done.err().contains("symbolic link");
    assert!(told, "as {:?}: {done}", lab.actor);
}

/// An operator's own mount, and a link in the tree that leads to it: compared, not followed.
#[test]
fn a_link_to_what_the_operator_mounted_still_works() {
    each_user(|lab| {
        // Not below /tmp, which is a file system of the sandbox's own.
        let Ok(place) = tempfile::tempdir_in("/srv") else {
            assert!(!belljar_testkit::as_root(), "/srv cannot be written to");
            return;
        };
        let data = place.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::write(data.join("file"), "data\n").unwrap();
        for path in [place.path(), &data] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        link(lab, &data, &lab.work().join("data"));
        manifest(lab, "[limits]\npids = 100\n");
        let volume = format!("{}:/data", data.display());
        let done = lab.run(["-q", "-v", &volume, "--", "cat", "data/file"]).done();
        assert_eq!(done.expect(0).out(), "data\n");
        // The control: without the mount the link leads nowhere inside.
        let done = lab.run(["-q", "--", "cat", "data/file"]).done();
        assert!(done.code() != 0 && done.out().is_empty(), "{done}");
    });
}
