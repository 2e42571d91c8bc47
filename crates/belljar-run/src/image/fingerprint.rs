//! Computes the fingerprint of the inputs of a build, and explains what has changed since the last one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::build_record::BuildRecord;
use super::context::{ContextEntry, ContextKind};

/// A label on each image that Belljar builds.
pub const LABEL_FINGERPRINT: &str = "belljar.fingerprint";
/// The hashes of the parts, as JSON.
pub const LABEL_INPUTS: &str = "belljar.inputs";
/// Separates these hashes from every other use of BLAKE3 here. The number changes with the meaning of the hash.
const CONTEXT: &str = "belljar 2026 inputs of an image, 1";
const PART: usize = 32;

/// Predefined build arguments that change how files are fetched, not which; engines do not record them either.
const NOT_COUNTED: &[&str] = &["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"];

/// The hash of all inputs, and of each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    pub(super) whole: String,
    pub(super) parts: Parts,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Parts {
    pub(super) dockerfile: String,
    pub(super) arguments: String,
    pub(super) context: String,
}

struct Hasher(blake3::Hasher);

impl Hasher {
    fn new(what: &str) -> Self {
        let mut hasher = Self(blake3::Hasher::new_derive_key(CONTEXT));
        hasher.add(what.as_bytes());
        hasher
    }

    /// With its length, so that boundaries are part of the hash.
    fn add(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn end(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }

    fn end_of_part(&self) -> String {
        self.end()[..PART].to_owned()
    }
}

impl Fingerprint {
    pub(super) fn of(
        dockerfile: &[u8],
        arguments: &BTreeMap<String, String>,
        entries: &[ContextEntry],
    ) -> Self {
        let mut file = Hasher::new("dockerfile");
        file.add(dockerfile);
        let mut given = Hasher::new("arguments");
        let counted = |name: &str| !NOT_COUNTED.contains(&name.to_ascii_uppercase().as_str());
        for (name, value) in arguments.iter().filter(|(name, _)| counted(name)) {
            given.add(name.as_bytes());
            given.add(value.as_bytes());
        }
        let mut context = Hasher::new("context");
        for entry in entries {
            context.add(&entry.path);
            context.add(entry_hash(entry).as_bytes());
        }
        let parts = Parts {
            dockerfile: file.end_of_part(),
            arguments: given.end_of_part(),
            context: context.end_of_part(),
        };
        let mut whole = Hasher::new("whole");
        for part in [file.end(), given.end(), context.end()] {
            whole.add(part.as_bytes());
        }
        Self { whole: whole.end(), parts }
    }

    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let parts = serde_json::to_string(&self.parts).unwrap_or_default();
        BTreeMap::from([
            (LABEL_FINGERPRINT.to_owned(), self.whole.clone()),
            (LABEL_INPUTS.to_owned(), parts),
        ])
    }
}

/// The hash of an entry without its path and time.
pub(super) fn entry_hash(entry: &ContextEntry) -> String {
    let mut hasher = Hasher::new("entry");
    hasher.add(&entry.mode.to_le_bytes());
    match &entry.kind {
        ContextKind::Directory => hasher.add(b"directory"),
        ContextKind::File { hash, .. } => {
            hasher.add(b"file");
            hasher.add(hash.as_bytes());
        }
        ContextKind::Link { target } => {
            hasher.add(b"link");
            hasher.add(target);
        }
    }
    hasher.end_of_part()
}

/// Why an image is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuildReason {
    NoImage,
    /// The image of that name was not built by Belljar.
    NotBuiltHere,
    Forced,
    NoCache,
    Dockerfile,
    Arguments,
    /// The changed paths, as far as known.
    Context(Vec<String>),
    /// Another version of Belljar computes the fingerprint differently.
    OtherRules,
}

impl std::fmt::Display for RebuildReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 3;
        f.write_str(match self {
            Self::NoImage => "the image does not exist",
            Self::NotBuiltHere => "the image of that name was not built by belljar",
            Self::Forced => "forced",
            Self::NoCache => "--no-cache was given",
            Self::Dockerfile => "the Dockerfile changed",
            Self::Arguments => "the build arguments changed",
            Self::OtherRules => "another version of belljar built it",
            Self::Context(paths) if paths.is_empty() => "the context changed",
            Self::Context(paths) => {
                write!(f, "the context changed: {}", paths[..paths.len().min(SHOWN)].join(", "))?;
                return match paths.len().checked_sub(SHOWN) {
                    Some(more @ 1..) => write!(f, " and {more} more"),
                    _ => Ok(()),
                };
            }
        })
    }
}

/// Empty if the image was built from exactly these inputs.
pub(super) fn differences(
    now: &Fingerprint,
    labels: &BTreeMap<String, String>,
    before: Option<&BuildRecord>,
    entries: &[ContextEntry],
) -> Vec<RebuildReason> {
    let Some(whole) = labels.get(LABEL_FINGERPRINT) else {
        return vec![RebuildReason::NotBuiltHere];
    };
    if *whole == now.whole {
        return Vec::new();
    }
    let parts = labels.get(LABEL_INPUTS).and_then(|text| serde_json::from_str(text).ok());
    let Some(Parts { dockerfile, arguments, context }) = parts else {
        return vec![RebuildReason::OtherRules];
    };
    let mut why = Vec::new();
    if dockerfile != now.parts.dockerfile {
        why.push(RebuildReason::Dockerfile);
    }
    if arguments != now.parts.arguments {
        why.push(RebuildReason::Arguments);
    }
    if context != now.parts.context {
        why.push(RebuildReason::Context(
            before.map(|build_record| build_record.differences(entries)).unwrap_or_default(),
        ));
    }
    if why.is_empty() {
        why.push(RebuildReason::OtherRules);
    }
    why
}
