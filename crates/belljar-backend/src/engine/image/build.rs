//! Has an engine make an image from a Dockerfile and the files that go with it.
//!
//! The commands of the Dockerfile are executed in containers of the engine, not in a sandbox of ours: whether it
//! may be is decided by the caller.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex};

use belljar_image::{ImageName, Reference, look_up_credentials};
use bollard::auth::DockerCredentials;
use bollard::query_parameters::BuildImageOptionsBuilder;
use futures_util::StreamExt;

use super::credentials::{for_engine, sources};
use super::layers::Layers;
use super::pull::{message, with_readable_credentials};
use super::{failure, inspect, look};
use crate::backend::PullProgress;
use crate::engine::api::Api;
use crate::error::ImageError;

/// The archive that the engine is sent, piece by piece as it takes them.
pub type Archive = Box<dyn Iterator<Item = io::Result<Vec<u8>>> + Send>;

/// What the steps of a build can reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BuildNetwork {
    /// Whatever the engine gives its containers.
    #[default]
    Default,
    None,
}

/// Whether steps that were done before count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    #[default]
    Use,
    Ignore,
}

pub struct Build<'a> {
    pub name: &'a Reference,
    /// Where the Dockerfile is in the archive.
    pub dockerfile: &'a str,
    pub arguments: &'a BTreeMap<String, String>,
    pub labels: &'a BTreeMap<String, String>,
    /// Images that the Dockerfile begins with: their registries may want credentials.
    pub bases: &'a [Reference],
    pub network: BuildNetwork,
    pub cache: Cache,
    pub archive: Archive,
}

impl std::fmt::Debug for Build<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Build").field("name", self.name).finish_non_exhaustive()
    }
}

/// An image that an engine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldImage {
    pub id: String,
    pub labels: BTreeMap<String, String>,
}

/// How a build went.
#[derive(Debug)]
pub enum Built {
    Done(HeldImage),
    /// A step failed, or the Dockerfile makes no sense to the engine.
    Failed(String),
    /// The archive could not be read to its end; nothing was made of it.
    Unsent(io::Error),
}

pub(in crate::engine) fn held(
    api: &Api,
    name: &Reference,
) -> Result<Option<HeldImage>, ImageError> {
    let found = look(api, &ImageName::Reference(name.clone()))?;
    Ok(found.map(as_held))
}

fn as_held(found: bollard::models::ImageInspect) -> HeldImage {
    let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
    HeldImage { id: found.id.unwrap_or_default(), labels: labels.into_iter().collect() }
}

