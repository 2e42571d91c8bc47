//! A local model service that speaks three APIs, for tests with real agents: it plays a script and keeps every request.
//!
//! Anthropic Messages (server-sent events), OpenAI Responses (server-sent events and WebSocket) and Gemini
//! generateContent and streamGenerateContent. It listens on a Unix socket without TLS: the test network
//! ([`crate::LabWorld`]) relays the service's own name to it. It never contacts anything.

mod code_assist;
mod generate_content;
mod http;
mod messages;
mod responses;
mod websocket;

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use self::http::{Connection, HttpRequest};
use super::processes::until;

/// The API of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelApi {
    /// Anthropic's.
    Messages,
    /// OpenAI's.
    Responses,
    /// Gemini's.
    GenerateContent,
}

impl ModelApi {
    /// Where agents expect the service.
    pub fn host(self) -> &'static str {
        match self {
            Self::Messages => "api.anthropic.com",
            Self::Responses => "api.openai.com",
            Self::GenerateContent => "generativelanguage.googleapis.com",
        }
    }

    /// The key, or the token of a login, in the headers that the service reads.
    fn key_of(self, request: &HttpRequest) -> Option<&str> {
        let own = match self {
            Self::Messages => request.header("x-api-key"),
            Self::Responses => None,
            Self::GenerateContent => request.header("x-goog-api-key"),
        };
        own.or_else(|| request.header("authorization")?.strip_prefix("Bearer "))
    }

    /// Whether this is the agent's own conversation, and not a question beside it (a title, which model to use).
    fn is_conversation(self, body: &Value) -> bool {
        match self {
            Self::Messages => messages::is_conversation(body),
            Self::Responses => responses::is_conversation(body),
            Self::GenerateContent => generate_content::is_conversation(body),
        }
    }
}

/// What the model does in one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Ends the agent's work with this text.
    Say(String),
    /// Calls the agent's tool for a shell command.
    Run(String),
    /// Reads a file of the workspace: some agents edit only what they have read.
    Read(&'static str),
    /// Calls the agent's tool that edits a file of the workspace: replaces the first line by the second.
    Edit { path: &'static str, old: &'static str, new: &'static str },
    /// The service fails with this status.
    Fail(u16),
    /// Nothing is sent until the client leaves.
    Hang,
}

impl Turn {
    pub fn say(text: &str) -> Self {
        Self::Say(text.to_owned())
    }

    pub fn run(command: &str) -> Self {
        Self::Run(command.to_owned())
    }
}

/// What each turn of the conversation costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
}

/// How a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The reply is one document, or server-sent events.
    Http,
    WebSocket,
}

/// Whether the server accepts WebSocket connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSockets {
    Accepted,
    /// With status 426, so that the client uses HTTP.
    Refused,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    pub target: String,
    pub transport: Transport,
    /// It carried the real key, or a token that is accepted.
    pub has_key: bool,
    /// What it carried.
    pub key: String,
    /// The account that it named, of those that a login can have.
    pub account: Option<String>,
    /// It took a turn of the script.
    pub in_conversation: bool,
    pub body: String,
}

/// Decides about the key of a request.
type Accepts = Box<dyn Fn(&str) -> bool + Send>;

struct State {
    api: ModelApi,
    accepts: Accepts,
    websockets: WebSockets,
    script: VecDeque<Turn>,
    usage: TurnUsage,
    requests: Vec<ModelRequest>,
    hanging: usize,
    /// Turns played so far, for ids.
    played: u64,
}

/// Shared by the connections.
#[derive(Clone)]
struct Shared(Arc<Mutex<State>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next turn of the script, with a number of its own and what it costs.
    fn next_turn(&self) -> (Turn, u64, TurnUsage) {
        let mut state = self.lock();
        state.played += 1;
        let turn = state.script.pop_front().unwrap_or_else(|| Turn::say("The script is over."));
        (turn, state.played, state.usage)
    }
}

/// A model service. Its socket is removed with the directory that it is in.
pub struct ModelServer {
    shared: Shared,
    socket: PathBuf,
}

impl ModelServer {
    /// `socket` is created; every user may connect to it.
    pub fn start(socket: &Path, api: ModelApi, key: &str) -> io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))?;
        let key = key.to_owned();
        let shared = Shared(Arc::new(Mutex::new(State {
            api,
            accepts: Box::new(move |given| given == key),
            websockets: WebSockets::Accepted,
            script: VecDeque::new(),
            usage: TurnUsage { input_tokens: 100, output_tokens: 20 },
            requests: Vec::new(),
            hanging: 0,
            played: 0,
        })));
        let for_clients = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = for_clients.clone();
                // A client may leave at any time.
                thread::spawn(move || drop(serve(stream, &shared)));
            }
        });
        Ok(Self { shared, socket: socket.to_owned() })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What the model does from now on, a turn for each request of the conversation.
    pub fn play(&self, script: impl IntoIterator<Item = Turn>) {
        self.shared.lock().script = script.into_iter().collect();
    }

    /// What each turn costs from now on.
    pub fn charge(&self, usage: TurnUsage) {
        self.shared.lock().usage = usage;
    }

    /// Which keys are accepted from now on, instead of the one that it was started with.
    pub fn accept(&self, accepts: impl Fn(&str) -> bool + Send + 'static) {
        self.shared.lock().accepts = Box::new(accepts);
    }

    pub fn set_websockets(&self, websockets: WebSockets) {
        self.shared.lock().websockets = websockets;
    }

    /// Turns of the script that nobody has asked for.
    pub fn left(&self) -> usize {
        self.shared.lock().script.len()
    }

    pub fn requests(&self) -> Vec<ModelRequest> {
        self.shared.lock().requests.clone()
    }

    /// Those that took a turn of the script.
    pub fn conversation(&self) -> Vec<ModelRequest> {
        self.requests().into_iter().filter(|request| request.in_conversation).collect()
    }

    /// A client waits for a turn that never comes.
    pub fn is_hanging(&self, within: Duration) -> bool {
        until(within, || self.shared.lock().hanging > 0)
    }
}

