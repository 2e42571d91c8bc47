//! A test may start only programs that the suite provides: installed by the packages step, or there on every
//! Debian. Read from the tests' sources, since on a machine that was used before all of them pass.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::NEEDS;
use crate::host;

/// Of packages that are on every Debian (essential), and further programs of those that are installed.
const ALWAYS: [&str; 21] = [
    "cat",
    "chmod",
    "chown",
    "cp",
    "dash",
    "diff",
    "e2fsck",
    "echo",
    "env",
    "find",
    "ldd",
    "mkfifo",
    "rm",
    "setpriv",
    "sh",
    "sha256sum",
    "sleep",
    "true",
    "umount",
    // A made-up name, and one that a test writes into a made-up root.
    "x",
    "apparmor_parser",
];

/// How a source names a program: by a command that is started, or by its place.
const NAMED_BY: [&str; 5] =
    ["Command::new(\"", "\"/bin/", "\"/sbin/", "\"/usr/bin/", "\"/usr/sbin/"];

#[test]
fn tests_start_only_programs_that_the_suite_provides() {
    let mut files = Vec::new();
    sources(&host::workspace().unwrap().join("crates"), &mut files);
    assert!(files.len() > 50, "the tests were not found");
    let provided: BTreeSet<&str> = NEEDS.iter().map(|need| need.program).chain(ALWAYS).collect();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for program in programs_in(&text) {
            assert!(
                provided.contains(program.as_str()),
                "{} uses {program}: a new machine does not have it. Add it to the packages step",
                file.display()
            );
        }
    }
}

#[test]
fn programs_are_found_however_they_are_named() {
    let text = r#"fs::copy("/bin/busybox", to); Command::new("git"); Command::new("/usr/bin/env");
        "/bin/*"; Command::new(program); "/usr/bin:/bin"; "/sbin/a.b-c d""#;
    let found: Vec<String> = programs_in(text).into_iter().collect();
    assert_eq!(found, ["a.b-c", "busybox", "env", "git"]);
}

/// Integration tests, what they share, and tests of the inside of a crate.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs")
            && path.to_string_lossy().contains("/tests")
        {
            found.push(path);
        }
    }
}

fn programs_in(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for named_by in NAMED_BY {
        for rest in text.split(named_by).skip(1) {
            let is_part = |letter: char| letter.is_alphanumeric() || "._+-".contains(letter);
            let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
            found.insert(rest[..end].to_owned());
        }
    }
    found.remove(""); // a place, or a pattern
    found
}
