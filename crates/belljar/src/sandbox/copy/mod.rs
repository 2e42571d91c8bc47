//! Copies files and trees into or out of a sandbox.
//!
//! Data from a sandbox is hostile: [`receive`] writes it into a new directory next to the target, with
//! descriptors only, and moves it into place when it is complete. [`send`] reads the host's side
//! without following links.

pub(crate) mod receive;
pub(crate) mod send;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use belljar_spec::wire::Work;
use belljar_spec::wire::archive::ArchiveError;
use tokio::io::AsyncWriteExt;

use super::error::Error;
use super::exec::Exec;
use super::output::Collected;
use super::running::Running;
use super::task::Source;
use receive::Receiver;
use send::Sender;

/// How many skipped entries are named.
pub(crate) const MAX_LISTED: usize = 1000;
/// How many bytes of an error message from inside are shown.
const MAX_STDERR: usize = 2048;

/// The limits of a copy, checked against the announced sizes before anything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLimits {
    pub bytes: u64,
    pub entries: u64,
}

impl Default for CopyLimits {
    fn default() -> Self {
        Self { bytes: 10 << 30, entries: 200_000 }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    pub files: u64,
    pub bytes: u64,
    /// The first thousand entries that were skipped, and why.
    pub skipped: Vec<(OsText, String)>,
    /// How many more were skipped.
    pub unlisted: u64,
}

impl CopyReport {
    fn skip(&mut self, path: &[u8], why: String) {
        if self.skipped.len() < MAX_LISTED {
            self.skipped.push((OsText::from_bytes(path.to_vec()), why));
        } else {
            self.unlisted += 1;
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("the sandbox sent an invalid archive: {0}")]
    Archive(#[from] ArchiveError),
    #[error("the sandbox sent an invalid archive: {path}: {why}")]
    Entry { path: OsText, why: &'static str },
    #[error("the copy is incomplete: it ended too early")]
    Unfinished,
    #[error("the copy would be larger than {limit} bytes; copy less, or raise CopyLimits")]
    TooLarge { limit: u64 },
    #[error("the copy has more than {limit} entries; copy less, or raise CopyLimits")]
    TooMany { limit: u64 },
    #[error("{path} exists and is a directory; name another target, or remove it")]
    DirectoryInTheWay { path: OsText },
    #[error("{path} has no file name; add one to the target")]
    NoName { path: OsText },
    #[error("nothing was copied: {why}")]
    Nothing { why: String },
    #[error("{path} changed while it was copied; try again")]
    Changed { path: OsText },
    #[error("the sandbox could not copy {path}: {why}")]
    Inside { path: OsText, why: String },
    #[error("cannot {what} {path}: {error}")]
    Io {
        what: &'static str,
        path: OsText,
        #[source]
        error: std::io::Error,
    },
}

/// Copies the tree at `inside` to `target`, with docker's rules for the target.
pub(super) async fn copy_out(
    pack: impl FnOnce(Work) -> Exec,
    inside: OsText,
    target: PathBuf,
    limits: CopyLimits,
) -> Result<CopyReport, Error> {
    let name = last_name(&inside);
    let begun = move || Receiver::begin(&target, name.as_deref(), limits);
    let mut receiver = blocking(begun).await??;
    let mut running = pack(Work::Pack { path: inside.clone() }).spawn().await?;
    let mut stderr = Collected::new(MAX_STDERR);
    let mut received = Ok(());
    while let Some(chunk) = running.next().await {
        match chunk.source {
            Source::Stdout | Source::Terminal => {
                // The receiver moves into the task, so that a cancelled copy drops it there, which removes
                // its files.
                (receiver, received) = blocking(move || {
                    let fed = receiver.feed(&chunk.bytes);
                    (receiver, fed)
                })
                .await?;
                if received.is_err() {
                    break;
                }
            }
            Source::Stderr => stderr.push(&chunk.bytes),
        }
    }
    received?;
    check_exit(&mut running, inside, stderr).await?;
    Ok(blocking(move || receiver.finish()).await??)
}

/// Copies the tree at `source` to `inside`, or below it if `inside` ends with a slash.
pub(super) async fn copy_in(
    unpack: impl FnOnce(Work) -> Exec,
    source: PathBuf,
    inside: OsText,
) -> Result<CopyReport, Error> {
    let inside = target_inside(&source, inside)?;
    let mut sender = blocking(move || Sender::begin(&source)).await??;
    let exec = unpack(Work::Unpack { path: inside.clone() }).stdin_stream();
    let mut running = exec.spawn().await?;
    let mut input = running.stdin().ok_or(Error::lost("it takes no input"))?;
    let sent = async {
        loop {
            let (back, piece) = blocking(move || {
                let mut piece = Vec::new();
                let filled = sender.fill(&mut piece);
                (sender, filled.map(|()| piece))
            })
            .await?;
            sender = back;
            let piece = piece?;
            if piece.is_empty() {
                break;
            }
            // If the sandbox refuses the input, its exit reports the reason.
            if input.write_all(&piece).await.is_err() {
                break;
            }
        }
        drop(input);
        Ok::<_, Error>(sender)
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
    let exit = running
        .wait()
        .await
        .map_err(|error| CopyError::Inside { path: path.clone(), why: error.to_string() })?;
    if exit.code == Some(0) {
        return Ok(());
    }
    let stderr = super::output::output(stderr, Collected::new(0), exit).stdout;
    let stderr = belljar_spec::text::escape(stderr.trim_ascii());
    let why = if stderr.is_empty() { format!("exit code {}", exit.process_code()) } else { stderr };
    Err(CopyError::Inside { path, why })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::io("copy")(std::io::Error::other(error)))
}

fn last_name(path: &OsText) -> Option<OsString> {
    path.as_path().file_name().map(ToOwned::to_owned)
}

fn target_inside(source: &Path, inside: OsText) -> Result<OsText, CopyError> {
    if !inside.as_bytes().ends_with(b"/") {
        return Ok(inside);
    }
    let name = source.file_name().ok_or_else(|| CopyError::NoName { path: source.into() })?;
    let path = [inside.as_bytes(), name.as_bytes()].concat();
    Ok(OsText::from_bytes(path))
}
