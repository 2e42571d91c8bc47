//! Reads all inputs of a build: Dockerfile, arguments, ignore file and context.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use belljar_tree::{Dir, FinalLink};

use super::build_files::{BuildFiles, IGNORE_FILE};
use super::build_record::BuildRecord;
use super::context::{self, Context, ContextEntry, Exclusions};
use super::context_archive::{ContextArchive, PreloadedFile};
use super::dockerfile::AGENT_DOCKERFILE;
use super::fingerprint::Fingerprint;
use super::ignore::IgnoreFile;
use super::{BuildError, default_name};
use belljar_record::home::Home;

/// The archive path of a Dockerfile that is outside the context.
const EXTERNAL_DOCKERFILE: &str = ".belljar.Dockerfile";

pub(super) struct Inputs {
    pub(super) default_name: String,
    pub(super) dockerfile: Vec<u8>,
    /// Its path in the archive.
    pub(super) dockerfile_path: String,
    pub(super) fingerprint: Fingerprint,
    pub(super) build_record: BuildRecord,
    pub(super) skipped: Vec<(OsText, &'static str)>,
    /// Runs could have written files of the context.
    pub(super) written_by_runs: bool,
    context: Option<Context>,
    preloaded: Vec<PreloadedFile>,
}

impl Inputs {
    /// The shipped Dockerfile, which has no context.
    pub(super) fn of_agent(arguments: &BTreeMap<String, String>) -> Self {
        let content = AGENT_DOCKERFILE.as_bytes().to_vec();
        Self {
            default_name: default_name::default_name(Path::new("agent.Dockerfile"), Path::new("/")),
            dockerfile_path: EXTERNAL_DOCKERFILE.to_owned(),
            fingerprint: Fingerprint::of(&content, arguments, &[]),
            build_record: BuildRecord::of(&[]),
            skipped: Vec::new(),
            written_by_runs: false,
            context: None,
            preloaded: vec![PreloadedFile {
                path: EXTERNAL_DOCKERFILE.into(),
                content: content.clone(),
            }],
            dockerfile: content,
        }
    }

    pub(super) fn read(
        home: &Home,
        build_files: BuildFiles,
        arguments: &BTreeMap<String, String>,
    ) -> Result<Self, BuildError> {
        let ignored = IgnoreFile::parse(build_files.ignore.as_deref().unwrap_or_default())?;
        let inside = build_files.dockerfile.strip_prefix(&build_files.context).ok();
        let root = Dir::open(&build_files.context, FinalLink::Follow).map_err(|error| {
            BuildError::Io { path: build_files.context.clone(), error: error.errno().into() }
        })?;
        let home_in_context = std::fs::canonicalize(home.path()).ok();
        let home_in_context = home_in_context
            .as_deref()
            .and_then(|home_in_context| home_in_context.strip_prefix(&build_files.context).ok());
        if home_in_context.is_some_and(|home_in_context| home_in_context.as_os_str().is_empty()) {
            return Err(context::ContextError::HoldsHome(build_files.context).into());
        }
        let exclusions = Exclusions {
            ignored: &ignored,
            dockerfile: inside.map(|path| path.as_os_str().as_bytes()),
            home: home_in_context.map(|home_in_context| home_in_context.as_os_str().as_bytes()),
        };
        let mut context = context::read(root, &exclusions)?;
        let preloaded = preloaded(&build_files, inside, &context.entries)?;
        let dockerfile_path = preloaded.first().map(|first| first.path.clone()).unwrap_or_default();
        let dockerfile_path = String::from_utf8(dockerfile_path)
            .map_err(|_| BuildError::NameNotUtf8(build_files.dockerfile.clone()))?;
        Ok(Self {
            default_name: default_name::default_name(&build_files.dockerfile, &build_files.context),
            fingerprint: Fingerprint::of(&build_files.content, arguments, &context.entries),
            build_record: BuildRecord::of(&context.entries),
            skipped: std::mem::take(&mut context.skipped),
            written_by_runs: build_files.written_by_runs,
            dockerfile: build_files.content,
            dockerfile_path,
            context: Some(context),
            preloaded,
        })
    }

    pub(super) fn entries(&self) -> &[ContextEntry] {
        self.context.as_ref().map(|context| context.entries.as_slice()).unwrap_or_default()
    }

    pub(super) fn archive(self) -> ContextArchive {
        ContextArchive::new(self.context, self.preloaded)
    }
}

/// Files that are sent as they were read: the Dockerfile first, then the ignore file.
fn preloaded(
    build_files: &BuildFiles,
    inside: Option<&Path>,
    entries: &[ContextEntry],
) -> Result<Vec<PreloadedFile>, BuildError> {
    let content = build_files.content.clone();
    if let Some(path) = inside {
        let mut preloaded =
            vec![PreloadedFile { path: path.as_os_str().as_bytes().to_vec(), content }];
        if let Some(ignore) = &build_files.ignore {
            preloaded.push(PreloadedFile { path: IGNORE_FILE.into(), content: ignore.clone() });
        }
        return Ok(preloaded);
    }
    if entries.iter().any(|entry| entry.path == EXTERNAL_DOCKERFILE.as_bytes()) {
        return Err(BuildError::NameTaken(PathBuf::from(EXTERNAL_DOCKERFILE)));
    }
    // The build must not copy files that exist only in this archive.
    let mut ignore = build_files.ignore.clone().unwrap_or_default();
    ignore.extend_from_slice(format!("\n{EXTERNAL_DOCKERFILE}\n").as_bytes());
    if build_files.ignore.is_none() {
        ignore.extend_from_slice(format!("{IGNORE_FILE}\n").as_bytes());
    }
    Ok(vec![
        PreloadedFile { path: EXTERNAL_DOCKERFILE.into(), content },
        PreloadedFile { path: IGNORE_FILE.into(), content: ignore },
    ])
}
