//! Keeps the agent's login valid while the run lasts. Refreshing waits for a lock and for a server, so it happens in a
//! thread; what comes of it is recorded here, and the new access token is sent to the proxy.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use belljar_record::Recorder;
use belljar_spec::egress::{LoginPart, SecretSource, SecretValue};
use belljar_spec::{EventKind, RunId};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::json;
use zeroize::Zeroizing;

use super::SuperviseError;
use super::event_source::{EventSource, PollSet};
use super::readiness::is_readable;
use super::sandbox::SandboxState;
use crate::login::{
    Attempt, Lasting, LoginError, NotRenewed, Renewal, RunLogin, expiry_of, login_command, now,
    renew, shown_time,
};

/// A token is refreshed when less than this is left of its life, and less than a fifth of it.
const REFRESH_AHEAD_MS: u64 = 5 * 60 * 1000;
/// The wall clock may jump, so it is looked at from time to time.
const MAX_SLEEP_MS: u64 = 60 * 1000;
/// Between two attempts; doubles with each failure in a row.
const MIN_BACKOFF_MS: u64 = 500;
const MAX_BACKOFF_MS: u64 = 60 * 1000;
/// How long attempts go on after the token has expired, while the service does not answer.
const MAX_GRACE_MS: u64 = 10 * 60 * 1000;
/// Between two refreshes, whatever the service says about the life of its tokens: each is an event and a sync.
const MIN_INTERVAL: Duration = Duration::from_secs(4);
/// The same after [`MAX_SHORT_LIVED`] tokens in a row that lived for less than [`SHORT_LIFE_MS`].
const SLOW_INTERVAL: Duration = Duration::from_secs(60);
const SHORT_LIFE_MS: u64 = 60 * 1000;
const MAX_SHORT_LIVED: u32 = 20;

/// The login expired and could not be refreshed: the run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoginExpired {
    why: String,
    command: &'static str,
}

impl LoginExpired {
    pub(super) fn message(&self, run: &RunId) -> String {
        let Self { why, command } = self;
        format!(
            "the login expired and was not refreshed ({why}); log in on the host ({command}), then: belljar resume {run}"
        )
    }
}

/// The sandbox whose proxy gets the new token, and the record.
pub(super) struct LoginParts<'p> {
    pub(super) sandbox: &'p mut SandboxState,
    pub(super) recorder: &'p mut Recorder,
}

pub(crate) struct LoginKeeper {
    login: RunLogin,
    held: Zeroizing<String>,
    /// In milliseconds since 1970; `None` where nothing says when.
    expires: Option<u64>,
    /// When the next attempt is due, likewise.
    due: Option<u64>,
    /// Of the current token, as far as it was seen.
    lifetime: u64,
    /// Since then it is used.
    refreshed: Option<Instant>,
    /// Tokens in a row that lived for less than [`SHORT_LIFE_MS`].
    short_lived: u32,
    failing: Option<Failing>,
    pending: Option<PendingRenewal>,
    cancel: Arc<AtomicBool>,
    state: KeeperState,
}

impl std::fmt::Debug for LoginKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { expires, due, failing, pending, state, .. } = self;
        f.debug_struct("LoginKeeper")
            .field("expires", expires)
            .field("due", due)
            .field("failing", failing)
            .field("pending", pending)
            .field("state", state)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeeperState {
    Active,
    /// There is no proxy any more, or the run is being ended.
    Over,
}

/// Attempts that failed in a row.
#[derive(Debug)]
struct Failing {
    since: Instant,
    retry_at: Instant,
    count: u32,
    why: String,
    lasting: Lasting,
    /// A refresh token that the service refused is not sent again.
    refused: Option<blake3::Hash>,
}

