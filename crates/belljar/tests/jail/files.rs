//! What of the host is there, how, and under whose name.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use belljar_testkit::{
    Input, Lab, as_root, each_user, host_uids, marker, processes_with, test_user,
};

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into())
        .collect();
    names.sort();
    names
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

#[test]
fn the_workspace_is_writable_and_files_keep_its_owner() {
    each_user(|lab| {
        lab.make_file("work/there", "before");
        let script = "cat there; echo changed > there; echo new > made; mkdir dir; ln -s made link; mv there moved";
        let done = lab.sh(&[], script);
        assert_eq!(done.expect(0).out(), "before");
        let expected = owner(&lab.work());
        for name in ["moved", "made", "dir", "link"] {
            assert_eq!(owner(&lab.work().join(name)), expected, "{name} as {:?}", lab.actor);
        }
        assert_eq!(fs::read_to_string(lab.work().join("moved")).unwrap(), "changed\n");
        assert_eq!(
            names_in(&lab.work()),
            ["dir", "link", "made", "moved"],
            "nothing else is made there"
        );
    });
}

#[test]
fn a_tree_of_somebody_else_stays_somebody_elses() {
    let Some(user) = test_user() else { return };
    let lab = Lab::me();
    let tree = lab.make_directory("theirs");
    chown(&tree, Some(user.uid), Some(user.gid)).unwrap();
    let place = format!("{}:rw", tree.display());
    let done = lab
        .run(["--workspace", &place, "--", "sh", "-c", "echo x > made && mkdir dir && id -u"])
        .done();
    assert_eq!(done.expect(0).out(), "1000\n", "inside it is the run's own user");
    assert_eq!(owner(&tree.join("made")), (user.uid, user.gid));
    assert_eq!(owner(&tree.join("dir")), (user.uid, user.gid));
}

#[test]
fn the_command_is_never_the_hosts_root_and_no_two_runs_are_the_same() {
    each_user(|lab| {
        let (first, second) = (marker(), marker());
        let script = |marker: &str| format!("echo ready; read end # {marker}");
        let start = |marker: &str| {
            let live = lab.run(["--", "sh", "-c", &script(marker)]).input(Input::Open).spawn();
            live.wait_for_output("ready");
            live
        };
        let (one, two) = (start(&first), start(&second));
        let uids_inside = |marker: &str, launcher: u32| -> Vec<u32> {
            let inside: Vec<u32> =
                processes_with(marker).into_iter().filter(|pid| *pid != launcher).collect();
            assert_eq!(inside.len(), 1, "one shell: {inside:?}");
            host_uids(inside[0])
        };
        let a = uids_inside(&first, one.pid());
        let b = uids_inside(&second, two.pid());
        assert_eq!(a.len(), 4);
        assert!(a.iter().chain(&b).all(|uid| *uid != 0), "uid 0 of the host: {a:?} {b:?}");
        if lab.actor.is_root() {
            assert_ne!(a, b, "two live runs share a uid");
        } else {
            assert!(
                a.iter().all(|uid| *uid == owner(&lab.work()).0),
                "an ordinary user's own: {a:?}"
            );
        }
    });
}

#[test]
fn a_volume_is_read_only_unless_rw_is_said() {
    each_user(|lab| {
        let data = lab.make_file("data/file", "content\n");
        let directory = data.parent().unwrap().display().to_string();
        let script =
            "cat /data/file; echo x > /data/file; echo x > /data/new; rm /data/file; ls /data";
        for mount in [format!("{directory}:/data"), format!("{directory}:/data:ro")] {
            let done = lab.sh(&["-v", &mount], script);
            assert_eq!(done.expect(0).out(), "content\nfile\n");
            assert!(done.err().contains("ead-only file system"), "{done}");
        }
        assert_eq!(fs::read_to_string(&data).unwrap(), "content\n");
        // The control.
        let mount = format!("{directory}:/data:rw");
        let done = lab.sh(&["-v", &mount], "echo more >> /data/file; echo x > /data/new; ls /data");
        assert_eq!(done.expect(0).out(), "file\nnew\n");
        assert_eq!(fs::read_to_string(&data).unwrap(), "content\nmore\n");
        assert_eq!(owner(&lab.path("data/new")), owner(&lab.path("data")));
    });
}

#[test]
fn the_long_spelling_of_a_mount_means_the_same() {
    each_user(|lab| {
        let file = lab.make_file("data/file", "content\n");
        let directory = file.parent().unwrap().display().to_string();
        let read_only = format!("type=bind,src={directory},dst=/data");
        let done = lab.sh(&["--mount", &read_only], "cat /data/file; touch /data/new");
        assert_eq!(done.out(), "content\n");
        assert_ne!(done.code(), 0);
        lab.sh(&["--mount", &format!("{read_only},rw")], "touch /data/new").expect(0);
        let tmpfs = "type=tmpfs,dst=/scratch,size=1m";
        let fill = "dd if=/dev/zero of=/scratch/x bs=64k count=100 2>/dev/null; wc -c < /scratch/x";
        let size: u64 = lab.sh(&["--mount", tmpfs], fill).out().trim().parse().unwrap();
        assert!(size > 0 && size <= 1 << 20, "{size} bytes in a tmpfs of 1 MiB");
    });
}

