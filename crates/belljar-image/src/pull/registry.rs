//! Requests to one repository of one registry.

use std::cell::RefCell;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming as Body;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use serde::Deserialize;

use super::PullError;
use super::auth::authorize;
use super::challenge::Challenge;
use super::resolve::is_loopback;
use super::retry::{Backoff, within};
use super::transport::{BODY_TIMEOUT, TransportError, send};
use crate::credentials::{Credentials, Secret};
use crate::manifest::{
    DOCKER_INDEX, DOCKER_MANIFEST, Descriptor, MAX_JSON, OCI_INDEX, OCI_MANIFEST,
};
use crate::reference::{DOCKER_HUB, Reference};

/// What serves the names of Docker's registry.
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";
const MAX_REDIRECTS: usize = 5;
const MAX_MESSAGE: usize = 300;

pub(super) struct Registry {
    /// With the port.
    host: String,
    path: String,
    name: String,
    scheme: &'static str,
    credentials: Option<Credentials>,
    /// What went wrong with the credentials, told if the registry then refuses.
    trouble: Option<String>,
    authorization: RefCell<Option<HeaderValue>>,
}

impl Registry {
    pub(super) fn new(
        reference: &Reference,
        credentials: Option<Credentials>,
        trouble: Option<String>,
    ) -> Self {
        let host = match reference.registry() {
            DOCKER_HUB => DOCKER_HUB_HOST,
            other => other,
        };
        let whole = reference.whole_repository();
        let path = whole.split_once('/').map_or(whole.as_str(), |(_, path)| path);
        let plain_host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        Self {
            host: host.to_owned(),
            path: path.to_owned(),
            name: reference.to_string(),
            scheme: if is_loopback(plain_host) { "http" } else { "https" },
            credentials,
            trouble,
            authorization: RefCell::new(None),
        }
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Of the repository.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn secret(&self) -> Option<Secret<'_>> {
        self.credentials.as_ref().map(Credentials::secret)
    }

