//! Reads settings from files, variables and flags, merges the layers and resolves the spec of a run.
//!
//! Every file may be hostile: only regular files are read, and only up to a size limit.

mod agent;
mod dotenv;
pub(crate) mod files;
mod find;
mod flags;
mod git_identity;
mod git_link;
pub(crate) mod host;
mod login_settings;
mod manifest;
mod secret;
pub mod trust;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_spec::egress::Reach;
use belljar_spec::layers::{self, Variable};
use belljar_spec::manifest::{GitIdentitySetting, ManifestError};
use belljar_spec::network_list::Additions;
use belljar_spec::{
    CeilingFile, Layer, MainCommand, Manifest, Origin, OsText, Purpose, Request, ResolveError,
    Retention, RunSpec, Screen, Settings, Stdin, Terminal, Until, Widening, env, env_file, resolve,
};

pub use agent::read_prompt_file;
pub use files::ReadError;
pub use flags::{FLAGS, Flag, FlagError, GivenFlags, Override};
pub use git_link::GitLinkError;
pub(crate) use secret::refuse_planned;
pub use secret::{SecretError, secret_values};

use files::DecisionReader;
use git_link::GitLink;
use trust::{TrustError, TrustState, read_trusted};

use belljar_record::home::Home;

/// The directory of the administrator's files.
pub const SYSTEM_DIRECTORY: &str = "/etc/belljar";
const CONFIG_FILE: &str = "config.toml";
const CEILING_FILE: &str = "policy.toml";

/// Which manifest is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestSource {
    /// The nearest one, in the current directory or a parent.
    Nearest,
    /// This file, which is trusted because the user named it.
    File(PathBuf),
    None,
}

/// Whether the system's and the user's configuration files are read. The ceiling always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigFiles {
    Read,
    Ignore,
}

/// Where a command starts that no setting gives a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartDirectory {
    /// At the top of the workspace.
    Workspace,
    /// In the caller's directory, if that is in the workspace.
    Current,
}

/// The inputs from the command line, or from a program that uses the library, and the environment.
#[derive(Clone, Debug)]
pub struct Invocation {
    pub cwd: PathBuf,
    pub start: StartDirectory,
    pub env: BTreeMap<OsString, OsString>,
    /// The settings of this run alone, lowest first.
    pub overrides: Vec<Override>,
    pub command: MainCommand,
    pub stdin: Stdin,
    pub terminal: Terminal,
    pub screen: Screen,
    pub reach: Reach,
    pub source: ManifestSource,
    pub config_files: ConfigFiles,
    /// [`SYSTEM_DIRECTORY`], except in tests.
    pub system: PathBuf,
}

impl Invocation {
    /// No settings but those of files and variables; no input and no terminal.
    pub fn new(cwd: PathBuf, env: BTreeMap<OsString, OsString>, command: MainCommand) -> Self {
        Self {
            cwd,
            start: StartDirectory::Workspace,
            env,
            overrides: Vec::new(),
            command,
            stdin: Stdin::Null,
            terminal: Terminal::None,
            screen: Screen::NotTerminal,
            reach: Reach::Listed,
            source: ManifestSource::Nearest,
            config_files: ConfigFiles::Read,
            system: PathBuf::from(SYSTEM_DIRECTORY),
        }
    }
}

/// A resolved run, with the settings that led to it.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub spec: RunSpec,
    /// The same as in the spec.
    pub retention: Retention,
    pub settings: Settings,
    pub manifest: Option<PathBuf>,
    pub warnings: Vec<String>,
    /// What a person at a terminal should know; it would only repeat itself in a log.
    pub advice: Vec<String>,
    /// What the agent's preset added, one line each; empty without an agent.
    pub agent: Vec<String>,
    /// Why the work of its agent would be in vain; `run` does not start it, except with `--yes`.
    pub obstacles: Vec<String>,
}

