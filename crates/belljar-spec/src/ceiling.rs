//! The administrator's ceiling: what no layer may go beyond. A key that is absent sets no bound.

mod network;

use std::path::Path;

use crate::choice::AUTO;
use crate::clause::Clause;
use crate::layers::{Origin, Settings};
use crate::manifest::table::section;
use crate::manifest::value::{Base, HostPath, Value};
use crate::manifest::{
    Limit, LimitSettings, ManifestError, RootfsSetting, WorkspaceMode, parse_file,
};
use crate::runspec::{BackendChoice, BackendName};
use crate::text::OsText;

use network::CeilingNetwork;

section! {
    /// `/etc/belljar/policy.toml`.
    pub struct Ceiling {
        /// The most that each limit may be.
        limits: LimitSettings,
        /// Backends that may be used.
        backends: Option<Vec<BackendName>>,
        /// Host rules that cover every rule that may be used.
        network: CeilingNetwork,
        /// Directories that every source lies in.
        mounts: Option<Vec<HostPath>>,
        /// Clauses that may be waived.
        waive: Option<Vec<Clause>>,
        /// Clauses that are always required.
        require: Option<Vec<Clause>>,
    }
}

/// A ceiling and the file it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct CeilingFile {
    pub path: OsText,
    pub ceiling: Ceiling,
}

/// A layer went beyond the ceiling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{key} = {value} (set by {origin}) is beyond the ceiling of {file}, which allows {allowed}; \
     lower it, or ask whoever administers this machine"
)]
pub struct BeyondCeiling {
    pub key: String,
    pub value: String,
    pub allowed: String,
    pub origin: String,
    pub file: OsText,
}

impl CeilingFile {
    pub fn parse(content: &[u8], path: &OsText) -> Result<Self, ManifestError> {
        let mut ceiling: Ceiling = parse_file(content, path)?;
        let directory = path.as_path().parent().unwrap_or(Path::new("/")).to_owned();
        ceiling.rebase(&Base { directory, home: None });
        Ok(Self { path: path.clone(), ceiling })
    }

    pub fn check(&self, settings: &Settings) -> Result<(), BeyondCeiling> {
        self.check_limits(settings)?;
        self.check_backends(settings)?;
        self.check_network(settings)?;
        self.check_sources(settings)?;
        self.check_waivers(settings)
    }

    fn beyond(
        &self,
        settings: &Settings,
        key: &str,
        value: String,
        allowed: String,
    ) -> BeyondCeiling {
        let origin = settings.origin(key).unwrap_or(&Origin::BuiltIn).to_string();
        BeyondCeiling { key: key.to_owned(), value, allowed, origin, file: self.path.clone() }
    }

    fn check_limits(&self, settings: &Settings) -> Result<(), BeyondCeiling> {
        for comparison in comparisons(&self.ceiling.limits, &settings.values.limits) {
            if let Some(most) = comparison.exceeded {
                let Comparison { key, value, .. } = comparison;
                return Err(self.beyond(settings, key, value, format!("{most} at most")));
            }
        }
        Ok(())
    }

    fn check_backends(&self, settings: &Settings) -> Result<(), BeyondCeiling> {
        let Some(allowed) = &self.ceiling.backends else {
            return Ok(());
        };
        let names: Vec<&str> = allowed.iter().map(|backend| backend.name()).collect();
        let fallback = settings.values.sandbox.fallback.iter().flatten();
        let fallback = fallback.map(|name| ("sandbox.fallback", BackendChoice::from(*name)));
        let chosen = settings.values.sandbox.backend.map(|choice| ("sandbox.backend", choice));
        for (key, choice) in chosen.into_iter().chain(fallback) {
            let permitted = match choice {
                BackendChoice::Auto => !of_auto(allowed).is_empty(),
                named => allowed.iter().any(|backend| BackendChoice::from(*backend) == named),
            };
            if !permitted {
                let list = format!("[{}]", names.join(", "));
                return Err(self.beyond(settings, key, choice.name().to_owned(), list));
            }
        }
        Ok(())
    }

    fn check_sources(&self, settings: &Settings) -> Result<(), BeyondCeiling> {
        for (key, source) in sources(settings) {
            self.check_source(settings, &key, source)?;
        }
        Ok(())
    }

    /// Also for the workspace, whose default no layer holds.
    pub(crate) fn check_source(
        &self,
        settings: &Settings,
        key: &str,
        source: &Path,
    ) -> Result<(), BeyondCeiling> {
        let Some(prefixes) = &self.ceiling.mounts else {
            return Ok(());
        };
        if prefixes.iter().any(|prefix| source.starts_with(prefix.as_path())) {
            return Ok(());
        }
        let list: Vec<String> = prefixes.iter().map(|prefix| prefix.0.to_string()).collect();
        let shown = OsText::from(source).to_string();
        Err(self.beyond(settings, key, shown, format!("what lies in [{}]", list.join(", "))))
    }

