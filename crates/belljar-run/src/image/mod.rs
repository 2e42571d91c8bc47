//! Builds container images, and skips the build if no input has changed.

mod build_files;
mod build_record;
mod context;
mod context_archive;
mod default_name;
mod dockerfile;
mod error;
mod fingerprint;
mod ignore;
mod ignore_pattern;
mod inputs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar_backend::engine::Engine;
use belljar_backend::engine::image::{Build, Built, HeldImage};
pub use belljar_backend::engine::image::{BuildNetwork, Cache, Reference};
use belljar_backend::{Backend, PullProgress, Unavailable};
use belljar_spec::{BackendName, OsText};

pub use context::ContextError;
pub use dockerfile::AGENT_DOCKERFILE;
pub use error::BuildError;
pub use fingerprint::{LABEL_FINGERPRINT, LABEL_INPUTS, RebuildReason};
pub use ignore::IgnoreError;

use crate::config::trust::Examined;
use belljar_record::home::Home;
use build_files::BuildFiles;
use build_record::BuildRecord;
use fingerprint::differences;
use inputs::Inputs;

/// What an image is built from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The Dockerfile that Belljar ships.
    Agent,
    Files {
        /// `Dockerfile` in the context, unless named.
        dockerfile: Option<PathBuf>,
        /// The Dockerfile's directory if that is named, else the current one.
        context: Option<PathBuf>,
    },
}

/// Whether an image is built even if nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuild {
    WhenChanged,
    Always,
}

#[derive(Clone, Debug)]
pub struct Request {
    /// `None`: the first available engine.
    pub backend: Option<BackendName>,
    pub name: Option<String>,
    pub source: Source,
    pub arguments: BTreeMap<String, String>,
    pub network: BuildNetwork,
    pub cache: Cache,
    pub rebuild: Rebuild,
}

/// Receives the progress of a build.
pub trait Watcher: PullProgress {
    /// A file that cannot be in an archive.
    fn skipped(&self, _path: &OsText, _what: &str) {}

    /// Runs could have written files of the context, and the build may execute them.
    fn written_by_runs(&self) {}

    fn begins(&self, _name: &str, _backend: BackendName, _why: &[RebuildReason]) {}

    /// One line of engine output, unfiltered: it may contain anything.
    fn line(&self, _line: &str) {}
}

/// The result of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub name: String,
    pub backend: BackendName,
    pub id: String,
    pub fingerprint: String,
    /// Why it was built. Empty if it was not, because nothing has changed.
    pub why: Vec<RebuildReason>,
}

/// Builds an image if any of its inputs has changed.
pub fn build(home: &Home, request: Request, watcher: &dyn Watcher) -> Result<Outcome, BuildError> {
    let named = request.name.as_deref().map(name_for_build).transpose()?;
    let build_files = match &request.source {
        Source::Agent => None,
        Source::Files { dockerfile, context } => {
            let build_files = BuildFiles::find(home, dockerfile.as_deref(), context.as_deref())?;
            build_files.refuse_untrusted(home)?; // before anything else of it is read
            Some(build_files)
        }
    };
    let engine = choose(request.backend)?;
    let inputs = match build_files {
        Some(build_files) => Inputs::read(home, build_files, &request.arguments)?,
        None => Inputs::of_agent(&request.arguments),
    };
    for (path, what) in &inputs.skipped {
        watcher.skipped(path, what);
    }
    let name = match named {
        Some(name) => name,
        None => name_for_build(&inputs.default_name)?,
    };
    let fingerprint = inputs.fingerprint.clone();
    let of_engine = |reason| BuildError::Engine { backend: engine.name(), reason };
    let before = engine.held_image(&name).map_err(of_engine)?;
    let why = reasons(home, &request, &inputs, before.as_ref());
    let done = |id: String, why: Vec<RebuildReason>| Outcome {
        name: name.to_string(),
        backend: engine.name(),
        id,
        fingerprint: fingerprint.whole.clone(),
        why,
    };
    if let (Some(image), true) = (&before, why.is_empty()) {
        return Ok(done(image.id.clone(), why));
    }
    if inputs.written_by_runs && request.network == BuildNetwork::Default {
        watcher.written_by_runs();
    }
    watcher.begins(&name.to_string(), engine.name(), &why);
    let made = carry_out(&engine, &name, &request, inputs, (home, watcher))?;
    if let Some(old) = before.and_then(|image| image.labels.get(LABEL_FINGERPRINT).cloned())
        && old != fingerprint.whole
    {
        BuildRecord::forget(home, &old);
    }
    Ok(done(made.id, why))
}

