//! Has an engine fetch an image, and reports the progress.

use std::time::Duration;

use belljar_image::{CredentialLookup, CredentialSources, Reference, look_up_credentials};
use bollard::query_parameters::CreateImageOptionsBuilder;
use bollard::{BollardRequest, Docker};
use futures_util::StreamExt;

use super::credentials::for_engine;
use super::failure;
use super::layers::Layers;
use crate::backend::PullProgress;
use crate::engine::api::Api;
use crate::error::ImageError;

/// A pull has no time limit, but an engine that reports nothing for so long has stopped.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(600);

pub(super) fn pull(
    api: &Api,
    reference: &Reference,
    places: &CredentialSources,
    watcher: &dyn PullProgress,
) -> Result<(), ImageError> {
    let CredentialLookup { credentials, trouble } = look_up_credentials(reference, places);
    // Without a version Docker would fetch every tag there is.
    let options = CreateImageOptionsBuilder::new()
        .from_image(&reference.repository())
        .tag(reference.version())
        .build();
    let sent = credentials.as_ref().map(|found| for_engine(found, reference.registry()));
    let docker = with_readable_credentials(&api.docker);
    let failed = |message: String| {
        let message = match &credentials {
            Some(credentials) => credentials.cover(message),
            None => message,
        };
        failure::of_pull(api, reference, &message, trouble.as_deref())
    };
    let pulled = api.wait_for(async {
        let mut lines = docker.create_image(Some(options), None, sent);
        let mut layers = Layers::default();
        loop {
            let line = match tokio::time::timeout(PROGRESS_TIMEOUT, lines.next()).await {
                Err(_) => return Err(failed("the engine sent nothing for 10 minutes".to_owned())),
                Ok(None) => return Ok(()),
                Ok(Some(Err(error))) => return Err(failed(message(error))),
                Ok(Some(Ok(line))) => line,
            };
            let (id, status) = (line.id.as_deref(), line.status.as_deref());
            if let Some((bytes, of)) = layers.update(id, status, line.progress_detail.as_ref()) {
                watcher.fetched(&reference.to_string(), bytes, of);
            }
        }
    });
    pulled.unwrap_or_else(|closed| Err(failure::of_engine(&closed)))
}

/// The engine's own message, if it sent one.
pub(super) fn message(error: bollard::errors::Error) -> String {
    use bollard::errors::Error;
    match error {
        Error::DockerResponseServerError { message, .. } => message,
        Error::DockerStreamError { error } => error,
        other => belljar_spec::text::error_chain(&other),
    }
}

/// Engines read the headers with credentials in the alphabet for addresses, and the client writes them in
/// the other one: a password with `~` or `?` in the wrong place would count as none at all.
pub(super) fn with_readable_credentials(docker: &Docker) -> Docker {
    docker.clone().with_request_modifier(|mut request: BollardRequest| {
        for name in ["x-registry-auth", "x-registry-config"] {
            if let Some(value) = request.headers_mut().get_mut(name) {
                let text = value.as_bytes().iter().map(|byte| match byte {
                    b'+' => '-',
                    b'/' => '_',
                    other => char::from(*other),
                });
                if let Ok(mut other) = text.collect::<String>().try_into() {
                    std::mem::swap(value, &mut other);
                    value.set_sensitive(true);
                }
            }
        }
        request
    })
}
