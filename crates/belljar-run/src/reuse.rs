//! Reuses a live sandbox by its name, if it was started with the same settings.
//!
//! Settings that are fixed at start must match those of the live sandbox, so that a command never gets more or less
//! than it asks for. A lock on the name makes sure that only one of several concurrent callers starts the sandbox.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use belljar_spec::{DecidedBy, OsText, RunId, RunSpec, RunState};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use belljar_record::RunRecord;
use belljar_record::home::Home;
use belljar_record::redact::{secrets_of, without_secret_values};
use belljar_record::store::{self, ListError, RunInfo, Which};

/// How long to wait for a run that is starting or stopping.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);
/// For another process that starts the sandbox, which may pull an image.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Keys that each command in a sandbox can set. All others belong to the sandbox.
const PER_COMMAND_KEYS: &[&str] =
    &["v", "command", "stdin", "terminal", "env", "image_defaults", "workdir", "name"];

/// What it decides is one of the mounts; which other worktrees the repository has by now does not matter to a command.
const GIT_DIRECTORY_KEY: &str = "git_directory";

/// Derived from other keys, which make better error messages.
const DERIVED_KEY: &str = "required";

/// Keys of the spec and their names in the manifest, which users know.
const MANIFEST_KEYS: &[(&str, &str)] = &[
    ("network_allow", "network.allow"),
    ("egress.allow_private", "network.allow_private"),
    ("egress.intercept", "network.intercept"),
    ("egress.secrets", "secret"),
    ("egress.routes", "route"),
    ("egress.budget", "network.budget"),
    ("egress.per_host", "network.budget_per_host"),
    ("egress.publish", "network.publish"),
    ("egress.reach", "network reach"), // set by commands of Belljar, not by a manifest
];

/// How long a run that seems to have the name is looked at again: whoever finishes a run that was lost makes it look
/// alive for a moment.
const NAME_TIMEOUT: Duration = Duration::from_millis(300);

/// Why a run cannot have a name.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    #[error(
        "the name \"{name}\" is in use: run {run} is live; choose another name, or stop that run: belljar stop \
         {name}; to run a command in it: belljar exec {name} COMMAND"
    )]
    InUse { name: String, run: RunId },
    #[error(transparent)]
    List(#[from] ListError),
}

/// Refuses a name that a live run has, since a command that is given the name could then mean either. Two runs that start
/// at the same moment can both get it.
pub fn check_name_is_free(home: &Home, name: &str) -> Result<(), NameError> {
    let until = Instant::now() + NAME_TIMEOUT;
    loop {
        let live = store::list(home, Which::Live)?;
        match live.iter().find(|run| run.name.as_deref() == Some(name)) {
            None => return Ok(()),
            Some(run) if Instant::now() >= until => {
                return Err(NameError::InUse { name: name.to_owned(), run: run.id });
            }
            Some(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReuseError {
    #[error(transparent)]
    List(#[from] ListError),
    #[error(
        "{count} live runs have the name \"{name}\"; stop all but one, or use an id: belljar exec ID"
    )]
    Several { name: String, count: usize },
    #[error("run {run} (\"{name}\") is still {state}; see: belljar ps")]
    Unsettled { name: String, run: RunId, state: RunState },
    #[error(
        "another process has been starting the sandbox \"{name}\" for {seconds} seconds; see: belljar ps"
    )]
    Starting { name: String, seconds: u64 },
    #[error("cannot lock the name of the sandbox with {}", .path.display())]
    Lock {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot read the settings of run {run}")]
    Record {
        run: RunId,
        #[source]
        error: io::Error,
    },
    #[error(
        "the sandbox \"{name}\" was started with {key} = {has}, but this command asks for {wants}; to restart \
         it, first run: belljar stop {name}"
    )]
    Differs { name: String, key: String, has: String, wants: String },
}

/// An exclusive lock on a sandbox name.
#[derive(Debug)]
pub struct NameLock {
    path: PathBuf,
    _file: File,
}

impl NameLock {
    /// Waits for the current owner, up to a timeout.
    pub fn take(home: &Home, name: &str) -> Result<Self, ReuseError> {
        let until = Instant::now() + START_TIMEOUT;
        // Run names are valid file names: letters, digits and some punctuation.
        let path = home.names().join(name);
        let failed = |error| ReuseError::Lock { path: path.clone(), error };
        loop {
            match locked(&path).map_err(failed)? {
                Some(file) => return Ok(Self { path, _file: file }),
                None if Instant::now() >= until => {
                    let seconds = START_TIMEOUT.as_secs();
                    return Err(ReuseError::Starting { name: name.to_owned(), seconds });
                }
                None => thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // still locked; a leftover file does no harm
    }
}

/// Locks the file. `None` if another process has the lock, or if the file was replaced: the owner removes it on
/// release.
fn locked(path: &PathBuf) -> io::Result<Option<File>> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    let lock = FlockOperation::NonBlockingLockExclusive;
    match rustix::io::retry_on_intr(|| flock(&file, lock)) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    let here = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        here => here?,
    };
    let ours = file.metadata()?;
    Ok(((here.dev(), here.ino()) == (ours.dev(), ours.ino())).then_some(file))
}

