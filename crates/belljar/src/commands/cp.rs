//! `belljar cp`: copies files into or out of a sandbox.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Seek;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar::spec::{EXIT_SIGNAL_BASE, EXIT_USAGE, Hint, RunId, WritableTree};
use belljar::{
    Client, CopyLimits, CopyReport, CopyRules, CopySource, Error, ExistingDirectory, HostTarget,
    MissingParents, ReadOnlyFiles,
};
use serde_json::{Value, json};

use super::result::causes;
use super::{
    CommandResult, EXIT_INCOMPLETE, descriptor, exit_code_json, find_live, in_runtime, open_home,
};
use crate::cli::CopyArgs;
use crate::report::{self, BAD, WARN};

pub(crate) fn run(args: &CopyArgs) -> i32 {
    exit_code_json(act(args), args.json)
}

/// The source or the target of a copy.
#[derive(Debug)]
enum End {
    Host(PathBuf),
    /// Standard input or output.
    Stream,
    Inside {
        run: String,
        path: OsString,
    },
}

/// What is copied where.
enum Copy {
    Out(PathBuf),
    ToStdout,
    In(CopySource),
}

fn act(args: &CopyArgs) -> CommandResult {
    let (run, inside, copy) = match (end(&args.from), end(&args.to)) {
        (End::Inside { run, path }, End::Host(here)) => (run, path, Copy::Out(here)),
        (End::Inside { run, path }, End::Stream) if !args.json => (run, path, Copy::ToStdout),
        (End::Inside { .. }, End::Stream) => {
            report::eprintln("error: --json cannot be used with - as the target: both are stdout");
            return Ok(EXIT_USAGE);
        }
        (End::Host(here), End::Inside { run, path }) => {
            (run, path, Copy::In(CopySource::Path(here)))
        }
        (End::Stream, End::Inside { run, path }) => (run, path, Copy::In(stdin()?)),
        _ => {
            report::eprintln(
                "error: one side must be RUN:/path, the other a path on this host or -",
            );
            let newest = crate::cli::usage::newest_live_run();
            let run = newest.map_or_else(|| "RUN".to_owned(), |newest| newest.id.tail().to_owned());
            report::hint(Hint::CopyForm { run });
            return Ok(EXIT_USAGE);
        }
    };
    let home = open_home()?;
    let run = find_live(&home, &run)?.id;
    let run_writable = belljar::run::run_writable_trees(&home)?;
    in_runtime(async {
        let client = Client::connect(home.path(), &run).await?;
        let out = match &copy {
            Copy::Out(here) => Some(here.clone()),
            Copy::ToStdout | Copy::In(_) => None,
        };
        // An interrupted copy is dropped, which removes partial files.
        let copied = tokio::select! {
            copied = carry_out(args, &client, &inside, copy, &run_writable) => copied,
            signal = interrupted() => return Ok(EXIT_SIGNAL_BASE + signal?),
        };
        match copied {
            Ok(copied) => {
                if let Some(here) = out {
                    belljar::run::note_copied_out(&home, &copied_path(&here, &inside))?;
                }
                finish(args, &run, &copied)
            }
            Err(error @ (Error::Copy(_) | Error::File(_))) => {
                if args.json {
                    report::json(&json!({ "id": run, "error": causes(&error) }))?;
                }
                report::eprintln(&format!("{BAD}error:{BAD:#} {error}")); // the text includes the cause
                Ok(EXIT_INCOMPLETE)
            }
            Err(error) => Err(error.into()),
        }
    })
}

async fn carry_out(
    args: &CopyArgs,
    client: &Client,
    inside: &OsStr,
    copy: Copy,
    run_writable: &[WritableTree],
) -> Result<CopyReport, Error> {
    let read_only = if args.force { ReadOnlyFiles::Replace } else { ReadOnlyFiles::Refuse };
    let parents = if args.parents { MissingParents::Make } else { MissingParents::Refuse };
    match copy {
        Copy::Out(here) => {
            let target = HostTarget { path: here, run_writable: run_writable.to_vec(), parents };
            client.copy_out_by(inside.into(), target, CopyLimits::default(), read_only).await
        }
        Copy::ToStdout => {
            let mut bytes = 0;
            let sink = |content: &[u8]| {
                bytes += content.len() as u64;
                descriptor::write_all(rustix::stdio::stdout(), content)
            };
            client.read_file_to(Path::new(inside), sink).await?;
            Ok(CopyReport { files: 1, bytes, ..CopyReport::default() })
        }
        Copy::In(source) => {
            let rules = CopyRules { existing: ExistingDirectory::Parent, parents, read_only };
            client.copy_in_by(source, inside.into(), rules).await
        }
    }
}

