//! An accepted launch: the run has a directory, and nothing is opened yet.

use std::path::PathBuf;

use belljar_bind::file_clock::Arrival;
use belljar_record::{HomeKey, ballast, writable_trees};
use belljar_spec::{RunId, WritableTree};

use super::super::agent_home::prepare_home;
use super::super::run_dir::RunDir;
use super::super::select_backend::{Prepared, settle_shell};
use super::super::{LaunchError, agent, bypass_requires_boundary, network_bridge, resume_check};
use super::bound::{BoundLaunch, Pinned};
use super::other_worktrees;
use super::paths::{disk_limit, host_paths, set_run_id};
use super::{Launch, NotRun};
use crate::config::refuse_planned;
use crate::config::trust::trust_git_link;

pub(super) struct Accepted<'l, 'b> {
    launch: Launch<'l, 'b>,
    run_dir: RunDir,
}

impl<'l, 'b> Launch<'l, 'b> {
    pub(super) fn accept(self) -> Result<Accepted<'l, 'b>, NotRun> {
        if let Some(refusal) = self.prepared.refusal() {
            return Err(refusal.into()); // before anything is made
        }
        ballast::keep(self.home); // before this run can fill the disk
        let run_dir = RunDir::make(self.home)?;
        Ok(Accepted { launch: self, run_dir })
    }
}

impl<'l, 'b> Accepted<'l, 'b> {
    pub(super) fn id(&self) -> RunId {
        self.run_dir.id
    }

    /// Pins everything. Where that fails the run leaves nothing.
    pub(super) fn bind(mut self) -> Result<BoundLaunch<'l, 'b>, NotRun> {
        let _span = tracing::debug_span!("bind").entered();
        match pin(&mut self.launch, &self.run_dir) {
            Ok(pinned) => {
                let Self { launch, run_dir } = self;
                Ok(BoundLaunch { launch, run_dir, pinned })
            }
            Err(error) => {
                self.run_dir.discard(); // not accepted, so there is nothing to keep
                Err(error.into())
            }
        }
    }
}

fn pin(launch: &mut Launch<'_, '_>, run_dir: &RunDir) -> Result<Pinned, LaunchError> {
    let Launch { home, prepared, secrets, observer, .. } = launch;
    let home = *home;
    let arrived = Arrival::now();
    let read_failed = |error| LaunchError::Record { path: home.path().to_owned(), error };
    let known = writable_trees::known(home).map_err(read_failed)?;
    set_run_id(&mut prepared.plan, &run_dir.id);
    let bridge = network_bridge::prepare(run_dir, prepared, secrets)?;
    let _pinned = agent::bring_home(home, run_dir, prepared)?; // until its layers are taken over too
    let user_home = std::env::var_os("HOME").map(PathBuf::from);
    prepare_home(&run_dir.home(), &prepared.spec, user_home.as_deref())?;
    run_dir.make_targets(&prepared.plan)?;
    let is_engine = prepared.plan.backend.features().needs_image();
    let owner = match &prepared.plan.image {
        Some(_) if is_engine => HomeKey::load_or_make(home.path())?.owner_label(),
        _ => String::new(),
    };
    let mut wary_of = known.clone();
    let untrusted = prepared.spec.untrusted_tree.as_ref();
    wary_of.extend(untrusted.map(|tree| WritableTree::by_path(tree.as_path().to_owned())));
    let mut paths = host_paths(home, run_dir, &prepared.plan, wary_of, owner);
    paths.seed = agent::seed(home, prepared);
    if is_engine {
        let Prepared { backend, plan, spec, .. } = &mut **prepared;
        settle_shell(&**backend, plan, spec, Some(&paths))?;
    }
    // Reported before it is done: it can take long, and as much of the disk as the tree.
    for copy in belljar_bind::copies_ahead(&prepared.plan, &paths) {
        observer.warned(&format!(
            "{} has to be copied for the overlay: {} MB, {} entries",
            copy.path.display(),
            copy.bytes.div_ceil(1_000_000),
            copy.entries
        ));
    }
    if let Some(git) = &prepared.spec.git_directory {
        other_worktrees::shield(&mut prepared.plan, git)?; // those that there are by now
    }
    let mut bound = prepared.backend.bind(&prepared.plan, &paths)?;
    refuse_planned(&prepared.spec, &prepared.plan.mounts)?;
    let missing = bound.posture.unmet(&prepared.spec.required, &prepared.spec.waivers);
    if !missing.is_empty() {
        // Binding may have found out more.
        return Err(LaunchError::NotGuaranteed { backend: prepared.plan.backend, missing });
    }
    bypass_requires_boundary::check(&prepared.spec, prepared.plan.backend, &bound.posture)?;
    resume_check::check(prepared)?;
    if let Some(git) = &prepared.spec.git_directory {
        // While its link is still the operator's.
        let trusted = trust_git_link(git, &known, home);
        trusted.map_err(|error| read_failed(std::io::Error::other(error)))?;
        git.mark_part(&mut bound.layered);
    }
    // A tree is known as writable before the first byte can be written to it.
    writable_trees::remember(home, &known, &bound.writable_trees).map_err(read_failed)?;
    if !bound.layered.is_empty() {
        belljar_workspace::write_layers(&run_dir.directory, &bound.layered).map_err(read_failed)?;
        agent::bring_baseline(home, run_dir, prepared)?;
    }
    let disk = disk_limit(&prepared.plan, run_dir, &bound);
    Ok(Pinned { arrived, bound, disk, bridge })
}
