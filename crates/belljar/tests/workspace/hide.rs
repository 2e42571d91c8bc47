//! Names that are hidden: not there inside, whatever the tree is mounted as.

use std::fs;
use std::os::unix::fs::symlink;

use belljar_testkit::{Lab, each_engine, each_user};

fn everywhere(test: impl Fn(&Lab)) {
    each_user(&test);
    each_engine(|_, lab| test(lab));
}

fn fill(lab: &Lab) {
    lab.make_file("work/.env", "SECRET-1\n");
    lab.make_file("work/app/config/.env", "SECRET-2\n");
    lab.make_file("work/app/config/other", "other\n");
    lab.make_file("work/keys/one", "SECRET-3\n");
    lab.make_file("work/keys/below/two", "SECRET-4\n");
    lab.make_file("work/shown", "shown\n");
}

const HIDE: [&str; 2] =
    ["-c", "sandbox.hide=['.env', 'app/config/.env', 'keys', 'missing', 'no/such']"];
const LOOK: &str = "cat .env app/config/.env 2>/dev/null; cat keys/* keys/*/* 2>/dev/null; \
    grep -r SECRET . 2>/dev/null; find keys -mindepth 1 2>/dev/null; cat app/config/other shown";

#[test]
fn hidden_files_and_directories_are_not_there_in_any_mode() {
    everywhere(|lab| {
        fill(lab);
        for mode in [".:ro", ".:rw", ".:overlay"] {
            // Not every engine can keep sockets out of every kind of tree, and that is not the question here.
            let shown = ["--workspace", mode, "--waive", "fs.sockets=test"];
            let hidden: Vec<&str> = shown.iter().chain(&HIDE).copied().collect();
            let result = lab.sh_json(&hidden, LOOK);
            assert_eq!(result["stdout"], "other\nshown\n", "{mode}: {result:#}");
            // The control: it is the hiding that hides.
            let shown = lab.sh_json(&shown, LOOK);
            for number in 1..=4 {
                let secret = format!("SECRET-{number}");
                assert!(shown["stdout"].as_str().unwrap().contains(&secret), "{mode}: {shown:#}");
            }
        }
        assert_eq!(fs::read_to_string(lab.work().join(".env")).unwrap(), "SECRET-1\n");
    });
}

#[test]
fn a_run_can_have_a_file_of_that_name_in_an_overlay_and_not_touch_the_real_one() {
    everywhere(|lab| {
        fill(lab);
        let script = "set -e; test ! -e .env; test ! -e keys; echo mine > .env; mkdir keys; \
            echo mine > keys/one; mv app moved; test ! -e moved/config/.env; cat .env; ls keys";
        let options = ["--workspace", ".:overlay", HIDE[0], HIDE[1]];
        let result = lab.sh_json(&options, script);
        assert_eq!(result["stdout"], "mine\none\n", "{result:#}");
        assert_eq!(fs::read_to_string(lab.work().join(".env")).unwrap(), "SECRET-1\n");
        assert_eq!(fs::read_to_string(lab.work().join("keys/one")).unwrap(), "SECRET-3\n");
    });
}

#[test]
fn a_covered_file_can_neither_be_opened_nor_replaced_nor_moved() {
    each_user(|lab| {
        fill(lab);
        let script = "cat .env && echo read; echo x > .env && echo wrote; rm -f .env && echo removed; \
            mv .env away && echo moved; echo x > keys/new && echo made; rm -rf keys && echo gone; \
            mv app away; cat away/config/.env && echo read; true";
        let result = lab.sh_json(&[HIDE[0], HIDE[1]], script);
        assert_eq!(result["stdout"], "", "{result:#}");
        assert_eq!(fs::read_to_string(lab.work().join(".env")).unwrap(), "SECRET-1\n");
        assert_eq!(fs::read_to_string(lab.work().join("keys/one")).unwrap(), "SECRET-3\n");
    });
}

#[test]
fn a_link_is_hidden_as_a_name_or_refused_where_only_a_cover_could_do_it() {
    each_user(|lab| {
        lab.make_file("work/real", "SECRET\n");
        symlink("real", lab.work().join(".env")).unwrap();
        let hide = ["-c", "sandbox.hide=['.env']"];
        for mode in [".:ro", ".:overlay"] {
            let result = lab.sh_json(&["--workspace", mode, hide[0], hide[1]], "ls -A");
            assert_eq!(result["stdout"], "real\n", "{mode}: {result:#}");
        }
        let before = lab.runs();
        lab.sh(&hide, "true").expect(125).says(&[".env", "is a link", "overlay or ro"]);
        assert_eq!(lab.runs(), before);
    });
}

#[test]
fn another_mount_of_the_same_tree_does_not_show_it_and_one_of_the_name_itself_is_refused() {
    each_user(|lab| {
        fill(lab);
        let work = lab.work().display().to_string();
        for mode in ["ro", "rw", "overlay"] {
            let mount = format!("{work}:/again:{mode}");
            let result =
                lab.sh_json(&["-v", &mount, HIDE[0], HIDE[1]], "cd /again; cat .env; cat shown");
            assert_eq!(result["stdout"], "shown\n", "{mode}: {result:#}");
            for hidden in ["keys", "keys/below", "keys/one"] {
                let mount = format!("{work}/{hidden}:/given:ro");
                let done = lab.sh(&["-v", &mount, HIDE[0], HIDE[1]], "cat /given");
                done.expect(125).says(&["hidden", "is mounted"]);
            }
        }
    });
}
