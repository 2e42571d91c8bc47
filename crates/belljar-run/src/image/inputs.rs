//! Everything that goes into a build, read.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use rustix::fs::{Mode, OFlags};

use super::archive::{Held, Pieces};
use super::context::{self, Context, Entry, LeftOut};
use super::dockerfile::AGENT_DOCKERFILE;
use super::fingerprint::Fingerprint;
use super::ignore::Ignored;
use super::kept::Kept;
use super::place::{IGNORE_FILE, Place};
use super::{BuildError, name};
use belljar_record::home::Home;

/// The name in the archive of a Dockerfile that is not part of the context.
const OUTSIDE: &str = ".belljar.Dockerfile";

pub(super) struct Inputs {
    pub(super) default_name: String,
    pub(super) dockerfile: Vec<u8>,
    /// Where it is in the archive.
    pub(super) dockerfile_path: String,
    pub(super) fingerprint: Fingerprint,
    pub(super) kept: Kept,
    pub(super) skipped: Vec<(OsText, &'static str)>,
    /// A run could have written something of the context.
    pub(super) others_wrote: bool,
    context: Option<Context>,
    held: Vec<Held>,
}

impl Inputs {
    /// The shipped Dockerfile, which takes no file.
    pub(super) fn of_agent(arguments: &BTreeMap<String, String>) -> Self {
        let content = AGENT_DOCKERFILE.as_bytes().to_vec();
        Self {
            default_name: name::default(Path::new("agent.Dockerfile"), Path::new("/")),
            dockerfile_path: OUTSIDE.to_owned(),
            fingerprint: Fingerprint::of(&content, arguments, &[]),
            kept: Kept::of(&[]),
            skipped: Vec::new(),
            others_wrote: false,
            context: None,
            held: vec![Held { path: OUTSIDE.into(), content: content.clone() }],
            dockerfile: content,
        }
    }

    pub(super) fn read(
        home: &Home,
        place: Place,
        arguments: &BTreeMap<String, String>,
    ) -> Result<Self, BuildError> {
        let ignored = Ignored::parse(place.ignore.as_deref().unwrap_or_default())?;
        let inside = place.dockerfile.strip_prefix(&place.context).ok();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&place.context, flags, Mode::empty())
            .map_err(|errno| BuildError::Io { path: place.context.clone(), error: errno.into() })?;
        let own = std::fs::canonicalize(home.path()).ok();
        let own = own.as_deref().and_then(|own| own.strip_prefix(&place.context).ok());
        if own.is_some_and(|own| own.as_os_str().is_empty()) {
            return Err(context::ContextError::HoldsHome(place.context).into());
        }
        let left_out = LeftOut {
            ignored: &ignored,
            apart: inside.map(|path| path.as_os_str().as_bytes()),
            home: own.map(|own| own.as_os_str().as_bytes()),
        };
        let mut context = context::read(root, &left_out)?;
        let held = held(&place, inside, &context.entries)?;
        let dockerfile_path = held.first().map(|first| first.path.clone()).unwrap_or_default();
        let dockerfile_path = String::from_utf8(dockerfile_path)
            .map_err(|_| BuildError::OddName(place.dockerfile.clone()))?;
        Ok(Self {
            default_name: name::default(&place.dockerfile, &place.context),
            fingerprint: Fingerprint::of(&place.content, arguments, &context.entries),
            kept: Kept::of(&context.entries),
            skipped: std::mem::take(&mut context.skipped),
            others_wrote: place.others_wrote,
            dockerfile: place.content,
            dockerfile_path,
            context: Some(context),
            held,
        })
    }

    pub(super) fn entries(&self) -> &[Entry] {
        self.context.as_ref().map(|context| context.entries.as_slice()).unwrap_or_default()
    }

    pub(super) fn archive(self) -> Pieces {
        Pieces::new(self.context, self.held)
    }
}

/// What is sent as it was read: first the Dockerfile, then what tells the engine what not to copy.
fn held(place: &Place, inside: Option<&Path>, entries: &[Entry]) -> Result<Vec<Held>, BuildError> {
    let content = place.content.clone();
    if let Some(path) = inside {
        let mut held = vec![Held { path: path.as_os_str().as_bytes().to_vec(), content }];
        if let Some(ignore) = &place.ignore {
            held.push(Held { path: IGNORE_FILE.into(), content: ignore.clone() });
        }
        return Ok(held);
    }
    if entries.iter().any(|entry| entry.path == OUTSIDE.as_bytes()) {
        return Err(BuildError::NameTaken(PathBuf::from(OUTSIDE)));
    }
    // The build must not find what only this archive has.
    let mut ignore = place.ignore.clone().unwrap_or_default();
    ignore.extend_from_slice(format!("\n{OUTSIDE}\n").as_bytes());
    if place.ignore.is_none() {
        ignore.extend_from_slice(format!("{IGNORE_FILE}\n").as_bytes());
    }
    Ok(vec![
        Held { path: OUTSIDE.into(), content },
        Held { path: IGNORE_FILE.into(), content: ignore },
    ])
}
