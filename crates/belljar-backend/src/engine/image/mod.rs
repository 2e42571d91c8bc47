//! Finds the image that a container starts from, and fetches it if the policy allows it.

mod architecture;
mod build;
mod credentials;
mod failure;
mod layers;
mod pull;
mod save;

pub use belljar_image::{BadReference, ImageName, Reference};
use belljar_spec::{Pull, RunSpec};
use bollard::models::ImageInspect;

use super::api::{Api, QUICK_TIMEOUT};
use crate::backend::{Fetch, ImageFacts};
use crate::error::ImageError;

pub(crate) use credentials::find_helper;

pub use build::{Archive, Build, BuildNetwork, Built, Cache, HeldImage};
pub(super) use build::{build, held};
pub(super) use save::SavedImage;

pub(super) fn find(
    api: &Api,
    architecture: &str,
    spec: &RunSpec,
    fetch: Fetch<'_>,
) -> Result<ImageFacts, ImageError> {
    let name = ImageName::parse(&spec.image).map_err(|error| ImageError {
        why: error.to_string(),
        fix: "write it as NAME, NAME:TAG, NAME@DIGEST or REGISTRY/NAME".to_owned(),
    })?;
    let found = match (fetch, spec.pull, &name) {
        (Fetch::No, ..) | (_, Pull::Never, _) | (.., ImageName::Id(_)) => look(api, &name)?,
        (Fetch::AsTheSpecSays(watcher), Pull::Missing, ImageName::Reference(reference)) => {
            match look(api, &name)? {
                None => Some(fetched(api, reference, watcher)?),
                found => found,
            }
        }
        (Fetch::AsTheSpecSays(watcher), Pull::Always, ImageName::Reference(reference)) => {
            Some(fetched(api, reference, watcher)?)
        }
    };
    let found = found.ok_or_else(|| missing(api, &name, spec.pull, fetch))?;
    let (os, of) = (found.os.as_deref(), found.architecture.as_deref());
    architecture::check(&spec.image, os.unwrap_or_default(), of.unwrap_or_default(), architecture)?;
    Ok(facts(&name, &spec.image, found))
}

/// From its registry, whatever was there before.
fn fetched(
    api: &Api,
    reference: &Reference,
    watcher: &dyn crate::backend::PullProgress,
) -> Result<ImageInspect, ImageError> {
    let pulled = pull::pull(api, reference, &credentials::sources(api), watcher);
    watcher.done();
    pulled?;
    // By the very name that was fetched: an image of the same short name that was built here is another.
    inspect(api, &reference.exact())?.ok_or_else(|| ImageError {
        why: format!("the engine fetched \"{reference}\" and does not have it"),
        fix: "see the engine's log".to_owned(),
    })
}

/// The image, if the engine has it. With Podman a short name means first what was built here.
fn look(api: &Api, name: &ImageName) -> Result<Option<ImageInspect>, ImageError> {
    if let ImageName::Reference(reference) = name
        && api.is_podman
        && reference.is_short()
        && let Some(found) = inspect(api, &reference.local().exact())?
    {
        return Ok(Some(found));
    }
    match name {
        ImageName::Id(id) => inspect(api, id),
        // Without a tag it can be the beginning of an id, too.
        ImageName::Reference(reference) if !reference.has_tag() && !reference.has_digest() => {
            inspect(api, &reference.repository())
        }
        ImageName::Reference(reference) => inspect(api, &reference.exact()),
    }
}

fn inspect(api: &Api, name: &str) -> Result<Option<ImageInspect>, ImageError> {
    match api.wait("look for the image", QUICK_TIMEOUT, api.docker.inspect_image(name)) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(failure::of_engine(&error)),
    }
}

fn missing(api: &Api, name: &ImageName, pull: Pull, fetch: Fetch<'_>) -> ImageError {
    let ImageName::Reference(reference) = name else {
        return ImageError {
            why: format!("the engine has no image with the id {name}"),
            fix: "name it by NAME@DIGEST: an id cannot be fetched".to_owned(),
        };
    };
    let why = |because: &str| format!("the engine has no image \"{reference}\"{because}");
    let because = match (fetch, pull) {
        (_, Pull::Never) => ", and the pull policy is never",
        (Fetch::No, _) => ", and a dry run fetches nothing",
        (Fetch::AsTheSpecSays(_), _) => "",
    };
    let or = match (how_to_build(reference), pull) {
        (Some(build), _) => return ImageError { why: why(because), fix: build },
        (None, Pull::Never) => "; or let it be fetched: --pull missing",
        (None, _) => "",
    };
    ImageError { why: why(because), fix: format!("{} pull {reference}{or}", command(api)) }
}

/// For one that no registry can have.
fn how_to_build(reference: &Reference) -> Option<String> {
    let repository = reference.repository();
    if repository == "belljar-agent" {
        return Some("build it: belljar image build --agent".to_owned());
    }
    let built_here = repository.starts_with("belljar-") && reference.is_short();
    (built_here || reference.registry() == "localhost")
        .then(|| format!("build it: belljar image build -t {reference} CONTEXT"))
}

/// The engine's own command, for hints.
fn command(api: &Api) -> &'static str {
    if api.is_podman { "podman" } else { "docker" }
}

fn facts(name: &ImageName, as_named: &str, found: ImageInspect) -> ImageFacts {
    let config = found.config.unwrap_or_default();
    let variable = |line: &String| {
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        (name.to_owned(), value.to_owned())
    };
    ImageFacts {
        name: as_named.to_owned(),
        id: found.id.unwrap_or_default(),
        digest: digest(name, found.repo_digests.unwrap_or_default()),
        architecture: found.architecture.unwrap_or_default(),
        env: config.env.iter().flatten().map(variable).collect(),
        volumes: config.volumes.into_iter().flatten().collect(),
        layers: Vec::new(),
        working_dir: config.working_dir.unwrap_or_default(),
        entrypoint: config.entrypoint.unwrap_or_default(),
        cmd: config.cmd.unwrap_or_default(),
        user: None, // a container's user is one of the host's
        shells: None,
    }
}

/// An image can have come from several registries: the one that was named counts first.
fn digest(name: &ImageName, digests: Vec<String>) -> Option<String> {
    let same = |digest: &&String| match (name, Reference::parse(digest)) {
        (ImageName::Reference(named), Ok(digest)) => {
            named.whole_repository() == digest.whole_repository()
        }
        _ => false,
    };
    digests.iter().find(same).or(digests.first()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_named_registry() {
        let of = |registry: &str| format!("{registry}@sha256:{}", "1".repeat(64));
        let all = vec![of("quay.io/x"), of("debian")];
        let named = |name: &str| digest(&ImageName::parse(name).unwrap(), all.clone());
        assert_eq!(named("docker.io/library/debian:stable"), Some(of("debian")));
        assert_eq!(named("quay.io/x"), Some(of("quay.io/x")));
        assert_eq!(named("elsewhere"), Some(of("quay.io/x")));
        assert_eq!(digest(&ImageName::parse("x").unwrap(), Vec::new()), None);
    }
}