#[test]
fn a_tmpfs_is_writable_sized_and_gone_afterwards() {
    each_user(|lab| {
        let script = "echo kept > /scratch/file && cat /scratch/file && \
             ! dd if=/dev/zero of=/scratch/big bs=64k count=100 2>/dev/null";
        let done = lab.sh(&["--tmpfs", "/scratch:size=2m"], script);
        assert_eq!(done.expect(0).out(), "kept\n");
        assert_eq!(lab.sh(&["--tmpfs", "/scratch"], "ls /scratch").expect(0).out(), "");
        assert!(!Path::new("/scratch/file").exists());
    });
}

#[test]
fn a_single_file_can_be_given() {
    each_user(|lab| {
        let file = lab.make_file("data/one", "1\n");
        lab.make_file("data/other", "2\n");
        let mount = format!("{}:/given/one", file.display());
        let done = lab.sh(&["-v", &mount], "cat /given/one; ls /given; echo x > /given/one");
        assert_eq!(done.out(), "1\none\n");
        assert_ne!(done.code(), 0, "a file is read-only unless rw is said");
        let mount = format!("{}:/given/one:rw", file.display());
        lab.sh(&["-v", &mount], "echo changed > /given/one").expect(0);
        assert_eq!(fs::read_to_string(&file).unwrap(), "changed\n");
    });
}

#[test]
fn mounts_below_a_read_only_tree_are_read_only_too() {
    if !as_root() {
        return; // only root can mount something to begin with
    }
    let lab = Lab::me();
    lab.make_directory("tree/sub");
    let script =
        "mount -t tmpfs none ../tree/sub && echo inner > ../tree/sub/file && exec \"$0\" \"$@\"";
    let wrapper = ["unshare", "-m", "sh", "-c", script];
    let tree = lab.path("tree").display().to_string();
    let inside =
        "cat /tree/sub/file; echo x > /tree/sub/file; echo x > /tree/sub/new; ls /tree/sub";
    let read_only = format!("{tree}:/tree");
    let done = lab.run(["-v", &read_only, "--", "sh", "-c", inside]).through(&wrapper).done();
    assert_eq!(done.expect(0).out(), "inner\nfile\n", "{done}");
    assert_eq!(done.err().matches("ead-only file system").count(), 2, "{done}");
    // The control: in a writable tree the same submount is writable where it can be mapped at all.
    assert_eq!(names_in(&lab.path("tree/sub")), Vec::<String>::new(), "the mount was private");
}

#[test]
fn a_target_in_the_workspace_must_exist_and_be_no_link() {
    each_user(|lab| {
        lab.make_file("data/file", "from data\n");
        lab.make_directory("work/place");
        let data = lab.path("data").display().to_string();
        let at = |target: &str| lab.sh(&["-v", &format!("{data}:{target}")], "cat place/file");
        assert_eq!(at("/workspace/place").expect(0).out(), "from data\n");
        at("/workspace/missing").expect(125).says(&["/workspace/missing"]);
        symlink("place", lab.work().join("link")).unwrap();
        at("/workspace/link").expect(125).says(&["/workspace/link", "link"]);
        at("/workspace/link/deeper").expect(125).says(&["link"]);
        assert_eq!(names_in(&lab.work()), ["link", "place"], "nothing was created there");
        assert_eq!(names_in(&lab.work().join("place")), Vec::<String>::new());
    });
}

/// Places that belljar itself made for the run are not the user's tree: a target can be made there.
#[test]
fn a_target_can_be_put_into_the_runs_own_places() {
    each_user(|lab| {
        lab.make_file("data/file", "from data\n");
        let data = lab.path("data").display().to_string();
        for target in ["/tmp/data", "/home/agent/data", "/home/agent/.config/tool", "/opt/a/b/c"] {
            let done = lab.sh(&["-v", &format!("{data}:{target}")], &format!("cat {target}/file"));
            assert_eq!(done.expect(0).out(), "from data\n", "{target}");
        }
    });
}

#[test]
fn a_link_of_the_operators_is_resolved_once() {
    each_user(|lab| {
        lab.make_file("real/file", "real\n");
        symlink(lab.path("real"), lab.path("link")).unwrap();
        let mount = format!("{}:/data", lab.path("link").display());
        assert_eq!(lab.sh(&["-v", &mount], "cat /data/file").expect(0).out(), "real\n");
    });
}

#[test]
fn a_link_that_a_run_could_have_planted_is_not_followed() {
    each_user(|lab| {
        let secret = lab.make_file("secret/file", "secret\n");
        lab.make_directory("work/data");
        let mount = format!("{}:/data", lab.work().join("data").display());
        // The control: a plain directory in the workspace can be given.
        lab.sh(&["-v", &mount], "ls /data").expect(0);
        // A run replaces it by a link out of its tree; the next one is not led there.
        let target = secret.parent().unwrap().display().to_string();
        lab.sh(&[], &format!("rmdir data && ln -s {target} data")).expect(0);
        let done = lab.sh(&["-v", &mount], "cat /data/file");
        done.expect(125).says(&["link"]);
        assert!(!done.out().contains("secret"), "{done}");
        // From another directory, and without that workspace, it is still remembered.
        let elsewhere = lab.make_directory("elsewhere");
        let done = lab.run(["-v", &mount, "--", "cat", "/data/file"]).from(elsewhere).done();
        done.expect(125).says(&["link"]);
    });
}

