//! Copies files and trees into or out of a sandbox.
//!
//! `belljar_workspace::transfer` packs and unpacks the host's side, where data from a sandbox is hostile.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_spec::OsText;
use belljar_spec::wire::{UnpackModes, Work};
use tokio::io::AsyncWriteExt;

use super::error::Error;
use super::exec::Exec;
use super::output::Collected;
use super::running::Running;
use super::task::Source;
pub(crate) use belljar_workspace::transfer::{CopyError, CopyLimits, CopyReport, Receiver, Sender};

/// How many bytes of an error message from inside are shown.
const MAX_STDERR: usize = 2048;

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
    let exec =
        unpack(Work::Unpack { path: inside.clone(), modes: UnpackModes::Umask }).stdin_stream();
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
