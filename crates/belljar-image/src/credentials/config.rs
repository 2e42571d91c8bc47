//! `config.json` of docker and `auth.json` of podman: one format, in which a registry is written in two forms.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use zeroize::{Zeroize, Zeroizing};

use super::{Credentials, registry_key};
use crate::reference::{DOCKER_HUB, Reference};

/// Hundreds of registries fit.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigFileError {
    #[error("cannot read {}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} is not a regular file of at most 1 MiB", .0.display())]
    NotPlain(PathBuf),
    /// Without the parser's message, which can quote a value.
    #[error("{} is not as it should be, at line {line}, column {column}", .path.display())]
    Shape { path: PathBuf, line: usize, column: usize },
    #[error("the entry for {registry} in {} is not as it should be", .path.display())]
    Entry { path: PathBuf, registry: String },
}

#[derive(Default, Deserialize)]
struct Raw {
    #[serde(default)]
    auths: BTreeMap<String, RawAuth>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(default, rename = "credsStore")]
    store: String,
}

#[derive(Default, Deserialize, Zeroize)]
#[zeroize(drop)]
struct RawAuth {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    identitytoken: String,
}

/// One file, read.
pub(super) struct ConfigFile {
    path: PathBuf,
    raw: Raw,
}

impl ConfigFile {
    /// Nothing if there is none.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, ConfigFileError> {
        let failed = |errno: Errno| ConfigFileError::Io { path: path.into(), error: errno.into() };
        // A FIFO must not hold us up before it is seen to be one.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let about = rustix::fs::fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Err(ConfigFileError::NotPlain(path.into()));
        }
        let mut text = Zeroizing::new(Vec::new());
        let read = File::from(file).take(MAX_BYTES + 1).read_to_end(&mut text);
        read.map_err(|error| ConfigFileError::Io { path: path.into(), error })?;
        if text.len() as u64 > MAX_BYTES {
            return Err(ConfigFileError::NotPlain(path.into()));
        }
        Self::parse(path, &text).map(Some)
    }

    fn parse(path: &Path, text: &[u8]) -> Result<Self, ConfigFileError> {
        let raw = match text.trim_ascii().is_empty() {
            true => Raw::default(),
            false => serde_json::from_slice(text).map_err(|error| ConfigFileError::Shape {
                path: path.into(),
                line: error.line(),
                column: error.column(),
            })?,
        };
        Ok(Self { path: path.into(), raw })
    }

    /// The helper that is to be asked, if any.
    pub(super) fn helper(&self, reference: &Reference) -> Option<&str> {
        let own = best(self.raw.helpers.iter(), reference);
        let name = own.map_or(self.raw.store.as_str(), String::as_str);
        Some(name).filter(|name| !name.is_empty())
    }

    /// The entry in the file itself.
    pub(super) fn stored(
        &self,
        reference: &Reference,
    ) -> Result<Option<Credentials>, ConfigFileError> {
        let Some(entry) = best(self.raw.auths.iter(), reference) else { return Ok(None) };
        let bad = || ConfigFileError::Entry {
            path: self.path.clone(),
            registry: reference.registry().to_owned(),
        };
        if !entry.identitytoken.is_empty() {
            return Ok(Some(Credentials::identity_token(entry.identitytoken.clone())));
        }
        if entry.auth.is_empty() {
            let (user, password) = (entry.username.clone(), entry.password.clone());
            return Ok((!user.is_empty()).then(|| Credentials::password(user, password)));
        }
        let both = BASE64.decode(entry.auth.trim().as_bytes()).map_err(|_| bad())?;
        let both = Zeroizing::new(String::from_utf8(both).map_err(|_| bad())?);
        let (user, password) = both.split_once(':').ok_or_else(bad)?;
        // Some tools pad what they write.
        let password = password.trim_end_matches('\0');
        Ok(Some(Credentials::password(user.to_owned(), password.to_owned())))
    }
}

/// The entry with the most specific key for the image.
fn best<'a, T>(
    entries: impl Iterator<Item = (&'a String, &'a T)>,
    reference: &Reference,
) -> Option<&'a T> {
    let ranked = entries.filter_map(|(key, entry)| Some((fit(key, reference)?, entry)));
    ranked.max_by_key(|(rank, _)| *rank).map(|(_, entry)| entry)
}