impl LoginKeeper {
    /// `secrets` are the values that the proxy was started with.
    pub(crate) fn new(login: RunLogin, secrets: &[SecretValue]) -> Option<Self> {
        let is_token = |secret: &&belljar_spec::egress::SecretSpec| matches!(&secret.source, SecretSource::Login(login) if login.part == LoginPart::AccessToken);
        let token = login.secrets.iter().find(is_token)?;
        let value = secrets.iter().find(|value| value.env == token.env)?;
        let held = Zeroizing::new(value.value.clone());
        let mut keeper = Self {
            held,
            expires: None,
            due: None,
            lifetime: 0,
            refreshed: None,
            short_lived: 0,
            failing: None,
            pending: None,
            cancel: Arc::new(AtomicBool::new(false)),
            state: KeeperState::Active,
            login,
        };
        match expiry_of(&keeper.login.source, &keeper.held) {
            Some(expires) => keeper.expires_at(expires),
            None => keeper.due = Some(0), // the file has another token by now
        }
        Some(keeper)
    }

    fn expires_at(&mut self, expires: Option<u64>) {
        self.expires = expires;
        self.lifetime = expires.map_or(0, |expires| expires.saturating_sub(now()));
        let ahead = REFRESH_AHEAD_MS.min(self.lifetime / 5);
        self.due = expires.map(|expires| expires.saturating_sub(ahead));
    }

    fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= now())
    }

    /// Nothing is begun any more. Never waits: a turn that waited for a server would suspend the whole supervisor.
    pub(super) fn stop(&mut self) {
        self.state = KeeperState::Over;
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// Before it nothing is refreshed again.
    fn next_allowed(&self) -> Option<Instant> {
        let is_slowed = self.short_lived >= MAX_SHORT_LIVED;
        let interval = if is_slowed { SLOW_INTERVAL } else { MIN_INTERVAL };
        self.refreshed.map(|refreshed| refreshed + interval)
    }

    fn begin(&mut self) {
        let refused = self.failing.as_ref().and_then(|failing| failing.refused);
        let begun = PendingRenewal::begin(
            self.login.clone(),
            self.held.clone(),
            refused,
            self.cancel.clone(),
        );
        match begun {
            Ok(pending) => self.pending = Some(pending),
            Err(error) => self.failed(format!("no thread for it: {error}"), Lasting::Passing, None),
        }
    }

    fn failed(&mut self, why: String, lasting: Lasting, refused: Option<blake3::Hash>) {
        let now = Instant::now();
        let before = self.failing.take();
        let count = before.as_ref().map_or(1, |before| before.count.saturating_add(1));
        let since = before.map_or(now, |before| before.since);
        let first = (self.lifetime / 20).clamp(MIN_BACKOFF_MS, MAX_BACKOFF_MS / 4);
        let backoff = first.saturating_mul(1 << count.min(10).saturating_sub(1));
        let retry_at = now + Duration::from_millis(backoff.min(MAX_BACKOFF_MS));
        self.failing = Some(Failing { since, retry_at, count, why, lasting, refused });
    }

    fn take_result(
        &mut self,
        result: Result<Renewal, NotRenewed>,
        parts: &mut LoginParts<'_>,
    ) -> Result<(), SuperviseError> {
        let agent = self.login.source.agent.name();
        let values = result.and_then(|renewal| {
            let values = self.login.values(&renewal.tokens).map_err(NotRenewed::from)?;
            Ok((renewal, values))
        });
        match values {
            Ok((Renewal { tokens, by }, values)) => {
                let secret = values.iter().map(|value| value.value.as_bytes().to_vec());
                let refresh = tokens.refresh.iter().map(|token| token.as_bytes().to_vec());
                parts.recorder.add_secrets(secret.chain(refresh));
                for value in values {
                    parts.sandbox.replace_secret(value);
                }
                self.held = tokens.access.clone();
                self.failing = None;
                self.expires_at(tokens.expires);
                self.refreshed = Some(Instant::now());
                let is_short = self.expires.is_some() && self.lifetime < SHORT_LIFE_MS;
                self.short_lived = if is_short { self.short_lived.saturating_add(1) } else { 0 };
                let expires = tokens.expires.and_then(shown_time);
                let event = json!({ "agent": agent, "by": by.name(), "expires": expires });
                parts.recorder.event(EventKind::LoginRefreshed, &event)?;
            }
            Err(NotRenewed { error, refused }) => {
                let why = match (&error, &self.failing) {
                    // What the service said is the reason.
                    (LoginError::RefusedBefore { .. }, Some(failing)) => failing.why.clone(),
                    _ => parts.recorder.secrets().mask_words_of(&error.to_string()),
                };
                let is_new = self.failing.as_ref().is_none_or(|failing| failing.why != why);
                self.failed(why.clone(), error.lasting(), refused);
                if is_new {
                    let expires = self.expires.and_then(shown_time);
                    let event = json!({ "agent": agent, "why": why, "expires": expires });
                    parts.recorder.event(EventKind::LoginFailed, &event)?;
                }
            }
        }
        Ok(())
    }

    /// Why the run cannot go on.
    fn end(&self) -> Option<LoginExpired> {
        let failing = self.failing.as_ref().filter(|_| self.is_expired())?;
        let grace = Duration::from_millis(self.lifetime.clamp(MIN_BACKOFF_MS, MAX_GRACE_MS));
        if failing.lasting == Lasting::Passing && failing.since.elapsed() < grace {
            return None;
        }
        let command = login_command(self.login.source.agent);
        Some(LoginExpired { why: failing.why.clone(), command })
    }
}

