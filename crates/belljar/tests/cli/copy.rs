//! Files into a sandbox and out of it. What comes out is hostile.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use belljar_testkit::{Done, Input, Lab, each_user};

fn keep(lab: &Lab) {
    lab.run(["--keep", "-q", "--name", "k", "--workspace", "none"]).done().expect(0);
}

fn belljar(lab: &Lab, words: &[&str]) -> Done {
    lab.belljar(words).done()
}

fn sh(lab: &Lab, script: &str) -> String {
    let done = belljar(lab, &["exec", "k", "--", "sh", "-c", script]);
    done.expect(0);
    done.out()
}

#[test]
fn trees_go_in_and_come_out_as_they_were() {
    each_user(|lab| {
        keep(lab);
        let bytes: Vec<u8> = (0..200_000u32).map(|at| ((at * 7919) >> 5) as u8).collect();
        lab.make_file("work/tree/data", &bytes);
        lab.make_program("work/tree/deep/er/tool", "#!/bin/sh\necho ran\n");
        std::os::unix::fs::symlink("deep/er/tool", lab.work().join("tree/link")).unwrap();
        assert_eq!(belljar(lab, &["cp", "tree", "k:/tmp/in"]).expect(0).err(), "");
        assert_eq!(
            sh(lab, "cd /tmp/in && ./link && wc -c < data && readlink link"),
            "ran\n200000\ndeep/er/tool\n"
        );
        belljar(lab, &["cp", "k:/tmp/in", "back"]).expect(0);
        assert!(fs::read(lab.work().join("back/data")).unwrap() == bytes);
        let tool = fs::metadata(lab.work().join("back/deep/er/tool")).unwrap();
        assert_eq!(tool.permissions().mode() & 0o111, 0o111);
        assert_eq!(
            fs::read_link(lab.work().join("back/link")).unwrap().to_str(),
            Some("deep/er/tool")
        );
        // A directory that is there gets it under its own name; a slash inside means the same.
        belljar(lab, &["cp", "k:/tmp/in/data", "."]).expect(0);
        assert!(fs::read(lab.work().join("data")).unwrap() == bytes);
        belljar(lab, &["cp", "data", "k:/tmp/"]).expect(0);
        assert_eq!(sh(lab, "wc -c < /tmp/data"), "200000\n");
        // A colon after a slash is a path here.
        lab.make_file("work/k:odd", "odd");
        belljar(lab, &["cp", "./k:odd", "k:/tmp/odd"]).expect(0);
        assert_eq!(sh(lab, "cat /tmp/odd"), "odd");
    });
}

#[test]
fn what_must_not_come_out_is_left_out_and_told() {
    each_user(|lab| {
        keep(lab);
        let outside = lab.make_file("outside", "untouched");
        sh(
            lab,
            "mkdir /tmp/t; cd /tmp/t; echo good > good; ln -s /etc/passwd abs; ln -s ../../../outside up; \
                 mkfifo pipe; ln -s good near; printf x > 'new\nline'; mkdir -p a; ln -s .. a/parent",
        );
        let done = belljar(lab, &["cp", "k:/tmp/t", "out"]);
        done.expect(1).says(&["skipped:", "abs", "up", "pipe"]);
        assert!(!done.err().contains("new\nline"));
        let out = lab.work().join("out");
        assert_eq!(fs::read_to_string(out.join("good")).unwrap(), "good\n");
        assert_eq!(fs::read_to_string(out.join("near")).unwrap(), "good\n");
        assert_eq!(fs::read_to_string(out.join("new\nline")).unwrap(), "x");
        for name in ["abs", "up", "pipe"] {
            assert!(fs::symlink_metadata(out.join(name)).is_err(), "{name} came out");
        }
        assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched");
        assert_eq!(belljar(lab, &["cp", "-q", "k:/tmp/t", "quiet"]).expect(1).err(), "");
    });
}

