//! Which manifests the operator has read and accepted: by path and content, so that a new or a
//! changed one is not.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use belljar_spec::{Manifest, OsText, Widening, layers, paths, widenings};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::files::{Links, ReadError, read};
use super::manifest::ReadManifest;
use super::{ConfigError, host};
use crate::home::Home;

const FILE: &str = "trust.json";
const LOCK: &str = "trust.lock";
const VERSION: u32 = 1;
/// Keeps these hashes apart from every other use of BLAKE3 here.
const CONTEXT: &str = "belljar 2026 content of a trusted manifest";

/// What the store says of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Trusted,
    /// Trusted once, with other content.
    Changed,
    Unknown,
}

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("cannot read or write {path}: {error}", path = .path.display())]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(
        "{path} makes no sense ({why}); remove it, and trust your manifests again",
        path = .path.display()
    )]
    Broken { path: PathBuf, why: String },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("there is no manifest {path}", path = .0.display())]
    NoManifest(PathBuf),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Stored {
    v: u32,
    trusted: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    path: OsText,
    hash: String,
}

/// The trusted manifests of a home.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    stored: Stored,
}

impl Store {
    pub fn open(home: &Home) -> Result<Self, TrustError> {
        let path = home.path().join(FILE);
        let stored = match read(&path, Links::Refuse)? {
            None => Stored { v: VERSION, trusted: Vec::new() },
            Some(file) => {
                let broken = |why: String| TrustError::Broken { path: path.clone(), why };
                let stored: Stored = serde_json::from_slice(&file.content)
                    .map_err(|error| broken(error.to_string()))?;
                if stored.v != VERSION {
                    return Err(broken(format!("version {}", stored.v)));
                }
                stored
            }
        };
        Ok(Self { path, stored })
    }

    /// `path` is [`canonical`].
    pub fn standing(&self, path: &OsText, hash: &str) -> Standing {
        match self.stored.trusted.iter().find(|entry| entry.path == *path) {
            Some(entry) if entry.hash == hash => Standing::Trusted,
            Some(_) => Standing::Changed,
            None => Standing::Unknown,
        }
    }

    fn set(&mut self, path: OsText, hash: String) {
        self.stored.trusted.retain(|entry| entry.path != path);
        self.stored.trusted.push(Entry { path, hash });
    }

    /// Whole or not at all.
    fn save(&self) -> Result<(), TrustError> {
        let io = |error| TrustError::Io { path: self.path.clone(), error };
        let draft = self.path.with_extension("json.new");
        let text = serde_json::to_vec_pretty(&self.stored).map_err(|error| io(error.into()))?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&draft, flags, Mode::from_raw_mode(0o600));
        let mut file = File::from(file.map_err(|errno| io(errno.into()))?);
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(io)?;
        std::fs::rename(&draft, &self.path).map_err(io)
    }
}

/// A manifest that was looked at for trusting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    pub path: PathBuf,
    pub hash: String,
    pub standing: Standing,
    pub widenings: Vec<Widening>,
}

/// What a manifest asks for, and whether it is trusted. `path` is the file, or the directory it is in.
pub fn examine(
    path: &Path,
    env: &BTreeMap<OsString, OsString>,
    home: &Home,
) -> Result<Examined, ConfigError> {
    let path =
        if path.is_dir() { path.join(belljar_spec::manifest::FILE_NAME) } else { path.to_owned() };
    let path = canonical(&path)?;
    let missing = || TrustError::NoManifest(path.as_path().to_owned());
    let manifest =
        ReadManifest::read(path.as_path().to_owned(), Links::Refuse)?.ok_or_else(missing)?;
    let built_in = layers::built_in(host::memory_total());
    let widenings = widenings(&manifest.values, manifest.directory(), &built_in);
    let hash = content(&manifest, host::user_home(env).as_deref())?.hash;
    let standing = Store::open(home)?.standing(&path, &hash);
    Ok(Examined { path: path.as_path().to_owned(), hash, standing, widenings })
}

