//! Stores which manifests and files the user trusts, by path and content hash: a changed file is not trusted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use belljar_spec::manifest::RootfsSetting;
use belljar_spec::{
    GitDirectory, Located, Manifest, OsText, Purpose, RunId, Widening, WritableTree, paths,
};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::files::{DecisionFile, DecisionReader, Links, ReadError, read};
use super::git_link;
use super::manifest::{ManifestCheck, ReadManifest, locate};
use super::{ConfigError, ConfigFiles, SYSTEM_DIRECTORY, host, lower_layers, open_reader};
use belljar_record::home::Home;
use belljar_record::writable_trees::{self, Cleared};

const FILE: &str = "trust.json";
const LOCK: &str = "trust.lock";
const VERSION: u32 = 1;
/// Separates these hashes from every other use of BLAKE3 here.
const CONTEXT: &str = "belljar 2026 content of a trusted manifest";

/// The trust state of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustState {
    Trusted,
    /// Trusted earlier, with other content.
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
        "{path} is damaged ({why}); remove it, and trust your manifests again",
        path = .path.display()
    )]
    Broken { path: PathBuf, why: String },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the manifest {path} does not exist", path = .0.display())]
    NoManifest(PathBuf),
    #[error("the file {path} does not exist", path = .0.display())]
    NoFile(PathBuf),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct TrustFile {
    v: u32,
    trusted: Vec<TrustEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TrustEntry {
    path: OsText,
    hash: String,
}

/// The trusted manifests of a home.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    stored: TrustFile,
}