/// Empty if the image was built from exactly these inputs.
fn reasons(
    home: &Home,
    request: &Request,
    inputs: &Inputs,
    before: Option<&HeldImage>,
) -> Vec<RebuildReason> {
    let Some(image) = before else { return vec![RebuildReason::NoImage] };
    let old = image.labels.get(LABEL_FINGERPRINT);
    let build_record = old.and_then(|old| BuildRecord::read(home, old));
    let why =
        differences(&inputs.fingerprint, &image.labels, build_record.as_ref(), inputs.entries());
    match (why.is_empty(), request.rebuild, request.cache) {
        (true, Rebuild::Always, _) => vec![RebuildReason::Forced],
        (true, Rebuild::WhenChanged, Cache::Ignore) => vec![RebuildReason::NoCache],
        _ => why,
    }
}

fn carry_out(
    engine: &Engine,
    name: &Reference,
    request: &Request,
    inputs: Inputs,
    (home, watcher): (&Home, &dyn Watcher),
) -> Result<HeldImage, BuildError> {
    let labels = inputs.fingerprint.labels();
    let whole = inputs.fingerprint.whole.clone();
    let build_record = inputs.build_record.clone();
    let points_outside = inputs.entries().iter().find(|entry| entry.points_outside());
    let points_outside = points_outside.map(|entry| OsText::from_bytes(entry.path.clone()));
    let (dockerfile, bases) =
        (inputs.dockerfile_path.clone(), dockerfile::bases(&inputs.dockerfile));
    let build = Build {
        name,
        dockerfile: &dockerfile,
        arguments: &request.arguments,
        labels: &labels,
        bases: &bases,
        network: request.network,
        cache: request.cache,
        archive: Box::new(inputs.archive()),
    };
    let built = engine.build_image(build, watcher, &mut |line| watcher.line(line));
    match built {
        Ok(Built::Done(image)) if image.labels.get(LABEL_FINGERPRINT) == Some(&whole) => {
            let _ = build_record.save(home, &whole); // only used to name changed files
            Ok(image)
        }
        // Another process built an image of that name meanwhile.
        Ok(Built::Done(_)) => Err(BuildError::Overtaken(name.to_string())),
        Ok(Built::Failed(why)) if why.is_empty() => {
            Err(BuildError::NoReason { name: name.to_string(), points_outside })
        }
        Ok(Built::Failed(why)) => Err(BuildError::Failed { name: name.to_string(), why }),
        Ok(Built::Unsent(error)) => Err(BuildError::ContextNotSent(error)),
        Err(reason) => Err(BuildError::Engine { backend: engine.name(), reason }),
    }
}

/// A build can have a name, but not a digest.
fn name_for_build(text: &str) -> Result<Reference, BuildError> {
    let name = Reference::parse(text)?;
    match name.has_digest() {
        true => Err(BuildError::NameWithDigest(name.to_string())),
        false => Ok(name),
    }
}

/// The engine of that name, or the first available one.
fn choose(backend: Option<BackendName>) -> Result<Engine, BuildError> {
    let connect = |name: BackendName| -> Result<Engine, Unavailable> {
        let engine = Engine::find(name)?;
        engine.probe()?;
        Ok(engine)
    };
    let unavailable = |backend| move |reason| BuildError::Unavailable { backend, reason };
    match backend {
        Some(name) if name.features().needs_image() => connect(name).map_err(unavailable(name)),
        Some(name) => Err(BuildError::NoEngine(name)),
        None => {
            // The first failure is shown where no engine answers: it is of the one that is tried first.
            let mut first = None;
            for name in BackendName::engines() {
                match connect(name) {
                    Ok(engine) => return Ok(engine),
                    Err(reason) => first = first.or(Some(unavailable(name)(reason))),
                }
            }
            Err(first.unwrap_or(BuildError::NoEngine(BackendName::Jail)))
        }
    }
}

/// What trusting a Dockerfile means, for `belljar trust`.
pub fn examine(path: &Path, context: Option<&Path>, home: &Home) -> Result<Examined, BuildError> {
    BuildFiles::find(home, Some(path), context)?.examined(home)
}
