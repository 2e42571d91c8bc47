//! What the kernel writes into a layer, and what it means.

use super::support::*;

fn stage() -> Stage {
    let stage = Stage::new();
    write(stage.lower("a"), "one\n");
    write(stage.lower("b"), "two\n");
    write(stage.lower("d/x"), "x\nxx\n");
    write(stage.lower("d/y"), "y\nyy\n");
    write(stage.lower("d/e/z"), "z\nzz\n");
    std::os::unix::fs::symlink("a", stage.lower("link")).unwrap();
    stage
}

#[track_caller]
fn gives(script: &str, expected: &[&str]) {
    let stage = stage();
    let backing = stage.in_overlay(script);
    assert_eq!(words(&stage.changes(backing)), expected, "{script}");
}

#[test]
fn nothing_done_is_no_change() {
    gives("cat a d/x >/dev/null", &[]);
    gives("touch a; chmod 600 a; chmod 644 a; printf 'one\\n' > a", &[]);
    gives("mkdir n; rmdir n; : > n; rm n", &[]);
    gives("mv a c; mv c a; mv d n; mv n d", &[]);
}

#[test]
fn each_kind_of_change() {
    gives("echo more >> a", &["M a"]);
    gives("rm a", &["D a"]);
    gives("mkdir n; echo 1 > n/f", &["A n", "A n/f"]);
    gives("chmod 755 a; chmod 700 d", &["m a", "m d"]);
    gives("rm link; ln -s b link", &["M link"]);
    gives("rm a; mkdir a; echo 1 > a/f", &["T a", "A a/f"]);
    gives("rm -r d; echo 1 > d", &["T d", "D d/e", "D d/e/z", "D d/x", "D d/y"]);
    gives("rm a; ln -s b a", &["T a"]);
    gives("mv a c", &["R a -> c"]);
    gives("mv a c; echo more >> c; printf 'one\\n' > a", &["A c"]);
    gives("rm -r d", &["D d", "D d/e", "D d/e/z", "D d/x", "D d/y"]);
}

#[test]
fn a_directory_that_was_made_anew_shows_nothing_of_the_old_one() {
    gives("rm -r d; mkdir d; printf 'x\\nxx\\n' > d/x", &["D d/e", "D d/e/z", "D d/y"]);
}

#[test]
fn a_renamed_directory_is_found_where_it_went() {
    gives(
        "mv d n",
        &["D d", "D d/e", "A n", "A n/e", "R d/e/z -> n/e/z", "R d/x -> n/x", "R d/y -> n/y"],
    );
    gives(
        "mv d n; mkdir m; mv n m/n; rm m/n/x; mv m/n/e m/n/f; echo >> m/n/f/z",
        &[
            "D d",
            "D d/e",
            "D d/x",
            "A m",
            "A m/n",
            "A m/n/f",
            "R d/e/z -> m/n/f/z",
            "R d/y -> m/n/y",
        ],
    );
    gives(
        "mv d n; mkdir d; mv n/x d/x",
        &["D d/e", "A n", "A n/e", "R d/e/z -> n/e/z", "R d/y -> n/y"],
    );
}

#[test]
fn a_similar_file_under_another_name_is_a_rename() {
    let stage = stage();
    let text: String = (0..50).map(|line| format!("line {line}\n")).collect();
    write(stage.lower("long"), &text);
    let backing = stage.in_overlay("sed 's/line 7$/changed/' long > else; rm long; echo 1 > new");
    assert_eq!(words(&stage.changes(backing)), ["R long -> else", "A new"]);
}

/// `user.` of the run's own where the kernel wrote `trusted.`, and the other way round.
#[test]
fn attributes_of_the_other_kind_are_a_runs_own() {
    let with = |name: &str, backing| {
        let stage = stage();
        std::fs::create_dir(stage.upper("d")).unwrap();
        attribute(stage.upper("d"), name, "y");
        words(&stage.changes(backing))
    };
    let gone = ["D d/e", "D d/e/z", "D d/x", "D d/y"];
    assert_eq!(with("user.overlay.opaque", USER), gone, "the control");
    assert_eq!(with("user.overlay.opaque", TRUSTED), [""; 0]);
    if rustix::process::geteuid().is_root() {
        assert_eq!(with("trusted.overlay.opaque", TRUSTED), gone, "the control");
        assert_eq!(with("trusted.overlay.opaque", USER), [""; 0]);
    }
}

#[test]
fn a_redirect_leads_nowhere_but_into_the_real_tree() {
    let with = |name: &str, value: &str, backing| {
        let stage = stage();
        std::fs::create_dir(stage.upper("n")).unwrap();
        attribute(stage.upper("n"), name, value);
        words(&stage.changes(backing))
    };
    assert_eq!(with("user.overlay.redirect", "/d", USER), ["A n"], "such a mount follows none");
    if rustix::process::geteuid().is_root() {
        let followed = ["A n", "A n/e", "A n/e/z", "A n/x", "A n/y"];
        assert_eq!(with("trusted.overlay.redirect", "/d", TRUSTED), followed, "the control");
        assert_eq!(with("trusted.overlay.redirect", "d", TRUSTED), followed, "the control");
        for value in ["/../lower/d", "..", "d/..", "/d/../d", "d/e", "/link", "", "/a", "./d"] {
            assert_eq!(with("trusted.overlay.redirect", value, TRUSTED), ["A n"], "{value}");
        }
    }
}

#[test]
fn the_other_form_of_a_whiteout_counts_where_the_directory_says_so() {
    let stage = stage();
    write(stage.upper("d/x"), "");
    attribute(stage.upper("d/x"), "user.overlay.whiteout", "y");
    assert_eq!(words(&stage.changes(USER)), ["M d/x"]);
    attribute(stage.upper("d"), "user.overlay.opaque", "x");
    assert_eq!(words(&stage.changes(USER)), ["D d/x"]);
}

#[test]
fn a_whiteout_of_something_that_is_gone_anyway_is_nothing() {
    let stage = stage();
    whiteout(stage.upper("was"));
    whiteout(stage.upper("a"));
    assert_eq!(words(&stage.changes(USER)), ["D a"]);
}

#[test]
fn paths_are_looked_up_as_the_run_saw_them() {
    let stage = stage();
    let backing = stage.in_overlay("mkdir n; rm a; rm -r d/e; echo 1 > d/new");
    let tree = stage.tree(backing);
    let is_there = |path: &str| tree.look_after(path.as_ref()).unwrap().is_some();
    assert!(is_there("b") && is_there("d/x") && is_there("d/new") && is_there("n"));
    assert!(!is_there("a") && !is_there("d/e/z") && !is_there("link/x") && !is_there("no"));
}
