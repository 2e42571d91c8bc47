//! Layers of settings, low to high: built-in, the system's file, the user's file, the manifest,
//! `BELLJAR_*` variables, flags.
//!
//! A higher layer's value replaces a lower one's. Lists replace as well, but for those to which every
//! layer adds: mounts, tmpfs, tools, hide, env, pass_env, env_file, labels, allow_source,
//! allow_control, secrets, routes, services, `policy.require` and `policy.waive`. So no layer drops another's requirement.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::backends::BackendChoice;
use crate::ceiling::CeilingFile;
use crate::commands::CommandPolicy;
use crate::env;
use crate::human_duration::HumanDuration;
use crate::manifest::node::{Data, Node};
use crate::manifest::value::{Base, Field, Merge, Value};
use crate::manifest::{Limit, Manifest, ManifestError, Place, Prefer, print};
use crate::runspec::Retention;
use crate::size::Size;
use crate::text::{OsText, escape};

/// Which layer set a key. In the order of the layers: a higher one wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    BuiltIn,
    /// What an agent needs; added after all others, and overridden by each of them.
    Preset(String),
    System(OsText),
    User(OsText),
    Manifest(OsText),
    Variable(String),
    Flag(String),
    /// A program that uses the library.
    Program,
    /// It was not set, and the built-in value was above the ceiling.
    Ceiling(OsText),
}

impl Origin {
    /// Whether it was set for this run alone.
    pub fn is_of_this_run(&self) -> bool {
        matches!(self, Self::Flag(_) | Self::Program)
    }

    /// The layer's height; two flags are on the same.
    pub fn rank(&self) -> u8 {
        match self {
            Self::BuiltIn | Self::Preset(_) => 0,
            Self::System(_) => 1,
            Self::User(_) => 2,
            Self::Manifest(_) => 3,
            Self::Variable(_) => 4,
            Self::Flag(_) | Self::Program => 5,
            Self::Ceiling(_) => 6,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built-in"),
            Self::Preset(agent) => write!(f, "the preset of {agent}"),
            Self::System(path) | Self::User(path) | Self::Manifest(path) => write!(f, "{path}"),
            Self::Variable(name) => write!(f, "the variable {name}"),
            Self::Flag(flag) => f.write_str(flag),
            Self::Program => f.write_str("the program"),
            Self::Ceiling(path) => write!(f, "the ceiling {path}"),
        }
    }
}

/// One layer: its values, and the directory that its relative paths start from.
#[derive(Clone, Debug)]
pub struct Layer {
    pub origin: Origin,
    pub directory: PathBuf,
    pub values: Manifest,
}

/// All layers in one, and who set what.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Every host path in it is absolute.
    pub values: Manifest,
    pub ceiling: Option<CeilingFile>,
    origins: BTreeMap<String, Origin>,
}

/// One line of `config show`.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub key: String,
    /// As TOML.
    pub value: String,
    pub origin: Origin,
}

impl Settings {
    /// `layers` come low to high.
    pub fn merge(layers: Vec<Layer>, ceiling: Option<CeilingFile>, home: Option<&Path>) -> Self {
        let mut values = Manifest::default();
        let mut origins = BTreeMap::new();
        for mut layer in layers {
            let base = Base { directory: layer.directory, home: home.map(Path::to_owned) };
            layer.values.rebase(&base);
            let mut merge = Merge { origin: &layer.origin, origins: &mut origins };
            values.merge_field(layer.values, String::new(), &mut merge);
        }
        let mut settings = Self { values, ceiling, origins };
        settings.lower_defaults_to_ceiling();
        settings
    }

    /// Adds what an agent needs. `values` holds nothing that another layer has set, except lists to which it adds.
    pub fn add_preset(&mut self, values: Manifest, agent: &str) {
        let origin = Origin::Preset(agent.to_owned());
        let mut merge = Merge { origin: &origin, origins: &mut self.origins };
        self.values.merge_field(values, String::new(), &mut merge);
    }

    /// Which layer set the key: `limits.memory`, `sandbox.mounts[0]`, `sandbox.env.NAME`.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.origins.get(key)
    }

    /// Whether any layer above the built-in one set the key.
    pub fn is_set(&self, key: &str) -> bool {
        self.origin(key).is_some_and(|origin| *origin != Origin::BuiltIn)
    }

    pub(crate) fn set_origin(&mut self, key: &str, origin: Origin) {
        self.origins.insert(key.to_owned(), origin);
    }

    /// The keys that a layer set, with that layer; [`Settings::shown`] has their values, and takes longer.
    pub fn origins(&self) -> impl Iterator<Item = (&str, &Origin)> {
        self.origins.iter().map(|(key, origin)| (key.as_str(), origin))
    }

    /// Every key that has a value, with the layer that won.
    pub fn shown(&self) -> Vec<Shown> {
        let mut shown = Vec::new();
        let whole = Node::new(self.values.write());
        self.show_below(&whole, "", &mut shown);
        shown.sort_by(|a, b| a.key.cmp(&b.key));
        shown
    }

    fn show_below(&self, node: &Node, key: &str, shown: &mut Vec<Shown>) {
        if let Some(origin) = self.origins.get(key) {
            let value = print::inline(&node.data).to_string().trim().to_owned();
            shown.push(Shown { key: key.to_owned(), value, origin: origin.clone() });
            return;
        }
        match &node.data {
            Data::Table(entries) => {
                for entry in entries {
                    let below = crate::manifest::node::join(key, &entry.key);
                    self.show_below(&entry.node, &below, shown);
                }
            }
            Data::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.show_below(item, &format!("{key}[{index}]"), shown);
                }
            }
            _ => {}
        }
    }
}

