//! Trees of the host that are not as plain as a fresh directory: other owners, sockets out of reach, files with
//! several names.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;

use belljar_testkit::{Actor, Lab, as_root, each_actor, test_user};

#[test]
fn another_name_of_a_control_file_is_read_only_too() {
    each_actor(|lab| {
        lab.make_file("work/.envrc", "as it was\n");
        lab.make_file("work/.git/config", "as it was\n");
        lab.make_file("work/.git/hooks/pre-commit", "as it was\n");
        lab.make_file("work/plain", "as it was\n");
        lab.make_directory("work/scripts/deep");
        for (file, name) in [
            (".envrc", "scripts/env"),
            (".git/config", "scripts/deep/config"),
            (".git/hooks/pre-commit", "scripts/hook"),
            ("plain", "plain-too"),
        ] {
            fs::hard_link(lab.work().join(file), lab.work().join(name)).unwrap();
        }
        let script = "for f in scripts/env scripts/deep/config scripts/hook .envrc plain-too; do \
             { echo changed >> $f; } 2>/dev/null && echo $f; done; \
             mv scripts/hook x 2>/dev/null && echo moved; rm -f scripts/env 2>/dev/null && echo removed; \
             mv scripts x 2>/dev/null && echo moved all; true";
        let done = lab.sh(&[], script);
        done.expect(0);
        assert_eq!(done.out(), "plain-too\n", "{done}");
        for file in [".envrc", ".git/config", ".git/hooks/pre-commit"] {
            assert_eq!(fs::read_to_string(lab.work().join(file)).unwrap(), "as it was\n", "{file}");
        }
    });
}

#[test]
fn a_name_in_another_writable_tree_stops_the_launch_and_says_which() {
    each_actor(|lab| {
        lab.make_file("work/.envrc", "");
        lab.make_directory("other");
        fs::hard_link(lab.work().join(".envrc"), lab.path("other/name")).unwrap();
        let volume = format!("{}:/other:rw", lab.path("other").display());
        let done = lab.sh(&["-v", &volume], "true");
        done.expect(125);
        done.says(&[".envrc", "2 hard links", "overlay"]);
        // The control: not writable, it is no way to the file.
        let volume = format!("{}:/other:ro", lab.path("other").display());
        lab.sh(&["-v", &volume], "true").expect(0);
    });
}

/// Most hosts share all their mounts: what is mounted on a clone of one appears on the host too, and the reverse.
#[test]
fn no_mount_propagates_between_the_host_and_a_sandbox() {
    if !as_root() {
        return;
    }
    let lab = Lab::me();
    lab.make_file("work/.git/config", "");
    lab.make_file("work/.git/hooks/pre-commit", "");
    lab.make_directory("work/later");
    let inside = "touch started; while ! test -e go; do sleep 0.05; done; ls later; \
                  (: >> .git/config) 2>/dev/null || echo protected; \
                  grep -e shared: -e master: /proc/self/mountinfo || echo private";
    let outside = "\"$@\" & while ! test -e started; do sleep 0.05; done; \
                   mount -t tmpfs none later; touch later/of-the-host go; wait $!; code=$?; \
                   grep -q shared: /proc/self/mountinfo && echo shared by the host; \
                   grep -F \"$PWD\" /proc/self/mountinfo | cut -d' ' -f5; exit $code";
    let done = lab
        .run(["--", "sh", "-c", inside])
        .through(&["unshare", "--mount", "--propagation", "shared", "sh", "-c", outside, "sh"])
        .done();
    done.expect(0);
    let mounted = lab.work().join("later");
    let expected = format!("protected\nprivate\nshared by the host\n{}\n", mounted.display());
    assert_eq!(done.out(), expected, "{done}");
}

/// A directory that the run cannot enter holds nothing that it could reach.
#[test]
fn a_socket_in_a_directory_out_of_reach_stops_no_run() {
    if !as_root() {
        return;
    }
    each_actor(|lab| {
        let closed = lab.make_directory("work/closed");
        let open = lab.make_directory("work/open");
        let _out_of_reach = UnixListener::bind(closed.join("socket")).unwrap();
        let _reached = UnixListener::bind(open.join("socket")).unwrap();
        let gone = UnixListener::bind(open.join("gone")).unwrap();
        fs::remove_file(open.join("gone")).unwrap();
        chown(&closed, Some(4321), Some(4321)).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let script = "test -c open/socket && echo covered; ls closed 2>/dev/null || echo closed";
        let done = lab.sh(&[], script);
        done.expect(0);
        assert_eq!(done.out(), "covered\nclosed\n", "{done}");
        // The group is nobody's inside, and the owner can enter all the same.
        chown(&open, None, Some(4321)).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
        let done = lab.sh(&[], script);
        done.expect(0);
        assert_eq!(done.out(), "covered\nclosed\n", "{done}");
        drop(gone);
    });
}

#[test]
fn root_has_an_overlay_over_any_owners_tree() {
    if !as_root() {
        return;
    }
    let lab = Lab::new(Actor::Me);
    for owner in [1234, 0] {
        let tree = lab.make_directory(format!("tree-{owner}"));
        fs::create_dir(tree.join("below")).unwrap();
        fs::write(tree.join("below/file"), "as it was\n").unwrap();
        for path in [tree.clone(), tree.join("below"), tree.join("below/file")] {
            chown(path, Some(owner), Some(owner)).unwrap();
        }
        let workspace = format!("{}:overlay", tree.display());
        let script = "echo more >> below/file; mkdir made; echo new > made/file; mv below moved; \
             cat moved/file made/file; stat -c %U moved/file made/file";
        let done = lab.sh(&["--name", &format!("o{owner}"), "--workspace", &workspace], script);
        done.expect(0);
        assert_eq!(done.out(), "as it was\nmore\nnew\nagent\nagent\n", "{done}");
        assert_eq!(fs::read_to_string(tree.join("below/file")).unwrap(), "as it was\n");
        assert!(!tree.join("made").exists());
        // What is applied belongs to the tree's owner.
        lab.belljar(["apply", "--yes", &format!("o{owner}")]).done().expect(0);
        let made = fs::metadata(tree.join("made/file")).unwrap();
        assert_eq!((made.uid(), made.gid()), (owner, owner));
    }
}

#[test]
fn an_overlay_that_is_a_copy_says_its_size_and_has_a_limit() {
    let Some(user) = test_user() else { return };
    let lab = Lab::new(Actor::User);
    let tree = lab.make_directory("theirs");
    fs::write(tree.join("large"), vec![7; 3 << 20]).unwrap();
    chown(&tree, Some(4321), Some(user.gid)).unwrap();
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o755)).unwrap();
    let workspace = format!("{}:overlay", tree.display());
    let done = lab.sh(&["--workspace", &workspace], "ls");
    done.expect(0);
    assert_eq!(done.out(), "large\n");
    done.says(&["has to be copied for the overlay", "4 MB", "1 entries"]);
    let options = ["--workspace", &workspace, "--disk", "1m", "--waive", "fs.quota=a test"];
    let done = lab.sh(&options, "ls");
    done.expect(125);
    done.says(&["copied", "limits.disk"]);
}
