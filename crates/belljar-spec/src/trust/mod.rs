//! Finds what a manifest permits beyond what would hold without it. A manifest that permits nothing more needs no
//! trust; any other is shown to a person first.

mod agent;
mod network;
mod quantities;

use std::path::{Path, PathBuf};

use crate::backends::{BackendChoice, BackendName};
use crate::manifest::value::{Base, Field};
use crate::manifest::{
    Added, AgentKind, CommandMode, GitIdentitySetting, GitMode, HostPath, Manifest, Pull,
    RootfsSetting, Sandbox, WorkspaceMode,
};
use crate::paths;
use crate::runspec::MountMode;
use crate::text::{OsText, escape};

/// One thing that a manifest opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Widening {
    pub key: String,
    /// One line, for a person.
    pub what: String,
}

/// Where a path of the host leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located {
    /// To this path, by no link that anyone could have planted.
    At(PathBuf),
    /// By a link in the manifest's tree or in one that a run could write.
    ByLink { link: PathBuf, to: Option<PathBuf> },
    /// It does not exist, or cannot be read.
    Missing,
}

/// What the run would be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Command,
    /// An agent that is a plain command.
    CommandAgent,
    /// An agent with an account of the user's.
    AccountAgent,
}

impl Purpose {
    pub fn of_agent(kind: Option<AgentKind>) -> Self {
        match kind {
            None => Self::Command,
            Some(kind) if kind.has_preset() => Self::AccountAgent,
            Some(_) => Self::CommandAgent,
        }
    }
}

/// What a manifest is compared with.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "it holds a function")]
pub struct Baseline<'a> {
    /// What would hold without the manifest: all lower layers in one, their paths absolute.
    pub lower: &'a Manifest,
    /// The layers above the manifest, which override it: variables and flags, with absolute paths.
    pub higher: &'a Manifest,
    /// The manifest's directory, without links.
    pub directory: &'a Path,
    pub user_home: Option<&'a Path>,
    pub purpose: Purpose,
    /// Where a path leads, with the manifest's tree counted as one that a run could write.
    pub locate: &'a dyn Fn(&Path) -> Located,
    /// Whether a tool of the host executes the file at a path, or one in it, without an explicit request.
    pub is_control: &'a dyn Fn(&Path) -> bool,
}

struct Finder<'a> {
    /// As it is written, for what is shown.
    manifest: &'a Manifest,
    /// The same with absolute paths, for what is compared.
    absolute: Manifest,
    baseline: Baseline<'a>,
    /// What the run may read anyway; nothing where the operator gives it no workspace.
    workspace: Option<PathBuf>,
    found: Vec<Widening>,
}

/// What the manifest opens.
pub fn widenings(manifest: &Manifest, baseline: Baseline<'_>) -> Vec<Widening> {
    let mut absolute = manifest.clone();
    absolute.rebase_field(&Base {
        directory: baseline.directory.to_owned(),
        home: baseline.user_home.map(Path::to_owned),
    });
    let operators = &baseline.higher.sandbox.workspace;
    let workspace = match operators.path.as_ref().or(absolute.sandbox.workspace.path.as_ref()) {
        _ if operators.mode == Some(WorkspaceMode::None) => None,
        Some(path) => Some(match (baseline.locate)(path.as_path()) {
            Located::At(real) => real,
            Located::ByLink { .. } | Located::Missing => path.as_path().to_owned(),
        }),
        None => Some(paths::clean(baseline.directory)),
    };
    let mut finder = Finder { manifest, absolute, baseline, workspace, found: Vec::new() };
    finder.boundary();
    finder.image();
    finder.workspace();
    finder.sources();
    finder.environment();
    finder.network();
    finder.limits();
    finder.policy();
    finder.commands();
    finder.agent();
    finder.found
}

