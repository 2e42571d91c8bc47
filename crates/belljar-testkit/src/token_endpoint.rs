//! A token endpoint in the test network: refresh tokens rotate, and one that is used twice is noticed.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointMode {
    Refresh,
    /// As a server that is overloaded.
    Unavailable,
    /// With `invalid_grant`.
    Refuse,
    /// With more bytes than any client should read.
    Flood,
    /// Nothing, for this long.
    Silent,
}

/// What its access tokens look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessForm {
    Opaque,
    /// With the time of expiry in it.
    Jwt,
}

#[derive(Debug)]
struct State {
    mode: EndpointMode,
    form: AccessForm,
    lifetime: Duration,
    access: Vec<String>,
    /// The one refresh token that is valid.
    valid: String,
    spent: Vec<String>,
    requests: usize,
    reused: Vec<String>,
}

/// Ends with the test's process.
#[derive(Clone, Debug)]
pub struct TokenEndpoint {
    pub url: String,
    state: Arc<Mutex<State>>,
}

impl TokenEndpoint {
    /// In the network of that process; needs root. `refresh` is the first token that is valid.
    pub fn start(network_of: u32, form: AccessForm, refresh: &str, lifetime: Duration) -> Self {
        let state = State {
            mode: EndpointMode::Refresh,
            form,
            lifetime,
            access: Vec::new(),
            valid: refresh.to_owned(),
            spent: Vec::new(),
            requests: 0,
            reused: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let (sender, receiver) = std::sync::mpsc::channel();
        let served = state.clone();
        std::thread::spawn(move || {
            let network = File::open(format!("/proc/{network_of}/ns/net")).unwrap();
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            sender.send(listener.local_addr().unwrap().port()).unwrap();
            for stream in listener.incoming().flatten() {
                let state = served.clone();
                std::thread::spawn(move || answer(stream, &state));
            }
        });
        let port: u16 = receiver.recv().unwrap();
        Self { url: format!("http://127.0.0.1:{port}/token"), state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_mode(&self, mode: EndpointMode) {
        self.state().mode = mode;
    }

    pub fn requests(&self) -> usize {
        self.state().requests
    }

    /// Tokens that were sent although they had been used.
    pub fn reused(&self) -> Vec<String> {
        self.state().reused.clone()
    }

    /// All access tokens so far.
    pub fn access_tokens(&self) -> Vec<String> {
        self.state().access.clone()
    }

    /// All refresh tokens so far.
    pub fn refresh_tokens(&self) -> Vec<String> {
        let state = self.state();
        state.spent.iter().chain([&state.valid]).cloned().collect()
    }

    pub fn valid_refresh_token(&self) -> String {
        self.state().valid.clone()
    }

    /// New tokens, as the host's own agent would get them.
    pub fn issue(&self) -> (String, String) {
        issue(&mut self.state())
    }
}

fn issue(state: &mut State) -> (String, String) {
    let number = state.access.len() + 1;
    let refresh = format!("refresh-token-{number:04}");
    let access = match state.form {
        AccessForm::Opaque => format!("access-token-{number:04}"),
        AccessForm::Jwt => jwt(number, state.lifetime),
    };
    state.access.push(access.clone());
    let old = std::mem::replace(&mut state.valid, refresh.clone());
    state.spent.push(old);
    (access, refresh)
}

/// An unsigned token that expires after this time.
fn jwt(number: usize, lifetime: Duration) -> String {
    let expires = std::time::UNIX_EPOCH.elapsed().unwrap() + lifetime;
    let claims = json!({ "exp": expires.as_secs(), "jti": number }).to_string();
    format!("e30.{}.c2ln", data_encoding::BASE64URL_NOPAD.encode(claims.as_bytes()))
}

fn answer(mut stream: std::net::TcpStream, state: &Mutex<State>) {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    let body = loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                break body.to_owned();
            }
        }
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(length) => bytes.extend_from_slice(&part[..length]),
        }
    };
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.requests += 1;
    let refused = (400, json!({ "error": "invalid_grant" }).to_string());
    let (status, text) = match state.mode {
        EndpointMode::Unavailable => (503, "try later".to_owned()),
        EndpointMode::Refuse => refused,
        EndpointMode::Flood => (200, "x".repeat(50 << 20)),
        EndpointMode::Silent => {
            drop(state);
            std::thread::sleep(Duration::from_secs(120));
            return;
        }
        EndpointMode::Refresh if body.contains(&state.valid) => {
            let (access, refresh) = issue(&mut state);
            let answer = json!({
                "access_token": access, "refresh_token": refresh,
                "expires_in": state.lifetime.as_secs_f64(), "token_type": "Bearer",
            });
            (200, answer.to_string())
        }
        EndpointMode::Refresh => {
            let spent = state.spent.iter().find(|token| body.contains(token.as_str())).cloned();
            state.reused.extend(spent);
            refused
        }
    };
    drop(state);
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
}