/// The defaults. Memory is half of the host's, where that is known.
pub fn built_in(memory_total: Option<u64>) -> Manifest {
    let mut values = Manifest::default();
    values.sandbox.backend = Some(BackendChoice::Auto);
    values.sandbox.image = Some("debian:stable-slim".into());
    let limits = &mut values.limits;
    limits.memory = Some(match memory_total {
        Some(total) if total > 1 => Limit::At(Size(total / 2)),
        _ => Limit::None,
    });
    limits.cpus = Some(Limit::None);
    limits.pids = Some(Limit::At(2048));
    limits.time = Some(Limit::None);
    limits.idle = Some(Limit::None);
    limits.output = Some(Size(256 << 20));
    limits.disk = Some(Limit::At(Size(10 << 30)));
    limits.stop_timeout = Some(HumanDuration::from_secs(10));
    let Retention { sandboxes, runs } = Retention::default();
    values.retention.sandboxes = Some(sandboxes);
    values.retention.runs = Some(runs);
    values.commands.mode = Some(CommandPolicy::default().mode);
    values
}

/// What a variable of the environment is to the settings.
#[derive(Clone, Debug, PartialEq)]
pub enum Variable {
    NoSetting,
    /// Named like one of ours, and not close to any that there is.
    Unknown,
    Setting(Box<Manifest>),
}

/// Whether the name has another meaning, or none at all.
pub fn is_no_setting(name: &str) -> bool {
    env::NOT_SETTINGS.contains(&name)
        || name.starts_with(env::TEST_PREFIX)
        || !name.starts_with(env::SETTING_PREFIX)
}

/// `BELLJAR_LIMITS_MEMORY=2g` is `limits.memory = "2g"`.
pub fn from_variable(name: &str, value: &str) -> Result<Variable, ManifestError> {
    let Some(rest) = name.strip_prefix(env::SETTING_PREFIX) else {
        return Ok(Variable::NoSetting);
    };
    if is_no_setting(name) {
        return Ok(Variable::NoSetting);
    }
    let keys = Manifest::keys();
    let spelled = |key: &str| key.to_ascii_uppercase().replace('.', "_");
    let place = Place::Variable(escape(name.as_bytes()));
    match keys.iter().find(|key| spelled(key) == rest) {
        Some(key) => {
            let keys: Vec<String> = key.split('.').map(str::to_owned).collect();
            Manifest::from_setting(&keys, value, Prefer::Toml, place)
                .map(|m| Variable::Setting(Box::new(m)))
        }
        None => {
            let settings =
                keys.iter().map(|key| format!("{}{}", env::SETTING_PREFIX, spelled(key)));
            let others = env::NOT_SETTINGS.iter().map(|name| (*name).to_owned());
            let all = settings.chain(others);
            let by_distance = all.map(|known| (strsim::damerau_levenshtein(&known, name), known));
            match by_distance.min() {
                Some((distance, nearest)) if distance <= max_typos(rest) => {
                    let what = format!("there is no such setting; did you mean {nearest}?");
                    Err(ManifestError { place, key: String::new(), what })
                }
                _ => Ok(Variable::Unknown),
            }
        }
    }
}

/// How many letters a name may be off to count as a misspelt one: a short name is soon like another.
fn max_typos(name: &str) -> usize {
    match name.len() {
        0..=5 => 1,
        6..=11 => 2,
        _ => 3,
    }
}

/// `-c limits.memory=2g`: a dotted key, and a TOML value or a bare string.
pub fn from_assignment(text: &str) -> Result<Manifest, ManifestError> {
    let place = || Place::Flag(format!("-c {}", escape(text.as_bytes())));
    let wrong =
        |what: &str| ManifestError { place: place(), key: String::new(), what: what.into() };
    let split = split_assignment(text);
    let (key, value) = split.ok_or_else(|| wrong("write key=value, such as limits.memory=2g"))?;
    let keys = toml_edit::Key::parse(key)
        .map_err(|_| wrong("the key is malformed; write it as in the manifest: limits.memory"))?;
    let keys: Vec<String> = keys.iter().map(|key| key.get().to_owned()).collect();
    Manifest::from_setting(&keys, value.trim(), Prefer::Toml, place())
}

/// At the first `=` that is not in quotes: a key may hold one.
fn split_assignment(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (None, '=') => return Some((&text[..at], &text[at + 1..])),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
    }
    None
}
