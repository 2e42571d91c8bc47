//! Selects the backend of a run.
//!
//! Backends are tried in the operator's order. One is used only if it is available, has a plan for the run, and holds
//! every clause that is required and not waived: no later backend has to hold less than an earlier one. Each skipped
//! backend is reported and recorded with the reason. A backend that fails to start the sandbox is skipped too.

use std::collections::VecDeque;
use std::time::Duration;

use belljar_backend::{
    Backend, Capabilities, Fetch, ImageFacts, Images, Unavailable, by_name, own_images,
    refuse_what_is_not_there,
};
use belljar_spec::egress::SecretValue;
use belljar_spec::wire::control::{ChosenPlan, Keep, LaunchRefusal};
use belljar_spec::{
    BackendName, DecidedBy, HostPaths, ImageUse, MountMode, Plan, ResumeOrigin, Rootfs, RunId,
    RunSpec, SkippedBackend, TreeAccess, Unmet, candidates,
};

use super::bypass_requires_boundary;
use super::{DryRun, LaunchError};
use crate::supervise::SuperviseError;
use belljar_record::redact::{plan_without_secret_values, secrets_of, without_secret_values};

/// A backend, chosen and asked, and its plan. Nothing exists yet.
pub struct Prepared<'f> {
    pub(super) backend: Box<dyn Backend>,
    pub plan: Plan,
    pub spec: RunSpec,
    pub(super) keep: Keep,
    /// How long a kept sandbox lives unless it is renewed.
    pub(super) ttl: Option<Duration>,
    /// The checkpoint that it begins with, if it does not begin at the beginning.
    pub(super) resumed_from: Option<Box<ResumeOrigin>>,
    /// Until they are handed to the proxy.
    pub(super) secrets: Vec<SecretValue>,
    candidates: Candidates<'f>,
}

impl std::fmt::Debug for Prepared<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("plan", &self.plan)
            .field("candidates", &self.candidates)
            .finish_non_exhaustive()
    }
}

/// Chooses a backend and makes the plan. Where none holds what is required, the first plan that could be
/// made comes back, with [`Prepared::refusal`], so that it can be looked at.
pub fn prepare(spec: RunSpec, keep: Keep, images: Images<'_>) -> Result<Prepared<'_>, LaunchError> {
    let keep = keep_of(&spec, keep);
    let has_command = !spec.command.is_empty() || spec.image_defaults.command == DecidedBy::Image;
    if !has_command && keep == Keep::WhileCommandRuns {
        return Err(LaunchError::NoCommand);
    }
    let candidates = Candidates::of(&spec, images);
    // What no backend of this version does is no reason to ask another one.
    if let Some(first) = candidates.left.front() {
        if !first.features().has_boundary() && bypass_requires_boundary::bypasses(&spec) {
            return Err(bypass_requires_boundary::on_host());
        }
        refuse_what_is_not_there(&spec, *first)?;
        let has_image = spec.rootfs == Rootfs::Image || first.features().needs_image();
        let entrypoint = spec.image_defaults.entrypoint.as_ref();
        if entrypoint.is_some_and(|program| !program.is_empty()) && !has_image {
            return Err(LaunchError::Needs {
                option: "sandbox.entrypoint (--entrypoint)".to_owned(),
                needs: "an image, whose own it replaces: --image NAME".to_owned(),
            });
        }
    }
    candidates.choose(spec, keep)
}

/// Makes the plan on a backend that is in no registry: one of the caller's own.
pub fn prepare_on(
    backend: Box<dyn Backend>,
    spec: RunSpec,
    keep: Keep,
) -> Result<Prepared<'static>, LaunchError> {
    let name = backend.name();
    let candidates = Candidates {
        left: VecDeque::new(),
        count: 1,
        skipped_backends: Vec::new(),
        first: None,
        images: Images { store: None, fetch: Fetch::No },
    };
    let unavailable = |reason: Unavailable| LaunchError::Unavailable { backend: name, reason };
    let mut capabilities = backend.probe().map_err(unavailable)?;
    let image = backend.image(&spec, &candidates.images);
    capabilities.image = image.map_err(|reason| LaunchError::Image { backend: name, reason })?;
    let mut plan = backend.plan(&spec, &capabilities)?;
    settle_shell(&*backend, &mut plan, &spec, None)?;
    bypass_requires_boundary::mark_login(&spec, &mut plan.posture);
    bypass_requires_boundary::check(&spec, name, &plan.posture)?;
    let (resumed_from, secrets) = (None, Vec::new());
    Ok(Prepared { backend, plan, spec, keep, ttl: None, resumed_from, secrets, candidates })
}

