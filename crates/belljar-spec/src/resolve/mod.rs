//! Resolves settings to a run. Pure: facts about the host come in as [`HostFacts`].

mod agent;
mod commands;
mod environment;
mod git;
mod network;
mod policy;
mod targets;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use agent::{FoundAgent, MAX_PROMPT, check_prompt};
pub use git::{FoundGitDirectory, LinkForm};

use crate::backends::{BackendChoice, BackendName};
use crate::ceiling::BeyondCeiling;
use crate::choice::candidates;
use crate::egress::Reach;
use crate::env_file::EnvLine;
use crate::git_identity::GitIdentity;
use crate::human_duration::HumanDuration;
use crate::layers::{Origin, Settings};
use crate::manifest::{GitIdentitySetting, Limit, RootfsSetting, WorkspaceMode};
use crate::runspec::{
    DecidedBy, DeniedCalls, ImageDefaults, Limits, Mount, MountMode, RUN_SPEC_VERSION, Retention,
    Rootfs, RunSpec, Stdin, Terminal, Tmpfs,
};
use crate::size::Size;
use crate::text::OsText;

/// The home directory inside.
pub const HOME_INSIDE: &str = "/home/agent";
/// Where the workspace appears unless a place is named.
pub const WORKSPACE_INSIDE: &str = "/workspace";
/// The target that means "at the same path as outside".
const SAME: &[u8] = b"same";

/// Facts about the host; nothing else of it is read.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    /// Bytes.
    pub memory_total: Option<u64>,
    pub home: Option<PathBuf>,
    pub cwd: PathBuf,
    pub env: BTreeMap<OsString, OsString>,
    /// The author in the user's own git configuration.
    pub git_identity: Option<GitIdentity>,
}

/// Whether what the command prints goes to a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    Terminal,
    NotTerminal,
}

/// The main command of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MainCommand {
    /// This program, with its arguments.
    Argv(Vec<OsText>),
    /// The agent of the settings.
    Agent,
    /// The agent's own terminal interface, for a person to use.
    AgentTerminal,
    /// None: the sandbox waits for `exec`.
    None,
}

impl MainCommand {
    fn argv(&self) -> &[OsText] {
        match self {
            Self::Argv(argv) => argv,
            Self::Agent | Self::AgentTerminal | Self::None => &[],
        }
    }

    pub fn is_agent(&self) -> bool {
        matches!(self, Self::Agent | Self::AgentTerminal)
    }
}

/// What is asked of this one run, beside the settings.
#[derive(Clone, Debug)]
pub struct Request {
    pub command: MainCommand,
    pub stdin: Stdin,
    pub terminal: Terminal,
    pub screen: Screen,
    /// The workspace where no layer names one: the manifest's directory, or the current one.
    pub default_workspace: PathBuf,
    /// A directory of the host: a command starts there, if it is in the workspace and no layer says where.
    pub start_in: Option<PathBuf>,
    /// The manifest, by its absolute path.
    pub manifest: Option<PathBuf>,
    /// The content of each file of `sandbox.env_file`, by its absolute path.
    pub env_files: BTreeMap<OsText, Vec<EnvLine>>,
    pub reach: Reach,
    /// What the host has of the settings' agent; only set where that is the main command.
    pub agent: Option<FoundAgent>,
    /// The tree of an untrusted manifest.
    pub untrusted_tree: Option<OsText>,
    /// The repository of the workspace, where its `.git` is a file.
    pub git_directory: Option<FoundGitDirectory>,
}

impl Request {
    /// A run without input and terminal, working in `directory`.
    pub fn new(command: MainCommand, directory: PathBuf) -> Self {
        Self {
            command,
            stdin: Stdin::Null,
            terminal: Terminal::None,
            screen: Screen::NotTerminal,
            default_workspace: directory,
            start_in: None,
            manifest: None,
            env_files: BTreeMap::new(),
            reach: Reach::Listed,
            agent: None,
            untrusted_tree: None,
            git_directory: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("{key}: the target \"{target}\" {why}")]
    Target { key: String, target: OsText, why: String },
    #[error("{key} and {other} both appear at \"{target}\"; give one of them another target")]
    SameTarget { key: String, other: String, target: OsText },
    #[error("{key}: \"{path}\" {why}")]
    Path { key: String, path: OsText, why: String },
    #[error(
        "sandbox.image and sandbox.rootfs both say what the root directory is made of; remove one of them \
         (the image is set by {image}, the root by {rootfs})"
    )]
    TwoRoots { image: Origin, rootfs: Origin },
    #[error("{key}: {why}")]
    Variable { key: String, why: String },
    #[error("{key}: {why}")]
    Network { key: String, why: String },
    #[error("{key}: {why}")]
    Agent { key: String, why: String },
    #[error("{key}: {why}")]
    Commands { key: String, why: String },
    #[error(
        "policy.waive: \"all\" is for the host backend alone; waive each clause by its name, or use \
         --backend host"
    )]
    WaiveAll,
    #[error("there is no command to run; put it after --, such as: belljar run -- make test")]
    NoCommand,
    #[error("the command contains a NUL byte, which is not allowed in an argument")]
    NulInCommand,
    #[error(transparent)]
    BeyondCeiling(#[from] BeyondCeiling),
}

