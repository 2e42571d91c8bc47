//! `agent.auth = "login"`: the agent's own login on the host, used by a run without entering it.
//!
//! The supervisor reads the login from the agent's file, refreshes it at the agent's token endpoint, and writes it back
//! there. Only the access token leaves the supervisor, to the run's proxy. Inside is a placeholder.
//!
//! Refresh tokens rotate: one that was used is dead. So every refresh happens under a lock that all runs of the user
//! share, begins with reading the file again, and ends with the new tokens on disk before any of them is used.

mod endpoint;
mod error;
mod file;
mod format;
mod json_edit;
mod jwt;
mod lock;
mod prepare;
mod preset;
mod renew;
mod status;
#[cfg(test)]
mod tests;

pub use error::LoginError;
pub use status::{LoginStatus, status, statuses};

pub(crate) use error::Lasting;
pub(crate) use format::{Tokens, now};
pub(crate) use prepare::{PreparedLogin, lock_directory, prepare};
pub(crate) use renew::{Attempt, NotRenewed, Renewal, renew};
pub(crate) use status::{login_command, shown_time};

use std::sync::atomic::AtomicBool;

use belljar_spec::RunSpec;
use belljar_spec::egress::{LoginPart, LoginSource, SecretSource, SecretSpec, SecretValue};

/// The login of a run, with the secrets that are parts of it.
#[derive(Clone, Debug)]
pub(crate) struct RunLogin {
    pub(crate) source: LoginSource,
    pub(crate) secrets: Vec<SecretSpec>,
}

impl RunLogin {
    pub(crate) fn of(spec: &RunSpec) -> Option<Self> {
        let is_login = |secret: &&SecretSpec| matches!(secret.source, SecretSource::Login(_));
        let secrets: Vec<SecretSpec> =
            spec.egress.secrets.iter().filter(is_login).cloned().collect();
        let source = secrets.iter().find_map(|secret| match &secret.source {
            SecretSource::Login(source) => Some(source.clone()),
            _ => None,
        })?;
        Some(Self { source, secrets })
    }

    /// The values for the proxy. The placeholders are those that were made at the start.
    pub(crate) fn values(&self, tokens: &Tokens) -> Result<Vec<SecretValue>, LoginError> {
        let value = |secret: &SecretSpec| {
            let part = match &secret.source {
                SecretSource::Login(source) => source.part,
                _ => LoginPart::AccessToken,
            };
            let value = match part {
                LoginPart::AccessToken => Some(tokens.access.to_string()),
                LoginPart::Account => tokens.account.clone(),
            };
            let missing = || LoginError::malformed(&self.source, "it names no account any more");
            let value = value.ok_or_else(missing)?;
            Ok(SecretValue { env: secret.env.clone(), value, placeholder: String::new() })
        };
        self.secrets.iter().map(value).collect()
    }
}

/// The values at the start of a run: an expired login is refreshed first.
pub(crate) fn values_at_start(login: &RunLogin) -> Result<Vec<SecretValue>, LoginError> {
    let tokens = file::LoginFile::read(&login.source)?.tokens;
    let tokens = match tokens.is_expired(format::now()) {
        false => tokens,
        true => {
            let held = Some(tokens.access.as_str());
            let attempt = Attempt { held, refused: None, cancel: &AtomicBool::new(false) };
            let renewed = renew(&login.source, &attempt);
            renewed.map_err(|failed| LoginError::expired(&login.source, &failed.error))?.tokens
        }
    };
    login.values(&tokens)
}

/// The refresh token as the file has it: never sent to the proxy, and never recorded.
pub(crate) fn refresh_token(source: &LoginSource) -> Option<Vec<u8>> {
    let token = file::LoginFile::read(source).ok()?.tokens.refresh?;
    Some(token.as_bytes().to_vec())
}

/// When the token expires, as the file says; `None` if the file has another token, or none.
pub(crate) fn expiry_of(source: &LoginSource, access: &str) -> Option<Option<u64>> {
    let tokens = file::LoginFile::read(source).ok()?.tokens;
    (tokens.access.as_str() == access).then_some(tokens.expires)
}

/// The file that lies inside in place of the login, for an agent that needs one: its path in the home, and its content.
pub(crate) fn placeholder_file(login: &RunLogin) -> Option<(&'static str, String)> {
    let tokens = file::LoginFile::read(&login.source).ok().map(|file| file.tokens);
    preset::placeholder_file(login.source.agent, tokens.as_ref())
}
