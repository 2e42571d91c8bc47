//! The administrator's ceiling: what no layer may go beyond. A key that is absent sets no bound.

mod network;
mod wanted;

use std::path::Path;

use crate::backends::{BackendChoice, BackendName};
use crate::clause::Clause;
use crate::layers::{Origin, Settings};
use crate::manifest::table::section;
use crate::manifest::value::{Base, HostPath, Value};
use crate::manifest::{Limit, LimitSettings, ManifestError, parse_file};
use crate::runspec::RunSpec;
use crate::text::OsText;

use network::CeilingNetwork;
use wanted::{Wanted, Where};

section! {
    /// `/etc/belljar/policy.toml`.
    pub struct Ceiling {
        /// The maximum of each limit.
        limits: LimitSettings,
        /// Backends that may be used.
        backends: Option<Vec<BackendName>>,
        /// Host rules that cover every rule that may be used.
        network: CeilingNetwork,
        /// Directories that every mount source must be in.
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
    "{key} = {value} (set by {origin}) exceeds the ceiling of {file}, which allows {allowed}; \
     lower it, or ask the administrator of this machine"
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
        self.check_wanted(&Wanted::of_settings(settings))
    }

    /// A run that was decided under another ceiling, or under none, and is to start again. What would be lowered or
    /// added for a new one is refused: nothing of it can be changed.
    pub fn check_spec(&self, spec: &RunSpec) -> Result<(), BeyondCeiling> {
        let wanted = Wanted::of_spec(spec);
        self.check_wanted(&wanted)?;
        self.check_requirements(&wanted, spec)
    }

    fn check_wanted(&self, wanted: &Wanted<'_>) -> Result<(), BeyondCeiling> {
        self.check_limits(wanted)?;
        self.check_backends(wanted)?;
        self.check_network(wanted)?;
        for (key, source) in &wanted.sources {
            self.check_source_of(wanted, key, source)?;
        }
        self.check_waivers(wanted)
    }

    fn beyond(
        &self,
        wanted: &Wanted<'_>,
        key: &str,
        value: String,
        allowed: String,
    ) -> BeyondCeiling {
        let origin = wanted.origin(key);
        BeyondCeiling { key: key.to_owned(), value, allowed, origin, file: self.path.clone() }
    }

    fn check_limits(&self, wanted: &Wanted<'_>) -> Result<(), BeyondCeiling> {
        for comparison in comparisons(&self.ceiling.limits, &wanted.limits) {
            if let Some(maximum) = comparison.exceeded {
                let Comparison { key, value, .. } = comparison;
                return Err(self.beyond(wanted, key, value, format!("at most {maximum}")));
            }
        }
        Ok(())
    }

    fn check_backends(&self, wanted: &Wanted<'_>) -> Result<(), BeyondCeiling> {
        let Some(allowed) = &self.ceiling.backends else {
            return Ok(());
        };
        let names: Vec<&str> = allowed.iter().map(|backend| backend.name()).collect();
        let fallback = wanted.fallback.iter();
        let fallback = fallback.map(|name| ("sandbox.fallback", BackendChoice::from(*name)));
        let chosen = wanted.backend.map(|choice| ("sandbox.backend", choice));
        for (key, choice) in chosen.into_iter().chain(fallback) {
            let permitted = match (choice, wanted.from) {
                (BackendChoice::Auto, Where::Settings(_)) => !of_auto(allowed).is_empty(),
                // It is tried as it is, without regard to this ceiling.
                (BackendChoice::Auto, Where::Spec | Where::Change) => {
                    of_auto(allowed).len() == BackendName::auto().count()
                }
                (named, _) => allowed.iter().any(|backend| BackendChoice::from(*backend) == named),
            };
            if !permitted {
                let list = format!("[{}]", names.join(", "));
                return Err(self.beyond(wanted, key, choice.name().to_owned(), list));
            }
        }
        Ok(())
    }

    /// Also for the workspace: its default is in no layer.
    pub(crate) fn check_source(
        &self,
        settings: &Settings,
        key: &str,
        source: &Path,
    ) -> Result<(), BeyondCeiling> {
        self.check_source_of(&Wanted::of_settings(settings), key, source)
    }

    fn check_source_of(
        &self,
        wanted: &Wanted<'_>,
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
        Err(self.beyond(wanted, key, shown, format!("paths in [{}]", list.join(", "))))
    }

    fn check_waivers(&self, wanted: &Wanted<'_>) -> Result<(), BeyondCeiling> {
        let Some(allowed) = &self.ceiling.waive else {
            return Ok(());
        };
        let names: Vec<&str> = allowed.iter().map(|clause| clause.name()).collect();
        for name in &wanted.waived {
            let permitted = match name.parse::<Clause>() {
                Ok(clause) => allowed.contains(&clause),
                // "all" stands for every clause.
                Err(_) => Clause::ALL.iter().all(|clause| allowed.contains(clause)),
            };
            if !permitted {
                let key = crate::manifest::node::join("policy.waive", name);
                let list = format!("waivers of [{}]", names.join(", "));
                return Err(self.beyond(wanted, &key, (*name).to_owned(), list));
            }
        }
        Ok(())
    }

    fn check_requirements(&self, wanted: &Wanted<'_>, spec: &RunSpec) -> Result<(), BeyondCeiling> {
        let required = self.ceiling.require.iter().flatten();
        let missing = |clause: &&Clause| !spec.required.contains(clause);
        match required.into_iter().find(missing) {
            None => Ok(()),
            Some(clause) => {
                let value = format!("a run without {}", clause.name());
                let allowed = format!("only what requires {}", clause.name());
                Err(self.beyond(wanted, "policy.require", value, allowed))
            }
        }
    }

    /// What `auto` stands for under this ceiling, in its order. `None` where the ceiling names no backends.
    pub(crate) fn auto_backends(&self) -> Option<Vec<BackendName>> {
        self.ceiling.backends.as_deref().map(of_auto)
    }
}

fn of_auto(allowed: &[BackendName]) -> Vec<BackendName> {
    BackendName::auto().filter(|backend| allowed.contains(backend)).collect()
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
        (Some(Limit::At(maximum)), Some(Limit::At(value))) if value <= maximum => None,
        (Some(Limit::At(maximum)), _) => Some(maximum.to_string()),
        (Some(Limit::None) | None, _) => None,
    };
    Comparison { key, value, exceeded }
}

impl Settings {
    /// A built-in value above the ceiling was not requested by a user: it is lowered, where a layer's value is refused.
    pub(crate) fn lower_defaults_to_ceiling(&mut self) {
        let Some(file) = self.ceiling.clone() else {
            return;
        };
        let maximum = &file.ceiling.limits;
        for comparison in comparisons(maximum, &self.values.limits) {
            if comparison.exceeded.is_none() || self.is_set(comparison.key) {
                continue;
            }
            let limits = &mut self.values.limits;
            match comparison.key {
                "limits.memory" => limits.memory = maximum.memory,
                "limits.cpus" => limits.cpus = maximum.cpus,
                "limits.pids" => limits.pids = maximum.pids,
                "limits.time" => limits.time = maximum.time,
                "limits.idle" => limits.idle = maximum.idle,
                "limits.disk" => limits.disk = maximum.disk,
                "limits.output" => limits.output = maximum.output,
                _ => limits.stop_timeout = maximum.stop_timeout,
            }
            self.set_origin(comparison.key, Origin::Ceiling(file.path.clone()));
        }
    }
}