/// Decides the run.
pub fn resolve(
    settings: &Settings,
    request: &Request,
    host: &HostFacts,
) -> Result<RunSpec, ResolveError> {
    check_command(&request.command)?;
    if let Some(ceiling) = &settings.ceiling {
        ceiling.check(settings)?;
        ceiling.check_reach(settings, request.reach)?;
    }
    let sandbox = &settings.values.sandbox;
    let (backend, fallback) = backends(settings);
    let rootfs = rootfs(settings, backend, &fallback)?;
    let may_have_image = rootfs == Rootfs::Image
        || candidates(backend, &fallback).iter().any(|name| name.features().needs_image());
    let agent = agent::work(settings, request)?;
    let terminal_agent = agent::in_terminal(settings, request)?;
    let workspace = workspace(settings, request, agent.is_some() || terminal_agent.is_some())?;
    agent::check_until(agent.as_deref(), workspace.as_ref())?;
    let mut mounts = mounts(settings)?;
    mounts.extend(git::mount(settings, request, workspace.as_ref())?);
    let tmpfs = tmpfs(settings)?;
    let tools: Vec<OsText> =
        sandbox.tools.iter().flat_map(|tools| &tools.0).map(|tool| tool.0.clone()).collect();
    targets::check(&targets::Placed {
        rootfs: &rootfs,
        workspace: workspace.as_ref(),
        mounts: &mounts,
        tmpfs: &tmpfs,
        tools: &tools,
    })?;
    let env = environment::environment(settings, request, host, &tools)?;
    let login = request.agent.as_ref().map_or(&[][..], |agent| &agent.login);
    let egress = network::egress(settings, request.reach, login, &env)?;
    let hide = sandbox.hide.iter().flat_map(|names| &names.0).map(|name| name.0.clone()).collect();
    let allow_source = sandbox.allow_source.iter().flat_map(|paths| &paths.0);
    let allow_control = sandbox.allow_control.iter().flat_map(|names| &names.0);
    Ok(RunSpec {
        v: RUN_SPEC_VERSION,
        backend,
        command: request.command.argv().to_vec(),
        name: sandbox.name.as_ref().map(|name| name.as_str().to_owned()),
        labels: sandbox.labels.clone().unwrap_or_default(),
        workdir: workdir(settings, request, workspace.as_ref())?,
        image: sandbox.image.clone().unwrap_or_default(),
        image_defaults: image_defaults(
            settings,
            request,
            &rootfs,
            workspace.as_ref(),
            may_have_image,
        ),
        hide,
        allow_source: allow_source.map(|path| path.0.clone()).collect(),
        allow_control: allow_control.map(|name| name.0.clone()).collect(),
        manifest: manifest_inside(request, workspace.as_ref()),
        env,
        user: sandbox.user.unwrap_or_default(),
        denied_calls: match sandbox.trace_denied {
            Some(true) => DeniedCalls::Recorded,
            Some(false) | None => DeniedCalls::NotRecorded,
        },
        network_allow: network::rules(settings)?,
        limits: limits(settings),
        stdin: request.stdin,
        terminal: request.terminal,
        required: policy::required(settings, workspace.as_ref(), request.reach),
        waivers: policy::waivers(settings, backend)?,
        retention: retention(settings),
        fallback,
        pull: sandbox.pull.unwrap_or_default(),
        oci_runtime: sandbox.oci_runtime.clone(),
        egress,
        agent,
        terminal_agent,
        shell: sandbox.shell.as_ref().map(|shell| shell.0.clone()),
        git_identity: git_identity(settings, host),
        git_directory: git::directory(request),
        untrusted_tree: request.untrusted_tree.clone(),
        commands: commands::policy(settings)?,
        rootfs,
        workspace,
        tools,
        mounts: targets::outermost_first(mounts),
        tmpfs,
    })
}