/// Waits for a refresh that has reached the service: its tokens must reach the file. So it is dropped when nothing of
/// the run lives any more.
impl Drop for LoginKeeper {
    fn drop(&mut self) {
        self.stop();
        if let Some(pending) = self.pending.take() {
            let _ = pending.thread.join(); // the tokens are in the file, or there are none
        }
    }
}

impl EventSource for LoginKeeper {
    type Parts<'p> = LoginParts<'p>;
    type Event = LoginExpired;

    fn watch<'a>(&'a self, poll: &mut PollSet<'a>) {
        if self.state == KeeperState::Active {
            poll.fds().extend(self.pending.as_ref().map(PendingRenewal::poll_fd));
        }
    }

    fn deadline(&self) -> Option<Instant> {
        if self.state == KeeperState::Over || self.pending.is_some() {
            return None;
        }
        let after = |at: u64| {
            let wait = at.saturating_sub(now()).min(MAX_SLEEP_MS);
            Instant::now() + Duration::from_millis(wait)
        };
        let due = after(self.due?);
        let due = self.next_allowed().map_or(due, |allowed| allowed.max(due));
        let Some(failing) = &self.failing else { return Some(due) };
        // The next attempt, or the end of the token.
        let expires = self.expires.filter(|_| !self.is_expired()).map(after);
        Some(expires.map_or(failing.retry_at, |expires| expires.min(failing.retry_at)))
    }

    fn take_turn(
        &mut self,
        now_at: Instant,
        mut parts: LoginParts<'_>,
    ) -> Result<Vec<LoginExpired>, SuperviseError> {
        if self.state == KeeperState::Over {
            return Ok(Vec::new());
        }
        if let Some(pending) = self.pending.take_if(|pending| pending.is_done()) {
            self.take_result(pending.finish(), &mut parts)?;
        }
        if !parts.sandbox.has_proxy() {
            self.stop(); // nothing can use the login any more
            return Ok(Vec::new());
        }
        if let Some(expired) = self.end() {
            self.stop();
            return Ok(vec![expired]);
        }
        let is_due = self.due.is_some_and(|due| due <= now())
            && self.next_allowed().is_none_or(|allowed| allowed <= now_at);
        let may_retry = self.failing.as_ref().is_none_or(|failing| failing.retry_at <= now_at);
        if self.pending.is_none() && is_due && may_retry {
            self.begin();
        }
        Ok(Vec::new())
    }
}

/// A refresh in its thread.
#[derive(Debug)]
struct PendingRenewal {
    /// Closed at the other end when it is done.
    done: OwnedFd,
    thread: JoinHandle<Result<Renewal, NotRenewed>>,
}

