//! Engines that do not answer, or answer something unexpected. None of them is real: each is a socket of
//! this test's, so that what it says is known.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use belljar_backend::engine::{Caller, Endpoint, Engine};
use belljar_backend::{Backend, Capabilities, Unavailable};
use belljar_spec::BackendName;
use serde_json::{Value, json};

/// The promise, and what a busy machine takes on top of it.
const AT_MOST: Duration = Duration::from_millis(5000 + 1500);

/// What an engine says about itself, if it says anything.
#[derive(Clone)]
struct Says {
    /// In the head of every answer. Without the first it hangs at once.
    api: Option<&'static str>,
    libpod: Option<&'static str>,
    info: Option<Value>,
}

impl Says {
    /// A Docker of this machine.
    fn docker() -> Self {
        let kilobytes = std::fs::read_to_string("/proc/meminfo").unwrap();
        let kilobytes: u64 = kilobytes
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|number| number.parse().ok())
            .unwrap();
        Self {
            api: Some("1.41"),
            libpod: None,
            info: Some(json!({
                "OSType": "linux", "Architecture": std::env::consts::ARCH,
                "MemTotal": kilobytes * 1024, "ServerVersion": "20.10.24",
                "SecurityOptions": ["name=seccomp,profile=default"],
                "Runtimes": { "runc": { "path": "runc" } }, "CgroupVersion": "1",
            })),
        }
    }

    fn podman() -> Self {
        Self { libpod: Some("4.3.1"), ..Self::docker() }
    }

    fn api(self, version: &'static str) -> Self {
        Self { api: Some(version), ..self }
    }

    fn info(mut self, name: &str, value: Value) -> Self {
        self.info.as_mut().unwrap()[name] = value;
        self
    }

    fn answer(&self, mut stream: UnixStream, asked: &std::sync::mpsc::Sender<String>) {
        loop {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read(&mut byte) {
                    Ok(1) => head.push(byte[0]),
                    _ => return,
                }
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let line = head.lines().next().unwrap_or_default().to_owned();
            let is_ping = line.contains("/_ping");
            let _ = asked.send(line);
            let info = self.info.as_ref().map(Value::to_string);
            let body = if is_ping { Some("OK".to_owned()) } else { info };
            let (Some(api), Some(body)) = (self.api, body) else {
                std::thread::sleep(Duration::from_secs(60)); // it hangs
                return;
            };
            let libpod = self.libpod.map(|it| format!("Libpod-API-Version: {it}\r\n"));
            let answer = format!(
                "HTTP/1.1 200 OK\r\nApi-Version: {api}\r\n{}Content-Length: {}\r\n\r\n{body}",
                libpod.unwrap_or_default(),
                body.len(),
            );
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// One that listens, and the lines that it was asked.
struct Fake {
    directory: tempfile::TempDir,
    asked: Receiver<String>,
}

impl Fake {
    fn new(says: Says) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("e.sock")).unwrap();
        let (sender, asked) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (says, sender) = (says.clone(), sender.clone());
                std::thread::spawn(move || says.answer(stream, &sender));
            }
        });
        Self { directory, asked }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("e.sock")
    }
}

fn probe(backend: BackendName, endpoint: Endpoint) -> Result<Capabilities, Unavailable> {
    let engine = Engine::at(backend, endpoint);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // As a program that embeds the library may call it: its own runtime is not entered a second time.
    runtime.block_on(async { engine.probe() })
}

fn ask(backend: BackendName, says: Says) -> Result<Capabilities, Unavailable> {
    let fake = Fake::new(says);
    probe(backend, Endpoint::Unix(fake.path()))
}

/// Refused in time, with these words.
fn refused_in_time(endpoint: Endpoint, words: &[&str]) {
    let begun = Instant::now();
    let refused = probe(BackendName::Docker, endpoint).unwrap_err();
    let took = begun.elapsed();
    assert!(took < AT_MOST, "{took:?}: {refused}");
    let told = format!("{}; {}", refused.why, refused.fix);
    for word in words {
        assert!(told.contains(word), "not said: {word:?}; {told}");
    }
}

#[test]
fn an_engine_that_answers_is_found() {
    let found = ask(BackendName::Podman, Says::podman()).unwrap().engine.unwrap();
    assert!(found.is_local && found.is_podman);
    // Its listener is this test, and an ordinary user's Docker is another matter.
    let docker = ask(BackendName::Docker, Says::docker());
    if rustix::process::geteuid().is_root() {
        let found = docker.unwrap();
        assert_eq!(found.version, "docker 20.10.24");
        let engine = found.engine.unwrap();
        assert!(engine.is_local && !engine.is_podman && !engine.is_rootless);
        assert_eq!(engine.api, (1, 41));
    } else {
        assert!(docker.unwrap_err().why.contains("rootless Docker"));
    }
}

