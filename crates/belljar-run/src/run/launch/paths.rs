//! The paths of a run on the host: those it gets, those that are watched, and those that no run gets.

use std::path::PathBuf;

use belljar_backend::Bound;
use belljar_record::home::Home;
use belljar_spec::{
    Access, Backing, GitDirectory, HostPaths, MountKind, Plan, RunId, Source, WritableTree,
};
use belljar_workspace::WrittenTree;

use super::super::run_dir::RunDir;
use crate::supervise::DiskLimit;

/// A command without a boundary is not watched: what it writes cannot be told from what others write.
pub(super) fn disk_limit(plan: &Plan, run_dir: &RunDir, bound: &Bound) -> Option<DiskLimit> {
    let bytes = plan.limits.disk.filter(|_| plan.backend.features().has_boundary())?;
    let (mut own, mut copies) = (vec![run_dir.home()], Vec::new());
    own.push(run_dir.directory.join(belljar_workspace::checkpoint::CHECKPOINTS));
    for note in &bound.layered {
        let upper = belljar_workspace::upper_of(&run_dir.directory, note);
        match note.backing {
            Backing::Overlay { .. } => own.push(upper),
            Backing::Copy { copied } => copies.push((upper, copied)),
        }
    }
    let files = vec![run_dir.directory.join(belljar_record::EVENTS)];
    Some(DiskLimit { bytes, own, files, trees: bound.writable_trees.clone(), copies })
}

/// The trees that the run can write, each with its place inside.
pub(super) fn written_trees(
    plan: &Plan,
    bound: &Bound,
    git: Option<&GitDirectory>,
) -> Vec<WrittenTree> {
    let given = plan.mounts.iter().filter_map(|mount| match &mount.what {
        MountKind::Bind { source: Source::Path { path }, access: Access::Writable, .. } => {
            let path = std::fs::canonicalize(path.as_path()).ok()?;
            let target = mount.target.clone();
            let before = bound.surveyed.iter().find(|tree| tree.path == path).cloned();
            let is_writable = bound.writable_trees.contains(&path);
            let git = git.filter(|git| git.path.as_path() == path);
            let git_part = git.map(|git| git.part.clone());
            is_writable.then_some(WrittenTree { path, target, before, git_part })
        }
        _ => None,
    });
    given.collect()
}

/// A program inside can tell which run it is in.
pub(super) fn set_run_id(plan: &mut Plan, id: &RunId) {
    plan.command.env.insert(belljar_spec::env::RUN_ID_INSIDE.to_owned(), id.as_str().into());
}

pub(super) fn host_paths(
    home: &Home,
    run_dir: &RunDir,
    plan: &Plan,
    mut run_writable: Vec<WritableTree>,
    owner: String,
) -> HostPaths {
    // This run's own writable trees count too: an earlier run may have worked on them unrecorded.
    run_writable.extend(plan.mounts.iter().filter_map(|mount| match &mount.what {
        MountKind::Bind { source: Source::Path { path }, access: Access::Writable, .. } => {
            std::fs::canonicalize(path.as_path()).ok().map(WritableTree::by_path)
        }
        MountKind::Sent { source, access: Access::Writable, .. } => {
            std::fs::canonicalize(source.as_path()).ok().map(WritableTree::by_path)
        }
        _ => None,
    }));
    let user_home = std::env::var_os("HOME").map(PathBuf::from);
    let executable = std::env::current_exe().ok();
    HostPaths {
        run: run_dir.id.to_string(),
        directory: run_dir.directory.clone(),
        bin: home.bin(),
        images: home.images(),
        image: None,
        owner,
        home: run_dir.home(),
        upper: run_dir.directory.join("upper"),
        seed: None,
        belljar_directories: own_directories(home, user_home.as_deref()),
        executable,
        run_writable,
        homes: belljar_bind::sensitive::home_directories(user_home.as_deref()),
    }
}

/// What no run is ever given: records, settings, sockets and locks of belljar.
fn own_directories(home: &Home, user_home: Option<&std::path::Path>) -> Vec<PathBuf> {
    let below = |variable: &str, default: Option<PathBuf>| {
        std::env::var_os(variable).map(PathBuf::from).or(default).map(|base| base.join("belljar"))
    };
    let config = below("XDG_CONFIG_HOME", user_home.map(|home| home.join(".config")));
    let runtime = below("XDG_RUNTIME_DIR", None);
    // Another home than this one may be the usual one, with other runs' records.
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| user_home.map(|home| home.join(".local/state")));
    let usual = |name: &str| state.as_ref().map(|state| state.join(name));
    [
        Some(home.path().to_owned()),
        usual("belljar"),
        usual("belljar-logins"),
        config,
        runtime,
        Some("/etc/belljar".into()),
        Some("/run/belljar".into()),
        crate::login::lock_directory(|name| std::env::var_os(name)),
    ]
    .into_iter()
    .flatten()
    .collect()
}