#[test]
fn a_link_is_never_followed_out_of_the_target() {
    each_user(|lab| {
        keep(lab);
        // A run before, which could write here, planted a link where the copy goes.
        lab.run(["-q", "--no-config", "--", "touch", "by-the-run"]).done().expect(0);
        fs::remove_file(lab.work().join("by-the-run")).unwrap();
        let victim = lab.make_directory("victim");
        std::os::unix::fs::symlink(&victim, lab.work().join("planted")).unwrap();
        sh(lab, "mkdir /tmp/planted; echo evil > /tmp/planted/file");
        let done = belljar(lab, &["cp", "k:/tmp/planted", "."]);
        assert!(done.code() == 0 || done.code() == 1, "{done}");
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "{done}");
        // Nor by the user's own words, for a directory of the path as well.
        std::os::unix::fs::symlink(&victim, lab.work().join("elsewhere")).unwrap();
        let parents = ["cp", "-p", "k:/tmp/planted/file", "elsewhere/new/file"];
        for words in [&["cp", "k:/tmp/planted/file", "elsewhere/file"][..], &parents] {
            belljar(lab, words).expect(1).says(&["elsewhere is a link", "where a run can write"]);
        }
        fs::remove_file(lab.work().join("elsewhere")).unwrap();
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
        let real = victim.join("file").display().to_string();
        belljar(lab, &["cp", "k:/tmp/planted/file", &real]).expect(0); // the control
        // A copy that fails leaves none of the directories that were made for it.
        belljar(lab, &["cp", "-p", "k:/tmp/nothing", "made/for/it"]).expect(1);
        assert!(!lab.work().join("made").exists());
        // Sparse and huge: bounded, and nothing is left.
        sh(lab, "truncate -s 4T /tmp/huge");
        let done = belljar(lab, &["cp", "k:/tmp/huge", "huge"]);
        done.expect(1).says(&["larger than"]);
        assert!(fs::symlink_metadata(lab.work().join("huge")).is_err());
        let left: Vec<_> =
            fs::read_dir(lab.work()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(left.iter().all(|name| name == "planted"), "left behind: {left:?}");
    });
}

#[test]
fn wrong_ends_and_missing_files_are_told() {
    let lab = Lab::me();
    keep(&lab);
    belljar(&lab, &["cp", "a", "b"]).expect(2).says(&["one side must be RUN:/path"]);
    belljar(&lab, &["cp", "k:/a", "k:/b"]).expect(2);
    belljar(&lab, &["cp", "k:/no/such", "."]).expect(1).says(&["/no/such", "No such file"]);
    belljar(&lab, &["cp", "no-such", "k:/tmp/x"]).expect(1).says(&["no-such", "No such file"]);
    belljar(&lab, &["cp", "nobody:/x", "."]).expect(125).says(&["no run with the name or id"]);
    lab.make_file("work/file", "x");
    belljar(&lab, &["cp", "file", "k:/usr/x"]).expect(1);
    belljar(&lab, &["cp", "file", "k:/tmp/x"]).expect(0);
}

#[test]
fn one_file_goes_in_from_stdin_and_comes_out_on_stdout() {
    each_user(|lab| {
        keep(lab);
        let bytes: Vec<u8> =
            (0..3_000_000u32).map(|at| (at.wrapping_mul(7919) >> 7) as u8).collect();
        let call = lab.belljar(["cp", "-", "k:/tmp/in"]).input(Input::Bytes(bytes.clone()));
        call.done().expect(0);
        assert_eq!(sh(lab, "wc -c < /tmp/in"), "3000000\n");
        assert!(belljar(lab, &["cp", "k:/tmp/in", "-"]).expect(0).stdout == bytes);
        sh(lab, "ln -s in /tmp/link; : > /tmp/empty");
        assert!(belljar(lab, &["cp", "k:/tmp/link", "-"]).expect(0).stdout == bytes);
        assert_eq!(belljar(lab, &["cp", "k:/tmp/empty", "-"]).expect(0).out(), "");
        // A file that is standard input is read from where it is.
        lab.make_file("work/lines", "one\ntwo\n");
        let exe = lab.exe.display().to_string();
        let line = format!("(read line; {exe} cp - k:/tmp/rest) < lines; exec \"$0\" \"$@\"");
        lab.belljar(["ps"]).through(&["bash", "-c", &line]).done().expect(0);
        assert_eq!(sh(lab, "cat /tmp/rest"), "two\n");
        belljar(lab, &["cp", "k:/tmp", "-"]).expect(1).says(&["directory"]);
        belljar(lab, &["cp", "k:/no/such", "-"]).expect(1).says(&["/no/such"]);
        belljar(lab, &["cp", "-", "k:/tmp"]).expect(1).says(&["no file name"]);
        belljar(lab, &["cp", "--json", "k:/tmp/in", "-"]).expect(2);
        belljar(lab, &["cp", "-", "-"]).expect(2);
        let told = belljar(lab, &["cp", "--json", "lines", "k:/tmp/lines"]).expect(0).json();
        assert_eq!((&told["files"], &told["bytes"]), (&1.into(), &8.into()), "{told:#}");
    });
}

