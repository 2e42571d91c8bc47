//! Finds the program and the prompt of the agent, and adds its preset to the settings.
//!
//! The preset is the lowest layer; the ceiling applies to it as to any other.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use belljar_spec::login_settings::LoginSettings;
use belljar_spec::manifest::{
    Added, AgentKind, Auth, HostPath, Manifest, MountEntry, RootfsSetting, Secret, Variables,
    WorkspaceMode,
};
use belljar_spec::{
    BackendChoice, BackendName, Clause, FoundAgent, MainCommand, MountMode, Origin, OsText,
    RunSpec, Settings, paths,
};

use super::files::DecisionReader;
use super::manifest::AcceptedManifest;
use super::trust::read_trusted;
use super::{ConfigError, Invocation, host};
use crate::agent::find_program::{self, AgentProgram, PathLookup, ProgramSearch, SystemInside};
use crate::agent::writable_trees::RunWritableTrees;
use crate::agent::{Preset, UsageReporting, adapter, adapter_for};
use crate::login::{self, PreparedLogin};
use crate::scaffold::TASK_PLACEHOLDERS;
use belljar_record::home::Home;

/// A value of `agent.program`: use the program in the image.
const IN_IMAGE: &str = "image";

/// The agent that was found, and messages about it.
#[derive(Debug, Default)]
pub(super) struct PreparedAgent {
    pub(super) agent: Option<FoundAgent>,
    pub(super) lines: Vec<String>,
    pub(super) warnings: Vec<String>,
    /// The prompt is still the template.
    pub(super) unwritten: Option<String>,
    pub(super) no_login: Option<String>,
}

/// Where the agent and its files are searched.
#[derive(Clone, Copy)]
pub(super) struct AgentInputs<'a> {
    /// Where logins are refreshed.
    pub(super) login: &'a LoginSettings,
    pub(super) invocation: &'a Invocation,
    pub(super) manifest: Option<&'a Path>,
    pub(super) accepted: &'a AcceptedManifest,
    pub(super) reader: &'a DecisionReader,
    pub(super) home: &'a Home,
}

impl AgentInputs<'_> {
    /// The directory that paths in the manifest are relative to.
    fn directory(&self) -> Option<&Path> {
        self.manifest.and_then(Path::parent)
    }
}

/// Adds the preset to the settings. Does nothing if the run is not for an agent, or the settings have none.
pub(super) fn prepare(
    settings: &mut Settings,
    inputs: &AgentInputs<'_>,
) -> Result<PreparedAgent, ConfigError> {
    let invocation = inputs.invocation;
    let Some(kind) = settings.values.agent.kind.filter(|_| invocation.command.is_agent()) else {
        return Ok(PreparedAgent::default());
    };
    let mut prepared = PreparedAgent::default();
    let prompt_file = match invocation.command {
        MainCommand::AgentTerminal => {
            prepared.warnings.extend(not_in_terminal(settings)?);
            None
        }
        _ => prompt_file(settings, inputs)?,
    };
    if let Some(text) = &prompt_file {
        prepared.unwritten = unwritten(settings, text);
    }
    let program = program(kind, settings, inputs)?;
    let preset = adapter_for(kind, settings.values.agent.format).preset();
    let login = match settings.values.agent.auth {
        Some(Auth::Login) => {
            Some(login::prepare(kind, &invocation.env, inputs.login).map_err(|error| {
                ConfigError::Agent { key: "agent.auth", why: error.to_string() }
            })?)
        }
        _ => None,
    };
    let values = Manifest::default();
    let mut preset_layer = PresetLayer { kind, settings, values, prepared, login };
    for why in program.skipped {
        preset_layer.warn(format!("skipped on PATH: {why}"));
    }
    let program = program.found;
    preset_layer.program(&program);
    preset_layer.environment(&preset);
    preset_layer.network(&preset, invocation);
    if invocation.command == MainCommand::Agent {
        preset_layer.budgets(preset.usage_reporting);
    }
    let PresetLayer { values, mut prepared, login, .. } = preset_layer;
    let login = login.map(|login| login.secrets).unwrap_or_default();
    settings.add_preset(values, kind.name());
    prepared.agent = Some(FoundAgent { program: program.program, prompt_file, login });
    Ok(prepared)
}