impl Store {
    pub fn open(home: &Home) -> Result<Self, TrustError> {
        let path = home.path().join(FILE);
        let stored = match read(&path, Links::Refuse)? {
            None => TrustFile { v: VERSION, trusted: Vec::new() },
            Some(file) => {
                let broken = |why: String| TrustError::Broken { path: path.clone(), why };
                let stored: TrustFile = serde_json::from_slice(&file.content)
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
    pub fn standing(&self, path: &OsText, hash: &str) -> TrustState {
        match self.stored.trusted.iter().find(|entry| entry.path == *path) {
            Some(entry) if entry.hash == hash => TrustState::Trusted,
            Some(_) => TrustState::Changed,
            None => TrustState::Unknown,
        }
    }

    /// Of the content that is trusted at a path.
    pub(super) fn hash_of(&self, path: &OsText) -> Option<&str> {
        let entry = self.stored.trusted.iter().find(|entry| entry.path == *path);
        entry.map(|entry| entry.hash.as_str())
    }

    fn set(&mut self, path: OsText, hash: String) {
        self.stored.trusted.retain(|entry| entry.path != path);
        self.stored.trusted.push(TrustEntry { path, hash });
    }

    /// Atomic.
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

/// A manifest or file that was examined for `belljar trust`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    pub path: PathBuf,
    pub hash: String,
    pub standing: TrustState,
    pub widenings: Vec<Widening>,
}

/// What a manifest asks for, and whether it is trusted. `path` is the file or its directory.
pub fn examine(
    path: &Path,
    env: &BTreeMap<OsString, OsString>,
    home: &Home,
) -> Result<Examined, ConfigError> {
    let path =
        if path.is_dir() { path.join(belljar_spec::manifest::FILE_NAME) } else { path.to_owned() };
    let path = canonical(&path)?;
    let missing = || TrustError::NoManifest(path.as_path().to_owned());
    let manifest = ReadManifest::read(path.as_path().to_owned())?.ok_or_else(missing)?;
    let reader = open_reader(home)?;
    let user_home = host::user_home(env);
    let cwd = manifest.directory().to_owned();
    let layers =
        lower_layers(env, Path::new(SYSTEM_DIRECTORY), ConfigFiles::Read, &cwd, &reader, home)?;
    let lower = belljar_spec::Settings::merge(layers, None, user_home.as_deref()).values;
    let check = ManifestCheck {
        lower: &lower,
        higher: &Manifest::default(),
        purpose: Purpose::of_agent(manifest.values.agent.kind.or(lower.agent.kind)),
        user_home: user_home.as_deref(),
        reader: &reader,
    };
    let widenings = check.widenings(&manifest);
    let hash = content(&manifest, user_home.as_deref(), &reader)?.hash;
    let standing = Store::open(home)?.standing(&path, &hash);
    Ok(Examined { path: path.as_path().to_owned(), hash, standing, widenings })
}

/// The kind of file that `belljar trust` was called with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Manifest,
    Dockerfile,
    /// An env file, a prompt or a configuration file.
    PlainFile,
}

/// By its name, or else by its content.
pub fn kind(path: &Path) -> Kind {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_dockerfile = ["Dockerfile", "Containerfile"].iter().any(|usual| name.starts_with(usual));
    if path.is_dir() || path.extension().is_some_and(|extension| extension == "toml") {
        return Kind::Manifest;
    }
    if is_dockerfile || name.to_ascii_lowercase().ends_with(".dockerfile") {
        return Kind::Dockerfile;
    }
    let content = read(path, Links::Follow).ok().flatten().map(|file| file.content);
    let parsed = content.and_then(|content| Manifest::parse(&content, &path.into()).ok());
    match parsed {
        Some(manifest) if manifest != Manifest::default() => Kind::Manifest,
        _ => Kind::PlainFile,
    }
}

/// The same for a file named on the command line, such as an env file.
pub fn examine_file(path: &Path, home: &Home) -> Result<Examined, ConfigError> {
    let reader = open_reader(home)?;
    let absolute = std::path::absolute(path)
        .map_err(|error| TrustError::Io { path: path.to_owned(), error })?;
    let file = reader.read(&absolute, None)?.ok_or_else(|| TrustError::NoFile(path.to_owned()))?;
    let (hash, what) = match file.path.file_name() {
        Some(name) if name == git_link::LINK => {
            let git_link::ExaminedLink { hash, what } = git_link::examine(&file, &reader)?;
            (hash, what)
        }
        _ => (hash_of_file(&file.content), "its content is passed to the run".to_owned()),
    };
    let standing = Store::open(home)?.standing(&file.path.as_path().into(), &hash);
    let key = OsText::from(file.path.as_path()).to_string();
    Ok(Examined { path: file.path, hash, standing, widenings: vec![Widening { key, what }] })
}

/// The content of a file that affects a run. A file in a tree that a run could write to must be trusted.
pub(crate) fn read_trusted(
    path: &Path,
    distrusted: Option<&Path>,
    reader: &DecisionReader,
    home: &Home,
) -> Result<Option<Vec<u8>>, ConfigError> {
    let Some(file) = reader.read(path, distrusted)? else { return Ok(None) };
    let Some(tree) = file.written_in else { return Ok(Some(file.content)) };
    let hash = hash_of_file(&file.content);
    match Store::open(home)?.standing(&file.path.as_path().into(), &hash) {
        TrustState::Trusted => Ok(Some(file.content)),
        standing => Err(ConfigError::UntrustedFile { path: file.path, tree, standing }),
    }
}

pub(super) fn hash_of_file(content: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(&(content.len() as u64).to_le_bytes());
    hasher.update(content);
    hasher.finalize().to_hex().to_string()
}

/// Trusts exactly what was examined: content that changed since stays untrusted.
pub fn trust(examined: &Examined, home: &Home) -> Result<(), TrustError> {
    change(home, |store| store.set(examined.path.as_path().into(), examined.hash.clone()))
}

/// Trusts a manifest that was just written, together with the files that it names. The hash is of the written bytes,
/// not of what is on disk by now. `files` are by absolute path.
pub(crate) fn trust_written(
    path: &Path,
    written: &[u8],
    files: &BTreeMap<OsText, Vec<u8>>,
    user_home: Option<&Path>,
    home: &Home,
) -> Result<(), ConfigError> {
    let values = Manifest::parse(written, &path.into())?;
    let owner = rustix::process::geteuid().as_raw();
    let content = written.to_vec();
    let manifest = ReadManifest { path: path.to_owned(), content, values, owner, written_in: None };
    let known = |path: &Path| Ok(files.get(&OsText::from(path)).cloned());
    let reader = open_reader(home)?;
    let hash = content_of(&manifest, user_home, &reader, known)?.hash;
    Ok(change(home, |store| store.set(path.into(), hash))?)
}

/// Keeps in mind which repository the workspace's `.git` file names, before a run can write that file: from then on
/// another content is not trusted. Only for a link that is still what it was, and the operator's own: in a tree that a
/// run could write, the operator's word is asked for, and may have been taken back since this run was first started.
pub(crate) fn trust_git_link(
    git: &GitDirectory,
    run_writable: &[WritableTree],
    home: &Home,
) -> Result<(), TrustError> {
    let reader = DecisionReader::new(run_writable.to_vec());
    let is_same = |link: &DecisionFile| {
        let hash = git_link::hash_of_link(&link.content, Some(git.path.as_path()));
        link.written_in.is_none() && link.path == git.link.as_path() && hash == git.link_hash
    };
    let is_operators = reader.read(git.link.as_path(), None)?.is_some_and(|link| is_same(&link));
    let is_known =
        || Store::open(home).map(|store| store.hash_of(&git.link) == Some(&*git.link_hash));
    if !is_operators || is_known()? {
        return Ok(());
    }
    change(home, |store| store.set(git.link.clone(), git.link_hash.clone()))
}

/// Removes a manifest from the store; returns its state before.
pub fn distrust(path: &Path, home: &Home) -> Result<TrustState, TrustError> {
    let path =
        if path.is_dir() { path.join(belljar_spec::manifest::FILE_NAME) } else { path.to_owned() };
    let path = canonical(&path)?;
    let mut standing = TrustState::Unknown;
    change(home, |store| {
        let before = store.stored.trusted.len();
        store.stored.trusted.retain(|entry| entry.path != path);
        if store.stored.trusted.len() < before {
            standing = TrustState::Trusted;
        }
    })?;
    Ok(standing)
}

/// Takes the lock, so that concurrent changes are not lost.
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

/// The path with links resolved, as in the store.
pub fn canonical(path: &Path) -> Result<OsText, TrustError> {
    match std::fs::canonicalize(path) {
        Ok(path) => Ok(path.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(TrustError::NoManifest(path.to_owned()))
        }
        Err(error) => Err(TrustError::Io { path: path.to_owned(), error }),
    }
}

/// Why a tree cannot be trusted again.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("cannot read {path}: {error}", path = .path.display())]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("run {run} is live and can write there; stop it first: belljar stop {run}")]
    Live { run: RunId },
    #[error("run {run} is starting, and it is not known yet where it can write; try again")]
    Starting { run: RunId },
    #[error(
        "{path} is inside {tree}, which a run could write to; check that tree, then: belljar trust --tree {tree}",
        path = OsText::from(.path.as_path()), tree = OsText::from(.tree.as_path())
    )]
    InsideTree { path: PathBuf, tree: PathBuf },
}