impl Finder<'_> {
    fn add(&mut self, key: impl Into<String>, what: impl Into<String>) {
        self.found.push(Widening { key: key.into(), what: what.into() });
    }

    /// Whether the path leads into the tree; if not, a text about where it leads instead.
    fn leads_into(
        &self,
        written: &HostPath,
        absolute: &HostPath,
        tree: &Path,
    ) -> Result<(), String> {
        if written.as_path().starts_with("~") && self.baseline.user_home.is_none() {
            return Err(String::new()); // the home directory is not known
        }
        match (self.baseline.locate)(absolute.as_path()) {
            Located::At(real) if real.starts_with(tree) => Ok(()),
            Located::At(real) if real == absolute.as_path() => Err(String::new()),
            Located::At(real) => Err(format!(" (that is {})", OsText::from(real.as_path()))),
            Located::ByLink { link, to } => Err(match to {
                Some(to) => {
                    let (link, to) = (OsText::from(link.as_path()), OsText::from(to.as_path()));
                    format!(" ({link} is a link to {to})")
                }
                None => format!(" ({} is a link)", OsText::from(link.as_path())),
            }),
            // What appears there afterwards is checked again when it is mounted.
            Located::Missing if absolute.as_path().starts_with(tree) => Ok(()),
            Located::Missing => Err(String::new()),
        }
    }

    /// The same for what the run may read anyway, with a text about files that execute on the host.
    fn leads_into_workspace(&self, written: &HostPath, absolute: &HostPath) -> Result<(), String> {
        match &self.workspace {
            Some(workspace) => self.leads_into(written, absolute, workspace),
            None => Err(String::new()),
        }
    }

    /// A text about where a path leads, where that is not the path itself.
    fn leads_to(&self, written: &HostPath) -> String {
        let (directory, home) = (self.baseline.directory, self.baseline.user_home);
        let absolute = HostPath(paths::absolute(written.as_path(), directory, home).into());
        self.leads_into(written, &absolute, directory).err().unwrap_or_default()
    }

    fn boundary(&mut self) {
        let (sandbox, lower) = (&self.manifest.sandbox, &self.baseline.lower.sandbox);
        let higher = &self.baseline.higher.sandbox;
        let operators = higher.backend.or(lower.backend);
        let is_operators_choice = !matches!(operators, None | Some(BackendChoice::Auto));
        match sandbox.backend {
            None => {}
            Some(_) if higher.backend.is_some() => {} // it does not count
            same if same == lower.backend => {}
            Some(BackendChoice::Host) => {
                self.add("sandbox.backend", "runs the command on the host, without any boundary");
            }
            Some(backend) if is_operators_choice => {
                let chosen = operators.unwrap_or_default();
                let what = format!("uses {} instead of your {}", backend.name(), chosen.name());
                self.add("sandbox.backend", what);
            }
            Some(_) => {}
        }
        let may_fall_back = |backend: &BackendName| {
            let is_listed = lower.fallback.iter().flatten().any(|listed| listed == backend);
            let is_open = !is_operators_choice && lower.fallback.is_none();
            let is_chosen = operators == Some((*backend).into());
            is_listed || is_chosen || (is_open && *backend != BackendName::Host)
        };
        let counts = higher.fallback.is_none();
        let others = sandbox.fallback.iter().flatten().filter(|backend| !may_fall_back(backend));
        let others: Vec<BackendName> = others.copied().filter(|_| counts).collect();
        for backend in others {
            let what = match backend {
                BackendName::Host => {
                    "may run the command on the host, without any boundary".to_owned()
                }
                other => format!("may use {}, which you did not choose", other.name()),
            };
            self.add("sandbox.fallback", what);
        }
        if let Some(runtime) = &sandbox.oci_runtime
            && lower.oci_runtime.as_ref() != Some(runtime)
        {
            let runtime = escape(runtime.as_bytes());
            self.add(
                "sandbox.oci_runtime",
                format!("has the engine execute the runtime {runtime}"),
            );
        }
        if let Some(entrypoint) = &sandbox.entrypoint
            && lower.entrypoint.as_ref() != Some(entrypoint)
        {
            self.add("sandbox.entrypoint", "has another program take your command as arguments");
        }
        if let Some(user) = sandbox.user
            && lower.user.is_some_and(|lower| lower != user)
        {
            self.add("sandbox.user", "runs as a different user than you chose");
        }
    }

    /// A sealed run that wrote an image name could leak data in the request to a registry, which the engine or Belljar sends.
    fn image(&mut self) {
        let (sandbox, lower) = (&self.manifest.sandbox, &self.baseline.lower.sandbox);
        if let Some(image) = &sandbox.image
            && lower.image.as_ref() != Some(image)
        {
            let image = escape(image.as_bytes());
            self.add("sandbox.image", format!("may have {image} fetched"));
        }
        let eagerness = |pull: Pull| match pull {
            Pull::Never => 0,
            Pull::Missing => 1,
            Pull::Always => 2,
        };
        if let Some(pull) = sandbox.pull
            && eagerness(pull) > eagerness(lower.pull.unwrap_or_default())
        {
            self.add("sandbox.pull", format!("has the image fetched: {}", pull.name()));
        }
    }

    /// What the workspace would be without the manifest.
    fn lower_mode(&self) -> WorkspaceMode {
        let default = match self.baseline.purpose {
            Purpose::Command => WorkspaceMode::Rw,
            Purpose::CommandAgent | Purpose::AccountAgent => WorkspaceMode::Overlay,
        };
        let (higher, lower) = (&self.baseline.higher.sandbox, &self.baseline.lower.sandbox);
        higher.workspace.mode.or(lower.workspace.mode).unwrap_or(default)
    }

    fn workspace(&mut self) {
        let wanted = &self.manifest.sandbox.workspace;
        let higher = &self.baseline.higher.sandbox.workspace;
        let lower = self.lower_mode();
        let mode = match (wanted.mode, &wanted.path) {
            _ if higher.mode.is_some() => None, // it does not count
            (Some(mode), _) => Some(mode),
            // A directory that is named overrides a lower "none".
            (None, Some(_)) if lower == WorkspaceMode::None => Some(WorkspaceMode::Rw),
            (None, _) => None,
        };
        if let Some(mode) = mode
            && openness(mode) > openness(lower)
        {
            let what =
                format!("makes the workspace {}, where it would be {}", mode.name(), lower.name());
            self.add("sandbox.workspace.mode", what);
        }
        let paths = wanted.path.as_ref().zip(self.absolute.sandbox.workspace.path.as_ref());
        let Some((path, absolute)) = paths.filter(|_| higher.path.is_none()) else { return };
        let key = "sandbox.workspace.path";
        if let Err(why) = self.leads_into(path, absolute, self.baseline.directory) {
            let what = format!("works on {}, outside the manifest's directory{why}", path.0);
            self.add(key, what);
        } else if (self.baseline.is_control)(absolute.as_path()) {
            let what = format!("lets the run change {}, which executes on the host", path.0);
            self.add(key, what);
        } else if self.hides_something() && absolute.as_path() != self.baseline.directory {
            let what = format!("works on {}, where the names that you hide do not count", path.0);
            self.add(key, what);
        }
    }

    /// Names that the operator hides are relative to the workspace.
    fn hides_something(&self) -> bool {
        let both = [&self.baseline.lower.sandbox.hide, &self.baseline.higher.sandbox.hide];
        both.into_iter().flatten().any(|names| !names.0.is_empty())
    }

    fn sources(&mut self) {
        let mut found: Vec<(String, String)> = Vec::new();
        let (written, absolute) = (&self.manifest.sandbox, &self.absolute.sandbox);
        let lower = &self.baseline.lower.sandbox;
        match (&written.rootfs, &absolute.rootfs) {
            (Some(RootfsSetting::Directory(path)), Some(RootfsSetting::Directory(full)))
                if lower.rootfs != absolute.rootfs =>
            {
                if let Err(why) = self.leads_into_workspace(path, full) {
                    let what = format!("shows {} inside, as the root directory{why}", path.0);
                    found.push(("sandbox.rootfs".into(), what));
                } else if matches!(lower.rootfs, Some(RootfsSetting::Directory(_))) {
                    let what = format!("uses {} instead of the root directory you chose", path.0);
                    found.push(("sandbox.rootfs".into(), what));
                }
            }
            (Some(RootfsSetting::Host), _)
                if matches!(lower.rootfs, Some(RootfsSetting::Directory(_))) =>
            {
                let what = "shows the host's programs instead of the root directory you chose";
                found.push(("sandbox.rootfs".into(), what.into()));
            }
            _ => {}
        }
        let lower_mounts: Vec<_> = lower.mounts.iter().flat_map(|mounts| &mounts.0).collect();
        let mounts = written.mounts.iter().flat_map(|mounts| &mounts.0);
        let full = absolute.mounts.iter().flat_map(|mounts| &mounts.0);
        for (index, (mount, full)) in mounts.zip(full).enumerate() {
            if lower_mounts.contains(&full) {
                continue;
            }
            let mode = mount.mode.unwrap_or(MountMode::Ro);
            let key = format!("sandbox.mounts[{index}]");
            if let Err(why) = self.leads_into_workspace(&mount.source, &full.source) {
                let access = match mode {
                    MountMode::Rw => "lets the run change",
                    MountMode::Ro | MountMode::Overlay => "lets the run read",
                };
                let what = format!("{access} {}, outside the workspace{why}", mount.source.0);
                found.push((key, what));
            } else if openness(mode.into()) > openness(self.lower_mode()) {
                let what = format!("lets the run change {} directly", mount.source.0);
                found.push((key, what));
            } else if mode == MountMode::Rw && (self.baseline.is_control)(full.source.as_path()) {
                let source = &mount.source.0;
                let what = format!("lets the run change {source}, which executes on the host");
                found.push((key, what));
            }
        }
        for (index, tool) in new(&written.tools, &absolute.tools, &lower.tools) {
            let what = format!("lets the run read and execute {}{}", tool.0, self.leads_to(tool));
            found.push((format!("sandbox.tools[{index}]"), what));
        }
        for (index, path) in new(&written.allow_source, &absolute.allow_source, &lower.allow_source)
        {
            let leads_to = self.leads_to(path);
            let what = format!("lets {} be mounted although it is sensitive{leads_to}", path.0);
            found.push((format!("sandbox.allow_source[{index}]"), what));
        }
        for (index, name) in
            new(&written.allow_control, &absolute.allow_control, &lower.allow_control)
        {
            let what = format!("lets the run change {}, which executes on the host", name.0);
            found.push((format!("sandbox.allow_control[{index}]"), what));
        }
        found.into_iter().for_each(|(key, what)| self.add(key, what));
    }

    fn environment(&mut self) {
        let mut found: Vec<(String, String)> = Vec::new();
        let (written, absolute) = (&self.manifest.sandbox, &self.absolute.sandbox);
        let lower = &self.baseline.lower.sandbox;
        for (index, name) in new(&written.pass_env, &absolute.pass_env, &lower.pass_env) {
            let what = format!("lets the run read the host's variable {}", name.0);
            found.push((format!("sandbox.pass_env[{index}]"), what));
        }
        for (index, path) in new(&written.env_file, &absolute.env_file, &lower.env_file) {
            let what = format!("lets the run read {}{}", path.0, self.leads_to(path));
            found.push((format!("sandbox.env_file[{index}]"), what));
        }
        let identity = |sandbox: &Sandbox| sandbox.git_identity == Some(GitIdentitySetting::Host);
        // It is there by default, unless the operator said otherwise.
        if identity(written) && lower.git_identity.is_some() && !identity(lower) {
            let what = "lets the run read the name and address of your git configuration";
            found.push(("sandbox.git_identity".to_owned(), what.to_owned()));
        }
        if written.git == Some(GitMode::Auto) && lower.git == Some(GitMode::Off) {
            let what = "mounts the repository that the workspace's .git file names";
            found.push(("sandbox.git".to_owned(), what.to_owned()));
        }
        found.into_iter().for_each(|(key, what)| self.add(key, what));
    }

    fn policy(&mut self) {
        let policy = &self.manifest.policy;
        let lower = self.baseline.lower.policy.waive.as_ref();
        for (clause, reason) in policy.waive.iter().flat_map(|waive| &waive.0) {
            if lower.is_some_and(|lower| lower.0.contains_key(clause)) {
                continue;
            }
            let reason = escape(reason.as_bytes());
            let key = crate::manifest::node::join("policy.waive", clause);
            self.add(key, format!("lets {clause} be missing: {reason}"));
        }
        let (retention, lower) = (&self.manifest.retention, &self.baseline.lower.retention);
        let differs = |wanted: Option<u32>, lower: Option<u32>| wanted.is_some() && wanted != lower;
        if differs(retention.runs, lower.runs) || differs(retention.sandboxes, lower.sandboxes) {
            self.add("retention", "decides which older records and sandboxes are removed");
        }
    }

    fn commands(&mut self) {
        let (commands, lower) = (&self.manifest.commands, &self.baseline.lower.commands);
        let strictness = |mode: CommandMode| match mode {
            CommandMode::Off => 0,
            CommandMode::Warn => 1,
            CommandMode::Strict => 2,
        };
        if let Some((mode, lower)) = commands.mode.zip(lower.mode)
            && strictness(mode) < strictness(lower)
        {
            let what = match mode {
                CommandMode::Off => "turns the rules on commands off".to_owned(),
                mode => {
                    format!("makes the rules on commands {}, not {}", mode.name(), lower.name())
                }
            };
            self.add("commands.mode", what);
        }
        let known = lower.allow.as_deref().unwrap_or_default();
        if commands.allow.iter().flatten().any(|rule| !known.contains(rule)) {
            self.add("commands.allow", "allows commands that other rules deny");
        }
        if let Some(deny) = &commands.deny
            && lower.deny.iter().flatten().any(|rule| !deny.contains(rule))
        {
            self.add("commands.deny", "drops rules of yours that deny commands");
        }
    }
}

/// How much a run can do to a tree in each mode.
fn openness(mode: WorkspaceMode) -> u8 {
    match mode {
        WorkspaceMode::None => 0,
        WorkspaceMode::Ro => 1,
        WorkspaceMode::Overlay => 2,
        WorkspaceMode::Rw => 3,
    }
}

/// What a list has that the lower layers have not, as it is written, with its place in the list.
fn new<'a, T: PartialEq>(
    written: &'a Option<Added<T>>,
    absolute: &Option<Added<T>>,
    lower: &Option<Added<T>>,
) -> Vec<(usize, &'a T)> {
    let written = written.iter().flat_map(|list| &list.0);
    let absolute = absolute.iter().flat_map(|list| &list.0);
    let is_known = |item: &T| lower.as_ref().is_some_and(|lower| lower.0.contains(item));
    let both = written.zip(absolute).enumerate();
    both.filter(|(_, (_, absolute))| !is_known(absolute))
        .map(|(at, (item, _))| (at, item))
        .collect()
}