/// The settings without a command: for `config show`.
#[derive(Debug)]
pub struct LoadedSettings {
    pub settings: Settings,
    pub manifest: Option<PathBuf>,
    pub warnings: Vec<String>,
    env_files: BTreeMap<OsText, Vec<env_file::EnvLine>>,
    accepted: manifest::AcceptedManifest,
    reader: DecisionReader,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the current directory \"{path}\" is not an absolute path", path = .0.display())]
    RelativeDirectory(PathBuf),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{path} (from --manifest) does not exist", path = .0.display())]
    NoManifest(PathBuf),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Flag(#[from] FlagError),
    #[error(
        "the environment variable {0} is not valid UTF-8; fix its value, or use the flag instead"
    )]
    VariableNotUtf8(String),
    #[error("{path}: {error}", path = .path.display())]
    EnvFile { path: PathBuf, error: env_file::EnvFileError },
    #[error("{path} (from {key}) does not exist", path = .path.display())]
    NoEnvFile { path: PathBuf, key: String },
    #[error("{}", untrusted(path, files, *standing, widenings))]
    Untrusted {
        path: PathBuf,
        /// Files that it names, which are trusted together with it.
        files: Vec<OsText>,
        standing: TrustState,
        widenings: Vec<Widening>,
    },
    #[error(
        "{path} {state}; check it, then: belljar trust {path}",
        path = OsText::from(.path.as_path()),
        state = match standing {
            TrustState::Changed => format!(
                "has changed since you trusted it, and a run can write to {}", OsText::from(.tree.as_path())
            ),
            _ => format!("is inside {}, where a run could have changed it", OsText::from(.tree.as_path())),
        }
    )]
    UntrustedFile { path: PathBuf, tree: PathBuf, standing: TrustState },
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    GitLink(#[from] GitLinkError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("{key}: {why}")]
    Agent { key: &'static str, why: String },
    #[error(
        "{key} ({origin}) is only for a run with an agent, but this run has a command; remove one of them"
    )]
    ForAgents { key: String, origin: String },
    #[error(
        "{key} ({origin}) is for an agent that belljar drives; on a terminal (-t) you do; remove one of them"
    )]
    NotInTerminal { key: String, origin: String },
    #[error(transparent)]
    Rule(#[from] crate::exec_rules::RuleError),
    #[error(
        "{key} ({origin}) is not supported by this version; remove it: Belljar does not ignore keys that it cannot honour"
    )]
    Unsupported { key: String, origin: String },
}

fn untrusted(
    path: &Path,
    files: &[OsText],
    standing: TrustState,
    widenings: &[Widening],
) -> String {
    let shown = OsText::from(path);
    let relative =
        |file: &OsText| match path.parent().map(|above| file.as_path().strip_prefix(above)) {
            Some(Ok(short)) => OsText::from(short).to_string(),
            _ => file.to_string(),
        };
    let named: Vec<String> = files.iter().map(relative).collect();
    let state = match (standing, named.as_slice()) {
        (TrustState::Changed, []) => "has changed since it was trusted".to_owned(),
        (TrustState::Changed, named) => {
            format!(
                "it or a file that it names ({}) has changed since it was trusted",
                named.join(", ")
            )
        }
        (TrustState::Unknown | TrustState::Trusted, _) => "is not trusted yet".to_owned(),
    };
    let mut text = format!(
        "{shown} asks for more than the defaults and your configuration allow, and {state}:\n"
    );
    for widening in widenings {
        text.push_str(&format!("  {}: {}\n", widening.key, widening.what));
    }
    text.push_str(&format!("if that is what you want, run: belljar trust {shown}"));
    text
}

/// Resolves the run.
pub fn load(invocation: &Invocation, home: &Home) -> Result<Loaded, ConfigError> {
    let LoadedSettings { mut settings, manifest, mut warnings, env_files, accepted, reader } =
        load_settings(invocation, home)?;
    let login = login_settings::read(invocation, &settings, &reader, home)?;
    let inputs = agent::AgentInputs {
        login: &login,
        invocation,
        manifest: manifest.as_deref(),
        accepted: &accepted,
        reader: &reader,
        home,
    };
    let agent = agent::prepare(&mut settings, &inputs)?;
    warnings.extend(agent.warnings);
    let directory = manifest.as_deref().and_then(Path::parent).unwrap_or(&invocation.cwd);
    let mut request = Request {
        command: invocation.command.clone(),
        stdin: invocation.stdin,
        terminal: invocation.terminal,
        screen: invocation.screen,
        default_workspace: directory.to_owned(),
        start_in: match invocation.start {
            StartDirectory::Current => Some(invocation.cwd.clone()),
            StartDirectory::Workspace => None,
        },
        manifest: manifest.clone(),
        env_files,
        reach: invocation.reach,
        agent: agent.agent,
        untrusted_tree: accepted.untrusted_tree.clone(),
        git_directory: None, // looked for where the workspace is known
    };
    refuse_unsupported(&settings)?;
    if !invocation.command.is_agent() {
        refuse_flags_for_agents(&settings)?;
    }
    let mut facts = host::facts(&invocation.cwd, &invocation.env);
    if matches!(settings.values.sandbox.git_identity, None | Some(GitIdentitySetting::Host)) {
        facts.git_identity = git_identity::of_user(&invocation.env);
    }
    let mut spec = resolve(&settings, &request, &facts)?;
    match git_link::find(&settings, &spec, &reader, home)? {
        GitLink::None => {}
        GitLink::Found(found) => {
            let path = found.directory.path.clone();
            request.git_directory = Some(*found);
            match resolve(&settings, &request, &facts) {
                Ok(with_git) => spec = with_git,
                Err(error) => {
                    warnings.push(git_link::warning(&format!("{path} cannot be mounted: {error}")))
                }
            }
        }
        GitLink::NotMounted(why) => warnings.push(git_link::warning(&why)),
    }
    if let Some(command) = agent::terminal_command(&spec) {
        spec.command = command;
    }
    agent::check(&spec, facts.home.as_deref())?;
    crate::exec_rules::RuleSet::check(&spec.commands)?;
    for name in passed_but_missing(invocation) {
        warnings.push(format!("-e {name}: not set on the host, so it is not set in the sandbox"));
    }
    let advice = dotenv::warning(&spec).into_iter().collect();
    let mut obstacles: Vec<String> = agent.unwritten.into_iter().collect();
    match &spec.agent {
        Some(work) if !work.repeat.is_once() => obstacles.extend(agent.no_login),
        // Whoever starts it once sees at once that it fails.
        _ => warnings.extend(agent.no_login),
    }
    obstacles.extend(leftover_file(&spec));
    let (retention, agent) = (spec.retention, agent.lines);
    Ok(Loaded { retention, spec, settings, manifest, warnings, advice, agent, obstacles })
}