impl PendingRenewal {
    fn begin(
        login: RunLogin,
        held: Zeroizing<String>,
        refused: Option<blake3::Hash>,
        cancel: Arc<AtomicBool>,
    ) -> Result<Self, Errno> {
        let (done, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let thread = thread::Builder::new().name("login".to_owned()).spawn(move || {
            let _theirs = theirs;
            renew(&login.source, &Attempt { held: Some(&held), refused, cancel: &cancel })
        });
        let thread =
            thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Self { done, thread })
    }

    fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.done, PollFlags::IN)
    }

    fn is_done(&self) -> bool {
        is_readable(&self.done)
    }

    fn finish(self) -> Result<Renewal, NotRenewed> {
        self.thread.join().unwrap_or_else(|_| Err(NotRenewed::of_thread()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::net::TcpListener;
    use std::path::Path;

    use belljar_spec::egress::{LoginSource, SecretPlace, SecretSpec};
    use belljar_spec::manifest::AgentKind;

    use super::*;

    const TOKEN: &str = "access-token-of-the-test";

    /// With a login that has expired.
    fn keeper(directory: &Path, token_url: String) -> LoginKeeper {
        let file = directory.join("login.json");
        let login = json!({ "claudeAiOauth": {
            "accessToken": TOKEN, "refreshToken": "refresh-token", "expiresAt": now() - 1000 } });
        std::fs::write(&file, login.to_string()).unwrap();
        let source = LoginSource {
            agent: AgentKind::Claude,
            part: LoginPart::AccessToken,
            file: file.as_path().into(),
            lock: directory.join("lock").as_path().into(),
            token_url,
        };
        let secret = SecretSpec {
            env: "TOKEN".into(),
            host: "a.example".parse().unwrap(),
            port: 443,
            place: SecretPlace::Bearer,
            source: SecretSource::Login(source.clone()),
        };
        let placeholder = String::new();
        let value = SecretValue { env: "TOKEN".into(), value: TOKEN.into(), placeholder };
        LoginKeeper::new(RunLogin { source, secrets: vec![secret] }, &[value]).unwrap()
    }

    #[test]
    fn it_prints_no_token() {
        let directory = tempfile::tempdir().unwrap();
        let shown = format!("{:?}", keeper(directory.path(), String::new()));
        assert!(shown.contains("LoginKeeper") && !shown.contains(TOKEN), "{shown}");
    }

    #[test]
    fn tokens_that_live_for_a_second_are_not_refreshed_every_second() {
        let directory = tempfile::tempdir().unwrap();
        let mut keeper = keeper(directory.path(), String::new());
        keeper.expires_at(Some(now() + 1000));
        let wait = |keeper: &LoginKeeper| keeper.deadline().unwrap() - Instant::now();
        assert!(wait(&keeper) <= Duration::from_secs(1));
        keeper.refreshed = Some(Instant::now() + Duration::from_secs(30)); // however slow this test is
        assert!(wait(&keeper) > Duration::from_secs(1));
        assert!(wait(&keeper) <= Duration::from_secs(30) + MIN_INTERVAL);
        keeper.short_lived = MAX_SHORT_LIVED;
        assert!(wait(&keeper) > MIN_INTERVAL + Duration::from_secs(30));
    }

    #[test]
    fn stopping_does_not_wait_for_a_silent_endpoint() {
        let directory = tempfile::tempdir().unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://127.0.0.1:{}/token", silent.local_addr().unwrap().port());
        let mut keeper = keeper(directory.path(), url);
        keeper.begin();
        let connection = silent.accept().unwrap(); // the request is under way
        keeper.stop();
        let pending = keeper.pending.as_ref().unwrap();
        assert!(!pending.is_done(), "it was waited for");
        let mut poll = PollSet::default();
        keeper.watch(&mut poll);
        assert!(poll.fds().is_empty() && keeper.deadline().is_none());
        drop((connection, silent));
        drop(keeper); // ends, now that the endpoint is gone
    }
}