impl From<io::Error> for TreeError {
    fn from(error: io::Error) -> Self {
        Self::Io { path: PathBuf::from("writable-trees"), error }
    }
}

/// Whether a run could have written to the tree before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeBefore {
    Writable,
    /// No run could write to it, so there was nothing to do.
    Clean,
}

/// Marks a tree as checked by the user: links in it are followed again, and its files are used. Does not trust the
/// manifest in it.
pub fn trust_tree(tree: &Path, home: &Home) -> Result<TreeBefore, TreeError> {
    let io = |error| TreeError::Io { path: tree.to_owned(), error };
    if !std::fs::metadata(tree).map_err(io)?.is_dir() {
        return Err(io(io::ErrorKind::NotADirectory.into()));
    }
    match writable_trees::clear(home, tree, |real| refuse_live(home, real))? {
        Cleared::Trees(_) => Ok(TreeBefore::Writable),
        Cleared::NotKnown => Ok(TreeBefore::Clean),
        Cleared::Within(above) => Err(TreeError::InsideTree { path: tree.to_owned(), tree: above }),
    }
}

/// Fails if a live run can write to the tree, to a part of it or to a parent.
fn refuse_live(home: &Home, tree: &Path) -> Result<(), TreeError> {
    let live = belljar_record::store::live_ids(home)?;
    for run in live {
        if !matches!(
            belljar_record::store::life::of(home, &run),
            belljar_record::store::Life::Live(_)
        ) {
            continue;
        }
        let written = belljar_record::run_json::written_trees(&home.run_dir(&run));
        let Some(written) = written else { return Err(TreeError::Starting { run }) };
        let is_below = |path: &Path, above: &Path| {
            path.starts_with(above) || writable_trees::lies_in(path, above) // also by another path
        };
        if written.iter().any(|other| is_below(other, tree) || is_below(tree, other)) {
            return Err(TreeError::Live { run });
        }
    }
    Ok(())
}