    fn check_waivers(&self, settings: &Settings) -> Result<(), BeyondCeiling> {
        let Some(allowed) = &self.ceiling.waive else {
            return Ok(());
        };
        let names: Vec<&str> = allowed.iter().map(|clause| clause.name()).collect();
        for name in settings.values.policy.waive.iter().flat_map(|waive| waive.0.keys()) {
            let permitted = match name.parse::<Clause>() {
                Ok(clause) => allowed.contains(&clause),
                // "all" stands for every clause.
                Err(_) => Clause::ALL.iter().all(|clause| allowed.contains(clause)),
            };
            if !permitted {
                let key = crate::manifest::node::join("policy.waive", name);
                let list = format!("waivers of [{}]", names.join(", "));
                return Err(self.beyond(settings, &key, name.clone(), list));
            }
        }
        Ok(())
    }

    /// What `auto` stands for under this ceiling, in its order. `None` where the ceiling names no backends.
    pub(crate) fn auto_backends(&self) -> Option<Vec<BackendName>> {
        self.ceiling.backends.as_deref().map(of_auto)
    }
}

fn of_auto(allowed: &[BackendName]) -> Vec<BackendName> {
    AUTO.iter().copied().filter(|backend| allowed.contains(backend)).collect()
}

fn sources(settings: &Settings) -> Vec<(String, &Path)> {
    let sandbox = &settings.values.sandbox;
    let mut sources = Vec::new();
    if let (Some(path), false) = (&sandbox.workspace.path, no_workspace(sandbox.workspace.mode)) {
        sources.push(("sandbox.workspace.path".to_owned(), path.as_path()));
    }
    if let Some(RootfsSetting::Directory(path)) = &sandbox.rootfs {
        sources.push(("sandbox.rootfs".to_owned(), path.as_path()));
    }
    let mounts = sandbox.mounts.iter().flat_map(|mounts| &mounts.0).enumerate();
    sources.extend(mounts.map(|(i, m)| (format!("sandbox.mounts[{i}]"), m.source.as_path())));
    let tools = sandbox.tools.iter().flat_map(|tools| &tools.0).enumerate();
    sources.extend(tools.map(|(i, tool)| (format!("sandbox.tools[{i}]"), tool.as_path())));
    sources
}

fn no_workspace(mode: Option<WorkspaceMode>) -> bool {
    mode == Some(WorkspaceMode::None)
}

/// One limit beside its ceiling.
struct Comparison {
    key: &'static str,
    value: String,
    /// The ceiling, where the value is beyond it.
    exceeded: Option<String>,
}

fn comparisons(ceiling: &LimitSettings, limits: &LimitSettings) -> Vec<Comparison> {
    vec![
        compare("limits.memory", ceiling.memory, limits.memory),
        compare("limits.cpus", ceiling.cpus, limits.cpus),
        compare("limits.pids", ceiling.pids, limits.pids),
        compare("limits.time", ceiling.time, limits.time),
        compare("limits.idle", ceiling.idle, limits.idle),
        compare("limits.disk", ceiling.disk, limits.disk),
        compare("limits.output", ceiling.output.map(Limit::At), limits.output.map(Limit::At)),
        compare(
            "limits.stop_timeout",
            ceiling.stop_timeout.map(Limit::At),
            limits.stop_timeout.map(Limit::At),
        ),
    ]
}

fn compare<T: Copy + PartialOrd + ToString>(
    key: &'static str,
    ceiling: Option<Limit<T>>,
    limit: Option<Limit<T>>,
) -> Comparison {
    let value = match limit {
        Some(Limit::At(value)) => value.to_string(),
        _ => "none".to_owned(),
    };
    let exceeded = match (ceiling, limit) {
        (Some(Limit::At(most)), Some(Limit::At(value))) if value <= most => None,
        (Some(Limit::At(most)), _) => Some(most.to_string()),
        (Some(Limit::None) | None, _) => None,
    };
    Comparison { key, value, exceeded }
}

impl Settings {
    /// A built-in value above the ceiling is nobody's wish: it is lowered, where a layer's is refused.
    pub(crate) fn lower_defaults_to_ceiling(&mut self) {
        let Some(file) = self.ceiling.clone() else {
            return;
        };
        let most = &file.ceiling.limits;
        for comparison in comparisons(most, &self.values.limits) {
            if comparison.exceeded.is_none() || self.is_set(comparison.key) {
                continue;
            }
            let limits = &mut self.values.limits;
            match comparison.key {
                "limits.memory" => limits.memory = most.memory,
                "limits.cpus" => limits.cpus = most.cpus,
                "limits.pids" => limits.pids = most.pids,
                "limits.time" => limits.time = most.time,
                "limits.idle" => limits.idle = most.idle,
                "limits.disk" => limits.disk = most.disk,
                "limits.output" => limits.output = most.output,
                _ => limits.stop_timeout = most.stop_timeout,
            }
            self.set_origin(comparison.key, Origin::Ceiling(file.path.clone()));
        }
    }
}