/// Continues with what another process has chosen for this spec. Where it does not fit the spec, or there is nothing,
/// everything is prepared here. The plan opens nothing: what it names is opened, checked and pinned when it is bound.
pub(super) fn prepare_chosen(
    chosen: Option<Box<ChosenPlan>>,
    spec: RunSpec,
    keep: Keep,
    images: Images<'_>,
) -> Result<Prepared<'_>, LaunchError> {
    let keep = keep_of(&spec, keep);
    let Some(chosen) = chosen.filter(|chosen| chosen.fits(&spec, keep)) else {
        return prepare(spec, keep, images);
    };
    let ChosenPlan { plan, skipped_backends, first, .. } = *chosen;
    let name = plan.backend;
    let unavailable = |reason: Unavailable| LaunchError::Unavailable { backend: name, reason };
    let backend = by_name(name).map_err(unavailable)?;
    bypass_requires_boundary::check(&spec, name, &plan.posture)?;
    let mut candidates = Candidates::of(&spec, images);
    candidates.left.drain(..=skipped_backends.len());
    candidates.skipped_backends = skipped_backends;
    candidates.first = first;
    tracing::debug!(backend = %name, "plan taken over");
    let secrets = Vec::new();
    Ok(Prepared { backend, plan, spec, keep, ttl: None, resumed_from: None, secrets, candidates })
}

/// An agent's run has no command of its own, and lasts as long as its loop.
fn keep_of(spec: &RunSpec, keep: Keep) -> Keep {
    if spec.agent.is_some() { Keep::UntilStopped } else { keep }
}

/// A longer plan is not handed over: the request has to fit into one message.
const MAX_CHOSEN: usize = 1 << 20;

impl Prepared<'_> {
    /// What a supervisor process needs in order not to prepare the run again.
    pub fn chosen(&self) -> Option<Box<ChosenPlan>> {
        let chosen = ChosenPlan {
            spec_hash: self.spec.hash(),
            keep: self.keep,
            plan: self.plan.clone(),
            skipped_backends: self.candidates.skipped_backends.clone(),
            first: self.candidates.first.clone(),
        };
        let length = serde_json::to_vec(&chosen).map_or(usize::MAX, |text| text.len());
        (length <= MAX_CHOSEN).then(|| Box::new(chosen))
    }

    /// What would be done, and what stands in the way.
    pub fn dry_run(&self) -> DryRun {
        let secrets = secrets_of(&self.spec);
        let spec = without_secret_values(&self.plan.settle(&self.spec), &secrets);
        let trees = spec.workspace.iter().chain(&spec.mounts);
        let layered = trees.filter(|mount| mount.mode == MountMode::Overlay);
        DryRun {
            spec_hash: spec.hash(),
            plan_hash: plan_without_secret_values(&self.plan, &secrets).hash(),
            plan: self.plan.clone(),
            layered: layered.map(|mount| mount.target.clone()).collect(),
            agent: spec.agent.clone(),
            git_identity: spec.git_identity.clone(),
            skipped_backends: self.skipped_backends().to_vec(),
            missing: self.missing(),
        }
    }

    /// Steps that were not taken, in their order.
    pub fn skipped_backends(&self) -> &[SkippedBackend] {
        &self.candidates.skipped_backends
    }

    /// Why this would not be started.
    pub fn refusal(&self) -> Option<LaunchError> {
        let missing = self.missing();
        if missing.is_empty() {
            return None;
        }
        let alone = LaunchError::NotGuaranteed { backend: self.plan.backend, missing };
        Some(self.candidates.nothing_left().unwrap_or(alone))
    }

    fn missing(&self) -> Vec<Unmet> {
        self.plan.posture.unmet(&self.spec.required, &self.spec.waivers)
    }
}

impl<'f> Prepared<'f> {
    /// The values of the spec's secrets, which are in no plan and no record.
    #[must_use]
    pub fn with_secrets(self, secrets: Vec<SecretValue>) -> Self {
        Self { secrets, ..self }
    }

    /// A kept sandbox ends after this time, unless it is renewed.
    #[must_use]
    pub fn living(self, ttl: Option<Duration>) -> Self {
        Self { ttl, ..self }
    }

    /// It goes on from a checkpoint of another run.
    #[must_use]
    pub fn resuming(self, resumed_from: Option<Box<ResumeOrigin>>) -> Self {
        Self { resumed_from, ..self }
    }