#[test]
fn one_that_never_answers_is_given_up_after_five_seconds() {
    let silent = Fake::new(Says { api: None, ..Says::docker() });
    refused_in_time(Endpoint::Unix(silent.path()), &["within 5 seconds", "restart"]);
    let half = Fake::new(Says { info: None, ..Says::docker() });
    refused_in_time(Endpoint::Unix(half.path()), &["about itself", "within 5 seconds"]);
}

#[test]
fn one_that_takes_no_connections_is_given_up_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("e.sock");
    // As a stopped daemon's: its queue fills, and nobody empties it.
    let _listener = UnixListener::bind(&path).unwrap();
    let mut waiting = Vec::new();
    loop {
        use rustix::net::{
            AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        match connect(&socket, &SocketAddrUnix::new(&path).unwrap()) {
            Ok(()) => waiting.push(socket),
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::AGAIN, "after {}", waiting.len());
                break;
            }
        }
    }
    refused_in_time(Endpoint::Unix(path), &["takes no connections", "restart"]);
}

#[test]
fn one_that_listens_on_the_network_and_never_answers_is_given_up_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let endpoint = Endpoint::Tcp { host: "localhost".to_owned(), port };
    refused_in_time(endpoint, &["within 5 seconds"]);
}

#[test]
fn a_socket_without_an_engine_says_how_to_start_it() {
    let directory = tempfile::tempdir().unwrap();
    let dead = directory.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    for path in [dead, directory.path().join("none.sock")] {
        let begun = Instant::now();
        refused_in_time(Endpoint::Unix(path), &["systemctl start docker"]);
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
}

#[test]
fn whatever_was_named_is_meant_although_another_one_answers() {
    let alive = Fake::new(Says::docker());
    let dead = alive.directory.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let runtime = alive.directory.path().join("run");
    std::fs::create_dir(&runtime).unwrap();
    std::fs::rename(alive.path(), runtime.join("docker.sock")).unwrap();
    let find = |host: Option<String>| {
        let variable = |name: &str| match name {
            "DOCKER_HOST" => host.clone(),
            "XDG_RUNTIME_DIR" => Some(runtime.to_str().unwrap().to_owned()),
            _ => None,
        };
        Engine::find_for(BackendName::Docker, &Caller { variable: &variable, uid: 1000 })
    };
    let named = find(Some(format!("unix://{}", dead.display()))).unwrap();
    assert_eq!(*named.endpoint(), Endpoint::Unix(dead));
    if !std::path::Path::new("/var/run/docker.sock").exists() {
        let usual = find(None).unwrap();
        assert_eq!(*usual.endpoint(), Endpoint::Unix(runtime.join("docker.sock")));
    }
}

#[test]
fn questions_are_asked_in_the_newest_version_that_both_know() {
    for (theirs, spoken) in [("1.41", "/v1.41/info"), ("1.99", "/v1.53/info")] {
        let fake = Fake::new(Says::podman().api(theirs));
        probe(BackendName::Podman, Endpoint::Unix(fake.path())).unwrap();
        let asked: Vec<String> = fake.asked.try_iter().collect();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(asked[0].starts_with("GET /_ping "), "{asked:?}");
        assert!(asked[1].contains(spoken), "{asked:?}");
    }
}

#[test]
fn engines_that_cannot_hold_the_policy_are_refused_with_the_reason() {
    let docker = BackendName::Docker;
    let podman = BackendName::Podman;
    let old_podman = Says { libpod: Some("3.4.4"), ..Says::docker() };
    for (backend, says, word) in [
        (docker, Says::docker().api("1.40"), "1.41 is needed"),
        (podman, old_podman, "Podman 3.4"),
        (podman, Says::docker(), "is not Podman"),
        (docker, Says::docker().info("Architecture", json!("s390x")), "s390x"),
        (docker, Says::docker().info("OSType", json!("windows")), "windows containers"),
    ] {
        let refused = ask(backend, says).unwrap_err();
        assert!(refused.why.contains(word), "not said: {word:?}; {refused}");
    }
}

#[test]
fn a_podman_that_answers_to_docker_s_name_is_used_and_told() {
    let found = ask(BackendName::Docker, Says::podman()).unwrap();
    assert!(found.version.starts_with("podman"), "{}", found.version);
    assert!(found.engine.unwrap().is_podman);
}

#[test]
fn a_socket_that_leads_into_another_machine_is_no_local_engine() {
    let other = Says::docker().info("MemTotal", json!(4_294_967_296_u64));
    let found = ask(BackendName::Docker, other).unwrap();
    assert!(!found.engine.unwrap().is_local);
    let other = Says::docker().info("KernelVersion", json!("2.4.37-linuxkit"));
    let found = ask(BackendName::Docker, other).unwrap();
    assert!(!found.engine.unwrap().is_local);
}
