//! Finds out which programs an image has, without starting anything of it.
//!
//! The engine answers such questions about a container only, so one is made for the question and removed. What was
//! found out is stored by the image's id, which is a hash of its content.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use belljar_spec::HostPaths;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder,
};

use super::api::{Api, ApiError, QUICK_TIMEOUT, SLOW_TIMEOUT};
use super::container::remove;
use super::container_config::{LABEL_NONCE, LABEL_OWNER, LABEL_RUN};
use super::container_note::Note;
use crate::shell::{BASH, Existence};

/// The types of a file, as the engine's answer has them: bits of Go's, not of the kernel's.
const GO_DIRECTORY: u32 = 1 << 31;

/// Which of the paths are programs of the image. The error is of the engine; nothing is known then.
pub(super) fn programs(
    api: &Api,
    image: &str,
    named: Option<&str>,
    note: &Note,
    paths: &HostPaths,
) -> Result<HashMap<PathBuf, Existence>, ApiError> {
    let asked: Vec<&str> = match named {
        Some(path) => vec![path],
        None => BASH.to_vec(),
    };
    let stored = named.is_none().then(|| stored_at(&paths.bin, image));
    if let Some(known) = stored.as_deref().and_then(|path| std::fs::read_to_string(path).ok()) {
        return Ok(answers(&asked, &|path| known.trim_end() == path));
    }
    let options = CreateContainerOptionsBuilder::new().name(&note.container).build();
    let making = api.docker.create_container(Some(options), body(image, note, &paths.run));
    let made = match api.wait("make a container to look into the image", SLOW_TIMEOUT, making) {
        Ok(made) => made,
        Err(error @ ApiError::Refused { .. }) => return Err(error),
        Err(error) => {
            // It may have been made all the same, and the run's own has this name too.
            remove(api, &note.container)?;
            return Err(error);
        }
    };
    let found = look(api, &made.id, &asked);
    remove(api, &made.id)?;
    let found = found?;
    if let Some(path) = stored {
        // Next time it is asked again if this fails.
        let _ = store(&path, found.unwrap_or_default());
    }
    Ok(answers(&asked, &|path| found == Some(path)))
}

fn answers(asked: &[&str], is_there: &dyn Fn(&str) -> bool) -> HashMap<PathBuf, Existence> {
    let answer = |path: &&str| {
        let program = if is_there(path) { Existence::There } else { Existence::Missing };
        (PathBuf::from(path), program)
    };
    asked.iter().map(answer).collect()
}

fn stored_at(bin: &Path, image: &str) -> PathBuf {
    let name = blake3::hash(image.as_bytes()).to_hex();
    bin.join(format!("{}.shell", &name[..32]))
}

fn store(path: &Path, content: &str) -> std::io::Result<()> {
    let temporary = path.with_extension(format!("shell.{}", std::process::id()));
    std::fs::write(&temporary, content)?;
    std::fs::rename(temporary, path)
}

fn body(image: &str, note: &Note, run: &str) -> ContainerCreateBody {
    let labels =
        [(LABEL_OWNER, note.owner.as_str()), (LABEL_RUN, run), (LABEL_NONCE, note.nonce.as_str())];
    ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec!["/nothing".to_owned()]), // it is never started
        cmd: Some(Vec::new()),
        network_disabled: Some(true),
        labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            readonly_rootfs: Some(true),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

/// The first of the paths that is a program in the container.
fn look<'p>(api: &Api, container: &str, asked: &[&'p str]) -> Result<Option<&'p str>, ApiError> {
    for path in asked {
        let options = ContainerArchiveInfoOptionsBuilder::new().path(path).build();
        let asking = api.docker.get_container_archive_info(container, Some(options));
        match api.wait("look into the image", QUICK_TIMEOUT, asking) {
            // A link can lead to nothing; an image that has one has its target too.
            Ok(found) if found.file_mode & GO_DIRECTORY == 0 => {
                let is_link = !found.link_target.is_empty();
                if is_link || found.file_mode & 0o111 != 0 {
                    return Ok(Some(path));
                }
            }
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