    /// What to start instead, now that this could not be started and nothing of the command ran. `run` is
    /// the record of the attempt.
    pub(super) fn fall_back(
        mut self,
        error: LaunchError,
        run: Option<RunId>,
    ) -> Result<Self, LaunchError> {
        let backend = self.plan.backend;
        let is_last = self.candidates.count == 1 || uses_own_image(&self.spec, backend);
        if is_last || !is_the_backends(&error, backend) {
            return Err(error);
        }
        self.candidates.pass_over(backend, &error, run);
        let next = self.candidates.choose(self.spec, self.keep)?;
        Ok(next.living(self.ttl).resuming(self.resumed_from))
    }
}

/// What is still to be tried, and what was not taken so far.
#[derive(Debug)]
struct Candidates<'f> {
    left: VecDeque<BackendName>,
    /// How many there were.
    count: usize,
    skipped_backends: Vec<SkippedBackend>,
    /// Why the first was not taken: what the operator wanted most.
    first: Option<Box<LaunchRefusal>>,
    images: Images<'f>,
}

impl<'f> Candidates<'f> {
    fn of(spec: &RunSpec, images: Images<'f>) -> Self {
        let left = VecDeque::from(candidates(spec.backend, &spec.fallback));
        Self { count: left.len(), left, skipped_backends: Vec::new(), first: None, images }
    }

    /// The next one that can be taken. None after it is asked anything.
    fn choose(mut self, spec: RunSpec, keep: Keep) -> Result<Prepared<'f>, LaunchError> {
        let mut shown = None;
        let others = if self.count == 1 { Others::None } else { Others::Wait };
        while let Some(name) = self.left.pop_front() {
            let is_last = || self.count == 1 || self.has_own_image(&spec, name);
            let error = match plan_on(name, others, &spec, keep, &self.images) {
                Ok((backend, plan)) => {
                    let missing = plan.posture.unmet(&spec.required, &spec.waivers);
                    if missing.is_empty() || is_last() {
                        tracing::debug!(backend = %name, unmet = missing.len(), "backend chosen");
                        let secrets = Vec::new();
                        return Ok(Prepared {
                            backend,
                            plan,
                            spec,
                            keep,
                            ttl: None,
                            resumed_from: None,
                            secrets,
                            candidates: self,
                        });
                    }
                    shown.get_or_insert((backend, plan));
                    LaunchError::NotGuaranteed { backend: name, missing }
                }
                Err(error @ LaunchError::Unavailable { .. }) if self.count > 1 => error,
                Err(error) if is_last() => return Err(error),
                Err(error) => error,
            };
            self.pass_over(name, &error, None);
        }
        match (shown, self.nothing_left()) {
            (Some((backend, plan)), _) => {
                let secrets = Vec::new();
                Ok(Prepared {
                    backend,
                    plan,
                    spec,
                    keep,
                    ttl: None,
                    resumed_from: None,
                    secrets,
                    candidates: self,
                })
            }
            (None, Some(error)) => Err(error),
            (None, None) => {
                Err(LaunchError::NoneLeft { tried: self.skipped_backends, first: None })
            }
        }
    }

    /// No other backend is asked then: it would take, or fetch, whatever image has the same name there, because of what
    /// Belljar's own has in it.
    fn has_own_image(&self, spec: &RunSpec, backend: BackendName) -> bool {
        let store = self.images.store.as_deref();
        uses_own_image(spec, backend)
            && store.is_some_and(|store| own_images::may_have(store, &spec.image))
    }

    fn pass_over(&mut self, backend: BackendName, error: &LaunchError, run: Option<RunId>) {
        let (why, fix) = in_words(error);
        tracing::debug!(%backend, why, "backend not taken");
        self.first.get_or_insert_with(|| Box::new(error.refusal()));
        self.skipped_backends.push(SkippedBackend { backend, why, fix, run });
    }

    /// The error, where there were several and none of them was taken.
    fn nothing_left(&self) -> Option<LaunchError> {
        (self.skipped_backends.len() == self.count && self.count > 1).then(|| {
            LaunchError::NoneLeft {
                tried: self.skipped_backends.clone(),
                first: self.first.clone(),
            }
        })
    }
}

/// The run's image is looked for in Belljar's own store.
fn uses_own_image(spec: &RunSpec, backend: BackendName) -> bool {
    spec.rootfs == Rootfs::Image && backend.features().image == ImageUse::Optional
}

/// Whether there are backends beside the one that is asked.
#[derive(Clone, Copy)]
enum Others {
    None,
    Wait,
}

