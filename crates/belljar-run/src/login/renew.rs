//! Gets a valid access token: from the file, if the host's own agent or another run has refreshed it, else from the
//! token endpoint.

use std::sync::atomic::AtomicBool;

use belljar_spec::egress::LoginSource;

use super::LoginError;
use super::endpoint;
use super::file::{LoginFile, Replacement};
use super::format::{self, Tokens};
use super::lock::LoginLock;
use super::status::login_command;

/// How often the host may change the file while it is being replaced.
const MAX_MERGES: usize = 5;

/// Who refreshed the login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// This run.
    Belljar,
    /// The host's own agent, or another run.
    Other,
}

impl By {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Belljar => "belljar",
            Self::Other => "other",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) tokens: Tokens,
    pub(crate) by: By,
}

/// Why there is no new token.
#[derive(Debug)]
pub(crate) struct NotRenewed {
    pub(crate) error: LoginError,
    /// The refresh token that the service refused.
    pub(crate) refused: Option<blake3::Hash>,
}

impl From<LoginError> for NotRenewed {
    fn from(error: LoginError) -> Self {
        Self { error, refused: None }
    }
}

impl NotRenewed {
    pub(crate) fn of_thread() -> Self {
        LoginError::Interrupted.into()
    }
}

/// What an attempt knows of those before it.
pub(crate) struct Attempt<'a> {
    /// The access token that is about to expire.
    pub(crate) held: Option<&'a str>,
    /// A refresh token that is not sent again.
    pub(crate) refused: Option<blake3::Hash>,
    /// Set when the result is not needed any more. A request that was sent is finished all the same.
    pub(crate) cancel: &'a AtomicBool,
}

impl std::fmt::Debug for Attempt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attempt").field("refused", &self.refused).finish_non_exhaustive()
    }
}

/// Gets a new access token. Blocks: for the lock, and for the endpoint.
pub(crate) fn renew(source: &LoginSource, attempt: &Attempt<'_>) -> Result<Renewal, NotRenewed> {
    let held = attempt.held;
    let _lock = LoginLock::take(source.lock.as_path(), attempt.cancel)?;
    let file = LoginFile::read(source)?.take_over_draft(source)?;
    if is_newer(&file.tokens, held) {
        return Ok(Renewal { tokens: file.tokens, by: By::Other });
    }
    let Some(refresh) = file.tokens.refresh.clone() else {
        let path = source.file.as_path().to_owned();
        let command = login_command(source.agent);
        return Err(LoginError::NoRefreshToken { path, command }.into());
    };
    let hash = blake3::hash(refresh.as_bytes());
    if attempt.refused == Some(hash) {
        let error = LoginError::RefusedBefore { command: login_command(source.agent) };
        return Err(NotRenewed { error, refused: Some(hash) });
    }
    let replacement = file.prepare_replacement()?;
    let answer = match endpoint::refresh(source, &refresh, format::now()) {
        Ok(answer) => answer,
        // The host's own agent, which does not take our lock, may have used the same token just now.
        Err(error) => {
            return match LoginFile::read(source) {
                Ok(again) if is_newer(&again.tokens, held) => {
                    Ok(Renewal { tokens: again.tokens, by: By::Other })
                }
                _ => {
                    let is_refusal = matches!(error, LoginError::Refused { .. });
                    Err(NotRenewed { error, refused: is_refusal.then_some(hash) })
                }
            };
        }
    };
    match keep(source, &answer, &file, replacement, held)? {
        Kept::InPlace(tokens) => Ok(Renewal { tokens: *tokens, by: By::Belljar }),
        Kept::HostsOwn(tokens) => Ok(Renewal { tokens: *tokens, by: By::Other }),
    }
}

/// Whose tokens the file has in the end.
enum Kept {
    InPlace(Box<Tokens>),
    /// A login that the host made meanwhile.
    HostsOwn(Box<Tokens>),
}

/// Puts the new tokens in place before anything uses them. The host's own agent does not take the lock, so the file is
/// read again just before it is replaced, and what the host has changed meanwhile stays.
fn keep(
    source: &LoginSource,
    answer: &endpoint::Answer,
    file: &LoginFile,
    mut replacement: Replacement<'_>,
    held: Option<&str>,
) -> Result<Kept, LoginError> {
    let mut base = file.text.clone();
    for _ in 0..MAX_MERGES {
        let text = format::updated(source, &base, answer, format::now())?;
        replacement.write(&text)?; // from here on the tokens are on disk, wherever this ends
        let again = match LoginFile::read(source) {
            Ok(again) => again,
            // Logged out: a login that the user has removed does not come back.
            Err(error @ LoginError::Missing { .. }) => {
                replacement.discard();
                return Err(error);
            }
            // Perhaps it is being written just now; the next attempt joins the two.
            Err(error) => return Err(LoginError::file(source.file.as_path(), error)),
        };
        if again.text == base {
            replacement.place()?;
            return Ok(Kept::InPlace(Box::new(format::parse(source, &text)?)));
        }
        let is_other_login = again.tokens.refresh != file.tokens.refresh;
        if is_other_login || (answer.refresh.is_none() && is_newer(&again.tokens, held)) {
            replacement.discard();
            return match is_newer(&again.tokens, held) {
                true => Ok(Kept::HostsOwn(Box::new(again.tokens))),
                false => Err(changed(source)),
            };
        }
        base = again.text;
    }
    Err(changed(source))
}

fn changed(source: &LoginSource) -> LoginError {
    LoginError::file(source.file.as_path(), "it was changed on the host during the refresh")
}

/// Another token than the one that is held, and still valid.
fn is_newer(tokens: &Tokens, held: Option<&str>) -> bool {
    Some(tokens.access.as_str()) != held && !tokens.is_expired(format::now())
}
