//! What runs on the host later: plants in a layered tree, and in one that is written to directly.

use std::path::Path;

use belljar_spec::Clause;

use super::trial::Trial;
use crate::answer::Answer;
use crate::case::{Case, Severity, Verdict};
use crate::stage::{Run, Stage, StageError, Unprotected};

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

fn git_plants(stage: &Stage) -> Result<Verdict, StageError> {
    let trial = Trial::new(stage)?;
    let sentinel = stage.place()?.join("sentinel");
    let command = format!("touch {}", sentinel.display());
    let told = trial.run("leave-plants", ["/workspace", &command])?;
    if told.answer("pre-commit") != Some(Answer::Succeeded) {
        return Ok(Verdict::no_control("inside, no hook can be written"));
    }
    for words in [&["-p"][..], &["--json"], &[]] {
        trial.diff(words)?;
    }
    let applied = trial.apply(&[])?;
    stage.tool(["show", &trial.name])?;
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
    let said = format!("{}{}", applied.stderr, String::from_utf8_lossy(&applied.stdout));
    if !said.contains("Makefile") || !said.contains("runs later on the host") {
        return Ok(Verdict::broke("nothing was said of what runs later on the host"));
    }
    Ok(Verdict::held("nothing executed; hooks, settings and .envrc held back, the rest told"))
}

/// Those that are there. What is not can be made, and is told at the end of a run.
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
/// In a directory that is kept as a whole.
const MISSING: &[&str] = &[".git/hooks/post-checkout"];

fn prepared(stage: &Stage, tree: &Path) -> Result<(), StageError> {
    let git = [".git", ".git/hooks", ".git/objects", ".git/refs", "nested", "nested/.git"];
    for directory in git.iter().chain(&[".vscode", ".claude"]) {
        stage.directory(&tree.join(directory), 0o755)?;
    }
    for name in [".git/HEAD", "nested/.git/HEAD", "room"].iter().chain(THERE) {
        stage.file(&tree.join(name), "original\n")?;
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

fn control_files(stage: &Stage) -> Result<Verdict, StageError> {
    let tree = stage.workspace()?;
    prepared(stage, &tree)?;
    let names: Vec<&str> = THERE.iter().chain(MISSING).copied().collect();
    let run = Run::of(&tree, "control-files").arg("/workspace").args(&names);
    let inside = stage.inside(&run)?.told()?;
    if let Some(name) = names.iter().find(|name| !is_as_it_was(&tree, name)) {
        return Ok(Verdict::broke(format!("{name} is not as it was")));
    }
    if let Some(tried) = inside.tries.iter().find(|tried| tried.answer == Answer::Succeeded) {
        return Ok(Verdict::broke(format!("{} got through", tried.what)));
    }
    // The same steps on a file beside them, and on the same names where nothing covers them.
    let beside = Run::of(&tree, "control-files").args(["/workspace", "room"]);
    if stage.inside(&beside)?.told()?.answer("write room") != Some(Answer::Succeeded) {
        return Ok(Verdict::no_control("inside, a plain file cannot be written to either"));
    }
    let control = stage.place()?;
    prepared(stage, &control)?;
    let mut words = vec!["control-files".as_ref(), control.as_os_str()];
    words.extend(names.iter().map(|name| std::ffi::OsStr::new(*name)));
    let outside = stage.outside(Unprotected::Directly, words)?.told()?;
    if let Some(name) = names
        .iter()
        .find(|name| outside.answer(&format!("write {name}")) != Some(Answer::Succeeded))
    {
        return Ok(Verdict::no_control(format!("outside, {name} cannot be written to either")));
    }
    Ok(Verdict::held(format!("{} files, {} attempts", names.len(), inside.tries.len())))
}