/// The required clauses that an engine would not hold, whatever the image.
fn foreseen(
    backend: &dyn Backend,
    spec: &RunSpec,
    capabilities: &Capabilities,
) -> Result<Vec<Unmet>, LaunchError> {
    let image = Some(ImageFacts { name: spec.image.clone(), ..ImageFacts::default() });
    let mut plan = backend.plan(spec, &Capabilities { image, ..capabilities.clone() })?;
    bypass_requires_boundary::mark_login(spec, &mut plan.posture);
    Ok(plan.posture.unmet(&spec.required, &spec.waivers))
}

/// Finds the backend, asks it, and lets it plan.
fn plan_on(
    name: BackendName,
    others: Others,
    spec: &RunSpec,
    keep: Keep,
    images: &Images<'_>,
) -> Result<(Box<dyn Backend>, Plan), LaunchError> {
    let unavailable = |reason: Unavailable| LaunchError::Unavailable { backend: name, reason };
    if !name.features().has_boundary() && bypass_requires_boundary::bypasses(spec) {
        return Err(bypass_requires_boundary::on_host());
    }
    let _plan = tracing::debug_span!("plan", backend = %name).entered();
    let backend = by_name(name).map_err(unavailable)?;
    let mut capabilities = backend.probe().map_err(unavailable)?;
    tracing::debug!(version = capabilities.version, "backend found");
    if let (Others::Wait, true) = (others, capabilities.engine.is_some()) {
        // An image may take long to fetch: not for a step that would not be taken anyway.
        let missing = foreseen(&*backend, spec, &capabilities)?;
        if !missing.is_empty() {
            return Err(LaunchError::NotGuaranteed { backend: name, missing });
        }
    }
    capabilities.image = backend
        .image(spec, images)
        .map_err(|reason| LaunchError::Image { backend: name, reason })?;
    if keep == Keep::UntilStopped && !name.features().has_boundary() {
        return Err(LaunchError::Needs {
            option: "--keep".to_owned(),
            needs: "a boundary; the host backend has none".to_owned(),
        });
    }
    let mut plan = backend.plan(spec, &capabilities)?;
    if plan.command.argv.is_empty() && keep == Keep::WhileCommandRuns {
        return Err(LaunchError::NoCommand); // the image has none either
    }
    settle_shell(&*backend, &mut plan, spec, None)?;
    bypass_requires_boundary::mark_login(spec, &mut plan.posture);
    bypass_requires_boundary::check(spec, name, &plan.posture)?;
    Ok((backend, plan))
}

/// Looks for the shell that the user inside has. Without `paths` only what changes nothing is done: an image is looked
/// into when the run is bound.
pub(super) fn settle_shell(
    backend: &dyn Backend,
    plan: &mut Plan,
    spec: &RunSpec,
    paths: Option<&HostPaths>,
) -> Result<(), LaunchError> {
    if let Some(shell) = backend.shell(plan, spec, paths)? {
        plan.set_shell(shell, spec);
    }
    Ok(())
}

/// Whether another backend might do better. What is wrong with the run itself, with the record or with
/// this process is wrong with every backend.
fn is_the_backends(error: &LaunchError, backend: BackendName) -> bool {
    match error {
        LaunchError::NotGuaranteed { .. } | LaunchError::NotAsPlanned { .. } => true,
        LaunchError::Start(error) => !error.is_of_the_run(),
        // The jail binds what the run names and nothing else; an engine has to be given it as well.
        LaunchError::Bind(error) => {
            backend.features().trees == TreeAccess::MountedByEngine && !error.is_of_the_run()
        }
        LaunchError::Supervise(error) => match error {
            SuperviseError::SetUp(error) => !error.is_of_the_run(),
            SuperviseError::LockDown { .. }
            | SuperviseError::Hello(_)
            | SuperviseError::NoAnswer(_)
            | SuperviseError::Wire(_) => true,
            // `Step` is also how a start is interrupted.
            SuperviseError::Step(..)
            | SuperviseError::Workdir { .. }
            | SuperviseError::TooLong
            | SuperviseError::Transfer(_)
            | SuperviseError::Record(_)
            | SuperviseError::Checkpoint(_)
            | SuperviseError::CheckpointThread
            | SuperviseError::Egress(_) => false,
        },
        LaunchError::AndCleanup { start, .. } => is_the_backends(start, backend),
        LaunchError::Unavailable { .. }
        | LaunchError::Image { .. }
        | LaunchError::Plan(_)
        | LaunchError::OtherWorktrees(_)
        | LaunchError::NoneLeft { .. }
        | LaunchError::HomePlace { .. }
        | LaunchError::Record { .. }
        | LaunchError::EndNotRecorded { .. }
        | LaunchError::Key(_)
        | LaunchError::Log(_)
        | LaunchError::NoCommand
        | LaunchError::Checkpoint(_)
        | LaunchError::Differs { .. }
        | LaunchError::Egress(_)
        | LaunchError::Publish(_)
        | LaunchError::NoValue { .. }
        | LaunchError::SecretInside { .. }
        | LaunchError::SecretVisible(_)
        | LaunchError::Needs { .. }
        | LaunchError::Conflict { .. } => false,
    }
}