/// How well a key names this image's registry; nothing if it names another.
///
/// Docker writes a host, or an address with a scheme and a path that means nothing. Podman writes a host
/// with as much of the repository's path as is meant.
fn fit(key: &str, reference: &Reference) -> Option<usize> {
    const EXACT: usize = 1;
    let registry = reference.registry();
    if key == registry_key(registry) {
        return Some(EXACT);
    }
    let address = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://"));
    let (host, path) = match address.unwrap_or(key).split_once('/') {
        Some((host, path)) => (host, path.trim_end_matches('/')),
        None => (address.unwrap_or(key), ""),
    };
    let host = match host {
        "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB,
        host => host,
    };
    if host != registry {
        return None;
    }
    if path.is_empty() || path == "v1" || path == "v2" || address.is_some() {
        return Some(0);
    }
    let whole = reference.whole_repository();
    let below = whole.strip_prefix(host)?.strip_prefix('/')?.strip_prefix(path)?;
    (below.is_empty() || below.starts_with('/')).then_some(EXACT + path.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> ConfigFile {
        ConfigFile::parse(Path::new("/x/config.json"), text.as_bytes()).unwrap()
    }

    /// The user and password that would be sent.
    fn sent(text: &str, image: &str) -> Option<(String, String)> {
        let reference = Reference::parse(image).unwrap();
        let found = file(text).stored(&reference).unwrap()?;
        match found.secret() {
            crate::credentials::Secret::Password { user, password } => {
                Some((user.to_owned(), password.to_owned()))
            }
            crate::credentials::Secret::IdentityToken(_) => None,
        }
    }

    fn pair(user: &str, password: &str) -> Option<(String, String)> {
        Some((user.to_owned(), password.to_owned()))
    }

    #[test]
    fn a_registry_is_found_however_it_is_written() {
        // "ann:pw:1"
        for key in
            ["https://index.docker.io/v1/", "index.docker.io", "docker.io", "https://docker.io"]
        {
            let text = format!(r#"{{"auths":{{"{key}":{{"auth":"YW5uOnB3OjE="}}}}}}"#);
            assert_eq!(sent(&text, "debian"), pair("ann", "pw:1"), "{key}");
            assert_eq!(sent(&text, "quay.io/x"), None, "{key}");
        }
        for key in ["reg:5000", "https://reg:5000", "http://reg:5000/v2/", "reg:5000/v1"] {
            let text = format!(r#"{{"auths":{{"{key}":{{"auth":"YW5uOnB3OjE="}}}}}}"#);
            assert_eq!(sent(&text, "reg:5000/a/b:1"), pair("ann", "pw:1"), "{key}");
            assert_eq!(sent(&text, "reg:5001/a/b:1"), None, "{key}");
            assert_eq!(sent(&text, "debian"), None, "{key}");
        }
    }

    #[test]
    fn the_longest_path_counts() {
        let text = r#"{"auths":{
            "quay.io":{"username":"all","password":"1"},
            "quay.io/team":{"username":"team","password":"2"},
            "quay.io/team/app":{"username":"app","password":"3"}}}"#;
        assert_eq!(sent(text, "quay.io/other/x"), pair("all", "1"));
        assert_eq!(sent(text, "quay.io/team/x"), pair("team", "2"));
        assert_eq!(sent(text, "quay.io/team/app:9"), pair("app", "3"));
        assert_eq!(sent(text, "quay.io/teams/x"), pair("all", "1"));
    }

    #[test]
    fn a_helper_for_one_registry_comes_before_the_one_for_all() {
        let text = r#"{"credsStore":"desktop","credHelpers":{"gcr.io":"gcloud","quay.io":""}}"#;
        let asked =
            |image: &str| file(text).helper(&Reference::parse(image).unwrap()).map(str::to_owned);
        assert_eq!(asked("gcr.io/a/b").as_deref(), Some("gcloud"));
        assert_eq!(asked("debian").as_deref(), Some("desktop"));
        assert_eq!(asked("quay.io/a"), None);
        assert_eq!(file("").helper(&Reference::parse("a").unwrap()), None);
    }

    #[test]
    fn a_broken_file_is_told_without_its_values() {
        let text = r#"{"auths": {"reg:5000": "hunter2"}}"#;
        let error = ConfigFile::parse(Path::new("/x"), text.as_bytes()).err().unwrap().to_string();
        assert!(!error.contains("hunter2") && error.contains("line 1"), "{error}");
        for auth in ["%%%", "aHVudGVyMg==", "/w=="] {
            let file = file(&format!(r#"{{"auths":{{"reg:5000":{{"auth":"{auth}"}}}}}}"#));
            let error = file.stored(&Reference::parse("reg:5000/a").unwrap()).unwrap_err();
            assert!(error.to_string().contains("entry for reg:5000"), "{error}");
            assert!(!format!("{error:?}").contains("hunter2"));
        }
    }
}
