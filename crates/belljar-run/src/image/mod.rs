//! Images that are built here: what goes in, whether anything of it changed, and the build.

mod archive;
mod context;
mod dockerfile;
mod error;
mod fingerprint;
mod ignore;
mod inputs;
mod kept;
mod name;
mod pattern;
mod place;
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
pub use fingerprint::{LABEL_FINGERPRINT, LABEL_INPUTS, Why};
pub use ignore::IgnoreError;

use crate::config::trust::Examined;
use belljar_record::home::Home;
use fingerprint::differences;
use inputs::Inputs;
use kept::Kept;
use place::Place;

/// What is built from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The Dockerfile that belljar ships.
    Agent,
    Files {
        /// `Dockerfile` in the context, unless named.
        dockerfile: Option<PathBuf>,
        /// The Dockerfile's directory if that is named, else the current one.
        context: Option<PathBuf>,
    },
}

/// When an image is built although nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuild {
    WhenChanged,
    Always,
}

#[derive(Clone, Debug)]
pub struct Request {
    /// The first engine that answers, unless named.
    pub backend: Option<BackendName>,
    pub name: Option<String>,
    pub source: Source,
    pub arguments: BTreeMap<String, String>,
    pub network: BuildNetwork,
    pub cache: Cache,
    pub rebuild: Rebuild,
}

/// Told while it goes on.
pub trait Watcher: PullProgress {
    /// Something that no archive can hold.
    fn skipped(&self, _path: &OsText, _what: &str) {}

    /// A run could have written files of the context, and the build may execute them.
    fn others_wrote(&self) {}

    fn begins(&self, _name: &str, _backend: BackendName, _why: &[Why]) {}

    /// One line of the engine's, as it came: it may hold anything.
    fn line(&self, _line: &str) {}
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub name: String,
    pub backend: BackendName,
    pub id: String,
    pub fingerprint: String,
    /// Why it was built. Empty if it was not: everything is as it was.
    pub why: Vec<Why>,
}

/// Builds an image, if anything that it is made from has changed.
pub fn build(home: &Home, request: Request, watcher: &dyn Watcher) -> Result<Outcome, BuildError> {
    let named = request.name.as_deref().map(name_for_build).transpose()?;
    let place = match &request.source {
        Source::Agent => None,
        Source::Files { dockerfile, context } => {
            let place = Place::find(home, dockerfile.as_deref(), context.as_deref())?;
            place.refuse_untrusted(home)?; // before anything else of it is read
            Some(place)
        }
    };
    let engine = choose(request.backend)?;
    let inputs = match place {
        Some(place) => Inputs::read(home, place, &request.arguments)?,
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
    let done = |id: String, why: Vec<Why>| Outcome {
        name: name.to_string(),
        backend: engine.name(),
        id,
        fingerprint: fingerprint.whole.clone(),
        why,
    };
    if let (Some(image), true) = (&before, why.is_empty()) {
        return Ok(done(image.id.clone(), why));
    }
    if inputs.others_wrote && request.network == BuildNetwork::Default {
        watcher.others_wrote();
    }
    watcher.begins(&name.to_string(), engine.name(), &why);
    let made = carry_out(&engine, &name, &request, inputs, (home, watcher))?;
    if let Some(old) = before.and_then(|image| image.labels.get(LABEL_FINGERPRINT).cloned())
        && old != fingerprint.whole
    {
        Kept::forget(home, &old);
    }
    Ok(done(made.id, why))
}

/// Empty if the image is from exactly these inputs.
fn reasons(
    home: &Home,
    request: &Request,
    inputs: &Inputs,
    before: Option<&HeldImage>,
) -> Vec<Why> {
    let Some(image) = before else { return vec![Why::NoImage] };
    let old = image.labels.get(LABEL_FINGERPRINT);
    let kept = old.and_then(|old| Kept::read(home, old));
    let why = differences(&inputs.fingerprint, &image.labels, kept.as_ref(), inputs.entries());
    match (why.is_empty(), request.rebuild, request.cache) {
        (true, Rebuild::Always, _) => vec![Why::Forced],
        (true, Rebuild::WhenChanged, Cache::Ignore) => vec![Why::NoCache],
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
    let kept = inputs.kept.clone();
    let leads_out = inputs.entries().iter().find(|entry| entry.leads_out());
    let leads_out = leads_out.map(|entry| OsText::from_bytes(entry.path.clone()));
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
            let _ = kept.save(home, &whole); // without it the next change has no name
            Ok(image)
        }
        // Somebody else built one of that name meanwhile.
        Ok(Built::Done(_)) => Err(BuildError::Overtaken(name.to_string())),
        Ok(Built::Failed(why)) if why.is_empty() => {
            Err(BuildError::NoReason { name: name.to_string(), leads_out })
        }
        Ok(Built::Failed(why)) => Err(BuildError::Failed { name: name.to_string(), why }),
        Ok(Built::Unsent(error)) => Err(BuildError::Unsent(error)),
        Err(reason) => Err(BuildError::Engine { backend: engine.name(), reason }),
    }
}

/// A name can be given to what is built; a digest cannot.
fn name_for_build(text: &str) -> Result<Reference, BuildError> {
    let name = Reference::parse(text)?;
    match name.has_digest() {
        true => Err(BuildError::NameWithDigest(name.to_string())),
        false => Ok(name),
    }
}

/// The engine of that name, or the first that answers.
fn choose(backend: Option<BackendName>) -> Result<Engine, BuildError> {
    let answers = |name: BackendName| -> Result<Engine, Unavailable> {
        let engine = Engine::find(name)?;
        engine.probe()?;
        Ok(engine)
    };
    let unavailable = |backend| move |reason| BuildError::Unavailable { backend, reason };
    match backend {
        Some(name) if name.features().needs_image() => answers(name).map_err(unavailable(name)),
        Some(name) => Err(BuildError::NoEngine(name)),
        None => {
            // The first failure is shown where no engine answers: it is of the one that is tried first.
            let mut first = None;
            for name in BackendName::engines() {
                match answers(name) {
                    Ok(engine) => return Ok(engine),
                    Err(reason) => first = first.or(Some(unavailable(name)(reason))),
                }
            }
            Err(first.unwrap_or(BuildError::NoEngine(BackendName::Jail)))
        }
    }
}

/// What a Dockerfile is trusted with, for `belljar trust`.
pub fn examine(path: &Path, context: Option<&Path>, home: &Home) -> Result<Examined, BuildError> {
    Place::find(home, Some(path), context)?.examined(home)
}
