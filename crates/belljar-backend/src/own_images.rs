//! Images of Belljar's own store, as a run or a command uses them: found, pulled, unpacked.

use std::path::Path;

use belljar_bind::host_program;
use belljar_image::{
    AuthFiles, CredentialSources, HeldImage, HoldError, ImageLimits, ImageName, LoadedImage,
    Platform, PullError, PullOptions, Reference, Store, StoreError, UnpackOptions, UnpackTime,
};
use belljar_spec::text::error_chain;

use crate::backend::PullProgress;
use crate::engine::image::find_helper;
use crate::error::ImageError;

/// Opens the store; it is made if it is not there.
pub fn open(store: &Path) -> Result<Store, ImageError> {
    Store::open(store).map_err(|error| of_store(&error))
}

pub fn parse_name(text: &str) -> Result<ImageName, ImageError> {
    ImageName::parse(text).map_err(|error| ImageError {
        why: error.to_string(),
        fix: "write it as NAME, NAME:TAG, NAME@DIGEST or REGISTRY/NAME".to_owned(),
    })
}

/// Whether the store has an image of that name. One that cannot be asked may have it.
pub fn may_have(store: &Path, name: &str) -> bool {
    let found = open(store)
        .and_then(|store| store.inspect(&parse_name(name)?).map_err(|error| of_store(&error)));
    !matches!(found, Ok(None))
}

/// Pulls an image, whatever was there before, with the credentials of docker and podman.
pub fn pull(
    store: &Store,
    reference: &Reference,
    watcher: &dyn PullProgress,
) -> Result<LoadedImage, ImageError> {
    let credentials = CredentialSources::of_this_user(
        AuthFiles::PodmanThenDocker,
        find_helper,
        host_program::clean_path(),
    );
    let (platform, limits) = (Platform::of_this_machine(), ImageLimits::default());
    let unpack = UnpackTime::BeforeNames(UnpackOptions::for_sandbox());
    let options = PullOptions { platform, limits, credentials, unpack };
    let name = reference.to_string();
    let pulled = store.pull(reference, &options, &mut |progress| {
        watcher.fetched(&name, progress.bytes, progress.of);
    });
    watcher.done();
    pulled.map_err(|error| match &error {
        PullError::Unpack(error) => not_held(&name, error),
        error => ImageError {
            why: format!("cannot pull \"{reference}\": {}", error_chain(error)),
            fix: format!(
                "bring it in from a file: belljar image load FILE (docker save -o FILE {reference} makes one)"
            ),
        },
    })
}

/// Unpacks an image for sandboxes that this user starts, and holds it.
pub fn hold(store: &Store, name: &ImageName) -> Result<HeldImage, ImageError> {
    let held = store.hold(name, &UnpackOptions::for_sandbox(), &mut |_| {});
    held.map_err(|error| not_held(&name.to_string(), &error))
}

fn not_held(name: &str, error: &HoldError) -> ImageError {
    match error {
        HoldError::Missing { name } => missing(name, ""),
        HoldError::Store(error) => of_store(error),
        HoldError::Unpack(_) => ImageError {
            why: format!("the image \"{name}\" cannot be unpacked: {}", error_chain(error)),
            fix: "use another image, or look at the layer that is named".to_owned(),
        },
    }
}

pub(crate) fn missing(name: &str, because: &str) -> ImageError {
    ImageError {
        why: format!("Belljar's own store has no image \"{name}\"{because}"),
        fix: format!(
            "belljar image pull {name}, or from a file that docker save or podman save made: belljar image load FILE"
        ),
    }
}

pub(crate) fn of_store(error: &StoreError) -> ImageError {
    ImageError { why: error_chain(error), fix: "belljar image list shows what is there".to_owned() }
}