/// Checks that need the resolved spec.
pub(super) fn check(spec: &RunSpec, user_home: Option<&Path>) -> Result<(), ConfigError> {
    let Some(agent) = spec.agent_spec().filter(|agent| agent.auth == Auth::Files) else {
        return Ok(());
    };
    let wrong = |why: String| Err(ConfigError::Agent { key: "agent.auth", why });
    if !spec.waivers.iter().any(|waiver| waiver.clause == Clause::EnvClean) {
        return wrong(
            "\"files\" puts your login where the agent can read it; if you want that, add \
             --waive env.clean=REASON; otherwise remove it, and the login stays outside as a secret"
                .to_owned(),
        );
    }
    let files = adapter(agent.kind).preset().login_files;
    let is_there = |file: &&&str| user_home.is_some_and(|home| home.join(file).is_file());
    match files.iter().find(is_there) {
        Some(_) => Ok(()),
        None if files.is_empty() => {
            wrong(format!("no login files are known for {}", agent.kind.name()))
        }
        None => wrong(format!("~/{} does not exist; log in on the host first", files.join(", ~/"))),
    }
}

/// Keys of what belljar does with an agent that it drives itself.
const DRIVEN: &[&str] =
    &["agent.prompt", "agent.prompt_file", "agent.max_", "loop.", "setup.command", "setup.network"];

/// A person drives the agent on a terminal: what was set for this run alone is a mistake, and the rest is a warning.
fn not_in_terminal(settings: &Settings) -> Result<Option<String>, ConfigError> {
    let shown = settings.shown();
    let is_driven = |key: &str| DRIVEN.iter().any(|prefix| key.starts_with(prefix));
    let set = || shown.iter().filter(|one| is_driven(&one.key) && one.origin != Origin::BuiltIn);
    if let Some(found) = set().find(|one| one.origin.is_of_this_run()) {
        let (key, origin) = (found.key.clone(), found.origin.to_string());
        return Err(ConfigError::NotInTerminal { key, origin });
    }
    let keys: Vec<&str> = set().map(|one| one.key.as_str()).collect();
    Ok((!keys.is_empty()).then(|| format!("not used on a terminal (-t): {}", keys.join(", "))))
}

/// The command of the agent's own interface on a terminal.
pub(super) fn terminal_command(spec: &RunSpec) -> Option<Vec<OsText>> {
    let agent = spec.terminal_agent.as_deref()?;
    adapter(agent.kind).terminal_command(agent)
}

/// The program, and candidates that were skipped.
#[derive(Default)]
struct ChosenProgram {
    found: AgentProgram,
    skipped: Vec<String>,
}

