//! The responses of the test network's web servers.

use std::path::{Path, PathBuf};

/// In every answer that is an echo, so that it is known for one.
pub(crate) const ECHO: &str = "the server received:";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Body,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    Bytes(Vec<u8>),
    Zeros(u64),
    /// So many server-sent events, one after the other.
    Events(u32),
    /// Whatever comes is sent back, once this is no HTTP any more.
    Upgraded,
}

/// How it was asked for.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub(super) method: &'a str,
    /// With the query.
    pub(super) path: &'a str,
    pub(super) wants_upgrade: bool,
    /// The request as it came.
    pub(super) head: &'a str,
    pub(super) body: &'a str,
}

/// Of the key that RFC 6455 has as its example, which is the one that the probes send.
const WEBSOCKET_ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

pub(super) fn page(asked: &Asked<'_>, files: &Path) -> Page {
    let (path, query) = asked.path.split_once('?').unwrap_or((asked.path, ""));
    let text = |body: String| Page {
        status: 200,
        headers: vec![("content-type", "text/plain".to_owned())],
        body: Body::Bytes(body.into_bytes()),
    };
    if asked.wants_upgrade && path == "/ws" {
        let headers = vec![
            ("upgrade", "websocket".to_owned()),
            ("connection", "Upgrade".to_owned()),
            ("sec-websocket-accept", WEBSOCKET_ACCEPT.to_owned()),
        ];
        return Page { status: 101, headers, body: Body::Upgraded };
    }
    if let Some(to) = query.strip_prefix("to=").filter(|_| path == "/redirect") {
        let headers = vec![("location", to.to_owned())];
        return Page { status: 302, headers, body: Body::Bytes(Vec::new()) };
    }
    if let Some(count) = path.strip_prefix("/zeros/").and_then(|count| count.parse().ok()) {
        let headers = vec![("content-type", "application/octet-stream".to_owned())];
        return Page { status: 200, headers, body: Body::Zeros(count) };
    }
    if let Some(count) = path.strip_prefix("/events/").and_then(|count| count.parse().ok()) {
        let headers = vec![("content-type", "text/event-stream".to_owned())];
        return Page { status: 200, headers, body: Body::Events(count) };
    }
    if let Some(relative) = path.strip_prefix("/files/") {
        return file(files, relative);
    }
    if path == "/small" {
        return text("ok\n".to_owned());
    }
    text(format!("{ECHO} {}\n{}\n{}\n", asked.method, asked.head, asked.body))
}

fn file(files: &Path, relative: &str) -> Page {
    let plain = relative.split('/').all(|part| part != ".." && !part.contains('%'));
    let mut path: PathBuf = files.join(relative);
    if path.is_dir() {
        path.push("index.html");
    }
    let found = if plain { std::fs::read(&path).ok() } else { None };
    let kind = match path.extension().and_then(|end| end.to_str()) {
        Some("html") => "text/html",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    };
    let headers = vec![("content-type", kind.to_owned())];
    match found {
        Some(bytes) => Page { status: 200, headers, body: Body::Bytes(bytes) },
        None => Page { status: 404, headers, body: Body::Bytes(b"not here\n".to_vec()) },
    }
}