    /// The manifest or index of a tag or digest, and its media type.
    pub(super) async fn manifest(&self, version: &str) -> Result<(Vec<u8>, String), PullError> {
        let accept = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST].join(", ");
        let path = format!("manifests/{version}");
        self.fetch(&path, &[(header::ACCEPT, accept)], "a manifest").await
    }

    /// A manifest of an index, or a configuration.
    pub(super) async fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>, PullError> {
        if descriptor.is_image() || descriptor.is_index() {
            return Ok(self.manifest(&descriptor.digest.to_string()).await?.0);
        }
        let path = format!("blobs/{}", descriptor.digest);
        Ok(self.fetch(&path, &[], "a configuration").await?.0)
    }

    /// A layer, from some byte on. The caller tries again.
    pub(super) async fn blob(
        &self,
        descriptor: &Descriptor,
        from: u64,
    ) -> Result<Response<Body>, PullError> {
        let path = format!("blobs/{}", descriptor.digest);
        let range = (header::RANGE, format!("bytes={from}-"));
        let headers = if from > 0 { vec![range] } else { Vec::new() };
        self.get(&path, &headers, "a layer").await
    }

    /// A document and its media type. What can be tried again is.
    async fn fetch(
        &self,
        path: &str,
        headers: &[(header::HeaderName, String)],
        what: &str,
    ) -> Result<(Vec<u8>, String), PullError> {
        let mut backoff = Backoff::new();
        loop {
            match self.fetch_once(path, headers, what).await {
                Err(PullError::Transport { error, host }) if error.is_temporary() => {
                    if !backoff.wait().await {
                        return Err(PullError::Transport { error, host });
                    }
                }
                fetched => return fetched,
            }
        }
    }

    async fn fetch_once(
        &self,
        path: &str,
        headers: &[(header::HeaderName, String)],
        what: &str,
    ) -> Result<(Vec<u8>, String), PullError> {
        let response = self.get(path, headers, what).await?;
        let media_type = response.headers().get(header::CONTENT_TYPE);
        let media_type = media_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim().to_owned();
        let text = read_body(self, response, MAX_JSON as usize, what).await?;
        Ok((text, media_type))
    }

    /// Meets one challenge, follows redirections, and tells what the answer means.
    async fn get(
        &self,
        path: &str,
        headers: &[(header::HeaderName, String)],
        what: &str,
    ) -> Result<Response<Body>, PullError> {
        let address = format!("{}://{}/v2/{}/{path}", self.scheme, self.host, self.path);
        let mut response = self.follow(&address, headers).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            let challenges = response.headers().get_all(header::WWW_AUTHENTICATE).iter();
            let challenge =
                challenges.filter_map(|value| value.to_str().ok()).find_map(Challenge::parse);
            let authorization = match &challenge {
                Some(challenge) => authorize(self, challenge).await?,
                None => None,
            };
            let Some(authorization) = authorization else { return Err(self.denied()) };
            *self.authorization.borrow_mut() = Some(authorization);
            response = self.follow(&address, headers).await?;
        }
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.denied()),
            StatusCode::NOT_FOUND => {
                Err(PullError::Missing { host: self.host.clone(), name: self.name.clone() })
            }
            // Tried again by the caller, like a connection that broke.
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(self.unreachable(TransportError::Ended)),
            status => {
                let text = read_body(self, response, 16 * 1024, what).await.unwrap_or_default();
                Err(self.status(status, what, &text))
            }
        }
    }

    /// The registry's own credentials do not go to where it redirects.
    async fn follow(
        &self,
        address: &str,
        headers: &[(header::HeaderName, String)],
    ) -> Result<Response<Body>, PullError> {
        let bad = || self.bad_answer("a redirection", "it has no valid address");
        let mut uri: Uri = address.parse().map_err(|_| bad())?;
        let own = uri.authority().cloned();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::builder().uri(uri.clone());
            for (name, value) in headers {
                request = request.header(name, value);
            }
            request = request.header(header::USER_AGENT, "belljar");
            if uri.authority() == own.as_ref()
                && let Some(value) = self.authorization.borrow().as_ref()
            {
                request = request.header(header::AUTHORIZATION, value.clone());
            }
            let request = request.body(Full::<Bytes>::default()).map_err(|_| bad())?;
            let response = send(request).await.map_err(|error| self.unreachable(error))?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let location = response.headers().get(header::LOCATION);
            let location = location.and_then(|value| value.to_str().ok()).ok_or_else(bad)?;
            uri = join(&uri, location).ok_or_else(bad)?;
        }
        Err(self.unreachable(TransportError::Redirects(MAX_REDIRECTS)))
    }

    pub(super) fn unreachable(&self, error: TransportError) -> PullError {
        PullError::Transport { host: self.host.clone(), error }
    }

    pub(super) fn bad_answer(&self, what: &str, why: &str) -> PullError {
        let (what, why) = (what.to_owned(), why.to_owned());
        PullError::Answer { host: self.host.clone(), what, why }
    }

    fn denied(&self) -> PullError {
        PullError::Denied {
            host: self.host.clone(),
            name: self.name.clone(),
            trouble: self.trouble.clone(),
        }
    }

    /// With the registry's own message, if it sent one.
    pub(super) fn status(&self, status: StatusCode, what: &str, body: &[u8]) -> PullError {
        #[derive(Deserialize)]
        struct Errors {
            errors: Vec<RegistryError>,
        }
        #[derive(Deserialize)]
        struct RegistryError {
            #[serde(default)]
            message: String,
        }
        let parsed: Option<Errors> = serde_json::from_slice(body).ok();
        let message = parsed.and_then(|errors| errors.errors.into_iter().next());
        let message: String = message
            .map(|error| error.message.chars().take(MAX_MESSAGE).collect())
            .unwrap_or_default();
        let message = match &self.credentials {
            Some(credentials) => credentials.cover(message),
            None => message,
        };
        let message = match message.is_empty() {
            true => message,
            false => format!(": {}", belljar_spec::text::escape(message.as_bytes())),
        };
        let (host, what, status) = (self.host.clone(), what.to_owned(), status.as_u16());
        PullError::Status { host, what, status, message }
    }
}

/// An absolute address, or a path on the same host.
fn join(base: &Uri, location: &str) -> Option<Uri> {
    if location.starts_with('/') && !location.starts_with("//") {
        return format!("{}://{}{location}", base.scheme_str()?, base.authority()?).parse().ok();
    }
    location.parse().ok().filter(|uri: &Uri| uri.authority().is_some() && uri.scheme().is_some())
}

/// A small body.
pub(super) async fn read_body(
    registry: &Registry,
    response: Response<Body>,
    most: usize,
    what: &str,
) -> Result<Vec<u8>, PullError> {
    let mut body = response.into_body();
    let mut text = Vec::new();
    loop {
        let frame = match within(BODY_TIMEOUT, body.frame()).await {
            None => return Err(registry.unreachable(TransportError::TimedOut)),
            Some(None) => return Ok(text),
            Some(Some(Err(error))) => return Err(registry.unreachable(TransportError::Http(error))),
            Some(Some(Ok(frame))) => frame,
        };
        let Ok(piece) = frame.into_data() else { continue };
        if text.len() + piece.len() > most {
            return Err(registry.bad_answer(what, "it is too long"));
        }
        text.extend_from_slice(&piece);
    }
}