/// What the root is made of. An image that a layer names is the root, unless the only backend is an engine, whose
/// containers have no other.
fn rootfs(
    settings: &Settings,
    backend: BackendChoice,
    fallback: &[BackendName],
) -> Result<Rootfs, ResolveError> {
    let origins = (settings.origin("sandbox.image"), settings.origin("sandbox.rootfs"));
    let names_image = settings.is_set("sandbox.image");
    let has_choice =
        candidates(backend, fallback).iter().any(|name| !name.features().needs_image());
    match (&settings.values.sandbox.rootfs, origins) {
        (Some(_), (Some(image), Some(rootfs))) if names_image && has_choice => {
            Err(ResolveError::TwoRoots { image: image.clone(), rootfs: rootfs.clone() })
        }
        (Some(RootfsSetting::Directory(path)), _) => Ok(Rootfs::Directory { path: path.0.clone() }),
        (None, _) if names_image => Ok(Rootfs::Image),
        (None | Some(RootfsSetting::Host), _) => Ok(Rootfs::Host),
    }
}

/// Only what nobody else decided is left to the image, and only where there is one.
fn image_defaults(
    settings: &Settings,
    request: &Request,
    rootfs: &Rootfs,
    workspace: Option<&Mount>,
    may_have_image: bool,
) -> ImageDefaults {
    let sandbox = &settings.values.sandbox;
    let left = |is_left: bool| match may_have_image && is_left {
        true => DecidedBy::Image,
        false => DecidedBy::Run,
    };
    let names_agent = settings.values.agent.kind.is_some();
    let has_no_command = request.command == MainCommand::Agent && !names_agent;
    ImageDefaults {
        entrypoint: sandbox.entrypoint.clone(),
        command: left(has_no_command && settings.is_set("sandbox.image")),
        workdir: left(workspace.is_none() && sandbox.workdir.is_none()),
        // A container's user is one of the host's.
        user: match (*rootfs == Rootfs::Image, sandbox.user) {
            (true, None) => DecidedBy::Image,
            _ => DecidedBy::Run,
        },
    }
}

fn check_command(command: &MainCommand) -> Result<(), ResolveError> {
    let MainCommand::Argv(argv) = command else { return Ok(()) };
    if argv.first().is_none_or(|program| program.as_bytes().is_empty()) {
        return Err(ResolveError::NoCommand);
    }
    if argv.iter().any(|argument| argument.as_bytes().contains(&0)) {
        return Err(ResolveError::NulInCommand);
    }
    Ok(())
}

/// Under a ceiling that names backends, `auto` means the allowed ones, in its order.
fn backends(settings: &Settings) -> (BackendChoice, Vec<BackendName>) {
    let chosen = settings.values.sandbox.backend.unwrap_or_default();
    let written = settings.values.sandbox.fallback.clone().unwrap_or_default();
    let allowed = settings.ceiling.as_ref().and_then(|ceiling| ceiling.auto_backends());
    match (chosen, allowed.as_deref()) {
        (BackendChoice::Auto, Some([first, others @ ..])) => {
            ((*first).into(), others.iter().copied().chain(written).collect())
        }
        _ => (chosen, written),
    }
}

fn workspace(
    settings: &Settings,
    request: &Request,
    for_agent: bool,
) -> Result<Option<Mount>, ResolveError> {
    let wanted = &settings.values.sandbox.workspace;
    let rank = |key: &str| settings.origin(key).map_or(0, Origin::rank);
    // A directory named by a higher layer than the one that set "none" takes effect.
    let named_later = rank("sandbox.workspace.path") > rank("sandbox.workspace.mode");
    let mode = match wanted.mode {
        Some(WorkspaceMode::None) if !named_later => return Ok(None),
        // An agent's changes are reviewed before they are applied.
        None if for_agent => MountMode::Overlay,
        Some(WorkspaceMode::None | WorkspaceMode::Rw) | None => MountMode::Rw,
        Some(WorkspaceMode::Ro) => MountMode::Ro,
        Some(WorkspaceMode::Overlay) => MountMode::Overlay,
    };
    let source: OsText = match &wanted.path {
        Some(path) => path.0.clone(),
        None => crate::paths::clean(&request.default_workspace).into(),
    };
    if !source.as_path().is_absolute() {
        let why = "is not absolute; name the workspace with --workspace DIR".to_owned();
        return Err(ResolveError::Path { key: "sandbox.workspace.path".into(), path: source, why });
    }
    if let Some(ceiling) = &settings.ceiling {
        ceiling.check_source(settings, "sandbox.workspace.path", source.as_path())?;
    }
    let target = match &wanted.target {
        None => git::workspace_target(request).unwrap_or_else(|| WORKSPACE_INSIDE.into()),
        Some(target) if target.as_bytes() == SAME => source.clone(),
        Some(target) => targets::absolute("sandbox.workspace.target", target)?,
    };
    Ok(Some(Mount { source, target, mode }))
}

