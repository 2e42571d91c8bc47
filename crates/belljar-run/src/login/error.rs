//! Why a login cannot be used or refreshed.

use std::path::{Path, PathBuf};

use belljar_egress::token_request::{BadTokenUrl, TokenRequestError};
use belljar_spec::egress::LoginSource;
use belljar_spec::manifest::AgentKind;

use super::status::login_command;

#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    #[error("{path} does not exist; log in on the host first: {command}", path = .path.display())]
    Missing { path: PathBuf, command: &'static str },
    #[error("{agent} has no login that Belljar knows; use auth = \"secret\"", agent = .0.name())]
    NoLogin(AgentKind),
    #[error("neither HOME nor the agent's own variable says where its login is")]
    NoHome,
    #[error("{path}: {why}", path = .path.display())]
    File { path: PathBuf, why: String },
    #[error("{path} is not a login of {agent}: {why}", path = .path.display())]
    Malformed { path: PathBuf, agent: &'static str, why: String },
    #[error("the lock of the login, {path}, cannot be taken: {why}", path = .path.display())]
    Lock { path: PathBuf, why: String },
    #[error("{path} has no refresh token; log in again on the host: {command}", path = .path.display())]
    NoRefreshToken { path: PathBuf, command: &'static str },
    #[error("{host} refused to refresh the login ({status}, {code})")]
    Refused { host: String, status: u16, code: String },
    #[error("the service refused to refresh the login before; log in again on the host: {command}")]
    RefusedBefore { command: &'static str },
    #[error("the attempt was given up")]
    Interrupted,
    #[error("{host} did not refresh the login (status {status})")]
    Status { host: String, status: u16 },
    #[error("{host} answered with no usable tokens: {why}")]
    Answer { host: String, why: String },
    #[error(
        "the login in {path} has expired and was not refreshed ({why}); log in again on the host: {command}",
        path = .path.display()
    )]
    Expired { path: PathBuf, why: String, command: &'static str },
    #[error(transparent)]
    Request(#[from] TokenRequestError),
    #[error(transparent)]
    Url(#[from] BadTokenUrl),
}

/// Whether a failure goes away by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasting {
    Passing,
    /// Only a new login on the host helps.
    Final,
}

impl LoginError {
    pub(super) fn file(path: &Path, why: impl ToString) -> Self {
        Self::File { path: path.to_owned(), why: why.to_string() }
    }

    pub(super) fn malformed(source: &LoginSource, why: impl ToString) -> Self {
        let path = source.file.as_path().to_owned();
        Self::Malformed { path, agent: source.agent.name(), why: why.to_string() }
    }

    pub(super) fn missing(source: &LoginSource) -> Self {
        let path = source.file.as_path().to_owned();
        Self::Missing { path, command: login_command(source.agent) }
    }

    pub(super) fn expired(source: &LoginSource, error: &Self) -> Self {
        let path = source.file.as_path().to_owned();
        Self::Expired { path, why: error.to_string(), command: login_command(source.agent) }
    }

    pub(crate) fn lasting(&self) -> Lasting {
        match self {
            Self::Missing { .. }
            | Self::NoLogin(_)
            | Self::NoHome
            | Self::Malformed { .. }
            | Self::Expired { .. }
            | Self::NoRefreshToken { .. }
            | Self::Refused { .. }
            | Self::RefusedBefore { .. }
            | Self::Url(_) => Lasting::Final,
            Self::File { .. }
            | Self::Lock { .. }
            | Self::Interrupted
            | Self::Status { .. }
            | Self::Answer { .. }
            | Self::Request(_) => Lasting::Passing,
        }
    }
}
