//! Copies files and trees into or out of a sandbox.
//!
//! `belljar_workspace::transfer` packs and unpacks the host's side, where data from a sandbox is hostile.

use std::ffi::OsString;
use std::path::PathBuf;

use belljar_spec::wire::{ReadOnlyFiles, UnpackModes, Work};
use belljar_spec::{OsText, WritableTree};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::error::Error;
use super::exec::Exec;
use super::output::Collected;
use super::running::Running;
use super::task::Source;
pub use belljar_workspace::transfer::MissingParents;
pub(crate) use belljar_workspace::transfer::{
    CopyError, CopyLimits, CopyReport, CopyTarget, Receiver, Sender,
};

/// What is copied into a sandbox.
#[derive(Debug)]
pub enum CopySource {
    Path(PathBuf),
    /// The rest of an open file, which becomes one file inside.
    File {
        file: std::fs::File,
        left: u64,
    },
}

/// What happens when the target of a copy is a directory that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExistingDirectory {
    /// A tree is merged into it, and a file is refused.
    #[default]
    Target,
    /// The copy goes below it, under the source's name.
    Parent,
}

/// How a copy treats what is at its target, and what is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyRules {
    pub existing: ExistingDirectory,
    pub parents: MissingParents,
    pub read_only: ReadOnlyFiles,
}

/// Where on the host a copy goes.
#[derive(Clone, Debug, Default)]
pub struct HostTarget {
    pub path: PathBuf,
    /// Trees in which no link is followed, since a run can have planted it.
    pub run_writable: Vec<WritableTree>,
    pub parents: MissingParents,
}

impl From<PathBuf> for HostTarget {
    /// All links of the path are followed.
    fn from(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }
}

/// Pieces of a copy that wait between the connection and the thread that reads or writes the files.
const PIECES_AHEAD: usize = 2;
/// How many bytes of an error message from inside are shown.
const MAX_STDERR: usize = 2048;

/// Copies the tree at `inside` to `target`, with docker's rules for the target.
pub(super) async fn copy_out(
    pack: impl FnOnce(Work) -> Exec,
    inside: OsText,
    target: HostTarget,
    limits: CopyLimits,
    read_only: ReadOnlyFiles,
) -> Result<CopyReport, Error> {
    let name = last_name(&inside);
    let begun = move || {
        let HostTarget { path, run_writable, parents } = target;
        let target = CopyTarget::open(&path, name.as_deref(), &run_writable, parents)?;
        let receiver = Receiver::begin_at(target, limits)?;
        match read_only {
            ReadOnlyFiles::Replace => Ok(receiver),
            ReadOnlyFiles::Refuse => receiver.refuse_read_only(),
        }
    };
    let mut receiver = blocking(begun).await??;
    let mut running = pack(Work::Pack { path: inside.clone() }).spawn().await?;
    running.widen_stdout();
    let (pieces, mut arrived) = mpsc::channel::<Vec<u8>>(PIECES_AHEAD);
    // The receiver belongs to this task, so that a cancelled copy drops it there, which removes its files.
    let written = tokio::task::spawn_blocking(move || {
        while let Some(bytes) = arrived.blocking_recv() {
            receiver.feed(&bytes)?;
        }
        Ok::<_, CopyError>(receiver)
    });
    let mut stderr = Collected::new(MAX_STDERR);
    while let Some(chunk) = running.next().await {
        match chunk.source {
            Source::Stdout | Source::Terminal => {
                // All that has arrived goes in one step: each is a change of threads.
                let mut bytes = chunk.bytes;
                running.append_arrived(Source::Stdout, &mut bytes);
                if pieces.send(bytes).await.is_err() {
                    break; // it could not be written
                }
            }
            Source::Stderr => stderr.push(&chunk.bytes),
        }
    }
    drop(pieces);
    let receiver = written.await.map_err(not_joined)??;
    check_exit(&mut running, inside, stderr).await?;
    Ok(blocking(move || receiver.finish()).await??)
}