fn mounts(settings: &Settings) -> Result<Vec<Mount>, ResolveError> {
    let entries = settings.values.sandbox.mounts.iter().flat_map(|mounts| &mounts.0);
    let mount = |(index, entry): (usize, &crate::manifest::MountEntry)| {
        let target = targets::absolute(&format!("sandbox.mounts[{index}]"), &entry.target)?;
        let mode = entry.mode.unwrap_or(MountMode::Ro);
        Ok(Mount { source: entry.source.0.clone(), target, mode })
    };
    entries.enumerate().map(mount).collect()
}

fn tmpfs(settings: &Settings) -> Result<Vec<Tmpfs>, ResolveError> {
    let entries = settings.values.sandbox.tmpfs.iter().flat_map(|entries| &entries.0);
    let tmpfs = |(index, entry): (usize, &crate::manifest::TmpfsEntry)| {
        let target = targets::absolute(&format!("sandbox.tmpfs[{index}]"), &entry.0.target)?;
        Ok(Tmpfs { target, size: entry.0.size.0 })
    };
    entries.enumerate().map(tmpfs).collect()
}

fn workdir(
    settings: &Settings,
    request: &Request,
    workspace: Option<&Mount>,
) -> Result<OsText, ResolveError> {
    let start = workspace.map_or(OsText::from(HOME_INSIDE), |workspace| workspace.target.clone());
    match &settings.values.sandbox.workdir {
        None => {
            let below = workspace.and_then(|workspace| start_below(settings, request, workspace));
            Ok(below.unwrap_or(start))
        }
        Some(path) => {
            let inside: OsText = start.as_path().join(path.as_path()).into();
            targets::absolute("sandbox.workdir", &inside)
        }
    }
}

/// Where the caller is, if that is in the workspace and visible inside. An agent works on the whole workspace.
fn start_below(settings: &Settings, request: &Request, workspace: &Mount) -> Option<OsText> {
    let start_in = request.start_in.as_deref().filter(|_| !request.command.is_agent())?;
    let source = workspace.source.as_path();
    let below = start_in.strip_prefix(source).ok()?;
    let mut hidden = settings.values.sandbox.hide.iter().flat_map(|names| &names.0);
    if hidden.any(|name| start_in.starts_with(source.join(name.0.as_path()))) {
        return None;
    }
    (!below.as_os_str().is_empty()).then(|| workspace.target.as_path().join(below).into())
}

fn manifest_inside(request: &Request, workspace: Option<&Mount>) -> Option<OsText> {
    let manifest = request.manifest.as_deref()?;
    let workspace: &Path = workspace?.source.as_path();
    manifest.starts_with(workspace).then(|| OsText::from(manifest))
}

fn git_identity(settings: &Settings, host: &HostFacts) -> Option<GitIdentity> {
    match &settings.values.sandbox.git_identity {
        None | Some(GitIdentitySetting::Host) => host.git_identity.clone(),
        Some(GitIdentitySetting::None) => None,
        Some(GitIdentitySetting::Named(identity)) => Some(identity.clone()),
    }
}

/// How much of stopped runs is retained.
pub fn retention(settings: &Settings) -> Retention {
    let wanted = &settings.values.retention;
    let built_in = Retention::default();
    Retention {
        sandboxes: wanted.sandboxes.unwrap_or(built_in.sandboxes),
        runs: wanted.runs.unwrap_or(built_in.runs),
    }
}

fn limits(settings: &Settings) -> Limits {
    let limits = &settings.values.limits;
    Limits {
        memory: limits.memory.and_then(Limit::value).map(|Size(bytes)| bytes),
        millicpus: limits.cpus.and_then(Limit::value).map(|cpus| cpus.millis()),
        pids: limits.pids.and_then(Limit::value),
        time: limits.time.and_then(Limit::value).map(HumanDuration::as_duration),
        idle: limits.idle.and_then(Limit::value).map(HumanDuration::as_duration),
        output: limits.output.map_or(256 << 20, |Size(bytes)| bytes),
        disk: limits.disk.and_then(Limit::value).map(|Size(bytes)| bytes),
        stop_timeout: limits.stop_timeout.unwrap_or(HumanDuration::from_secs(10)).as_duration(),
    }
}