#[test]
fn a_directory_that_exists_receives_the_copy_and_parents_are_made() {
    each_user(|lab| {
        keep(lab);
        lab.make_file("work/tree/a", "a");
        sh(lab, "mkdir -p /tmp/there; ln -s there /tmp/to-there");
        belljar(lab, &["cp", "tree/a", "k:/tmp/there"]).expect(0);
        belljar(lab, &["cp", "tree", "k:/tmp/to-there"]).expect(0);
        belljar(lab, &["cp", "tree", "k:/tmp/to-there"]).expect(0); // again, into the one that is there
        assert_eq!(sh(lab, "cd /tmp/there; find . -type f | sort"), "./a\n./tree/a\n");
        belljar(lab, &["cp", "tree/a", "k:/tmp/new/deep/b"]).expect(1);
        belljar(lab, &["cp", "-p", "tree/a", "k:/tmp/new/deep/b"]).expect(0);
        assert_eq!(sh(lab, "cat /tmp/new/deep/b"), "a");
        belljar(lab, &["cp", "k:/tmp/there/a", "made/here/a"]).expect(1);
        belljar(lab, &["cp", "--parents", "k:/tmp/there/a", "made/here/a"]).expect(0);
        assert_eq!(fs::read_to_string(lab.work().join("made/here/a")).unwrap(), "a");
    });
}

#[test]
fn a_read_only_file_is_replaced_only_by_force() {
    each_user(|lab| {
        keep(lab);
        lab.make_file("work/new", "new");
        sh(
            lab,
            "echo old > /tmp/kept; chmod 444 /tmp/kept; mkdir /tmp/in; cp -p /tmp/kept /tmp/in/new",
        );
        let refused = belljar(lab, &["cp", "new", "k:/tmp/kept"]);
        refused.expect(1).says(&["/tmp/kept", "read-only", "--force"]);
        assert_eq!(sh(lab, "cat /tmp/kept"), "old\n");
        belljar(lab, &["cp", "-f", "new", "k:/tmp/kept"]).expect(0);
        assert_eq!(sh(lab, "cat /tmp/kept"), "new");
        // In a tree, what can be replaced is.
        lab.make_file("work/in/new", "new");
        lab.make_file("work/in/other", "other");
        belljar(lab, &["cp", "in", "k:/tmp"]).expect(1).says(&["/tmp/in/new", "read-only"]);
        assert_eq!(sh(lab, "cat /tmp/in/new /tmp/in/other"), "old\nother");

        let mine = lab.make_file("work/mine", "mine");
        fs::set_permissions(&mine, fs::Permissions::from_mode(0o444)).unwrap();
        let refused = belljar(lab, &["cp", "k:/tmp/kept", "mine"]);
        refused.expect(1).says(&["mine", "read-only", "--force"]);
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
        belljar(lab, &["cp", "-f", "k:/tmp/kept", "mine"]).expect(0);
        assert_eq!(fs::read_to_string(&mine).unwrap(), "new");
    });
}
