//! A sandbox that is used again by its name.
//!
//! What can only be decided when a sandbox starts must be what the live one was started with: nobody gets
//! less, or more, than asked for because a sandbox of that name was there already. And however many ask
//! at once, one of them starts it: whoever looks holds the name until it is there.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use belljar_spec::{OsText, RunId, RunSpec, RunState};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use belljar_record::RunRecord;
use belljar_record::home::Home;
use belljar_record::redact::{secrets_of, without_secret_values};
use belljar_record::store::{self, ListError, RunInfo, Which};

/// A start that has not come to its record yet may be of this name; and one that stops will be gone.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
/// With an image to fetch, that takes a while.
const OTHERS_START_WITHIN: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What each command in a sandbox has for itself. Everything else in a spec is the sandbox's.
const OF_EACH_COMMAND: &[&str] = &["v", "command", "stdin", "terminal", "env", "workdir", "name"];

/// Changes with other keys, which tell more.
const FOLLOWS: &str = "required";

/// What a spec calls otherwise than the manifest does, with all below it. Nobody who asks for a run sees its spec.
const IN_THE_MANIFEST: &[(&str, &str)] = &[
    ("network_allow", "network.allow"),
    ("egress.allow_private", "network.allow_private"),
    ("egress.intercept", "network.intercept"),
    ("egress.secrets", "secret"),
    ("egress.routes", "route"),
    ("egress.budget", "network.budget"),
    ("egress.per_host", "network.budget_per_host"),
    ("egress.publish", "network.publish"),
    ("egress.reach", "the reach of the network"), // of belljar's own commands, not of a manifest
];

#[derive(Debug, thiserror::Error)]
pub enum ReuseError {
    #[error(transparent)]
    List(#[from] ListError),
    #[error(
        "{count} live runs are called \"{name}\"; stop all but one of them, or enter one by its id: \
         belljar exec"
    )]
    Several { name: String, count: usize },
    #[error(
        "run {run}, called \"{name}\", is {state} and does not come to an end of it; see belljar ps"
    )]
    Unsettled { name: String, run: RunId, state: RunState },
    #[error(
        "another belljar has been starting the sandbox \"{name}\" for {seconds} seconds; see belljar ps"
    )]
    Starting { name: String, seconds: u64 },
    #[error("cannot lock the name of the sandbox by {}", .path.display())]
    Lock {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot read what run {run} was started with")]
    Record {
        run: RunId,
        #[source]
        error: io::Error,
    },
    #[error(
        "the sandbox \"{name}\" was started with {key} = {has}, and this asks for {wants}; to start it \
         anew: belljar stop {name}"
    )]
    Differs { name: String, key: String, has: String, wants: String },
}

/// Nobody else starts or looks for a sandbox of this name while this is held.
#[derive(Debug)]
pub struct NameLock {
    path: PathBuf,
    _file: File,
}

impl NameLock {
    /// Waits for whoever has it, but not for ever: that may be a download, or somebody who went to lunch.
    pub fn take(home: &Home, name: &str) -> Result<Self, ReuseError> {
        let until = Instant::now() + OTHERS_START_WITHIN;
        // Letters, digits and a few signs: a name of a run is a name of a file.
        let path = home.names().join(name);
        let failed = |error| ReuseError::Lock { path: path.clone(), error };
        loop {
            match locked(&path).map_err(failed)? {
                Some(file) => return Ok(Self { path, _file: file }),
                None if Instant::now() >= until => {
                    let seconds = OTHERS_START_WITHIN.as_secs();
                    return Err(ReuseError::Starting { name: name.to_owned(), seconds });
                }
                None => thread::sleep(LOOK_AGAIN),
            }
        }
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // still locked; one that stays does no harm
    }
}

/// The file, locked, if nobody has it and it is still the one of that name: whoever had it took the file
/// away with it.
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
    let until = Instant::now() + SETTLED_WITHIN;
    loop {
        let runs = store::list(home, Which::Live)?;
        let (mut named, others): (Vec<RunInfo>, Vec<RunInfo>) =
            runs.into_iter().partition(|run| run.name.as_deref() == Some(name));
        let over = Instant::now() >= until;
        match named.len() {
            // One whose starter was killed tells its name a moment after it began.
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
        thread::sleep(LOOK_AGAIN);
    }
}

/// What a command needs to be in the live sandbox what it would be in one of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// On top of the sandbox's own variables; `None` takes one away.
    pub env: Vec<(String, Option<OsText>)>,
    pub workdir: OsText,
}

/// Whether this run can be a command in that sandbox.
pub fn fit(home: &Home, run: &RunId, spec: &RunSpec) -> Result<Fit, ReuseError> {
    let record = RunRecord::read(&home.run_dir(run))
        .map_err(|error| ReuseError::Record { run: *run, error })?;
    // As it would be recorded: the recorded one has no secrets in it.
    let wanted = without_secret_values(spec, &secrets_of(spec));
    if let Some((key, has, wants)) = difference(&record.spec, &wanted) {
        let name = spec.name.clone().unwrap_or_default();
        return Err(ReuseError::Differs { name, key, has, wants });
    }
    // What is as it was stays the sandbox's own, which may have more: the image's part of `PATH`.
    let changed =
        spec.env.iter().filter(|(name, value)| record.spec.env.get(*name) != Some(*value));
    let kept = changed.map(|(name, value)| (name.clone(), Some(value.clone())));
    let gone = record.spec.env.keys().filter(|name| !spec.env.contains_key(*name));
    let env = kept.chain(gone.map(|name| (name.clone(), None))).collect();
    Ok(Fit { env, workdir: spec.workdir.clone() })
}

/// The first key with two values. Whatever a later version adds to a spec is compared too.
fn difference(has: &RunSpec, wants: &RunSpec) -> Option<(String, String, String)> {
    let value = |spec: &RunSpec| serde_json::to_value(spec).unwrap_or_default();
    let (has, wants) = (value(has), value(wants));
    let keys = wants.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let (follows, own): (Vec<&str>, Vec<&str>) =
        keys.filter(|key| !OF_EACH_COMMAND.contains(key)).partition(|key| *key == FOLLOWS);
    own.into_iter().chain(follows).find_map(|key| differ(key, &has[key], &wants[key]))
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
    Some((in_the_manifest(key), shown(has), shown(wants)))
}

fn in_the_manifest(key: &str) -> String {
    let known = IN_THE_MANIFEST.iter().find_map(|(spec, manifest)| {
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
