//! The agent of a run without a command: its program, its prompt, and what its preset adds to the settings.
//!
//! The preset is the lowest of all layers, and the ceiling holds for it as for any other.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use belljar_spec::manifest::{
    Added, AgentKind, Auth, HostPath, Manifest, MountEntry, RootfsSetting, Secret, Variables,
    WorkspaceMode,
};
use belljar_spec::{
    BackendChoice, BackendName, Clause, FoundAgent, MountMode, Origin, OsText, RunSpec, Settings,
    paths,
};

use super::files::DecisionReader;
use super::manifest::Accepted;
use super::trust::read_trusted;
use super::{ConfigError, Invocation, host};
use crate::agent::find::{self, ByName, Found, Host, SystemInside};
use crate::agent::written::WrittenTrees;
use crate::agent::{Preset, Tells, adapter};
use crate::scaffold::NOT_WRITTEN;
use belljar_record::home::Home;

/// In `agent.program`: the one inside.
const IN_IMAGE: &str = "image";

/// What was found, and what is to be told of it.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) found: Option<FoundAgent>,
    pub(super) lines: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Where an agent is looked for.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) invocation: &'a Invocation,
    pub(super) manifest: Option<&'a Path>,
    pub(super) accepted: &'a Accepted,
    pub(super) reader: &'a DecisionReader,
    pub(super) home: &'a Home,
}

impl Given<'_> {
    /// The directory that what the manifest says is relative to.
    fn directory(&self) -> Option<&Path> {
        self.manifest.and_then(Path::parent)
    }
}

/// Adds the preset to the settings. Nothing happens where a command is given or no agent is named.
pub(super) fn prepare(settings: &mut Settings, given: &Given<'_>) -> Result<Prepared, ConfigError> {
    let invocation = given.invocation;
    let Some(kind) = settings.values.agent.kind.filter(|_| invocation.flags.command.is_empty())
    else {
        return Ok(Prepared::default());
    };
    let prompt_file = prompt_file(settings, given)?;
    let mut told = Prepared::default();
    if let Some(text) = &prompt_file {
        told.warnings.extend(unwritten(settings, text));
    }
    let program = program(kind, settings, given)?;
    let preset = adapter(kind).preset();
    let mut addition = Addition { kind, settings, values: Manifest::default(), told };
    for why in program.passed_over {
        addition.warn(format!("passed over on PATH: {why}"));
    }
    let program = program.found;
    addition.program(&program);
    addition.environment(&preset);
    addition.network(&preset, invocation);
    addition.budgets(preset.tells);
    let Addition { values, mut told, .. } = addition;
    settings.add_preset(values, kind.name());
    told.found = Some(FoundAgent { program: program.program, prompt_file });
    Ok(told)
}

/// What only the decided run tells.
pub(super) fn check(spec: &RunSpec, user_home: Option<&Path>) -> Result<(), ConfigError> {
    let Some(work) = spec.agent.as_ref().filter(|work| work.agent.auth == Auth::Files) else {
        return Ok(());
    };
    let wrong = |why: String| Err(ConfigError::Agent { key: "agent.auth", why });
    if !spec.waivers.iter().any(|waiver| waiver.clause == Clause::EnvClean) {
        return wrong(
            "\"files\" puts your login where the agent can read it; if that is what you want, add \
             --waive env.clean=REASON; else take it out, and let the login stay outside as a secret"
                .to_owned(),
        );
    }
    let files = adapter(work.agent.kind).preset().login_files;
    let is_there = |file: &&&str| user_home.is_some_and(|home| home.join(file).is_file());
    match files.iter().find(is_there) {
        Some(_) => Ok(()),
        None if files.is_empty() => {
            wrong(format!("{} has no login files that are known", work.agent.kind.name()))
        }
        None => wrong(format!("there is no ~/{}; log in on the host first", files.join(", ~/"))),
    }
}

/// The program, and those that were not taken for it.
#[derive(Default)]
struct Chosen {
    found: Found,
    passed_over: Vec<String>,
}

