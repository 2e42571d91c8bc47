//! What a run with an agent needs besides a sandbox: the checkpoint that it starts from, and the options of its loop.

use std::path::PathBuf;

use belljar_backend::Bound;
use belljar_spec::{MountMode, RunSpec};

use super::LaunchError;
use super::run_dir::RunDir;
use super::select_backend::Prepared;
use crate::supervise::{AgentLoopOptions, WorkTree};
use belljar_record::home::Home;
use belljar_workspace::checkpoint::{self, Pin, Subject};

/// Where the layers of the checkpoint are that the run begins with.
pub(super) fn seed(home: &Home, prepared: &Prepared<'_>) -> Option<PathBuf> {
    let checkpoint = checkpoint_of(home, prepared)?;
    Some(checkpoint.join(checkpoint::SEED))
}

fn checkpoint_of(home: &Home, prepared: &Prepared<'_>) -> Option<PathBuf> {
    let resumed_from =
        prepared.resumed_from.as_deref().filter(|resumed_from| resumed_from.iteration > 0)?;
    Some(checkpoint::path(&home.run_dir(&resumed_from.from), resumed_from.iteration))
}

/// Before anything is mounted: the run's home is as the checkpoint has it, which stays until what is returned goes.
pub(super) fn bring_home(
    home: &Home,
    place: &RunDir,
    prepared: &Prepared<'_>,
) -> Result<Option<Pin>, LaunchError> {
    let Some(checkpoint) = checkpoint_of(home, prepared) else { return Ok(None) };
    Ok(Some(checkpoint::restore_home(&checkpoint, &place.home())?))
}

/// What the run before saw of the files that it changed is what this one saw.
pub(super) fn bring_baseline(
    home: &Home,
    place: &RunDir,
    prepared: &Prepared<'_>,
) -> Result<(), LaunchError> {
    let Some(resumed_from) =
        prepared.resumed_from.as_deref().filter(|resumed_from| resumed_from.iteration > 0)
    else {
        return Ok(());
    };
    Ok(checkpoint::carry_base(&home.run_dir(&resumed_from.from), &place.directory)?)
}

pub(super) fn loop_options(
    home: &Home,
    place: &RunDir,
    prepared: &Prepared<'_>,
    bound: &Bound,
) -> Option<Box<AgentLoopOptions>> {
    let spec = &prepared.spec;
    let work = spec.agent.as_deref()?.clone();
    Some(Box::new(AgentLoopOptions {
        work,
        resumed_from: prepared.resumed_from.clone(),
        workspace: work_tree(spec, bound),
        subject: Subject {
            run: place.id,
            directory: place.directory.clone(),
            trees: bound.layered.clone(),
            written: bound.writable_trees.clone(),
            born: checkpoint_of(home, prepared),
            most_bytes: spec.limits.disk.map(|bytes| bytes / 2),
            cancel: Default::default(),
        },
        idle: spec.limits.idle,
    }))
}

fn work_tree(spec: &RunSpec, bound: &Bound) -> Option<WorkTree> {
    let workspace = spec.workspace.as_ref()?;
    match workspace.mode {
        MountMode::Overlay => {
            let is_it = |tree: &belljar_spec::LayeredTree| {
                tree.target.as_path() == workspace.target.as_path()
            };
            bound.layered.iter().position(is_it).map(WorkTree::Layered)
        }
        MountMode::Ro | MountMode::Rw => {
            Some(WorkTree::Real(workspace.source.as_path().to_owned()))
        }
    }
}