fn program(
    kind: AgentKind,
    settings: &Settings,
    inputs: &AgentInputs<'_>,
) -> Result<ChosenProgram, ConfigError> {
    if kind == AgentKind::Command {
        return Ok(ChosenProgram::default()); // the manifest has the command
    }
    let env = &inputs.invocation.env;
    let user_home = host::user_home(env);
    let sandbox = &settings.values.sandbox;
    let is_engine = |name: BackendName| name.features().needs_image();
    let names_image = settings.is_set("sandbox.image") && sandbox.rootfs.is_none();
    let others = sandbox.backend.and_then(BackendChoice::named).is_some_and(is_engine)
        || matches!(sandbox.rootfs, Some(RootfsSetting::Directory(_)))
        || names_image;
    let directory = inputs.directory().unwrap_or(&inputs.invocation.cwd);
    let workspace = match (&sandbox.workspace.path, sandbox.workspace.mode) {
        (Some(path), _) => Some(path.as_path()),
        (None, Some(WorkspaceMode::None)) => None,
        (None, _) => Some(directory),
    };
    let host = ProgramSearch {
        path: env.get(OsStr::new("PATH")).map(|path| path.as_os_str()),
        home: user_home.as_deref(),
        system: if others { SystemInside::Other } else { SystemInside::Host },
        written: &RunWritableTrees::new(inputs.reader.trees(), workspace),
    };
    let bare = || AgentProgram { program: vec![kind.name().into()], ..AgentProgram::default() };
    match &settings.values.agent.program {
        None => {
            let PathLookup { found, skipped } = find_program::by_name(kind.name(), &host);
            // If the run may use a container, the image may have the program.
            let has_image =
                !matches!(settings.origin("sandbox.image"), None | Some(Origin::BuiltIn));
            let falls_back = sandbox.fallback.iter().flatten().copied().any(is_engine);
            let may_be_inside = others || has_image || falls_back;
            match found {
                None if !may_be_inside => Err(not_installed(kind, host.path, &skipped)),
                found => Ok(ChosenProgram { found: found.unwrap_or_else(bare), skipped }),
            }
        }
        Some(program) if program.as_bytes() == IN_IMAGE.as_bytes() => {
            Ok(ChosenProgram { found: bare(), ..ChosenProgram::default() })
        }
        Some(path) => {
            let from_manifest = from_manifest(settings, "agent.program");
            let base = inputs.directory().filter(|_| from_manifest);
            let base = base.unwrap_or(&inputs.invocation.cwd);
            let path = paths::absolute(path.as_path(), base, user_home.as_deref());
            let found = find_program::at(&path, &host)
                .map_err(|why| ConfigError::Agent { key: "agent.program", why })?;
            Ok(ChosenProgram { found, ..ChosenProgram::default() })
        }
    }
}

/// The sandbox has the host's programs, so a program missing on the host is missing in the sandbox too.
fn not_installed(kind: AgentKind, path: Option<&OsStr>, skipped: &[String]) -> ConfigError {
    let name = kind.name();
    let mut why = match path {
        Some(path) => format!("{name} is not on PATH (searched in {})", OsText::from(path)),
        None => format!("{name} is not on PATH, which is not set"),
    };
    for one in skipped {
        why.push_str(&format!("; skipped: {one}"));
    }
    why.push_str(&format!(
        "; install {name}, or set agent.program = \"/path/to/{name}\" (\"image\" for the program in the image)"
    ));
    ConfigError::Agent { key: "agent.program", why }
}

/// A prompt that is still the template costs as much as a real task.
fn unwritten(settings: &Settings, text: &str) -> Option<String> {
    let file = settings.values.agent.prompt_file.as_ref()?;
    is_template(text).then(|| still_template(&file.0))
}

fn is_template(text: &str) -> bool {
    TASK_PLACEHOLDERS.iter().any(|one| text.contains(one))
}

fn still_template(file: &OsText) -> String {
    format!("{file} is still the template; write the task into it, then run: belljar trust")
}

fn from_manifest(settings: &Settings, key: &str) -> bool {
    matches!(settings.origin(key), Some(Origin::Manifest(_)))
}

/// The content of the prompt file, if it is the prompt of the run.
fn prompt_file(
    settings: &Settings,
    inputs: &AgentInputs<'_>,
) -> Result<Option<String>, ConfigError> {
    let Some(file) = &settings.values.agent.prompt_file else { return Ok(None) };
    let rank = |key: &str| settings.origin(key).map_or(0, Origin::rank);
    if settings.values.agent.prompt.is_some() && rank("agent.prompt") >= rank("agent.prompt_file") {
        return Ok(None);
    }
    let from_manifest = from_manifest(settings, "agent.prompt_file");
    let content = match inputs.accepted.files.get(&file.0) {
        Some(content) if from_manifest => Some(content.clone()),
        // In the tree of an untrusted manifest no link is followed: it could point to any file of the user, which
        // would then be sent to the agent.
        _ => {
            let directory = inputs.directory().and_then(|path| std::fs::canonicalize(path).ok());
            let distrusted = directory.as_deref().filter(|_| from_manifest);
            read_trusted(file.as_path(), distrusted, inputs.reader, inputs.home)?
        }
    };
    prompt_text(&file.0, content).map(Some)
}

