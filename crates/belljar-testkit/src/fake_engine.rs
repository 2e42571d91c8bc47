//! A fake engine that responds, or does not, as a test needs.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Accepts connections and never responds.
    Hangs,
    /// Knows all about itself and every image, and cannot make a container.
    CannotStart,
    /// The same without any image, and it cannot fetch one.
    HasNoImage,
}

/// Lives as long as the test's process.
#[derive(Debug)]
pub struct FakeEngine {
    socket: PathBuf,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeEngine {
    pub fn start(socket: PathBuf, behaviour: Behaviour) -> Self {
        let listener = UnixListener::bind(&socket).unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                match behaviour {
                    Behaviour::Hangs => held.push(stream),
                    Behaviour::CannotStart | Behaviour::HasNoImage => {
                        let log = Arc::clone(&log);
                        drop(thread::spawn(move || answer(&stream, behaviour, &log)));
                    }
                }
            }
        });
        Self { socket, connections, requests }
    }

    /// As `DOCKER_HOST` and `CONTAINER_HOST` have it.
    pub fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn was_asked(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The first line of each request so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// One request a connection.
fn answer(stream: &UnixStream, behaviour: Behaviour, log: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let request = line.clone();
    log.lock().unwrap().push(request.trim_end().to_owned());
    let mut length = 0;
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).ok()?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    let (status, body) = reply(&request, behaviour);
    let body = body.to_string();
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Api-Version: 1.41\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .ok()
}

fn reply(request: &str, behaviour: Behaviour) -> (u16, Value) {
    let has = |part: &str| request.contains(part);
    if has("/_ping") {
        return (200, json!("OK"));
    }
    if has("/version") {
        let version = json!({ "Version": "20.10.0", "ApiVersion": "1.41", "Os": "linux" });
        return (200, version);
    }
    if has("/info") {
        let info = json!({
            "ID": "FAKE", "OSType": "linux", "Architecture": std::env::consts::ARCH,
            "ServerVersion": "20.10.0", "CgroupVersion": "1", "SecurityOptions": [],
            "MemoryLimit": true, "CpuCfsQuota": true, "PidsLimit": true,
            "Runtimes": { "runc": { "path": "runc" } },
        });
        return (200, info);
    }
    if has("/images/") && has("/json") && behaviour != Behaviour::HasNoImage {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let image = json!({
            "Id": format!("sha256:{}", "a".repeat(64)), "Os": "linux",
            "Architecture": architecture, "Config": { "Env": [] },
        });
        return (200, image);
    }
    if has("/containers/create") {
        return (500, json!({ "message": "every run fails here" }));
    }
    (404, json!({ "message": "no such thing" }))
}