#[test]
fn another_workspace_a_read_only_one_or_none() {
    each_user(|lab| {
        lab.make_file("other/file", "other\n");
        let other = lab.path("other").display().to_string();
        assert_eq!(lab.sh(&["--workspace", &other], "ls").expect(0).out(), "file\n");
        let done = lab.sh(&["--workspace", &format!("{other}:ro")], "cat file; touch new");
        assert_eq!(done.out(), "other\n");
        assert_ne!(done.code(), 0);
        assert_eq!(names_in(&lab.path("other")), ["file"]);
        let done = lab.sh(&["--workspace", "none"], "ls -d /workspace 2>/dev/null; pwd");
        assert!(!done.expect(0).out().contains("/workspace"), "{done}");
        assert_eq!(lab.sh(&["-w", "/tmp"], "pwd").expect(0).out(), "/tmp\n");
        lab.sh(&["-w", "/no/such/place"], "pwd").expect(125).says(&["/no/such/place"]);
        lab.make_directory("work/sub");
        assert_eq!(
            lab.sh(&["-w", "sub"], "pwd").code(),
            lab.sh(&["-w", "/workspace/sub"], "pwd").code()
        );
    });
}

#[test]
fn names_that_are_not_utf_8_work_everywhere() {
    each_user(|lab| {
        let strange = OsStr::from_bytes(b"n\xff\xfe\n \xc3(");
        let directory = lab.make_directory(Path::new("strange").join(strange));
        lab.make_file(Path::new("strange").join(strange).join(strange), "content\n");
        let script = "cat \"$1\"; cp \"$1\" \"$1-copy\"; pwd";
        let call = lab.run(["--workspace"]).arg(&directory).arg("-v");
        let mut mount = directory.clone().into_os_string();
        mount.push(":/d");
        mount.push(strange);
        let call =
            call.arg(&mount).arg("--").arg("sh").arg("-c").arg(script).arg("sh").arg(strange);
        let done = call.done();
        assert_eq!(done.expect(0).out(), "content\n/workspace\n");
        let mut copy = strange.as_bytes().to_vec();
        copy.extend(b"-copy");
        assert_eq!(fs::read(directory.join(OsStr::from_bytes(&copy))).unwrap(), b"content\n");
        // Arguments arrive byte by byte.
        let done = lab.run(["--", "printf", "%s"]).arg(strange).done();
        assert_eq!(done.expect(0).stdout, strange.as_bytes());
        assert_eq!(lab.live(), Vec::<String>::new());
    });
}

#[test]
fn a_workspace_that_root_may_not_map_is_refused_or_taken_with_its_owner() {
    if !as_root() {
        return;
    }
    let lab = Lab::me();
    // FAT and the like cannot be id-mapped; proc neither. What cannot be given is refused in words.
    let done = lab.run(["-v", "/proc/sys:/given", "--", "true"]).done();
    assert_ne!(done.code(), 0, "{done}");
    assert!(!done.err().is_empty());
    lab.assert_nothing_was_made();
}

#[test]
fn a_private_workspace_of_root_is_reachable() {
    each_user(|lab| {
        // Directories above a source need not be open to the run: it is mounted by descriptor.
        let closed = lab.make_directory("closed/inner");
        lab.make_file("closed/inner/file", "inside\n");
        fs::set_permissions(lab.path("closed"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let place = closed.display().to_string();
        let done = lab.sh(&["--workspace", &place], "cat file; echo x > new");
        assert_eq!(done.expect(0).out(), "inside\n");
        let read_only = format!("{place}:/ro");
        assert_eq!(lab.sh(&["-v", &read_only], "cat /ro/file").expect(0).out(), "inside\n");
    });
}

/// The tree itself is the caller's too, not only what lies in it: git, ssh and others look at that.
#[test]
fn a_given_directory_shows_its_owner_and_its_mode() {
    each_user(|lab| {
        for (mode, shown) in [(0o700, "drwx------"), (0o750, "drwxr-x---"), (0o755, "drwxr-xr-x")] {
            let tree = lab.make_directory(format!("tree-{mode:o}"));
            lab.make_file(format!("tree-{mode:o}/file"), "x");
            fs::set_permissions(&tree, fs::Permissions::from_mode(mode)).unwrap();
            for access in ["rw", "ro"] {
                let mount = format!("{}:/given:{access}", tree.display());
                let done = lab.sh(
                    &["-v", &mount],
                    "ls -lnd /given /given/file | cut -c1-10; stat -c %u:%g /given /given/file",
                );
                let expected = format!("{shown}\n-rw-r--r--\n1000:1000\n1000:1000\n");
                assert_eq!(done.expect(0).out(), expected, "{access} {mode:o}");
            }
        }
    });
}