/// `line` gets each line of the engine's output, unchanged: it may contain anything.
pub(in crate::engine) fn build(
    api: &Api,
    build: Build<'_>,
    watcher: &dyn PullProgress,
    line: &mut (dyn FnMut(&str) + Send),
) -> Result<Built, ImageError> {
    // A short name would become one of Docker's own registry with Podman.
    let name = match api.is_podman && build.name.is_short() {
        true => build.name.local(),
        false => build.name.clone(),
    };
    let owned = |map: &BTreeMap<String, String>| -> HashMap<String, String> {
        map.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let mut options = BuildImageOptionsBuilder::new()
        .dockerfile(build.dockerfile)
        .t(&name.exact())
        .buildargs(&owned(build.arguments))
        .labels(&owned(build.labels))
        .nocache(build.cache == Cache::Ignore)
        .rm(true)
        .forcerm(true);
    if build.network == BuildNetwork::None {
        options = options.networkmode("none");
    }
    let broken: Arc<Mutex<Option<io::Error>>> = Arc::default();
    let body = bollard::body_try_stream(futures_util::stream::iter(noting(
        build.archive,
        Arc::clone(&broken),
    )));
    let docker = with_readable_credentials(&api.docker);
    let credentials = credentials(api, build.bases);
    let failed = api.wait_for(async {
        let mut messages = docker.build_image(options.build(), credentials, Some(body));
        let (mut lines, mut layers) = (Lines::default(), Layers::default());
        while let Some(next) = messages.next().await {
            let next = match next {
                Ok(next) => next,
                Err(error) => {
                    lines.end(line);
                    return Some(error);
                }
            };
            if let Some(text) = &next.stream {
                lines.add(text, line);
            }
            let (id, status) = (next.id.as_deref(), next.status.as_deref());
            if let Some((bytes, of)) = layers.update(id, status, next.progress_detail.as_ref()) {
                watcher.fetched("the base image", bytes, of);
            }
        }
        lines.end(line);
        None
    });
    let failed = failed.map_err(|closed| failure::of_engine(&closed))?;
    watcher.done();
    if let Some(error) = broken.lock().ok().and_then(|mut broken| broken.take()) {
        return Ok(Built::Unsent(error));
    }
    match failed {
        None => {}
        Some(error) => return of_failure(api, error),
    }
    let made = inspect(api, &name.exact())?.ok_or_else(|| ImageError {
        why: format!("the engine built \"{name}\" and does not have it"),
        fix: "see the engine's log".to_owned(),
    })?;
    Ok(Built::Done(as_held(made)))
}

/// A step that failed is the Dockerfile's matter; an engine that cannot be reached is not.
fn of_failure(api: &Api, error: bollard::errors::Error) -> Result<Built, ImageError> {
    use bollard::errors::Error;
    match error {
        Error::DockerResponseServerError { .. } | Error::DockerStreamError { .. } => {
            Ok(Built::Failed(failure::printable(&message(error))))
        }
        other => {
            let error = api.explain("build the image", other, std::time::Duration::ZERO);
            Err(failure::of_engine(&error))
        }
    }
}

/// Passes the pieces on, and keeps the error: the client would report it as one of its own.
fn noting(
    archive: Archive,
    broken: Arc<Mutex<Option<io::Error>>>,
) -> impl Iterator<Item = io::Result<bytes::Bytes>> + Send {
    archive.map(move |piece| {
        piece.map(bytes::Bytes::from).map_err(|error| {
            let kind = error.kind();
            if let Ok(mut broken) = broken.lock() {
                broken.get_or_insert(error);
            }
            kind.into()
        })
    })
}

/// Only of the registries that the Dockerfile names.
fn credentials(api: &Api, bases: &[Reference]) -> Option<HashMap<String, DockerCredentials>> {
    let places = sources(api);
    let mut seen = BTreeSet::new();
    let mut found = HashMap::new();
    for base in bases.iter().filter(|base| seen.insert(base.registry().to_owned())) {
        if let Some(credentials) = look_up_credentials(base, &places).credentials {
            let sent = for_engine(&credentials, base.registry());
            found.insert(sent.serveraddress.clone().unwrap_or_default(), sent);
        }
    }
    (!found.is_empty()).then_some(found)
}

/// Lines from pieces of text. A line that never ends is cut.
#[derive(Debug, Default)]
struct Lines(String);

impl Lines {
    const MAX_LENGTH: usize = 16 * 1024;

    fn add(&mut self, text: &str, line: &mut (dyn FnMut(&str) + Send)) {
        for piece in text.split_inclusive('\n') {
            self.0.push_str(piece);
            if self.0.ends_with('\n') || self.0.len() > Self::MAX_LENGTH {
                self.end(line);
            }
        }
    }

    fn end(&mut self, line: &mut (dyn FnMut(&str) + Send)) {
        let whole = std::mem::take(&mut self.0);
        let whole = whole.trim_end();
        if !whole.is_empty() {
            line(whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_end_somewhere() {
        let mut seen = Vec::new();
        let mut lines = Lines::default();
        for piece in ["Step 1", "/2 : FROM x", "\n", "\n", "a\nb", "\r\n", &"x".repeat(20_000)] {
            lines.add(piece, &mut |line| seen.push(line.to_owned()));
        }
        lines.end(&mut |line| seen.push(line.to_owned()));
        assert_eq!(seen[..3], ["Step 1/2 : FROM x", "a", "b"]);
        assert_eq!(seen[3].len(), 20_000);
    }
}