/// Copies the source to `inside`; see [`super::Client::copy_in_by`].
pub(super) async fn copy_in(
    unpack: impl FnOnce(Work) -> Exec,
    source: CopySource,
    inside: OsText,
    read_only: ReadOnlyFiles,
) -> Result<CopyReport, Error> {
    let mut sender = match source {
        CopySource::Path(source) => blocking(move || Sender::begin(&source)).await??,
        CopySource::File { file, left } => Sender::of_file(file, left),
    };
    let work = Work::Unpack { path: inside.clone(), modes: UnpackModes::Umask, read_only };
    let exec = unpack(work).stdin_stream();
    let mut running = exec.spawn().await?;
    let mut input = running.stdin().ok_or(Error::lost("it takes no input"))?;
    let (pieces, mut read) = mpsc::channel::<Vec<u8>>(PIECES_AHEAD);
    let filled = tokio::task::spawn_blocking(move || {
        loop {
            let mut piece = Vec::new();
            sender.fill(&mut piece)?;
            // Without a receiver the sandbox has refused the input, or the copy was cancelled.
            if piece.is_empty() || pieces.blocking_send(piece).is_err() {
                return Ok::<_, CopyError>(sender);
            }
        }
    });
    let sent = async {
        while let Some(piece) = read.recv().await {
            // If the sandbox refuses the input, its exit reports the reason.
            if input.write_all(&piece).await.is_err() {
                break;
            }
        }
        drop((read, input));
        Ok::<_, Error>(filled.await.map_err(not_joined)??)
    };
    let mut stderr = Collected::new(MAX_STDERR);
    let printed = async {
        while let Some(chunk) = running.next().await {
            if chunk.source == Source::Stderr {
                stderr.push(&chunk.bytes);
            }
        }
    };
    let (sender, ()) = tokio::join!(sent, printed);
    let sender = sender?;
    check_exit(&mut running, inside, stderr).await?;
    Ok(sender.report())
}

async fn check_exit(
    running: &mut Running,
    path: OsText,
    stderr: Collected,
) -> Result<(), CopyError> {
    match failure(running, stderr).await {
        Ok(None) => Ok(()),
        Ok(Some(why)) => Err(CopyError::Inside { path, why }),
        Err(error) => Err(CopyError::Inside { path, why: error.to_string() }),
    }
}

/// Waits for the end of the process inside; why it failed, if it did.
pub(super) async fn failure(
    running: &mut Running,
    stderr: Collected,
) -> Result<Option<String>, Error> {
    let exit = running.wait().await?;
    if exit.code == Some(0) {
        return Ok(None);
    }
    let stderr = super::output::output(stderr, Collected::new(0), exit).stdout;
    let stderr = belljar_spec::text::escape(stderr.trim_ascii());
    Ok(Some(match stderr.is_empty() {
        true => format!("exit code {}", exit.process_code()),
        false => stderr,
    }))
}

/// Passes on the standard output, and collects the errors. Ends early after an error of `feed`.
pub(super) async fn receive_stdout<E: Into<Error>>(
    running: &mut Running,
    mut feed: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<Collected, Error> {
    let mut stderr = Collected::new(MAX_STDERR);
    while let Some(chunk) = running.next().await {
        match chunk.source {
            Source::Stdout | Source::Terminal => feed(&chunk.bytes).map_err(Into::into)?,
            Source::Stderr => stderr.push(&chunk.bytes),
        }
    }
    Ok(stderr)
}

fn not_joined(error: tokio::task::JoinError) -> Error {
    Error::io("copy")(std::io::Error::other(error))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(not_joined)
}

fn last_name(path: &OsText) -> Option<OsString> {
    path.as_path().file_name().map(ToOwned::to_owned)
}

/// With a slash at its end `inside` is a directory, and the source keeps its name below it.
pub(super) fn target_inside(source: &CopySource, inside: OsText) -> Result<OsText, CopyError> {
    if !inside.as_bytes().ends_with(b"/") {
        return Ok(inside);
    }
    below(source, &inside)
}

/// The place of the source in a directory.
pub(super) fn below(source: &CopySource, directory: &OsText) -> Result<OsText, CopyError> {
    let name = match source {
        CopySource::Path(source) => source.file_name(),
        CopySource::File { .. } => None,
    };
    let no_name = || CopyError::NoName {
        path: match source {
            CopySource::Path(source) => source.as_path().into(),
            CopySource::File { .. } => directory.clone(),
        },
    };
    let name = name.ok_or_else(no_name)?;
    Ok(OsText::from(directory.as_path().join(name)))
}
