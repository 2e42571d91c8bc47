//! A registry on loopback that can be told to misbehave.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use belljar_image::Digest;
use serde_json::Value;

/// What the registry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Open,
    Basic,
    Bearer,
}

/// How blobs are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    Whole,
    /// Connections break after so many bytes of a body.
    Breaking {
        after: usize,
    },
    /// The same, and ranges are ignored for the first request of each.
    BreakingWithoutRanges {
        after: usize,
        times: usize,
    },
    /// Every blob has one other byte.
    Wrong,
    /// Every blob has one byte more.
    Longer,
    /// To another address.
    Redirected {
        to: u16,
    },
}

pub(crate) struct Registry {
    pub(crate) port: u16,
    state: Arc<State>,
}

struct State {
    port: u16,
    repository: String,
    manifests: BTreeMap<String, (String, Vec<u8>)>,
    blobs: BTreeMap<String, Vec<u8>>,
    access: Access,
    sending: Sending,
    log: Mutex<Vec<String>>,
}

impl Registry {
    /// Serves the files of an OCI layout as `repository`, with the tag `1`.
    pub(crate) fn start(
        repository: &str,
        layout: &[(String, Vec<u8>)],
        access: Access,
        sending: Sending,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut blobs = BTreeMap::new();
        let mut manifests = BTreeMap::new();
        for (path, bytes) in layout {
            if let Some(hex) = path.strip_prefix("blobs/sha256/") {
                blobs.insert(format!("sha256:{hex}"), bytes.clone());
            }
            if path == "index.json" {
                let index: Value = serde_json::from_slice(bytes).unwrap();
                let top = &index["manifests"][0];
                let digest = top["digest"].as_str().unwrap().to_owned();
                let text = &layout.iter().find(|(path, _)| path.ends_with(&digest[7..])).unwrap().1;
                let media_type = top["mediaType"].as_str().unwrap().to_owned();
                manifests.insert("1".to_owned(), (media_type.clone(), text.clone()));
                manifests.insert(digest, (media_type, text.clone()));
            }
        }
        let state = Arc::new(State {
            port,
            repository: repository.to_owned(),
            manifests,
            blobs,
            access,
            sending,
            log: Mutex::default(),
        });
        let serving = Arc::clone(&state);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let serving = Arc::clone(&serving);
                std::thread::spawn(move || serving.answer(stream.unwrap()));
            }
        });
        Self { port, state }
    }

    /// Lines of requests, with `Range` and `Authorization` where they had one.
    pub(crate) fn log(&self) -> Vec<String> {
        self.state.log.lock().unwrap().clone()
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.state.manifests["1"].1)
    }
}

impl State {
    fn answer(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut first = String::new();
        reader.read_line(&mut first).unwrap();
        let (mut range, mut authorization) = (None, None);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap() <= 2 {
                break;
            }
            let (name, value) = line.trim().split_once(": ").unwrap();
            match name.to_ascii_lowercase().as_str() {
                "range" => range = Some(value.to_owned()),
                "authorization" => authorization = Some(value.to_owned()),
                _ => {}
            }
        }
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        self.log.lock().unwrap().push(format!("{path} {range:?} {authorization:?}"));
        let asked = (path.as_str(), range.as_deref(), authorization.as_deref());
        // A client that hangs up is the point of some tests.
        let _ = self.respond(stream, asked);
    }

    fn respond(
        &self,
        mut stream: TcpStream,
        (path, range, authorization): (&str, Option<&str>, Option<&str>),
    ) -> std::io::Result<()> {
        if let Some(query) = path.strip_prefix("/token?") {
            let is_right =
                authorization == Some("Basic YW5uOnB3") && query.contains("scope=repository%3A");
            let (status, body) = match is_right {
                true => ("200 OK", r#"{"token":"of-ann"}"#),
                false => ("401 Unauthorized", "{}"),
            };
            return write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
        }
        let (wanted, challenge) = match self.access {
            Access::Open => (None, String::new()),
            Access::Basic => (Some("Basic YW5uOnB3"), "Basic realm=\"r\"".to_owned()),
            Access::Bearer => (
                Some("Bearer of-ann"),
                format!("Bearer realm=\"http://127.0.0.1:{}/token\",service=\"s\"", self.port),
            ),
        };
        if wanted.is_some() && authorization != wanted {
            return write!(
                stream,
                "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: {challenge}\r\nContent-Length: 0\r\n\r\n"
            );
        }
        let rest = path.strip_prefix(&format!("/v2/{}/", self.repository));
        if let Some(version) = rest.and_then(|rest| rest.strip_prefix("manifests/"))
            && let Some((media_type, text)) = self.manifests.get(version)
        {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n\r\n",
                text.len()
            )?;
            return stream.write_all(text);
        }
        let blob = rest.and_then(|rest| rest.strip_prefix("blobs/"));
        match blob.and_then(|digest| self.blobs.get(digest)) {
            Some(blob) => self.send_blob(stream, path, blob, range),
            None => write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
        }
    }

    fn send_blob(
        &self,
        mut stream: TcpStream,
        path: &str,
        blob: &[u8],
        range: Option<&str>,
    ) -> std::io::Result<()> {
        let mut blob = blob.to_vec();
        let from: usize = range
            .and_then(|range| range.strip_prefix("bytes="))
            .and_then(|range| range.strip_suffix('-'))
            .map_or(0, |from| from.parse().unwrap());
        let asked = self.log.lock().unwrap().iter().filter(|line| line.starts_with(path)).count();
        let (mut from, mut most) = (from, usize::MAX);
        match self.sending {
            Sending::Whole => {}
            Sending::Breaking { after } => most = after,
            Sending::BreakingWithoutRanges { after, times } => {
                from = 0;
                most = if asked <= times { after } else { usize::MAX };
            }
            Sending::Wrong => blob[0] ^= 1,
            Sending::Longer => blob.push(0),
            Sending::Redirected { to } => {
                return write!(
                    stream,
                    "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:{to}{path}\r\nContent-Length: 0\r\n\r\n"
                );
            }
        }
        let body = &blob[from.min(blob.len())..];
        let status = match from {
            0 => "200 OK".to_owned(),
            from => format!(
                "206 Partial Content\r\nContent-Range: bytes {from}-{}/{}",
                blob.len() - 1,
                blob.len()
            ),
        };
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len())?;
        stream.write_all(&body[..body.len().min(most)])
    }
}
