//! Files that the host would execute later, in an overlay tree and in a writable tree.

use std::path::Path;

use belljar_spec::Clause;

use super::trial::Trial;
use crate::case::{Case, Severity, Verdict};
use crate::probe_report::AttemptResult;
use crate::testbed::{Run, TestBed, TestBedError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "collect.git-plants",
        attack: "plant hooks, filters and drivers for whoever looks with git",
        clause: Clause::FsMounts,
        severity: Severity::Critical,
        run: git_plants,
    },
    Case {
        name: "collect.control-files",
        attack: "change what host tools execute by themselves, in a writable tree",
        clause: Clause::FsReadonly,
        severity: Severity::Critical,
        run: control_files,
    },
];

fn git_plants(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let trial = Trial::new(testbed)?;
    let sentinel = testbed.place()?.join("sentinel");
    let command = format!("touch {}", sentinel.display());
    let report = trial.run("leave-plants", ["/workspace", &command])?;
    if report.answer("pre-commit") != Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control("inside, no hook can be written"));
    }
    for argv in [&["-p"][..], &["--json"], &[]] {
        trial.diff(argv)?;
    }
    let applied = trial.apply(&[])?;
    testbed.tool(["show", &trial.name])?;
    if sentinel.exists() {
        return Ok(Verdict::broke("one of belljar's commands executed a plant"));
    }
    for name in [".git/hooks/pre-commit", ".git/config", ".envrc", "nested/.git"] {
        if trial.tree.join(name).symlink_metadata().is_ok() {
            return Ok(Verdict::broke(format!("{name} was applied without being named")));
        }
    }
    if trial.content("file").as_deref() != Some(b"changed\n") {
        return Ok(Verdict::no_control("the rest was not applied either"));
    }
    let output = format!("{}{}", applied.stderr, String::from_utf8_lossy(&applied.stdout));
    if !output.contains("Makefile") || !output.contains("runs later on the host") {
        return Ok(Verdict::broke("apply did not list what runs later on the host"));
    }
    Ok(Verdict::held("nothing executed; hooks, settings and .envrc held back, the rest listed"))
}

/// Those that exist. Others can be created, and are reported at the end of a run.
const THERE: &[&str] = &[
    ".git/config",
    ".git/config.worktree",
    ".git/commondir",
    ".git/hooks/pre-commit",
    ".envrc",
    "nested/.git/config",
    ".vscode/tasks.json",
    ".mcp.json",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".bashrc",
];
/// In a directory that is protected as a whole.
const MISSING: &[&str] = &[".git/hooks/post-checkout"];

fn prepared(testbed: &TestBed, tree: &Path) -> Result<(), TestBedError> {
    let git = [".git", ".git/hooks", ".git/objects", ".git/refs", "nested", "nested/.git"];
    for directory in git.iter().chain(&[".vscode", ".claude"]) {
        testbed.directory(&tree.join(directory), 0o755)?;
    }
    for name in [".git/HEAD", "nested/.git/HEAD", "room"].iter().chain(THERE) {
        testbed.file(&tree.join(name), "original\n")?;
    }
    Ok(())
}

fn is_as_it_was(tree: &Path, name: &str) -> bool {
    let path = tree.join(name);
    if THERE.contains(&name) {
        return path.symlink_metadata().is_ok_and(|found| found.is_file())
            && std::fs::read(&path).ok().as_deref() == Some(b"original\n");
    }
    path.symlink_metadata().is_err()
}

fn control_files(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let tree = testbed.workspace()?;
    prepared(testbed, &tree)?;
    let names: Vec<&str> = THERE.iter().chain(MISSING).copied().collect();
    let run = Run::of(&tree, "control-files").arg("/workspace").args(&names);
    let inside = testbed.inside(&run)?.report()?;
    if let Some(name) = names.iter().find(|name| !is_as_it_was(&tree, name)) {
        return Ok(Verdict::broke(format!("{name} is not as it was")));
    }
    if let Some(tried) = inside.tries.iter().find(|tried| tried.answer == AttemptResult::Succeeded)
    {
        return Ok(Verdict::broke(format!("{} got through", tried.what)));
    }
    // The same steps on a file beside them, and on the same names where nothing covers them.
    let beside = Run::of(&tree, "control-files").args(["/workspace", "room"]);
    if testbed.inside(&beside)?.report()?.answer("write room") != Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control("inside, a plain file cannot be written to either"));
    }
    let control = testbed.place()?;
    prepared(testbed, &control)?;
    let mut argv = vec!["control-files".as_ref(), control.as_os_str()];
    argv.extend(names.iter().map(|name| std::ffi::OsStr::new(*name)));
    let outside = testbed.outside(Unprotected::Directly, argv)?.report()?;
    if let Some(name) = names
        .iter()
        .find(|name| outside.answer(&format!("write {name}")) != Some(AttemptResult::Succeeded))
    {
        return Ok(Verdict::no_control(format!("outside, {name} cannot be written to either")));
    }
    Ok(Verdict::held(format!("{} files, {} attempts", names.len(), inside.tries.len())))
}
