//! An engine's socket with nothing behind it: it has the images that the test gives it, and remembers what
//! it was asked.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use belljar_backend::engine::{Endpoint, Engine};
use belljar_spec::BackendName;
use serde_json::{Value, json};
use tempfile::TempDir;

/// What a pull comes to.
#[derive(Clone, Debug)]
pub(crate) enum Pull {
    /// The image is there then, under the name that was asked for.
    Brings(Value),
    /// Refused before it began.
    Refused(&'static str),
    /// Begun, and failed on the way.
    Breaks(&'static str),
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) is_podman: bool,
    /// By every name that finds them.
    pub(crate) images: BTreeMap<String, Value>,
    pub(crate) pull: Pull,
    pub(crate) asked: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct FakeEngine {
    directory: TempDir,
    pub(crate) state: Arc<Mutex<State>>,
}

impl FakeEngine {
    pub(crate) fn start(is_podman: bool, images: &[(&str, Value)], pull: Pull) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let images = images.iter().map(|(name, image)| ((*name).to_owned(), image.clone()));
        let state = Arc::new(Mutex::new(State {
            is_podman,
            images: images.collect(),
            pull,
            asked: Vec::new(),
        }));
        let listener = UnixListener::bind(directory.path().join("s")).unwrap();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Self { directory, state }
    }

    pub(crate) fn engine(&self) -> Engine {
        let name = match self.state.lock().unwrap().is_podman {
            true => BackendName::Podman,
            false => BackendName::Docker,
        };
        Engine::at(name, Endpoint::Unix(self.directory.path().join("s")))
    }

    /// What concerned images, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.state.lock().unwrap().asked.clone()
    }
}

/// As an engine tells it.
pub(crate) fn image(id: char, architecture: &str) -> Value {
    let id = format!("sha256:{}", id.to_string().repeat(64));
    json!({ "Id": id, "Architecture": architecture, "Os": "linux", "RepoDigests": [] })
}

fn serve(stream: UnixStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().unwrap();
            }
        }
        std::io::copy(&mut (&mut reader).take(length), &mut std::io::sink()).unwrap();
        let mut words = first.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        // Without the version of the interface.
        let target = match target.strip_prefix("/v1.") {
            Some(rest) => &rest[rest.find('/').unwrap()..],
            None => target,
        };
        let mut state = state.lock().unwrap();
        let (status, body) = answer(method, target, &mut state);
        let length = body.len();
        let podman = if state.is_podman { "Libpod-Api-Version: 4.3.1\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status} x\r\nApi-Version: 1.41\r\n{podman}Content-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        if writer.write_all(format!("{head}{body}").as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(method: &str, target: &str, state: &mut State) -> (u16, String) {
    match (method, target) {
        (_, "/_ping") => (200, "OK".to_owned()),
        (_, "/info") => (200, json!({ "Architecture": "x86_64", "OSType": "linux" }).to_string()),
        ("GET", target) => {
            let name = target.strip_prefix("/images/").and_then(|rest| rest.strip_suffix("/json"));
            let name = name.unwrap_or_else(|| panic!("unexpected: {target}"));
            state.asked.push(format!("look {name}"));
            match state.images.get(name) {
                Some(image) => (200, image.to_string()),
                None => (404, json!({ "message": "No such image" }).to_string()),
            }
        }
        ("POST", target) => {
            let query = target.strip_prefix("/images/create?").unwrap();
            let query: BTreeMap<&str, String> = query
                .split('&')
                .filter_map(|pair| pair.split_once('='))
                .map(|(name, value)| (name, value.replace("%3A", ":").replace("%2F", "/")))
                .collect();
            state.asked.push(format!("pull {} {}", query["fromImage"], query["tag"]));
            match state.pull.clone() {
                Pull::Brings(image) => {
                    let by = if query["tag"].starts_with("sha256:") { '@' } else { ':' };
                    let name = format!("{}{by}{}", query["fromImage"], query["tag"]);
                    state.images.insert(name, image);
                    let lines = [
                        json!({ "status": "Pulling fs layer", "id": "a" }),
                        json!({ "status": "Downloading", "id": "a",
                            "progressDetail": { "current": 5, "total": 10 } }),
                        json!({ "status": "Pull complete", "id": "a" }),
                    ];
                    (200, lines.map(|line| format!("{line}\r\n")).concat())
                }
                Pull::Refused(why) => (500, json!({ "message": why }).to_string()),
                Pull::Breaks(why) => {
                    let line = json!({ "errorDetail": { "message": why }, "error": why });
                    (200, format!("{{\"status\":\"Pulling\"}}\r\n{line}\r\n"))
                }
            }
        }
        other => panic!("unexpected: {other:?}"),
    }
}