/// What trust covers: the manifest, and the env and prompt files that it names.
pub(super) struct TrustedContent {
    pub(super) hash: String,
    /// The files as they were hashed, by absolute path: a live run could change them before they are read again.
    pub(super) files: BTreeMap<OsText, Vec<u8>>,
}

pub(super) fn content(
    manifest: &ReadManifest,
    user_home: Option<&Path>,
    reader: &DecisionReader,
) -> Result<TrustedContent, TrustError> {
    let directory = manifest.real_directory();
    let read = |path: &Path| {
        let file = reader.read(path, Some(&directory))?;
        Ok(file.map(|file| file.content))
    };
    content_of(manifest, user_home, reader, read)
}

/// `read` returns the content of a file, or `None` if it does not exist.
fn content_of(
    manifest: &ReadManifest,
    user_home: Option<&Path>,
    reader: &DecisionReader,
    read: impl Fn(&Path) -> Result<Option<Vec<u8>>, ReadError>,
) -> Result<TrustedContent, TrustError> {
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
    for (link, to) in links(manifest, user_home, reader) {
        add(b"link");
        add(link.as_os_str().as_encoded_bytes());
        add(to.as_os_str().as_encoded_bytes());
    }
    let hash = hasher.finalize().to_hex().to_string();
    Ok(TrustedContent { hash, files })
}

/// Links in the manifest's tree on the paths of its sources, with their targets. They are part of what is trusted: a
/// link with another target makes the manifest untrusted.
fn links(
    manifest: &ReadManifest,
    user_home: Option<&Path>,
    reader: &DecisionReader,
) -> Vec<(PathBuf, PathBuf)> {
    let trees = reader.trees_and(Some(&manifest.real_directory()));
    let sandbox = &manifest.values.sandbox;
    let rootfs = match &sandbox.rootfs {
        Some(RootfsSetting::Directory(path)) => Some(path),
        Some(RootfsSetting::Host) | None => None,
    };
    let mounts = sandbox.mounts.iter().flat_map(|mounts| &mounts.0).map(|mount| &mount.source);
    let tools = sandbox.tools.iter().flat_map(|tools| &tools.0);
    let secrets = manifest.values.secret.iter().flat_map(|secrets| &secrets.0);
    let sources = sandbox.workspace.path.iter().chain(rootfs).chain(mounts).chain(tools);
    let sources = sources.chain(secrets.filter_map(|secret| secret.file.as_ref()));
    let mut links = Vec::new();
    for source in sources {
        let path = paths::absolute(source.as_path(), manifest.directory(), user_home);
        if let Located::ByLink { link, to } = locate(&path, &trees) {
            links.push((link, to.unwrap_or_default()));
        }
    }
    links
}
