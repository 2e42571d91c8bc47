//! What `apply` leaves out.

use std::os::unix::fs::symlink;

use super::support::*;
use crate::{Changes, HowFar};

fn held(changes: &Changes) -> Vec<String> {
    let held = changes.changes.iter().filter_map(|change| {
        let how_far = match change.withheld.as_ref()?.how_far {
            HowFar::Always => "never",
            HowFar::UnlessNamed => "named",
        };
        Some(format!("{how_far} {}", word(change)))
    });
    held.collect()
}

#[test]
fn links_that_leave_the_tree() {
    let stage = Stage::new();
    let links = [
        ("d/e/up", "../../a"),
        ("d/e/beside", "./x/y"),
        ("absolute", "/etc/shadow"),
        ("out", ".."),
        ("d/e/out", "../../../x"),
        ("d/e/round", "x/../../../.."),
        ("d/e/through", "link/.."),
    ];
    std::fs::create_dir_all(stage.upper("d/e")).unwrap();
    for (link, target) in links {
        symlink(target, stage.upper(link)).unwrap();
    }
    let changes = stage.changes(COPY);
    assert_eq!(changes.changes.len(), 2 + links.len());
    let expected = ["A absolute", "A d/e/out", "A d/e/round", "A d/e/through", "A out"];
    assert_eq!(held(&changes), expected.map(|word| format!("named {word}")));
}

#[test]
fn special_files_and_what_lies_where_they_are() {
    let stage = Stage::new();
    write(stage.lower("d/f"), "1");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        stage.upper("d"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    std::os::unix::net::UnixListener::bind(stage.upper("socket")).unwrap();
    write(stage.upper("plain"), "1");
    let changes = stage.changes(COPY);
    assert_eq!(words(&changes), ["T d", "D d/f", "A plain", "A socket"]);
    assert_eq!(held(&changes), ["never T d", "never D d/f", "never A socket"]);
}

#[test]
fn hidden_names_stay_as_they_are() {
    let mut stage = Stage::new();
    write(stage.lower(".env"), "secret");
    write(stage.lower("d/.env"), "secret");
    write(stage.lower("d/f"), "1");
    stage.hidden = vec![".env".into(), "d/.env".into()];
    write(stage.upper(".env"), "of the run");
    whiteout(stage.upper("d"));
    let changes = stage.changes(USER);
    assert_eq!(words(&changes), ["M .env", "D d", "D d/f"]);
    assert_eq!(held(&changes), ["never M .env", "never D d"]);
    stage.hidden.clear();
    assert_eq!(words(&stage.changes(USER)), ["M .env", "D d", "D d/.env", "D d/f"], "the control");
}

#[test]
fn a_renamed_directory_does_not_show_what_is_hidden_in_it() {
    let mut stage = Stage::new();
    write(stage.lower("d/.env"), "secret");
    write(stage.lower("d/f"), "one line\n");
    stage.hidden = vec!["d/.env".into()];
    if rustix::process::geteuid().is_root() {
        whiteout(stage.upper("d"));
        std::fs::create_dir(stage.upper("n")).unwrap();
        attribute(stage.upper("n"), "trusted.overlay.redirect", "d");
        assert_eq!(words(&stage.changes(TRUSTED)), ["D d", "A n", "R d/f -> n/f"]);
        stage.hidden.clear();
        let all = ["D d", "A n", "R d/.env -> n/.env", "R d/f -> n/f"];
        assert_eq!(words(&stage.changes(TRUSTED)), all, "the control");
    }
}

#[test]
fn a_repository_by_any_other_name() {
    let stage = Stage::new();
    for path in ["site/HEAD", "site/objects/x", "site/refs/x", "site/config", "site/hooks/post-x"] {
        write(stage.upper(path), "1");
    }
    write(stage.upper("no/config"), "1");
    write(stage.upper("nothing/hooks/post-x"), "1");
    let changes = stage.changes(USER);
    let expected = ["named A site/HEAD", "named A site/config", "named A site/hooks/post-x"];
    assert_eq!(held(&changes), expected);
}

#[test]
fn a_repository_split_in_two_or_made_in_two_goes() {
    let stage = Stage::new();
    for path in ["x/HEAD", "x/commondir", "x/config.worktree", "y/objects/x", "y/refs/x"] {
        write(stage.upper(path), "1");
    }
    write(stage.upper("y/config"), "[core]\n\tfsmonitor = evil\n");
    write(stage.upper("y/hooks/pre-commit"), "1");
    write(stage.upper("plain/config"), "1");
    write(stage.upper("plain/refs.txt"), "1");
    let expected = [
        "named A x/HEAD",
        "named A x/commondir",
        "named A x/config.worktree",
        "named A y/config",
        "named A y/hooks/pre-commit",
    ];
    assert_eq!(held(&stage.changes(USER)), expected);

    // The first part came with an earlier apply.
    let stage = Stage::new();
    write(stage.lower("a/HEAD"), "1");
    write(stage.lower("b/config"), "1");
    write(stage.lower("was/HEAD"), "1");
    write(stage.lower("was/objects/x"), "1");
    write(stage.lower("was/logs/refs/x"), "1");
    write(stage.upper("was/logs/HEAD"), "1");
    write(stage.upper("a/config"), "1");
    write(stage.upper("a/Hooks/pre-commit"), "1");
    write(stage.upper("b/head"), "1");
    write(stage.upper("was/HEAD"), "2");
    write(stage.upper("was/remotes/origin"), "URL: evil");
    write(stage.upper("plain/HEAD"), "1");
    let expected = [
        "named A a/Hooks/pre-commit",
        "named A a/config",
        "named A b/head",
        "named A was/remotes/origin",
    ];
    assert_eq!(held(&stage.changes(USER)), expected);
}

#[test]
fn a_link_that_stands_for_a_directory_of_control_files() {
    for name in [".vscode", ".claude", ".config", ".cursor", ".idea", ".zed", ".git/modules"] {
        let stage = Stage::new();
        write(stage.upper("s/tasks.json"), "1");
        std::fs::create_dir_all(stage.upper(name).parent().unwrap()).unwrap();
        symlink("s", stage.upper(name)).unwrap();
        symlink("s", stage.upper("plain")).unwrap();
        assert_eq!(held(&stage.changes(USER)), [format!("named A {name}")]);
    }
}

#[test]
fn many_files_deep_below_hooks_are_looked_at_in_time() {
    let stage = Stage::in_memory();
    let deep = stage.upper(&"hooks/".repeat(300));
    std::fs::create_dir_all(&deep).unwrap();
    for at in 0..1000 {
        std::fs::write(deep.join(format!("f{at}")), "").unwrap();
    }
    let begun = std::time::Instant::now();
    let changes = stage.changes(USER);
    assert_eq!(changes.changes.len(), 300 + 1000);
    assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn the_content_of_the_runs_version_is_read_without_a_link() {
    let stage = Stage::new();
    write(stage.upper("f"), "of the run");
    let tree = stage.tree(USER);
    let changes = tree.changes().unwrap();
    let mut file = tree.open_after(&changes.changes[0]).unwrap();
    assert_eq!(crate::read_small(&mut file, 100).unwrap().unwrap(), b"of the run");
    std::fs::remove_file(stage.upper("f")).unwrap();
    symlink("/etc/passwd", stage.upper("f")).unwrap();
    assert!(tree.open_after(&changes.changes[0]).is_err());
}