/// The live run of this name, if there is one and commands can be started in it.
pub fn live(home: &Home, name: &str, _lock: &NameLock) -> Result<Option<RunInfo>, ReuseError> {
    let until = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let runs = store::list(home, Which::Live)?;
        let (mut named, others): (Vec<RunInfo>, Vec<RunInfo>) =
            runs.into_iter().partition(|run| run.name.as_deref() == Some(name));
        let over = Instant::now() >= until;
        match named.len() {
            // The name of a starting run may not be recorded yet.
            0 if over || others.iter().all(|run| run.backend.is_some()) => return Ok(None),
            0 => {}
            1 if named[0].state.allows_exec() => return Ok(named.pop()),
            1 if over => {
                let RunInfo { id: run, state, .. } = named[0];
                return Err(ReuseError::Unsettled { name: name.to_owned(), run, state });
            }
            1 => {}
            count => return Err(ReuseError::Several { name: name.to_owned(), count }),
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// What a command in the live sandbox needs to behave as in a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Changes to the sandbox's variables; `None` removes one.
    pub env: Vec<(String, Option<OsText>)>,
    pub workdir: OsText,
}

/// Checks whether this run can be a command in that sandbox.
pub fn fit(home: &Home, run: &RunId, spec: &RunSpec) -> Result<Fit, ReuseError> {
    let record = RunRecord::read(&home.run_dir(run))
        .map_err(|error| ReuseError::Record { run: *run, error })?;
    // Compare as recorded, without secrets.
    let spec = &as_in_sandbox(spec, &record);
    let wanted = without_secret_values(spec, &secrets_of(spec));
    if let Some((key, has, wants)) = difference(&record.spec, &wanted) {
        let name = spec.name.clone().unwrap_or_default();
        return Err(ReuseError::Differs { name, key, has, wants });
    }
    // Unchanged variables keep the sandbox's value, which may contain more, such as the image's part of `PATH`.
    let changed =
        spec.env.iter().filter(|(name, value)| record.spec.env.get(*name) != Some(*value));
    let set = changed.map(|(name, value)| (name.clone(), Some(value.clone())));
    let removed = record.spec.env.keys().filter(|name| !spec.env.contains_key(*name));
    let env = set.chain(removed.map(|name| (name.clone(), None))).collect();
    Ok(Fit { env, workdir: spec.workdir.clone() })
}

/// The spec with what the live sandbox's image decided, where it leaves that to the image and means the same one.
fn as_in_sandbox(spec: &RunSpec, record: &RunRecord) -> RunSpec {
    let mut spec = spec.clone();
    let Some(image) = &record.image else { return spec };
    if spec.image == image.name {
        spec.image.clone_from(&record.spec.image);
    }
    if spec.image_defaults.user == DecidedBy::Image {
        spec.user = record.spec.user;
    }
    if spec.image_defaults.workdir == DecidedBy::Image {
        spec.workdir.clone_from(&record.spec.workdir);
    }
    spec
}

/// The first key that differs. Compares keys of newer versions too.
fn difference(has: &RunSpec, wants: &RunSpec) -> Option<(String, String, String)> {
    let value = |spec: &RunSpec| serde_json::to_value(spec).unwrap_or_default();
    let (has, wants) = (value(has), value(wants));
    let keys = wants.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let is_compared = |key: &&str| !PER_COMMAND_KEYS.contains(key) && *key != GIT_DIRECTORY_KEY;
    let (derived, main): (Vec<&str>, Vec<&str>) =
        keys.filter(is_compared).partition(|key| *key == DERIVED_KEY);
    main.into_iter().chain(derived).find_map(|key| differ(key, &has[key], &wants[key]))
}

fn differ(key: &str, has: &Value, wants: &Value) -> Option<(String, String, String)> {
    if has == wants {
        return None;
    }
    if let (Some(had), Some(wanted)) = (has.as_object(), wants.as_object()) {
        let mut names = had.keys().chain(wanted.keys());
        return names.find_map(|name| differ(&format!("{key}.{name}"), &has[name], &wants[name]));
    }
    let shown = |value: &Value| match value {
        Value::Null => "nothing".to_owned(),
        value => value.to_string(),
    };
    Some((manifest_key(key), shown(has), shown(wants)))
}

fn manifest_key(key: &str) -> String {
    let known = MANIFEST_KEYS.iter().find_map(|(spec, manifest)| {
        let below = key.strip_prefix(spec)?;
        (below.is_empty() || below.starts_with('.')).then(|| format!("{manifest}{below}"))
    });
    known.unwrap_or_else(|| key.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use belljar_spec::egress::EgressSpec;
    use serde_json::{Value, json};

    use super::differ;

    fn named(key: &str, has: &Value, wants: &Value) -> String {
        differ(key, has, wants).unwrap().0
    }

    #[test]
    fn a_difference_has_the_name_that_the_manifest_gives_it() {
        let spec = serde_json::to_value(EgressSpec::default()).unwrap();
        for (key, name) in [
            ("allow_private", "network.allow_private"),
            ("secrets", "secret"),
            ("routes", "route"),
            ("publish", "network.publish"),
        ] {
            let mut other = spec.clone();
            other[key] = json!(["x"]);
            assert_eq!(named("egress", &spec, &other), name);
        }
        let mut other = spec.clone();
        other["per_host"]["requests"] = json!(7);
        assert_eq!(named("egress", &spec, &other), "network.budget_per_host.requests");
        other["budget"]["bytes_in"] = json!(7);
        assert_eq!(named("egress", &spec, &other), "network.budget.bytes_in");
        assert_eq!(named("network_allow", &json!([]), &json!(["a"])), "network.allow");
        assert_eq!(named("limits", &json!({"time": 1}), &json!({"time": 2})), "limits.time");
    }

    #[test]
    fn no_part_of_the_network_is_called_by_its_name_in_a_spec() {
        let spec = serde_json::to_value(EgressSpec::default()).unwrap();
        for key in spec.as_object().unwrap().keys() {
            let mut other = spec.clone();
            other[key] = json!("other");
            let name = named("egress", &spec, &other);
            assert!(!name.starts_with("egress"), "{name}");
        }
    }
}
