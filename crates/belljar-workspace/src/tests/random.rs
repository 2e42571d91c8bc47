//! Whatever is done in an overlay, the real tree with the changes taken over is what a plain copy would be.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::support::*;
use crate::{Change, Kind, OpenTree, What};

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("c")], 1..=3)
        .prop_map(|names| names.join("/"))
}

fn step() -> impl Strategy<Value = String> {
    let mode = prop_oneof![Just("600"), Just("644"), Just("700"), Just("755")];
    prop_oneof![
        3 => (path(), 0..4u8).prop_map(|(path, text)| format!("printf 'text {text}\\nmore\\n' > {path}")),
        1 => path().prop_map(|path| format!("echo added >> {path}")),
        2 => path().prop_map(|path| format!("mkdir {path}")),
        4 => (path(), path()).prop_map(|(from, to)| format!("mv -fT {from} {to}")),
        2 => path().prop_map(|path| format!("rm -rf {path}")),
        1 => (path(), mode).prop_map(|(path, mode)| format!("chmod {mode} {path}")),
        1 => path().prop_map(|path| format!("ln -sfn target {path}")),
        1 => (path(), path()).prop_map(|(from, to)| format!("ln {from} {to}")),
        1 => (path(), path()).prop_map(|(from, to)| copy(&from, &to)),
    ]
}

/// What this leaves must not depend on the order in which a directory is listed, which an overlay and a plain
/// directory need not share: so not into or out of itself, and not through a name of a file that is copied, too.
fn copy(from: &str, to: &str) -> String {
    let is_inside = |one: &str, other: &str| Path::new(one).starts_with(other);
    match is_inside(from, to) || is_inside(to, from) {
        true => "true".to_owned(),
        false => format!("cp -aT --remove-destination {from} {to}"),
    }
}

fn script(steps: &[String]) -> String {
    steps.iter().map(|step| format!("( {step} ) 2>/dev/null\n")).collect()
}

fn run_in(directory: &Path, script: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{script}\ntrue")]).current_dir(directory);
    assert!(shell.stdin(Stdio::null()).status().unwrap().success());
}

fn take_over(tree: &OpenTree, changes: &[Change], root: &Path) {
    let removed = changes.iter().filter_map(|change| match &change.what {
        What::Renamed { from } => Some((from, change)),
        What::Deleted | What::Replaced => Some((&change.path, change)),
        _ => None,
    });
    let mut removed: Vec<_> = removed.collect();
    // A directory goes after what was in it, wherever that went.
    removed.sort_by(|one, other| other.0.as_path().cmp(one.0.as_path()));
    for (old, change) in removed {
        let old = root.join(old.as_path());
        match change.before.as_ref().unwrap().kind {
            Kind::Directory => std::fs::remove_dir(old).unwrap(),
            _ => std::fs::remove_file(old).unwrap(),
        }
    }
    for change in changes {
        let Some(after) = &change.after else { continue };
        let path = root.join(change.path.as_path());
        match after.kind {
            Kind::Directory => {
                let _ = std::fs::create_dir(&path);
            }
            Kind::Link => {
                let _ = std::fs::remove_file(&path);
                std::os::unix::fs::symlink(after.target.as_ref().unwrap(), path).unwrap();
                continue;
            }
            Kind::File => {
                let mut from = tree.open_after(change).unwrap();
                let mut to = std::fs::File::create(&path).unwrap();
                std::io::copy(&mut from, &mut to).unwrap();
            }
            other => panic!("{other:?}"),
        }
        std::fs::set_permissions(path, PermissionsExt::from_mode(after.mode)).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_real_tree_and_the_changes_make_the_runs_tree(
        before in proptest::collection::vec(step(), 0..25),
        during in proptest::collection::vec(step(), 1..25),
    ) {
        let stage = Stage::new();
        run_in(&stage.lower(""), &script(&before));
        // An overlay gives each name of a hard-linked lower file a content of its own as soon as one is written.
        let copy = |name: &str| {
            let to = stage.directory.path().join(name);
            let mut cp = Command::new("cp");
            cp.args(["-a", "--no-preserve=links"]).arg(stage.lower("")).arg(&to);
            assert!(cp.status().unwrap().success());
            to
        };
        let (plain, taken) = (copy("plain"), copy("taken"));
        let untouched = snapshot(&stage.lower(""));
        run_in(&plain, &script(&during));
        let backing = stage.in_overlay(&script(&during));
        let tree = stage.tree(backing);
        let changes = tree.changes().unwrap();
        prop_assert!(changes.changes.iter().all(|change| change.withheld.is_none()));
        take_over(&tree, &changes.changes, &taken);
        prop_assert_eq!(snapshot(&taken), snapshot(&plain), "{:?}", words(&changes));
        prop_assert_eq!(snapshot(&stage.lower("")), untouched);
        // And nothing but what differs is listed.
        let list = |root: &Path| snapshot(root).into_iter().collect::<std::collections::BTreeSet<_>>();
        let (old, new) = (list(&stage.lower("")), list(&plain));
        let differ: std::collections::BTreeSet<_> =
            old.symmetric_difference(&new).map(|(path, ..)| path.clone()).collect();
        for change in &changes.changes {
            prop_assert!(differ.contains(change.path.as_path()), "{}", word(change));
        }
    }
}