fn prompt_text(file: &OsText, content: Option<Vec<u8>>) -> Result<String, ConfigError> {
    let wrong = |why: String| ConfigError::Agent { key: "agent.prompt_file", why };
    let content = content.ok_or_else(|| wrong(format!("{file} does not exist")))?;
    String::from_utf8(content).map_err(|_| wrong(format!("{file} is not valid UTF-8")))
}

/// The prompt that `--prompt-file` of `resume` and `fork` names, by the rules for the same flag of `run`.
pub fn read_prompt_file(path: &Path, cwd: &Path, home: &Home) -> Result<String, ConfigError> {
    let path = cwd.join(path);
    let content = read_trusted(&path, None, &super::open_reader(home)?, home)?;
    let file = OsText::from(path.as_path());
    let text = prompt_text(&file, content)?;
    match is_template(&text) {
        true => Err(ConfigError::Agent { key: "agent.prompt_file", why: still_template(&file) }),
        false => Ok(text),
    }
}

/// Builds the layer of the preset, with messages about it.
struct PresetLayer<'a> {
    kind: AgentKind,
    settings: &'a Settings,
    values: Manifest,
    prepared: PreparedAgent,
    /// With `auth = "login"`.
    login: Option<PreparedLogin>,
}

impl PresetLayer<'_> {
    fn report(&mut self, what: &str) {
        self.prepared.lines.push(format!("agent {}: {what}", self.kind.name()));
    }

    fn warn(&mut self, what: String) {
        self.prepared.warnings.push(format!("{}: {what}", self.kind.name()));
    }

    fn program(&mut self, found: &AgentProgram) {
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
        let mounted: Vec<String> = tools
            .iter()
            .map(|tool| tool.0.to_string())
            .chain(mounts.iter().map(|mount| mount.target.to_string()))
            .collect();
        let argv: Vec<String> = found.program.iter().map(ToString::to_string).collect();
        self.report(&argv.join(" "));
        if !mounted.is_empty() {
            self.report(&format!("mounted read-only: {}", mounted.join(", ")));
        }
        self.values.sandbox.tools = (!tools.is_empty()).then_some(Added(tools));
        self.values.sandbox.mounts = (!mounts.is_empty()).then_some(Added(mounts));
    }

    fn auth(&self) -> Auth {
        self.settings.values.agent.auth.unwrap_or(Auth::Secret)
    }

    fn environment(&mut self, preset: &Preset) {
        let set = self.settings.values.sandbox.env.as_ref();
        let copied = preset.login_env.iter().filter(|_| self.auth() == Auth::Files);
        let kept = self.login.iter().flat_map(|login| &login.env);
        let missing = preset
            .env
            .iter()
            .chain(copied)
            .chain(kept)
            .filter(|(name, _)| !set.is_some_and(|set| set.0.contains_key(name.as_str())));
        let env: BTreeMap<String, OsText> =
            missing.map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        if !env.is_empty() {
            let names: Vec<String> =
                env.iter().map(|(name, value)| format!("{name}={value}")).collect();
            self.report(&names.join(" "));
            self.values.sandbox.env = Some(Variables(env));
        }
    }

    fn network(&mut self, preset: &Preset, invocation: &Invocation) {
        if preset.hosts.is_empty() {
            return;
        }
        let allowed = self.settings.values.network.allow.clone().unwrap_or_default();
        let origin = self.settings.origin("network.allow");
        let hosts = self.login.as_ref().map_or(&preset.hosts, |login| &login.rules).clone();
        if origin.is_some_and(Origin::is_of_this_run) && allowed.is_empty() {
            let hosts = hosts.join(", ");
            self.warn(format!(
                "the network is off, so the agent cannot reach its service ({hosts})"
            ));
            self.login = None; // there is nothing to log in to
            return;
        }
        let login = preset.login_hosts.iter().filter(|_| self.auth() == Auth::Files);
        let known = |rule: &str| {
            let host = rule.strip_suffix(":443").unwrap_or(rule);
            allowed.iter().any(|one| one == rule || one == host)
        };
        let new: Vec<String> =
            hosts.iter().chain(login).filter(|rule| !known(rule)).cloned().collect();
        if !new.is_empty() {
            self.report(&format!("network access to {}", new.join(", ")));
            self.values.network.allow = Some(allowed.into_iter().chain(new).collect());
        }
        match self.auth() {
            Auth::Secret => self.secret(&preset.secrets, invocation),
            Auth::Files => {
                let files = preset.login_files.join(", ~/");
                self.report(&format!("logs in with a copy of ~/{files}"));
            }
            Auth::Login => {
                let line = self.login.as_ref().map(|login| login.line.clone());
                line.into_iter().for_each(|line| self.report(&line));
            }
        }
    }

    /// The first secret that is set on the host, unless the settings already have one for that service, or for one of
    /// its variables: that is the key of a gateway at another host.
    fn secret(&mut self, secrets: &[Secret], invocation: &Invocation) {
        let values = &self.settings.values;
        let configured = values.secret.iter().flat_map(|secrets| &secrets.0);
        let is_same = |one: &Secret, other: &Secret| one.host == other.host || one.env == other.env;
        if configured.into_iter().any(|one| secrets.iter().any(|secret| is_same(one, secret))) {
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
            self.warn(format!("the value of {name} is passed into the sandbox; use a [[secret]] to keep it outside"));
            return;
        }
        let source = |secret: &Secret| secret.from_env.clone().unwrap_or(secret.env.clone());
        let has = |secret: &&Secret| {
            let value = invocation.env.get(OsStr::new(&source(secret)));
            value.is_some_and(|value| !value.is_empty())
        };
        let Some(secret) = secrets.iter().find(has) else {
            let names: Vec<String> = secrets.iter().map(source).collect();
            self.prepared.no_login = Some(format!(
                "{}: no login found: the host has no {}; set one of them, add a [[secret]], or use your subscription's login: -c agent.auth=login",
                self.kind.name(),
                names.join(", ")
            ));
            return;
        };
        let place = match &secret.header {
            Some(header) => header.clone(),
            None => "bearer token".to_owned(),
        };
        let name = source(secret);
        self.report(&format!(
            "{name} is sent as {place} to {}; the value stays outside the sandbox",
            secret.host
        ));
        self.values.secret = Some(Added(vec![secret.clone()]));
    }

    /// Warns about budgets that cannot be enforced with this agent.
    fn budgets(&mut self, reporting: UsageReporting) {
        let (agent, whole) = (&self.settings.values.agent, &self.settings.values.r#loop);
        let cost = agent.max_cost_usd.is_some() || whole.max_cost_usd.is_some();
        let tokens = agent.max_tokens.is_some() || whole.max_tokens.is_some();
        let turns = agent.max_turns.is_some() || whole.max_turns.is_some();
        if cost && reporting != UsageReporting::TokensAndCost {
            self.warn("it does not report its cost, so max_cost_usd cannot stop it".to_owned());
        }
        if turns && reporting == UsageReporting::None {
            self.warn("it does not report its turns, so max_turns cannot stop it".to_owned());
        }
        match reporting {
            UsageReporting::None if tokens => {
                self.warn("it does not report its tokens, so max_tokens cannot stop it".to_owned());
            }
            UsageReporting::Tokens if tokens => self.warn(
                "it reports its tokens only at exit, so max_tokens is checked between iterations"
                    .to_owned(),
            ),
            _ => {}
        }
    }
}
