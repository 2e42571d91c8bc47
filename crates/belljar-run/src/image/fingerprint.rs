//! What a build is made from, in a few numbers that the image carries, and what differs when they do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::context::{Entry, Kind};
use super::kept::Kept;

/// On each image that is built here.
pub const LABEL_FINGERPRINT: &str = "belljar.fingerprint";
/// The same by parts, as JSON.
pub const LABEL_INPUTS: &str = "belljar.inputs";
/// Keeps these hashes apart from every other use of BLAKE3 here; another number for another meaning.
const CONTEXT: &str = "belljar 2026 inputs of an image, 1";
const PART: usize = 32;

/// Arguments that every build has, which change how something is fetched and not what; engines leave them
/// out of an image's history too.
const NOT_COUNTED: &[&str] = &["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"];

/// Of all inputs, and of each kind.
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

    /// With its length, so that two pieces are not one.
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
        entries: &[Entry],
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
            context.add(of_entry(entry).as_bytes());
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

/// Everything of an entry but its path and its time.
pub(super) fn of_entry(entry: &Entry) -> String {
    let mut hasher = Hasher::new("entry");
    hasher.add(&entry.mode.to_le_bytes());
    match &entry.kind {
        Kind::Directory => hasher.add(b"directory"),
        Kind::File { hash, .. } => {
            hasher.add(b"file");
            hasher.add(hash.as_bytes());
        }
        Kind::Link { target } => {
            hasher.add(b"link");
            hasher.add(target);
        }
    }
    hasher.end_of_part()
}

/// Why an image is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    NoImage,
    /// Somebody else made the image of that name.
    NotBuiltHere,
    Forced,
    NoCache,
    Dockerfile,
    Arguments,
    /// These paths, as far as that is known.
    Context(Vec<String>),
    /// Another belljar counted otherwise.
    OtherRules,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 3;
        f.write_str(match self {
            Self::NoImage => "there is no such image",
            Self::NotBuiltHere => "the image of that name was not built by belljar",
            Self::Forced => "forced",
            Self::NoCache => "asked for without the cache",
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

/// Nothing if the image is from exactly these inputs.
pub(super) fn differences(
    now: &Fingerprint,
    labels: &BTreeMap<String, String>,
    before: Option<&Kept>,
    entries: &[Entry],
) -> Vec<Why> {
    let Some(whole) = labels.get(LABEL_FINGERPRINT) else { return vec![Why::NotBuiltHere] };
    if *whole == now.whole {
        return Vec::new();
    }
    let parts = labels.get(LABEL_INPUTS).and_then(|text| serde_json::from_str(text).ok());
    let Some(Parts { dockerfile, arguments, context }) = parts else {
        return vec![Why::OtherRules];
    };
    let mut why = Vec::new();
    if dockerfile != now.parts.dockerfile {
        why.push(Why::Dockerfile);
    }
    if arguments != now.parts.arguments {
        why.push(Why::Arguments);
    }
    if context != now.parts.context {
        why.push(Why::Context(before.map(|kept| kept.differences(entries)).unwrap_or_default()));
    }
    if why.is_empty() {
        why.push(Why::OtherRules);
    }
    why
}
