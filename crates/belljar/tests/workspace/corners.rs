//! Trees with second names, other owners and closed directories: a run works on them, or is refused with the reason,
//! and nothing that executes on the host later changes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;

use belljar_testkit::{Lab, each_user, test_user};

/// A control file is read-only inside under each of its names, or the run is refused.
#[test]
fn a_second_name_of_a_control_file_is_no_way_to_change_it() {
    each_user(|lab| {
        let control = lab.make_file("work/.envrc", "before\n");
        let deep = lab.make_directory("work/deep");
        fs::hard_link(&control, lab.work().join("other")).unwrap();
        fs::hard_link(&control, deep.join("second")).unwrap();
        let script = "echo evil > other; echo evil > deep/second; echo evil >> .envrc; true";
        let done = lab.sh(&["--no-config"], script);
        assert_eq!(fs::read_to_string(&control).unwrap(), "before\n", "as {:?}: {done}", lab.actor);
        if done.code() != 0 {
            done.expect(125).says(&[".envrc"]);
        }
        // The controls: one name, and a plain file with two.
        fs::remove_file(lab.work().join("other")).unwrap();
        fs::remove_file(deep.join("second")).unwrap();
        let plain = lab.make_file("work/plain", "before\n");
        fs::hard_link(&plain, lab.work().join("other")).unwrap();
        lab.sh(&["-q", "--no-config"], "echo after > other").expect(0);
        assert_eq!(fs::read_to_string(&plain).unwrap(), "after\n");
    });
}

#[test]
fn a_second_name_of_a_hook_is_no_way_to_change_it() {
    each_user(|lab| {
        lab.make_file("work/.git/HEAD", "ref: refs/heads/main\n");
        lab.make_file("work/.git/config", "[core]\n");
        lab.make_directory("work/.git/objects");
        lab.make_directory("work/.git/refs");
        let hook = lab.make_file("work/.git/hooks/pre-commit", "before\n");
        fs::hard_link(&hook, lab.work().join("script")).unwrap();
        let done = lab.sh(&["-q", "--no-config"], "echo evil > script; true");
        assert_eq!(fs::read_to_string(&hook).unwrap(), "before\n", "as {:?}: {done}", lab.actor);
    });
}

/// Somebody else's socket, where the user cannot even look, is no reason to refuse.
#[test]
fn a_socket_in_a_closed_directory_stops_no_run() {
    let Some(_) = test_user() else { return };
    each_user(|lab| {
        let closed = lab.work().join("closed");
        fs::create_dir(&closed).unwrap(); // the tests' own, not the user's
        let _listener = UnixListener::bind(closed.join("socket")).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        lab.sh(&["-q", "--no-config"], "echo x > file").expect(0);
        assert_eq!(fs::read_to_string(lab.work().join("file")).unwrap(), "x\n");
    });
}

/// Root's overlay over a tree of an ordinary user.
#[test]
fn an_overlay_over_another_owners_tree_works_for_root() {
    let Some(user) = test_user() else { return };
    let lab = Lab::me();
    let file = lab.make_file("work/sub/file", "before\n");
    for path in [lab.work(), lab.work().join("sub"), file.clone()] {
        chown(path, Some(user.uid), Some(user.gid)).unwrap();
    }
    let words = ["--no-config", "--name", "over", "--workspace", ".:overlay"];
    let script = "cat sub/file; echo after > sub/file; echo x > new";
    let done = lab.run(words.iter().chain(&["--", "sh", "-c", script])).done();
    assert_eq!(done.expect(0).out(), "before\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), "before\n");
    lab.belljar(["diff", "--name-only", "over"]).done().expect(0).prints(&["sub/file", "new"]);
    // The control: a tree of root's own.
    let own = Lab::me();
    own.make_file("work/file", "before\n");
    own.run(["-q", "--no-config", "--workspace", ".:overlay", "--", "cat", "file"])
        .done()
        .expect(0);
}

/// A copy of a large tree is announced with its size, and bounded.
#[test]
fn a_tree_that_has_to_be_copied_is_announced_with_its_size() {
    let Some(_) = test_user() else { return };
    each_user(|lab| {
        if lab.actor.user().is_none() {
            return; // root layers every tree
        }
        let tree = lab.path("theirs");
        fs::create_dir(&tree).unwrap(); // the tests' own, not the user's
        fs::write(tree.join("large"), vec![7; 5 << 20]).unwrap();
        fs::set_permissions(&tree, fs::Permissions::from_mode(0o755)).unwrap();
        let workspace = format!("{}:overlay", tree.display());
        let options = ["--no-config", "--workspace", &workspace];
        let done = lab.sh(&options, "wc -c < large");
        assert_eq!(done.expect(0).out().trim(), (5 << 20).to_string());
        let size = ["5 MiB", "6 MB", "5242880"];
        let told = size.iter().any(|size| done.err().contains(size));
        assert!(done.err().contains("cop") && told, "nothing tells of the copy: {done}");
        // More than the run may write is not copied at all.
        let bounded = [&options[..], &["--disk", "1m", "--waive", "fs.quota=a test"]].concat();
        let done = lab.sh(&bounded, "true");
        done.expect(125).says(&["cop"]);
        lab.assert_nothing_lives(&lab.runs());
    });
}
