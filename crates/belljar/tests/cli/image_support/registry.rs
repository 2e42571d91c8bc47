//! A registry on this machine's loopback, with one image that has one layer. Engines allow such a registry
//! to speak plain HTTP.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

/// What is in the image.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layer {
    Small,
    /// Some MiB, sent slowly: for somebody who watches.
    Slow,
}

#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) address: String,
    /// Of the manifest, as `sha256:…`.
    pub(crate) digest: String,
    asked: Arc<Mutex<Vec<String>>>,
    closed: Arc<AtomicBool>,
}

struct Content {
    manifest: (String, Vec<u8>),
    config: (String, Vec<u8>),
    layer: (String, Vec<u8>),
    slow: bool,
    /// `Basic …`, if anybody has to say who they are.
    wanted: Option<String>,
}

impl Registry {
    /// `login` is `user:password`.
    pub(crate) fn start(login: Option<&str>, architecture: &str, layer: Layer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let layer_bytes = archive(layer);
        let layer_digest = sha256(&layer_bytes);
        // The address makes each one's image another one.
        let config = json!({
            "architecture": architecture, "os": "linux", "author": address,
            "config": { "Env": ["FROM_IMAGE=yes"] },
            "rootfs": { "type": "layers", "diff_ids": [layer_digest] },
        });
        let config = config.to_string().into_bytes();
        let config_digest = sha256(&config);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": { "mediaType": CONFIG, "size": config.len(), "digest": config_digest },
            "layers": [{ "mediaType": LAYER, "size": layer_bytes.len(), "digest": layer_digest }],
        });
        let manifest = manifest.to_string().into_bytes();
        let digest = sha256(&manifest);
        let content = Arc::new(Content {
            manifest: (digest.clone(), manifest),
            config: (config_digest, config),
            layer: (layer_digest, layer_bytes),
            slow: matches!(layer, Layer::Slow),
            wanted: login.map(|login| format!("Basic {}", base64(login))),
        });
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let closed = Arc::new(AtomicBool::new(false));
        let (noted, over) = (Arc::clone(&asked), Arc::clone(&closed));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (content, noted) = (Arc::clone(&content), Arc::clone(&noted));
                std::thread::spawn(move || serve(stream, &content, &noted));
            }
        });
        Self { address, digest, asked, closed }
    }

    /// What was asked for since the last time.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    /// Nobody answers at its address any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address); // so that it looks
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.close();
    }
}

/// One request for each connection.
fn serve(stream: TcpStream, content: &Content, noted: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    let mut first = String::new();
    if reader.read_line(&mut first).unwrap_or(0) == 0 {
        return;
    }
    let mut given = None;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        if name.eq_ignore_ascii_case("authorization") {
            given = Some(value.to_owned());
        }
    }
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap_or_default());
    noted.lock().unwrap().push(format!("{method} {target}"));
    let close = "Connection: close\r\n";
    if content.wanted.is_some() && given != content.wanted {
        let body = r#"{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}"#;
        let head = format!(
            "HTTP/1.1 401 x\r\n{close}WWW-Authenticate: Basic realm=\"test\"\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let _ = writer.write_all(format!("{head}{body}").as_bytes());
        return;
    }
    let found = |kind: &str, part: &(String, Vec<u8>)| (kind.to_owned(), part.clone());
    let (kind, (digest, body)) = match target {
        "/v2/" => ("application/json".to_owned(), (String::new(), b"{}".to_vec())),
        target if target.contains("/manifests/") => found(MANIFEST, &content.manifest),
        target if target.ends_with(&content.config.0) => found(CONFIG, &content.config),
        target if target.ends_with(&content.layer.0) => found(LAYER, &content.layer),
        _ => {
            let _ = writer.write_all(b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n");
            return;
        }
    };
    let head = format!(
        "HTTP/1.1 200 x\r\n{close}Content-Type: {kind}\r\nContent-Length: {}\r\n\
         Docker-Content-Digest: {digest}\r\nDocker-Distribution-Api-Version: registry/2.0\r\n\r\n",
        body.len()
    );
    let _ = writer.write_all(head.as_bytes());
    if method == "HEAD" {
        return;
    }
    for piece in body.chunks(128 * 1024) {
        if writer.write_all(piece).is_err() {
            return;
        }
        if content.slow {
            std::thread::sleep(Duration::from_millis(40));
        }
    }
}

fn archive(layer: Layer) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |path: &str, mode: u32, kind: tar::EntryType, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        archive.append_data(&mut header, path, content).unwrap();
    };
    add("tmp", 0o1777, tar::EntryType::Directory, b"");
    add("hello", 0o644, tar::EntryType::Regular, b"hello\n");
    if let Layer::Slow = layer {
        // Not the same byte all over: it must not be pressed into nothing on the way.
        let large: Vec<u8> =
            (0..4_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        add("large", 0o644, tar::EntryType::Regular, &large);
    }
    archive.into_inner().unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", &piped("sha256sum", bytes)[..64])
}

fn base64(text: &str) -> String {
    piped("base64", text.as_bytes()).split_whitespace().collect()
}

fn piped(program: &str, input: &[u8]) -> String {
    let mut child =
        Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

/// As it stands in `config.json`.
pub(crate) fn auth(login: &str) -> String {
    base64(login)
}
