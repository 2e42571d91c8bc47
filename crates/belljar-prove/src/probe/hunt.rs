//! Searches every readable byte for a text.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Arguments, Probed, dialogues};
use crate::probe_report::{AttemptResult, ProbeReport};

const MAX_FILES: u64 = 50_000;
const MAX_SIZE: u64 = 4 << 20;

/// `BACKWARDS DIALOGUES DIRECTORY…`: the text backwards, so that our own arguments do not hold it; dialogues to
/// hold first, in whose answers it is looked for too; and trees of files. Tells where it was found.
pub(super) fn hunt(args: &Arguments<'_>) -> Probed {
    let wanted: Vec<u8> = args.text(0, "a text, backwards")?.bytes().rev().collect();
    let holds = |bytes: &[u8]| bytes.windows(wanted.len()).any(|window| window == wanted);
    let mut report = ProbeReport::default();
    dialogues::hold_all(args.text(1, "dialogues")?, &mut report)?;
    let mut found = BTreeSet::new();
    for (name, probe_report) in &report.facts {
        let bytes: Vec<u8> = probe_report.chars().map(|c| c as u8).collect();
        if holds(&bytes) {
            found.insert(format!("the answer to {name}"));
        }
    }
    if std::env::vars_os().any(|(_, value)| holds(value.as_encoded_bytes())) {
        found.insert("the environment".to_owned());
    }
    let mut looked_at = 0;
    for pid in super::processes::visible()? {
        for file in ["environ", "cmdline", "comm", "stat"] {
            let path = format!("/proc/{pid}/{file}");
            looked_at += 1;
            if std::fs::read(&path).is_ok_and(|bytes| holds(&bytes)) {
                found.insert(path);
            }
        }
    }
    let mut left: Vec<PathBuf> = args.all().skip(2).map(PathBuf::from).collect();
    while let Some(path) = left.pop() {
        if looked_at > MAX_FILES {
            break;
        }
        left.extend(below(&path));
        looked_at += 1;
        if is_small_file(&path) && std::fs::read(&path).is_ok_and(|bytes| holds(&bytes)) {
            found.insert(path.display().to_string());
        }
    }
    report.fact("looked at", looked_at);
    for place in found {
        report.answered(format!("found in {place}"), AttemptResult::Succeeded);
    }
    Ok(report)
}

fn below(path: &Path) -> Vec<PathBuf> {
    let is_directory = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let entries = if is_directory { std::fs::read_dir(path).ok() } else { None };
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn is_small_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() <= MAX_SIZE)
}