/// The file of `until`, if an earlier run left it in the workspace.
fn leftover_file(spec: &RunSpec) -> Option<String> {
    let Some(Until::File { path }) = &spec.agent.as_ref()?.repeat.until else { return None };
    let tree = spec.workspace.as_ref()?.source.as_path();
    belljar_workspace::find_file(tree, path.as_path())?;
    let file = OsText::from(tree.join(path.as_path()));
    Some(format!(
        "{file} (loop.until) exists already, so it does not show that this run is done; remove it, or it counts only \
         when it is written again"
    ))
}

/// Keys that parse, because their names are reserved, but have no effect yet.
const UNSUPPORTED: &[&str] = &["service"];

fn refuse_unsupported(settings: &Settings) -> Result<(), ConfigError> {
    let is_below = |key: &str, section: &str| {
        key.strip_prefix(section)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let is_meant = |key: &str, origin: &Origin| {
        *origin != Origin::BuiltIn && UNSUPPORTED.iter().any(|section| is_below(key, section))
    };
    if !settings.origins().any(|(key, origin)| is_meant(key, origin)) {
        return Ok(());
    }
    let found = settings
        .shown()
        .into_iter()
        .find(|shown| shown.value != "[]" && is_meant(&shown.key, &shown.origin));
    match found {
        Some(shown) => {
            Err(ConfigError::Unsupported { key: shown.key, origin: shown.origin.to_string() })
        }
        None => Ok(()),
    }
}

/// The manifest may have an agent even if this run has a command; a setting for agents of this run alone is a
/// mistake.
fn refuse_flags_for_agents(settings: &Settings) -> Result<(), ConfigError> {
    let is_set = |key: &str, origin: &Origin| {
        origin.is_of_this_run()
            && ["agent.", "loop.", "setup."].iter().any(|section| key.starts_with(section))
    };
    match settings.origins().find(|(key, origin)| is_set(key, origin)) {
        Some((key, origin)) => {
            let (key, origin) = (key.to_owned(), origin.to_string());
            Err(ConfigError::ForAgents { key, origin })
        }
        None => Ok(()),
    }
}

/// Names after `-e` without a value that the host does not have.
fn passed_but_missing(invocation: &Invocation) -> Vec<String> {
    let given = invocation.overrides.iter().filter(|one| one.is_flag("--env"));
    let passed =
        given.filter_map(|one| one.values.sandbox.pass_env.as_ref()).flat_map(|names| &names.0);
    let missing = passed.filter(|name| !invocation.env.contains_key(OsStr::new(&name.0)));
    missing.map(|name| name.0.clone()).collect()
}

/// Whether the settings could name an agent. Creates nothing.
pub fn may_name_agent(invocation: &Invocation) -> bool {
    let user = host::user_config(&invocation.env).map(|directory| directory.join(CONFIG_FILE));
    let is_there = |path: &Path| path.symlink_metadata().is_ok();
    let by_files = match invocation.config_files {
        ConfigFiles::Read => {
            is_there(&invocation.system.join(CONFIG_FILE)) || user.as_deref().is_some_and(is_there)
        }
        ConfigFiles::Ignore => false,
    };
    let by_manifest = match invocation.source {
        ManifestSource::File(_) => true,
        ManifestSource::Nearest => invocation
            .cwd
            .ancestors()
            .any(|directory| is_there(&directory.join(belljar_spec::manifest::FILE_NAME))),
        ManifestSource::None => false,
    };
    let by_variable =
        invocation.env.keys().any(|name| name.as_bytes().starts_with(b"BELLJAR_AGENT"));
    let by_flag =
        invocation.overrides.iter().any(|one| one.is_flag("-c") || one.values.agent.kind.is_some());
    by_flag || by_files || by_manifest || by_variable
}

/// Whether a flag or a variable names an image, whose command runs where there is no other.
pub fn may_name_image(invocation: &Invocation) -> bool {
    let is_variable = |name: &OsString| name == "BELLJAR_SANDBOX_IMAGE";
    let is_named = |one: &Override| one.values.sandbox.image.is_some();
    invocation.env.keys().any(is_variable) || invocation.overrides.iter().any(is_named)
}

/// Reads and merges every layer.
pub fn load_settings(invocation: &Invocation, home: &Home) -> Result<LoadedSettings, ConfigError> {
    let cwd = &invocation.cwd;
    if !cwd.is_absolute() {
        return Err(ConfigError::RelativeDirectory(cwd.clone()));
    }
    let user_home = host::user_home(&invocation.env);
    let reader = open_reader(home)?;
    let ceiling = read_ceiling(&invocation.system)?;
    let mut layers = lower_layers(
        &invocation.env,
        &invocation.system,
        invocation.config_files,
        cwd,
        &reader,
        home,
    )?;

    let manifest = manifest::find(invocation, user_home.as_deref(), &reader)?;
    let mut warnings = Vec::new();
    let variables = variable_layers(&invocation.env, cwd, &mut warnings)?;
    let overrides: Vec<Layer> = invocation.overrides.iter().map(|one| one.layer(cwd)).collect();
    let mut accepted = manifest::AcceptedManifest::default();
    if let Some(manifest) = &manifest {
        let lower = Settings::merge(layers.clone(), None, user_home.as_deref()).values;
        let higher = variables.iter().chain(&overrides).rev();
        let kinds = higher.map(|layer| layer.values.agent.kind);
        let kinds = kinds.chain([manifest.values.agent.kind, lower.agent.kind]);
        let is_for_agent = invocation.command.is_agent();
        let above = variables.iter().chain(&overrides).cloned().collect();
        let above = Settings::merge(above, None, user_home.as_deref()).values;
        let check = manifest::ManifestCheck {
            lower: &lower,
            higher: &above,
            purpose: Purpose::of_agent(kinds.flatten().next().filter(|_| is_for_agent)),
            user_home: user_home.as_deref(),
            reader: &reader,
        };
        accepted = manifest::check_trust(manifest, invocation, &check, home)?;
        layers.push(Layer {
            origin: Origin::Manifest(manifest.path.as_path().into()),
            directory: manifest.directory().to_owned(),
            values: manifest.values.clone(),
        });
    }
    layers.extend(variables);
    layers.extend(overrides);

    for layer in &layers {
        tracing::debug!(origin = %layer.origin, "settings layer");
    }
    tracing::debug!(is_there = ceiling.is_some(), "ceiling of the administrator");
    let settings = Settings::merge(layers, ceiling, user_home.as_deref());
    let env_files = read_env_files(&settings, &accepted, &reader, home)?;
    let manifest = manifest.map(|manifest| manifest.path);
    Ok(LoadedSettings { settings, manifest, warnings, env_files, accepted, reader })
}

/// The layers below the manifest, variables and flags.
fn lower_layers(
    env: &BTreeMap<OsString, OsString>,
    system: &Path,
    config_files: ConfigFiles,
    cwd: &Path,
    reader: &DecisionReader,
    home: &Home,
) -> Result<Vec<Layer>, ConfigError> {
    let values = layers::built_in(host::memory_total());
    let mut layers = vec![Layer { origin: Origin::BuiltIn, directory: cwd.to_owned(), values }];
    if config_files == ConfigFiles::Read {
        let read = |path: &Path, origin| config_layer(path, origin, reader, home);
        layers.extend(read(&system.join(CONFIG_FILE), Origin::System)?);
        if let Some(directory) = host::user_config(env) {
            layers.extend(read(&directory.join(CONFIG_FILE), Origin::User)?);
        }
    }
    Ok(layers)
}

/// The reader for files that affect runs of this home.
pub(crate) fn open_reader(home: &Home) -> Result<DecisionReader, TrustError> {
    let trees = belljar_record::writable_trees::known(home);
    let trees = trees.map_err(|error| TrustError::Io { path: home.path().to_owned(), error })?;
    Ok(DecisionReader::new(trees))
}

/// Whether a run that was resolved earlier may start under the current ceiling. `system` is [`SYSTEM_DIRECTORY`],
/// except in tests.
pub fn check_ceiling(system: &Path, spec: &RunSpec) -> Result<(), ConfigError> {
    match read_ceiling(system)? {
        Some(ceiling) => Ok(ceiling.check_spec(spec).map_err(ResolveError::from)?),
        None => Ok(()),
    }
}

/// Whether the list of a live run may get these additions under the current ceiling.
pub(crate) fn check_additions(system: &Path, additions: &Additions) -> Result<(), ConfigError> {
    match read_ceiling(system)? {
        Some(ceiling) => Ok(ceiling.check_additions(additions).map_err(ResolveError::from)?),
        None => Ok(()),
    }
}

fn read_ceiling(system: &Path) -> Result<Option<CeilingFile>, ConfigError> {
    let path = system.join(CEILING_FILE);
    match files::read(&path, files::Links::Follow)? {
        Some(file) => Ok(Some(CeilingFile::parse(&file.content, &path.into())?)),
        None => Ok(None),
    }
}

fn config_layer(
    path: &Path,
    origin: fn(OsText) -> Origin,
    reader: &DecisionReader,
    home: &Home,
) -> Result<Option<Layer>, ConfigError> {
    let Some(content) = read_trusted(path, None, reader, home)? else {
        return Ok(None);
    };
    let values = Manifest::parse(&content, &path.into())?;
    let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
    Ok(Some(Layer { origin: origin(path.into()), directory, values }))
}

fn variable_layers(
    env: &BTreeMap<OsString, OsString>,
    cwd: &Path,
    warnings: &mut Vec<String>,
) -> Result<Vec<Layer>, ConfigError> {
    let mut layers = Vec::new();
    let ours =
        env.iter().filter(|(name, _)| name.as_bytes().starts_with(env::SETTING_PREFIX.as_bytes()));
    for (name, value) in ours {
        let shown = || belljar_spec::text::escape(name.as_bytes());
        let Some(name) = name.to_str() else { continue };
        if layers::is_no_setting(name) {
            continue;
        }
        let value = value.to_str().ok_or_else(|| ConfigError::VariableNotUtf8(shown()))?;
        match layers::from_variable(name, value)? {
            Variable::NoSetting => {}
            Variable::Unknown => {
                warnings.push(format!("the variable {name} is not known, and changes nothing"))
            }
            Variable::Setting(values) => layers.push(Layer {
                origin: Origin::Variable(name.to_owned()),
                directory: cwd.to_owned(),
                values: *values,
            }),
        }
    }
    Ok(layers)
}

fn read_env_files(
    settings: &Settings,
    accepted: &manifest::AcceptedManifest,
    reader: &DecisionReader,
    home: &Home,
) -> Result<BTreeMap<OsText, Vec<env_file::EnvLine>>, ConfigError> {
    let mut files = BTreeMap::new();
    let paths = settings.values.sandbox.env_file.iter().flat_map(|files| &files.0);
    for (index, name) in paths.enumerate() {
        let key = format!("sandbox.env_file[{index}]");
        let path = name.as_path().to_owned();
        let from_manifest = matches!(settings.origin(&key), Some(Origin::Manifest(_)));
        let content = match accepted.files.get(&name.0) {
            Some(content) if from_manifest => Some(content.clone()),
            _ => {
                let distrusted = accepted.untrusted_tree.as_ref().filter(|_| from_manifest);
                read_trusted(&path, distrusted.map(OsText::as_path), reader, home)?
            }
        };
        let Some(content) = content else {
            return Err(ConfigError::NoEnvFile { path, key });
        };
        let lines = env_file::parse(&content)
            .map_err(|error| ConfigError::EnvFile { path: path.clone(), error })?;
        files.insert(path.into(), lines);
    }
    Ok(files)
}

/// The variables in a file that `exec --env-file` names. A file in a tree that a run could write to must be trusted: a
/// name without a value asks for the host's.
pub fn read_env_file(path: &Path, home: &Home) -> Result<Vec<env_file::EnvLine>, ConfigError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let Some(content) = read_trusted(&path, None, &open_reader(home)?, home)? else {
        return Err(ConfigError::NoEnvFile { path, key: "--env-file".to_owned() });
    };
    env_file::parse(&content).map_err(|error| ConfigError::EnvFile { path, error })
}