/// Trusts exactly what was examined: content that changed since stays untrusted.
pub fn trust(examined: &Examined, home: &Home) -> Result<(), TrustError> {
    change(home, |store| store.set(examined.path.as_path().into(), examined.hash.clone()))
}

/// Trusts a manifest that was just written, as it was written, with the files that it names: whatever is there by
/// now, nothing else is trusted. `files` are by absolute path.
pub(crate) fn trust_written(
    path: &Path,
    written: &[u8],
    files: &BTreeMap<OsText, Vec<u8>>,
    user_home: Option<&Path>,
    home: &Home,
) -> Result<(), ConfigError> {
    let values = Manifest::parse(written, &path.into())?;
    let owner = rustix::process::geteuid().as_raw();
    let manifest = ReadManifest { path: path.to_owned(), content: written.to_vec(), values, owner };
    let known = |path: &Path| Ok(files.get(&OsText::from(path)).cloned());
    let hash = content_of(&manifest, user_home, known)?.hash;
    Ok(change(home, |store| store.set(path.into(), hash))?)
}

/// Forgets a manifest; says whether it was there.
pub fn distrust(path: &Path, home: &Home) -> Result<Standing, TrustError> {
    let path =
        if path.is_dir() { path.join(belljar_spec::manifest::FILE_NAME) } else { path.to_owned() };
    let path = canonical(&path)?;
    let mut standing = Standing::Unknown;
    change(home, |store| {
        let before = store.stored.trusted.len();
        store.stored.trusted.retain(|entry| entry.path != path);
        if store.stored.trusted.len() < before {
            standing = Standing::Trusted;
        }
    })?;
    Ok(standing)
}

/// One change at a time, or two of them would lose one.
fn change(home: &Home, edit: impl FnOnce(&mut Store)) -> Result<(), TrustError> {
    let path = home.path().join(LOCK);
    let io = |errno: rustix::io::Errno| TrustError::Io { path: path.clone(), error: errno.into() };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(io)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(io)?;
    let mut store = Store::open(home)?;
    edit(&mut store);
    store.save()
}

/// The path without links, as the store keeps it.
pub fn canonical(path: &Path) -> Result<OsText, TrustError> {
    match std::fs::canonicalize(path) {
        Ok(path) => Ok(path.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(TrustError::NoManifest(path.to_owned()))
        }
        Err(error) => Err(TrustError::Io { path: path.to_owned(), error }),
    }
}

/// What trust is about: the manifest, and the files in it that say what the run is told or given.
pub(super) struct Content {
    pub(super) hash: String,
    /// The files as they were hashed, by absolute path: a run that lives now could change them
    /// before a second reading.
    pub(super) files: BTreeMap<OsText, Vec<u8>>,
}

pub(super) fn content(
    manifest: &ReadManifest,
    user_home: Option<&Path>,
) -> Result<Content, TrustError> {
    let read = |path: &Path| Ok(read(path, Links::Refuse)?.map(|file| file.content));
    content_of(manifest, user_home, read)
}

/// `read` gives what is in a file, and nothing for one that is not there.
fn content_of(
    manifest: &ReadManifest,
    user_home: Option<&Path>,
    read: impl Fn(&Path) -> Result<Option<Vec<u8>>, ReadError>,
) -> Result<Content, TrustError> {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    add(&manifest.content);
    let mut files = BTreeMap::new();
    let env_files = manifest.values.sandbox.env_file.iter().flat_map(|files| &files.0);
    for file in env_files.chain(&manifest.values.agent.prompt_file) {
        let path = paths::absolute(file.as_path(), manifest.directory(), user_home);
        let name = OsText::from(path.as_path());
        add(name.as_bytes());
        match read(&path)? {
            Some(content) => {
                add(b"there");
                add(&content);
                files.insert(name, content);
            }
            None => add(b"missing"),
        }
    }
    let hash = hasher.finalize().to_hex().to_string();
    Ok(Content { hash, files })
}
