//! What the launcher and the agent send each other besides the channel: one JSON value a line.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use belljar_backend::Capabilities;
use belljar_spec::{Expectation, Plan, Posture, Usage};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("the agent cannot be reached")]
    Io(#[from] std::io::Error),
    #[error("the agent's message cannot be read")]
    Json(#[from] serde_json::Error),
    #[error("the agent refused: {0}")]
    Refused(String),
    #[error("the agent's answer is not to this request")]
    OutOfTurn,
}

/// The first line of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// The launcher asks what the agent's machine can do.
    Probe,
    /// Requests follow, from the launcher of this run.
    Control { run: String },
    /// What a dead launcher left of this run is to go.
    Destroy { run: String },
    /// The channel's bytes follow.
    Link,
    /// A test breaks all links.
    Cut,
    /// A test breaks all links, and no other is taken any more.
    CutForGood,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Bind { run: String, plan: Box<Plan> },
    Start,
    MakeLimits,
    JoinLimits,
    Kill,
    Sample,
    Reap,
    Destroy,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Response {
    Facts(Box<Capabilities>),
    Bound {
        expectation: Box<Expectation>,
        posture: Box<Posture>,
        warnings: Vec<String>,
        /// Where links to PID 1 are taken.
        links: SocketAddr,
    },
    /// So far; all of it once the sandbox is reaped.
    Measured {
        usage: Box<Usage>,
        oom_kills: u64,
    },
    Done,
    Failed(String),
}

/// A connection whose purpose is known to the agent.
pub(crate) fn connect(agent: SocketAddr, purpose: Purpose) -> Result<TcpStream, RemoteError> {
    let mut stream = TcpStream::connect_timeout(&agent, CONNECT_TIMEOUT)?;
    stream.set_nodelay(true)?;
    write_line(&mut stream, &purpose)?;
    Ok(stream)
}

/// Asks the agent for something besides a run, and waits until it is done.
pub fn ask_agent(agent: SocketAddr, purpose: Purpose) -> Result<(), RemoteError> {
    match ask_once(agent, purpose)? {
        Response::Done => Ok(()),
        _ => Err(RemoteError::OutOfTurn),
    }
}

pub(crate) fn ask_once(agent: SocketAddr, purpose: Purpose) -> Result<Response, RemoteError> {
    let stream = connect(agent, purpose)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    match read_line(&mut BufReader::new(stream))? {
        Response::Failed(why) => Err(RemoteError::Refused(why)),
        response => Ok(response),
    }
}

/// The launcher's requests.
#[derive(Debug)]
pub(crate) struct Control(BufReader<TcpStream>);

impl Control {
    pub(crate) fn connect(agent: SocketAddr, run: String) -> Result<Self, RemoteError> {
        let stream = connect(agent, Purpose::Control { run })?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Result<Response, RemoteError> {
        write_line(self.0.get_mut(), request)?;
        match read_line(&mut self.0)? {
            Response::Failed(why) => Err(RemoteError::Refused(why)),
            response => Ok(response),
        }
    }
}

pub(crate) fn write_line(to: &mut TcpStream, value: &impl Serialize) -> Result<(), RemoteError> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(to.write_all(&line)?)
}

pub(crate) fn read_line<T: DeserializeOwned>(
    from: &mut BufReader<TcpStream>,
) -> Result<T, RemoteError> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(serde_json::from_str(&line)?)
}