fn program(kind: AgentKind, settings: &Settings, given: &Given<'_>) -> Result<Chosen, ConfigError> {
    if kind == AgentKind::Command {
        return Ok(Chosen::default()); // its words are the manifest's
    }
    let env = &given.invocation.env;
    let user_home = host::user_home(env);
    let sandbox = &settings.values.sandbox;
    let is_engine = |name: BackendName| name.features().needs_image();
    let others = sandbox.backend.and_then(BackendChoice::named).is_some_and(is_engine)
        || matches!(sandbox.rootfs, Some(RootfsSetting::Directory(_)));
    let directory = given.directory().unwrap_or(&given.invocation.cwd);
    let workspace = match (&sandbox.workspace.path, sandbox.workspace.mode) {
        (Some(path), _) => Some(path.as_path()),
        (None, Some(WorkspaceMode::None)) => None,
        (None, _) => Some(directory),
    };
    let host = Host {
        path: env.get(OsStr::new("PATH")).map(|path| path.as_os_str()),
        home: user_home.as_deref(),
        system: if others { SystemInside::Others } else { SystemInside::Hosts },
        written: &WrittenTrees::new(given.reader.trees(), workspace),
    };
    let bare = || Found { program: vec![kind.name().into()], ..Found::default() };
    match &settings.values.agent.program {
        None => {
            let ByName { found, passed_over } = find::by_name(kind.name(), &host);
            // Where a container may come to be, its image may have one.
            let has_image =
                !matches!(settings.origin("sandbox.image"), None | Some(Origin::BuiltIn));
            let falls_back = sandbox.fallback.iter().flatten().copied().any(is_engine);
            let may_be_inside = others || has_image || falls_back;
            match found {
                None if !may_be_inside => Err(not_installed(kind, &passed_over)),
                found => Ok(Chosen { found: found.unwrap_or_else(bare), passed_over }),
            }
        }
        Some(word) if word.as_bytes() == IN_IMAGE.as_bytes() => {
            Ok(Chosen { found: bare(), ..Chosen::default() })
        }
        Some(path) => {
            let from_manifest = from_manifest(settings, "agent.program");
            let base = given.directory().filter(|_| from_manifest);
            let base = base.unwrap_or(&given.invocation.cwd);
            let path = paths::absolute(path.as_path(), base, user_home.as_deref());
            let found = find::at(&path, &host)
                .map_err(|why| ConfigError::Agent { key: "agent.program", why })?;
            Ok(Chosen { found, ..Chosen::default() })
        }
    }
}

/// The sandbox has the host's programs, so what the host has not is not inside either.
fn not_installed(kind: AgentKind, passed_over: &[String]) -> ConfigError {
    let name = kind.name();
    let mut why = format!("there is no program {name} on PATH");
    for one in passed_over {
        why.push_str(&format!("; passed over: {one}"));
    }
    why.push_str(&format!(
        "; install {name}, or name it: agent.program = \"/path/to/{name}\" (\"image\" for the one of an image)"
    ));
    ConfigError::Agent { key: "agent.program", why }
}

/// It costs as much as a real task.
fn unwritten(settings: &Settings, text: &str) -> Option<String> {
    let file = settings.values.agent.prompt_file.as_ref()?;
    text.contains(NOT_WRITTEN).then(|| {
        format!(
            "{} has no task in it yet; write down what is to be done, then: belljar trust",
            file.0
        )
    })
}

fn from_manifest(settings: &Settings, key: &str) -> bool {
    matches!(settings.origin(key), Some(Origin::Manifest(_)))
}