/// Why a step was not taken, and what would change that.
fn in_words(error: &LaunchError) -> (String, Option<String>) {
    match error {
        LaunchError::Unavailable { reason, .. } => (reason.why.clone(), Some(reason.fix.clone())),
        LaunchError::NotGuaranteed { missing, .. } => {
            let unmet = missing.iter().map(|unmet| {
                let Unmet { clause, enforcement } = unmet;
                format!("{clause} is {}: {}", enforcement.status(), enforcement.reason())
            });
            let fix = missing.iter().find_map(|unmet| unmet.enforcement.fix());
            (unmet.collect::<Vec<_>>().join("; "), fix.map(str::to_owned))
        }
        LaunchError::NotAsPlanned { differences } => {
            (format!("{error}: {}", differences.join("; ")), error.fix())
        }
        error => (belljar_spec::text::error_chain(error), error.fix()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::path::PathBuf;

    use belljar_spec::{
        BackendChoice, HostFacts, Layer, MainCommand, Manifest, Origin, Request, Settings, resolve,
    };

    use super::*;

    const NO_IMAGES: Images<'static> = Images { store: None, fetch: Fetch::No };

    fn on_host() -> RunSpec {
        let mut values = Manifest::default();
        values.sandbox.backend = Some(BackendChoice::Host);
        let directory = PathBuf::from("/");
        let layer = Layer { origin: Origin::BuiltIn, directory: directory.clone(), values };
        let settings = Settings::merge(vec![layer], None, None);
        let command = MainCommand::Argv(vec!["true".into()]);
        let request = Request::new(command, directory);
        RunSpec { workspace: None, ..resolve(&settings, &request, &HostFacts::default()).unwrap() }
    }

    /// The host name tells a plan that was handed over from one that was made here.
    fn chosen(spec: &RunSpec) -> Box<ChosenPlan> {
        let prepared = prepare(spec.clone(), Keep::WhileCommandRuns, NO_IMAGES).unwrap();
        let mut chosen = prepared.chosen().unwrap();
        chosen.plan.hostname = "handed-over".into();
        chosen
    }

    fn hostname(chosen: Option<Box<ChosenPlan>>, spec: RunSpec) -> String {
        let prepared = prepare_chosen(chosen, spec, Keep::WhileCommandRuns, NO_IMAGES).unwrap();
        assert!(prepared.candidates.left.is_empty());
        prepared.plan.hostname
    }

    #[test]
    fn a_plan_is_taken_over_for_its_spec_alone() {
        let spec = on_host();
        assert_eq!(hostname(Some(chosen(&spec)), spec.clone()), "handed-over");
        assert_ne!(hostname(None, spec.clone()), "handed-over");
        let other = RunSpec { name: Some("other".into()), ..spec.clone() };
        assert_ne!(hostname(Some(chosen(&spec)), other), "handed-over");
    }

    #[test]
    fn a_plan_of_another_backend_or_version_is_made_again() {
        let spec = on_host();
        for change in [
            (|chosen: &mut ChosenPlan| chosen.plan.backend = BackendName::Jail) as fn(&mut _),
            |chosen| chosen.plan.v += 1,
            |chosen| chosen.keep = Keep::UntilStopped,
            |chosen| {
                let (why, backend) = (String::new(), BackendName::Jail);
                chosen.skipped_backends.push(SkippedBackend { backend, why, fix: None, run: None });
            },
        ] {
            let mut chosen = chosen(&spec);
            change(&mut chosen);
            assert_ne!(hostname(Some(chosen), spec.clone()), "handed-over");
        }
    }

    #[test]
    fn a_plan_that_would_not_fit_into_a_message_is_not_handed_over() {
        let mut spec = on_host();
        assert!(
            prepare(spec.clone(), Keep::WhileCommandRuns, NO_IMAGES).unwrap().chosen().is_some()
        );
        spec.command.push("x".repeat(MAX_CHOSEN).as_str().into());
        assert!(prepare(spec, Keep::WhileCommandRuns, NO_IMAGES).unwrap().chosen().is_none());
    }
}