/// Standard input as a file with a known length: as it is, or copied to a temporary one.
fn stdin() -> std::io::Result<CopySource> {
    let mut file = File::from(rustix::stdio::stdin().try_clone_to_owned()?);
    let found = file.metadata()?;
    if found.is_file() {
        let left = found.len().saturating_sub(file.stream_position()?);
        return Ok(CopySource::File { file, left });
    }
    let mut spooled = temporary_file()?;
    let left = std::io::copy(&mut file, &mut spooled)?;
    spooled.rewind()?;
    Ok(CopySource::File { file: spooled, left })
}

/// Without a name; in memory where the file system of temporary files has no such files.
fn temporary_file() -> std::io::Result<File> {
    use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let made = open(std::env::temp_dir(), flags, Mode::from_raw_mode(0o600));
    let made = made.or_else(|_| memfd_create("belljar-cp", MemfdFlags::CLOEXEC))?;
    Ok(File::from(made))
}

fn finish(args: &CopyArgs, run: &RunId, copied: &CopyReport) -> CommandResult {
    if args.json {
        let skipped = copied.skipped.iter();
        let skipped: Vec<Value> =
            skipped.map(|(path, why)| json!({ "path": path, "why": why })).collect();
        report::json(&json!({
            "id": run, "files": copied.files, "bytes": copied.bytes, "skipped": skipped,
            "unlisted": copied.unlisted,
        }))?;
    }
    Ok(print_skipped(copied, args.quiet || args.json))
}

/// The path of the copy on the host: below `here` if that is an existing directory.
fn copied_path(here: &Path, inside: &OsStr) -> PathBuf {
    let below = Path::new(inside).file_name().map(|name| here.join(name));
    below.filter(|path| path.symlink_metadata().is_ok()).unwrap_or_else(|| here.to_owned())
}

/// Waits for the first signal that asks this process to end.
async fn interrupted() -> std::io::Result<i32> {
    use tokio::signal::unix::{SignalKind, signal};
    let (hangup, interrupt, terminate) =
        (SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate());
    let (mut a, mut b, mut c) = (signal(hangup)?, signal(interrupt)?, signal(terminate)?);
    Ok(tokio::select! {
        _ = a.recv() => hangup.as_raw_value(),
        _ = b.recv() => interrupt.as_raw_value(),
        _ = c.recv() => terminate.as_raw_value(),
    })
}

fn print_skipped(copied: &CopyReport, quiet: bool) -> i32 {
    let skipped = copied.skipped.len() as u64 + copied.unlisted;
    if !quiet {
        for (path, why) in &copied.skipped {
            let why = belljar::spec::text::escape(why.as_bytes());
            report::eprintln(&format!("{WARN}skipped:{WARN:#} {path}: {why}"));
        }
        if copied.unlisted > 0 {
            report::eprintln(&format!("and {} more", copied.unlisted));
        }
    }
    if skipped == 0 { 0 } else { EXIT_INCOMPLETE }
}

/// A colon after a slash is part of a path.
fn end(text: &OsStr) -> End {
    let bytes = text.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':');
    let run = colon.and_then(|at| std::str::from_utf8(&bytes[..at]).ok());
    match (colon, run) {
        _ if bytes == b"-" => End::Stream,
        (Some(at), Some(run)) if !run.is_empty() && !run.contains('/') => {
            let path = OsStr::from_bytes(&bytes[at + 1..]).to_owned();
            End::Inside { run: run.to_owned(), path }
        }
        _ => End::Host(PathBuf::from(text)),
    }
}
