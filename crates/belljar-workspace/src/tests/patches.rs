//! A patch of ours makes of the old tree the new one.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::support::*;

fn patch_of(stage: &Stage) -> Vec<u8> {
    let tree = stage.tree(COPY);
    let changes = tree.changes().unwrap();
    changes.changes.iter().flat_map(|change| tree.patch(change).unwrap()).collect()
}

/// On a tree of the test's own, with nothing of anybody's settings.
fn git_apply(directory: &Path, patch: &Path) {
    let home = tempfile::tempdir().unwrap();
    let mut git = Command::new("git");
    git.args(["apply", "--whitespace=nowarn"]).arg(patch).current_dir(directory).env_clear();
    git.env("HOME", home.path()).env("PATH", std::env::var_os("PATH").unwrap());
    git.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CEILING_DIRECTORIES", directory);
    let done = git.stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success(),
        "{told}\n{}",
        String::from_utf8_lossy(&std::fs::read(patch).unwrap())
    );
}

/// Content and whether it can be executed: no patch holds more.
fn seen(root: &Path) -> Vec<(PathBuf, bool, Vec<u8>)> {
    let all = snapshot(root).into_iter();
    all.filter(|(_, mode, _)| mode & 0o170000 != 0o040000)
        .map(|(path, mode, content)| (path, mode & 0o100 != 0, content))
        .collect()
}

fn file() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("a"),
        Just("b"),
        Just(""),
        Just("\tc "),
        Just("@@ -1 +1 @@"),
        Just("-- x"),
        Just("\r")
    ];
    (proptest::collection::vec(line, 0..30), any::<bool>()).prop_map(|(lines, ends)| {
        let text = lines.join("\n");
        if ends && !text.is_empty() { format!("{text}\n") } else { text }
    })
}

fn trees() -> impl Strategy<Value = Vec<(Option<String>, Option<String>, bool)>> {
    proptest::collection::vec(
        (proptest::option::of(file()), proptest::option::of(file()), any::<bool>()),
        1..6,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn git_and_patch_make_the_new_tree_of_the_old_one(files in trees()) {
        let names = ["plain", "with blank", "d/e/f", "-rf", "quo\"te\\n", "umläut"];
        let stage = Stage::new();
        for (name, (before, after, executable)) in names.iter().zip(&files) {
            for (path, text) in [(stage.lower(name), before), (stage.upper(name), after)] {
                if let Some(text) = text {
                    let mode = if *executable && path == stage.upper(name) { 0o755 } else { 0o644 };
                    write(path.clone(), text);
                    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
                }
            }
        }
        let file = stage.directory.path().join("patch");
        std::fs::write(&file, patch_of(&stage)).unwrap();
        prop_assume!(std::fs::metadata(&file).unwrap().len() > 0);
        let by_patch = stage.directory.path().join("by_patch");
        let copied = Command::new("cp").arg("-a").arg(stage.lower("")).arg(&by_patch).status();
        prop_assert!(copied.unwrap().success());
        git_apply(&stage.lower(""), &file);
        prop_assert_eq!(seen(&stage.lower("")), seen(&stage.upper("")));
        // The other program that takes patches knows neither names with a backslash nor empty files.
        let is_empty = |text: &Option<String>| text.as_ref().is_some_and(String::is_empty);
        let any_empty = files.iter().any(|(before, after, _)| is_empty(before) || is_empty(after));
        if files.len() < 5 && !any_empty {
            let mut patch = Command::new("patch");
            patch.args(["-p1", "--binary", "-s", "-i"]).arg(&file).current_dir(&by_patch);
            let done = patch.stdin(Stdio::null()).output().unwrap();
            prop_assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
            let content = |root: &Path| seen(root).into_iter().map(|(path, _, text)| (path, text)).collect::<Vec<_>>();
            prop_assert_eq!(content(&by_patch), content(&stage.upper("")));
        }
    }
}

#[test]
fn links_modes_and_renames_arrive_too() {
    let stage = Stage::new();
    let text: String = (0..40).map(|line| format!("line {line}\n")).collect();
    write(stage.lower("old"), &text);
    write(stage.upper("d/new"), text.replace("line 7\n", "seven\n"));
    for (path, to) in [("moved", "a"), ("was_link", "a")] {
        symlink(to, stage.lower(path)).unwrap();
    }
    symlink("b", stage.upper("moved")).unwrap();
    write(stage.upper("was_link"), "a file now\n");
    write(stage.lower("run.sh"), "echo\n");
    write(stage.upper("run.sh"), "echo\n");
    std::fs::set_permissions(stage.upper("run.sh"), PermissionsExt::from_mode(0o755)).unwrap();
    let changes = stage.changes(COPY);
    assert_eq!(words(&changes), ["A d", "R old -> d/new", "M moved", "m run.sh", "T was_link"]);
    let patch = patch_of(&stage);
    let shown = String::from_utf8(patch.clone()).unwrap();
    for line in [
        "diff --git a/old b/d/new",
        "rename from old",
        "rename to d/new",
        "--- a/old",
        "+++ b/d/new",
        "-line 7",
        "+seven",
        "old mode 100644",
        "new mode 100755",
        "deleted file mode 120000",
        "new file mode 100644",
        "\\ No newline at end of file",
    ] {
        assert!(shown.lines().any(|own| own == line), "{line}\n{shown}");
    }
    let file = stage.directory.path().join("patch");
    std::fs::write(&file, patch).unwrap();
    git_apply(&stage.lower(""), &file);
    assert_eq!(seen(&stage.lower("")), seen(&stage.upper("")));
}

#[test]
fn binary_files_are_named_only() {
    let stage = Stage::new();
    write(stage.lower("b"), b"\0one");
    write(stage.upper("b"), b"\0two");
    let patch = String::from_utf8(patch_of(&stage)).unwrap();
    assert_eq!(patch, "diff --git a/b b/b\nBinary files a/b and b/b differ\n");
}