/// What stands in it, where it is what the agent is told.
fn prompt_file(settings: &Settings, given: &Given<'_>) -> Result<Option<String>, ConfigError> {
    let Some(file) = &settings.values.agent.prompt_file else { return Ok(None) };
    let rank = |key: &str| settings.origin(key).map_or(0, Origin::rank);
    if settings.values.agent.prompt.is_some() && rank("agent.prompt") >= rank("agent.prompt_file") {
        return Ok(None);
    }
    let is_manifests = from_manifest(settings, "agent.prompt_file");
    let content = match given.accepted.files.get(&file.0) {
        Some(content) if is_manifests => Some(content.clone()),
        // In the tree of a manifest that nobody trusts no link on the way is followed: it could lead to any file
        // of the user's, which the agent would then be told.
        _ => {
            let directory = given.directory().and_then(|path| std::fs::canonicalize(path).ok());
            let distrusted = directory.as_deref().filter(|_| is_manifests);
            read_trusted(file.as_path(), distrusted, given.reader, given.home)?
        }
    };
    let wrong = |why: String| ConfigError::Agent { key: "agent.prompt_file", why };
    let content = content.ok_or_else(|| wrong(format!("there is no file {}", file.0)))?;
    let text = String::from_utf8(content).map_err(|_| wrong(format!("{} is not UTF-8", file.0)))?;
    Ok(Some(text))
}

/// What the preset adds, and what is told of it.
struct Addition<'a> {
    kind: AgentKind,
    settings: &'a Settings,
    values: Manifest,
    told: Prepared,
}

