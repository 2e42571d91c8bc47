//! Trees of files that go into a sandbox or come out of it.
//!
//! What comes out is hostile: [`receive`] writes it into a new directory beside the target, step by
//! step from descriptors, and moves it into place when it is whole. [`send`] reads the host's side
//! without following a link.

pub(crate) mod receive;
pub(crate) mod send;
mod tree;

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

/// Of what was not copied this many are named.
pub(crate) const MAX_LISTED: usize = 1000;
/// How much of a complaint from inside is shown.
const MAX_COMPLAINT: usize = 2048;

/// What a copy may come to. Checked against what is announced, before it is written.
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
    /// What was left out, and why: the first thousand.
    pub skipped: Vec<(OsText, String)>,
    /// How many more were left out.
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
    #[error("what came out of the sandbox makes no sense: {0}")]
    Archive(#[from] ArchiveError),
    #[error("what came out of the sandbox makes no sense: {path}: {why}")]
    Entry { path: OsText, why: &'static str },
    #[error("the copy is not whole: it ended too early")]
    Unfinished,
    #[error("the copy would be larger than {limit} bytes; copy less, or raise CopyLimits")]
    TooLarge { limit: u64 },
    #[error("the copy has more than {limit} entries; copy less, or raise CopyLimits")]
    TooMany { limit: u64 },
    #[error("{path} exists and is a directory; name another target, or remove it")]
    DirectoryInTheWay { path: OsText },
    #[error("{path} names no file; end the target with a name")]
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

/// Copies the tree at `inside` to `target`; docker's rules for where it goes.
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
    let mut complaint = Collected::new(MAX_COMPLAINT);
    let mut received = Ok(());
    while let Some(chunk) = running.next().await {
        match chunk.source {
            Source::Stdout | Source::Terminal => {
                // The receiver goes along, so that a caller who gives up here leaves nothing: whoever
                // drops it removes what it made.
                (receiver, received) = blocking(move || {
                    let fed = receiver.feed(&chunk.bytes);
                    (receiver, fed)
                })
                .await?;
                if received.is_err() {
                    break;
                }
            }
            Source::Stderr => complaint.push(&chunk.bytes),
        }
    }
    received?;
    ended_well(&mut running, inside, complaint).await?;
    Ok(blocking(move || receiver.finish()).await??)
}

/// Copies the tree at `source` to `inside`. With a slash at the end it keeps its name below that.
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
            // An input that is refused shows in the exit, with the reason.
            if input.write_all(&piece).await.is_err() {
                break;
            }
        }
        drop(input);
        Ok::<_, Error>(sender)
    };
    let mut complaint = Collected::new(MAX_COMPLAINT);
    let printed = async {
        while let Some(chunk) = running.next().await {
            if chunk.source == Source::Stderr {
                complaint.push(&chunk.bytes);
            }
        }
    };
    let (sender, ()) = tokio::join!(sent, printed);
    let sender = sender?;
    ended_well(&mut running, inside, complaint).await?;
    Ok(sender.report())
}

async fn ended_well(
    running: &mut Running,
    path: OsText,
    complaint: Collected,
) -> Result<(), CopyError> {
    let exit = running
        .wait()
        .await
        .map_err(|error| CopyError::Inside { path: path.clone(), why: error.to_string() })?;
    if exit.code == Some(0) {
        return Ok(());
    }
    let said = super::output::output(complaint, Collected::new(0), exit).stdout;
    let said = belljar_spec::text::escape(said.trim_ascii());
    let why = if said.is_empty() { format!("exit code {}", exit.process_code()) } else { said };
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
