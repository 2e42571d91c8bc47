//! Finds the login of an agent on the host, before a run starts.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use belljar_egress::login_rules;
use belljar_egress::token_request::TokenUrl;
use belljar_spec::Host;
use belljar_spec::egress::{LoginPart, LoginSource, SecretSource, SecretSpec};
use belljar_spec::login_settings::LoginSettings;
use belljar_spec::manifest::AgentKind;

use super::LoginError;
use super::endpoint::default_url;
use super::file::LoginFile;
use super::format;
use super::preset::{LoginPreset, preset};
use super::status::{describe, left};

const PORT: u16 = 443;

/// What a run with this login is given.
#[derive(Debug)]
pub(crate) struct PreparedLogin {
    pub(crate) rules: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) secrets: Vec<SecretSpec>,
    /// For the user: which login, and how long it is valid.
    pub(crate) line: String,
}

pub(crate) fn prepare(
    agent: AgentKind,
    env: &BTreeMap<OsString, OsString>,
    settings: &LoginSettings,
) -> Result<PreparedLogin, LoginError> {
    let preset = preset(agent).ok_or(LoginError::NoLogin(agent))?;
    let source = source(agent, env, settings)?;
    let tokens = LoginFile::read(&source)?.tokens;
    let mut secrets = Vec::new();
    for secret in preset.secrets {
        // Requests without the header are for the account of the token.
        if secret.part == LoginPart::Account && tokens.account.is_none() {
            continue;
        }
        let source = SecretSource::Login(LoginSource { part: secret.part, ..source.clone() });
        let host = Host::Name(preset.host.to_owned());
        let place = secret.place();
        secrets.push(SecretSpec { env: secret.env.to_owned(), host, port: PORT, place, source });
    }
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Ok(PreparedLogin {
        rules: login_rules(agent).iter().map(|rule| (*rule).to_owned()).collect(),
        env: preset.env.iter().map(owned).collect(),
        secrets,
        line: format!(
            "logs in with {}, {}; Belljar refreshes it, and it stays outside the sandbox",
            describe(&source, &tokens),
            left(tokens.expires, format::now())
        ),
    })
}

/// Where the login is, and where it is refreshed. Nothing of it comes from a manifest.
pub(super) fn source(
    agent: AgentKind,
    env: &BTreeMap<OsString, OsString>,
    settings: &LoginSettings,
) -> Result<LoginSource, LoginError> {
    let preset = preset(agent).ok_or(LoginError::NoLogin(agent))?;
    let file = file(&preset, env).ok_or(LoginError::NoHome)?;
    let url = settings.token_url(agent).map(str::to_owned);
    let url = url.or_else(|| default_url(agent).map(str::to_owned));
    let token_url = url.ok_or(LoginError::NoLogin(agent))?;
    TokenUrl::parse(&token_url)?;
    // By the path without links, so that two names of one file have one lock.
    let real = file.canonicalize().unwrap_or_else(|_| file.clone());
    let name = blake3::hash(real.as_os_str().as_encoded_bytes()).to_hex();
    let lock = lock_directory(|name| env.get(OsStr::new(name)).cloned())
        .ok_or(LoginError::NoHome)?
        .join(format!("{}.lock", &name[..32]));
    let (part, file) = (LoginPart::AccessToken, file.as_path().into());
    Ok(LoginSource { agent, part, file, lock: lock.as_path().into(), token_url })
}

fn file(preset: &LoginPreset, env: &BTreeMap<OsString, OsString>) -> Option<PathBuf> {
    let (variable, default) = preset.directory;
    let directory = match (absolute(env, variable), variable) {
        // Gemini's variable names the parent of its directory.
        (Some(home), "GEMINI_CLI_HOME") => home.join(default),
        (Some(directory), _) => directory,
        (None, _) => absolute(env, "HOME")?.join(default),
    };
    Some(directory.join(preset.file))
}

/// One place for all homes of a user: two of them may use one login. No run is given it, or it could hold the locks.
pub(crate) fn lock_directory(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let state = clean_absolute(variable("XDG_STATE_HOME"));
    let state = state.or_else(|| Some(clean_absolute(variable("HOME"))?.join(".local/state")))?;
    Some(state.join("belljar-logins"))
}

fn absolute(env: &BTreeMap<OsString, OsString>, name: &str) -> Option<PathBuf> {
    clean_absolute(env.get(OsStr::new(name)).cloned())
}

fn clean_absolute(value: Option<OsString>) -> Option<PathBuf> {
    let path = value.map(PathBuf::from);
    path.filter(|path| path.is_absolute()).map(|path| belljar_spec::paths::clean(&path))
}