impl Addition<'_> {
    fn tell(&mut self, what: &str) {
        self.told.lines.push(format!("agent {}: {what}", self.kind.name()));
    }

    fn warn(&mut self, what: String) {
        self.told.warnings.push(format!("{}: {what}", self.kind.name()));
    }

    fn program(&mut self, found: &Found) {
        if self.kind == AgentKind::Command {
            return;
        }
        let sandbox = &self.settings.values.sandbox;
        let tools = sandbox.tools.iter().flat_map(|tools| &tools.0).map(HostPath::as_path);
        let mounts = sandbox.mounts.iter().flat_map(|mounts| &mounts.0);
        let in_place = mounts.filter(|mount| mount.source.as_path() == mount.target.as_path());
        let shown: Vec<&Path> = tools.chain(in_place.map(|mount| mount.source.as_path())).collect();
        let missing = |path: &&PathBuf| !shown.iter().any(|tree| path.starts_with(tree));
        let tools: Vec<HostPath> = found
            .tools
            .iter()
            .filter(missing)
            .map(|path| HostPath(path.as_path().into()))
            .collect();
        let mounts = found.mounts.iter().filter(missing).map(|path| MountEntry {
            source: HostPath(path.as_path().into()),
            target: path.as_path().into(),
            mode: Some(MountMode::Ro),
        });
        let mounts: Vec<MountEntry> = mounts.collect();
        let given: Vec<String> = tools
            .iter()
            .map(|tool| tool.0.to_string())
            .chain(mounts.iter().map(|mount| mount.target.to_string()))
            .collect();
        let words: Vec<String> = found.program.iter().map(ToString::to_string).collect();
        self.tell(&words.join(" "));
        if !given.is_empty() {
            self.tell(&format!("read-only inside: {}", given.join(", ")));
        }
        self.values.sandbox.tools = (!tools.is_empty()).then_some(Added(tools));
        self.values.sandbox.mounts = (!mounts.is_empty()).then_some(Added(mounts));
    }

    fn auth(&self) -> Auth {
        self.settings.values.agent.auth.unwrap_or(Auth::Secret)
    }

    fn environment(&mut self, preset: &Preset) {
        let set = self.settings.values.sandbox.env.as_ref();
        let login = preset.login_env.iter().filter(|_| self.auth() == Auth::Files);
        let missing = preset
            .env
            .iter()
            .chain(login)
            .filter(|(name, _)| !set.is_some_and(|set| set.0.contains_key(name.as_str())));
        let env: BTreeMap<String, OsText> =
            missing.map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        if !env.is_empty() {
            let names: Vec<String> =
                env.iter().map(|(name, value)| format!("{name}={value}")).collect();
            self.tell(&names.join(" "));
            self.values.sandbox.env = Some(Variables(env));
        }
    }

    fn network(&mut self, preset: &Preset, invocation: &Invocation) {
        if preset.hosts.is_empty() {
            return;
        }
        let allowed = self.settings.values.network.allow.clone().unwrap_or_default();
        let by_flag = matches!(self.settings.origin("network.allow"), Some(Origin::Flag(_)));
        if by_flag && allowed.is_empty() {
            let hosts = preset.hosts.join(", ");
            self.warn(format!(
                "no network was asked for, so it cannot reach its service ({hosts})"
            ));
            return;
        }
        let login = preset.login_hosts.iter().filter(|_| self.auth() == Auth::Files);
        let known = |rule: &str| {
            let host = rule.strip_suffix(":443").unwrap_or(rule);
            allowed.iter().any(|one| one == rule || one == host)
        };
        let new: Vec<String> =
            preset.hosts.iter().chain(login).filter(|rule| !known(rule)).cloned().collect();
        if !new.is_empty() {
            self.tell(&format!("reaches {}", new.join(", ")));
            self.values.network.allow = Some(allowed.into_iter().chain(new).collect());
        }
        match self.auth() {
            Auth::Secret => self.secret(&preset.secrets, invocation),
            Auth::Files => {
                let files = preset.login_files.join(", ~/");
                self.tell(&format!("logs in with a copy of ~/{files}"));
            }
        }
    }

    /// The first whose value the host has, unless the settings have one for that host already.
    fn secret(&mut self, secrets: &[Secret], invocation: &Invocation) {
        let values = &self.settings.values;
        let own = values.secret.iter().flat_map(|secrets| &secrets.0);
        if own.into_iter().any(|own| secrets.iter().any(|secret| secret.host == own.host)) {
            return;
        }
        let is_given = |name: &str| {
            let passed = values.sandbox.pass_env.iter().flat_map(|names| &names.0);
            let set = values.sandbox.env.as_ref();
            passed.into_iter().any(|one| one.0 == name)
                || set.is_some_and(|set| set.0.contains_key(name))
        };
        if let Some(secret) = secrets.iter().find(|secret| is_given(&secret.env)) {
            let name = secret.env.clone();
            self.warn(format!("{name} goes inside, value and all; a secret would stay outside"));
            return;
        }
        let source = |secret: &Secret| secret.from_env.clone().unwrap_or(secret.env.clone());
        let has = |secret: &&Secret| {
            let value = invocation.env.get(OsStr::new(&source(secret)));
            value.is_some_and(|value| !value.is_empty())
        };
        let Some(secret) = secrets.iter().find(has) else {
            let names: Vec<String> = secrets.iter().map(source).collect();
            self.warn(format!(
                "there is no login: the host has no {}; set one, or write a [[secret]]",
                names.join(", ")
            ));
            return;
        };
        let place = match &secret.header {
            Some(header) => header.clone(),
            None => "bearer token".to_owned(),
        };
        let name = source(secret);
        self.tell(&format!("{name} as {place} to {}; the value stays outside", secret.host));
        self.values.secret = Some(Added(vec![secret.clone()]));
    }

    /// A budget that nobody can hold is told, not left to be noticed in the morning.
    fn budgets(&mut self, tells: Tells) {
        let (agent, whole) = (&self.settings.values.agent, &self.settings.values.r#loop);
        let cost = agent.max_cost_usd.is_some() || whole.max_cost_usd.is_some();
        let tokens = agent.max_tokens.is_some() || whole.max_tokens.is_some();
        let turns = agent.max_turns.is_some() || whole.max_turns.is_some();
        if cost && tells != Tells::TokensAndCost {
            self.warn("it does not tell its cost, so max_cost_usd cannot stop it".to_owned());
        }
        if turns && tells == Tells::Nothing {
            self.warn("it does not tell its turns, so max_turns cannot stop it".to_owned());
        }
        match tells {
            Tells::Nothing if tokens => {
                self.warn("it does not tell its tokens, so max_tokens cannot stop it".to_owned());
            }
            Tells::Tokens if tokens => self.warn(
                "it tells its tokens when it ends, so max_tokens holds between iterations only"
                    .to_owned(),
            ),
            _ => {}
        }
    }
}
