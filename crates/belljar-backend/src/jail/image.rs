//! Finds the image that a jail starts from in Belljar's own store, and fetches it if the policy allows it.

use belljar_image::{HeldImage, Image, ImageName, Platform, Store, UnpackOptions, image_user};
use belljar_spec::text::{error_chain, escape};
use belljar_spec::{DecidedBy, Pull, Rootfs, RunSpec, User};

use crate::backend::{Fetch, ImageFacts, Images};
use crate::error::ImageError;
use crate::own_images::{self, hold, missing, of_store, parse_name};
use crate::shell::BASH;

pub(super) fn find(spec: &RunSpec, images: &Images<'_>) -> Result<Option<ImageFacts>, ImageError> {
    if spec.rootfs != Rootfs::Image {
        return Ok(None);
    }
    if !cfg!(target_feature = "crt-static") {
        return Err(ImageError {
            why: "this belljar is linked dynamically, so its PID 1 cannot run in an image"
                .to_owned(),
            fix: "build it statically, as its sources' .cargo/config.toml has it".to_owned(),
        });
    }
    let name = parse_name(&spec.image)?;
    let Some(store) = &images.store else {
        return Err(ImageError {
            why: "this program has no store of images for the jail".to_owned(),
            fix: "use an engine: --backend docker".to_owned(),
        });
    };
    let store = own_images::open(store)?;
    let facts = match images.fetch {
        Fetch::No => {
            let unpacked = store.hold_unpacked(&name, &UnpackOptions::for_sandbox());
            match unpacked.map_err(|error| of_store(&error))? {
                Some(held) => facts(spec, &name, &held.image, Some(&held))?,
                None => facts(spec, &name, &look(&store, &name, spec.pull, true)?, None)?,
            }
        }
        Fetch::AsTheSpecSays(watcher) => {
            if let ImageName::Reference(reference) = &name {
                let is_wanted = match spec.pull {
                    Pull::Always => true,
                    Pull::Missing => {
                        store.inspect(&name).map_err(|error| of_store(&error))?.is_none()
                    }
                    Pull::Never => false,
                };
                if is_wanted {
                    own_images::pull(&store, reference, watcher)?;
                }
            }
            look(&store, &name, spec.pull, false)?;
            let held = hold(&store, &name)?;
            facts(spec, &name, &held.image, Some(&held))?
        }
    };
    Ok(Some(facts))
}

fn look(store: &Store, name: &ImageName, pull: Pull, is_dry: bool) -> Result<Image, ImageError> {
    let found = store.inspect(name).map_err(|error| of_store(&error))?;
    let because = match (pull, is_dry) {
        (Pull::Never, _) => ", and the pull policy is never",
        (_, true) => ", and a dry run fetches nothing",
        (_, false) => "",
    };
    found.ok_or_else(|| missing(&name.to_string(), because))
}

/// `held` where the image is unpacked, so that one can look into it.
fn facts(
    spec: &RunSpec,
    name: &ImageName,
    image: &Image,
    held: Option<&HeldImage>,
) -> Result<ImageFacts, ImageError> {
    let here = Platform::of_this_machine();
    let is_unnamed = image.platform.os.is_empty() && image.platform.architecture.is_empty();
    if !is_unnamed && !here.accepts(&image.platform) {
        let of = escape(image.platform.to_string().as_bytes());
        return Err(ImageError {
            why: format!("the image \"{name}\" is for {of}, and this machine is {here}"),
            fix: format!("use an image for {here}"),
        });
    }
    let config = &image.config;
    if config.entrypoint.iter().chain(&config.cmd).any(|word| word.contains('\0')) {
        return Err(ImageError {
            why: format!("the command of the image \"{name}\" contains a NUL byte"),
            fix: "give another command and entrypoint".to_owned(),
        });
    }
    let user = match spec.image_defaults.user {
        DecidedBy::Run => None,
        DecidedBy::Image => image_user(&config.user, held).map_err(|error| ImageError {
            why: error_chain(&error),
            fix: "choose the user inside: --user UID:GID".to_owned(),
        })?,
    };
    let digest = match name {
        ImageName::Id(_) => image.digest().to_string(),
        ImageName::Reference(reference) => {
            format!("{}@{}", reference.repository(), image.digest())
        }
    };
    let variable = |line: &String| {
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        (name.to_owned(), value.to_owned())
    };
    let shells = held.map(|held| {
        let candidates = spec.shell.iter().map(String::as_str).chain(BASH);
        candidates.filter(|path| held.has_program(path.as_ref())).map(str::to_owned).collect()
    });
    Ok(ImageFacts {
        name: spec.image.clone(),
        id: image.manifest.to_string(),
        digest: Some(digest),
        architecture: image.platform.architecture.clone(),
        env: config.env.iter().map(variable).collect(),
        volumes: config.volumes.clone(),
        layers: image.layers.iter().map(|layer| layer.diff_id.to_string()).collect(),
        working_dir: config.working_dir.clone(),
        entrypoint: config.entrypoint.clone(),
        cmd: config.cmd.clone(),
        user: user.map(|user| User { uid: user.uid, gid: user.gid }),
        shells,
    })
}