/// One request after the other.
fn serve(stream: UnixStream, shared: &Shared) -> io::Result<()> {
    let mut connection = Connection::new(stream);
    while let Some(request) = connection.request()? {
        let (api, key, websockets) = {
            let state = shared.lock();
            let given = state.api.key_of(&request).unwrap_or_default();
            let key = GivenKey {
                text: given.to_owned(),
                is_accepted: (state.accepts)(given),
                account: request.header("chatgpt-account-id").map(str::to_owned),
            };
            (state.api, key, state.websockets)
        };
        let has_key = key.is_accepted;
        let upgrades = request.header("upgrade").is_some_and(|to| to == "websocket");
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let body = code_assist::unwrapped(&request.target, body);
        let converses = has_key && api.is_conversation(&body);
        if !(upgrades && has_key) {
            note(shared, &request.target, Transport::Http, &key, converses, &request.body);
        }
        if !has_key {
            connection.document(401, &error(api, 401))?;
        } else if upgrades {
            match websockets {
                WebSockets::Accepted => {
                    return websocket::serve(connection, &request, &key, shared);
                }
                WebSockets::Refused => connection.document(426, &error(api, 426))?,
            }
        } else if converses {
            let (turn, number, usage) = shared.next_turn();
            match turn {
                Turn::Fail(status) => connection.document(status, &error(api, status))?,
                Turn::Hang => return hang(&mut connection, shared),
                turn => converse(&mut connection, api, &request, &turn, number, usage)?,
            }
        } else {
            aside(&mut connection, api, &request.target, &body)?;
        }
    }
    Ok(())
}

/// What a request carried.
struct GivenKey {
    text: String,
    is_accepted: bool,
    account: Option<String>,
}

fn note(shared: &Shared, to: &str, by: Transport, key: &GivenKey, converses: bool, body: &[u8]) {
    shared.lock().requests.push(ModelRequest {
        target: to.to_owned(),
        transport: by,
        has_key: key.is_accepted,
        key: key.text.clone(),
        account: key.account.clone(),
        in_conversation: converses,
        body: String::from_utf8_lossy(body).into_owned(),
    });
}

fn hang(connection: &mut Connection, shared: &Shared) -> io::Result<()> {
    shared.lock().hanging += 1;
    let left = connection.until_closed();
    shared.lock().hanging -= 1;
    left
}

/// Plays a turn that has a text or a tool call.
fn converse(
    connection: &mut Connection,
    api: ModelApi,
    request: &HttpRequest,
    turn: &Turn,
    number: u64,
    usage: TurnUsage,
) -> io::Result<()> {
    let events = match api {
        ModelApi::Messages => messages::events(turn, number, usage),
        ModelApi::Responses => responses::events(turn, number, usage),
        ModelApi::GenerateContent => {
            let document = generate_content::document(turn, usage);
            let document = code_assist::wrapped(&request.target, document);
            if !request.target.contains(":streamGenerateContent") {
                return connection.document(200, &document);
            }
            vec![(None, document)]
        }
    };
    connection.events(&events)
}

/// Answers what is no part of the conversation.
fn aside(connection: &mut Connection, api: ModelApi, target: &str, body: &Value) -> io::Result<()> {
    match api {
        ModelApi::GenerateContent if code_assist::is_one(target) => {
            connection.document(200, &code_assist::aside(target))
        }
        ModelApi::GenerateContent if body.get("contents").is_some() => {
            connection.document(200, &generate_content::routing())
        }
        // Agents with a login ask for the list, and have one of their own.
        ModelApi::Responses if target.contains("/models?") => {
            connection.document(200, &json!({ "models": [] }))
        }
        _ => connection.document(404, &error(api, 404)),
    }
}

fn error(api: ModelApi, status: u16) -> Value {
    let message = format!("the test's model service answers with {status}");
    match api {
        ModelApi::Messages => {
            json!({ "type": "error", "error": { "type": "api_error", "message": message } })
        }
        ModelApi::Responses => {
            json!({ "error": { "message": message, "type": "invalid_request" } })
        }
        ModelApi::GenerateContent => {
            json!({ "error": { "code": status, "message": message, "status": "FAILED" } })
        }
    }
}
